/* sample.c - logits in, one token out: penalties, temperature, filters, a seeded draw.                        (rank 10)
 *
 * Knows neither model nor text. Nothing here depends on a libm, on threads or on what was drawn before by another
 * sampler: equal seeds and equal inputs give equal tokens. Everything is allocated when the sampler is made.
 *
 * Sources: repetition penalty arXiv:1909.05858 (CTRL); presence and frequency penalties as the OpenAI API documents
 * them; top-p arXiv:1904.09751; min-p arXiv:2407.01082; generator xoshiro256** seeded by splitmix64 (Blackman, Vigna,
 * arXiv:1805.01407). */
#include "common.h"
#include "mathf.h"
#include "pantheon.h"
#include "status.h"
#include "threads.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES = 8,
    /* Probabilities relative to the likeliest token lie in (0, 1]: the upper 16 bits of such a float, its exponent and
     * seven bits of its mantissa, are a bucket number of at most that of 1.0. */
    N_BUCKETS = 0x3f80 + 1,
};

/* Weights below e^-87 of the likeliest count as nothing; so does what was forbidden with -infinity. */
#define WEIGHT_FLOOR (-87.0f)

typedef struct candidate {
    float weight; /* relative to the likeliest token's 1 */
    uint32_t token;
} candidate;

struct pn_sampler {
    pn_sampling_params params;
    uint32_t n_vocab;
    atomic_flag busy;
    uint64_t rng[4];
    pn_logit_bias *bias;   /* [params.n_logit_bias] */
    float *logits;         /* [V] changed copy */
    uint32_t *counts;      /* [V] how often each token was seen; all zero between draws */
    candidate *candidates; /* [V] */
    double *bucket;        /* [N_BUCKETS] weight of the tokens in each bucket; all zero between draws */
};

/* ---- parameters -------------------------------------------------------------------------------------------------- */

pn_sampling_params pn_sampling_defaults(void) {
    return (pn_sampling_params){ .top_p = 1, .repeat_penalty = 1, .penalty_window = 64 };
}

static int check_range(const char *name, float value, float lo, float hi) {
    if (value >= lo && value <= hi) return PN_OK;
    return pn_fail(PN_ERR_ARGUMENT, "%s is %g; it must be between %g and %g", name, (double)value, (double)lo,
                   (double)hi);
}

static int check_params(uint32_t n_vocab, const pn_sampling_params *p) {
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "sampler: n_vocab is %u; it must be between 1 and %d", n_vocab, INT32_MAX);
    PN_TRY(check_range("temperature", p->temperature, 0, FLT_MAX));
    if (p->top_k < 0) return pn_fail(PN_ERR_ARGUMENT, "top_k is %d; it must be 0 (off) or more", p->top_k);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return pn_fail(PN_ERR_ARGUMENT, "top_p is %g; it must be above 0 and at most 1", (double)p->top_p);
    PN_TRY(check_range("min_p", p->min_p, 0, 1));
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= FLT_MAX))
        return pn_fail(PN_ERR_ARGUMENT, "repeat_penalty is %g; it must be above 0", (double)p->repeat_penalty);
    PN_TRY(check_range("presence_penalty", p->presence_penalty, -2, 2));
    PN_TRY(check_range("frequency_penalty", p->frequency_penalty, -2, 2));
    if (p->penalty_window < -1)
        return pn_fail(PN_ERR_ARGUMENT, "penalty_window is %d; it must be -1 (all) or more", p->penalty_window);
    if (p->n_logit_bias && !p->logit_bias) return pn_fail(PN_ERR_ARGUMENT, "logit_bias is NULL");
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const pn_logit_bias *b = &p->logit_bias[i];
        if (b->token >= n_vocab)
            return pn_fail(PN_ERR_ARGUMENT, "logit_bias: token %u is outside the vocabulary of %u", b->token, n_vocab);
        if (!(b->bias <= FLT_MAX)) /* -infinity forbids, NaN and +infinity mean nothing */
            return pn_fail(PN_ERR_ARGUMENT, "logit_bias of token %u is %g; it must be finite or -infinity", b->token,
                           (double)b->bias);
    }
    return PN_OK;
}

