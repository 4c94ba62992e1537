/* bpe.h - a list of symbols in, the list after all merges out: byte-pair merging on ids.             (rank 4)
 *
 * Knows nothing about text, files or vocabularies. Semantics of the reference: as long as two neighbours have a merge,
 * apply the one of lowest rank, the leftmost of these. Time O(n log n) for n symbols. */
#ifndef PN_BPE_H
#define PN_BPE_H

#include <stddef.h>
#include <stdint.h>

/* Most symbols in one call of bpe_merge. */
#define BPE_MAX_SYMBOLS ((size_t)INT32_MAX)

typedef struct bpe bpe;

/* An empty table with room for n_merges (< 2^32 - 1). The seed is mixed into the hash so that a file cannot be made to
 * collide; it changes no result. Owned. Errors: ARGUMENT, MEMORY. */
int bpe_new(size_t n_merges, uint64_t seed, bpe **out);
void bpe_free(bpe *table); /* NULL is fine */
/* Neighbours left, right become result. At most n_merges calls; ids and rank < 2^32 - 1. For a pair that is there
 * already the later rank counts, as in the reference. Pairs may share a rank. */
void bpe_add(bpe *table, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);

/* Working memory of one caller: starts as {0}, grows, is reused from piece to piece. */
typedef struct bpe_scratch {
    uint32_t *ids; /* [cap] in: the symbols, out: the tokens */
    size_t cap;
    uint64_t *pairs; /* [long_cap] merge of each symbol with its right neighbour                       */
    uint64_t *heap;  /* [2 * long_cap] rank << 32 | position, the smallest on top                      */
    uint32_t *prev;  /* [long_cap] neighbours in the list of symbols that are left; UINT32_MAX: none  */
    uint32_t *next;
    size_t long_cap;
} bpe_scratch;

/* Make room for n symbols. Errors: ARGUMENT (n > BPE_MAX_SYMBOLS), MEMORY. */
int bpe_reserve(bpe_scratch *scratch, size_t n);
void bpe_scratch_free(bpe_scratch *scratch);
/* Merge scratch->ids[0, n) in place; n was reserved. Returns how many are left. Cannot fail. */
size_t bpe_merge(const bpe *table, bpe_scratch *scratch, size_t n);

#endif
