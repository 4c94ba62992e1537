/* scratch.h - the working memory of one evaluation, kept for the next one.                                (rank 6)
 *
 * T tokens of a batch, D model width, Q = heads * head size, K = key heads * head size, F feed-forward width,
 * R rotated width, X experts, V vocabulary. Row strides (ld) are rounded up to GROUP_ROWS, because products write whole
 * groups of rows. */
#ifndef PN_SCRATCH_H
#define PN_SCRATCH_H

#include "matmul.h"

#include <pthread.h>

/* The widths that rows need, from the model. */
typedef struct scratch_shape {
    size_t d, q, k, f, r, x, v;
} scratch_shape;

/* Tokens of one internal batch, and rows of logits that are computed at a time. */
enum { BATCH_MAX = 512, LOGIT_ROWS = 32 };
/* Half of all that rounding activations to 8 bits costs (Kullback-Leibler divergence from a float64 evaluation) comes
 * from the inputs of queries, keys and values, a sixth of the products: those get 16 bits, as two planes of 8. */
enum { QKV_PLANES = 2 };

typedef struct scratch {
    struct scratch *next;
    size_t n_tokens; /* capacity */
    size_t n_logits; /* capacity in rows */
    size_t ld_d, ld_q, ld_k, ld_f, ld_x, ld_v;
    float *x, *h;         /* [T, ld_d] residual stream; normed input, then a block's output */
    float *q, *k, *v;     /* [QKV_PLANES, T, ld_q or ld_k] the products of the planes of activations */
    float *o;             /* [T, ld_q] attention's result */
    float *gate, *up;     /* [T, ld_f] */
    float *cosine, *sine; /* [T, R/2]  rotary angles of each token */
    float *member;        /* [T, ld_d] with experts: the inputs of one, then what it computed */
    float *sum;           /* [T, ld_d] with experts: what they computed together */
    float *shares;        /* [T, ld_x] scores of experts, then shares */
    float *logits;        /* [n_logits, ld_v] */
    float *partials;      /* [n_partials]  attention's results of parts of a long cache */
    size_t n_partials;
    act_buffer activations;
    void *memory, *logit_memory;
} scratch;

/* Free scratches of a model; each is used by one evaluation at a time. */
typedef struct scratch_list {
    pthread_mutex_t mutex;
    scratch *first;
} scratch_list;

void scratch_list_init(scratch_list *list);
void scratch_list_free(scratch_list *list);
/* One with room for n_tokens (<= BATCH_MAX) and n_logits (<= LOGIT_ROWS) rows: a kept one, grown if need be, or a new
 * one. PN_ERR_MEMORY. */
int scratch_take(scratch_list *list, const scratch_shape *shape, size_t n_tokens, size_t n_logits, scratch **out);
void scratch_give(scratch_list *list, scratch *s); /* NULL is fine */
/* Make s->partials hold n floats; false if there is no memory. */
bool scratch_reserve_partials(scratch *s, size_t n);

#endif
