/* bpe.c - a list of symbols in, the list after all merges out: byte-pair merging on ids.             (rank 4)
 *
 * Does not cache words and does not take a piece that is a token as a whole for that token: the reference applies the
 * merges, and a vocabulary may hold tokens that no merges lead to.
 * A pair's merge is one number, rank << 32 | result. The lowest rank comes first, of equal ones the leftmost pair.
 * Short pieces (most words) are merged by looking for it in an array, long ones with a heap and a linked list; both
 * give the same tokens. */
#include "bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "hash.h"
#include "status.h"

#define BPE_NONE    UINT64_MAX
#define BPE_NOWHERE UINT32_MAX
/* Up to here a scan of an array that sits in the first-level cache is faster than the heap. */
#define BPE_SHORT 48

typedef struct bpe_slot {
    uint64_t pair;  /* left << 32 | right, BPE_NONE if the slot is empty */
    uint64_t merge; /* rank << 32 | result                               */
} bpe_slot;

struct bpe {
    uint64_t seed;
    size_t mask; /* slots - 1; the slots are a power of two, at most half of them in use */
    bpe_slot *slots;
};

/* ---- Table ---- */

int bpe_new(size_t n_merges, uint64_t seed, bpe **out) {
    *out = NULL;
    if (n_merges >= UINT32_MAX) return pn_fail(PN_ERR_ARGUMENT, "bpe: %zu merges are too many", n_merges);
    size_t n = 16;
    while (n < 2 * (uint64_t)n_merges) n *= 2;
    size_t bytes = 0;
    bpe *const table = calloc(1, sizeof *table);
    if (table && size_mul(n, sizeof *table->slots, &bytes)) table->slots = malloc(bytes);
    if (!table || !table->slots) {
        free(table);
        return pn_fail(PN_ERR_MEMORY, "bpe: out of memory (%zu bytes for %zu merges)", bytes, n_merges);
    }
    memset(table->slots, 0xFF, bytes);
    table->seed = seed;
    table->mask = n - 1;
    *out = table;
    return PN_OK;
}

void bpe_free(bpe *table) {
    if (!table) return;
    free(table->slots);
    free(table);
}

/* The slot of a pair, or the empty one where it belongs. */
static inline bpe_slot *bpe_slot_of(const bpe *table, uint64_t pair) {
    size_t at = hash_slot(pair ^ table->seed, table->mask);
    while (table->slots[at].pair != pair && table->slots[at].pair != BPE_NONE) at = (at + 1) & table->mask;
    return &table->slots[at];
}

void bpe_add(bpe *table, uint32_t left, uint32_t right, uint32_t rank, uint32_t result) {
    const uint64_t pair = (uint64_t)left << 32 | right;
    *bpe_slot_of(table, pair) = (bpe_slot){ pair, (uint64_t)rank << 32 | result };
}

static inline uint64_t bpe_find(const bpe *table, uint32_t left, uint32_t right) {
    return bpe_slot_of(table, (uint64_t)left << 32 | right)->merge; /* BPE_NONE in an empty slot */
}

/* ---- Scratch ---- */

/* Grow *array to n elements without keeping what it holds. */
static int bpe_grow(void **array, size_t n, size_t element_bytes) {
    size_t bytes = 0;
    free(*array);
    *array = size_mul(n, element_bytes, &bytes) ? malloc(bytes) : NULL;
    if (!*array) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes to merge a long piece)", bytes);
    return PN_OK;
}

int bpe_reserve(bpe_scratch *scratch, size_t n) {
    if (n > BPE_MAX_SYMBOLS)
        return pn_fail(PN_ERR_ARGUMENT,
                       "tokenizer: %zu bytes without a place to split are too many (at most %zu); break the text up", n,
                       BPE_MAX_SYMBOLS);
    if (n > scratch->cap) {
        const size_t cap = size_max(n + n / 2, 256);
        scratch->cap = 0;
        PN_TRY(bpe_grow((void **)&scratch->ids, cap, sizeof *scratch->ids));
        scratch->cap = cap;
    }
    if (n > BPE_SHORT && n > scratch->long_cap) {
        const size_t cap = n + n / 2;
        scratch->long_cap = 0;
        PN_TRY(bpe_grow((void **)&scratch->pairs, cap, sizeof *scratch->pairs));
        PN_TRY(bpe_grow((void **)&scratch->heap, cap, 2 * sizeof *scratch->heap));
        PN_TRY(bpe_grow((void **)&scratch->prev, cap, sizeof *scratch->prev));
        PN_TRY(bpe_grow((void **)&scratch->next, cap, sizeof *scratch->next));
        scratch->long_cap = cap;
    }
    return PN_OK;
}

