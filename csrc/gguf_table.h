/* gguf_table.h - what a parsed GGUF file is within the room gguf: tables, and sorted indexes over them.    (rank 3)
 *
 * For gguf*.c alone; everyone else goes through gguf.h.
 * Know first: of a model that was split, the first part's pn_gguf is the whole. It has the metadata and the tensors of
 * all parts in its tables, and owns the other parts, which keep their bytes and nothing else. So a position in a tensor
 * means nothing without the part that it belongs to: gguf_part(). */
#ifndef PN_GGUF_TABLE_H
#define PN_GGUF_TABLE_H

#include "gguf.h"

enum { NAME_LEN_MAX = 64 };

/* All positions are from the start of the file. */
typedef struct entry {
    uint64_t begin, end; /* the whole entry                                            */
    uint64_t key, value; /* value: the number, the string's bytes or the first element */
    uint64_t n;          /* array: elements                                            */
    uint32_t key_len;
    uint8_t type, element_type;
} entry;

typedef struct tensor {
    uint64_t name;
    uint64_t dims[4];
    uint64_t offset, size;
    const dtype_info *type;
    uint32_t name_len;
    uint32_t part; /* 0: the file itself; i: parts[i]  */
    int n_dims;
} tensor;

struct pn_gguf {
    file_map map;         /* empty for gguf_parse and after gguf_detach             */
    uint8_t *copy;        /* the header on the heap after gguf_detach, else NULL    */
    const uint8_t *bytes; /* [size] the file, or NULL after gguf_detach             */
    size_t size;
    const uint8_t *header; /* [header_size] where entry and tensor positions point */
    size_t header_size;
    uint64_t data_end; /* after the last tensor of this file, without padding */
    uint32_t version, alignment;
    uint64_t n_entries, n_tensors;
    entry *entries;           /* [n_entries] in file order                                  */
    tensor *tensors;          /* [n_tensors] in file order, part after part                 */
    uint64_t *entry_by_key;   /* [n_entries] sorted by key                                  */
    uint64_t *tensor_by_name; /* [n_tensors] sorted by name                                 */
    pn_gguf **parts;          /* [1 + n_others] of a model that was split: this one, and the others, owned; else NULL */
    uint32_t n_others;
};

/* The file that part number `part` (0..n_others) is. */
static inline const pn_gguf *gguf_part(const pn_gguf *g, uint32_t part) {
    return part ? g->parts[part] : g;
}

/* Parse a file and keep its map; on failure the map is closed. */
int gguf_parse_map(file_map map, pn_gguf **out);
/* If *gguf, opened from `path`, is a part of a model that was split: open the other parts, which lie beside it, check
 * that they belong together, and make *gguf the whole. The caller frees *gguf, on failure too. */
int gguf_join(const char *path, bool use_mmap, pn_gguf **gguf);
/* Is `path` by its name a piece of a file that was cut by bytes, which nothing but joining can make whole? */
bool gguf_is_piece(const char *path);
/* Put "where: " before the message of the failure `status`, which is returned. */
int gguf_fail_in(const char *where, int status);

/* ---- sorted indexes (gguf_index.c) -------------------------------------------------------------------------- */

/* Negative, zero or positive, like memcmp. */
typedef int (*gguf_index_order)(const pn_gguf *g, uint64_t a, uint64_t b);
int gguf_order_by_offset(const pn_gguf *g, uint64_t a, uint64_t b); /* of tensors of one part */
/* The numbers 0..n-1 in this order; owned. */
int gguf_index_make(const pn_gguf *g, uint64_t n, gguf_index_order order, uint64_t **out);
/* Sort the entries by key, the tensors by name; CORRUPT if two have the same. Called again, they take the place of
 * those that are there. */
int gguf_index_entries(pn_gguf *g);
int gguf_index_tensors(pn_gguf *g);

#endif
