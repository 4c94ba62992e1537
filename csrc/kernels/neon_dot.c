/* neon_dot.c - the products of 8 bits for AArch64 with the dot product instructions (sdot).             (rank 4)
 *
 * Every function carries its target attribute; the build's flags allow the baseline alone, so nothing outside this file
 * can use sdot. The order of operations is that of kernels.h. What is not here is neon.c's.
 *
 * The layout makes a quad of activations one lane: sdot takes it by its number, for four rows at once.
 *
 * Inner loops, instructions as gcc 12 compiles them (for a block of 32 along K times 8 rows; nothing is spilled):
 *   8-bit tile: 138 for four tokens (64 sdot, 25 loads), 55 for one (16 sdot, 5 prefetches).
 *   4-bit tile: 165 for four tokens (64 sdot, 16 to part the nibbles), Q4M 169; 63 and 68 for one.
 * With two pipes for sdot (Cortex-A76) four tokens take 44 cycles of them: 23 multiply-adds per cycle at best. */
#include "kernels/kernels.h"

#if defined(__aarch64__)

#include "cpu.h"

#include <arm_neon.h>

/* The body functions take the tile width as a constant and must vanish into their callers. */
#define INLINE_NEON_DOT PN_NEON_DOT static inline __attribute__((always_inline))

/* Keeps loads on their side: gcc would begin them so early that the registers do not suffice and sums are spilled. */
#define LOAD_NO_EARLIER() __asm__ volatile("" ::: "memory")

/* 8 halves as floats: elements 0-3, 4-7. */
INLINE_NEON_DOT float32x4x2_t load8_f16_neon_dot(const uint8_t *p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
    return (float32x4x2_t){ { vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves) } };
}
/* One token alone is bound by memory: it fetches ahead. */
INLINE_NEON_DOT void prefetch_neon_dot(const uint8_t *w, size_t block_bytes) {
    for (size_t line = 0; line < block_bytes; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)w + 1024 + line));
}

/* Quad `quad` of a vector of four quads of activations times four rows. The intrinsic wants its lane as a literal. */
INLINE_NEON_DOT int32x4_t dot_neon_dot(int32x4_t sums, int8x16_t weights, int8x16_t x, const int quad) {
    if (quad == 0) return vdotq_laneq_s32(sums, weights, x, 0);
    if (quad == 1) return vdotq_laneq_s32(sums, weights, x, 1);
    if (quad == 2) return vdotq_laneq_s32(sums, weights, x, 2);
    return vdotq_laneq_s32(sums, weights, x, 3);
}

/* Four quads of 8-bit weights, half of [quad][16 rows][4], times quads x[i] of `nt` tokens. */
INLINE_NEON_DOT void q8_quads_neon_dot(int32x4_t sums[4][2], const uint8_t *w, const int8x16_t x[4], const int nt) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const int8x16_t low = vreinterpretq_s8_u8(vld1q_u8(w + v * QUAD_BYTES));
        const int8x16_t high = vreinterpretq_s8_u8(vld1q_u8(w + v * QUAD_BYTES + 16));
        for (int i = 0; i < nt; i++) {
            sums[i][0] = dot_neon_dot(sums[i][0], low, x[i], v);
            sums[i][1] = dot_neon_dot(sums[i][1], high, x[i], v);
        }
    }
}

/* Quads v (low nibbles) times x0, quads v + 4 (high nibbles) times x1. */
INLINE_NEON_DOT void q4_quads_neon_dot(int32x4_t sums[4][2], const uint8_t *w, const int8x16_t x0[4],
                                       const int8x16_t x1[4], const int nt) {
    const uint8x16_t nibble = vdupq_n_u8(15);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            LOAD_NO_EARLIER();
            const uint8x16_t both = vld1q_u8(w + v * QUAD_BYTES + h * 16);
            const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, nibble));
            const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
            for (int i = 0; i < nt; i++) {
                sums[i][h] = dot_neon_dot(sums[i][h], low, x0[i], v);
                sums[i][h] = dot_neon_dot(sums[i][h], high, x1[i], v);
            }
        }
}

