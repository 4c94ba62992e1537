/* avx512.c - the kernels for x86-64 with AVX-512 and VNNI.                                              (rank 4)
 *
 * Every function carries its target attribute; the build's flags allow the baseline alone, so nothing outside this file
 * can use a wide instruction. The order of operations is that of kernels.h. What is not here is avx2.c's.
 *
 * A group's sixteen rows are one vector. Products with quantized weights are in avx512_blocks.c. */
#include "kernels/blocks.h"

#if defined(__x86_64__)

#include "cpu.h"
#include "mathf.h"

#include <immintrin.h>
#include <math.h>

/* The body functions take the tile width as a constant and must vanish into their callers. */
#define INLINE_AVX512 PN_AVX512 static inline __attribute__((always_inline))

INLINE_AVX512 __m512i load_avx512(const uint8_t *p) {
    return _mm512_loadu_si512((const void *)p);
}
INLINE_AVX512 __m512 load16_f16_avx512(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* ---- float weights ---------------------------------------------------------------------------------------- */

/* Element k of the rows of a group. */
INLINE_AVX512 __m512 element_avx512(const uint8_t *w, size_t k, const pack_kind kind) {
    if (kind == PACK_F32) return _mm512_castsi512_ps(load_avx512(w + k * 4 * GROUP_ROWS));
    if (kind == PACK_F16) return load16_f16_avx512(w + k * 2 * GROUP_ROWS);
    const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(w + k * 2 * GROUP_ROWS));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* `ng` groups times `nt` tokens: with few tokens several groups run side by side, to hide the latency of the adds. */
INLINE_AVX512 void float_tile_avx512(const uint8_t *w, size_t group_bytes, const int ng, const activations *a, size_t t,
                                     const int nt, const pack_kind kind, float *out, size_t ld_out) {
    const float *x = a->x + t * a->ld_x;
    __m512 acc[4][12];
    for (int g = 0; g < ng; g++)
        for (int i = 0; i < nt; i++) acc[g][i] = _mm512_setzero_ps();
    for (size_t k = 0; k < a->k; k++)
        for (int g = 0; g < ng; g++) {
            const __m512 weights = element_avx512(w + (size_t)g * group_bytes, k, kind);
#pragma GCC unroll 12
            for (int i = 0; i < nt; i++)
                acc[g][i] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[(size_t)i * a->ld_x + k]), acc[g][i]);
        }
    for (int g = 0; g < ng; g++)
        for (int i = 0; i < nt; i++)
            _mm512_storeu_ps(out + (t + (size_t)i) * ld_out + (size_t)g * GROUP_ROWS, acc[g][i]);
}

/* Tokens from *t on in tiles of `nt`: `ng` groups at a time, then one. */
INLINE_AVX512 void float_tiles_avx512(const uint8_t *w, size_t n_groups, const int ng, const activations *a, size_t *t,
                                      size_t end, const int nt, const pack_kind kind, float *out, size_t ld_out) {
    const size_t group_bytes = a->k * GROUP_ROWS * (kind == PACK_F32 ? 4 : 2);
    for (; *t + (size_t)nt <= end; *t += (size_t)nt) {
        size_t g = 0;
        for (; g + (size_t)ng <= n_groups; g += (size_t)ng)
            float_tile_avx512(w + g * group_bytes, group_bytes, ng, a, *t, nt, kind, out + g * GROUP_ROWS, ld_out);
        for (; g < n_groups; g++)
            float_tile_avx512(w + g * group_bytes, group_bytes, 1, a, *t, nt, kind, out + g * GROUP_ROWS, ld_out);
    }
}

INLINE_AVX512 void matmul_float_avx512(const uint8_t *w, size_t n_groups, const activations *a, size_t t, size_t n_t,
                                       const pack_kind kind, float *out, size_t ld_out) {
    const size_t end = t + n_t;
    float_tiles_avx512(w, n_groups, 1, a, &t, end, 12, kind, out, ld_out);
    float_tiles_avx512(w, n_groups, 2, a, &t, end, 4, kind, out, ld_out);
    float_tiles_avx512(w, n_groups, 4, a, &t, end, 1, kind, out, ld_out);
}

#define MATMUL_FLOAT_AVX512(name, kind)                                                                                \
    PN_AVX512 static void name(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,         \
                               float *out, size_t ld_out) {                                                            \
        matmul_float_avx512(w, n_groups, a, t0, n_t, kind, out, ld_out);                                               \
    }
