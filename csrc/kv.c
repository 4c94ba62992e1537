/* kv.c - blocks of the key/value cache: made when first needed, given back on clear.                     (rank 6)
 *
 * Knows positions and heads, not tokens or models. */
#include "kv.h"

#include "map.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

void kv_init(kv_cache *kv, size_t n_layer, size_t n_head_kv, size_t head_size) {
    *kv = (kv_cache){ .n_layer = n_layer, .n_head_kv = n_head_kv, .head_size = head_size, .e8 = kv_padded(head_size) };
}

static size_t block_bytes(const kv_cache *kv) {
    return KV_BLOCK * kv_position_bytes(kv->n_layer, kv->n_head_kv, kv->head_size);
}

/* Zeros: kernels read whole vectors past the last key, and the padding of values counts. Huge pages are asked for
 * before the first touch, which makes them; the end of the piece that fills none stays in small ones. */
static uint16_t *arena_new(size_t bytes) {
    uint16_t *arena = memory_new(bytes);
    if (!arena) return NULL;
    if (bytes >= HUGE_PAGE) memory_join_pages(arena, bytes);
    return memset(arena, 0, bytes);
}

/* Room in both tables for n blocks and one more arena. */
static bool grow_tables(kv_cache *kv, size_t n) {
    uint16_t **blocks = realloc(kv->blocks, n * sizeof *blocks);
    if (!blocks) return false;
    kv->blocks = blocks;
    void **arenas = realloc(kv->arenas, (kv->n_arenas + 1) * sizeof *arenas);
    if (!arenas) return false;
    kv->arenas = arenas;
    return true;
}

int kv_reserve(kv_cache *kv, size_t n) {
    const size_t need = n / KV_BLOCK + (n % KV_BLOCK != 0), one = block_bytes(kv);
    if (need <= kv->n_blocks) return PN_OK;
    size_t bytes;
    uint16_t *arena = size_mul(need - kv->n_blocks, one, &bytes) ? arena_new(bytes) : NULL;
    if (!arena || !grow_tables(kv, need)) {
        free(arena);
        return pn_fail(PN_ERR_MEMORY, "cache: no memory for %zu blocks of %zu bytes (positions %zu to %zu)",
                       need - kv->n_blocks, one, kv->n_blocks * KV_BLOCK, n - 1);
    }
    kv->arenas[kv->n_arenas++] = arena;
    for (; kv->n_blocks < need; arena += one / sizeof *arena) kv->blocks[kv->n_blocks++] = arena;
    return PN_OK;
}

void kv_clear(kv_cache *kv) {
    for (size_t i = 0; i < kv->n_arenas; i++) free(kv->arenas[i]);
    free(kv->arenas);
    free(kv->blocks);
    kv->arenas = NULL;
    kv->blocks = NULL;
    kv->n_arenas = kv->n_blocks = 0;
}

size_t kv_bytes(const kv_cache *kv) {
    return kv->n_blocks * (block_bytes(kv) + sizeof *kv->blocks) + kv->n_arenas * sizeof *kv->arenas;
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
