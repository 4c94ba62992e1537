/* The sampler against a plain double implementation: the whole distribution by sorting, the generator from its
 * paper. */
#include "check.h"
#include "pantheon.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { V_MAX = 4096 };

/* ---- oracle ------------------------------------------------------------------------------------------------------ */

typedef struct entry {
    double logit, p;
    uint32_t token;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit > y->logit || x->logit < y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* The logits after bias and penalties; written for any n_seen, one token after the other. */
static void oracle_logits(const float *logits, uint32_t n, const pn_sampling_params *p, const uint32_t *seen,
                          size_t n_seen, double *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = (double)logits[i];
    for (size_t b = 0; b < p->n_logit_bias; b++) out[p->logit_bias[b].token] += (double)p->logit_bias[b].bias;
    const size_t first =
        p->penalty_window >= 0 && n_seen > (size_t)p->penalty_window ? n_seen - (size_t)p->penalty_window : 0;
    for (uint32_t i = 0; i < n; i++) {
        int times = 0;
        for (size_t j = first; j < n_seen; j++) times += seen[j] == i;
        if (!times) continue;
        out[i] = out[i] > 0 ? out[i] / (double)p->repeat_penalty : out[i] * (double)p->repeat_penalty;
        out[i] -= (double)p->presence_penalty + (double)p->frequency_penalty * times;
    }
}

/* Tokens in order with their probabilities; returns how many the filters keep. *margin is how close a filter came to
 * deciding otherwise: where it is tiny, rounding may decide. */
static size_t oracle_distribution(const double *logits, uint32_t n, const pn_sampling_params *p, entry *e,
                                  double *margin) {
    for (uint32_t i = 0; i < n; i++) e[i] = (entry){ .logit = logits[i], .token = i };
    qsort(e, n, sizeof *e, compare_entries);
    size_t kept = p->top_k > 0 && (uint32_t)p->top_k < n ? (size_t)p->top_k : n;
    double total = 0, sum = 0;
    for (size_t i = 0; i < kept; i++) total += e[i].p = exp((e[i].logit - e[0].logit) / (double)p->temperature);
    *margin = 1;
    if (p->top_p < 1) {
        size_t i = 0;
        for (; i < kept; i++) {
            sum += e[i].p / total;
            *margin = fmin(*margin, fabs(sum - (double)p->top_p));
            if (sum >= (double)p->top_p) break;
        }
        kept = i < kept ? i + 1 : kept;
    }
    if (p->min_p > 0)
        for (size_t i = 0; i < kept; i++) {
            *margin = fmin(*margin, fabs(e[i].p / e[0].p / (double)p->min_p - 1));
            if (e[i].p < (double)p->min_p * e[0].p) kept = i;
        }
    for (sum = 0, total = 0; kept && e[kept - 1].p <= 0; kept--) {
    }
    for (size_t i = 0; i < kept; i++) total += e[i].p;
    for (size_t i = 0; i < kept; i++) e[i].p /= total;
    return kept;
}

static uint64_t oracle_rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

/* xoshiro256** 1.0, seeded with four outputs of splitmix64, as its authors recommend. */
static void oracle_seed(uint64_t s[4], uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        s[i] = z ^ z >> 31;
    }
}

static double oracle_uniform(uint64_t s[4]) {
    const uint64_t result = oracle_rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = oracle_rotl(s[3], 45);
    return ldexp((double)(result >> 11), -53);
}

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static uint64_t noise_state = 1;

static double noise(void) {
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return ldexp((double)(noise_state >> 11), -53);
}

static void fill_noise(float *logits, uint32_t n, double deviation) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = -6; /* about normal */
        for (int k = 0; k < 12; k++) sum += noise();
        logits[i] = (float)(sum * deviation);
    }
}

static uint32_t draw_once(uint32_t n, const pn_sampling_params *params, const float *logits) {
    uint32_t token = UINT32_MAX;
    pn_sampler *s = pn_sampler_new(n, params);
    CHECK(s && pn_sample(s, logits, NULL, 0, &token) == PN_OK);
    pn_sampler_free(s);
    return token;
}