MATMUL_FLOAT_AVX512(matmul_f32_avx512, PACK_F32)
MATMUL_FLOAT_AVX512(matmul_f16_avx512, PACK_F16)
MATMUL_FLOAT_AVX512(matmul_bf16_avx512, PACK_BF16)

/* ---- elementwise ------------------------------------------------------------------------------------------ */

/* exp_f32 of mathf.h on 16 lanes, operation by operation. */
INLINE_AVX512 __m512 exp16_avx512(__m512 x) {
    const __m512 magic = _mm512_set1_ps(EXP_MAGIC);
    /* The operand order matters for NaN: max and min return their second operand when either is NaN. */
    __m512 c = _mm512_max_ps(_mm512_set1_ps(EXP_LO), x);
    c = _mm512_min_ps(_mm512_set1_ps(EXP_HI), c);
    const __m512 t = _mm512_add_ps(_mm512_mul_ps(c, _mm512_set1_ps(EXP_LOG2E)), magic);
    const __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_sub_ps(c, _mm512_mul_ps(n, _mm512_set1_ps(EXP_LN2_HI)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(EXP_LN2_LO)));
    __m512 p = _mm512_set1_ps(EXP_P0);
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(EXP_P1));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(EXP_P2));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(EXP_P3));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(EXP_P4));
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(EXP_P5));
    p = _mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(r, r)), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
    const __m512i y = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_mask_mov_ps(_mm512_castsi512_ps(y), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

PN_AVX512 static void swiglu_avx512(const float *gate, const float *up, float *out, size_t n) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 g = _mm512_loadu_ps(gate + i);
        const __m512 silu = _mm512_div_ps(g, _mm512_add_ps(one, exp16_avx512(_mm512_xor_ps(g, sign))));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
    }
    for (; i < n; i++) out[i] = (gate[i] / (1.0f + exp_f32(-gate[i]))) * up[i];
}

/* ---- attention -------------------------------------------------------------------------------------------- */

/* 8 lanes in the order of kernels.h: ((0+4) + (2+6)) + ((1+5) + (3+7)). */
INLINE_AVX512 float sum8_avx512(__m256 v) {
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}

/* The maximum of a row, its exponentials, their sum: three passes over all rows, so that the chain of one row's maxima
 * or sums runs beside those of its neighbours. */
INLINE_AVX512 float row_max_avx512(const float *s, size_t n) {
    __m256 lanes = _mm256_set1_ps(-INFINITY);
    size_t j = 0;
    for (; j + 8 <= n; j += 8) lanes = _mm256_max_ps(lanes, _mm256_loadu_ps(s + j));
    const __mmask8 rest = (__mmask8)((1u << (n - j)) - 1);
    if (j < n) lanes = _mm256_mask_max_ps(lanes, rest, lanes, _mm256_loadu_ps(s + j));
    float lane[8];
    _mm256_storeu_ps(lane, lanes);
    float max = lane[0];
    for (int l = 1; l < 8; l++) max = max > lane[l] ? max : lane[l];
    return max;
}

INLINE_AVX512 void row_exp_avx512(float *s, size_t n, float max) {
    const __m512 top = _mm512_set1_ps(max);
    size_t j = 0;
    for (; j + 16 <= n; j += 16) _mm512_storeu_ps(s + j, exp16_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + j), top)));
    if (j < n) {
        const __mmask16 used = (__mmask16)((1u << (n - j)) - 1), written = n - j > 8 ? 0xffff : 0xff;
        const __m512 p = exp16_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(used, s + j), top));
        _mm512_mask_storeu_ps(s + j, written, _mm512_maskz_mov_ps(used, p));
    }
}

PN_AVX512 static void softmax_block_avx512(float *s, size_t n_q, const size_t *n_keys, float *max, float *sum) {
    for (size_t i = 0; i < n_q; i++) max[i] = row_max_avx512(s + i * KV_BLOCK, n_keys[i]);
    for (size_t i = 0; i < n_q; i++) row_exp_avx512(s + i * KV_BLOCK, n_keys[i], max[i]);
    for (size_t i = 0; i < n_q; i++) {
        __m256 total = _mm256_setzero_ps();
        for (size_t j = 0; j < n_keys[i]; j += 8) total = _mm256_add_ps(total, _mm256_loadu_ps(s + i * KV_BLOCK + j));
        sum[i] = sum8_avx512(total);
    }
}

