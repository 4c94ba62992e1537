/* special.h - text in, the control tokens spelled in it out.                                         (rank 4)
 *
 * A fixed set of texts is looked for in one pass whose time is linear in the text, whatever the set. Semantics of the
 * reference: the leftmost match, of those the longest, then on behind it. Whether a text may be looked for at all is
 * the caller's business. */
#ifndef PN_SPECIAL_H
#define PN_SPECIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most bytes that the texts of one set may have together. */
#define SPECIAL_MAX_BYTES ((size_t)4 << 20)

typedef struct special_text {
    const uint8_t *text; /* borrowed during special_new only */
    size_t len;
    uint32_t id; /* < 2^32 - 1 */
} special_text;

typedef struct special special;

/* Build the set. Empty texts are ignored; of equal texts the first counts. The seed is mixed into the hash so that a
 * file cannot be made to collide. Owned. Errors: UNSUPPORTED (more than SPECIAL_MAX_BYTES), MEMORY. */
int special_new(const special_text *texts, size_t n, uint64_t seed, special **out);
void special_free(special *set); /* NULL is fine */
/* The id of exactly this text, or -1. */
int64_t special_find(const special *set, const uint8_t *text, size_t len);

typedef struct special_match {
    size_t pos, len;
    uint32_t id;
} special_match;

/* For each position where a text of the set begins the longest such text, the last position first. */
typedef struct special_matches {
    special_match *items;
    size_t n, cap;
} special_matches;

/* Fill matches (starts as {0}, may be reused) from text[0, len). Errors: MEMORY. */
int special_scan(const special *set, const uint8_t *text, size_t len, special_matches *matches);
/* Take the next match at or after `from`; false if there is none. Call with the end of the match before. */
bool special_next(special_matches *matches, size_t from, special_match *out);
void special_matches_free(special_matches *matches);

#endif
