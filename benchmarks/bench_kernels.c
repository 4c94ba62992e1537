/* bench_kernels.c - the inner loops alone: bytes per second of one token, multiply-adds per second of many.
 *
 *     make bench-kernels                      every instruction set that runs here
 *     build/c/bench_kernels avx2 Q4K          one of them, and one kind of weights
 *     build/c/bench_kernels pack              packing, and reading rows back
 *
 * One thread. Weights of `MEMORY` bytes for one token (read from memory, as decoding does), of one matrix for a prompt.
 * Each figure is the median of RUNS. */
#include "kernels/kernels.h"
#include "matmul_pack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { RUNS = 9, TOKENS = 512, MEMORY = 160 << 20 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* what others take of the core does not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void *filled(size_t bytes, int value) {
    void *p = aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) >> 21 << 21);
    if (!p) exit(2);
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, value, bytes);
    return p;
}

/* The median seconds of `times` calls in a row. */
#define MEDIAN_OF(times, call)                                                                                         \
    __extension__({                                                                                                    \
        double taken_[RUNS];                                                                                           \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                                      \
            const double start_ = now();                                                                               \
            for (int repeat_ = 0; repeat_ < (times); repeat_++) call;                                                  \
            taken_[run_] = now() - start_;                                                                             \
        }                                                                                                              \
        qsort(taken_, RUNS, sizeof *taken_, by_value);                                                                 \
        taken_[RUNS / 2];                                                                                              \
    })

static const struct {
    pack_kind kind;
    const char *name;
} KINDS[] = {
    { PACK_Q8, "Q8" },   { PACK_Q4, "Q4" },     { PACK_Q4M, "Q4M" }, { PACK_Q5, "Q5" },   { PACK_Q5M, "Q5M" },
    { PACK_Q2K, "Q2K" }, { PACK_Q3K, "Q3K" },   { PACK_Q4K, "Q4K" }, { PACK_Q5K, "Q5K" }, { PACK_Q6K, "Q6K" },
    { PACK_IQ4, "IQ4" }, { PACK_IQ4K, "IQ4K" }, { PACK_F16, "F16" }, { PACK_F32, "F32" },
};

/* Activations of TOKENS tokens with K = k, from a smooth row. */
static activations make_activations(const kernel_set *set, size_t k) {
    float *x = filled(TOKENS * k * sizeof *x, 0);
    int8_t *q = filled(TOKENS * k, 0);
    const size_t n_blocks = k / BLOCK_K, n = TOKENS * n_blocks;
    float *d = filled(4 * n, 0), *ds = filled(4 * n, 0);
    int32_t *bias8 = filled(4 * n, 0), *bias4 = filled(4 * n, 0);
    int16_t *sum16 = filled(4 * n, 0);
    for (size_t i = 0; i < TOKENS * k; i++) x[i] = sinf((float)i);
    for (size_t t = 0, at = 0; t < TOKENS; t++, at += n_blocks)
        set->quantize(x + t * k, k,
                      &(quantized_row){ q + t * k, d + at, ds + at, bias8 + at, bias4 + at, sum16 + 2 * at });
    return (activations){
        .x = x, .ld_x = k, .q = q, .d = d, .ds = ds, .bias8 = bias8, .bias4 = bias4, .sum16 = sum16, .k = k
    };
}

static void free_activations(const activations *a) {
    const void *parts[] = { a->x, a->q, a->d, a->ds, a->bias8, a->bias4, a->sum16 };
    for (size_t i = 0; i < PN_ARRAY_LEN(parts); i++) free((void *)(uintptr_t)parts[i]);
}

/* In chunks as matmul.c hands them out. */
static void product(const kernel_set *set, pack_kind kind, const uint8_t *w, size_t n_groups, size_t group_bytes,
                    const activations *a, size_t n_t, float *out) {
    const size_t chunk = size_max(1, 48 * 1024 / group_bytes), ld = n_groups * GROUP_ROWS;
    for (size_t g = 0; g < n_groups; g += chunk)
        set->matmul[kind](w + g * group_bytes, size_min(chunk, n_groups - g), a, 0, n_t,
                          n_t == 1 ? out : out + g * GROUP_ROWS, n_t == 1 ? 0 : ld);
}

static void bench_matmul(const kernel_set *set, pack_kind kind, const char *name, size_t k) {
    static const size_t token_counts[] = { 2, 4, 8, TOKENS };
    size_t group_bytes = 0;
    pack_group_bytes(kind, k, &group_bytes);
    const size_t many = MEMORY / group_bytes, few = 576 / GROUP_ROWS;
    uint8_t *w = filled(many * group_bytes, 0x11);
    float *out = filled(TOKENS * few * GROUP_ROWS * sizeof *out + 65536, 0);
    const activations a = make_activations(set, k);
    const double one = MEDIAN_OF(1, product(set, kind, w, many, group_bytes, &a, 1, out));
    printf("%-9s %-4s K %4zu  1 token %5.1f GB/s ", set->isa, name, k, (double)(many * group_bytes) / one * 1e-9);
    for (size_t i = 0; i < PN_ARRAY_LEN(token_counts); i++) {
        const size_t n_t = token_counts[i];
        const int times = (int)(1024 / n_t);
        const double seconds = MEDIAN_OF(times, product(set, kind, w, few, group_bytes, &a, n_t, out));
        const double macs = (double)(few * GROUP_ROWS * k * n_t) * times;
        printf(" %zu: %5.1f", n_t, macs / seconds * 1e-9);
    }
    printf(" GMAC/s\n");
    free(w);
    free(out);
    free_activations(&a);
}