/* Draw `rounds` times: each token must be the one that the oracle's generator points at in the oracle's order. */
static void check_draws(const float *logits, uint32_t n, const pn_sampling_params *params, const uint32_t *seen,
                        size_t n_seen, int rounds) {
    static double changed[V_MAX];
    static entry entries[V_MAX];
    double margin;
    oracle_logits(logits, n, params, seen, n_seen, changed);
    const size_t kept = oracle_distribution(changed, n, params, entries, &margin);
    pn_sampler *s = pn_sampler_new(n, params);
    uint64_t rng[4];
    oracle_seed(rng, params->seed);
    for (int r = 0; s && r < rounds; r++) {
        uint32_t token = UINT32_MAX;
        CHECK(pn_sample(s, logits, seen, n_seen, &token) == PN_OK);
        const double u = oracle_uniform(rng);
        double sum = entries[0].p, edge = fabs(sum - u);
        size_t i = 0;
        while (i + 1 < kept && sum <= u) {
            sum += entries[++i].p;
            edge = fmin(edge, fabs(sum - u));
        }
        if (margin > 1e-5 && edge > 1e-6) CHECK(token == entries[i].token);
    }
    CHECK(s);
    pn_sampler_free(s);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_sample_draws_what_the_oracle_draws_for_every_chain(void) {
    static float logits[V_MAX];
    const uint32_t seen[] = { 3, 5, 3, 0, 7, 7, 7, 2, 36 };
    const pn_logit_bias bias[] = { { 4, 2.5f }, { 9, -INFINITY }, { 4, 1.0f }, { 0, -3.0f } };
    const float temperatures[] = { 0.3f, 0.8f, 1.0f, 2.5f, 40.0f };
    const int top_ks[] = { 0, 1, 3, 13, 40, 3000, 100000 };
    const float top_ps[] = { 1.0f, 0.95f, 0.5f, 0.01f }, min_ps[] = { 0.0f, 0.05f, 0.5f, 0.999f };
    const uint32_t sizes[] = { 37, 130, V_MAX };
    for (int c = 0; c < 5 * 7 * 4 * 4 * 3; c++) {
        const uint32_t n = sizes[c % 3];
        pn_sampling_params p = pn_sampling_defaults();
        p.temperature = temperatures[c / 3 % 5];
        p.top_k = top_ks[c / 15 % 7];
        p.top_p = top_ps[c / 105 % 4];
        p.min_p = min_ps[c / 420];
        p.seed = (uint64_t)c;
        if (c % 2) p.logit_bias = bias, p.n_logit_bias = 4;
        if (c % 7 == 1) p.repeat_penalty = 1.3f, p.penalty_window = 4;
        if (c % 7 == 2) p.presence_penalty = 1.1f, p.frequency_penalty = -0.4f, p.penalty_window = -1;
        if (c % 7 == 3) p.repeat_penalty = 0.7f, p.frequency_penalty = 0.5f, p.penalty_window = 100;
        fill_noise(logits, n, 2.5);
        check_draws(logits, n, &p, seen, 9, 12);
    }
}

static void test_sample_keeps_the_order_of_ids_among_equal_logits(void) {
    static float logits[V_MAX];
    const float values[] = { 1.5f, -2.0f, 0.25f };
    for (int c = 0; c < 24; c++) { /* three logits only: every bucket is full of ties */
        for (uint32_t i = 0; i < V_MAX; i++) logits[i] = values[(i * 7 + (uint32_t)c) % 3];
        pn_sampling_params p = pn_sampling_defaults();
        p.temperature = 0.9f;
        p.top_k = (int[]){ 0, 700, 2000 }[c % 3];
        p.top_p = c % 2 ? 0.7f : 1.0f;
        p.seed = (uint64_t)c;
        check_draws(logits, V_MAX, &p, NULL, 0, 20);
    }
}

static void test_sample_frequencies_pass_a_chi_square_test(void) {
    enum { N = 24, DRAWS = 60000 };
    static float logits[N];
    static int counts[N];
    static double changed[N];
    static entry entries[N];
    double margin, chi = 0;
    fill_noise(logits, N, 1.0);
    pn_sampling_params p = pn_sampling_defaults();
    p.temperature = 1.3f, p.top_k = 20, p.top_p = 0.97f, p.seed = 12345;
    oracle_logits(logits, N, &p, NULL, 0, changed);
    const size_t kept = oracle_distribution(changed, N, &p, entries, &margin);
    pn_sampler *s = pn_sampler_new(N, &p);
    for (int r = 0; r < DRAWS; r++) {
        uint32_t token = 0;
        CHECK(pn_sample(s, logits, NULL, 0, &token) == PN_OK);
        counts[token < N ? token : 0]++;
    }
    pn_sampler_free(s);
    int inside = 0;
    for (size_t i = 0; i < kept; i++) {
        const double expected = entries[i].p * DRAWS, off = counts[entries[i].token] - expected;
        chi += off * off / expected;
        inside += counts[entries[i].token];
    }
    CHECK(kept > 10 && kept < 20);
    CHECK(inside == DRAWS);
    /* chi-square has mean d and deviation sqrt(2 d) for d = kept - 1 degrees of freedom. */
    CHECK(chi < (double)(kept - 1) + 5 * sqrt(2.0 * (double)(kept - 1)));
}

static void test_sample_at_temperature_zero_takes_the_highest_and_the_lowest_id_on_ties(void) {
    static float logits[1000];
    pn_sampling_params p = pn_sampling_defaults();
    p.top_k = 5, p.top_p = 0.1f, p.min_p = 0.9f; /* no filter changes the winner */
    for (uint32_t n = 1; n <= 1000; n += 37) {
        fill_noise(logits, n, 3.0);
        const uint32_t at = n / 2, again = n - 1;
        logits[at] = logits[again] = 50.0f;
        CHECK(draw_once(n, &p, logits) == at);
        CHECK(draw_once(n, NULL, logits) == at);
    }
    for (uint32_t i = 0; i < 1000; i++) logits[i] = i % 2 ? 0.0f : -0.0f; /* zeros of both signs are equal */
    CHECK(draw_once(1000, NULL, logits) == 0);
    for (uint32_t i = 0; i < 1000; i++) logits[i] = -INFINITY;
    logits[777] = -1e30f;
    CHECK(draw_once(1000, NULL, logits) == 777);
}

static void test_sample_at_temperature_zero_still_applies_bias_and_penalties(void) {
    const float logits[4] = { 1.0f, 2.0f, 1.5f, -1.0f };
    const uint32_t seen[] = { 1, 1 };
    const pn_logit_bias bias[] = { { 3, 2.0f }, { 3, 2.0f } };
    pn_sampling_params p = pn_sampling_defaults();
    uint32_t token = 9;
    p.frequency_penalty = 0.3f; /* 2.0 - 2 * 0.3 is below 1.5 */
    pn_sampler *s = pn_sampler_new(4, &p);
    CHECK(pn_sample(s, logits, seen, 2, &token) == PN_OK && token == 2);
    CHECK(pn_sample(s, logits, seen, 1, &token) == PN_OK && token == 1); /* counted anew in each draw */
    pn_sampler_free(s);
    p.logit_bias = bias, p.n_logit_bias = 2; /* -1 + 2 + 2, duplicates add up */
    CHECK(draw_once(4, &p, logits) == 3);
}

static void test_sample_with_neutral_values_is_the_unfiltered_draw(void) {
    static float logits[512];
    fill_noise(logits, 512, 2.0);
    const uint32_t seen[] = { 1, 2, 3 };
    for (uint64_t seed = 0; seed < 50; seed++) {
        pn_sampling_params plain = { .temperature = 0.7f, .top_p = 1, .repeat_penalty = 1, .seed = seed };
        pn_sampling_params neutral = plain;
        neutral.top_k = 512, neutral.min_p = 0, neutral.penalty_window = -1;
        pn_sampling_params windowless = plain;
        windowless.repeat_penalty = 2, windowless.penalty_window = 0;
        uint32_t tokens[3];
        const pn_sampling_params *all[] = { &plain, &neutral, &windowless };
        for (int i = 0; i < 3; i++) {
            pn_sampler *s = pn_sampler_new(512, all[i]);
            CHECK(pn_sample(s, logits, seen, 3, &tokens[i]) == PN_OK);
            pn_sampler_free(s);
        }
        CHECK(tokens[0] == tokens[1] && tokens[0] == tokens[2]);
    }
}

static void test_sample_with_the_narrowest_filters_takes_the_likeliest(void) {
    static float logits[512];
    fill_noise(logits, 512, 2.0);
    const uint32_t best = draw_once(512, NULL, logits);
    for (uint64_t seed = 0; seed < 20; seed++) {
        pn_sampling_params p = pn_sampling_defaults();
        p.temperature = 1, p.seed = seed, p.top_k = 1;
        CHECK(draw_once(512, &p, logits) == best);
        p.top_k = 0, p.top_p = 1e-30f;
        CHECK(draw_once(512, &p, logits) == best);
        p.top_p = 1, p.min_p = 1;
        CHECK(draw_once(512, &p, logits) == best);
        p.min_p = 0, p.temperature = 1e-40f;
        CHECK(draw_once(512, &p, logits) == best);
    }
}

static void test_sample_never_draws_what_is_forbidden(void) {
    float logits[6] = { 3e38f, -INFINITY, 3e38f, -3e38f, 1.0f, -INFINITY };
    pn_sampling_params p = pn_sampling_defaults();
    for (uint64_t seed = 0; seed < 200; seed++) {
        p.temperature = 3e38f, p.seed = seed, p.top_p = seed % 2 ? 0.9999f : 1.0f;
        const uint32_t token = draw_once(6, &p, logits);
        CHECK(token != 1 && token != 5 && token < 6);
        p.temperature = 1;
        CHECK(draw_once(6, &p, logits) % 2 == 0);
    }
}

static void test_sample_repeats_itself_for_equal_seeds_whatever_was_drawn_elsewhere(void) {
    static float logits[300];
    fill_noise(logits, 300, 1.0);
    pn_sampling_params p = pn_sampling_defaults();
    p.temperature = 1, p.seed = UINT64_MAX;
    pn_sampler *a = pn_sampler_new(300, &p), *b = pn_sampler_new(300, &p);
    uint32_t first[64], second = 0, others = 0;
    for (int i = 0; i < 64; i++) CHECK(pn_sample(a, logits, NULL, 0, &first[i]) == PN_OK);
    for (int i = 0; i < 64; i++) {
        draw_once(300, &p, logits);
        CHECK(pn_sample(b, logits, NULL, 0, &second) == PN_OK && second == first[i]);
    }
    pn_sampler_free(a);
    pn_sampler_free(b);
    p.seed = 1;
    a = pn_sampler_new(300, &p);
    for (int i = 0; i < 64; i++) {
        CHECK(pn_sample(a, logits, NULL, 0, &second) == PN_OK);
        others += second != first[i];
    }
    pn_sampler_free(a);
    CHECK(others > 32);
}

static void test_sample_leaves_the_callers_logits_alone(void) {
    static float logits[200], copy[200];
    fill_noise(logits, 200, 1.0);
    memcpy(copy, logits, sizeof copy);
    const pn_logit_bias bias = { 7, 1.0f };
    const uint32_t seen[] = { 1, 2 };
    pn_sampling_params p = pn_sampling_defaults();
    p.temperature = 1, p.repeat_penalty = 2, p.logit_bias = &bias, p.n_logit_bias = 1;
    pn_sampler *s = pn_sampler_new(200, &p);
    uint32_t token;
    CHECK(pn_sample(s, logits, seen, 2, &token) == PN_OK);
    pn_sampler_free(s);
    CHECK(!memcmp(copy, logits, sizeof copy));
}

static void test_sample_with_logits_that_are_no_numbers_fails_and_names_the_token(void) {
    static float logits[1000];
    const float minus_nan = -NAN;
    const float bad[] = { NAN, minus_nan, INFINITY };
    const uint32_t places[] = { 0, 127, 128, 640, 999 };
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 3; b++)
            for (int at = 0; at < 5; at++) {
                pn_sampling_params p = pn_sampling_defaults();
                p.temperature = (float)t;
                fill_noise(logits, 1000, 1.0);
                logits[places[at]] = bad[b];
                uint32_t token;
                char name[32];
                snprintf(name, sizeof name, "token %u ", places[at]);
                pn_sampler *s = pn_sampler_new(1000, &p);
                CHECK(pn_sample(s, logits, NULL, 0, &token) == PN_ERR_NUMERIC);
                CHECK(strstr(pn_last_error(), name));
                logits[places[at]] = 0; /* and the sampler is as good as new */
                CHECK(pn_sample(s, logits, NULL, 0, &token) == PN_OK);
                pn_sampler_free(s);
            }
}

