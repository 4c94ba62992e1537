/* avx2.c - the kernels for x86-64 with AVX2, FMA and F16C.                                             (rank 4)
 *
 * Every function carries its target attribute; the build's flags allow the baseline alone, so nothing outside this file
 * can use a wide instruction. The order of operations is that of kernels.h. Products with quantized weights are in
 * avx2_blocks.c. */
#include "kernels/blocks.h"

#if defined(__x86_64__)

#include "cpu.h"
#include "mathf.h"

#include <immintrin.h>
#include <math.h>

/* The body functions take the tile width as a constant and must vanish into their callers. */
#define INLINE_AVX2 PN_AVX2 static inline __attribute__((always_inline))

INLINE_AVX2 __m256 load8_f16_avx2(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
/* 8 lanes in the order of kernels.h: ((0+4) + (2+6)) + ((1+5) + (3+7)). */
INLINE_AVX2 float sum8_avx2(__m256 v) {
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}

/* ---- float weights ---------------------------------------------------------------------------------------- */

INLINE_AVX2 __m256 load8_avx2(const uint8_t *w, size_t i, const pack_kind kind) {
    if (kind == PACK_F32) return _mm256_loadu_ps((const float *)(const void *)w + i * 8);
    if (kind == PACK_F16) return load8_f16_avx2(w + i * 16);
    const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(w + i * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* `ng` groups times `nt` tokens: with one token two groups run side by side, to hide the latency of the adds. */
INLINE_AVX2 void float_tile_avx2(const uint8_t *w, size_t group_bytes, const int ng, const activations *a, size_t t,
                                 const int nt, const pack_kind kind, float *out, size_t ld_out) {
    __m256 acc[4][4];
    for (int g = 0; g < 2 * ng; g++)
        for (int i = 0; i < nt; i++) acc[g][i] = _mm256_setzero_ps();
    for (size_t k = 0; k < a->k; k++)
        for (int g = 0; g < 2 * ng; g++) {
            const __m256 weights = load8_avx2(w + (size_t)(g / 2) * group_bytes, 2 * k + (size_t)(g % 2), kind);
            for (int i = 0; i < nt; i++) {
                const __m256 x = _mm256_set1_ps(a->x[(t + (size_t)i) * a->ld_x + k]);
                acc[g][i] = _mm256_fmadd_ps(weights, x, acc[g][i]);
            }
        }
    for (int g = 0; g < 2 * ng; g++)
        for (int i = 0; i < nt; i++) _mm256_storeu_ps(out + (t + (size_t)i) * ld_out + g * HALF_ROWS, acc[g][i]);
}

INLINE_AVX2 void matmul_float_avx2(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                   const pack_kind kind, float *out, size_t ld_out) {
    const size_t group_bytes = a->k * GROUP_ROWS * (kind == PACK_F32 ? 4 : 2);
    const size_t end = t0 + n_t;
    size_t t = t0;
    for (; t + 4 <= end; t += 4)
        for (size_t g = 0; g < n_groups; g++)
            float_tile_avx2(w + g * group_bytes, group_bytes, 1, a, t, 4, kind, out + g * GROUP_ROWS, ld_out);
    for (; t < end; t++) {
        size_t g = 0;
        for (; g + 2 <= n_groups; g += 2)
            float_tile_avx2(w + g * group_bytes, group_bytes, 2, a, t, 1, kind, out + g * GROUP_ROWS, ld_out);
        for (; g < n_groups; g++)
            float_tile_avx2(w + g * group_bytes, group_bytes, 1, a, t, 1, kind, out + g * GROUP_ROWS, ld_out);
    }
}

PN_AVX2 static void matmul_f32_avx2(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                    float *out, size_t ld_out) {
    matmul_float_avx2(w, n_groups, a, t0, n_t, PACK_F32, out, ld_out);
}
PN_AVX2 static void matmul_f16_avx2(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                    float *out, size_t ld_out) {
    matmul_float_avx2(w, n_groups, a, t0, n_t, PACK_F16, out, ld_out);
}
PN_AVX2 static void matmul_bf16_avx2(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                     float *out, size_t ld_out) {
    matmul_float_avx2(w, n_groups, a, t0, n_t, PACK_BF16, out, ld_out);
}

/* ---- activations ------------------------------------------------------------------------------------------ */

INLINE_AVX2 uint32_t max_u32_avx2(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* Four vectors of 8 int32 in [-127, 127] to 32 bytes in their order. */
INLINE_AVX2 __m256i pack32_avx2(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

PN_AVX2 static void quantize_avx2(const float *x, size_t k, const quantized_row *out) {
    int8_t *q = out->q;
    float *d = out->d;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), lo = _mm256_set1_epi32(-127), hi = _mm256_set1_epi32(127);
    const __m256 magic = _mm256_set1_ps(EXP_MAGIC);
    for (size_t b = 0; b < k / BLOCK_K; b++, x += BLOCK_K, q += BLOCK_K) {
        __m256 v[4];
        __m256i top = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        const uint32_t max_bits = max_u32_avx2(top);
        const float max = f32_from_bits(max_bits);
        float inverse = 0;
        d[b] = 0;
        if (max_bits >= 0x7f800000u)
            d[b] = f32_from_bits(0x7fc00000u);
        else if (max >= 0x1p-100f) {
            d[b] = max / 127.0f;
            inverse = 127.0f / max;
        }
        __m256i n[4];
        for (int i = 0; i < 4; i++) {
            const __m256 scaled = inverse > 0 ? _mm256_mul_ps(v[i], _mm256_set1_ps(inverse)) : _mm256_setzero_ps();
            n[i] = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(scaled, magic)), _mm256_castps_si256(magic));
            n[i] = _mm256_max_epi32(_mm256_min_epi32(n[i], hi), lo);
        }
        const __m256i bytes = pack32_avx2(n[0], n[1], n[2], n[3]);
        _mm256_storeu_si256((__m256i *)(void *)q, bytes);
        /* Four sums of the first half and four of the last, then two of each, then one. */
        const __m256i first = _mm256_add_epi32(n[0], n[1]), last = _mm256_add_epi32(n[2], n[3]);
        const __m256i fours = _mm256_hadd_epi32(first, last);
        __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
        sums = _mm_hadd_epi32(sums, sums);
        const int32_t sum_first = _mm_cvtsi128_si32(sums), sum_last = _mm_extract_epi32(sums, 1);
        const int32_t sum = sum_first + sum_last;
        out->ds[b] = d[b] * (float)sum;
        out->bias8[b] = -128 * sum;
        out->bias4[b] = -8 * sum;
        out->sum16[2 * b] = (int16_t)sum_first;
        out->sum16[2 * b + 1] = (int16_t)sum_last;
    }
}

PN_AVX2 static void quantize_rest_avx2(const float *x, size_t k, const int8_t *q, const float *d, float *rest) {
    for (size_t i = 0; i < k; i += 8) {
        const __m256 n =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(q + i))));
        _mm256_storeu_ps(rest + i, _mm256_fnmadd_ps(n, _mm256_set1_ps(d[i / BLOCK_K]), _mm256_loadu_ps(x + i)));
    }
}

