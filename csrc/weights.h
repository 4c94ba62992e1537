/* weights.h - matrices of a file in, all of them packed in one block of memory out.                       (rank 6)
 *
 * One block, so that nearly all of it can come to lie in huge pages, and one job for the pool over all matrices: small
 * ones alone would not keep two threads busy. */
#ifndef PN_WEIGHTS_H
#define PN_WEIGHTS_H

#include "gguf.h"
#include "matmul.h"

typedef struct weight_item weight_item;

/* Zeroed: empty. */
typedef struct weight_list {
    const pn_gguf *gguf; /* borrowed */
    weight_item *items;  /* [n] in the order of the file once they are packed */
    size_t n, cap;
} weight_list;

/* Called in the loading thread with the bytes of the file that were packed so far. PN_OK, or the status that stops the
 * packing. */
typedef int (*weights_progress)(void *context, uint64_t bytes);

/* Room for up to `cap` matrices of this file. PN_ERR_MEMORY. */
int weight_list_init(weight_list *list, const pn_gguf *gguf, size_t cap);
/* Plan *m for rows [row, row + n_rows) of `tensor` of the file, whose type matrix_supports; higher dimensions are
 * counted through. *m must stay where it is. PN_ERR_ARGUMENT: there is no such tensor, it has no such rows, or the list
 * is full; CORRUPT: the packed size fits no address space. */
int weight_list_add(weight_list *list, uint64_t tensor, uint64_t row, uint64_t n_rows, matrix *m);
/* Pack all of them, on all threads if `pool` (entered) is not NULL, letting the file's pages go on the way. progress
 * must not be NULL; it hears every few MiB, and of the last byte if nothing stopped before. *block, of
 * *bytes, holds the data of every matrix and is the caller's to free() after them. On failure it is NULL, of 0 bytes,
 * and no matrix has data. Errors: MEMORY, or what progress returned. */
int weight_list_pack(weight_list *list, threads *pool, weights_progress progress, void *context, uint8_t **block,
                     size_t *bytes);
void weight_list_free(weight_list *list);

#endif
