/* spm.h - pieces with scores in; a text to ids by always merging the pair whose piece scores highest.    (rank 5)
 *
 * Semantics of SentencePiece's BPE: a text is a list of characters; as long as two neighbours spell a piece together,
 * the two whose piece has the highest score become it, the leftmost of equals. A character without a piece takes part.
 * Knows nothing of files, spaces or control tokens. Time O(n log n), memory linear in the longest stretch of text that
 * merges may cross. */
#ifndef PN_SPM_H
#define PN_SPM_H

#include <stddef.h>
#include <stdint.h>

#include "bpe.h"

/* Longest piece in bytes, and the most ways in which pieces may be put together from two others: bounds for hostile
 * files, far above what vocabularies have (a few hundred bytes; two or three ways per piece). */
#define SPM_MAX_PIECE  ((size_t)1024)
#define SPM_MAX_MERGES ((size_t)1 << 24)

typedef struct spm_piece {
    const uint8_t *text; /* borrowed during spm_new only */
    size_t len;
    uint32_t id;
    float score; /* any but NaN */
} spm_piece;

typedef struct spm spm;

/* Build from pieces whose ids are below n_ids. Empty texts are ignored; of equal texts the first counts. The seed is
 * mixed into hashes so that a file cannot be made to collide; it changes no result. Owned.
 * Errors: UNSUPPORTED (a piece or the merges beyond the bounds above), MEMORY. */
int spm_new(const spm_piece *pieces, size_t n, uint32_t n_ids, uint64_t seed, spm **out);
void spm_free(spm *table); /* NULL is fine */

/* Take the next stretch of text[*at, len), *at < len, and merge it: *at moves behind it and scratch->ids[0, *n) are its
 * symbols. *n is 0 if the stretch is a single character that no piece has anything to do with. Errors: ARGUMENT (more
 * than BPE_MAX_SYMBOLS characters in the stretch), MEMORY. */
int spm_next(const spm *table, const uint8_t *text, size_t len, size_t *at, bpe_scratch *scratch, size_t *n);
/* Symbols below n_ids are ids of pieces; any other is a character that has no piece: its bytes to out[4], how many. */
size_t spm_character(const spm *table, uint32_t symbol, uint8_t out[4]);

#endif
