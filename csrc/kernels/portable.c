/* portable.c - the kernels in plain C: always built, and the definition of the right answer.            (rank 4)
 *
 * Written for the order of operations in kernels.h, not for speed; the compiler may vectorize over rows, keys or
 * elements, which changes no order. Products with quantized weights are in portable_blocks.c. */
#include "dtype.h"
#include "kernels/blocks.h"
#include "mathf.h"

#include <math.h>
#include <string.h>

static uint16_t load_u16(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static float load_f32_portable(const uint8_t *p) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}
static float load_f16_portable(const uint8_t *p) {
    return half_to_float(load_u16(p));
}
static float load_bf16_portable(const uint8_t *p) {
    return bf16_to_float(load_u16(p));
}

/* One body for the float kinds; `load` and `size` are constants in each caller and fold away. */
static inline __attribute__((always_inline)) void matmul_float_portable(const uint8_t *w, size_t n_groups,
                                                                        const activations *a, size_t t0, size_t n_t,
                                                                        float *out, size_t ld_out,
                                                                        float (*load)(const uint8_t *), size_t size) {
    for (size_t g = 0; g < n_groups; g++, w += a->k * GROUP_ROWS * size)
        for (size_t t = t0; t < t0 + n_t; t++) {
            const float *x = a->x + t * a->ld_x;
            float acc[GROUP_ROWS] = { 0 };
            for (size_t k = 0; k < a->k; k++)
                for (size_t r = 0; r < GROUP_ROWS; r++)
                    acc[r] = fma_f32(load(w + (k * GROUP_ROWS + r) * size), x[k], acc[r]);
            memcpy(out + t * ld_out + g * GROUP_ROWS, acc, sizeof acc);
        }
}

static void matmul_f32_portable(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                float *out, size_t ld_out) {
    matmul_float_portable(w, n_groups, a, t0, n_t, out, ld_out, load_f32_portable, 4);
}
static void matmul_f16_portable(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                float *out, size_t ld_out) {
    matmul_float_portable(w, n_groups, a, t0, n_t, out, ld_out, load_f16_portable, 2);
}
static void matmul_bf16_portable(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                 float *out, size_t ld_out) {
    matmul_float_portable(w, n_groups, a, t0, n_t, out, ld_out, load_bf16_portable, 2);
}

