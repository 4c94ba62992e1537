/* lookup.h - a list of ids in, a guess at the ids that come next out: what followed the last ids before.    (rank 1) */
#ifndef PN_LOOKUP_H
#define PN_LOOKUP_H

#include "common.h"

enum {
    GRAM_LENGTHS = 2,      /* runs of 3 ids are looked up, then runs of 2         */
    LOOKUP_CANDIDATES = 8, /* earlier places that are compared, the latest first  */
    LOOKUP_MATCH_MAX = 32, /* ids over which they are compared                    */
};

typedef struct lookup {
    uint32_t *ids;                   /* [n] of capacity                                                             */
    uint32_t *earlier[GRAM_LENGTHS]; /* [n] of capacity: the place before where the run that ends here ended, or NONE */
    uint32_t *latest[GRAM_LENGTHS];  /* [n_slots] hash table: the last place of each run, or NONE                   */
    size_t n, capacity, n_slots;     /* n_slots is 0 or a power of two, at least twice the capacity                 */
} lookup;

/* A lookup of zeros is an empty one. */
void lookup_free(lookup *l);
size_t lookup_bytes(const lookup *l);
/* Append n ids, in O(n). PN_ERR_MEMORY, or PN_ERR_ARGUMENT beyond 2^30 ids, leaves everything as it was. */
int lookup_append(lookup *l, const uint32_t *ids, size_t n);
/* Keep the first n ids, in O(ids dropped). Nothing if there are not more. */
void lookup_truncate(lookup *l, size_t n);
/* Guess the next `most` ids: what followed the place that matches the end best. That place is, among the last
 * LOOKUP_CANDIDATES earlier ones where the last 3 ids stand (or else the last 2), the one that agrees with the end over
 * the most ids, at most LOOKUP_MATCH_MAX; the later one on ties. Where its continuation reaches the end, it goes on
 * with the guess itself. Returns the number of ids in out: `most`, or 0 if there is no such place. *match is the number
 * of ids over which they agree. Costs no more than the comparisons: nothing is searched. */
size_t lookup_guess(const lookup *l, size_t most, uint32_t *out, size_t *match);

#endif
