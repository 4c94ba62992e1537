/* test_kernels.c - every usable kernel set against the portable one, bit by bit, and the portable one against a naive
 * computation in double.
 *
 * Inputs end at a guard page, so that one byte read or written behind them ends the program. Bits are compared; where
 * both results are NaN they are equal (which NaN comes out of two is nobody's promise). */
#include "kernels/kernels.h"

#include "check.h"
#include "dtype.h"
#include "mathf.h"
#include "random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory that ends at a guard page ----------------------------------------------------------------------- */

enum { GUARDED_MAX = 64 };

typedef struct mapping {
    void *at;
    size_t bytes;
} mapping;

static mapping guarded[GUARDED_MAX];
static size_t n_guarded;

/* `bytes` bytes whose last one is the last of a page; the page behind cannot be touched. */
static void *guarded_alloc(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    uint8_t *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || n_guarded == GUARDED_MAX || mprotect(at + whole, page, PROT_NONE)) {
        fprintf(stderr, "no guarded memory\n");
        exit(2);
    }
    guarded[n_guarded++] = (mapping){ at, whole + page };
    return at + whole - bytes;
}

static void guarded_free_all(void) {
    while (n_guarded) {
        n_guarded--;
        munmap(guarded[n_guarded].at, guarded[n_guarded].bytes);
    }
}

/* ---- random inputs ------------------------------------------------------------------------------------------ */

/* About normal, deviation 1. */
static float random_normal(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_u32() / 4294967296.0f - 0.5f;
    return sum * 1.7f;
}

typedef enum style { ORDINARY, HUGE, TINY, ZERO, WITH_NAN, WITH_INFINITY, ANY_BITS, STYLES } style;

static float random_float(style s) {
    switch (s) {
    case HUGE:
        return random_normal() * 1e38f;
    case TINY:
        return random_normal() * 1e-40f;
    case ZERO:
        return random_u32() & 1 ? 0.0f : -0.0f;
    case WITH_NAN:
        return random_u32() % 16 ? random_normal() : NAN;
    case WITH_INFINITY:
        return random_u32() % 16 ? random_normal() : random_u32() & 1 ? INFINITY : -INFINITY;
    case ANY_BITS:
        return f32_from_bits(random_u32());
    case ORDINARY:
    case STYLES:
        break;
    }
    return random_normal();
}

static float *random_floats(size_t n, style s) {
    float *x = guarded_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(s);
    return x;
}

/* Sign, five bits of exponent, ten of mantissa. */
static uint16_t random_half(style s) {
    const uint32_t u = random_u32();
    switch (s) {
    case HUGE:
        return (uint16_t)(0x7800u | (u & 0x83ffu));
    case TINY:
        return (uint16_t)(u & 0x83ffu); /* subnormals */
    case ZERO:
        return (uint16_t)(u & 0x8000u);
    case WITH_NAN:
        return (uint16_t)(u % 16 ? 0x3000u + (u >> 16) % 0xc00u : 0x7e00u);
    case WITH_INFINITY:
        return (uint16_t)(u % 16 ? 0x3000u + (u >> 16) % 0xc00u : 0x7c00u | (u >> 16 & 0x8000u));
    case ANY_BITS:
        return (uint16_t)u;
    case ORDINARY:
    case STYLES:
        break;
    }
    return (uint16_t)((0x3000u + (u >> 16) % 0xc00u) | (u & 0x8000u));
}

static uint16_t *random_halves(size_t n, style s) {
    uint16_t *x = guarded_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_half(s);
    return x;
}

/* The value of a half, from its definition. */
static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) return mantissa ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

/* ---- comparing ---------------------------------------------------------------------------------------------- */