/* ---- elementwise ------------------------------------------------------------------------------------------ */

/* exp_f32 of mathf.h on 8 lanes, operation by operation. */
INLINE_AVX2 __m256 exp8_avx2(__m256 x) {
    const __m256 magic = _mm256_set1_ps(EXP_MAGIC);
    /* The operand order matters for NaN: max and min return their second operand when either is NaN. */
    __m256 c = _mm256_max_ps(_mm256_set1_ps(EXP_LO), x);
    c = _mm256_min_ps(_mm256_set1_ps(EXP_HI), c);
    const __m256 t = _mm256_add_ps(_mm256_mul_ps(c, _mm256_set1_ps(EXP_LOG2E)), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_sub_ps(c, _mm256_mul_ps(n, _mm256_set1_ps(EXP_LN2_HI)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(EXP_LN2_LO)));
    __m256 p = _mm256_set1_ps(EXP_P0);
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(EXP_P1));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(EXP_P2));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(EXP_P3));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(EXP_P4));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(EXP_P5));
    p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    const __m256i y = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_blendv_ps(_mm256_castsi256_ps(y), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

PN_AVX2 static void rms_norm_avx2(const float *x, const float *w, float *out, size_t n, float eps) {
    __m256 lanes = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        lanes = _mm256_add_ps(lanes, _mm256_mul_ps(v, v));
    }
    float lane[8];
    _mm256_storeu_ps(lane, lanes);
    for (; i < n; i++) lane[i % 8] = lane[i % 8] + x[i] * x[i];
    const float s = 1.0f / sqrtf(sum8_avx2(_mm256_loadu_ps(lane)) / (float)n + eps);
    const __m256 scale = _mm256_set1_ps(s);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale), _mm256_loadu_ps(w + i)));
    for (; i < n; i++) out[i] = (x[i] * s) * w[i];
}