static void bench_attention(const kernel_set *set, size_t n_q, size_t head_size) {
    const size_t floats = size_max(n_q, 1) * size_max(KV_BLOCK, head_size);
    float *q = filled(floats * 4, 0), *s = filled(floats * 4, 0), *out = filled(floats * 4, 0);
    uint16_t *k = filled(KV_BLOCK * head_size * 2, 0x11), *v = filled(KV_BLOCK * head_size * 2, 0x11);
    size_t n_keys[24];
    float max[24], sum[24];
    for (size_t i = 0; i < n_q; i++) n_keys[i] = KV_BLOCK;
    const double macs = (double)(n_q * KV_BLOCK * head_size) * 200, exps = (double)(n_q * KV_BLOCK) * 200;
    const double scores = MEDIAN_OF(200, set->attend_scores(q, n_q, k, KV_BLOCK, head_size, 0.125f, s, v));
    const double values = MEDIAN_OF(200, set->attend_values(s, n_q, v, n_keys, head_size, out, k));
    const double softmax = MEDIAN_OF(200, set->softmax_block(s, n_q, n_keys, max, sum));
    printf("%-9s attention, %2zu queries, head %zu: scores %5.1f values %5.1f GMAC/s, softmax %.2f Gexp/s\n", set->isa,
           n_q, head_size, macs / scores * 1e-9, macs / values * 1e-9, exps / softmax * 1e-9);
    void *parts[] = { q, s, out, k, v };
    for (size_t i = 0; i < PN_ARRAY_LEN(parts); i++) free(parts[i]);
}

static void bench_rows(const kernel_set *set, size_t n) {
    float *x = filled(4 * n, 0), *y = filled(4 * n, 0), *d = filled(4 * n, 0);
    int8_t *q = filled(n, 0);
    for (size_t i = 0; i < n; i++) x[i] = y[i] = sinf((float)i);
    const double norm = MEDIAN_OF(1000, set->rms_norm(x, y, d, n, 1e-5f));
    const double swiglu = MEDIAN_OF(1000, set->swiglu(x, y, d, n));
    const quantized_row row = {
        q, d, d + n / 32, (int32_t *)(d + n / 16), (int32_t *)(d + n / 8), (int16_t *)(d + n / 4)
    };
    const double quantize = MEDIAN_OF(1000, set->quantize(x, n, &row));
    printf("%-9s rows of %zu: rms_norm %.2f swiglu %.2f quantize %.2f ns per element\n", set->isa, n,
           norm * 1e6 / (double)n, swiglu * 1e6 / (double)n, quantize * 1e6 / (double)n);
    free(x);
    free(y);
    free(d);
    free(q);
}

/* Every type that can be multiplied: how fast a matrix of some megabytes is packed, and its rows are read back. */
static void bench_pack(void) {
    const size_t rows = 1024, cols = 4096;
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    for (size_t i = 0; i < n_types; i++) {
        matrix m;
        if (!matrix_supports(types[i].id) || matrix_plan(types[i].id, rows, cols, &m)) continue;
        const size_t bytes = rows * matrix_row_bytes(&m);
        uint8_t *file = filled(bytes, 0x11);
        float *row = filled(cols * sizeof *row, 0);
        m.data = filled(matrix_bytes(&m), 0);
        const double pack = MEDIAN_OF(1, matrix_pack(&m, file, 0, m.n_groups));
        const double read = MEDIAN_OF(1, for (size_t r = 0; r < rows; r++) matrix_read_row(&m, r, row));
        printf("%-6s pack %6.0f MB/s of the file, resident %.3f of it; read %4.2f ns per element\n", types[i].name,
               (double)bytes / pack * 1e-6, (double)matrix_bytes(&m) / (double)bytes,
               read * 1e9 / (double)(rows * cols));
        free(file);
        free(row);
        free(m.data);
    }
}

int main(int argc, char **argv) {
    char names[96];
    if (argc > 1 && strcmp(argv[1], "pack") == 0) {
        bench_pack();
        return 0;
    }
    snprintf(names, sizeof names, "%s", argc > 1 ? argv[1] : kernels_available());
    for (char *rest = names, *name; (name = strtok_r(rest, " ", &rest)) != NULL;) {
        kernel_set set;
        if (kernels_pick(name, &set)) {
            fprintf(stderr, "%s cannot run here; available: %s\n", name, kernels_available());
            return 1;
        }
        for (size_t i = 0; i < PN_ARRAY_LEN(KINDS); i++)
            for (size_t k = 768; k <= 1536 && (argc < 3 || strcmp(argv[2], KINDS[i].name) == 0); k += 768)
                bench_matmul(&set, KINDS[i].kind, KINDS[i].name, k);
        if (argc > 2) continue;
        bench_attention(&set, 24, 64);
        bench_attention(&set, 3, 64);
        bench_rows(&set, 576);
    }
    return 0;
}
