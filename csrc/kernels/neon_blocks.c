/* neon_blocks.c - products with quantized weights for AArch64: what every such processor can run.              (rank 4)
 *
 * The order of operations is that of kernels.h; products by sdot are neon_dot.c's. One body serves all kinds: a kind
 * and a width are constants. Products are widened to 16 bits. Those of codes stay there for a whole block, or for the
 * half of one that has a scale of its own; signed bytes (Q8 and the table's values) fit twice.
 *
 * Inner loops, instructions as gcc 12 compiles them, for a block of 32 along K times 8 rows; no sum is spilled, and no
 * row is added up before its block ends:
 *   Two tokens of a wide tile, its weights ready: 154 to 161 (64 smull and smlal, 16 dup, 16 loads of accumulators and
 *     weights), Q2K 181, table 187. To make a block ready for eight tokens: 46 (Q4) to 116 (Q3K) more.
 *   Two tokens alone: Q8 170, Q4 174, Q4K 183, table 216, Q5 to Q6K 210 to 232. One token: half of these and some ten
 *     more, or about 200 for 16 rows of Q8 and Q4. */
#include "kernels/neon.h"

#if defined(__aarch64__)

enum { WIDE_TOKENS = 8 };

/* Four activation bytes in every 32-bit lane: each row meets the same quad. */
INLINE_NEON int8x16_t quad_neon(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

/* Products of two quads of four rows, summed in 16 bits on top of sums[2] (or of nothing): sums[i] holds rows 2i and
 * 2i + 1, four lanes of each. */
INLINE_NEON void products_neon(int16x8_t sums[2], const bool fresh, const int8x16_t w[2], const int8x16_t x[2]) {
    const int8x8_t w0 = vget_low_s8(w[0]), x0 = vget_low_s8(x[0]);
    sums[0] = fresh ? vmull_s8(w0, x0) : vmlal_s8(sums[0], w0, x0);
    sums[1] = fresh ? vmull_high_s8(w[0], x[0]) : vmlal_high_s8(sums[1], w[0], x[0]);
    sums[0] = vmlal_s8(sums[0], vget_low_s8(w[1]), vget_low_s8(x[1]));
    sums[1] = vmlal_high_s8(sums[1], w[1], x[1]);
}

/* The sums of four rows. Neighbours of most kinds still fit 16 bits, (15 * 127 * 8 or 32 * 127 * 4) * 2 = 32512 at
 * most, but not those of five unsigned bits. */
INLINE_NEON int32x4_t rows_of_neon(const pack_kind kind, const int16x8_t sums[2]) {
    if (kind_has_ones(kind) && kind_has_nibbles(kind)) return vpaddq_s32(vpaddlq_s16(sums[0]), vpaddlq_s16(sums[1]));
    return vpaddlq_s16(vpaddq_s16(sums[0], sums[1]));
}

/* What the two quads of a step are: both nibbles of a byte, or neighbours. */
INLINE_NEON int quad_of_step_neon(const pack_kind kind, const int step, const int j) {
    return kind == PACK_Q8 || kind_has_halves(kind) ? 2 * step + j : step + 4 * j;
}

/* rows[i][h] = the sums over a block of codes, as it is packed or made ready, with `nt` tokens, the first at q. All
 * products of codes fit 16 bits (31 * 127 * 8), or those of half a block (32 * 127 * 4) where s has scales for it. */
INLINE_NEON void sum_codes_neon(const pack_kind kind, const uint8_t *codes, const ready_neon *ready,
                                const scales_neon *s, const int8_t *q, size_t k, const int nt, int32x4_t rows[][2]) {
    int16x8_t sums[2][4];
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) {
        const int v0 = quad_of_step_neon(kind, step, 0), v1 = quad_of_step_neon(kind, step, 1);
        const bool fresh = step == 0 || (kind_has_halves(kind) && step == 2);
        int8x16_t w[2][2];
        LOAD_NO_EARLIER();
        for (int h = 0; h < 2; h++) {
            w[h][0] = either_weights_neon(kind, codes, ready, v0, h);
            w[h][1] = either_weights_neon(kind, codes, ready, v1, h);
        }
        for (int i = 0; i < nt; i++) {
            const int8_t *quads = q + (size_t)i * k;
            const int8x16_t x[2] = { quad_neon(quads + 4 * v0), quad_neon(quads + 4 * v1) };
            for (int h = 0; h < 2; h++) {
                products_neon(&sums[i][2 * h], fresh, w[h], x);
                if (kind_has_halves(kind) && step == 1)
                    rows[i][h] = vmulq_s32(rows_of_neon(kind, &sums[i][2 * h]), s->half[0][h]);
            }
        }
    }
    for (int i = 0; i < nt; i++)
        for (int h = 0; h < 2; h++) {
            const int32x4_t last = rows_of_neon(kind, &sums[i][2 * h]);
            rows[i][h] = kind_has_halves(kind) ? vmlaq_s32(rows[i][h], last, s->half[1][h]) : last;
        }
}

