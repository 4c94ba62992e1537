/* attention.h - one token's query heads over the cache.                                                (rank 7) */
#ifndef PN_ATTENTION_H
#define PN_ATTENTION_H

#include "kv.h"

/* The queries that share key head `head`, at `position` (keys 0..position are visible): q[n_q, E] to out[n_q, E].
 * Softmax goes block by block over KV_BLOCK keys: each block's partial result is exact by itself and the partial
 * results are combined in the order of the blocks (online softmax, arXiv:1805.02867; grouped queries,
 * arXiv:2305.13245). So neither batches nor threads change a bit. head_size <= 1024. */
void attention_head(const kernel_set *kernels, const kv_cache *kv, size_t layer, size_t head, size_t position,
                    const float *q, size_t n_q, float *out);

#endif