static void test_sample_with_everything_forbidden_fails(void) {
    const float logits[2] = { -INFINITY, 5.0f };
    const pn_logit_bias bias = { 1, -INFINITY };
    pn_sampling_params p = pn_sampling_defaults();
    uint32_t token;
    p.logit_bias = &bias, p.n_logit_bias = 1;
    pn_sampler *s = pn_sampler_new(2, &p);
    CHECK(pn_sample(s, logits, NULL, 0, &token) == PN_ERR_NUMERIC);
    CHECK(strstr(pn_last_error(), "forbidden"));
    pn_sampler_free(s);
}

static void test_sample_refuses_bad_arguments_and_stays_usable(void) {
    const float logits[4] = { 0, 1, 2, 3 };
    const uint32_t seen[] = { 3, 4 };
    pn_sampling_params p = pn_sampling_defaults();
    p.repeat_penalty = 2;
    uint32_t token;
    pn_sampler *s = pn_sampler_new(4, &p);
    CHECK(pn_sample(s, logits, seen, 2, &token) == PN_ERR_ARGUMENT);
    CHECK(strstr(pn_last_error(), "token 4 "));
    CHECK(pn_sample(s, logits, seen, 1, &token) == PN_OK && token == 2);
    CHECK(pn_sample(s, logits, NULL, 0, &token) == PN_OK && token == 3);
    CHECK(pn_sample(NULL, logits, NULL, 0, &token) == PN_ERR_ARGUMENT);
    CHECK(pn_sample(s, NULL, NULL, 0, &token) == PN_ERR_ARGUMENT);
    CHECK(pn_sample(s, logits, NULL, 1, &token) == PN_ERR_ARGUMENT);
    CHECK(pn_sample(s, logits, NULL, 0, NULL) == PN_ERR_ARGUMENT);
    CHECK(pn_sample_state(s, NULL, &token) == PN_ERR_ARGUMENT);
    pn_sampler_free(s);
    pn_sampler_free(NULL);
}

