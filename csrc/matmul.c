/* matmul.c - weights from file order to groups of sixteen rows; products shared out over threads.           (rank 5)
 *
 * Knows layouts and chunk sizes, not what a matrix means. The inner loops are the kernels'. */
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

typedef struct pack_format {
    int dtype;
    pack_kind kind;
} pack_format;

static const pack_format PACK_FORMATS[] = {
    { DTYPE_F32, PACK_F32 }, { DTYPE_F16, PACK_F16 }, { DTYPE_BF16, PACK_BF16 },
    { DTYPE_Q8_0, PACK_Q8 }, { DTYPE_Q4_0, PACK_Q4 }, { DTYPE_Q4_1, PACK_Q4M },
};

static const pack_format *pack_format_find(int dtype) {
    for (size_t i = 0; i < PN_ARRAY_LEN(PACK_FORMATS); i++)
        if (PACK_FORMATS[i].dtype == dtype) return &PACK_FORMATS[i];
    return NULL;
}

bool matrix_supports(int dtype) {
    return pack_format_find(dtype) != NULL;
}

/* ---- packing ---------------------------------------------------------------------------------------------- */

/* How the file stores the elements of a kind. */
static const dtype_info *file_type(pack_kind kind) {
    size_t i = 0;
    while (PACK_FORMATS[i].kind != kind) i++; /* every kind has a format */
    return dtype_find(PACK_FORMATS[i].dtype);
}

size_t matrix_row_bytes(const matrix *m) {
    const dtype_info *type = file_type(m->kind);
    return m->cols / type->block_len * type->block_bytes;
}

/* Words of 4 bytes travel as they are, four at a time where the compiler can be told so. */
typedef uint32_t words4 __attribute__((vector_size(16)));

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLE
#endif
#endif

/* dst[v][r] = src[r][v] for four rows and four words: both have strides in bytes. */
static inline void transpose_words(uint8_t *dst, size_t dst_stride, const words4 src[4]) {
#ifdef HAVE_SHUFFLE
    const words4 low01 = __builtin_shufflevector(src[0], src[1], 0, 4, 1, 5);
    const words4 low23 = __builtin_shufflevector(src[2], src[3], 0, 4, 1, 5);
    const words4 high01 = __builtin_shufflevector(src[0], src[1], 2, 6, 3, 7);
    const words4 high23 = __builtin_shufflevector(src[2], src[3], 2, 6, 3, 7);
    const words4 out[4] = { __builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                            __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                            __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                            __builtin_shufflevector(high01, high23, 2, 3, 6, 7) };
    for (size_t v = 0; v < 4; v++) memcpy(dst + v * dst_stride, &out[v], sizeof out[v]);
#else
    for (size_t v = 0; v < 4; v++)
        for (size_t r = 0; r < 4; r++) memcpy(dst + v * dst_stride + 4 * r, (const uint8_t *)&src[r] + 4 * v, 4);
#endif
}

/* Where a group begins in the file, and how many rows it has there: GROUP_ROWS but for a matrix's last group. */
typedef struct group_source {
    const uint8_t *at;
    size_t row_bytes;
    size_t n_rows;
} group_source;

/* One half-precision number of each row, `at` bytes into the row: dst [16 rows]. */
static inline void pack_halves(uint8_t *dst, const group_source *src, size_t at) {
    for (size_t r = 0; r < src->n_rows; r++) memcpy(dst + 2 * r, src->at + r * src->row_bytes + at, 2);
    for (size_t r = src->n_rows; r < GROUP_ROWS; r++) memset(dst + 2 * r, 0, 2);
}

/* 16 bytes of each row, `at` bytes into the row: dst [4 quads][16 rows][4]. */
static inline void pack_quads(uint8_t *dst, const group_source *src, size_t at) {
    for (size_t first = 0; first < GROUP_ROWS; first += 4) {
        words4 rows[4] = { 0 };
        for (size_t r = first; r < size_min(first + 4, src->n_rows); r++)
            memcpy(&rows[r - first], src->at + r * src->row_bytes + at, sizeof *rows);
        transpose_words(dst + 4 * first, 4 * GROUP_ROWS, rows);
    }
}

static inline void pack_q8(uint8_t *dst, const group_source *src, size_t n_blocks) {
    for (size_t b = 0; b < n_blocks; b++, dst += Q8_BLOCK_BYTES) {
        pack_halves(dst, src, b * 34);
        pack_quads(dst + SCALES_BYTES, src, b * 34 + 2);
        pack_quads(dst + SCALES_BYTES + 4 * QUAD_BYTES, src, b * 34 + 18);
    }
}

/* The file's byte j holds elements j (low) and j + 16 (high): quads v and v + 4, as kernels.h wants them. A block is
 * its scales (2 bytes, Q4_1 4), then 16 bytes. */