/* Half `half` of a group times `nt` tokens from token t; `kind` is constant. */
INLINE_NEON_DOT void tile_neon_dot(const uint8_t *w, size_t half, const activations *a, size_t t, const int nt,
                                   const pack_kind kind, float *out, size_t ld_out) {
    const size_t n_blocks = a->k / BLOCK_K;
    const size_t block_bytes = kind == PACK_Q8 ? Q8_BLOCK_BYTES : kind == PACK_Q4 ? Q4_BLOCK_BYTES : Q4M_BLOCK_BYTES;
    const int8_t *q = a->q + t * a->k;
    float32x4_t acc[4][2];
    for (int i = 0; i < nt; i++) acc[i][0] = acc[i][1] = vdupq_n_f32(0);
    for (size_t b = 0; b < n_blocks; b++, w += block_bytes, q += BLOCK_K) {
        int32x4_t sums[4][2];
        int8x16_t x0[4], x1[4];
        const uint8_t *quants = w + (kind == PACK_Q4M ? 2 * SCALES_BYTES : SCALES_BYTES) + half * 32;
        if (nt == 1 && half == 0) prefetch_neon_dot(w, block_bytes);
        for (int i = 0; i < nt; i++) {
            const int32_t start = kind == PACK_Q4 ? a->bias4[(t + (size_t)i) * n_blocks + b] : 0;
            sums[i][0] = sums[i][1] = vdupq_n_s32(start);
            x0[i] = vld1q_s8(q + (size_t)i * a->k);
            x1[i] = vld1q_s8(q + (size_t)i * a->k + 16);
        }
        if (kind == PACK_Q8) {
            q8_quads_neon_dot(sums, quants, x0, nt);
            LOAD_NO_EARLIER();
            q8_quads_neon_dot(sums, quants + 4 * QUAD_BYTES, x1, nt);
        } else
            q4_quads_neon_dot(sums, quants, x0, x1, nt);
        LOAD_NO_EARLIER();
        const float32x4x2_t dw = load8_f16_neon_dot(w + half * 16);
        const float32x4x2_t mw = kind == PACK_Q4M ? load8_f16_neon_dot(w + SCALES_BYTES + half * 16) : dw;
        for (int i = 0; i < nt; i++) {
            const size_t at = (t + (size_t)i) * n_blocks + b;
            for (int h = 0; h < 2; h++) {
                acc[i][h] = vfmaq_f32(acc[i][h], vcvtq_f32_s32(sums[i][h]), vmulq_n_f32(dw.val[h], a->d[at]));
                if (kind == PACK_Q4M) acc[i][h] = vfmaq_n_f32(acc[i][h], mw.val[h], a->ds[at]);
            }
        }
    }
    for (int i = 0; i < nt; i++)
        for (int h = 0; h < 2; h++) vst1q_f32(out + (t + (size_t)i) * ld_out + 4 * h, acc[i][h]);
}

/* All groups for each tile of tokens, so that the tile's activations stay in L1. */
INLINE_NEON_DOT void matmul_neon_dot(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,
                                     const pack_kind kind, float *out, size_t ld_out) {
    const size_t end = t0 + n_t;
    size_t group_bytes = 0, t = t0;
    pack_group_bytes(kind, a->k, &group_bytes);
    for (; t + 4 <= end; t += 4)
        for (size_t g = 0; g < 2 * n_groups; g++)
            tile_neon_dot(w + g / 2 * group_bytes, g % 2, a, t, 4, kind, out + g * HALF_ROWS, ld_out);
    for (; t + 2 <= end; t += 2)
        for (size_t g = 0; g < 2 * n_groups; g++)
            tile_neon_dot(w + g / 2 * group_bytes, g % 2, a, t, 2, kind, out + g * HALF_ROWS, ld_out);
    for (; t < end; t++)
        for (size_t g = 0; g < 2 * n_groups; g++)
            tile_neon_dot(w + g / 2 * group_bytes, g % 2, a, t, 1, kind, out + g * HALF_ROWS, ld_out);
}

PN_NEON_DOT static void matmul_q8_neon_dot(const uint8_t *w, size_t n_groups, const activations *a, size_t t0,
                                           size_t n_t, float *out, size_t ld_out) {
    matmul_neon_dot(w, n_groups, a, t0, n_t, PACK_Q8, out, ld_out);
}
PN_NEON_DOT static void matmul_q4_neon_dot(const uint8_t *w, size_t n_groups, const activations *a, size_t t0,
                                           size_t n_t, float *out, size_t ld_out) {
    matmul_neon_dot(w, n_groups, a, t0, n_t, PACK_Q4, out, ld_out);
}
PN_NEON_DOT static void matmul_q4m_neon_dot(const uint8_t *w, size_t n_groups, const activations *a, size_t t0,
                                            size_t n_t, float *out, size_t ld_out) {
    matmul_neon_dot(w, n_groups, a, t0, n_t, PACK_Q4M, out, ld_out);
}

const kernel_set kernels_neon_dot = {
    .isa = "neon_dot",
    .base = &kernels_neon,
    .usable = cpu_has_dotprod,
    .matmul =
        {
            [PACK_Q8] = matmul_q8_neon_dot,
            [PACK_Q4] = matmul_q4_neon_dot,
            [PACK_Q4M] = matmul_q4m_neon_dot,
        },
};

#endif