static void check_refused(uint32_t n_vocab, pn_sampling_params p, const char *name, const char *value) {
    pn_sampler *s = pn_sampler_new(n_vocab, &p);
    CHECK(!s && pn_last_status() == PN_ERR_ARGUMENT);
    CHECK(strstr(pn_last_error(), name));
    CHECK(strstr(pn_last_error(), value));
    pn_sampler_free(s);
}

#define REFUSED(field, bad, value)                                                                                     \
    do {                                                                                                               \
        pn_sampling_params params_ = pn_sampling_defaults();                                                           \
        params_.field = bad;                                                                                           \
        check_refused(100, params_, #field, value);                                                                    \
    } while (0)

static void test_sampler_new_names_the_parameter_and_the_value_that_it_refuses(void) {
    REFUSED(temperature, -0.5f, "-0.5");
    REFUSED(temperature, NAN, "nan");
    REFUSED(temperature, INFINITY, "inf");
    REFUSED(top_k, -1, "-1");
    REFUSED(top_p, 0.0f, "0");
    REFUSED(top_p, 1.25f, "1.25");
    REFUSED(top_p, NAN, "nan");
    REFUSED(min_p, -0.25f, "-0.25");
    REFUSED(min_p, 1.5f, "1.5");
    REFUSED(min_p, NAN, "nan");
    REFUSED(repeat_penalty, 0.0f, "0");
    REFUSED(repeat_penalty, -1.0f, "-1");
    REFUSED(repeat_penalty, NAN, "nan");
    REFUSED(repeat_penalty, INFINITY, "inf");
    REFUSED(presence_penalty, 2.5f, "2.5");
    REFUSED(presence_penalty, NAN, "nan");
    REFUSED(frequency_penalty, -2.5f, "-2.5");
    REFUSED(frequency_penalty, NAN, "nan");
    REFUSED(penalty_window, -2, "-2");
    REFUSED(n_logit_bias, 1, "NULL");
    pn_sampling_params p = pn_sampling_defaults();
    check_refused(0, p, "n_vocab", "0");
    check_refused(UINT32_MAX, p, "n_vocab", "4294967295");
    const float values[] = { NAN, INFINITY };
    for (int i = 0; i < 2; i++) {
        pn_logit_bias bias[] = { { 1, 1.0f }, { 99, values[i] } };
        p.logit_bias = bias, p.n_logit_bias = 2;
        check_refused(100, p, "logit_bias of token 99", i ? "inf" : "nan");
    }
    const pn_logit_bias outside[] = { { 1, 1.0f }, { 100, 1.0f } };
    p.logit_bias = outside;
    check_refused(100, p, "logit_bias", "token 100 ");
}

typedef struct rival {
    pn_sampler *sampler;
    const float *logits;
    atomic_int *busy, *wrong, *stop;
} rival;

static void *run_rival(void *context) {
    const rival *r = context;
    for (int i = 0; i < 2000 && !atomic_load(r->stop); i++) {
        uint32_t token;
        const int status = pn_sample(r->sampler, r->logits, NULL, 0, &token);
        if (status == PN_ERR_BUSY)
            atomic_fetch_add(r->busy, 1), atomic_store(r->stop, 1);
        else if (status != PN_OK || token != 4321)
            atomic_fetch_add(r->wrong, 1);
    }
    return NULL;
}

static void test_sample_by_two_threads_at_once_is_busy_for_one_of_them(void) {
    enum { N = 100000 };
    float *logits = calloc(N, sizeof *logits);
    atomic_int busy = 0, wrong = 0, stop = 0;
    CHECK(logits);
    if (!logits) return;
    logits[4321] = 200;
    pn_sampling_params p = pn_sampling_defaults();
    p.temperature = 1;
    rival r = { pn_sampler_new(N, &p), logits, &busy, &wrong, &stop };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_rival, &r) == 0);
    run_rival(&r);
    pthread_join(thread, NULL);
    CHECK(busy > 0 && wrong == 0);
    pn_sampler_free(r.sampler);
    free(logits);
}

int main(void) {
    RUN(test_sample_draws_what_the_oracle_draws_for_every_chain);
    RUN(test_sample_keeps_the_order_of_ids_among_equal_logits);
    RUN(test_sample_frequencies_pass_a_chi_square_test);
    RUN(test_sample_at_temperature_zero_takes_the_highest_and_the_lowest_id_on_ties);
    RUN(test_sample_at_temperature_zero_still_applies_bias_and_penalties);
    RUN(test_sample_with_neutral_values_is_the_unfiltered_draw);
    RUN(test_sample_with_the_narrowest_filters_takes_the_likeliest);
    RUN(test_sample_never_draws_what_is_forbidden);
    RUN(test_sample_repeats_itself_for_equal_seeds_whatever_was_drawn_elsewhere);
    RUN(test_sample_leaves_the_callers_logits_alone);
    RUN(test_sample_with_logits_that_are_no_numbers_fails_and_names_the_token);
    RUN(test_sample_with_everything_forbidden_fails);
    RUN(test_sample_refuses_bad_arguments_and_stays_usable);
    RUN(test_sampler_new_names_the_parameter_and_the_value_that_it_refuses);
    RUN(test_sample_by_two_threads_at_once_is_busy_for_one_of_them);
    return check_report();
}