static bool same_floats(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

#define UNTOUCHED 12345.0f

static float *untouched_floats(size_t n) {
    float *x = guarded_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = UNTOUCHED;
    return x;
}

/* Every set that runs here, the portable one too. */
static size_t usable_sets(kernel_set sets[8]) {
    char names[128];
    size_t n = 0;
    snprintf(names, sizeof names, "%s", kernels_available());
    for (char *rest = names, *name; (name = strtok_r(rest, " ", &rest)) != NULL && n < 8;)
        if (kernels_pick(name, &sets[n]) == 0) n++;
    return n;
}

/* ---- the matrix product ------------------------------------------------------------------------------------- */

typedef struct product {
    pack_kind kind;
    size_t k, n_groups, t0, n_t, ld_out;
    style style;
} product;

static size_t element_bytes(pack_kind kind) {
    return kind == PACK_F32 ? 4 : 2;
}

static void put_half(uint8_t *at, uint16_t h) {
    memcpy(at, &h, sizeof h);
}

/* Bytes at the ends of their range more often than not by chance: `fill` 1 all bits, 2 none, 3 the lowest of int8. */
static uint8_t random_byte(int fill) {
    static const uint8_t ends[] = { 0xff, 0xff, 0x00, 0x80 };
    return fill == 0 && random_u32() % 8 ? (uint8_t)random_u32() : ends[fill];
}

/* Halves d, and m or dmin; scales; codes. Q8 keeps its -128 for a test of its own. */
static void fill_super_block(const product *p, uint8_t *at, int fill) {
    const pack_layout layout = pack_layout_of(p->kind);
    const size_t halves =
        p->kind == PACK_Q4M || p->kind == PACK_Q5M || p->kind == PACK_Q2K || p->kind == PACK_Q4K || p->kind == PACK_Q5K
            ? 32
            : 16;
    for (size_t i = 0; i < halves; i++) put_half(at + 2 * i, random_half(p->style));
    for (size_t i = 2 * halves; i < layout.head_bytes; i++) at[i] = random_byte((int)(random_u32() % 4) & fill);
    for (size_t i = layout.head_bytes; i < layout.head_bytes + layout.n_blocks * layout.block_bytes; i++) {
        at[i] = random_byte(fill);
        if (p->kind == PACK_Q8 && at[i] == 0x80) at[i] = 0x7f;
    }
}

static uint8_t *random_weights(const product *p) {
    size_t group_bytes = 0;
    CHECK(pack_group_bytes(p->kind, p->k, &group_bytes));
    uint8_t *w = guarded_alloc(group_bytes * p->n_groups);
    if (pack_is_quantized(p->kind)) {
        const pack_layout layout = pack_layout_of(p->kind);
        const size_t bytes = layout.head_bytes + layout.n_blocks * layout.block_bytes;
        const int fill = (int)(random_u32() % 4);
        for (size_t at = 0; at < group_bytes * p->n_groups; at += bytes) fill_super_block(p, w + at, fill);
        return w;
    }
    for (size_t i = 0; i < p->n_groups * p->k * GROUP_ROWS; i++) {
        const float f = random_float(p->style);
        const uint16_t h = p->kind == PACK_F16 ? random_half(p->style) : (uint16_t)(f32_bits(f) >> 16);
        if (p->kind == PACK_F32)
            memcpy(w + 4 * i, &f, 4);
        else
            put_half(w + 2 * i, h);
    }
    return w;
}

/* Room for k values in 8 bits; every array ends at a guard page. */
static quantized_row guarded_row(size_t k) {
    const size_t n_blocks = k / BLOCK_K;
    return (quantized_row){ guarded_alloc(k),
                            guarded_alloc(4 * n_blocks),
                            guarded_alloc(4 * n_blocks),
                            guarded_alloc(4 * n_blocks),
                            guarded_alloc(4 * n_blocks),
                            guarded_alloc(4 * n_blocks) };
}

/* Activations of t0 + n_t tokens; every array ends at a guard page. */
static activations random_activations(const product *p, const kernel_set *kernels) {
    const size_t n_t = p->t0 + p->n_t, ld_x = p->k + 3, n_blocks = p->k / BLOCK_K;
    float *x = guarded_alloc(((n_t - 1) * ld_x + p->k) * sizeof *x);
    for (size_t i = 0; i < (n_t - 1) * ld_x + p->k; i++) x[i] = random_float(p->style);
    activations a = { .x = x, .ld_x = ld_x, .k = p->k };
    if (!pack_is_quantized(p->kind)) return a;
    const quantized_row all = guarded_row(n_t * p->k);
    for (size_t t = 0; t < n_t; t++) {
        /* One token of extremes: all products at the end of the range. */
        for (size_t i = 0; t == 0 && p->style == ORDINARY && i < p->k; i++) x[i] = random_u32() % 8 ? 3.0f : -3.0f;
        const quantized_row row = { all.q + t * p->k,         all.d + t * n_blocks,     all.ds + t * n_blocks,
                                    all.bias8 + t * n_blocks, all.bias4 + t * n_blocks, all.sum16 + t * n_blocks * 2 };
        kernels->quantize(x + t * ld_x, p->k, &row);
    }
    a.q = all.q;
    a.d = all.d;
    a.ds = all.ds;
    a.bias8 = all.bias8;
    a.bias4 = all.bias4;
    a.sum16 = all.sum16;
    return a;
}

/* Nothing outside of the asked tokens and rows was written. */
static bool rest_is_untouched(const product *p, const float *out) {
    for (size_t t = 0; t < p->t0 + p->n_t; t++)
        for (size_t c = t < p->t0 ? 0 : p->n_groups * GROUP_ROWS; c < p->ld_out; c++)
            if (f32_bits(out[t * p->ld_out + c]) != f32_bits(UNTOUCHED)) return false;
    return true;
}

static void check_product_of_all_sets(const product *p) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets), n_out = (p->t0 + p->n_t) * p->ld_out;
    const uint8_t *w = random_weights(p);
    const activations a = random_activations(p, &kernels_portable);
    float *want = untouched_floats(n_out);
    kernels_portable.matmul[p->kind](w, p->n_groups, &a, p->t0, p->n_t, want, p->ld_out);
    CHECK(rest_is_untouched(p, want));
    for (size_t i = 0; i < n_sets; i++) {
        float *got = untouched_floats(n_out);
        sets[i].matmul[p->kind](w, p->n_groups, &a, p->t0, p->n_t, got, p->ld_out);
        CHECK(same_floats(got, want, n_out));
    }
    guarded_free_all();
}

/* Numbers of tokens that meet every width of tile, and every rest. */
static const size_t TOKEN_COUNTS[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 27 };

