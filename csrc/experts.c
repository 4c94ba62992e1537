/* experts.c - the best scores of a token and their softmax.                                               (rank 6)
 *
 * Plain C for every instruction set alike. Knows numbers, no weights. */
#include "experts.h"

#include "mathf.h"

/* The number of the highest score that is not taken. A NaN is above all others, so that it comes through. */
static size_t best_of(const float *scores, size_t n, const bool *taken) {
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        if (taken[i]) continue;
        const bool is_nan = scores[i] != scores[i];
        if (best == n || scores[i] > scores[best] || (is_nan && scores[best] == scores[best])) best = i;
    }
    return best;
}

void experts_choose(float *scores, size_t n, size_t k) {
    bool taken[EXPERTS_MAX] = { false };
    float highest = 0, total = 0;
    for (size_t i = 0; i < k; i++) {
        const size_t best = best_of(scores, n, taken);
        if (i == 0) highest = scores[best];
        taken[best] = true;
    }
    for (size_t i = 0; i < n; i++) {
        scores[i] = taken[i] ? exp_f32(scores[i] - highest) : -1.0f;
        if (taken[i]) total = total + scores[i];
    }
    for (size_t i = 0; i < n; i++)
        if (taken[i]) scores[i] = scores[i] / total;
}

size_t experts_members(const float *shares, size_t ld, size_t n_tokens, size_t expert, uint16_t *members) {
    size_t n = 0;
    for (size_t t = 0; t < n_tokens; t++)
        if (!(shares[t * ld + expert] < 0)) members[n++] = (uint16_t)t;
    return n;
}
