/* test_kv.c - the cache as memory: it grows in any steps, keeps what it holds, is zero where nothing was stored, counts
 * its bytes, and can be cleared and used again. The oracle is a plain array of floats. */
#include "kv.h"
#include "map.h"
#include "pantheon.h"

#include "check.h"

#include <stdlib.h>

enum { LAYERS = 3, HEADS = 2, HEAD = 13, HEAD_8 = 16, POSITIONS = 1500 };
enum { SMALL_BLOCK = LAYERS * HEADS * 2 * KV_BLOCK * HEAD_8 * 2 };

/* Whole numbers that 16 bits hold exactly, another one for each place. */
static float number_at(size_t layer, size_t position, size_t head, size_t e, bool value) {
    return (float)((layer * 7919 + position * 104729 + head * 1299709 + e * 15485863 + value * 31) % 2039) + 1.0f;
}

static void store(const kernel_set *kernels, const kv_cache *kv, size_t position) {
    float k[HEADS * HEAD], v[HEADS * HEAD];
    for (size_t layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < HEADS * HEAD; i++) {
            k[i] = number_at(layer, position, i / HEAD, i % HEAD, false);
            v[i] = number_at(layer, position, i / HEAD, i % HEAD, true);
        }
        kv_store(kernels, kv, layer, position, k, v);
    }
}

/* 16-bit floats of whole numbers from 1 to 2048 and of 0, by their definition. */
static uint16_t half_of(float x) {
    if (!(x > 0)) return 0;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

/* Is every place of every block what was stored in positions [0, n), and zero behind them and in the padding? */
static bool holds(const kv_cache *kv, size_t n) {
    bool right = true;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++)
            for (size_t position = 0; position < kv->n_blocks * KV_BLOCK; position++) {
                const size_t slot = position % KV_BLOCK;
                const uint16_t *keys = kv_keys(kv, layer, head, position / KV_BLOCK);
                const uint16_t *values = kv_values(kv, layer, head, position / KV_BLOCK);
                for (size_t e = 0; e < HEAD_8; e++) {
                    const bool set = position < n && e < HEAD;
                    const float k = set ? number_at(layer, position, head, e, false) : 0;
                    const float v = set ? number_at(layer, position, head, e, true) : 0;
                    right &= keys[e * KV_BLOCK + slot] == half_of(k) && values[slot * HEAD_8 + e] == half_of(v);
                }
            }
    return right;
}

static void kernels_get(kernel_set *kernels) {
    CHECK(kernels_pick("portable", kernels) == PN_OK);
}

/* Memory of the heap that is freed again with ones in it, where a new block may come to lie. */
static void leave_dirt(void) {
    void *pieces[8];
    for (size_t i = 0; i < 8; i++)
        if ((pieces[i] = malloc((i + 1) * SMALL_BLOCK))) memset(pieces[i], 0xff, (i + 1) * SMALL_BLOCK);
    for (size_t i = 0; i < 8; i++) free(pieces[i]);
}

static void test_reserve_in_odd_steps_keeps_what_was_stored_and_adds_zeros(void) {
    static const size_t STEPS[] = { 1, 2, 127, 128, 129, 400, 384, 0, 513, POSITIONS };
    kernel_set kernels;
    kv_cache kv;
    kernels_get(&kernels);
    kv_init(&kv, LAYERS, HEADS, HEAD);
    size_t stored = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(STEPS); i++) {
        leave_dirt();
        CHECK(kv_reserve(&kv, STEPS[i]) == PN_OK);
        CHECK(kv.n_blocks * KV_BLOCK >= STEPS[i]);
        CHECK(holds(&kv, stored));
        for (; stored < STEPS[i]; stored++) store(&kernels, &kv, stored);
    }
    CHECK(holds(&kv, POSITIONS));
    kv_clear(&kv);
}

