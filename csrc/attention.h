/* attention.h - queries of a few consecutive tokens over the cache of their conversation.                 (rank 7)
 *
 * Softmax attention with grouped queries (arXiv:2305.13245), computed over blocks of KV_BLOCK keys (online softmax,
 * arXiv:1805.02867) in one fixed order: the blocks of a span of SPAN_KEYS keys are folded together in order, then the
 * spans are. A span's result is exact by itself, so that threads may share the spans of a long cache; and neither
 * batches nor threads change a bit. A row folds the blocks in which it sees a key and no others; of a block that its
 * window cuts it takes the keys that it sees as if they were all. */
#ifndef PN_ATTENTION_H
#define PN_ATTENTION_H

#include "kv.h"

enum {
    SPAN_KEYS = 4 * KV_BLOCK,
    ATTEND_ROWS = 24,        /* query rows of a job at most: two tiles of 12, four of 6 */
    ATTEND_FLOATS = 24 * 128 /* rows * E8 of a job at most: its buffers lie on the stack */
};

/* Query rows that share a key head: n_q heads of each of n_tokens tokens at `position` and behind it, which see the
 * keys up to their own; with a window only the last `window` of them (0: all), and what lies before them is not read.
 * Scores are multiplied by `scale`. Row t * n_q + h is q[t * ld_q + h * E ...]; out alike. n_tokens * n_q <=
 * attention_rows(). */
typedef struct attend_job {
    const kernel_set *kernels;
    const kv_cache *kv;
    size_t layer, head;
    size_t position, n_tokens, n_q;
    size_t window;
    float scale;
    const float *q;
    float *out;
    size_t ld_q, ld_out;
} attend_job;

/* The most query rows of one job for this cache, at least 1 (E <= 1024). */
size_t attention_rows(const kv_cache *kv);
/* All of a job. */
void attention_run(const attend_job *job);

/* The same in two steps, the first of which can be shared out. Span s covers the keys from s * SPAN_KEYS; a job has
 * those from attention_first_span() on up to, but not including, attention_spans(). Each leaves
 * attention_partial_floats() floats for the second step: partials is [attention_spans(), that]. */
size_t attention_first_span(const attend_job *job);
size_t attention_spans(const attend_job *job);
size_t attention_partial_floats(const attend_job *job);
void attention_span(const attend_job *job, size_t span, float *partial);
void attention_finish(const attend_job *job, const float *partials);

#endif
