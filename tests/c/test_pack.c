/* test_pack.c - matrices of every element type: packed, read back, multiplied, against dtype's dequantize.
 *
 * The bytes of the file are random, so every bit of every field counts; the layouts are not known here. Rows that read
 * back must be equal to the bit. Products are held against a sum in double of what the two sides say they are. */
#include "matmul.h"

#include "check.h"
#include "mathf.h"
#include "random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* Every type that the core multiplies. */
static int TYPES[64];
static size_t n_types;

static void types_get(void) {
    size_t n;
    const dtype_info *known = dtype_table(&n);
    for (size_t i = 0; i < n && n_types < PN_ARRAY_LEN(TYPES); i++)
        if (matrix_supports(known[i].id)) TYPES[n_types++] = known[i].id;
    CHECK(n_types >= 15);
}

static void *allocate(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!p) exit(2);
    return p;
}

/* A matrix as the file has it, and packed. */
typedef struct sample {
    const dtype_info *type;
    matrix m;
    uint8_t *file;
} sample;

/* Where the halves of a block are: their exponents decide whether its values are of everyday size. */
static size_t halves_of(int dtype, size_t at[2]) {
    static const struct {
        int dtype;
        size_t n, at[2];
    } halves[] = {
        { DTYPE_Q8_0, 1, { 0 } },   { DTYPE_Q4_0, 1, { 0 } },    { DTYPE_Q4_1, 2, { 0, 2 } },
        { DTYPE_Q5_0, 1, { 0 } },   { DTYPE_Q5_1, 2, { 0, 2 } }, { DTYPE_Q2_K, 2, { 80, 82 } },
        { DTYPE_Q3_K, 1, { 108 } }, { DTYPE_Q4_K, 2, { 0, 2 } }, { DTYPE_Q5_K, 2, { 0, 2 } },
        { DTYPE_Q6_K, 1, { 208 } }, { DTYPE_IQ4_NL, 1, { 0 } },  { DTYPE_IQ4_XS, 1, { 0 } },
        { DTYPE_F16, 1, { 0 } },
    };
    for (size_t i = 0; i < PN_ARRAY_LEN(halves); i++)
        if (halves[i].dtype == dtype) {
            memcpy(at, halves[i].at, sizeof halves[i].at);
            return halves[i].n;
        }
    return 0;
}

/* Random bytes; `ordinary`: with scales (or elements) around one. */
static void fill_file(int dtype, uint8_t *file, size_t n_blocks, size_t block_bytes, bool ordinary) {
    size_t at[2];
    for (size_t i = 0; i < n_blocks * block_bytes; i++) file[i] = (uint8_t)random_u32();
    if (!ordinary) return;
    const size_t n = halves_of(dtype, at);
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t i = 0; i < n; i++) {
            uint8_t *high = file + b * block_bytes + at[i] + 1;
            *high = (uint8_t)((*high & 0x83) | 0x38);
        }
    for (size_t b = 0; b < n_blocks && (dtype == DTYPE_F32 || dtype == DTYPE_BF16); b++) {
        uint8_t *high = file + (b + 1) * block_bytes - 1;
        *high = (uint8_t)((*high & 0x80) | 0x3f);
    }
}

static sample make_sample(int dtype, size_t rows, size_t cols, bool ordinary) {
    sample s = { .type = dtype_find(dtype) };
    CHECK(s.type && matrix_supports(dtype));
    CHECK(matrix_plan(dtype, rows, cols, &s.m) == 0);
    const size_t n_blocks = rows * cols / s.type->block_len;
    CHECK(matrix_row_bytes(&s.m) * rows == n_blocks * s.type->block_bytes);
    s.file = malloc(n_blocks * s.type->block_bytes); /* no byte more */
    s.m.data = allocate(matrix_bytes(&s.m));
    if (!s.file) exit(2);
    memset(s.m.data, 0xa5, matrix_bytes(&s.m));
    fill_file(dtype, s.file, n_blocks, s.type->block_bytes, ordinary);
    for (size_t g = 0; g < s.m.n_groups; g += 2) /* as threads do it: some groups at a time, in any order */
        matrix_pack(&s.m, s.file, g, size_min(2, s.m.n_groups - g));
    return s;
}

static void free_sample(sample *s) {
    free(s->file);
    free(s->m.data);
}