INLINE_AVX512 void store_scores_avx512(const __m512 *acc, const int nv, float scale, float *s) {
    for (int v = 0; v < nv; v++) _mm512_storeu_ps(s + 16 * v, _mm512_mul_ps(acc[v], _mm512_set1_ps(scale)));
}

/* `nq` queries, a few, over all keys of a block at once. They wait for memory: while they go along the head they fetch
 * the same part of `ahead`. */
INLINE_AVX512 void scores_block_avx512(const float *q, const int nq, const uint16_t *k, size_t head_size, float scale,
                                       float *s, const uint16_t *ahead) {
    __m512 acc[3][8];
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < 8; v++) acc[i][v] = _mm512_setzero_ps();
    for (size_t e = 0; e < head_size; e++) {
        __m512 qe[3];
        for (int l = 0; l < 4; l++) _mm_prefetch((const char *)(ahead + e * KV_BLOCK + 32 * l), _MM_HINT_T0);
        for (int i = 0; i < nq; i++) qe[i] = _mm512_set1_ps(q[(size_t)i * head_size + e]);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
            const __m512 keys = load16_f16_avx512(k + e * KV_BLOCK + 16 * v);
            for (int i = 0; i < nq; i++) acc[i][v] = _mm512_fmadd_ps(qe[i], keys, acc[i][v]);
        }
    }
    for (int i = 0; i < nq; i++) store_scores_avx512(acc[i], 8, scale, s + i * KV_BLOCK);
}

/* `nv` vectors of 16 keys times `nq` queries. */
INLINE_AVX512 void scores_tile_avx512(const float *q, const int nq, const uint16_t *k, const int nv, size_t head_size,
                                      float scale, float *s) {
    __m512 acc[12][4];
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < nv; v++) acc[i][v] = _mm512_setzero_ps();
    for (size_t e = 0; e < head_size; e++) {
        __m512 keys[4];
        for (int v = 0; v < nv; v++) keys[v] = load16_f16_avx512(k + e * KV_BLOCK + 16 * v);
#pragma GCC unroll 12
        for (int i = 0; i < nq; i++) {
            const __m512 qe = _mm512_set1_ps(q[(size_t)i * head_size + e]);
            for (int v = 0; v < nv; v++) acc[i][v] = _mm512_fmadd_ps(qe, keys[v], acc[i][v]);
        }
    }
    for (int i = 0; i < nq; i++) store_scores_avx512(acc[i], nv, scale, s + i * KV_BLOCK);
}

/* `nq` queries over n keys (a multiple of 16): `nv` vectors at a time, then one. */
INLINE_AVX512 void scores_rows_avx512(const float *q, const int nq, const uint16_t *k, size_t n, const int nv,
                                      size_t head_size, float scale, float *s, const uint16_t *ahead) {
    size_t j = 0;
    if (nq <= 3 && n == KV_BLOCK) {
        scores_block_avx512(q, nq, k, head_size, scale, s, ahead);
        return;
    }
    for (; j + 16 * (size_t)nv <= n; j += 16 * (size_t)nv)
        scores_tile_avx512(q, nq, k + j, nv, head_size, scale, s + j);
    for (; j < n; j += 16) scores_tile_avx512(q, nq, k + j, 1, head_size, scale, s + j);
}

PN_AVX512 static void attend_scores_avx512(const float *q, size_t n_q, const uint16_t *k, size_t n_keys,
                                           size_t head_size, float scale, float *s, const uint16_t *ahead) {
    const size_t n = (n_keys + 15) / 16 * 16;
    size_t i = 0;
    for (; i + 12 <= n_q; i += 12)
        scores_rows_avx512(q + i * head_size, 12, k, n, 2, head_size, scale, s + i * KV_BLOCK, ahead);
    for (; i + 6 <= n_q; i += 6)
        scores_rows_avx512(q + i * head_size, 6, k, n, 4, head_size, scale, s + i * KV_BLOCK, ahead);
    for (; i + 3 <= n_q; i += 3)
        scores_rows_avx512(q + i * head_size, 3, k, n, 4, head_size, scale, s + i * KV_BLOCK, ahead);
    for (; i < n_q; i++) scores_rows_avx512(q + i * head_size, 1, k, n, 4, head_size, scale, s + i * KV_BLOCK, ahead);
}