static inline void pack_q4(uint8_t *dst, const group_source *src, size_t n_blocks, size_t n_halves) {
    const size_t block_bytes = 2 * n_halves + 16;
    for (size_t b = 0; b < n_blocks; b++) {
        for (size_t i = 0; i < n_halves; i++, dst += 2 * GROUP_ROWS) pack_halves(dst, src, b * block_bytes + 2 * i);
        pack_quads(dst, src, b * block_bytes + 2 * n_halves);
        dst += 4 * QUAD_BYTES;
    }
}

static inline void pack_floats(uint8_t *dst, const group_source *src, size_t k, size_t size) {
    for (size_t i = 0; i < k; i++, dst += GROUP_ROWS * size) {
        for (size_t r = 0; r < src->n_rows; r++) memcpy(dst + r * size, src->at + r * src->row_bytes + i * size, size);
        memset(dst + src->n_rows * size, 0, (GROUP_ROWS - src->n_rows) * size);
    }
}

static inline void pack_group(pack_kind kind, uint8_t *dst, const group_source *src, size_t k) {
    switch (kind) {
    case PACK_F32:
        pack_floats(dst, src, k, 4);
        break;
    case PACK_F16:
    case PACK_BF16:
        pack_floats(dst, src, k, 2);
        break;
    case PACK_Q8:
        pack_q8(dst, src, k / BLOCK_K);
        break;
    case PACK_Q4:
        pack_q4(dst, src, k / BLOCK_K, 1);
        break;
    case PACK_Q4M:
        pack_q4(dst, src, k / BLOCK_K, 2);
        break;
    case PACK_KINDS:
        break;
    }
}

void matrix_pack(const matrix *m, const uint8_t *src, size_t first, size_t n) {
    const size_t row_bytes = matrix_row_bytes(m);
    for (size_t g = first; g < first + n; g++) {
        const size_t row = g * GROUP_ROWS, n_rows = size_min(GROUP_ROWS, m->rows - row);
        uint8_t *const dst = m->data + g * m->group_bytes;
        const uint8_t *const at = src + row * row_bytes;
        /* The constant makes loops over rows disappear. */
        if (n_rows == GROUP_ROWS)
            pack_group(m->kind, dst, &(group_source){ at, row_bytes, GROUP_ROWS }, m->cols);
        else
            pack_group(m->kind, dst, &(group_source){ at, row_bytes, n_rows }, m->cols);
    }
}

int matrix_plan(int dtype, size_t rows, size_t cols, matrix *out) {
    memset(out, 0, sizeof *out);
    const pack_format *format = pack_format_find(dtype);
    if (!format) return pn_fail(PN_ERR_UNSUPPORTED, "matrix: element type %d cannot be multiplied", dtype);
    matrix m = {
        .kind = format->kind, .rows = rows, .cols = cols, .n_groups = rows / GROUP_ROWS + (rows % GROUP_ROWS != 0)
    };
    size_t bytes;
    if (!pack_group_bytes(m.kind, cols, &m.group_bytes) || !size_mul(m.group_bytes, m.n_groups, &bytes))
        return pn_fail(PN_ERR_CORRUPT, "matrix: %zu x %zu elements do not fit the address space", rows, cols);
    *out = m;
    return PN_OK;
}

size_t matrix_bytes(const matrix *m) {
    return m->n_groups * m->group_bytes;
}

/* ---- reading back ------------------------------------------------------------------------------------------ */

static float load_half(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return half_to_float(half);
}

/* Row r of a group of floats. */
static void read_row_float(pack_kind kind, const uint8_t *group, size_t r, size_t n, float *out) {
    for (size_t k = 0; k < n; k++) {
        const size_t at = k * GROUP_ROWS + r;
        uint16_t half = 0;
        if (kind == PACK_F32)
            memcpy(&out[k], group + at * 4, 4);
        else
            memcpy(&half, group + at * 2, 2);
        if (kind == PACK_F16) out[k] = half_to_float(half);
        if (kind == PACK_BF16) out[k] = bf16_to_float(half);
    }
}

/* Row r of one block of 32, in the file's own arithmetic: d * q, Q4M's d * q + m. */
static void read_row_block(pack_kind kind, const uint8_t *block, size_t r, float out[BLOCK_K]) {
    const float d = load_half(block + 2 * r);
    const uint8_t *quads = block + (kind == PACK_Q4M ? 2 * SCALES_BYTES : SCALES_BYTES) + r * 4;
    for (size_t i = 0; i < BLOCK_K; i++) {
        if (kind == PACK_Q8) {
            out[i] = d * (float)(int8_t)quads[i / 4 * GROUP_ROWS * 4 + i % 4];
            continue;
        }
        const int q = quads[i / 4 % 4 * GROUP_ROWS * 4 + i % 4] >> (i < 16 ? 0 : 4) & 15;
        out[i] = kind == PACK_Q4 ? d * (float)(q - 8) : d * (float)q + load_half(block + SCALES_BYTES + 2 * r);
    }
}