static void check_rows_read_back(int dtype, size_t rows, size_t cols) {
    sample s = make_sample(dtype, rows, cols, false);
    float *got = allocate(cols * sizeof *got), *want = allocate(cols * sizeof *want);
    size_t n_different = 0;
    for (size_t row = 0; row < rows; row++) {
        matrix_read_row(&s.m, row, got);
        s.type->dequantize(s.file + row * matrix_row_bytes(&s.m), want, cols);
        for (size_t i = 0; i < cols; i++)
            n_different += f32_bits(got[i]) != f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i]));
    }
    if (n_different) fprintf(stderr, "%s: %zu elements of %zu x %zu\n", s.type->name, n_different, rows, cols);
    CHECK(n_different == 0);
    free(got);
    free(want);
    free_sample(&s);
}

static void test_matrix_of_every_type_reads_back_as_dequantize_says(void) {
    static const size_t row_counts[] = { 1, 3, 15, 16, 17, 50 };
    for (size_t t = 0; t < n_types; t++)
        for (size_t i = 0; i < PN_ARRAY_LEN(row_counts); i++) {
            const size_t block = dtype_find(TYPES[t])->block_len;
            check_rows_read_back(TYPES[t], row_counts[i], block == 1 ? 33 : block);
            check_rows_read_back(TYPES[t], row_counts[i], 3 * size_max(block, 32));
        }
}

/* A run of rows that begins anywhere in the tensor is a matrix too. */
static void test_matrix_of_a_run_of_rows_reads_back_as_those_rows(void) {
    for (size_t t = 0; t < n_types; t++) {
        const size_t cols = 256, rows = 21, first = 5;
        sample whole = make_sample(TYPES[t], 40, cols, false);
        matrix part;
        float got[256], want[256];
        CHECK(matrix_plan(TYPES[t], rows, cols, &part) == 0);
        part.data = allocate(matrix_bytes(&part));
        matrix_pack(&part, whole.file + first * matrix_row_bytes(&whole.m), 0, part.n_groups);
        for (size_t row = 0; row < rows; row++) {
            matrix_read_row(&part, row, got);
            matrix_read_row(&whole.m, first + row, want);
            CHECK(memcmp(got, want, sizeof got) == 0);
        }
        free(part.data);
        free_sample(&whole);
    }
}

/* Resident bytes over the file's, of whole groups. */
static void test_matrix_of_every_type_stays_small(void) {
    for (size_t t = 0; t < n_types; t++) {
        matrix m;
        CHECK(matrix_plan(TYPES[t], 160, 1024, &m) == 0);
        CHECK((double)matrix_bytes(&m) <= 1.15 * 160 * (double)matrix_row_bytes(&m));
        CHECK(matrix_bytes(&m) >= 160 * matrix_row_bytes(&m)); /* nothing was rounded away */
    }
}

static void test_matrix_of_rows_that_are_not_whole_blocks_is_refused(void) {
    matrix m;
    for (size_t t = 0; t < n_types; t++)
        if (dtype_find(TYPES[t])->block_len > 1) CHECK(matrix_plan(TYPES[t], 4, 48, &m) != 0);
    CHECK(matrix_plan(DTYPE_Q4_K, 4, 32, &m) != 0);
    CHECK(matrix_plan(99, 4, 256, &m) != 0);
    CHECK(matrix_plan(DTYPE_Q4_K, SIZE_MAX / 256, 256 * 256, &m) != 0);
}

/* ---- products -------------------------------------------------------------------------------------------------- */

enum { T = 4 };

/* Activations of T tokens by the portable quantize; `extreme`: all at the ends of the range. */
static activations make_activations(const kernel_set *kernels, size_t k, bool extreme) {
    const size_t n = T * k, n_blocks = n / BLOCK_K;
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)random_u32() / 2147483648.0f - 1.0f;
        if (extreme) x[i] = i / k % 2 && random_u32() % 2 ? -3.0f : 3.0f;
    }
    activations a = { .x = x, .ld_x = k, .k = k };
    const quantized_row out = { allocate(n),
                                allocate(4 * n_blocks),
                                allocate(4 * n_blocks),
                                allocate(4 * n_blocks),
                                allocate(4 * n_blocks),
                                allocate(4 * n_blocks) };
    kernels->quantize(x, n, &out);
    a.q = out.q;
    a.d = out.d;
    a.ds = out.ds;
    a.bias8 = out.bias8;
    a.bias4 = out.bias4;
    a.sum16 = out.sum16;
    return a;
}

static void free_activations(const activations *a) {
    const void *parts[] = { a->x, a->q, a->d, a->ds, a->bias8, a->bias4, a->sum16 };
    for (size_t i = 0; i < PN_ARRAY_LEN(parts); i++) free((void *)(uintptr_t)parts[i]);
}

