/* test_attention.c - queries of a few tokens over a cache: every kernel set against the portable one, in one go or span
 * by span, together or token by token, bit by bit; and the portable set against softmax attention in double.
 *
 * The oracle reads the floats that were stored, not the cache. All of them are numbers that 16 bits hold exactly. */
#include "attention.h"
#include "pantheon.h"

#include "check.h"
#include "random.h"

#include <math.h>

enum { LAYERS = 2, LAYER = 1, HEADS = 2, HEAD = 1, POSITIONS = 2 * SPAN_KEYS + ATTEND_ROWS };

/* Heads that fill a vector or not; from 136 on a job has fewer rows than ATTEND_ROWS, and at 128 and 1024 the rows of
 * the largest job fill its buffers to the last float. */
static const size_t HEAD_SIZES[] = { 5, 64, 128, 136, 520, 1024 };

/* A cache and what was stored in it: k and v [POSITIONS, HEADS, E]. */
typedef struct memory {
    kv_cache kv;
    float *k, *v;
} memory;

typedef struct shape {
    size_t position, n_tokens, n_q, window;
} shape;

static kernel_set sets[8]; /* the usable ones, the portable one first */
static size_t n_sets;

static void sets_get(void) {
    char names[128];
    snprintf(names, sizeof names, "%s", kernels_available());
    CHECK(kernels_pick("portable", &sets[n_sets++]) == PN_OK);
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
        if (strcmp(name, "portable") != 0) CHECK(kernels_pick(name, &sets[n_sets++]) == PN_OK);
}

/* ---- inputs ------------------------------------------------------------------------------------------------- */

/* Whole 1024ths in (-2, 2), evenly spread: 11 bits. */
static float random_number(void) {
    return (float)((int)(random_u32() & 4095) - 2048) / 1024.0f;
}

/* n floats that nothing lies behind: AddressSanitizer sees one more. */
static float *floats_new(size_t n, bool random) {
    float *x = malloc(n * sizeof *x);
    if (!x) exit(2);
    for (size_t i = 0; i < n; i++) x[i] = random ? random_number() : NAN;
    return x;
}

static memory memory_new(size_t head_size) {
    const size_t n = HEADS * head_size;
    memory m = { .k = floats_new(POSITIONS * n, true), .v = floats_new(POSITIONS * n, true) };
    kv_init(&m.kv, LAYERS, HEADS, head_size);
    if (kv_reserve(&m.kv, POSITIONS)) exit(2);
    for (size_t at = 0; at < POSITIONS; at++) kv_store(&sets[0], &m.kv, LAYER, at, m.k + at * n, m.v + at * n);
    return m;
}

static void memory_free(memory *m) {
    kv_clear(&m->kv);
    free(m->k);
    free(m->v);
}

/* Rows of the queries lie apart, as those of other key heads lie between them; so do those of the results. */
static size_t ld_q(const attend_job *job) {
    return job->n_q * job->kv->head_size + 3;
}

static size_t ld_out(const attend_job *job) {
    return job->n_q * job->kv->head_size + 2;
}

static attend_job job_new(const memory *m, shape s) {
    attend_job job = { .kernels = &sets[0], .kv = &m->kv, .layer = LAYER, .head = HEAD };
    job.scale = 1.0f / sqrtf((float)m->kv.head_size);
    job.window = s.window;
    job.position = s.position, job.n_tokens = s.n_tokens, job.n_q = s.n_q;
    job.ld_q = ld_q(&job), job.ld_out = ld_out(&job);
    job.q = floats_new((s.n_tokens - 1) * job.ld_q + s.n_q * m->kv.head_size, true);
    return job;
}

/* ---- ways to the same result -------------------------------------------------------------------------------- */

static size_t out_floats(const attend_job *job) {
    return (job->n_tokens - 1) * job->ld_out + job->n_q * job->kv->head_size;
}

static void run_whole(attend_job job) {
    attention_run(&job);
}

/* The spans from the last to the first, as threads may. What no row sees of a partial stays NaN. */
static void run_spans(attend_job job) {
    const size_t n_spans = attention_spans(&job), n = attention_partial_floats(&job);
    float *partials = floats_new(n_spans * n, false);
    for (size_t span = n_spans; span-- > attention_first_span(&job);) attention_span(&job, span, partials + span * n);
    attention_finish(&job, partials);
    free(partials);
}

/* One token after the other, of each one query head after the other. */
static void run_singles(attend_job job) {
    for (size_t t = 0; t < job.n_tokens; t++)
        for (size_t h = 0; h < job.n_q; h++) {
            attend_job one = job;
            one.position += t, one.n_tokens = one.n_q = 1;
            one.q += t * job.ld_q + h * job.kv->head_size, one.out += t * job.ld_out + h * job.kv->head_size;
            attention_run(&one);
        }
}

/* The results of one way; what lies between its rows stays NaN. */
static float *result_of(attend_job job, const kernel_set *kernels, void (*way)(attend_job)) {
    job.kernels = kernels;
    job.out = floats_new(out_floats(&job), false);
    way(job);
    return job.out;
}