void matrix_read_row(const matrix *m, size_t row, float *out) {
    const uint8_t *group = m->data + row / GROUP_ROWS * m->group_bytes;
    const size_t r = row % GROUP_ROWS, n_blocks = m->cols / BLOCK_K;
    if (!pack_is_quantized(m->kind)) {
        read_row_float(m->kind, group, r, m->cols, out);
        return;
    }
    for (size_t b = 0; b < n_blocks; b++)
        read_row_block(m->kind, group + b * (m->group_bytes / n_blocks), r, out + b * BLOCK_K);
}

/* ---- activations ------------------------------------------------------------------------------------------ */

int act_reserve(act_buffer *buffer, size_t n_tokens, size_t k) {
    const size_t n = n_tokens * k, n_blocks = n / BLOCK_K + 1;
    if (buffer->memory && n <= buffer->tokens * buffer->k) return PN_OK;
    act_free(buffer);
    /* Quads of four bytes are read as one word; floats come first for their alignment. */
    const size_t bytes = 4 * 4 * n_blocks + n + 64;
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
        .q = (int8_t *)(floats + 4 * n_blocks),
    };
}

/* n values of row `row` from column `column` on. The buffer owns what the views show as const. */
static void quantize_part(const activations *a, size_t row, size_t column, const float *x, size_t n,
                          const kernel_set *kernels) {
    const size_t at = row * a->k + column, block = at / BLOCK_K;
    kernels->quantize(x, n, (int8_t *)(uintptr_t)a->q + at, (float *)(uintptr_t)a->d + block,
                      (float *)(uintptr_t)a->ds + block, (int32_t *)(uintptr_t)a->bias8 + block,
                      (int32_t *)(uintptr_t)a->bias4 + block);
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

/* Block `b` of a quantized group to out[BLOCK_K][ld]: column k of the block, all rows side by side. */
static void unpack_block(const matrix *m, const uint8_t *block, float *out, size_t ld) {
    const uint8_t *quads = block + (m->kind == PACK_Q4M ? 2 * SCALES_BYTES : SCALES_BYTES);
    float d[GROUP_ROWS], offset[GROUP_ROWS] = { 0 };
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        d[r] = load_half(block + 2 * r);
        if (m->kind == PACK_Q4M) offset[r] = load_half(block + SCALES_BYTES + 2 * r);
        if (m->kind == PACK_Q4) offset[r] = -8 * d[r];
    }
    for (size_t i = 0; i < BLOCK_K; i++, out += ld) {
        const uint8_t *q = quads + i / 4 % (m->kind == PACK_Q8 ? 8 : 4) * QUAD_BYTES + i % 4;
        const int shift = i < 16 ? 0 : 4;
        if (m->kind == PACK_Q8)
            for (size_t r = 0; r < GROUP_ROWS; r++) out[r] = d[r] * (float)(int8_t)q[4 * r];
        else
            for (size_t r = 0; r < GROUP_ROWS; r++) out[r] = d[r] * (float)(q[4 * r] >> shift & 15) + offset[r];
    }
}

/* A group to out[K][ld]: the columns of its rows. */
static void unpack_group(const matrix *m, size_t group, float *out, size_t ld) {
    const uint8_t *at = m->data + group * m->group_bytes;
    if (pack_is_quantized(m->kind)) {
        const size_t n_blocks = m->cols / BLOCK_K, bytes = m->group_bytes / n_blocks;
        for (size_t b = 0; b < n_blocks; b++) unpack_block(m, at + b * bytes, out + b * BLOCK_K * ld, ld);
        return;
    }
    for (size_t i = 0; i < m->cols * GROUP_ROWS; i++) {
        float *to = out + i / GROUP_ROWS * ld + i % GROUP_ROWS;
        uint16_t half = 0;
        if (m->kind == PACK_F32)
            memcpy(to, at + i * 4, 4);
        else
            memcpy(&half, at + i * 2, 2);
        if (m->kind != PACK_F32) *to = m->kind == PACK_F16 ? half_to_float(half) : bf16_to_float(half);
    }
}

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
    for (size_t g = 0; g < part.n_groups; g++) unpack_group(m, part.group + g, panel + g * GROUP_ROWS, rows);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)part.n_tokens, (int)rows, (int)m->cols, 1.0f, a->x,
                (int)a->ld_x, panel, (int)rows, 0.0f, part.job->out + row, (int)part.job->ld_out);
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
