/* experts.h - which experts compute for a token, and what share each result has.                          (rank 6)
 *
 * A router gives each token a score for each expert; the K best compute, and their results are added, weighted by the
 * softmax over the K scores alone (Mixtral, arXiv:2401.04088). */
#ifndef PN_EXPERTS_H
#define PN_EXPERTS_H

#include "arch.h"

/* scores[n] of a token to shares, in place: of the k highest (of equal ones those with lower numbers) the softmax over
 * these k, its sum taken in the order of their numbers; -1 for all others. 1 <= k <= n <= EXPERTS_MAX. Where a score is
 * NaN some share is. */
void experts_choose(float *scores, size_t n, size_t k);
/* The tokens [0, n_tokens), ascending, that chose an expert: members[the number returned]. shares[n_tokens, ld]. */
size_t experts_members(const float *shares, size_t ld, size_t n_tokens, size_t expert, uint16_t *members);

#endif
