/* kv.c - blocks of the key/value cache: made when first needed, given back on clear.                     (rank 6)
 *
 * Knows positions and heads, not tokens or models. */
#include "kv.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

void kv_init(kv_cache *kv, size_t n_layer, size_t n_head_kv, size_t head_size) {
    *kv =
        (kv_cache){ .n_layer = n_layer, .n_head_kv = n_head_kv, .head_size = head_size, .e8 = (head_size + 7) / 8 * 8 };
}

static size_t block_bytes(const kv_cache *kv) {
    return kv->n_layer * kv->n_head_kv * 2 * KV_BLOCK * kv->e8 * sizeof(uint16_t);
}

int kv_reserve(kv_cache *kv, size_t n) {
    const size_t need = (n + KV_BLOCK - 1) / KV_BLOCK;
    if (need <= kv->n_blocks) return PN_OK;
    uint16_t **blocks = realloc(kv->blocks, need * sizeof *blocks);
    if (!blocks) return pn_fail(PN_ERR_MEMORY, "cache: no memory for %zu blocks", need);
    kv->blocks = blocks;
    while (kv->n_blocks < need) {
        /* Zeros: kernels read whole vectors past the last key, and the padding of values counts. */
        uint16_t *block = calloc(1, block_bytes(kv));
        if (!block)
            return pn_fail(PN_ERR_MEMORY, "cache: no memory for %zu bytes (positions %zu to %zu)", block_bytes(kv),
                           kv->n_blocks * KV_BLOCK, kv->n_blocks * KV_BLOCK + KV_BLOCK - 1);
        kv->blocks[kv->n_blocks++] = block;
    }
    return PN_OK;
}

void kv_clear(kv_cache *kv) {
    for (size_t i = 0; i < kv->n_blocks; i++) free(kv->blocks[i]);
    free(kv->blocks);
    kv->blocks = NULL;
    kv->n_blocks = 0;
}

size_t kv_bytes(const kv_cache *kv) {
    return kv->n_blocks * (block_bytes(kv) + sizeof *kv->blocks);
}

void kv_store(const kernel_set *kernels, const kv_cache *kv, size_t layer, size_t position, const float *k,
              const float *v) {
    const size_t block = position / KV_BLOCK, slot = position % KV_BLOCK;
    uint16_t halves[KV_HEAD_MAX];
    for (size_t head = 0; head < kv->n_head_kv; head++, k += kv->head_size, v += kv->head_size) {
        uint16_t *keys = kv_keys(kv, layer, head, block) + slot;
        kernels->narrow(k, halves, kv->head_size);
        for (size_t e = 0; e < kv->head_size; e++) keys[e * KV_BLOCK] = halves[e];
        kernels->narrow(v, kv_values(kv, layer, head, block) + slot * kv->e8, kv->head_size);
    }
}