/* The same for signed bytes: two products fit 16 bits (2 * 128 * 127), then neighbours are added to 32. */
INLINE_NEON void sum_signed_neon(const pack_kind kind, const uint8_t *codes, const ready_neon *ready, const int8_t *q,
                                 size_t k, const int nt, int32x4_t rows[][2]) {
    int32x4_t pairs[2][4];
    for (int i = 0; i < nt; i++)
        for (int j = 0; j < 4; j++) pairs[i][j] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) {
        const int v0 = quad_of_step_neon(kind, step, 0), v1 = quad_of_step_neon(kind, step, 1);
        int8x16_t w[2][2];
        LOAD_NO_EARLIER();
        for (int h = 0; h < 2; h++) {
            w[h][0] = either_weights_neon(kind, codes, ready, v0, h);
            w[h][1] = either_weights_neon(kind, codes, ready, v1, h);
        }
        for (int i = 0; i < nt; i++) {
            const int8_t *quads = q + (size_t)i * k;
            const int8x16_t x[2] = { quad_neon(quads + 4 * v0), quad_neon(quads + 4 * v1) };
            for (int h = 0; h < 2; h++) {
                int16x8_t sums[2];
                products_neon(sums, true, w[h], x);
                pairs[i][2 * h] = vpadalq_s16(pairs[i][2 * h], sums[0]);
                pairs[i][2 * h + 1] = vpadalq_s16(pairs[i][2 * h + 1], sums[1]);
            }
        }
    }
    for (int i = 0; i < nt; i++)
        for (int h = 0; h < 2; h++) rows[i][h] = vpaddq_s32(pairs[i][2 * h], pairs[i][2 * h + 1]);
}

INLINE_NEON void sum_neon(const pack_kind kind, const uint8_t *codes, const ready_neon *ready, const scales_neon *s,
                          const int8_t *q, size_t k, const int nt, int32x4_t rows[][2]) {
    if (kind_is_signed(kind))
        sum_signed_neon(kind, codes, ready, q, k, nt, rows);
    else
        sum_codes_neon(kind, codes, ready, s, q, k, nt, rows);
}

/* The block's sums with `nt` tokens to their accumulators; `at` is its place among the first token's blocks. */
INLINE_NEON void add_rows_neon(const pack_kind kind, int32x4_t rows[][2], const scales_neon *s, const activations *a,
                               size_t at, const int nt, float32x4_t acc[][2]) {
    for (int i = 0; i < nt; i++, at += a->k / BLOCK_K)
        for (int h = 0; h < 2; h++) {
            int32x4_t sum = rows[i][h];
            if (kind == PACK_Q4 || kind == PACK_Q5) sum = vaddq_s32(sum, sum_start_neon(kind, a, at));
            acc[i][h] = add_sum_neon(kind, sum, s, h, a, at, acc[i][h]);
        }
}

