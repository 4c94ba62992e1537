/* neon.c - the kernels for AArch64: what every such processor can run.                                  (rank 4)
 *
 * The order of operations is that of kernels.h; products with quantized weights are neon_blocks.c's.
 *
 * Inner loops, instructions as gcc 12 compiles them (nothing is spilled):
 *   float tile, per k: 36 for eight tokens (16 fmla), F16 and BF16 38; 22 for one token and four groups (8 fmla).
 *   attention, per element of the head or per key: 46 or 47 for six queries times 16 (24 fmla). */
#include "kernels/neon.h"

#if defined(__aarch64__)

#include "mathf.h"

#include <math.h>

/* 8 lanes in the order of kernels.h: ((0+4) + (2+6)) + ((1+5) + (3+7)). */
INLINE_NEON float sum8_neon(float32x4x2_t v) {
    const float32x4_t q = vaddq_f32(v.val[0], v.val[1]);
    const float32x2_t d = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}

/* ---- float weights ---------------------------------------------------------------------------------------- */

/* Elements [8 * i, 8 * i + 8) of a group. */
INLINE_NEON float32x4x2_t load8_neon(const uint8_t *w, size_t i, const pack_kind kind) {
    if (kind == PACK_F16) return load8_f16_neon(w + i * 16);
    if (kind == PACK_F32)
        return (float32x4x2_t){ { vreinterpretq_f32_u8(vld1q_u8(w + i * 32)),
                                  vreinterpretq_f32_u8(vld1q_u8(w + i * 32 + 16)) } };
    const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(w + i * 16));
    return (float32x4x2_t){ { vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
                              vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16)) } };
}

/* `nh` halves of groups, from half `first` on (of all groups at w), times `nt` tokens: with one token several run side
 * by side, to hide the latency of the adds. */
INLINE_NEON void float_tile_neon(const uint8_t *w, size_t group_bytes, size_t first, const int nh, const activations *a,
                                 size_t t, const int nt, const pack_kind kind, float *out, size_t ld_out) {
    const float *x = a->x + t * a->ld_x;
    const uint8_t *group = w + first / 2 * group_bytes;
    const size_t half = first % 2; /* 0 if there are several */
    float32x4_t acc[4][8][2];
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++) acc[g][i][0] = acc[g][i][1] = vdupq_n_f32(0);
    for (size_t k = 0; k < a->k; k++)
        for (int g = 0; g < nh; g++) {
            const size_t at = 2 * k + half + (size_t)(g % 2);
            const float32x4x2_t weights = load8_neon(group + (size_t)(g / 2) * group_bytes, at, kind);
#pragma GCC unroll 8
            for (int i = 0; i < nt; i++)
                for (int h = 0; h < 2; h++)
                    acc[g][i][h] = vfmaq_n_f32(acc[g][i][h], weights.val[h], x[(size_t)i * a->ld_x + k]);
        }
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++)
            for (int h = 0; h < 2; h++)
                vst1q_f32(out + (t + (size_t)i) * ld_out + (first + (size_t)g) * HALF_ROWS + 4 * h, acc[g][i][h]);
}

INLINE_NEON void matmul_float_neon(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                   const pack_kind kind, float *out, size_t ld_out) {
    const size_t group_bytes = a->k * GROUP_ROWS * (kind == PACK_F32 ? 4 : 2);
    const size_t end = t0 + n_t, n = 2 * n_groups;
    size_t t = t0;
    for (; t + 8 <= end; t += 8)
        for (size_t g = 0; g < n; g++) float_tile_neon(w, group_bytes, g, 1, a, t, 8, kind, out, ld_out);
    for (; t + 3 <= end; t += 3)
        for (size_t g = 0; g < n; g++) float_tile_neon(w, group_bytes, g, 1, a, t, 3, kind, out, ld_out);
    for (; t < end; t++) {
        size_t g = 0;
        for (; g + 4 <= n; g += 4) float_tile_neon(w, group_bytes, g, 4, a, t, 1, kind, out, ld_out);
        for (; g < n; g++) float_tile_neon(w, group_bytes, g, 1, a, t, 1, kind, out, ld_out);
    }
}

