/* matmul.c - activations in 8 bits; products shared out over threads.                                       (rank 5)
 *
 * Knows chunk sizes, not what a matrix means, nor its layout (matmul_pack.c). The inner loops are the kernels'. */
#include "matmul.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

#ifdef PN_USE_BLAS
#include <cblas.h>
#endif

/* What one chunk of work reads of the weights: small enough for several chunks per thread and to stay in L1/L2 while
 * the tokens pass over it, large enough that handing it out costs nothing. */
enum {
    CHUNK_BYTES = 48 * 1024,
    REST_VALUES = 32 * BLOCK_K, /* of a row at a time, on the stack */
    CHUNK_TOKENS = 192, /* rows of activations, a multiple of all tiles: they stay in L2, and many threads find work */
};

/* ---- activations ------------------------------------------------------------------------------------------ */

int act_reserve(act_buffer *buffer, size_t n_tokens, size_t k) {
    const size_t n = n_tokens * k, n_blocks = n / BLOCK_K + 1;
    if (buffer->memory && n <= buffer->tokens * buffer->k) return PN_OK;
    act_free(buffer);
    /* Quads of four bytes are read as one word; floats come first for their alignment. */
    const size_t bytes = (4 * 4 + 2 * 2) * n_blocks + n + 64;
    uint8_t *memory = malloc(bytes);
    if (!memory) return pn_fail(PN_ERR_MEMORY, "activations: no memory for %zu bytes", bytes);
    buffer->memory = memory;
    buffer->tokens = n_tokens;
    buffer->k = k;
    return PN_OK;
}

void act_free(act_buffer *buffer) {
    free(buffer->memory);
    memset(buffer, 0, sizeof *buffer);
}

void act_attach(act_buffer *buffer, const float *x, size_t ld_x, size_t n_tokens, size_t k, size_t planes) {
    const size_t n = n_tokens * planes * k, n_blocks = n / BLOCK_K;
    float *floats = buffer->memory;
    buffer->n_tokens = n_tokens;
    buffer->planes = planes;
    buffer->a = (activations){
        .x = x,
        .ld_x = ld_x,
        .k = k,
        .d = floats,
        .ds = floats + n_blocks,
        .bias8 = (int32_t *)(void *)(floats + 2 * n_blocks),
        .bias4 = (int32_t *)(void *)(floats + 3 * n_blocks),
        .sum16 = (int16_t *)(void *)(floats + 4 * n_blocks),
        .q = (int8_t *)(floats + 5 * n_blocks),
    };
}

/* n values of row `row` from column `column` on. The buffer owns what the views show as const. */
static void quantize_part(const activations *a, size_t row, size_t column, const float *x, size_t n,
                          const kernel_set *kernels) {
    const size_t at = row * a->k + column, block = at / BLOCK_K;
    const quantized_row out = {
        .q = (int8_t *)(uintptr_t)a->q + at,
        .d = (float *)(uintptr_t)a->d + block,
        .ds = (float *)(uintptr_t)a->ds + block,
        .bias8 = (int32_t *)(uintptr_t)a->bias8 + block,
        .bias4 = (int32_t *)(uintptr_t)a->bias4 + block,
        .sum16 = (int16_t *)(uintptr_t)a->sum16 + 2 * block,
    };
    kernels->quantize(x, n, &out);
}

void act_quantize(act_buffer *buffer, size_t token, const kernel_set *kernels) {
    const activations *a = &buffer->a;
    const float *x = a->x + token * a->ld_x;
    float rest[REST_VALUES];
    quantize_part(a, token, 0, x, a->k, kernels);
    for (size_t i = 0; buffer->planes == 2 && i < a->k; i += REST_VALUES) {
        const size_t n = size_min(REST_VALUES, a->k - i), at = token * a->k + i;
        kernels->quantize_rest(x + i, n, a->q + at, a->d + at / BLOCK_K, rest);
        quantize_part(a, buffer->n_tokens + token, i, rest, n, kernels);
    }
}

/* ---- products --------------------------------------------------------------------------------------------- */

/* A product is cut in both directions: runs of groups of about CHUNK_BYTES, and runs of tokens. */
typedef struct product_cut {
    size_t rows;                   /* of activations: tokens, or tokens of two planes         */
    size_t groups, tokens;         /* of a chunk, but the last of each direction              */
    size_t n_group_runs, n_chunks; /* a chunk's index is token run * n_group_runs + group run */
} product_cut;