/* `nh` halves of a group, from half `h0` on, times `nt` tokens (1 or 2) from token t. */
INLINE_NEON void tile_neon(const pack_kind kind, const uint8_t *w, size_t h0, const int nh, const activations *a,
                           size_t t, const int nt, float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    const size_t n_blocks = a->k / BLOCK_K;
    const int8_t *q = a->q + t * a->k;
    float32x4_t acc[2][2][2];
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++) acc[g][i][0] = acc[g][i][1] = vdupq_n_f32(0);
    for (size_t first = 0; first < n_blocks; first += layout.n_blocks) {
        const uint8_t *head = w;
        if (nt == 1) prefetch_neon(w, layout.head_bytes);
        w += layout.head_bytes;
#pragma GCC unroll 1
        for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes, q += BLOCK_K) {
            if (nt == 1) prefetch_neon(w, layout.block_bytes);
            for (int g = 0; g < nh; g++) {
                const size_t half = h0 + (size_t)g;
                scales_neon scales;
                int32x4_t rows[2][2];
                if (kind_has_halves(kind)) half_scales_neon(kind, head, b, half, &scales);
                sum_neon(kind, w + half * 32, NULL, &scales, q, a->k, nt, rows);
                LOAD_NO_EARLIER();
                block_scales_neon(kind, head, b, half, &scales);
                add_rows_neon(kind, rows, &scales, a, t * n_blocks + first + b, nt, acc[g]);
            }
        }
    }
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++)
            for (int h = 0; h < 2; h++)
                vst1q_f32(out + (t + (size_t)i) * ld_out + (h0 + (size_t)g) * HALF_ROWS + 4 * (size_t)h, acc[g][i][h]);
}

/* Half `half` of a group times WIDE_TOKENS tokens from token t, two at a time: a block is made ready once for them. */
INLINE_NEON void wide_tile_neon(const pack_kind kind, const uint8_t *w, size_t half, const activations *a, size_t t,
                                float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    const size_t n_blocks = a->k / BLOCK_K;
    const int8_t *q = a->q + t * a->k;
    float32x4_t acc[WIDE_TOKENS][2];
    for (int i = 0; i < WIDE_TOKENS; i++) acc[i][0] = acc[i][1] = vdupq_n_f32(0);
    for (size_t first = 0; first < n_blocks; first += layout.n_blocks) {
        const uint8_t *head = w;
        w += layout.head_bytes;
#pragma GCC unroll 1
        for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes, q += BLOCK_K) {
            scales_neon scales;
            ready_neon ready;
            if (kind_has_halves(kind)) half_scales_neon(kind, head, b, half, &scales);
            block_scales_neon(kind, head, b, half, &scales);
            make_ready_neon(kind, w + half * 32, &ready);
#pragma GCC unroll 1
            for (size_t i = 0; i < WIDE_TOKENS; i += 2) {
                int32x4_t rows[2][2];
                sum_neon(kind, NULL, &ready, &scales, q + i * a->k, a->k, 2, rows);
                add_rows_neon(kind, rows, &scales, a, (t + i) * n_blocks + first + b, 2, acc + i);
            }
        }
    }
    for (size_t i = 0; i < WIDE_TOKENS; i++)
        for (size_t h = 0; h < 2; h++) vst1q_f32(out + (t + i) * ld_out + half * HALF_ROWS + 4 * h, acc[i][h]);
}

/* All groups for each tile of tokens, so that the tile's activations stay in L1. */
#define DEFINE_NEON(kind, name, set)                                                                                   \
    void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,         \
                               float *out, size_t ld_out) {                                                            \
        const activations x = *a; /* nothing that is stored can change it */                                           \
        const size_t bytes = block_group_bytes(kind, x.k), end = t0 + n_t, n = 2 * n_groups;                           \
        size_t t = t0;                                                                                                 \
        for (; kind != PACK_Q8 && t + WIDE_TOKENS <= end; t += WIDE_TOKENS)                                            \
            for (size_t g = 0; g < n; g++)                                                                             \
                wide_tile_neon(kind, w + g / 2 * bytes, g % 2, &x, t, out + g / 2 * GROUP_ROWS, ld_out);               \
        for (; t + 2 <= end; t += 2)                                                                                   \
            for (size_t g = 0; g < n; g++)                                                                             \
                tile_neon(kind, w + g / 2 * bytes, g % 2, 1, &x, t, 2, out + g / 2 * GROUP_ROWS, ld_out);              \
        for (; t < end; t++)                                                                                           \
            for (size_t g = 0; g < n_groups; g++)                                                                      \
                tile_neon(kind, w + g * bytes, 0, 2, &x, t, 1, out + g * GROUP_ROWS, ld_out);                          \
    }
BLOCK_KINDS(DEFINE_NEON, neon)

#endif