static void check_products_of_kind(pack_kind kind, const size_t *ks, size_t n_ks, size_t max_groups) {
    for (size_t i = 0; i < n_ks; i++)
        for (size_t n_groups = 1; n_groups <= max_groups; n_groups += n_groups < 5 ? 1 : 4)
            for (size_t n = 0; n < PN_ARRAY_LEN(TOKEN_COUNTS); n++) {
                const size_t n_t = TOKEN_COUNTS[n];
                const size_t t0 = (i + n_t) % 3, ld_out = n_groups * GROUP_ROWS + n_t % 2 * 8;
                const product p = { kind, ks[i], n_groups, t0, n_t, ld_out, (style)((n_t + n_groups + i) % STYLES) };
                const product plain = { kind, ks[i], n_groups, t0, n_t, ld_out, ORDINARY };
                check_product_of_all_sets(&p);
                check_product_of_all_sets(&plain);
            }
}

static void test_matmul_of_quantized_kinds_on_every_set_equals_portable(void) {
    static const size_t small[] = { 32, 64, 96, 160, 256 }, large[] = { 576, 1536, 2048 };
    static const size_t small_super[] = { 256, 512 }, large_super[] = { 1792 };
    for (int kind = PACK_Q8; kind < PACK_KINDS; kind++) {
        if (pack_layout_of((pack_kind)kind).n_blocks > 1) {
            check_products_of_kind((pack_kind)kind, small_super, PN_ARRAY_LEN(small_super), 9);
            check_products_of_kind((pack_kind)kind, large_super, PN_ARRAY_LEN(large_super), 2);
            continue;
        }
        check_products_of_kind((pack_kind)kind, small, PN_ARRAY_LEN(small), 9);
        check_products_of_kind((pack_kind)kind, large, PN_ARRAY_LEN(large), 2);
    }
}

static void test_matmul_of_float_kinds_on_every_set_equals_portable(void) {
    static const size_t small[] = { 1, 7, 32, 33, 100 }, large[] = { 576, 2048 };
    for (int kind = PACK_F32; kind < PACK_Q8; kind++) {
        check_products_of_kind((pack_kind)kind, small, PN_ARRAY_LEN(small), 9);
        check_products_of_kind((pack_kind)kind, large, PN_ARRAY_LEN(large), 2);
    }
}

/* Element (row r, column k) of a group, read by the layout that kernels.h describes. */
static double weight_value(const product *p, const uint8_t *group, size_t r, size_t k) {
    const size_t in_block = k % BLOCK_K, quad = in_block / 4, j = in_block % 4;
    uint16_t h = 0, m = 0;
    float f;
    if (p->kind == PACK_F32) {
        memcpy(&f, group + (k * 16 + r) * 4, 4);
        return (double)f;
    }
    if (!pack_is_quantized(p->kind)) {
        memcpy(&h, group + (k * 16 + r) * element_bytes(p->kind), 2);
        return p->kind == PACK_F16 ? half_value(h) : (double)f32_from_bits((uint32_t)h << 16);
    }
    const bool four = p->kind == PACK_Q4 || p->kind == PACK_Q4M, offset = p->kind == PACK_Q4M;
    const uint8_t *block = group + k / BLOCK_K * (size_t)(offset ? 320 : four ? 288 : 544);
    memcpy(&h, block + 2 * r, 2);
    if (offset) memcpy(&m, block + 32 + 2 * r, 2);
    const uint8_t *quants = block + (offset ? 64 : 32);
    if (!four) return half_value(h) * (int8_t)quants[(quad * 16 + r) * 4 + j];
    const int nibble = quants[(quad % 4 * 16 + r) * 4 + j] >> (quad < 4 ? 0 : 4) & 15;
    return half_value(h) * (offset ? nibble : nibble - 8) + half_value(m);
}

/* The product of one row and token in double, and the sum of the magnitudes of its terms. */
static double naive_dot(const product *p, const uint8_t *group, size_t r, const activations *a, size_t t,
                        double *magnitude) {
    double dot = 0;
    *magnitude = 0;
    for (size_t k = 0; k < p->k; k++) {
        const size_t block = t * (p->k / BLOCK_K) + k / BLOCK_K;
        const double x =
            pack_is_quantized(p->kind) ? (double)a->d[block] * a->q[t * p->k + k] : (double)a->x[t * a->ld_x + k];
        const double term = weight_value(p, group, r, k) * x;
        dot += term;
        *magnitude += fabs(term);
    }
    return dot;
}

static void check_portable_product(pack_kind kind, size_t k) {
    const product p = { kind, k, 3, 1, 4, 48, ORDINARY };
    const uint8_t *w = random_weights(&p);
    const activations a = random_activations(&p, &kernels_portable);
    float *out = untouched_floats(5 * 48);
    size_t group_bytes = 0;
    pack_group_bytes(kind, k, &group_bytes);
    kernels_portable.matmul[kind](w, p.n_groups, &a, p.t0, p.n_t, out, p.ld_out);
    for (size_t t = 1; t < 5; t++)
        for (size_t row = 0; row < 48; row++) {
            double magnitude;
            const double want = naive_dot(&p, w + row / 16 * group_bytes, row % 16, &a, t, &magnitude);
            /* A rounding or three per step, of what was summed up to there. */
            const double steps = 4.0 * (double)(pack_is_quantized(kind) ? k / BLOCK_K + 4 : k + 4);
            CHECK(fabs((double)out[t * 48 + row] - want) <= steps * 0x1p-24 * (4 * magnitude));
        }
    guarded_free_all();
}

/* The kinds behind Q4M are held against the file's own types in test_pack.c. */
static void test_portable_matmul_of_older_kinds_is_the_naive_product(void) {
    static const size_t ks[] = { 32, 64, 320, 2048 };
    for (int kind = 0; kind <= PACK_Q4M; kind++)
        for (size_t i = 0; i < PN_ARRAY_LEN(ks); i++) check_portable_product((pack_kind)kind, ks[i]);
}