typedef struct product_work {
    const matmul_job *jobs;
    product_cut cuts[4]; /* of each job */
    size_t n_jobs;
    const act_buffer *buffer;
    const kernel_set *kernels;
} product_work;

/* The part of a job that a chunk is about. */
typedef struct product_part {
    const matmul_job *job;
    size_t group, n_groups, token, n_tokens;
} product_part;

static product_part find_part(const product_work *work, size_t chunk) {
    size_t j = 0;
    while (chunk >= work->cuts[j].n_chunks) chunk -= work->cuts[j++].n_chunks;
    const product_cut *cut = &work->cuts[j];
    const size_t group = chunk % cut->n_group_runs * cut->groups, token = chunk / cut->n_group_runs * cut->tokens;
    return (product_part){
        .job = &work->jobs[j],
        .group = group,
        .n_groups = size_min(cut->groups, work->jobs[j].w->n_groups - group),
        .token = token,
        .n_tokens = size_min(cut->tokens, cut->rows - token),
    };
}

static void run_kernel(const product_work *work, const product_part *part) {
    const matrix *m = part->job->w;
    work->kernels->matmul[m->kind](m->data + part->group * m->group_bytes, part->n_groups, &work->buffer->a,
                                   part->token, part->n_tokens, part->job->out + part->group * GROUP_ROWS,
                                   part->job->ld_out);
}

static void product_chunk(void *context, size_t chunk) {
    const product_work *work = context;
    const product_part part = find_part(work, chunk);
    run_kernel(work, &part);
}

#ifdef PN_USE_BLAS

enum { BLAS_PANEL_GROUPS = 16 };

/* A panel of rows to floats, then one single-threaded sgemm: out[t][row] = x[t] . w[row]. */
static void blas_chunk(void *context, size_t chunk) {
    const product_work *work = context;
    const product_part part = find_part(work, chunk);
    const matrix *m = part.job->w;
    const activations *a = &work->buffer->a;
    const size_t rows = part.n_groups * GROUP_ROWS, row = part.group * GROUP_ROWS;
    float *panel = malloc(rows * m->cols * sizeof *panel);
    if (!panel) { /* the kernels need no memory */
        run_kernel(work, &part);
        return;
    }
    for (size_t i = 0; i < rows; i++) matrix_read_row(m, row + i, panel + i * m->cols);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)part.n_tokens, (int)rows, (int)m->cols, 1.0f, a->x,
                (int)a->ld_x, panel, (int)m->cols, 0.0f, part.job->out + row, (int)part.job->ld_out);
    free(panel);
}

#endif

bool matmul_uses_blas(size_t n_tokens, bool use_blas) {
#ifdef PN_USE_BLAS
    return use_blas && n_tokens >= BLAS_MIN_TOKENS;
#else
    (void)n_tokens, (void)use_blas;
    return false;
#endif
}

size_t matmul_planes(const matrix *w, const act_buffer *buffer) {
    return pack_is_quantized(w->kind) ? buffer->planes : 1;
}

static product_cut cut_product(const matrix *m, size_t rows, bool blas) {
    product_cut cut = { .rows = rows, .groups = size_max(1, CHUNK_BYTES / m->group_bytes), .tokens = CHUNK_TOKENS };
#ifdef PN_USE_BLAS
    if (blas) cut = (product_cut){ .rows = rows, .groups = BLAS_PANEL_GROUPS, .tokens = rows };
#else
    (void)blas;
#endif
    cut.n_group_runs = (m->n_groups + cut.groups - 1) / cut.groups;
    cut.n_chunks = cut.n_group_runs * ((rows + cut.tokens - 1) / cut.tokens);
    return cut;
}

void matmul_run(const matmul_job *jobs, size_t n_jobs, const act_buffer *buffer, size_t n_tokens,
                const kernel_set *kernels, threads *pool, bool use_blas) {
    product_work work = { .jobs = jobs, .n_jobs = n_jobs, .buffer = buffer, .kernels = kernels };
    const bool blas = matmul_uses_blas(n_tokens, use_blas);
    threads_fn run = product_chunk;
#ifdef PN_USE_BLAS
    if (blas) run = blas_chunk;
#endif
    size_t n_chunks = 0;
    for (size_t j = 0; j < n_jobs; j++) {
        const size_t planes = matmul_planes(jobs[j].w, buffer);
        work.cuts[j] = cut_product(jobs[j].w, n_tokens * planes, blas);
        n_chunks += work.cuts[j].n_chunks;
    }
    threads_run(pool, run, &work, n_chunks);
}
