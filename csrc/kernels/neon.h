/* neon.h - what the kernels for AArch64 share: small loads; weights and scales out of packed blocks.           (rank 4)
 *
 * All of it is baseline code that must vanish into its callers, so neon_dot.c may inline it into functions that are
 * allowed more. A kind, a quad and a half are constants there. The order of operations is that of kernels.h. A vector
 * is four rows; half a group, eight rows, is two of them. */
#ifndef PN_NEON_H
#define PN_NEON_H

#include "kernels/blocks.h"

#if defined(__aarch64__)

#include "dtype_blocks.h"

#include <arm_neon.h>
#include <string.h>

#define INLINE_NEON static inline __attribute__((always_inline))

/* Keeps loads on their side: gcc would begin them so early that the registers do not suffice and sums are spilled. */
#define LOAD_NO_EARLIER() __asm__ volatile("" ::: "memory")

/* 8 halves as floats: elements 0-3, 4-7. Read as bytes, for packed weights promise no alignment. */
INLINE_NEON float32x4x2_t load8_f16_neon(const void *p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
    return (float32x4x2_t){ { vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves) } };
}
INLINE_NEON float32x4x2_t load8_u8_neon(const uint8_t *p) {
    const uint16x8_t n = vmovl_u8(vld1_u8(p));
    return (float32x4x2_t){ { vcvtq_f32_u32(vmovl_u16(vget_low_u16(n))), vcvtq_f32_u32(vmovl_high_u16(n)) } };
}
INLINE_NEON float32x4x2_t load8_i8_neon(const uint8_t *p) {
    const int16x8_t n = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return (float32x4x2_t){ { vcvtq_f32_s32(vmovl_s16(vget_low_s16(n))), vcvtq_f32_s32(vmovl_high_s16(n)) } };
}
INLINE_NEON int8x16_t load16_neon(const uint8_t *p) {
    return vreinterpretq_s8_u8(vld1q_u8(p));
}
/* Two 16-bit sums, twice. */
INLINE_NEON int16x4_t load2_s16_neon(const int16_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vreinterpret_s16_s32(vdup_n_s32(v));
}
/* One token alone is bound by memory: it fetches ahead. */
INLINE_NEON void prefetch_neon(const uint8_t *w, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)w + 1024 + line)); /* any address will do */
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

/* Bits of each byte moved by `left` (right if negative). */
INLINE_NEON uint8x16_t move_bits_neon(uint8x16_t v, const int left) {
    return left < 0 ? v >> vdupq_n_u8((uint8_t)-left) : v << vdupq_n_u8((uint8_t)left);
}

/* Quad v of the four rows 4h to 4h + 3 of a half group whose block's codes stand at `codes`. Weights, but for Q4 and
 * Q5: those are codes, which count from what sum_start_neon gives. */
INLINE_NEON int8x16_t weights_neon(const pack_kind kind, const uint8_t *codes, const int v, const int h) {
    const uint8_t *nibbles = codes + h * 16, *twos = nibbles + (kind_has_nibbles(kind) ? NIBBLES_BYTES : 0);
    const uint8_t *ones = twos + (kind_has_twos(kind) ? TWOS_BYTES : 0);
    uint8x16_t w = vdupq_n_u8(0);
    if (kind == PACK_Q8) return load16_neon(codes + v * QUAD_BYTES + h * 16);
    if (kind_has_nibbles(kind)) {
        const uint8x16_t both = vld1q_u8(nibbles + v % 4 * QUAD_BYTES);
        w = v < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
    }
    if (kind_has_twos(kind)) {
        const uint8x16_t two = vld1q_u8(twos + v / 4 * QUAD_BYTES);
        if (kind_has_nibbles(kind))
            w = vbslq_u8(vdupq_n_u8(0x30), move_bits_neon(two, 4 - v % 4 * 2), w);
        else
            w = vandq_u8(move_bits_neon(two, -(v % 4 * 2)), vdupq_n_u8(3));
    }
    if (kind_has_ones(kind)) {
        const int bit = kind_has_nibbles(kind) ? 4 : 2;
        w = vbslq_u8(vdupq_n_u8((uint8_t)(1 << bit)), move_bits_neon(vld1q_u8(ones), bit - v), w);
    }
    if (kind_has_table(kind)) return vqtbl1q_s8(vld1q_s8(IQ4_VALUES), w);
    if (kind == PACK_Q6K || kind == PACK_Q3K) w = vsubq_u8(w, vdupq_n_u8((uint8_t)kind_code_offset(kind)));
    return vreinterpretq_s8_u8(w);
}

/* What the sum over a block with one token starts from. */
INLINE_NEON int32x4_t sum_start_neon(const pack_kind kind, const activations *a, size_t at) {
    return vdupq_n_s32(kind == PACK_Q4 ? a->bias4[at] : kind == PACK_Q5 ? 2 * a->bias4[at] : 0);
}