static bool has_penalties(const pn_sampling_params *p) {
    return (p->repeat_penalty < 1 || p->repeat_penalty > 1 || p->presence_penalty < 0 || p->presence_penalty > 0 ||
            p->frequency_penalty < 0 || p->frequency_penalty > 0) &&
           p->penalty_window != 0;
}

/* ---- generator --------------------------------------------------------------------------------------------------- */

static void rng_seed(uint64_t rng[4], uint64_t seed) {
    for (int i = 0; i < 4; i++) { /* splitmix64 */
        seed += 0x9e3779b97f4a7c15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        rng[i] = z ^ (z >> 31);
    }
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

/* Uniform in [0, 1), 53 bits. */
static double rng_uniform(uint64_t rng[4]) {
    const uint64_t result = rotl(rng[1] * 5, 7) * 9, t = rng[1] << 17; /* xoshiro256** */
    rng[2] ^= rng[0];
    rng[3] ^= rng[1];
    rng[1] ^= rng[2];
    rng[0] ^= rng[3];
    rng[2] ^= t;
    rng[3] = rotl(rng[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

static int sampler_init(pn_sampler *s, uint32_t n_vocab, const pn_sampling_params *params) {
    const size_t n_bias = params->n_logit_bias;
    s->params = *params;
    s->n_vocab = n_vocab;
    atomic_flag_clear(&s->busy);
    rng_seed(s->rng, params->seed);
    s->bias = calloc(n_bias ? n_bias : 1, sizeof *s->bias);
    s->logits = malloc(n_vocab * sizeof *s->logits);
    s->counts = calloc(n_vocab, sizeof *s->counts);
    s->candidates = malloc(n_vocab * sizeof *s->candidates);
    s->bucket = calloc(N_BUCKETS, sizeof *s->bucket);
    if (!s->bias || !s->logits || !s->counts || !s->candidates || !s->bucket)
        return pn_fail(PN_ERR_MEMORY, "sampler: no memory for a vocabulary of %u", n_vocab);
    if (n_bias) memcpy(s->bias, params->logit_bias, n_bias * sizeof *s->bias);
    s->params.logit_bias = s->bias;
    return PN_OK;
}

pn_sampler *pn_sampler_new(uint32_t n_vocab, const pn_sampling_params *params) {
    const pn_sampling_params defaults = pn_sampling_defaults();
    if (!params) params = &defaults;
    if (check_params(n_vocab, params) != PN_OK) return NULL;
    pn_sampler *s = calloc(1, sizeof *s);
    if (!s) {
        pn_fail(PN_ERR_MEMORY, "sampler: out of memory");
        return NULL;
    }
    if (sampler_init(s, n_vocab, params) == PN_OK) return s;
    pn_sampler_free(s);
    return NULL;
}

void pn_sampler_free(pn_sampler *s) {
    if (!s) return;
    free(s->bias);
    free(s->logits);
    free(s->counts);
    free(s->candidates);
    free(s->bucket);
    free(s);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* The highest logit. PN_ERR_NUMERIC names the first token whose logit is NaN or +infinity, or says that there is none
 * above -infinity. Lanes, because one running maximum would be a chain of 150,000 dependent steps. */
static int find_max(const float *logits, uint32_t n, float *out) {
    float lane[LANES];
    int bad[LANES] = { 0 };
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) {
            const float x = logits[i + l];
            lane[l] = x > lane[l] ? x : lane[l];
            bad[l] |= !(x <= FLT_MAX);
        }
    for (; i < n; i++) {
        lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
        bad[0] |= !(logits[i] <= FLT_MAX);
    }
    float max = lane[0];
    int any_bad = bad[0];
    for (int l = 1; l < LANES; l++) {
        max = lane[l] > max ? lane[l] : max;
        any_bad |= bad[l];
    }
    for (i = 0; any_bad && i < n; i++)
        if (!(logits[i] <= FLT_MAX))
            return pn_fail(PN_ERR_NUMERIC, "sample: the logit of token %u is %g", i, (double)logits[i]);
    if (max < -FLT_MAX) return pn_fail(PN_ERR_NUMERIC, "sample: every token is forbidden (all logits are -infinity)");
    *out = max;
    return PN_OK;
}

static int count_seen(pn_sampler *s, const uint32_t *seen, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (seen[i] >= s->n_vocab)
            return pn_fail(PN_ERR_ARGUMENT, "sample: seen token %u is outside the vocabulary of %u", seen[i],
                           s->n_vocab);
    for (size_t i = 0; i < n; i++) s->counts[seen[i]]++;
    return PN_OK;
}

/* Each seen token once; its count is cleared with it. */
static void apply_penalties(pn_sampler *s, const uint32_t *seen, size_t n) {
    const pn_sampling_params *p = &s->params;
    for (size_t i = 0; i < n; i++) {
        const uint32_t count = s->counts[seen[i]];
        if (!count) continue;
        s->counts[seen[i]] = 0;
        float *logit = &s->logits[seen[i]];
        *logit = *logit > 0 ? *logit / p->repeat_penalty : *logit * p->repeat_penalty;
        *logit -= p->presence_penalty + p->frequency_penalty * (float)count;
    }
}

/* The logits to choose from: the caller's own, or a changed copy. */
static int prepare_logits(pn_sampler *s, const float *logits, const uint32_t *seen, size_t n_seen, const float **out) {
    const pn_sampling_params *p = &s->params;
    const bool penalties = has_penalties(p) && n_seen;
    *out = logits;
    if (!penalties && !p->n_logit_bias) return PN_OK;
    memcpy(s->logits, logits, s->n_vocab * sizeof *logits);
    for (size_t i = 0; i < p->n_logit_bias; i++) s->logits[s->bias[i].token] += s->bias[i].bias;
    if (penalties) {
        const size_t window = p->penalty_window < 0 ? n_seen : size_min((size_t)p->penalty_window, n_seen);
        PN_TRY(count_seen(s, seen + (n_seen - window), window));
        apply_penalties(s, seen + (n_seen - window), window);
    }
    *out = s->logits;
    return PN_OK;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static float weight_of(float logit, float max, float temperature) {
    const float z = (logit - max) / temperature;
    return z < WEIGHT_FLOOR ? 0.0f : exp_f32(z);
}

/* Does a come before b: heavier first, then the lower id. */
static bool comes_before(candidate a, candidate b) {
    return a.weight > b.weight || (!(a.weight < b.weight) && a.token < b.token);
}

static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return comes_before(*x, *y) ? -1 : 1;
}

/* Move the root of a heap (the last in order on top) down to its place. */
static void heap_sink(candidate *heap, size_t n, size_t at) {
    for (;;) {
        size_t last = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < n; child++)
            if (comes_before(heap[last], heap[child])) last = child;
        if (last == at) return;
        const candidate swap = heap[at];
        heap[at] = heap[last];
        heap[last] = swap;
        at = last;
    }
}

/* The k first by logit into candidates[k], in order; weight holds the logit here. */
static size_t select_top_k(pn_sampler *s, const float *logits, size_t k) {
    candidate *heap = s->candidates;
    for (uint32_t i = 0; i < k; i++) heap[i] = (candidate){ logits[i], i };
    for (size_t i = k / 2; i-- > 0;) heap_sink(heap, k, i);
    for (uint32_t i = (uint32_t)k; i < s->n_vocab; i++) {
        if (!(logits[i] > heap[0].weight)) continue; /* equal logits: the lower id is in already */
        heap[0] = (candidate){ logits[i], i };
        heap_sink(heap, k, 0);
    }
    qsort(heap, k, sizeof *heap, compare_candidates);
    return k;
}

/* Weights of the whole vocabulary into s->logits (which `logits` may be); returns their sum. Lanes as in find_max. */
static double weigh_all(pn_sampler *s, const float *logits, float max) {
    const float temperature = s->params.temperature;
    double lane[LANES] = { 0 };
    uint32_t i = 0;
    for (; i + LANES <= s->n_vocab; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) s->logits[i + l] = weight_of(logits[i + l], max, temperature);
    for (; i < s->n_vocab; i++) s->logits[i] = weight_of(logits[i], max, temperature);
    for (i = 0; i + LANES <= s->n_vocab; i += LANES)
        for (uint32_t l = 0; l < LANES; l++) lane[l] += (double)s->logits[i + l];
    for (; i < s->n_vocab; i++) lane[0] += (double)s->logits[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Tokens of weight >= least, in the order of their ids. */
static size_t gather(pn_sampler *s, float least) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (s->logits[i] >= least && s->logits[i] > 0) s->candidates[n++] = (candidate){ s->logits[i], i };
    return n;
}

/* The fewest heavy tokens that are sure to hold `mass`, sorted: whole buckets from the heaviest down. */
static size_t gather_heavy(pn_sampler *s, double mass) {
    for (uint32_t i = 0; i < s->n_vocab; i++) s->bucket[f32_bits(s->logits[i]) >> 16] += (double)s->logits[i];
    uint32_t b = N_BUCKETS - 1;
    for (double sum = s->bucket[b]; sum < mass && b > 0; sum += s->bucket[b]) b--;
    memset(s->bucket, 0, N_BUCKETS * sizeof *s->bucket);
    const size_t n = gather(s, f32_from_bits(b << 16));
    qsort(s->candidates, n, sizeof *s->candidates, compare_candidates);
    return n;
}

static double sum_candidates(const candidate *c, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

/* Keep the first candidates (sorted) until they hold top_p of `total`. */
static size_t cut_top_p(const candidate *c, size_t n, double mass) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)c[i].weight;
        if (sum >= mass) return i + 1;
    }
    return n;
}

/* Keep, in order, what has at least min_p of the likeliest token's weight, which is 1. */
static size_t cut_min_p(candidate *c, size_t n, float min_p) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].weight >= min_p) c[kept++] = c[i];
    return kept;
}