static bool gives(attend_job job, const kernel_set *kernels, void (*way)(attend_job), const float *want) {
    float *got = result_of(job, kernels, way);
    const bool same = memcmp(got, want, out_floats(&job) * sizeof *got) == 0;
    if (!same)
        fprintf(stderr, "%s: head size %zu, position %zu, %zu tokens, %zu query heads, window %zu\n", kernels->isa,
                job.kv->head_size, job.position, job.n_tokens, job.n_q, job.window);
    free(got);
    return same;
}

/* ---- the oracle --------------------------------------------------------------------------------------------- */

/* out[E] of query q[E] that sees keys [first, n): softmax attention as it is written, in double. */
static void naive_row(const memory *m, const float *q, size_t first, size_t n, double *out) {
    const size_t size = m->kv.head_size;
    double total = 0;
    for (size_t e = 0; e < size; e++) out[e] = 0;
    for (size_t j = first; j < n; j++) {
        const float *k = m->k + (j * HEADS + HEAD) * size, *v = m->v + (j * HEADS + HEAD) * size;
        double dot = 0;
        for (size_t e = 0; e < size; e++) dot += (double)q[e] * (double)k[e];
        const double weight = exp(dot / sqrt((double)size)); /* scores stay below 10 here */
        for (size_t e = 0; e < size; e++) out[e] += weight * (double)v[e];
        total += weight;
    }
    for (size_t e = 0; e < size; e++) out[e] /= total;
}

/* The largest distance of a job's result from the oracle's. */
static double distance(const memory *m, const attend_job *job, const float *got) {
    const size_t size = m->kv.head_size;
    double want[KV_HEAD_MAX], most = 0;
    for (size_t t = 0; t < job->n_tokens; t++)
        for (size_t h = 0; h < job->n_q; h++) {
            const size_t n = job->position + t + 1, first = job->window && n > job->window ? n - job->window : 0;
            naive_row(m, job->q + t * job->ld_q + h * size, first, n, want);
            for (size_t e = 0; e < size; e++) {
                const double off = fabs((double)got[t * job->ld_out + h * size + e] - want[e]);
                if (!(off <= most)) most = off; /* NaN, too */
            }
        }
    return most;
}

/* ---- the tests ---------------------------------------------------------------------------------------------- */

/* Rounding: a score of deviation 4/3 is a sum of up to 1024 products, each rounded by half of 2^-23 of what is there so
 * far, about 1e-6 together; exp adds 2e-7, and the sums over some 1000 keys, which halve what they add, 1e-6. Values
 * are below 2. A key too many or too few moves one of 1000 keys' weights: 1e-3. */
static const double TOLERANCE = 5e-6;

/* The portable set, which takes most of the time, goes all ways over small heads only: its loops know no other. */
static void check_shape(const memory *m, shape s) {
    const size_t first = n_sets > 1 && m->kv.head_size > 64 ? 1 : 0;
    attend_job job = job_new(m, s);
    float *want = result_of(job, &sets[0], run_whole);
    CHECK(distance(m, &job, want) < TOLERANCE);
    for (size_t i = first; i < n_sets; i++) {
        CHECK(i == 0 || gives(job, &sets[i], run_whole, want));
        CHECK(gives(job, &sets[i], run_spans, want));
        CHECK(s.n_tokens * s.n_q == 1 || gives(job, &sets[i], run_singles, want));
    }
    free(want);
    free((void *)(uintptr_t)job.q);
}

/* Jobs that end with a block or a span, and jobs whose first or second token begins one, with as many rows as there may
 * be: heads of one token, tokens of one head, both. */
static void check_borders(const memory *m) {
    static const size_t borders[] = { KV_BLOCK, SPAN_KEYS, 2 * SPAN_KEYS };
    const size_t most = attention_rows(&m->kv), both = most >= 6 ? 3 : 1;
    const shape shapes[] = { { 0, 1, most, 0 }, { 0, most, 1, 0 }, { 0, both, most / both, 0 } };
    for (size_t i = 0; i < PN_ARRAY_LEN(shapes); i++) {
        const size_t n_tokens = shapes[i].n_tokens, n_q = shapes[i].n_q;
        check_shape(m, (shape){ 0, n_tokens, n_q, 0 });
        for (size_t b = 0; b < PN_ARRAY_LEN(borders); b++) {
            check_shape(m, (shape){ borders[b] - n_tokens, n_tokens, n_q, 0 });
            check_shape(m, (shape){ n_tokens > 1 ? borders[b] - 1 : borders[b], n_tokens, n_q, 0 });
        }
    }
}