/* All weights -128, all activations -127 or 127: the sum of a block is known. */
static void test_matmul_of_weights_of_minus_128_on_every_set_is_exact(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (int sign = -1; sign <= 1; sign += 2) {
        uint8_t *w = guarded_alloc(Q8_BLOCK_BYTES);
        int8_t *q = guarded_alloc(BLOCK_K);
        float d = 1, ds = (float)(sign * 32 * 127), out[16];
        int32_t bias8 = -128 * sign * 32 * 127, bias4 = -8 * sign * 32 * 127;
        for (int r = 0; r < 16; r++) put_half(w + 2 * r, 0x3c00);
        memset(w + 32, 0x80, 512);
        memset(q, sign * 127, BLOCK_K);
        const activations a = { .q = q, .d = &d, .ds = &ds, .bias8 = &bias8, .bias4 = &bias4, .k = BLOCK_K };
        for (size_t i = 0; i < n_sets; i++) {
            sets[i].matmul[PACK_Q8](w, 1, &a, 0, 1, out, 16);
            for (int r = 0; r < 16; r++) CHECK(out[r] == (float)(-128 * sign * 127 * 32));
        }
        guarded_free_all();
    }
}

/* Blocks of nothing but the ends of the ranges: codes and scales of one byte, one block of activations at +-127. */
static const struct {
    pack_kind kind;
    uint8_t codes, scales;
    int weight, scale, min; /* what these bytes mean; min is subtracted */
} ENDS[] = {
    { PACK_Q5, 0x00, 0, -16, 1, 0 },        { PACK_Q5, 0xff, 0, 15, 1, 0 },
    { PACK_Q5M, 0xff, 0, 31, 1, -1 },       { PACK_IQ4, 0x00, 0, -127, 1, 0 },
    { PACK_IQ4, 0xff, 0, 113, 1, 0 },       { PACK_IQ4K, 0x00, 0x80, -127, -128, 0 },
    { PACK_Q2K, 0xff, 0xff, 3, 15, 15 },    { PACK_Q2K, 0x00, 0xf0, 0, 0, 15 },
    { PACK_Q3K, 0x00, 0x80, -4, -128, 0 },  { PACK_Q3K, 0xff, 0x80, 3, -128, 0 },
    { PACK_Q4K, 0xff, 0xff, 15, 255, 255 }, { PACK_Q4K, 0x00, 63, 0, 63, 63 },
    { PACK_Q5K, 0xff, 0xff, 31, 255, 255 }, { PACK_Q6K, 0x00, 0x80, -32, -128, 0 },
    { PACK_Q6K, 0x00, 0x7f, -32, 127, 0 },  { PACK_Q6K, 0xff, 0x80, 31, -128, 0 },
};

static void check_ends(size_t i, const kernel_set *set, int q_value) {
    const pack_layout layout = pack_layout_of(ENDS[i].kind);
    const size_t k = layout.n_blocks * BLOCK_K, bytes = layout.head_bytes + layout.n_blocks * layout.block_bytes;
    const quantized_row row = guarded_row(k);
    uint8_t *w = guarded_alloc(bytes);
    float out[GROUP_ROWS];
    memset(w, ENDS[i].scales, layout.head_bytes);
    memset(w + layout.head_bytes, ENDS[i].codes, bytes - layout.head_bytes);
    for (size_t r = 0; r < GROUP_ROWS; r++) put_half(w + 2 * r, 0x3c00); /* d and, where there is one, m or dmin: 1 */
    for (size_t r = 0; ENDS[i].min && r < GROUP_ROWS; r++) put_half(w + 2 * (GROUP_ROWS + r), 0x3c00);
    for (size_t b = 0; b < layout.n_blocks; b++) {
        const int q = b == 0 ? q_value : 0, sum = 32 * q;
        memset(row.q + b * BLOCK_K, q, BLOCK_K);
        row.d[b] = 1;
        row.ds[b] = (float)sum;
        row.bias8[b] = -128 * sum;
        row.bias4[b] = -8 * sum;
        row.sum16[2 * b] = row.sum16[2 * b + 1] = (int16_t)(sum / 2);
    }
    const activations a = {
        .q = row.q, .d = row.d, .ds = row.ds, .bias8 = row.bias8, .bias4 = row.bias4, .sum16 = row.sum16, .k = k
    };
    const double want = 32.0 * q_value * ENDS[i].weight * ENDS[i].scale - 32.0 * q_value * ENDS[i].min;
    set->matmul[ENDS[i].kind](w, 1, &a, 0, 1, out, GROUP_ROWS);
    for (int r = 0; r < GROUP_ROWS; r++) CHECK(out[r] == (float)want);
    guarded_free_all();
}

static void test_matmul_of_the_ends_of_all_ranges_on_every_set_is_exact(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t i = 0; i < PN_ARRAY_LEN(ENDS); i++)
        for (size_t set = 0; set < n_sets; set++)
            for (int q = -127; q <= 127; q += 254) check_ends(i, &sets[set], q);
}

/* ---- activations -------------------------------------------------------------------------------------------- */

static quantized_row quantize_with(const kernel_set *kernels, const float *x, size_t k) {
    const quantized_row out = guarded_row(k);
    kernels->quantize(x, k, &out);
    return out;
}

