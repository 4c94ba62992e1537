/* sample.c - logits in, one token out: bias, penalties, temperature, filters, a seeded draw.                 (rank 10)
 *
 * Knows neither model nor text. Nothing here depends on a libm, on threads or on what another sampler drew before:
 * equal seeds and equal inputs give equal tokens. Everything is allocated when the sampler is made.
 *
 * l are the logits, in this order:
 *   bias       l += bias                                                          (-infinity forbids a token)
 *   repetition l = l > 0 ? l / repeat_penalty : l * repeat_penalty, for seen tokens      (CTRL, arXiv:1909.05858)
 *   the others l -= presence_penalty + frequency_penalty * times seen, for seen tokens   (OpenAI's API reference)
 *   weight     w = exp((l - max l) / temperature); p is w over the sum of all w that a filter has left
 *   top_k      the k likeliest tokens stay
 *   top_p      the fewest likeliest tokens whose p add up to top_p stay                  (arXiv:1904.09751)
 *   min_p      tokens with p >= min_p * (p of the likeliest) stay                        (arXiv:2407.01082)
 *   draw       u is uniform in [0, 1); the first token whose p and those before it add up to u
 *
 * The one thing to know first: tokens have one order, by their distance from the largest logit (a float32) and by
 * ascending id on ties, and each filter keeps a front part of it. So filters and draw are all the same search: the
 * place in that order where a running sum of weights reaches a target (sample_search.c). */
#include "common.h"
#include "mathf.h"
#include "pantheon.h"
#include "sample_search.h"
#include "state.h"
#include "status.h"
#include "threads.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128 }; /* tokens that share an entry of chunk_max */

/* Weights below e^-87 of the likeliest count as nothing; so does what was forbidden with -infinity. */
#define WEIGHT_RANGE 87.0f
#define ALL_KEYS     UINT32_MAX

