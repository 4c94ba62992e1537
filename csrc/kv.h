/* kv.h - the key/value cache of one conversation: f16, in blocks of KV_BLOCK positions.                 (rank 6)
 *
 * Memory grows with the positions used. Keys are stored transposed within a block, so that scores run over several
 * keys at a time and each score is a plain sum along the head; values are rows. */
#ifndef PN_KV_H
#define PN_KV_H

#include "common.h"
#include "kernels/kernels.h"

enum { KV_HEAD_MAX = 1024 };

typedef struct kv_cache {
    size_t n_layer, n_head_kv, head_size;
    size_t e8;         /* kv_padded(head_size), the padding is zeros */
    uint16_t **blocks; /* [n_blocks] each [L, G, 2, KV_BLOCK * e8]    */
    size_t n_blocks;
    void **arenas; /* [n_arenas] the memory of all blocks, one piece for each call that made some */
    size_t n_arenas;
} kv_cache;

/* head_size as it is stored: rounded up to 8. */
static inline size_t kv_padded(size_t head_size) {
    return (head_size + 7) / 8 * 8;
}
/* Bytes of the keys and values of one position. */
static inline size_t kv_position_bytes(size_t n_layer, size_t n_head_kv, size_t head_size) {
    return n_layer * n_head_kv * 2 * kv_padded(head_size) * sizeof(uint16_t);
}

void kv_init(kv_cache *kv, size_t n_layer, size_t n_head_kv, size_t head_size);
/* Room for positions [0, n), in one piece of memory for all blocks that are new: a long prompt's lies in huge pages.
 * PN_ERR_MEMORY leaves the cache as it was. */
int kv_reserve(kv_cache *kv, size_t n);
/* Give all memory back. The cache can be used again. */
void kv_clear(kv_cache *kv);
/* All memory that the cache holds, its tables included. */
size_t kv_bytes(const kv_cache *kv);

/* f16 keys [E, KV_BLOCK] and values [KV_BLOCK, e8] of one block and head. */
static inline uint16_t *kv_keys(const kv_cache *kv, size_t layer, size_t head, size_t block) {
    return kv->blocks[block] + (layer * kv->n_head_kv + head) * 2 * KV_BLOCK * kv->e8;
}
static inline uint16_t *kv_values(const kv_cache *kv, size_t layer, size_t head, size_t block) {
    return kv_keys(kv, layer, head, block) + KV_BLOCK * kv->e8;
}
/* Store k[G, E] and v[G, E] at a position that is reserved. E <= KV_HEAD_MAX. */
void kv_store(const kernel_set *kernels, const kv_cache *kv, size_t layer, size_t position, const float *k,
              const float *v);

#endif