PN_AVX2 static void swiglu_avx2(const float *gate, const float *up, float *out, size_t n) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 g = _mm256_loadu_ps(gate + i);
        const __m256 e = exp8_avx2(_mm256_xor_ps(g, sign));
        const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, e));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
    for (; i < n; i++) out[i] = (gate[i] / (1.0f + exp_f32(-gate[i]))) * up[i];
}

/* ---- attention -------------------------------------------------------------------------------------------- */

PN_AVX2 static void narrow_avx2(const float *x, uint16_t *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
    for (; i < n; i++) out[i] = (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x[i]), 0), 0);
}

/* `nv` vectors of 8 keys times `nq` queries. While it goes along the head it fetches `lines` cache lines per element
 * from `ahead` on. */
INLINE_AVX2 void scores_tile_avx2(const float *q, const int nq, const uint16_t *k, const int nv, size_t head_size,
                                  float scale, float *s, const uint16_t *ahead, const int lines) {
    __m256 acc[6][4];
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < nv; v++) acc[i][v] = _mm256_setzero_ps();
    for (size_t e = 0; e < head_size; e++) {
        __m256 keys[4];
        for (int l = 0; l < lines; l++) _mm_prefetch((const char *)(ahead + e * KV_BLOCK + 32 * l), _MM_HINT_T0);
        for (int v = 0; v < nv; v++) keys[v] = load8_f16_avx2(k + e * KV_BLOCK + 8 * v);
        for (int i = 0; i < nq; i++) {
            const __m256 qe = _mm256_set1_ps(q[(size_t)i * head_size + e]);
            for (int v = 0; v < nv; v++) acc[i][v] = _mm256_fmadd_ps(qe, keys[v], acc[i][v]);
        }
    }
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < nv; v++)
            _mm256_storeu_ps(s + i * KV_BLOCK + 8 * v, _mm256_mul_ps(acc[i][v], _mm256_set1_ps(scale)));
}

/* `nq` queries over n keys (a multiple of 16): four vectors at a time, which covers a block in four steps and fetches a
 * quarter of `ahead` in each, or two for many queries. */
INLINE_AVX2 void scores_rows_avx2(const float *q, const int nq, const uint16_t *k, size_t n, size_t head_size,
                                  float scale, float *s, const uint16_t *ahead) {
    size_t j = 0;
    if (nq <= 3)
        for (; j + 32 <= n; j += 32) scores_tile_avx2(q, nq, k + j, 4, head_size, scale, s + j, ahead + j, 1);
    for (; j < n; j += 16) scores_tile_avx2(q, nq, k + j, 2, head_size, scale, s + j, ahead, 0);
}