static size_t find_candidates(pn_sampler *s, const float *logits, float max) {
    const pn_sampling_params *p = &s->params;
    size_t n;
    if (p->top_k > 0 && (uint32_t)p->top_k < s->n_vocab) {
        n = select_top_k(s, logits, (size_t)p->top_k);
        for (size_t i = 0; i < n; i++)
            s->candidates[i].weight = weight_of(s->candidates[i].weight, max, p->temperature);
        while (n > 1 && !(s->candidates[n - 1].weight > 0)) n--;
        if (p->top_p < 1) n = cut_top_p(s->candidates, n, (double)p->top_p * sum_candidates(s->candidates, n));
    } else {
        const double total = weigh_all(s, logits, max);
        if (p->top_p < 1) {
            n = gather_heavy(s, (double)p->top_p * total);
            n = cut_top_p(s->candidates, n, (double)p->top_p * total);
        } else
            n = gather(s, p->min_p);
    }
    return p->min_p > 0 ? cut_min_p(s->candidates, n, p->min_p) : n;
}

/* In the candidates' order: sorted by weight where a filter sorted them, else by id. */
static uint32_t draw(pn_sampler *s, size_t n) {
    const double target = rng_uniform(s->rng) * sum_candidates(s->candidates, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)s->candidates[i].weight;
        if (sum > target) return s->candidates[i].token;
    }
    return s->candidates[n - 1].token;
}