static void test_quantize_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t k = 32; k <= 2048; k += k < 256 ? 32 : 448)
        for (int s = 0; s < STYLES; s++)
            for (size_t i = 0; i < n_sets; i++) {
                const float *x = random_floats(k, (style)s);
                const quantized_row want = quantize_with(&kernels_portable, x, k), got = quantize_with(&sets[i], x, k);
                CHECK(memcmp(got.q, want.q, k) == 0);
                CHECK(memcmp(got.bias8, want.bias8, k / BLOCK_K * 4) == 0);
                CHECK(memcmp(got.bias4, want.bias4, k / BLOCK_K * 4) == 0);
                CHECK(memcmp(got.sum16, want.sum16, k / BLOCK_K * 4) == 0);
                CHECK(same_floats(got.d, want.d, k / BLOCK_K));
                CHECK(same_floats(got.ds, want.ds, k / BLOCK_K));
                guarded_free_all();
            }
}

static void test_quantize_rest_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t k = 32; k <= 640; k += 96)
        for (int s = 0; s < STYLES; s++)
            for (size_t i = 0; i < n_sets; i++) {
                const float *x = random_floats(k, (style)s);
                const quantized_row q = quantize_with(&kernels_portable, x, k);
                float *want = untouched_floats(k), *got = untouched_floats(k);
                kernels_portable.quantize_rest(x, k, q.q, q.d, want);
                sets[i].quantize_rest(x, k, q.q, q.d, got);
                CHECK(same_floats(got, want, k));
                guarded_free_all();
            }
}

/* What is left is at most half a step, and step times q plus it is x. */
static void test_portable_quantize_rest_is_what_was_lost(void) {
    for (int run = 0; run < 300; run++) {
        float *x = random_floats(64, ORDINARY), *rest = untouched_floats(64);
        const quantized_row q = quantize_with(&kernels_portable, x, 64);
        kernels_portable.quantize_rest(x, 64, q.q, q.d, rest);
        for (int i = 0; i < 64; i++) {
            const double d = (double)q.d[i / 32];
            CHECK(fabs((double)rest[i]) <= d * 0.50002);
            CHECK(fabs(d * q.q[i] + (double)rest[i] - (double)x[i]) <= 1e-7 * d);
        }
        guarded_free_all();
    }
}

/* Values half way between two steps, and every value one unit in the last place beside them. */
static void test_quantize_of_ties_on_every_set_rounds_to_even(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t set = 0; set < n_sets; set++) {
        float *x = guarded_alloc(32 * sizeof *x);
        for (int i = 0; i < 32; i++) x[i] = (float)(i - 16) + 0.5f;
        x[31] = 127; /* makes the scale 1 */
        const quantized_row got = quantize_with(&sets[set], x, 32);
        for (int i = 0; i < 31; i++) CHECK(got.q[i] == (int8_t)(2 * lrint(((double)(i - 16) + 0.5) / 2)));
        CHECK(got.d[0] == 1.0f && got.q[31] == 127);
        guarded_free_all();
    }
}

static void check_quantized_block(const float *x, const quantized_row *got) {
    double max = 0;
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) max = fmax(max, fabs((double)x[i]));
    CHECK(fabs((double)got->d[0] - max / 127) <= max / 127 * 1e-7);
    for (int i = 0; i < 32; i++) {
        CHECK(got->q[i] >= -127);
        CHECK(fabs((double)x[i] - (double)got->d[0] * got->q[i]) <= max / 127 * 0.50002);
        sum += got->q[i];
        if (i == 15) CHECK(got->sum16[0] == sum);
    }
    CHECK(got->sum16[1] == sum - got->sum16[0]);
    CHECK(got->bias8[0] == -128 * sum && got->bias4[0] == -8 * sum && got->ds[0] == got->d[0] * (float)sum);
}

static void test_portable_quantize_is_within_half_a_step(void) {
    for (int run = 0; run < 300; run++) {
        float *x = random_floats(32, run % 3 ? ORDINARY : HUGE);
        for (int i = 0; i < 32; i++) x[i] = fmaxf(-FLT_MAX, fminf(FLT_MAX, x[i]));
        const quantized_row got = quantize_with(&kernels_portable, x, 32);
        check_quantized_block(x, &got);
        guarded_free_all();
    }
}

/* The documented blocks: below 2^-100 becomes zeros; one with NaN or infinity gets d = NaN and q = 0. */
static void test_quantize_of_special_blocks_on_every_set_is_as_documented(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    static const float specials[] = { 0.0f, 1e-31f, -1e-42f, NAN, INFINITY, -INFINITY };
    for (size_t set = 0; set < n_sets; set++)
        for (size_t s = 0; s < PN_ARRAY_LEN(specials); s++) {
            const bool finite = isfinite(specials[s]);
            float *x = guarded_alloc(32 * sizeof *x);
            for (int i = 0; i < 32; i++) x[i] = finite ? 0.0f : random_normal();
            x[random_u32() % 32] = specials[s];
            const quantized_row got = quantize_with(&sets[set], x, 32);
            for (int i = 0; i < 32; i++) CHECK(got.q[i] == 0);
            CHECK(got.bias8[0] == 0 && got.bias4[0] == 0 && got.sum16[0] == 0 && got.sum16[1] == 0);
            CHECK(finite ? f32_bits(got.d[0]) == 0 : isnan(got.d[0]));
            guarded_free_all();
        }
}