PN_AVX2 static void attend_scores_avx2(const float *q, size_t n_q, const uint16_t *k, size_t n_keys, size_t head_size,
                                       float scale, float *s, const uint16_t *ahead) {
    const size_t n = (n_keys + 15) / 16 * 16;
    size_t i = 0;
    for (; i + 6 <= n_q; i += 6)
        scores_rows_avx2(q + i * head_size, 6, k, n, head_size, scale, s + i * KV_BLOCK, ahead);
    for (; i + 3 <= n_q; i += 3)
        scores_rows_avx2(q + i * head_size, 3, k, n, head_size, scale, s + i * KV_BLOCK, ahead);
    for (; i < n_q; i++) scores_rows_avx2(q + i * head_size, 1, k, n, head_size, scale, s + i * KV_BLOCK, ahead);
}

/* All ones in the first `n` of 8 lanes (n <= 8). */
INLINE_AVX2 __m256 first_lanes_avx2(size_t n) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index));
}

/* The maximum of a row, its exponentials, their sum: three passes over all rows, so that the chain of one row's maxima
 * or sums runs beside those of its neighbours. */
INLINE_AVX2 float row_max_avx2(const float *s, size_t n) {
    __m256 lanes = _mm256_set1_ps(-INFINITY);
    size_t j = 0;
    for (; j + 8 <= n; j += 8) lanes = _mm256_max_ps(lanes, _mm256_loadu_ps(s + j));
    const __m256 rest = first_lanes_avx2(n - j);
    if (j < n) lanes = _mm256_blendv_ps(lanes, _mm256_max_ps(lanes, _mm256_loadu_ps(s + j)), rest);
    float lane[8];
    _mm256_storeu_ps(lane, lanes);
    float max = lane[0];
    for (int l = 1; l < 8; l++) max = max > lane[l] ? max : lane[l];
    return max;
}

INLINE_AVX2 void row_exp_avx2(float *s, size_t n, float max) {
    const __m256 top = _mm256_set1_ps(max);
    size_t j = 0;
    for (; j + 8 <= n; j += 8) _mm256_storeu_ps(s + j, exp8_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + j), top)));
    if (j < n) {
        const __m256 p = exp8_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + j), top));
        _mm256_storeu_ps(s + j, _mm256_and_ps(p, first_lanes_avx2(n - j)));
    }
}

PN_AVX2 static void softmax_block_avx2(float *s, size_t n_q, const size_t *n_keys, float *max, float *sum) {
    for (size_t i = 0; i < n_q; i++) max[i] = row_max_avx2(s + i * KV_BLOCK, n_keys[i]);
    for (size_t i = 0; i < n_q; i++) row_exp_avx2(s + i * KV_BLOCK, n_keys[i], max[i]);
    for (size_t i = 0; i < n_q; i++) {
        __m256 total = _mm256_setzero_ps();
        for (size_t j = 0; j < n_keys[i]; j += 8) total = _mm256_add_ps(total, _mm256_loadu_ps(s + i * KV_BLOCK + j));
        sum[i] = sum8_avx2(total);
    }
}

/* `ne` vectors of the head times `nq` queries over keys [0, common), then over each query's own rest. While it goes
 * along the keys it fetches the same part of `ahead`. */