/* Every number of rows, divided into tokens and heads in some ways, across a border of two blocks or of two spans. */
static void check_row_counts(const memory *m) {
    for (size_t rows = 1; rows <= attention_rows(&m->kv); rows++)
        for (size_t n_q = 1; n_q <= rows; n_q++) {
            const size_t n_tokens = rows / n_q, border = rows % 3 == 0 ? SPAN_KEYS : KV_BLOCK;
            if (n_tokens * n_q == rows && (n_q == 1 || n_q == 2 || n_q == 5 || n_q == rows))
                check_shape(m, (shape){ border - (n_tokens + 1) / 2, n_tokens, n_q, 0 });
        }
}

static void test_attention_any_way_gives_the_same_bits_and_the_naive_result(void) {
    for (size_t i = 0; i < PN_ARRAY_LEN(HEAD_SIZES); i++) {
        memory m = memory_new(HEAD_SIZES[i]);
        check_borders(&m);
        check_row_counts(&m);
        memory_free(&m);
    }
}

/* Windows of one key, of a block and a span and their neighbours, of all keys and more; tokens whose windows begin in
 * different blocks, and in different spans. */
static void test_attention_sees_no_further_than_its_window(void) {
    static const size_t windows[] = {
        1, 2, 7, 100, KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1, SPAN_KEYS, SPAN_KEYS + 3, 5000
    };
    static const size_t positions[] = {
        0, 99, KV_BLOCK + 94, SPAN_KEYS - 3, SPAN_KEYS + KV_BLOCK - 5, 2 * SPAN_KEYS - 1
    };
    static const size_t sizes[] = { 5, 64, 136 };
    for (size_t i = 0; i < PN_ARRAY_LEN(sizes); i++) {
        memory m = memory_new(sizes[i]);
        for (size_t w = 0; w < PN_ARRAY_LEN(windows); w++)
            for (size_t p = 0; p < PN_ARRAY_LEN(positions); p++) {
                check_shape(&m, (shape){ positions[p], 1, 3, windows[w] });
                check_shape(&m, (shape){ positions[p], 7, 3, windows[w] });
                check_shape(&m, (shape){ positions[p], 20, 1, windows[w] });
            }
        memory_free(&m);
    }
}

/* What lies before the window may be anything, in the same block too: nothing of it comes through. */
static void test_attention_never_reads_what_its_window_hides(void) {
    enum { WINDOW = 70, POSITION = KV_BLOCK + 40, HIDDEN = POSITION + 1 - WINDOW };
    memory m = memory_new(64);
    attend_job job = job_new(&m, (shape){ POSITION, 5, 2, WINDOW });
    float nan[HEADS * 64];
    for (size_t i = 0; i < PN_ARRAY_LEN(nan); i++) nan[i] = NAN;
    for (size_t s = 0; s < n_sets; s++) {
        float *want = result_of(job, &sets[s], run_whole);
        CHECK(distance(&m, &job, want) < TOLERANCE);
        free(want);
    }
    float *want = result_of(job, &sets[0], run_whole);
    for (size_t at = 0; at < HIDDEN; at++) kv_store(&sets[0], &m.kv, LAYER, at, nan, nan);
    for (size_t s = 0; s < n_sets; s++) {
        CHECK(gives(job, &sets[s], run_whole, want));
        CHECK(gives(job, &sets[s], run_spans, want));
        CHECK(gives(job, &sets[s], run_singles, want));
    }
    free(want);
    free((void *)(uintptr_t)job.q);
    memory_free(&m);
}

static void test_attention_rows_fit_the_buffers_of_every_head_size(void) {
    for (size_t size = 1; size <= KV_HEAD_MAX; size++) {
        kv_cache kv;
        kv_init(&kv, 1, 1, size);
        const size_t rows = attention_rows(&kv);
        CHECK(rows >= 1 && rows <= ATTEND_ROWS && rows * kv.e8 <= ATTEND_FLOATS);
        CHECK(rows == ATTEND_ROWS || (rows + 1) * kv.e8 > ATTEND_FLOATS); /* and one more would not */
    }
}

static void test_attention_spans_cover_the_keys_of_the_last_token(void) {
    static const size_t cases[][3] = { { 0, 1, 1 },
                                       { SPAN_KEYS - 1, 1, 1 },
                                       { SPAN_KEYS, 1, 2 },
                                       { SPAN_KEYS - 1, 2, 2 },
                                       { SPAN_KEYS - 24, 24, 1 },
                                       { 2 * SPAN_KEYS - 1, 1, 2 },
                                       { 2 * SPAN_KEYS, 1, 3 } };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) {
        const attend_job job = { .position = cases[i][0], .n_tokens = cases[i][1], .n_q = 1 };
        CHECK(attention_spans(&job) == cases[i][2] && attention_first_span(&job) == 0);
    }
}

int main(void) {
    sets_get();
    RUN(test_attention_any_way_gives_the_same_bits_and_the_naive_result);
    RUN(test_attention_sees_no_further_than_its_window);
    RUN(test_attention_never_reads_what_its_window_hides);
    RUN(test_attention_rows_fit_the_buffers_of_every_head_size);
    RUN(test_attention_spans_cover_the_keys_of_the_last_token);
    return check_report();
}