struct pn_sampler {
    pn_sampling_params params;
    uint32_t n_vocab;
    uint32_t key_min_p; /* the last key that min_p keeps */
    bool has_penalties;
    atomic_flag busy;
    uint64_t rng[4];
    pn_logit_bias *bias;  /* [params.n_logit_bias] */
    float *logits;        /* [V] changed copy */
    uint32_t *counts;     /* [V] how often each token was seen; all zero between draws */
    float *chunk_max;     /* [(V + CHUNK - 1) / CHUNK] */
    sample_search search; /* the tokens that are left, and searching among them */
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
        return pn_fail(PN_ERR_ARGUMENT, "repeat_penalty is %g; it must be above 0 and finite",
                       (double)p->repeat_penalty);
    PN_TRY(check_range("presence_penalty", p->presence_penalty, -2, 2));
    PN_TRY(check_range("frequency_penalty", p->frequency_penalty, -2, 2));
    if (p->penalty_window < -1)
        return pn_fail(PN_ERR_ARGUMENT, "penalty_window is %d; it must be -1 (all) or more", p->penalty_window);
    if (p->n_logit_bias && !p->logit_bias)
        return pn_fail(PN_ERR_ARGUMENT, "logit_bias is NULL, but n_logit_bias is %zu", p->n_logit_bias);
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

static bool wants_penalties(const pn_sampling_params *p) {
    return (p->repeat_penalty < 1 || p->repeat_penalty > 1 || p->presence_penalty < 0 || p->presence_penalty > 0 ||
            p->frequency_penalty < 0 || p->frequency_penalty > 0) &&
           p->penalty_window != 0;
}

/* p >= min_p * p of the likeliest, as a bound on max - logit: rounded down, so that no token slips in by rounding. */
static uint32_t find_key_min_p(const pn_sampling_params *p) {
    if (!(p->min_p > 0) || !(p->temperature > 0)) return ALL_KEYS;
    const double bound = -(double)p->temperature * log_f64((double)p->min_p);
    if (!(bound > 0)) return 0;
    if (bound >= (double)FLT_MAX) return f32_bits(FLT_MAX);
    const float rounded = (float)bound;
    return f32_bits(rounded) - ((double)rounded > bound);
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
    const size_t n = n_vocab, n_bias = params->n_logit_bias;
    size_t bytes; /* of an array with four bytes for each token */
    if (!size_mul(n, sizeof(uint32_t), &bytes))
        return pn_fail(PN_ERR_MEMORY, "sampler: no memory for a vocabulary of %u", n_vocab);
    s->params = *params;
    s->n_vocab = n_vocab;
    s->has_penalties = wants_penalties(params);
    atomic_flag_clear(&s->busy);
    rng_seed(s->rng, params->seed);
    s->bias = calloc(n_bias ? n_bias : 1, sizeof *s->bias);
    s->logits = malloc(bytes);
    s->counts = calloc(n, sizeof *s->counts);
    s->chunk_max = malloc((n + CHUNK - 1) / CHUNK * sizeof *s->chunk_max);
    const bool has_search = search_init(&s->search, n);
    if (!s->bias || !s->logits || !s->counts || !s->chunk_max || !has_search)
        return pn_fail(PN_ERR_MEMORY, "sampler: no memory for a vocabulary of %u and %zu biases", n_vocab, n_bias);
    if (n_bias) memcpy(s->bias, params->logit_bias, n_bias * sizeof *s->bias);
    s->params.logit_bias = s->bias;
    const fp_env saved = fp_enter();
    s->key_min_p = find_key_min_p(params);
    fp_leave(saved);
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
    free(s->chunk_max);
    search_free(&s->search);
    free(s);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* A float's bits as a signed number of the same order; its own inverse. Loops over integers become vector code, loops
 * over floats with comparisons do not. */
static inline int32_t ordered_bits(int32_t bits) {
    return bits ^ (bits >> 31 & INT32_MAX);
}

/* The highest of x[n]; false if one is NaN or +infinity. */
static bool find_chunk_max(const float *x, size_t n, float *out) {
    const int32_t infinity = 0x7f800000, minus_infinity = ordered_bits(INT32_MIN | infinity);
    int32_t max = INT32_MIN, is_below = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t order = ordered_bits((int32_t)f32_bits(x[i]));
        is_below |= order < minus_infinity; /* a NaN with a sign; the others are above +infinity */
        max = order > max ? order : max;
    }
    *out = f32_from_bits((uint32_t)ordered_bits(max));
    return max < infinity && !is_below;
}

/* Fill chunk_max and find the highest logit. PN_ERR_NUMERIC names the first token whose logit is NaN or +infinity, or
 * says that there is none above -infinity. */
static int find_max(pn_sampler *s, const float *logits, float *out) {
    const size_t n = s->n_vocab;
    float max = -INFINITY;
    for (size_t c = 0; c * CHUNK < n; c++) {
        if (!find_chunk_max(logits + c * CHUNK, size_min(CHUNK, n - c * CHUNK), &s->chunk_max[c])) {
            size_t i = c * CHUNK;
            while (logits[i] <= FLT_MAX) i++;
            return pn_fail(PN_ERR_NUMERIC, "sample: the logit of token %zu is %g", i, (double)logits[i]);
        }
        max = s->chunk_max[c] > max ? s->chunk_max[c] : max;
    }
    if (max < -FLT_MAX) return pn_fail(PN_ERR_NUMERIC, "sample: every token is forbidden (all logits are -infinity)");
    *out = max;
    return PN_OK;
}

static uint32_t find_argmax(const pn_sampler *s, const float *logits, float max) {
    size_t c = 0;
    while (s->chunk_max[c] < max) c++;
    size_t i = c * CHUNK;
    while (logits[i] < max) i++;
    return (uint32_t)i;
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
    const bool penalties = s->has_penalties && n_seen;
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

/* ---- filters and draw -------------------------------------------------------------------------------------------- */

/* Weights that make the search count tokens. */
static void list_count(pn_sampler *s) {
    for (size_t i = 0; i < s->search.list.n; i++) s->search.list.weight[i] = 1;
    search_tally(&s->search);
}

static void list_weigh(pn_sampler *s) {
    const float inverse = 1 / s->params.temperature;
    const float scale = inverse <= FLT_MAX ? -inverse : -FLT_MAX; /* not infinite: the likeliest has 0 * scale */
    const uint32_t end = f32_bits(WEIGHT_RANGE * s->params.temperature);
    const uint32_t *restrict key = s->search.list.key;
    float *restrict weight = s->search.list.weight;
    for (size_t i = 0, n = s->search.list.n; i < n; i++) {
        const float w = exp_f32_in_range(f32_from_bits(key[i]) * scale);
        weight[i] = f32_from_bits(f32_bits(w) & -(uint32_t)(key[i] < end)); /* a mask, no branch */
    }
}

static void list_all(pn_sampler *s, const float *restrict logits, float max) {
    uint32_t *restrict key = s->search.list.key;
    for (size_t i = 0, n = s->n_vocab; i < n; i++) key[i] = f32_bits(max - logits[i]);
    s->search.list.n = s->n_vocab;
    s->search.list.token = NULL;
}

/* The tokens with keys up to `last`; chunks whose best token has a higher one are not looked at. */
static void list_up_to(pn_sampler *s, const float *logits, float max, uint32_t last) {
    size_t kept = 0;
    for (size_t begin = 0; begin < s->n_vocab; begin += CHUNK) {
        if (f32_bits(max - s->chunk_max[begin / CHUNK]) > last) continue;
        const size_t end = size_min(begin + CHUNK, s->n_vocab);
        for (size_t i = begin; i < end; i++) {
            const uint32_t key = f32_bits(max - logits[i]);
            s->search.list.key[kept] = key;
            s->search.tokens[kept] = (uint32_t)i;
            kept += key <= last;
        }
    }
    s->search.list.n = kept;
    s->search.list.token = s->search.tokens;
}

/* A key that at least k tokens do not exceed: that of the k-th best chunk's best token. */
static uint32_t find_key_top_k(pn_sampler *s, float max, size_t k) {
    const size_t n_chunks = ((size_t)s->n_vocab + CHUNK - 1) / CHUNK;
    if (k >= n_chunks) return ALL_KEYS;
    for (size_t c = 0; c < n_chunks; c++) s->search.list.key[c] = f32_bits(max - s->chunk_max[c]);
    s->search.list.n = n_chunks;
    s->search.list.token = NULL;
    list_count(s);
    return search_find(&s->search, (double)k).key;
}

/* List what top_k keeps, and of it what min_p keeps where that needs no total of weights before. */
static void list_candidates(pn_sampler *s, const float *logits, float max) {
    const pn_sampling_params *p = &s->params;
    const size_t k = p->top_k > 0 && (uint32_t)p->top_k < s->n_vocab ? (size_t)p->top_k : s->n_vocab;
    uint32_t last = k < s->n_vocab ? find_key_top_k(s, max, k) : ALL_KEYS;
    if (!(p->top_p < 1) && s->key_min_p < last) last = s->key_min_p;
    if (last == ALL_KEYS)
        list_all(s, logits, max);
    else
        list_up_to(s, logits, max, last);
    if (s->search.list.n <= k) return;
    list_count(s);
    search_cut(&s->search, search_find(&s->search, (double)k));
}

static uint32_t draw(pn_sampler *s, const float *logits, float max) {
    const pn_sampling_params *p = &s->params;
    list_candidates(s, logits, max);
    list_weigh(s);
    double total = search_tally(&s->search);
    place last = { .key = ALL_KEYS, .mass = total };
    if (p->top_p < 1) {
        if (s->key_min_p != ALL_KEYS) {
            search_cut(&s->search, (place){ .key = s->key_min_p, .token = UINT32_MAX });
            search_tally(&s->search);
        }
        last = search_find(&s->search, (double)p->top_p * total);
    }
    const place drawn = search_find(&s->search, rng_uniform(s->rng) * last.mass);
    return search_is_behind(drawn.key, drawn.token, last) ? last.token : drawn.token; /* by a rounding, if ever */
}

static int sample_entered(pn_sampler *s, const float *logits, const uint32_t *seen, size_t n_seen, uint32_t *token) {
    float max = 0;
    PN_TRY(prepare_logits(s, logits, seen, n_seen, &logits));
    PN_TRY(find_max(s, logits, &max));
    *token = s->params.temperature > 0 ? draw(s, logits, max) : find_argmax(s, logits, max);
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

int pn_sample_state(pn_sampler *sampler, pn_state *state, uint32_t *token) {
    if (!sampler || !state || !token) return pn_fail(PN_ERR_ARGUMENT, "sample: an argument is NULL");
    if (state->model->hp.n_vocab != sampler->n_vocab)
        return pn_fail(PN_ERR_ARGUMENT, "sample: the sampler is for %u tokens, the state's model has %u",
                       sampler->n_vocab, state->model->hp.n_vocab);
    if (!state_enter(state)) return pn_fail(PN_ERR_BUSY, "sample: the state is in use by another call");
    const int status = state->has_logits
                           ? pn_sample(sampler, state->logits, state->tokens, state->n_tokens, token)
                           : pn_fail(PN_ERR_ARGUMENT, "sample: the state has no logits: evaluate a token first");
    state_leave(state);
    return status;
}