INLINE_AVX2 void values_tile_avx2(const float *p, const int nq, const uint16_t *v, size_t common, const size_t *n_keys,
                                  size_t e8, const int ne, float *out, const uint16_t *ahead) {
    __m256 acc[6][4];
    for (int i = 0; i < nq; i++)
        for (int e = 0; e < ne; e++) acc[i][e] = _mm256_setzero_ps();
    for (size_t j = 0; j < common; j++) {
        __m256 values[4];
        if (nq <= 3) _mm_prefetch((const char *)(ahead + j * e8), _MM_HINT_T0);
        for (int e = 0; e < ne; e++) values[e] = load8_f16_avx2(v + j * e8 + 8 * (size_t)e);
        for (int i = 0; i < nq; i++) {
            const __m256 pj = _mm256_set1_ps(p[(size_t)i * KV_BLOCK + j]);
            for (int e = 0; e < ne; e++) acc[i][e] = _mm256_fmadd_ps(pj, values[e], acc[i][e]);
        }
    }
    for (int i = 0; i < nq; i++) {
        for (size_t j = common; j < n_keys[i]; j++) {
            const __m256 pj = _mm256_set1_ps(p[(size_t)i * KV_BLOCK + j]);
            for (int e = 0; e < ne; e++)
                acc[i][e] = _mm256_fmadd_ps(pj, load8_f16_avx2(v + j * e8 + 8 * (size_t)e), acc[i][e]);
        }
        for (int e = 0; e < ne; e++) _mm256_storeu_ps(out + (size_t)i * e8 + 8 * (size_t)e, acc[i][e]);
    }
}

/* `nq` queries, `ne` vectors of the head at a time, then one. */
INLINE_AVX2 void values_rows_avx2(const float *p, const int nq, const uint16_t *v, const size_t *n_keys, size_t e8,
                                  const int ne, float *out, const uint16_t *ahead) {
    size_t common = n_keys[0], e = 0;
    for (int i = 1; i < nq; i++) common = size_min(common, n_keys[i]);
    for (; e + 8 * (size_t)ne <= e8; e += 8 * (size_t)ne)
        values_tile_avx2(p, nq, v + e, common, n_keys, e8, ne, out + e, ahead + e);
    for (; e < e8; e += 8) values_tile_avx2(p, nq, v + e, common, n_keys, e8, 1, out + e, ahead + e);
}

PN_AVX2 static void attend_values_avx2(const float *p, size_t n_q, const uint16_t *v, const size_t *n_keys, size_t e8,
                                       float *out, const uint16_t *ahead) {
    size_t i = 0;
    for (; i + 6 <= n_q; i += 6) values_rows_avx2(p + i * KV_BLOCK, 6, v, n_keys + i, e8, 2, out + i * e8, ahead);
    for (; i + 3 <= n_q; i += 3) values_rows_avx2(p + i * KV_BLOCK, 3, v, n_keys + i, e8, 4, out + i * e8, ahead);
    for (; i < n_q; i++) values_rows_avx2(p + i * KV_BLOCK, 1, v, n_keys + i, e8, 4, out + i * e8, ahead);
}

PN_AVX2 static void attend_combine_avx2(float *acc, const float *values, size_t e8, float acc_weight,
                                        float block_weight) {
    const __m256 old = _mm256_set1_ps(acc_weight), new = _mm256_set1_ps(block_weight);
    for (size_t e = 0; e < e8; e += 8) {
        const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(acc + e), old);
        _mm256_storeu_ps(acc + e, _mm256_fmadd_ps(_mm256_loadu_ps(values + e), new, kept));
    }
}

const kernel_set kernels_avx2 = {
    .isa = "avx2",
    .base = &kernels_portable,
    .usable = cpu_has_avx2,
    .matmul = { [PACK_F32] = matmul_f32_avx2,
                [PACK_F16] = matmul_f16_avx2,
                [PACK_BF16] = matmul_bf16_avx2,
                BLOCK_KINDS(BLOCK_ENTRY, avx2) },
    .quantize = quantize_avx2,
    .quantize_rest = quantize_rest_avx2,
    .rms_norm = rms_norm_avx2,
    .swiglu = swiglu_avx2,
    .narrow = narrow_avx2,
    .attend_scores = attend_scores_avx2,
    .softmax_block = softmax_block_avx2,
    .attend_values = attend_values_avx2,
    .attend_combine = attend_combine_avx2,
};

#endif