static void matmul_f32_neon(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t, float *out,
                            size_t ld_out) {
    matmul_float_neon(w, n_groups, a, t0, n_t, PACK_F32, out, ld_out);
}
static void matmul_f16_neon(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t, float *out,
                            size_t ld_out) {
    matmul_float_neon(w, n_groups, a, t0, n_t, PACK_F16, out, ld_out);
}
static void matmul_bf16_neon(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t, float *out,
                             size_t ld_out) {
    matmul_float_neon(w, n_groups, a, t0, n_t, PACK_BF16, out, ld_out);
}

/* ---- activations ------------------------------------------------------------------------------------------ */

/* What scales a block to [-127, 127], and its d. 0 for a block that is to be zeros. */
INLINE_NEON float inverse_scale_neon(uint32_t max_bits, float *d) {
    const float max = f32_from_bits(max_bits);
    *d = max_bits >= 0x7f800000u ? f32_from_bits(0x7fc00000u) : 0;
    if (max_bits >= 0x7f800000u || max < 0x1p-100f) return 0;
    *d = max / 127.0f;
    return 127.0f / max;
}

/* vcvtn rounds to nearest even and turns NaN (here: infinity or NaN times an inverse of 0) into 0. No product is beyond
 * 127 * (1 + 2^-23), so nothing has to be clamped. */
static void quantize_neon(const float *x, size_t k, const quantized_row *out) {
    int8_t *q = out->q;
    float *d = out->d;
    for (size_t b = 0; b < k / BLOCK_K; b++, x += BLOCK_K, q += BLOCK_K) {
        uint32x4_t top = vdupq_n_u32(0);
        for (int i = 0; i < 32; i += 4) top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
        const float inverse = inverse_scale_neon(vmaxvq_u32(top), d + b);
        int32x4_t sums[2] = { vdupq_n_s32(0), vdupq_n_s32(0) };
        for (int i = 0; i < 32; i += 8) {
            const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
            const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse));
            vst1_s8(q + i, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
            sums[i / 16] = vaddq_s32(sums[i / 16], vaddq_s32(low, high));
        }
        const int32_t first = vaddvq_s32(sums[0]), last = vaddvq_s32(sums[1]), sum = first + last;
        out->ds[b] = d[b] * (float)sum;
        out->bias8[b] = -128 * sum;
        out->bias4[b] = -8 * sum;
        out->sum16[2 * b] = (int16_t)first;
        out->sum16[2 * b + 1] = (int16_t)last;
    }
}

static void quantize_rest_neon(const float *x, size_t k, const int8_t *q, const float *d, float *rest) {
    for (size_t i = 0; i < k; i += 8) {
        const int16x8_t n = vmovl_s8(vld1_s8(q + i));
        const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(n)));
        const float32x4_t high = vcvtq_f32_s32(vmovl_high_s16(n));
        const float32x4_t step = vdupq_n_f32(d[i / BLOCK_K]);
        vst1q_f32(rest + i, vfmsq_f32(vld1q_f32(x + i), low, step));
        vst1q_f32(rest + i + 4, vfmsq_f32(vld1q_f32(x + i + 4), high, step));
    }
}

/* ---- elementwise ------------------------------------------------------------------------------------------ */

/* exp_f32 of mathf.h on 4 lanes, operation by operation: nothing is fused. */
INLINE_NEON float32x4_t exp4_neon(float32x4_t x) {
    const float32x4_t magic = vdupq_n_f32(EXP_MAGIC), one = vdupq_n_f32(1.0f);
    const float32x4_t c = vminq_f32(vdupq_n_f32(EXP_HI), vmaxq_f32(vdupq_n_f32(EXP_LO), x));
    const float32x4_t t = vaddq_f32(vmulq_n_f32(c, EXP_LOG2E), magic);
    const float32x4_t n = vsubq_f32(t, magic);
    float32x4_t r = vsubq_f32(c, vmulq_n_f32(n, EXP_LN2_HI));
    r = vsubq_f32(r, vmulq_n_f32(n, EXP_LN2_LO));
    float32x4_t p = vdupq_n_f32(EXP_P0);
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(EXP_P1));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(EXP_P2));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(EXP_P3));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(EXP_P4));
    p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(EXP_P5));
    p = vaddq_f32(vmulq_f32(p, vmulq_f32(r, r)), r);
    p = vaddq_f32(p, one);
    const uint32x4_t y = vaddq_u32(vreinterpretq_u32_f32(p), vshlq_n_u32(vreinterpretq_u32_f32(t), 23));
    return vbslq_f32(vceqq_f32(x, x), vreinterpretq_f32_u32(y), x); /* NaN stays NaN */
}