/* ---- elementwise -------------------------------------------------------------------------------------------- */

static void test_rms_norm_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t n = 1; n <= 600; n += n < 40 ? 1 : 107)
        for (int s = 0; s < STYLES; s++)
            for (size_t i = 0; i < n_sets; i++) {
                const float *x = random_floats(n, (style)s), *w = random_floats(n, s % 2 ? ORDINARY : (style)s);
                float *want = untouched_floats(n), *got = untouched_floats(n);
                kernels_portable.rms_norm(x, w, want, n, 1e-5f);
                sets[i].rms_norm(x, w, got, n, 1e-5f);
                CHECK(same_floats(got, want, n));
                guarded_free_all();
            }
}

static void test_portable_rms_norm_is_the_naive_one(void) {
    for (size_t n = 1; n <= 600; n += n < 40 ? 1 : 107) {
        const float *x = random_floats(n, ORDINARY), *w = random_floats(n, ORDINARY);
        float *out = untouched_floats(n);
        double squares = 0;
        kernels_portable.rms_norm(x, w, out, n, 1e-5f);
        for (size_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        const double scale = 1 / sqrt(squares / (double)n + (double)1e-5f);
        for (size_t i = 0; i < n; i++) {
            const double want = (double)x[i] * scale * (double)w[i];
            CHECK(fabs((double)out[i] - want) <= 2e-6 * fabs(want) + 1e-12);
        }
        guarded_free_all();
    }
}

static void test_swiglu_on_every_set_in_place_or_not_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t n = 1; n <= 40; n++)
        for (int s = 0; s < STYLES; s++)
            for (size_t i = 0; i < n_sets; i++) {
                float *gate = random_floats(n, (style)s);
                const float *up = random_floats(n, s % 2 ? ORDINARY : (style)s);
                for (size_t j = 0; s == ORDINARY && j < n; j++) gate[j] *= 20; /* to both ends of exp */
                float *want = untouched_floats(n), *got = untouched_floats(n);
                kernels_portable.swiglu(gate, up, want, n);
                sets[i].swiglu(gate, up, got, n);
                sets[i].swiglu(gate, up, gate, n);
                CHECK(same_floats(got, want, n));
                CHECK(same_floats(gate, want, n));
                guarded_free_all();
            }
}

static void test_portable_swiglu_is_the_naive_one(void) {
    const float *gate = random_floats(400, ORDINARY), *up = random_floats(400, ORDINARY);
    float *out = untouched_floats(400);
    kernels_portable.swiglu(gate, up, out, 400);
    for (size_t i = 0; i < 400; i++) {
        const double g = (double)gate[i], want = g / (1 + exp(-g)) * (double)up[i];
        CHECK(fabs((double)out[i] - want) <= 1e-6 * fabs(want) + 1e-12);
    }
    guarded_free_all();
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

static const size_t HEAD_SIZES[] = { 4, 5, 8, 12, 16, 31, 32, 48, 64, 80, 100, 128 };
static const size_t LARGE_HEAD_SIZES[] = { 136, 520, 1024 };
static const size_t KEY_COUNTS[] = { 1, 2, 7, 8, 9, 16, 31, 32, 33, 57, 64, 96, 100, 127, 128 };

static bool same_scores(const float *a, const float *b, size_t n_q, size_t n_keys) {
    const size_t written = (n_keys + 15) / 16 * 16;
    for (size_t i = 0; i < n_q; i++, a += KV_BLOCK, b += KV_BLOCK) {
        if (!same_floats(a, b, n_keys)) return false;
        for (size_t j = written; j < KV_BLOCK; j++)
            if (f32_bits(a[j]) != f32_bits(UNTOUCHED)) return false;
    }
    return true;
}

static void check_scores(const kernel_set *set, size_t head_size, size_t n_q, size_t n_keys, style s) {
    const float *q = random_floats(n_q * head_size, s);
    const uint16_t *k = random_halves(head_size * KV_BLOCK, s);
    float *want = untouched_floats(n_q * KV_BLOCK), *got = untouched_floats(n_q * KV_BLOCK);
    kernels_portable.attend_scores(q, n_q, k, n_keys, head_size, 0.125f, want, k);
    set->attend_scores(q, n_q, k, n_keys, head_size, 0.125f, got, k);
    CHECK(same_scores(got, want, n_q, n_keys));
    guarded_free_all();
}

/* Every row sees up to n_keys keys, some of them fewer, the last of all the most. */
static void check_values(const kernel_set *set, size_t e8, size_t n_q, size_t most, style s) {
    const float *p = random_floats(n_q * KV_BLOCK, s);
    const uint16_t *v = random_halves(KV_BLOCK * e8, s);
    float *want = untouched_floats(n_q * e8), *got = untouched_floats(n_q * e8);
    size_t *n_keys = guarded_alloc(n_q * sizeof *n_keys);
    for (size_t i = 0; i < n_q; i++) n_keys[i] = i + 1 == n_q ? most : most - random_u32() % size_min(most, 4);
    kernels_portable.attend_values(p, n_q, v, n_keys, e8, want, v);
    set->attend_values(p, n_q, v, n_keys, e8, got, v);
    CHECK(same_floats(got, want, n_q * e8));
    guarded_free_all();
}

static void test_attention_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t set = 0; set < n_sets; set++)
        for (size_t h = 0; h < PN_ARRAY_LEN(HEAD_SIZES); h++)
            for (size_t n_q = 1; n_q <= 24; n_q += n_q < 7 ? 1 : n_q < 12 ? 5 : 6)
                for (size_t i = 0; i < PN_ARRAY_LEN(KEY_COUNTS); i++) {
                    const style s = i % 2 ? ORDINARY : (style)((h + n_q + i / 2) % STYLES);
                    check_scores(&sets[set], HEAD_SIZES[h], n_q, KEY_COUNTS[i], s);
                    check_values(&sets[set], (HEAD_SIZES[h] + 7) / 8 * 8, n_q, KEY_COUNTS[i], s);
                }
}

