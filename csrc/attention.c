/* attention.c - scores, softmax and weighted values over the blocks of the cache.                         (rank 7)
 *
 * No allocation: partial results live on the stack, a few queries at a time. */
#include "attention.h"

#include "mathf.h"

#include <math.h>
#include <string.h>

enum { QUERY_TILE = 6, HEAD_MAX = 1024 };

/* Running result of one query: weights are relative to exp(max). */
typedef struct partial {
    float max, sum;
} partial;

/* Fold a block's result (max, sum, values) into the running one. */
static void combine(partial *total, float *acc, partial block, const float *values, size_t n) {
    const float max = total->max > block.max ? total->max : block.max;
    const float old = exp_f32(total->max - max), new = exp_f32(block.max - max);
    total->max = max;
    total->sum = total->sum * old + block.sum * new;
    for (size_t e = 0; e < n; e++) acc[e] = acc[e] * old + values[e] * new;
}

static void attend_tile(const kernel_set *kernels, const kv_cache *kv, size_t layer, size_t head, size_t n_keys,
                        const float *q, size_t n_q, float *out) {
    const size_t n = kv->head_size, e8 = kv->e8;
    const float scale = 1.0f / sqrtf((float)n);
    _Alignas(32) float scores[QUERY_TILE * KV_BLOCK], acc[QUERY_TILE * HEAD_MAX], values[QUERY_TILE * HEAD_MAX];
    partial total[QUERY_TILE];
    for (size_t b = 0; b * KV_BLOCK < n_keys; b++) {
        const size_t in_block = size_min(KV_BLOCK, n_keys - b * KV_BLOCK);
        partial block[QUERY_TILE];
        kernels->attend_scores(q, n_q, kv_keys(kv, layer, head, b), in_block, n, scale, scores);
        for (size_t i = 0; i < n_q; i++)
            kernels->softmax_block(scores + i * KV_BLOCK, in_block, &block[i].max, &block[i].sum);
        kernels->attend_values(scores, n_q, kv_values(kv, layer, head, b), in_block, e8, b ? values : acc);
        for (size_t i = 0; i < n_q; i++) {
            if (b)
                combine(&total[i], acc + i * e8, block[i], values + i * e8, n);
            else
                total[i] = block[i];
        }
    }
    for (size_t i = 0; i < n_q; i++) {
        const float inverse = 1.0f / total[i].sum;
        for (size_t e = 0; e < n; e++) out[i * n + e] = acc[i * e8 + e] * inverse;
    }
}

void attention_head(const kernel_set *kernels, const kv_cache *kv, size_t layer, size_t head, size_t position,
                    const float *q, size_t n_q, float *out) {
    for (size_t i = 0; i < n_q; i += QUERY_TILE)
        attend_tile(kernels, kv, layer, head, position + 1, q + i * kv->head_size, size_min(QUERY_TILE, n_q - i),
                    out + i * kv->head_size);
}