static void rms_norm_neon(const float *x, const float *w, float *out, size_t n, float eps) {
    float32x4x2_t lanes = { { vdupq_n_f32(0), vdupq_n_f32(0) } };
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int h = 0; h < 2; h++) {
            const float32x4_t v = vld1q_f32(x + i + 4 * h);
            lanes.val[h] = vaddq_f32(lanes.val[h], vmulq_f32(v, v));
        }
    float lane[8];
    for (int h = 0; h < 2; h++) vst1q_f32(lane + 4 * h, lanes.val[h]);
    for (; i < n; i++) lane[i % 8] = lane[i % 8] + x[i] * x[i];
    for (int h = 0; h < 2; h++) lanes.val[h] = vld1q_f32(lane + 4 * h);
    const float s = 1.0f / sqrtf(sum8_neon(lanes) / (float)n + eps);
    for (i = 0; i + 4 <= n; i += 4) vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), s), vld1q_f32(w + i)));
    for (; i < n; i++) out[i] = (x[i] * s) * w[i];
}

static void swiglu_neon(const float *gate, const float *up, float *out, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t g = vld1q_f32(gate + i);
        const float32x4_t silu = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), exp4_neon(vnegq_f32(g))));
        vst1q_f32(out + i, vmulq_f32(silu, vld1q_f32(up + i)));
    }
    for (; i < n; i++) out[i] = (gate[i] / (1.0f + exp_f32(-gate[i]))) * up[i];
}

/* ---- attention -------------------------------------------------------------------------------------------- */

static void narrow_neon(const float *x, uint16_t *out, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++) out[i] = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x[i]))), 0);
}

/* `nv` vectors of 8 keys times `nq` queries. */
INLINE_NEON void scores_tile_neon(const float *q, const int nq, const uint16_t *k, const int nv, size_t head_size,
                                  float scale, float *s) {
    float32x4_t acc[6][4][2];
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < nv; v++) acc[i][v][0] = acc[i][v][1] = vdupq_n_f32(0);
    for (size_t e = 0; e < head_size; e++)
        for (int v = 0; v < nv; v++) {
            if (nq * nv > 6) LOAD_NO_EARLIER();
            const float32x4x2_t keys = load8_f16_neon(k + e * KV_BLOCK + 8 * v);
#pragma GCC unroll 6
            for (int i = 0; i < nq; i++)
                for (int h = 0; h < 2; h++)
                    acc[i][v][h] = vfmaq_n_f32(acc[i][v][h], keys.val[h], q[(size_t)i * head_size + e]);
        }
#pragma GCC unroll 6
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < nv; v++)
            for (int h = 0; h < 2; h++) vst1q_f32(s + i * KV_BLOCK + 8 * v + 4 * h, vmulq_n_f32(acc[i][v][h], scale));
}

/* `nq` queries over n keys (a multiple of 16): `nv` vectors at a time, then two. */
INLINE_NEON void scores_rows_neon(const float *q, const int nq, const uint16_t *k, size_t n, const int nv,
                                  size_t head_size, float scale, float *s) {
    size_t j = 0;
    for (; j + 8 * (size_t)nv <= n; j += 8 * (size_t)nv) scores_tile_neon(q, nq, k + j, nv, head_size, scale, s + j);
    for (; j < n; j += 16) scores_tile_neon(q, nq, k + j, 2, head_size, scale, s + j);
}