/* Heads of which fewer than 24 rows are a job: as many as there may be, and one. */
static void test_attention_of_large_heads_on_every_set_equals_portable(void) {
    static const size_t n_rows[] = { 22, 5, 3 }, key_counts[] = { 1, 7, 33, 127, 128 };
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t set = 0; set < n_sets; set++)
        for (size_t h = 0; h < PN_ARRAY_LEN(LARGE_HEAD_SIZES); h++)
            for (size_t i = 0; i < PN_ARRAY_LEN(key_counts); i++) {
                const size_t n_q = i == 2 ? 1 : n_rows[h];
                const style s = i % 2 ? ORDINARY : (style)((h + i) % STYLES);
                check_scores(&sets[set], LARGE_HEAD_SIZES[h], n_q, key_counts[i], s);
                check_values(&sets[set], LARGE_HEAD_SIZES[h], n_q, key_counts[i], s);
            }
}

static void test_portable_attention_is_the_naive_one(void) {
    enum { E = 20, E8 = 24, Q = 3, N = 77 };
    const float *q = random_floats(Q * E, ORDINARY), *p = random_floats(Q * KV_BLOCK, ORDINARY);
    const uint16_t *k = random_halves(E * KV_BLOCK, ORDINARY), *v = random_halves(KV_BLOCK * E8, ORDINARY);
    float *s = untouched_floats(Q * KV_BLOCK), *out = untouched_floats(Q * E8);
    kernels_portable.attend_scores(q, Q, k, N, E, 0.25f, s, k);
    kernels_portable.attend_values(p, Q, v, (const size_t[]){ N, 1, N }, E8, out, v);
    for (size_t i = 0; i < Q; i++) {
        for (size_t j = 0; j < N; j++) {
            double dot = 0;
            for (size_t e = 0; e < E; e++) dot += (double)q[i * E + e] * half_value(k[e * KV_BLOCK + j]);
            CHECK(fabs((double)s[i * KV_BLOCK + j] - dot * 0.25) < 1e-5);
        }
        for (size_t e = 0; e < E8; e++) {
            double sum = 0;
            for (size_t j = 0; j < (i == 1 ? 1 : N); j++)
                sum += (double)p[i * KV_BLOCK + j] * half_value(v[j * E8 + e]);
            CHECK(fabs((double)out[i * E8 + e] - sum) < 1e-4);
        }
    }
    guarded_free_all();
}

/* Any bits, and every half with what lies just beside and half way to its neighbour. */
static void test_narrow_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t i = 0; i < n_sets; i++) {
        size_t wrong = 0;
        for (uint32_t h = 0; h < 0x10000; h += 13) {
            const float exact = half_to_float((uint16_t)h);
            float x[11];
            uint16_t want[11], got[11];
            for (int j = 0; j < 11; j++)
                x[j] = j < 5 ? f32_from_bits(f32_bits(exact) + (uint32_t[]){ 0, 1, 0xfff, 0x1000, 0x1001 }[j])
                             : random_float(ANY_BITS);
            kernels_portable.narrow(x, want, 11);
            sets[i].narrow(x, got, 11);
            for (int j = 0; j < 11; j++) wrong += got[j] != want[j] && !(isnan(half_value(got[j])) && isnan(x[j]));
        }
        CHECK(wrong == 0);
    }
}

static void test_attend_combine_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t e8 = 8; e8 <= 264; e8 += 32)
        for (int s = 0; s < STYLES; s++)
            for (size_t i = 0; i < n_sets; i++) {
                float *want = random_floats(e8, (style)s), *got = guarded_alloc(e8 * sizeof *got);
                const float *values = random_floats(e8, (style)s), old = random_float((style)s);
                memcpy(got, want, e8 * sizeof *got);
                kernels_portable.attend_combine(want, values, e8, old, 0.75f);
                sets[i].attend_combine(got, values, e8, old, 0.75f);
                CHECK(same_floats(got, want, e8));
                guarded_free_all();
            }
}

/* Five rows of up to n keys. */
static void check_softmax(const kernel_set *set, size_t n, style of) {
    enum { ROWS = 5 };
    const size_t n_keys[ROWS] = { n, n > 3 ? n - 3 : 1, n, 1, n / 2 + 1 };
    float *want = random_floats(ROWS * KV_BLOCK, of), *got = guarded_alloc(ROWS * KV_BLOCK * sizeof *got);
    for (size_t i = 0; i < ROWS * KV_BLOCK; i++) /* what lies behind must not count */
        want[i] *= i % KV_BLOCK < n_keys[i / KV_BLOCK] ? 8 : 1e30f;
    memcpy(got, want, ROWS * KV_BLOCK * sizeof *got);
    float want_max[ROWS], want_sum[ROWS], max[ROWS], sum[ROWS];
    kernels_portable.softmax_block(want, ROWS, n_keys, want_max, want_sum);
    set->softmax_block(got, ROWS, n_keys, max, sum);
    CHECK(same_floats(got, want, ROWS * KV_BLOCK)); /* nor be written, beyond the next multiple of 8 */
    CHECK(same_floats(max, want_max, ROWS) && same_floats(sum, want_sum, ROWS));
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = n_keys[i]; j % 8; j++) CHECK(f32_bits(got[i * KV_BLOCK + j]) == 0);
    guarded_free_all();
}

