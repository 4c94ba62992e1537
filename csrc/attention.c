/* attention.c - scores, softmax and weighted values over the blocks of the cache.                         (rank 7)
 *
 * No allocation: what a job needs lies on the stack. The inner loops are the kernels'. */
#include "attention.h"

#include "mathf.h"

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

/* The first key that the token at `position` sees. */
static size_t first_key(const attend_job *job, size_t position) {
    return job->window && position >= job->window ? position + 1 - job->window : 0;
}

size_t attention_first_span(const attend_job *job) {
    return first_key(job, job->position) / SPAN_KEYS;
}

size_t attention_spans(const attend_job *job) {
    return (job->position + job->n_tokens + SPAN_KEYS - 1) / SPAN_KEYS;
}

size_t attention_partial_floats(const attend_job *job) {
    return job_rows(job) * (job->kv->e8 + 2);
}

/* Rows [first, end). */
typedef struct row_range {
    size_t first, end;
} row_range;

/* The rows that see some of the n keys from `start` on: those of tokens at or behind `start` whose windows reach it. */
static row_range rows_that_see(const attend_job *job, size_t start, size_t n) {
    row_range rows = { 0, job_rows(job) };
    if (start > job->position) rows.first = (start - job->position) * job->n_q;
    if (job->window) {
        const size_t last = start + n - 1 + (job->window - 1); /* the last token that sees the last key */
        rows.end = last < job->position ? 0 : size_min(rows.end, (last + 1 - job->position) * job->n_q);
    }
    return rows;
}

/* Fold rows of `from` into those of `into`, which hold something already for rows before `begun`. */
static void combine(const attend_job *job, const partial *into, const partial *from, row_range rows, size_t begun) {
    const size_t e8 = job->kv->e8;
    for (size_t row = rows.first; row < rows.end; row++) {
        float *values = into->values + row * e8;
        if (row >= begun) {
            memcpy(values, from->values + row * e8, e8 * sizeof *values);
            into->max[row] = from->max[row];
            into->sum[row] = from->sum[row];
            continue;
        }
        const float max = into->max[row] > from->max[row] ? into->max[row] : from->max[row];
        const float old = exp_f32(into->max[row] - max), new = exp_f32(from->max[row] - max);
        into->max[row] = max;
        into->sum[row] = into->sum[row] * old + from->sum[row] * new;
        job->kernels->attend_combine(values, from->values + row * e8, e8, old, new);
    }
}

/* Which of the keys [start, start + KV_BLOCK) each row sees: n_keys[row] of them, behind skip[row] that it does not.
 * Returns how many keys are needed; *cut tells whether any are skipped. */
static size_t visible_keys(const attend_job *job, size_t start, row_range rows, size_t n_keys[ATTEND_ROWS],
                           size_t skip[ATTEND_ROWS], bool *cut) {
    size_t most = 0;
    *cut = false;
    for (size_t row = rows.first; row < rows.end; row++) {
        const size_t position = job->position + row / job->n_q, first = first_key(job, position);
        const size_t end = size_min(KV_BLOCK, position + 1 - start);
        skip[row] = first > start ? first - start : 0;
        n_keys[row] = end - skip[row];
        *cut |= skip[row] > 0;
        most = size_max(most, end);
    }
    return most;
}

/* The weighted values of a block that a window cuts. Rows of one token skip the same keys, those of the next
 * one more. */
static void attend_cut_values(const attend_job *job, const float *scores, const uint16_t *values, row_range rows,
                              const size_t *n_keys, const size_t *skip, float *out) {
    const size_t e8 = job->kv->e8;
    for (size_t row = rows.first; row < rows.end; row += job->n_q)
        job->kernels->attend_values(scores + (row - rows.first) * KV_BLOCK, job->n_q, values + skip[row] * e8,
                                    n_keys + row, e8, out + row * e8, values);
}

/* One block of keys for the rows that see any of it. q[rows, E]. The keys of the block behind, where there is one, are
 * fetched meanwhile: the rows of a long cache come straight from memory. */