/* A few queries wait for memory: fetch the block that comes next. */
INLINE_NEON void prefetch_ahead_neon(const uint16_t *ahead, size_t n_q, size_t e8) {
    if (n_q > 4 || e8 > 128) return; /* what is in use must not be driven out */
    for (size_t i = 0; i < KV_BLOCK * e8; i += 32) __builtin_prefetch(ahead + i);
}

static void attend_scores_neon(const float *q, size_t n_q, const uint16_t *k, size_t n_keys, size_t head_size,
                               float scale, float *s, const uint16_t *ahead) {
    const size_t n = (n_keys + 15) / 16 * 16;
    prefetch_ahead_neon(ahead, n_q, (head_size + 7) / 8 * 8);
    size_t i = 0;
    for (; i + 6 <= n_q; i += 6) scores_rows_neon(q + i * head_size, 6, k, n, 2, head_size, scale, s + i * KV_BLOCK);
    for (; i + 3 <= n_q; i += 3) scores_rows_neon(q + i * head_size, 3, k, n, 4, head_size, scale, s + i * KV_BLOCK);
    for (; i < n_q; i++) scores_rows_neon(q + i * head_size, 1, k, n, 4, head_size, scale, s + i * KV_BLOCK);
}

/* lane > s ? lane : s, which vmaxq is not: of NaN and of two zeros it makes something else. */
INLINE_NEON float32x4_t max_neon(float32x4_t lane, float32x4_t s) {
    return vbslq_f32(vcgtq_f32(lane, s), lane, s);
}

/* The maximum of s[n], lane by lane; `rest` marks the last n % 8 elements among 8. */
INLINE_NEON float max_of_block_neon(const float *s, size_t n, const uint32x4_t rest[2]) {
    float lane[8];
    for (int h = 0; h < 2; h++) {
        float32x4_t lanes = vdupq_n_f32(-INFINITY);
        size_t j = 0;
        for (; j + 8 <= n; j += 8) lanes = max_neon(lanes, vld1q_f32(s + j + 4 * h));
        if (j < n) lanes = vbslq_f32(rest[h], max_neon(lanes, vld1q_f32(s + j + 4 * h)), lanes);
        vst1q_f32(lane + 4 * h, lanes);
    }
    float m = lane[0];
    for (int l = 1; l < 8; l++) m = m > lane[l] ? m : lane[l];
    return m;
}

/* One row: the sum of its weights. */
INLINE_NEON float softmax_row_neon(float *s, size_t n, float *max) {
    const uint32x4_t index = { 0, 1, 2, 3 }, last = vdupq_n_u32((uint32_t)(n % 8));
    const uint32x4_t rest[2] = { vcltq_u32(index, last), vcltq_u32(vaddq_u32(index, vdupq_n_u32(4)), last) };
    const float32x4_t top = vdupq_n_f32(*max = max_of_block_neon(s, n, rest));
    float32x4x2_t total = { { vdupq_n_f32(0), vdupq_n_f32(0) } };
    for (size_t j = 0; j < n; j += 8)
        for (int h = 0; h < 2; h++) {
            float32x4_t p = exp4_neon(vsubq_f32(vld1q_f32(s + j + 4 * h), top));
            if (j + 8 > n) p = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), rest[h]));
            vst1q_f32(s + j + 4 * h, p);
            total.val[h] = vaddq_f32(total.val[h], p);
        }
    return sum8_neon(total);
}

static void softmax_block_neon(float *s, size_t n_q, const size_t *n_keys, float *max, float *sum) {
    for (size_t i = 0; i < n_q; i++) sum[i] = softmax_row_neon(s + i * KV_BLOCK, n_keys[i], &max[i]);
}