static void test_reserve_by_one_position_adds_one_block_when_the_last_is_full(void) {
    kv_cache kv;
    kv_init(&kv, LAYERS, HEADS, HEAD);
    CHECK(kv_bytes(&kv) == 0);
    for (size_t n = 1; n <= 5 * KV_BLOCK; n++) {
        CHECK(kv_reserve(&kv, n) == PN_OK);
        const size_t blocks = (n + KV_BLOCK - 1) / KV_BLOCK;
        CHECK(kv.n_blocks == blocks);
        CHECK(kv_bytes(&kv) == blocks * (SMALL_BLOCK + 2 * sizeof(void *))); /* each a piece of its own */
    }
    kv_clear(&kv);
}

static void test_reserve_of_many_blocks_makes_one_piece(void) {
    kv_cache kv;
    kv_init(&kv, LAYERS, HEADS, HEAD);
    CHECK(kv_reserve(&kv, 1) == PN_OK);
    CHECK(kv_reserve(&kv, 64 * KV_BLOCK) == PN_OK);
    CHECK(kv_bytes(&kv) == 64 * (SMALL_BLOCK + sizeof(void *)) + 2 * sizeof(void *));
    for (size_t i = 2; i < 64; i++) CHECK((uintptr_t)kv.blocks[i] == (uintptr_t)kv.blocks[i - 1] + SMALL_BLOCK);
    CHECK((size_t)63 * SMALL_BLOCK > HUGE_PAGE && (uintptr_t)kv.blocks[1] % HUGE_PAGE == 0);
    kv_clear(&kv);
}

static void test_clear_gives_all_back_and_the_cache_is_used_again(void) {
    kernel_set kernels;
    kv_cache kv;
    kernels_get(&kernels);
    kv_init(&kv, LAYERS, HEADS, HEAD);
    kv_clear(&kv);
    for (size_t n = 1; n <= POSITIONS; n = n * 3 + 1) {
        CHECK(kv_reserve(&kv, n) == PN_OK);
        CHECK(holds(&kv, 0)); /* nothing of the last time */
        for (size_t position = 0; position < n; position++) store(&kernels, &kv, position);
        CHECK(holds(&kv, n));
        kv_clear(&kv);
        CHECK(kv_bytes(&kv) == 0 && kv.n_blocks == 0 && kv.blocks == NULL);
    }
    kv_clear(&kv);
}

static void test_reserve_of_more_than_there_is_leaves_the_cache_as_it_was(void) {
    kernel_set kernels;
    kv_cache kv;
    kernels_get(&kernels);
    kv_init(&kv, LAYERS, HEADS, HEAD);
    CHECK(kv_reserve(&kv, 200) == PN_OK);
    for (size_t position = 0; position < 200; position++) store(&kernels, &kv, position);
    const size_t bytes = kv_bytes(&kv);
    CHECK(kv_reserve(&kv, SIZE_MAX) == PN_ERR_MEMORY); /* the number of bytes is none */
#ifndef __SANITIZE_ADDRESS__                           /* it ends the program on such a request */
    CHECK(kv_reserve(&kv, SIZE_MAX / SMALL_BLOCK * (KV_BLOCK / 2)) == PN_ERR_MEMORY); /* no system has as many */
#endif
    CHECK(kv_bytes(&kv) == bytes && kv.n_blocks == 2 && holds(&kv, 200));
    CHECK(kv_reserve(&kv, 300) == PN_OK);
    CHECK(holds(&kv, 200));
    kv_clear(&kv);
}

int main(void) {
    RUN(test_reserve_in_odd_steps_keeps_what_was_stored_and_adds_zeros);
    RUN(test_reserve_by_one_position_adds_one_block_when_the_last_is_full);
    RUN(test_reserve_of_many_blocks_makes_one_piece);
    RUN(test_clear_gives_all_back_and_the_cache_is_used_again);
    RUN(test_reserve_of_more_than_there_is_leaves_the_cache_as_it_was);
    return check_report();
}