static void attend_block(const attend_job *job, size_t block, row_range rows, const float *q, const partial *out) {
    const kernel_set *kernels = job->kernels;
    const size_t n = job->kv->head_size, e8 = job->kv->e8, start = block * KV_BLOCK;
    const size_t first = rows.first, n_rows = rows.end - rows.first;
    const size_t behind = start + KV_BLOCK < job->position + job->n_tokens ? block + 1 : block;
    const uint16_t *keys = kv_keys(job->kv, job->layer, job->head, block);
    const uint16_t *values = kv_values(job->kv, job->layer, job->head, block);
    _Alignas(64) float scores[ATTEND_ROWS * KV_BLOCK];
    size_t n_keys[ATTEND_ROWS], skip[ATTEND_ROWS];
    bool cut;
    const size_t most = visible_keys(job, start, rows, n_keys, skip, &cut);
    kernels->attend_scores(q + first * n, n_rows, keys, most, n, job->scale, scores, values);
    for (size_t row = first; cut && row < rows.end; row++) {
        float *row_scores = scores + (row - first) * KV_BLOCK;
        memmove(row_scores, row_scores + skip[row], n_keys[row] * sizeof *row_scores);
    }
    kernels->softmax_block(scores, n_rows, n_keys + first, out->max + first, out->sum + first);
    if (cut)
        attend_cut_values(job, scores, values, rows, n_keys, skip, out->values);
    else
        kernels->attend_values(scores, n_rows, values, n_keys + first, e8, out->values + first * e8,
                               kv_keys(job->kv, job->layer, job->head, behind));
}

static void gather_queries(const attend_job *job, float *q) {
    const size_t n = job->n_q * job->kv->head_size;
    for (size_t t = 0; t < job->n_tokens; t++) memcpy(q + t * n, job->q + t * job->ld_q, n * sizeof *q);
}

/* The blocks of one span in order. */
static void attend_span(const attend_job *job, size_t span, const float *q, const partial *out) {
    const size_t end = size_min((span + 1) * SPAN_KEYS, job->position + job->n_tokens);
    const size_t start = size_max(span * SPAN_KEYS, first_key(job, job->position) / KV_BLOCK * KV_BLOCK);
    _Alignas(64) float floats[ATTEND_FLOATS + 2 * ATTEND_ROWS];
    const partial one = partial_at(job, floats);
    row_range rows = rows_that_see(job, start, KV_BLOCK);
    attend_block(job, start / KV_BLOCK, rows, q, out);
    for (size_t at = start + KV_BLOCK; at < end; at += KV_BLOCK) {
        const size_t begun = rows.end;
        rows = rows_that_see(job, at, KV_BLOCK);
        attend_block(job, at / KV_BLOCK, rows, q, &one);
        combine(job, out, &one, rows, begun);
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

/* Fold the result of a span into that of the spans before it. */
static void combine_span(const attend_job *job, size_t span, const partial *into, const partial *from) {
    const row_range before = rows_that_see(job, (span - 1) * SPAN_KEYS, SPAN_KEYS);
    combine(job, into, from, rows_that_see(job, span * SPAN_KEYS, SPAN_KEYS), before.end);
}

void attention_run(const attend_job *job) {
    _Alignas(64) float q[ATTEND_FLOATS], floats[ATTEND_FLOATS + 2 * ATTEND_ROWS], more[ATTEND_FLOATS + 2 * ATTEND_ROWS];
    const partial total = partial_at(job, floats), one = partial_at(job, more);
    const size_t first = attention_first_span(job), n_spans = attention_spans(job);
    gather_queries(job, q);
    attend_span(job, first, q, &total);
    for (size_t span = first + 1; span < n_spans; span++) {
        attend_span(job, span, q, &one);
        combine_span(job, span, &total, &one);
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
    const size_t n = attention_partial_floats(job), first = attention_first_span(job), n_spans = attention_spans(job);
    const partial total = partial_at(job, floats);
    memcpy(floats, partials + first * n, n * sizeof *floats);
    for (size_t span = first + 1; span < n_spans; span++) {
        const partial one = partial_at(job, (float *)(uintptr_t)partials + span * n); /* only read */
        combine_span(job, span, &total, &one);
    }
    write_out(job, &total);
}