/* Every row times token t, in double, of the dequantized sides. */
static void check_token(const sample *s, const activations *a, size_t t, const float *out) {
    const size_t k = s->m.cols, n_blocks = k / BLOCK_K;
    const bool quantized = pack_is_quantized(s->m.kind) && a->q;
    float *row = allocate(k * sizeof *row);
    for (size_t r = 0; r < s->m.rows; r++) {
        double dot = 0, magnitude = 0;
        s->type->dequantize(s->file + r * matrix_row_bytes(&s->m), row, k);
        for (size_t i = 0; i < k; i++) {
            const double x =
                quantized ? (double)a->d[t * n_blocks + i / BLOCK_K] * a->q[t * k + i] : (double)a->x[t * k + i];
            dot += (double)row[i] * x;
            magnitude += fabs((double)row[i] * x);
        }
        /* A rounding or three per step, of what was summed up to there; those of a row's own values. A weight of Q2_K,
         * Q4_K and Q5_K is a difference whose parts may be larger than it. */
        const double steps = 4.0 * (double)(quantized ? n_blocks + 4 : k + 4);
        CHECK(fabs((double)out[r] - dot) <= steps * 0x1p-24 * (16 * magnitude));
    }
    free(row);
}

static void check_product(const kernel_set *kernels, int dtype, size_t rows, size_t k, bool extreme) {
    sample s = make_sample(dtype, rows, k, true);
    const activations a = make_activations(kernels, k, extreme);
    const size_t ld_out = s.m.n_groups * GROUP_ROWS;
    float *out = allocate(T * ld_out * sizeof *out);
    kernels->matmul[s.m.kind](s.m.data, s.m.n_groups, &a, 0, T, out, ld_out);
    for (size_t t = 0; t < T; t++) {
        check_token(&s, &a, t, out + t * ld_out);
        for (size_t r = rows; r < ld_out; r++) CHECK(out[t * ld_out + r] == 0);
    }
    free(out);
    free_activations(&a);
    free_sample(&s);
}

static void test_portable_product_of_every_type_is_that_of_dequantized_rows(void) {
    kernel_set kernels;
    CHECK(kernels_pick("portable", &kernels) == 0);
    for (size_t t = 0; t < n_types; t++)
        for (size_t k = 256; k <= 1024; k += 256) {
            check_product(&kernels, TYPES[t], 16 + k / 256, k, false);
            check_product(&kernels, TYPES[t], 16 + k / 256, k, true);
        }
}

/* The whole way: threads, chunks, the best kernels, and BLAS where the build has it (which takes x as it is). */
static void check_run(int dtype, threads *pool, bool use_blas) {
    enum { TOKENS = BLAS_MIN_TOKENS + 1, K = 512, ROWS = 83, LD = 96 };
    kernel_set kernels;
    sample s = make_sample(dtype, ROWS, K, true);
    act_buffer buffer = { 0 };
    float *x = allocate(TOKENS * K * sizeof *x), *out = allocate(TOKENS * LD * sizeof *out);
    CHECK(kernels_pick(NULL, &kernels) == 0 && act_reserve(&buffer, TOKENS, K) == 0);
    for (size_t i = 0; i < TOKENS * K; i++) x[i] = (float)random_u32() / 2147483648.0f - 1.0f;
    act_attach(&buffer, x, K, TOKENS, K, 1);
    for (size_t t = 0; t < TOKENS && pack_is_quantized(s.m.kind); t++) act_quantize(&buffer, t, &kernels);
    const matmul_job job = { &s.m, out, LD };
    matmul_run(&job, 1, &buffer, TOKENS, &kernels, pool, use_blas);
    const activations plain = { .x = x, .ld_x = K, .k = K };
    const bool blas = matmul_uses_blas(TOKENS, use_blas);
    for (size_t t = 0; t < TOKENS; t++) check_token(&s, blas ? &plain : &buffer.a, t, out + t * LD);
    act_free(&buffer);
    free(x);
    free(out);
    free_sample(&s);
}

static void test_matmul_run_of_every_type_is_the_product_of_dequantized_rows(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    for (size_t t = 0; t < n_types; t++) {
        check_run(TYPES[t], pool, false);
        check_run(TYPES[t], pool, true);
    }
    threads_free(pool);
}

int main(void) {
    types_get();
    RUN(test_matrix_of_every_type_reads_back_as_dequantize_says);
    RUN(test_matrix_of_a_run_of_rows_reads_back_as_those_rows);
    RUN(test_matrix_of_every_type_stays_small);
    RUN(test_matrix_of_rows_that_are_not_whole_blocks_is_refused);
    RUN(test_matmul_run_of_every_type_is_the_product_of_dequantized_rows);
    RUN(test_portable_product_of_every_type_is_that_of_dequantized_rows);
    return check_report();
}