/* A block's weights, put together once for many tokens: [quad v][h] as above. */
typedef struct ready_neon {
    int8_t weights[8][2][16];
} ready_neon;

INLINE_NEON void make_ready_neon(const pack_kind kind, const uint8_t *codes, ready_neon *out) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            vst1q_s8(out->weights[u][h], weights_neon(kind, codes, u, h));
            vst1q_s8(out->weights[u + 4][h], weights_neon(kind, codes, u + 4, h));
        }
    __asm__ volatile("" ::"r"(out) : "memory"); /* stays in memory: the registers are for sums */
}

/* weights_neon of a block, or out of one made ready. */
INLINE_NEON int8x16_t either_weights_neon(const pack_kind kind, const uint8_t *codes, const ready_neon *ready,
                                          const int v, const int h) {
    return ready ? vld1q_s8(ready->weights[v][h]) : weights_neon(kind, codes, v, h);
}

/* ---- scales ----------------------------------------------------------------------------------------------- */

/* Of a block of eight rows. Unused parts vanish. */
typedef struct scales_neon {
    float32x4x2_t d, offset; /* of the super-block, where the halves of a block have scales of their own */
    int32x4_t half[2][2];    /* scales, [half of the block][h]                                           */
    int16x8_t min[2];        /* Q2K: of the halves                                                        */
} scales_neon;

/* Block b of a super-block; rows 8 * half to 8 * half + 7. */
INLINE_NEON void block_scales_neon(const pack_kind kind, const uint8_t *head, size_t b, size_t half, scales_neon *s) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    s->d = load8_f16_neon(head + half * 16);
    if (kind_has_offset(kind)) s->offset = load8_f16_neon(head + SCALES_BYTES + half * 16);
    if (kind == PACK_IQ4K || kind == PACK_Q4K || kind == PACK_Q5K) {
        const uint8_t *at = each + b * (kind == PACK_IQ4K ? 1 : 2) * GROUP_ROWS + half * HALF_ROWS;
        const float32x4x2_t scale = kind == PACK_IQ4K ? load8_i8_neon(at) : load8_u8_neon(at);
        for (int h = 0; h < 2; h++) s->d.val[h] = vmulq_f32(s->d.val[h], scale.val[h]);
        if (kind == PACK_IQ4K) return;
        const float32x4x2_t min = load8_u8_neon(at + GROUP_ROWS);
        for (int h = 0; h < 2; h++) s->offset.val[h] = vmulq_f32(s->offset.val[h], min.val[h]);
    }
}

/* The scales (and minima) of its halves. */
INLINE_NEON void half_scales_neon(const pack_kind kind, const uint8_t *head, size_t b, size_t half, scales_neon *s) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    const uint8x8x2_t bytes = vld2_u8(each + (b * GROUP_ROWS + half * HALF_ROWS) * 2);
    for (int i = 0; i < 2; i++) {
        int16x8_t scale = vmovl_s8(vreinterpret_s8_u8(bytes.val[i]));
        if (kind == PACK_Q2K) {
            scale = vreinterpretq_s16_u16(vmovl_u8(vand_u8(bytes.val[i], vdup_n_u8(15))));
            s->min[i] = vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(bytes.val[i], 4)));
        }
        s->half[i][0] = vmovl_s16(vget_low_s16(scale));
        s->half[i][1] = vmovl_high_s16(scale);
    }
}

/* acc + the product of four rows' block, whose exact sum this is, with one token. */
INLINE_NEON float32x4_t add_sum_neon(const pack_kind kind, int32x4_t sum, const scales_neon *s, const int h,
                                     const activations *a, size_t at, float32x4_t acc) {
    acc = vfmaq_f32(acc, vcvtq_f32_s32(sum), vmulq_n_f32(s->d.val[h], a->d[at]));
    if (kind == PACK_Q4M || kind == PACK_Q5M) acc = vfmaq_n_f32(acc, s->offset.val[h], a->ds[at]);
    if (kind == PACK_Q4K || kind == PACK_Q5K) acc = vfmsq_n_f32(acc, s->offset.val[h], a->ds[at]);
    if (kind == PACK_Q2K) {
        const int16x4_t sums = load2_s16_neon(a->sum16 + 2 * at);
        const int32x4_t minima =
            h == 0 ? vmlal_lane_s16(vmull_lane_s16(vget_low_s16(s->min[0]), sums, 0), vget_low_s16(s->min[1]), sums, 1)
                   : vmlal_high_lane_s16(vmull_high_lane_s16(s->min[0], sums, 0), s->min[1], sums, 1);
        acc = vfmsq_f32(acc, vcvtq_f32_s32(minima), vmulq_n_f32(s->offset.val[h], a->d[at]));
    }
    return acc;
}

#endif
#endif