void bpe_scratch_free(bpe_scratch *scratch) {
    free(scratch->ids);
    free(scratch->pairs);
    free(scratch->heap);
    free(scratch->prev);
    free(scratch->next);
    *scratch = (bpe_scratch){ 0 };
}

/* ---- Short pieces ---- */

static size_t bpe_merge_short(const bpe *table, uint32_t *ids, size_t n) {
    uint64_t pairs[BPE_SHORT];
    for (size_t i = 0; i + 1 < n; i++) pairs[i] = bpe_find(table, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pairs[i] >> 32 < pairs[at] >> 32) at = i; /* ranks alone, strictly less: the leftmost of equals */
        if (pairs[at] == BPE_NONE) break;
        ids[at] = (uint32_t)pairs[at];
        n--;
        for (size_t i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            pairs[i - 1] = pairs[i];
        }
        if (at + 1 < n) pairs[at] = bpe_find(table, ids[at], ids[at + 1]);
        if (at > 0) pairs[at - 1] = bpe_find(table, ids[at - 1], ids[at]);
    }
    return n;
}

/* ---- Long pieces ----
 * Symbols stay where they are; prev and next link those that are left. A heap entry is good as long as the pair at its
 * position still has its rank. If it is another pair of the same rank, it has an equal entry of its own. */

static void bpe_heap_down(uint64_t *heap, size_t n, size_t at) {
    const uint64_t moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moving) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void bpe_heap_push(uint64_t *heap, size_t *n, uint64_t entry) {
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t bpe_heap_pop(uint64_t *heap, size_t *n) {
    const uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) bpe_heap_down(heap, *n, 0);
    return top;
}

static inline uint64_t bpe_heap_entry(uint64_t merge, size_t position) {
    return (merge & UINT64_C(0xFFFFFFFF00000000)) | (uint32_t)position;
}

/* Link the symbols, look up all pairs, build the heap; returns its size. */
static size_t bpe_long_start(const bpe *table, const bpe_scratch *scratch, size_t n) {
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        scratch->prev[i] = i ? (uint32_t)(i - 1) : BPE_NOWHERE;
        scratch->next[i] = i + 1 < n ? (uint32_t)(i + 1) : BPE_NOWHERE;
        scratch->pairs[i] = i + 1 < n ? bpe_find(table, scratch->ids[i], scratch->ids[i + 1]) : BPE_NONE;
        if (scratch->pairs[i] != BPE_NONE) scratch->heap[n_heap++] = bpe_heap_entry(scratch->pairs[i], i);
    }
    for (size_t i = n_heap / 2; i-- > 0;) bpe_heap_down(scratch->heap, n_heap, i);
    return n_heap;
}

/* The pair that begins at `at` has new members: look it up and queue it. */
static void bpe_long_renew(const bpe *table, const bpe_scratch *scratch, uint32_t at, size_t *n_heap) {
    const uint32_t right = scratch->next[at];
    const uint64_t merge = right == BPE_NOWHERE ? BPE_NONE : bpe_find(table, scratch->ids[at], scratch->ids[right]);
    scratch->pairs[at] = merge;
    if (merge != BPE_NONE) bpe_heap_push(scratch->heap, n_heap, bpe_heap_entry(merge, at));
}

static size_t bpe_merge_long(const bpe *table, const bpe_scratch *scratch, size_t n) {
    size_t n_heap = bpe_long_start(table, scratch, n);
    while (n_heap > 0) {
        const uint64_t top = bpe_heap_pop(scratch->heap, &n_heap);
        const uint32_t at = (uint32_t)top;
        if (scratch->pairs[at] >> 32 != top >> 32) continue; /* one of its symbols is gone */
        const uint32_t gone = scratch->next[at];
        scratch->ids[at] = (uint32_t)scratch->pairs[at];
        scratch->pairs[gone] = BPE_NONE;
        scratch->next[at] = scratch->next[gone];
        if (scratch->next[at] != BPE_NOWHERE) scratch->prev[scratch->next[at]] = at;
        bpe_long_renew(table, scratch, at, &n_heap);
        if (scratch->prev[at] != BPE_NOWHERE) bpe_long_renew(table, scratch, scratch->prev[at], &n_heap);
    }
    size_t left = 0;
    for (uint32_t at = 0; at != BPE_NOWHERE; at = scratch->next[at]) scratch->ids[left++] = scratch->ids[at];
    return left;
}

size_t bpe_merge(const bpe *table, bpe_scratch *scratch, size_t n) {
    if (n < 2) return n;
    return n <= BPE_SHORT ? bpe_merge_short(table, scratch->ids, n) : bpe_merge_long(table, scratch, n);
}