static void test_softmax_block_on_every_set_equals_portable(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    for (size_t set = 0; set < n_sets; set++)
        for (size_t n = 1; n <= KV_BLOCK; n++)
            for (int s = 0; s < STYLES; s++) check_softmax(&sets[set], n, (style)s);
}

static void test_portable_softmax_block_is_the_naive_one(void) {
    for (size_t n = 1; n <= KV_BLOCK; n += 9) {
        float *s = random_floats(KV_BLOCK, ORDINARY), before[KV_BLOCK], max, sum;
        double want_max = -INFINITY, want_sum = 0;
        for (size_t j = 0; j < n; j++) {
            before[j] = s[j];
            want_max = fmax(want_max, (double)s[j]);
        }
        kernels_portable.softmax_block(s, 1, &n, &max, &sum);
        CHECK((double)max == want_max);
        for (size_t j = 0; j < n; j++) {
            const double want = exp((double)before[j] - want_max);
            CHECK(fabs((double)s[j] - want) < 1e-6 * want);
            want_sum += want;
        }
        CHECK(fabs((double)sum - want_sum) < 1e-5 * want_sum);
        guarded_free_all();
    }
}

/* ---- the choice of a set ------------------------------------------------------------------------------------ */

static void test_pick_of_every_available_name_gives_a_whole_set(void) {
    kernel_set sets[8];
    const size_t n_sets = usable_sets(sets);
    CHECK(n_sets >= 1);
    CHECK(strcmp(sets[n_sets - 1].isa, "portable") == 0);
    for (size_t i = 0; i < n_sets; i++) {
        for (int kind = 0; kind < PACK_KINDS; kind++) CHECK(sets[i].matmul[kind] != NULL);
        CHECK(sets[i].quantize && sets[i].quantize_rest && sets[i].rms_norm && sets[i].swiglu && sets[i].narrow);
        CHECK(sets[i].attend_scores && sets[i].softmax_block && sets[i].attend_values && sets[i].attend_combine);
    }
}

static void test_pick_without_a_name_gives_the_first_available(void) {
    kernel_set best;
    CHECK(kernels_pick(NULL, &best) == 0);
    CHECK(strncmp(kernels_available(), best.isa, strlen(best.isa)) == 0);
}

static void test_pick_of_an_unknown_name_is_refused(void) {
    kernel_set set;
    CHECK(kernels_pick("mmx", &set) != 0);
    CHECK(kernels_pick("", &set) != 0);
}

static void test_group_bytes_of_a_size_that_overflows_is_refused(void) {
    size_t bytes;
    CHECK(!pack_group_bytes(PACK_F32, SIZE_MAX / 8, &bytes));
    CHECK(!pack_group_bytes(PACK_Q8, SIZE_MAX / 32 * 32, &bytes));
    CHECK(!pack_group_bytes(PACK_KINDS, 32, &bytes));
}

int main(void) {
    RUN(test_matmul_of_quantized_kinds_on_every_set_equals_portable);
    RUN(test_matmul_of_float_kinds_on_every_set_equals_portable);
    RUN(test_portable_matmul_of_older_kinds_is_the_naive_product);
    RUN(test_matmul_of_weights_of_minus_128_on_every_set_is_exact);
    RUN(test_matmul_of_the_ends_of_all_ranges_on_every_set_is_exact);
    RUN(test_quantize_on_every_set_equals_portable);
    RUN(test_quantize_rest_on_every_set_equals_portable);
    RUN(test_portable_quantize_rest_is_what_was_lost);
    RUN(test_quantize_of_ties_on_every_set_rounds_to_even);
    RUN(test_portable_quantize_is_within_half_a_step);
    RUN(test_quantize_of_special_blocks_on_every_set_is_as_documented);
    RUN(test_rms_norm_on_every_set_equals_portable);
    RUN(test_portable_rms_norm_is_the_naive_one);
    RUN(test_swiglu_on_every_set_in_place_or_not_equals_portable);
    RUN(test_portable_swiglu_is_the_naive_one);
    RUN(test_attention_on_every_set_equals_portable);
    RUN(test_attention_of_large_heads_on_every_set_equals_portable);
    RUN(test_portable_attention_is_the_naive_one);
    RUN(test_narrow_on_every_set_equals_portable);
    RUN(test_attend_combine_on_every_set_equals_portable);
    RUN(test_softmax_block_on_every_set_equals_portable);
    RUN(test_portable_softmax_block_is_the_naive_one);
    RUN(test_pick_of_every_available_name_gives_a_whole_set);
    RUN(test_pick_without_a_name_gives_the_first_available);
    RUN(test_pick_of_an_unknown_name_is_refused);
    RUN(test_group_bytes_of_a_size_that_overflows_is_refused);
    return check_report();
}