/* One block; the sums of its halves. */
static void quantize_block_portable(const float *x, int8_t *q, float *d, int32_t sums[2]) {
    uint32_t max_bits = 0;
    for (int i = 0; i < BLOCK_K; i++) {
        const uint32_t bits = f32_bits(x[i]) & 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    const float max = f32_from_bits(max_bits);
    float inverse = 0;
    *d = 0;
    if (max_bits >= 0x7f800000u)
        *d = f32_from_bits(0x7fc00000u);
    else if (max >= 0x1p-100f) {
        *d = max / 127.0f;
        inverse = 127.0f / max;
    }
    sums[0] = sums[1] = 0;
    for (int i = 0; i < BLOCK_K; i++) {
        /* The magic addition rounds to nearest even, as the vector conversions do; a block that is to be zeros must
         * not let an infinity or NaN through. */
        const float t = (inverse > 0 ? x[i] * inverse : 0.0f) + EXP_MAGIC;
        int32_t n = (int32_t)(f32_bits(t) - f32_bits(EXP_MAGIC));
        n = n > 127 ? 127 : n < -127 ? -127 : n;
        q[i] = (int8_t)n;
        sums[i / 16] += n;
    }
}

static void quantize_portable(const float *x, size_t k, const quantized_row *out) {
    for (size_t b = 0; b < k / BLOCK_K; b++) {
        int32_t sums[2];
        quantize_block_portable(x + b * BLOCK_K, out->q + b * BLOCK_K, out->d + b, sums);
        const int32_t sum = sums[0] + sums[1];
        out->ds[b] = out->d[b] * (float)sum;
        out->bias8[b] = -128 * sum;
        out->bias4[b] = -8 * sum;
        for (size_t h = 0; h < 2; h++) out->sum16[2 * b + h] = (int16_t)sums[h];
    }
}

static void quantize_rest_portable(const float *x, size_t k, const int8_t *q, const float *d, float *rest) {
    for (size_t i = 0; i < k; i++) rest[i] = fma_f32(-(float)q[i], d[i / BLOCK_K], x[i]);
}

/* The fixed tree over 8 lanes. */
static float sum8_portable(const float lane[8]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void rms_norm_portable(const float *x, const float *w, float *out, size_t n, float eps) {
    float lane[8] = { 0 };
    for (size_t i = 0; i < n; i++) lane[i % 8] = lane[i % 8] + x[i] * x[i];
    const float s = 1.0f / sqrtf(sum8_portable(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++) out[i] = (x[i] * s) * w[i];
}

static void swiglu_portable(const float *gate, const float *up, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (gate[i] / (1.0f + exp_f32(-gate[i]))) * up[i];
}

static void narrow_portable(const float *x, uint16_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = half_from_float(x[i]);
}

static void attend_scores_portable(const float *q, size_t n_q, const uint16_t *k, size_t n_keys, size_t head_size,
                                   float scale, float *s, const uint16_t *ahead) {
    (void)ahead;
    const size_t n = (n_keys + 15) / 16 * 16;
    for (size_t i = 0; i < n_q; i++) {
        float *row = s + i * KV_BLOCK;
        memset(row, 0, n * sizeof *row);
        for (size_t e = 0; e < head_size; e++) {
            const float qe = q[i * head_size + e];
            for (size_t j = 0; j < n; j++) row[j] = fma_f32(qe, half_to_float(k[e * KV_BLOCK + j]), row[j]);
        }
        for (size_t j = 0; j < n; j++) row[j] = row[j] * scale;
    }
}

/* One row: the sum of its weights. */
static float softmax_row_portable(float *s, size_t n, float *max) {
    float lane[8], total[8] = { 0 };
    for (int l = 0; l < 8; l++) lane[l] = -INFINITY;
    for (size_t j = 0; j < n; j++) lane[j % 8] = lane[j % 8] > s[j] ? lane[j % 8] : s[j];
    float m = lane[0];
    for (int l = 1; l < 8; l++) m = m > lane[l] ? m : lane[l];
    for (size_t j = 0; j < n; j++) {
        s[j] = exp_f32(s[j] - m);
        total[j % 8] = total[j % 8] + s[j];
    }
    for (size_t j = n; j % 8; j++) s[j] = 0;
    *max = m;
    return sum8_portable(total);
}

static void softmax_block_portable(float *s, size_t n_q, const size_t *n_keys, float *max, float *sum) {
    for (size_t i = 0; i < n_q; i++) sum[i] = softmax_row_portable(s + i * KV_BLOCK, n_keys[i], &max[i]);
}

static void attend_values_portable(const float *p, size_t n_q, const uint16_t *v, const size_t *n_keys, size_t e8,
                                   float *out, const uint16_t *ahead) {
    (void)ahead;
    for (size_t i = 0; i < n_q; i++) {
        float *row = out + i * e8;
        memset(row, 0, e8 * sizeof *row);
        for (size_t j = 0; j < n_keys[i]; j++) {
            const float pj = p[i * KV_BLOCK + j];
            for (size_t e = 0; e < e8; e++) row[e] = fma_f32(pj, half_to_float(v[j * e8 + e]), row[e]);
        }
    }
}

static void attend_combine_portable(float *acc, const float *values, size_t e8, float acc_weight, float block_weight) {
    for (size_t e = 0; e < e8; e++) acc[e] = fma_f32(values[e], block_weight, acc[e] * acc_weight);
}

static bool always_usable(void) {
    return true;
}

const kernel_set kernels_portable = {
    .isa = "portable",
    .usable = always_usable,
    .matmul = { [PACK_F32] = matmul_f32_portable,
                [PACK_F16] = matmul_f16_portable,
                [PACK_BF16] = matmul_bf16_portable,
                BLOCK_KINDS(BLOCK_ENTRY, portable) },
    .quantize = quantize_portable,
    .quantize_rest = quantize_rest_portable,
    .rms_norm = rms_norm_portable,
    .swiglu = swiglu_portable,
    .narrow = narrow_portable,
    .attend_scores = attend_scores_portable,
    .softmax_block = softmax_block_portable,
    .attend_values = attend_values_portable,
    .attend_combine = attend_combine_portable,
};
