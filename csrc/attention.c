/* attention.c - scores, softmax and weighted values over the blocks of the cache.                         (rank 7)
 *
 * No allocation: what a job needs lies on the stack. The inner loops are the kernels'. */
#include "attention.h"

#include "mathf.h"

#include <math.h>
#include <string.h>

/* The result of some keys for the rows of a job: weights are relative to exp(max). */
typedef struct partial {
    float *values;    /* [rows, E8] */
    float *max, *sum; /* [rows] */
} partial;

static size_t job_rows(const attend_job *job) {
    return job->n_tokens * job->n_q;
}

/* A partial in floats[rows * (E8 + 2)]. */
static partial partial_at(const attend_job *job, float *floats) {
    const size_t rows = job_rows(job);
    return (partial){ floats, floats + rows * job->kv->e8, floats + rows * (job->kv->e8 + 1) };
}

size_t attention_rows(const kv_cache *kv) {
    return size_max(1, size_min(ATTEND_ROWS, ATTEND_FLOATS / kv->e8));
}

size_t attention_spans(const attend_job *job) {
    return (job->position + job->n_tokens + SPAN_KEYS - 1) / SPAN_KEYS;
}

size_t attention_partial_floats(const attend_job *job) {
    return job_rows(job) * (job->kv->e8 + 2);
}

/* Fold row `row` of `from` into that of `into`. */
static void combine_row(const attend_job *job, const partial *into, const partial *from, size_t row) {
    const size_t e8 = job->kv->e8;
    const float max = into->max[row] > from->max[row] ? into->max[row] : from->max[row];
    const float old = exp_f32(into->max[row] - max), new = exp_f32(from->max[row] - max);
    into->max[row] = max;
    into->sum[row] = into->sum[row] * old + from->sum[row] * new;
    job->kernels->attend_combine(into->values + row * e8, from->values + row * e8, e8, old, new);
}

/* Rows [first, rows) of a part of the keys that begins at `start` see some of it: the first such row. */
static size_t first_row(const attend_job *job, size_t start) {
    return start > job->position ? (start - job->position) * job->n_q : 0;
}

/* How many of the keys [start, start + KV_BLOCK) each row sees: n_keys[rows]; returns the most. */
static size_t visible_keys(const attend_job *job, size_t start, size_t n_keys[ATTEND_ROWS]) {
    size_t most = 0;
    for (size_t row = first_row(job, start); row < job_rows(job); row++) {
        n_keys[row] = size_min(KV_BLOCK, job->position + row / job->n_q + 1 - start);
        most = size_max(most, n_keys[row]);
    }
    return most;
}

/* One block of keys for the rows that see any of it. q[rows, E]. The keys of the block behind, where there is one, are
 * fetched meanwhile: the rows of a long cache come straight from memory. */
static void attend_block(const attend_job *job, size_t block, const float *q, const partial *out) {
    const kernel_set *kernels = job->kernels;
    const size_t n = job->kv->head_size, e8 = job->kv->e8, start = block * KV_BLOCK;
    const size_t first = first_row(job, start), n_rows = job_rows(job) - first;
    const size_t behind = start + KV_BLOCK < job->position + job->n_tokens ? block + 1 : block;
    const uint16_t *keys = kv_keys(job->kv, job->layer, job->head, block);
    const uint16_t *values = kv_values(job->kv, job->layer, job->head, block);
    _Alignas(64) float scores[ATTEND_ROWS * KV_BLOCK];
    size_t n_keys[ATTEND_ROWS];
    const size_t most = visible_keys(job, start, n_keys);
    kernels->attend_scores(q + first * n, n_rows, keys, most, n, 1.0f / sqrtf((float)n), scores, values);
    kernels->softmax_block(scores, n_rows, n_keys + first, out->max + first, out->sum + first);
    kernels->attend_values(scores, n_rows, values, n_keys + first, e8, out->values + first * e8,
                           kv_keys(job->kv, job->layer, job->head, behind));
}

static void gather_queries(const attend_job *job, float *q) {
    const size_t n = job->n_q * job->kv->head_size;
    for (size_t t = 0; t < job->n_tokens; t++) memcpy(q + t * n, job->q + t * job->ld_q, n * sizeof *q);
}

/* The blocks of one span in order. */
static void attend_span(const attend_job *job, size_t span, const float *q, const partial *out) {
    const size_t start = span * SPAN_KEYS, end = size_min(start + SPAN_KEYS, job->position + job->n_tokens);
    _Alignas(64) float floats[ATTEND_FLOATS + 2 * ATTEND_ROWS];
    const partial one = partial_at(job, floats);
    attend_block(job, start / KV_BLOCK, q, out);
    for (size_t at = start + KV_BLOCK; at < end; at += KV_BLOCK) {
        attend_block(job, at / KV_BLOCK, q, &one);
        for (size_t row = first_row(job, at); row < job_rows(job); row++) combine_row(job, out, &one, row);
    }
}

static void write_out(const attend_job *job, const partial *total) {
    const size_t n = job->kv->head_size;
    for (size_t row = 0; row < job_rows(job); row++) {
        const float inverse = 1.0f / total->sum[row];
        const float *values = total->values + row * job->kv->e8;
        float *out = job->out + row / job->n_q * job->ld_out + row % job->n_q * n;
        for (size_t e = 0; e < n; e++) out[e] = values[e] * inverse;
    }
}

void attention_run(const attend_job *job) {
    _Alignas(64) float q[ATTEND_FLOATS], floats[ATTEND_FLOATS + 2 * ATTEND_ROWS], more[ATTEND_FLOATS + 2 * ATTEND_ROWS];
    const partial total = partial_at(job, floats), one = partial_at(job, more);
    const size_t n_spans = attention_spans(job);
    gather_queries(job, q);
    attend_span(job, 0, q, &total);
    for (size_t span = 1; span < n_spans; span++) {
        attend_span(job, span, q, &one);
        for (size_t row = first_row(job, span * SPAN_KEYS); row < job_rows(job); row++)
            combine_row(job, &total, &one, row);
    }
    write_out(job, &total);
}

void attention_span(const attend_job *job, size_t span, float *partial_floats) {
    _Alignas(64) float q[ATTEND_FLOATS];
    const partial out = partial_at(job, partial_floats);
    gather_queries(job, q);
    attend_span(job, span, q, &out);
}

void attention_finish(const attend_job *job, const float *partials) {
    _Alignas(64) float floats[ATTEND_FLOATS + 2 * ATTEND_ROWS];
    const size_t n = attention_partial_floats(job), n_spans = attention_spans(job);
    const partial total = partial_at(job, floats);
    memcpy(floats, partials, n * sizeof *floats);
    for (size_t span = 1; span < n_spans; span++) {
        const partial one = partial_at(job, (float *)(uintptr_t)partials + span * n); /* only read */
        for (size_t row = first_row(job, span * SPAN_KEYS); row < job_rows(job); row++)
            combine_row(job, &total, &one, row);
    }
    write_out(job, &total);
}