/* `ne` vectors of 8 of the head times `nq` queries over keys [0, common); then over each query's own rest. */
INLINE_NEON void values_tile_neon(const float *p, const int nq, const uint16_t *v, size_t common, const size_t *n_keys,
                                  size_t e8, const int ne, float *out) {
    float32x4_t acc[6][4][2];
    for (int i = 0; i < nq; i++)
        for (int e = 0; e < ne; e++) acc[i][e][0] = acc[i][e][1] = vdupq_n_f32(0);
    for (size_t j = 0; j < common; j++)
        for (int e = 0; e < ne; e++) {
            if (nq * ne > 6) LOAD_NO_EARLIER();
            const float32x4x2_t values = load8_f16_neon(v + j * e8 + 8 * (size_t)e);
#pragma GCC unroll 6
            for (int i = 0; i < nq; i++)
                for (int h = 0; h < 2; h++)
                    acc[i][e][h] = vfmaq_n_f32(acc[i][e][h], values.val[h], p[(size_t)i * KV_BLOCK + j]);
        }
#pragma GCC unroll 6
    for (int i = 0; i < nq; i++) {
        for (size_t j = common; j < n_keys[i]; j++)
            for (int e = 0; e < ne; e++) {
                const float32x4x2_t values = load8_f16_neon(v + j * e8 + 8 * (size_t)e);
                for (int h = 0; h < 2; h++)
                    acc[i][e][h] = vfmaq_n_f32(acc[i][e][h], values.val[h], p[(size_t)i * KV_BLOCK + j]);
            }
        for (int e = 0; e < ne; e++)
            for (int h = 0; h < 2; h++) vst1q_f32(out + (size_t)i * e8 + 8 * (size_t)e + 4 * h, acc[i][e][h]);
    }
}

/* `nq` queries, `ne` vectors of the head at a time, then one. */
INLINE_NEON void values_rows_neon(const float *p, const int nq, const uint16_t *v, const size_t *n_keys, size_t e8,
                                  const int ne, float *out) {
    size_t common = n_keys[0], e = 0;
    for (int i = 1; i < nq; i++) common = size_min(common, n_keys[i]);
    for (; e + 8 * (size_t)ne <= e8; e += 8 * (size_t)ne)
        values_tile_neon(p, nq, v + e, common, n_keys, e8, ne, out + e);
    for (; e < e8; e += 8) values_tile_neon(p, nq, v + e, common, n_keys, e8, 1, out + e);
}

static void attend_values_neon(const float *p, size_t n_q, const uint16_t *v, const size_t *n_keys, size_t e8,
                               float *out, const uint16_t *ahead) {
    size_t i = 0;
    prefetch_ahead_neon(ahead, n_q, e8);
    for (; i + 6 <= n_q; i += 6) values_rows_neon(p + i * KV_BLOCK, 6, v, n_keys + i, e8, 2, out + i * e8);
    for (; i + 3 <= n_q; i += 3) values_rows_neon(p + i * KV_BLOCK, 3, v, n_keys + i, e8, 4, out + i * e8);
    for (; i < n_q; i++) values_rows_neon(p + i * KV_BLOCK, 1, v, n_keys + i, e8, 4, out + i * e8);
}

static void attend_combine_neon(float *acc, const float *values, size_t e8, float acc_weight, float block_weight) {
    for (size_t e = 0; e < e8; e += 4)
        vst1q_f32(acc + e,
                  vfmaq_n_f32(vmulq_n_f32(vld1q_f32(acc + e), acc_weight), vld1q_f32(values + e), block_weight));
}

static bool always_usable_neon(void) {
    return true; /* part of the architecture */
}

const kernel_set kernels_neon = {
    .isa = "neon",
    .base = &kernels_portable,
    .usable = always_usable_neon,
    .matmul = { [PACK_F32] = matmul_f32_neon,
                [PACK_F16] = matmul_f16_neon,
                [PACK_BF16] = matmul_bf16_neon,
                BLOCK_KINDS(BLOCK_ENTRY, neon) },
    .quantize = quantize_neon,
    .quantize_rest = quantize_rest_neon,
    .rms_norm = rms_norm_neon,
    .swiglu = swiglu_neon,
    .narrow = narrow_neon,
    .attend_scores = attend_scores_neon,
    .softmax_block = softmax_block_neon,
    .attend_values = attend_values_neon,
    .attend_combine = attend_combine_neon,
};

#endif