/* `ne` vectors of the head times `nq` queries over keys [0, common), then over each query's own rest. While it goes
 * along the keys it fetches the same part of `ahead`. */
INLINE_AVX512 void values_tile_avx512(const float *p, const int nq, const uint16_t *v, size_t common,
                                      const size_t *n_keys, size_t e8, const int ne, float *out,
                                      const uint16_t *ahead) {
    __m512 acc[12][4];
    for (int i = 0; i < nq; i++)
        for (int e = 0; e < ne; e++) acc[i][e] = _mm512_setzero_ps();
    for (size_t j = 0; j < common; j++) {
        __m512 values[4];
        for (int l = 0; l < (ne + 1) / 2 && nq <= 3; l++)
            _mm_prefetch((const char *)(ahead + j * e8 + 32 * l), _MM_HINT_T0);
        for (int e = 0; e < ne; e++) values[e] = load16_f16_avx512(v + j * e8 + 16 * (size_t)e);
#pragma GCC unroll 12
        for (int i = 0; i < nq; i++) {
            const __m512 pj = _mm512_set1_ps(p[(size_t)i * KV_BLOCK + j]);
            for (int e = 0; e < ne; e++) acc[i][e] = _mm512_fmadd_ps(pj, values[e], acc[i][e]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < nq; i++) {
        for (size_t j = common; j < n_keys[i]; j++) {
            const __m512 pj = _mm512_set1_ps(p[(size_t)i * KV_BLOCK + j]);
            for (int e = 0; e < ne; e++)
                acc[i][e] = _mm512_fmadd_ps(pj, load16_f16_avx512(v + j * e8 + 16 * (size_t)e), acc[i][e]);
        }
        for (int e = 0; e < ne; e++) _mm512_storeu_ps(out + (size_t)i * e8 + 16 * (size_t)e, acc[i][e]);
    }
}

/* `nq` queries; e8 is a multiple of 16. `ne` vectors of the head at a time, then one. */
INLINE_AVX512 void values_rows_avx512(const float *p, const int nq, const uint16_t *v, const size_t *n_keys, size_t e8,
                                      const int ne, float *out, const uint16_t *ahead) {
    size_t common = n_keys[0], e = 0;
    for (int i = 1; i < nq; i++) common = size_min(common, n_keys[i]);
    for (; e + 16 * (size_t)ne <= e8; e += 16 * (size_t)ne)
        values_tile_avx512(p, nq, v + e, common, n_keys, e8, ne, out + e, ahead + e);
    for (; e < e8; e += 16) values_tile_avx512(p, nq, v + e, common, n_keys, e8, 1, out + e, ahead + e);
}

PN_AVX512 static void attend_values_avx512(const float *p, size_t n_q, const uint16_t *v, const size_t *n_keys,
                                           size_t e8, float *out, const uint16_t *ahead) {
    size_t i = 0;
    if (e8 % 16) { /* a head of odd size */
        kernels_avx2.attend_values(p, n_q, v, n_keys, e8, out, ahead);
        return;
    }
    for (; i + 12 <= n_q; i += 12) values_rows_avx512(p + i * KV_BLOCK, 12, v, n_keys + i, e8, 2, out + i * e8, ahead);
    for (; i + 6 <= n_q; i += 6) values_rows_avx512(p + i * KV_BLOCK, 6, v, n_keys + i, e8, 4, out + i * e8, ahead);
    for (; i + 3 <= n_q; i += 3) values_rows_avx512(p + i * KV_BLOCK, 3, v, n_keys + i, e8, 4, out + i * e8, ahead);
    for (; i < n_q; i++) values_rows_avx512(p + i * KV_BLOCK, 1, v, n_keys + i, e8, 4, out + i * e8, ahead);
}

const kernel_set kernels_avx512 = {
    .isa = "avx512",
    .base = &kernels_avx2,
    .usable = cpu_has_avx512vnni,
    .matmul = { [PACK_F32] = matmul_f32_avx512,
                [PACK_F16] = matmul_f16_avx512,
                [PACK_BF16] = matmul_bf16_avx512,
                BLOCK_KINDS(BLOCK_ENTRY, avx512) },
    .swiglu = swiglu_avx512,
    .attend_scores = attend_scores_avx512,
    .softmax_block = softmax_block_avx512,
    .attend_values = attend_values_avx512,
};

#endif