static int sample_entered(pn_sampler *s, const float *logits, const uint32_t *seen, size_t n_seen, uint32_t *token) {
    float max = 0;
    PN_TRY(prepare_logits(s, logits, seen, n_seen, &logits));
    PN_TRY(find_max(logits, s->n_vocab, &max));
    if (s->params.temperature > 0) {
        *token = draw(s, find_candidates(s, logits, max));
        return PN_OK;
    }
    uint32_t i = 0;
    while (logits[i] < max) i++;
    *token = i;
    return PN_OK;
}

int pn_sample(pn_sampler *sampler, const float *logits, const uint32_t *seen, size_t n_seen, uint32_t *token) {
    if (!sampler || !logits || !token || (n_seen && !seen))
        return pn_fail(PN_ERR_ARGUMENT, "sample: an argument is NULL");
    if (atomic_flag_test_and_set_explicit(&sampler->busy, memory_order_acquire))
        return pn_fail(PN_ERR_BUSY, "sample: the sampler is in use by another call");
    const fp_env saved = fp_enter();
    const int status = sample_entered(sampler, logits, seen, n_seen, token);
    fp_leave(saved);
    atomic_flag_clear_explicit(&sampler->busy, memory_order_release);
    return status;
}

int pn_sample_state(pn_sampler *sampler, const pn_state *state, uint32_t *token) {
    const float *logits = state ? pn_state_logits(state) : NULL;
    if (!logits) return pn_fail(PN_ERR_ARGUMENT, "sample: the state has no logits: evaluate a token first");
    size_t n;
    const uint32_t *tokens = pn_state_tokens(state, &n);
    return pn_sample(sampler, logits, tokens, n, token);
}
