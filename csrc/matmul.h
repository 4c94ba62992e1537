/* matmul.h - packed weights times activations: quantizing activations, sharing out over threads.            (rank 5)
 *
 * A dot product is never divided: threads share rows and tokens. So thread counts and batch splits change no bit. */
#ifndef PN_MATMUL_H
#define PN_MATMUL_H

#include "matmul_pack.h"
#include "threads.h"

/* Room for the activations of up to T tokens of K values. */
typedef struct act_buffer {
    void *memory;
    size_t tokens, k;        /* capacity: tokens * k             */
    size_t n_tokens, planes; /* of what is attached              */
    activations a;           /* views into memory; a.x is the caller's */
} act_buffer;

int act_reserve(act_buffer *buffer, size_t n_tokens, size_t k);
void act_free(act_buffer *buffer);
/* Point the buffer at x[n_tokens, ld_x] with K = k values per token. n_tokens * planes * k must have been reserved; x
 * stays the caller's and must live as long as the products. Where weights are quantized (k is a multiple of BLOCK_K
 * then), each token must go through act_quantize before the product, from any thread: whoever wrote the row has it at
 * hand.
 * planes 1: activations of 8 bits. planes 2: of 16 bits in two planes, the second of which quantizes what the first
 * left over. A product with quantized weights is then two: that of plane p and token t goes to row p * n_tokens + t,
 * and whoever reads it adds the two (see matmul_planes). */
void act_attach(act_buffer *buffer, const float *x, size_t ld_x, size_t n_tokens, size_t k, size_t planes);
void act_quantize(act_buffer *buffer, size_t token, const kernel_set *kernels);

/* One product: out[t][row] for all tokens; ld_out >= rows rounded up to GROUP_ROWS, the surplus is written (zeros). */
typedef struct matmul_job {
    const matrix *w;
    float *out;
    size_t ld_out;
} matmul_job;

/* Up to 4 products that share their activations, as one job for the pool: of the first n_tokens that are attached, all
 * of them if there are two planes. use_blas: through BLAS where the build has it and the batch is large enough to
 * gain. */
void matmul_run(const matmul_job *jobs, size_t n_jobs, const act_buffer *buffer, size_t n_tokens,
                const kernel_set *kernels, threads *pool, bool use_blas);
/* Below this many tokens the 8-bit kernels read less memory than BLAS and win. */
enum { BLAS_MIN_TOKENS = 32 };
/* Does a product of so many tokens go through BLAS? It reads x, and falls back to the quantized values without memory:
 * one plane is enough. */
bool matmul_uses_blas(size_t n_tokens, bool use_blas);
/* How many planes a product with this matrix has. */
size_t matmul_planes(const matrix *w, const act_buffer *buffer);

#endif
