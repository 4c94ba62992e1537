/* neon_dot.c - products with quantized weights for AArch64 with the dot product instructions (sdot).          (rank 4)
 *
 * Every function carries its target attribute; the build's flags allow the baseline alone, so nothing outside this file
 * can use sdot. The order of operations is that of kernels.h. What is not here is neon.c's. One body serves all kinds:
 * a kind and a width are constants. The layout makes a quad of activations one lane: sdot takes it by its number, for
 * four rows at once.
 *
 * Inner loops, instructions as gcc 12 compiles them, for a block of 32 along K times 8 rows:
 *   Four tokens of a wide tile, its weights ready: 132 to 144 (64 sdot, 24 loads of weights and activations, 16 loads
 *     and stores of sums), with scales of halves 156 to 159, Q2K 226. To make a block ready for sixteen tokens: 60
 *     (IQ4) to 114 (Q3K) more.
 *   Four tokens alone: Q8 128, Q4 156, Q4M 160, table 165 to 175, Q4K 180, Q5 to Q6K 206 to 251, Q2K 267; those with
 *     scales of halves keep up to three registers in memory. One token: Q8 109, Q4 119, Q4K 169 for 16 rows.
 * With two pipes for sdot (Cortex-A76) four tokens of Q8 take 44 cycles of them: 23 multiply-adds per cycle at best. */
#include "kernels/neon.h"

#if defined(__aarch64__)

#include "cpu.h"

enum { WIDE_TOKENS = 16 };

/* The body functions take the tile width as a constant and must vanish into their callers. */
#define INLINE_NEON_DOT PN_NEON_DOT static inline __attribute__((always_inline))

/* Quad `quad` of a vector of four quads of activations times four rows. The intrinsic wants its lane as a literal. */
INLINE_NEON_DOT int32x4_t dot_neon_dot(int32x4_t sums, int8x16_t weights, int8x16_t x, const int quad) {
    if (quad == 0) return vdotq_laneq_s32(sums, weights, x, 0);
    if (quad == 1) return vdotq_laneq_s32(sums, weights, x, 1);
    if (quad == 2) return vdotq_laneq_s32(sums, weights, x, 2);
    return vdotq_laneq_s32(sums, weights, x, 3);
}

/* rows[i][h] += half `part` of a block, as it is packed or made ready, times `nt` tokens, the first at q. */
INLINE_NEON_DOT void half_neon_dot(const pack_kind kind, const uint8_t *codes, const ready_neon *ready, const int part,
                                   const int8_t *q, size_t k, const int nt, int32x4_t rows[][2]) {
    int8x16_t x[4];
    for (int i = 0; i < nt; i++) x[i] = vld1q_s8(q + (size_t)i * k + part * 16);
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) {
        LOAD_NO_EARLIER();
        const int8x16_t w[2] = { either_weights_neon(kind, codes, ready, part * 4 + u, 0),
                                 either_weights_neon(kind, codes, ready, part * 4 + u, 1) };
        for (int i = 0; i < nt; i++)
            for (int h = 0; h < 2; h++) rows[i][h] = dot_neon_dot(rows[i][h], w[h], x[i], u);
    }
}

/* The same for both halves at once, whose weights lie in the same bytes. */
INLINE_NEON_DOT void nibbles_neon_dot(const pack_kind kind, const uint8_t *codes, const int8_t *q, size_t k,
                                      const int nt, int32x4_t rows[][2]) {
    int8x16_t x[4][2];
    for (int i = 0; i < nt; i++)
        for (int part = 0; part < 2; part++) x[i][part] = vld1q_s8(q + (size_t)i * k + part * 16);
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            LOAD_NO_EARLIER();
            const int8x16_t low = weights_neon(kind, codes, u, h), high = weights_neon(kind, codes, u + 4, h);
            for (int i = 0; i < nt; i++) {
                rows[i][h] = dot_neon_dot(rows[i][h], low, x[i][0], u);
                rows[i][h] = dot_neon_dot(rows[i][h], high, x[i][1], u);
            }
        }
}

/* rows[i][h] = the exact sums over a block with `nt` tokens, the first at q; `at` is its place among the first token's
 * blocks. s has the scales of the block's halves, if the kind has them. */
INLINE_NEON_DOT void sum_neon_dot(const pack_kind kind, const uint8_t *codes, const ready_neon *ready,
                                  const scales_neon *s, const activations *a, size_t at, const int8_t *q, const int nt,
                                  int32x4_t rows[][2]) {
    for (int i = 0; i < nt; i++, at += a->k / BLOCK_K) rows[i][0] = rows[i][1] = sum_start_neon(kind, a, at);
    if (!ready && kind_has_nibbles(kind) && !kind_has_halves(kind)) {
        nibbles_neon_dot(kind, codes, q, a->k, nt, rows);
        return;
    }
    half_neon_dot(kind, codes, ready, 0, q, a->k, nt, rows);
    LOAD_NO_EARLIER();
    if (!kind_has_halves(kind)) {
        half_neon_dot(kind, codes, ready, 1, q, a->k, nt, rows);
        return;
    }
    int32x4_t last[4][2];
    for (int i = 0; i < nt; i++)
        for (int h = 0; h < 2; h++) {
            rows[i][h] = vmulq_s32(rows[i][h], s->half[0][h]);
            last[i][h] = vdupq_n_s32(0);
        }
    half_neon_dot(kind, codes, ready, 1, q, a->k, nt, last);
    for (int i = 0; i < nt; i++)
        for (int h = 0; h < 2; h++) rows[i][h] = vmlaq_s32(rows[i][h], last[i][h], s->half[1][h]);
}

/* Those sums to their accumulators. */
INLINE_NEON_DOT void add_rows_neon_dot(const pack_kind kind, int32x4_t rows[][2], const scales_neon *s,
                                       const activations *a, size_t at, const int nt, float32x4_t acc[][2]) {
    for (int i = 0; i < nt; i++, at += a->k / BLOCK_K)
        for (int h = 0; h < 2; h++) acc[i][h] = add_sum_neon(kind, rows[i][h], s, h, a, at, acc[i][h]);
}

/* `nh` halves of a group, from half `h0` on, times `nt` tokens (at most 4) from token t. */
INLINE_NEON_DOT void tile_neon_dot(const pack_kind kind, const uint8_t *w, size_t h0, const int nh,
                                   const activations *a, size_t t, const int nt, float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    const size_t n_blocks = a->k / BLOCK_K;
    const int8_t *q = a->q + t * a->k;
    float32x4_t acc[2][4][2];
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++) acc[g][i][0] = acc[g][i][1] = vdupq_n_f32(0);
    for (size_t first = 0; first < n_blocks; first += layout.n_blocks) {
        const uint8_t *head = w;
        if (nt == 1) prefetch_neon(w, layout.head_bytes);
        w += layout.head_bytes;
#pragma GCC unroll 1
        for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes, q += BLOCK_K) {
            const size_t at = t * n_blocks + first + b;
            if (nt == 1) prefetch_neon(w, layout.block_bytes);
            for (int g = 0; g < nh; g++) {
                const size_t half = h0 + (size_t)g;
                scales_neon scales;
                int32x4_t rows[4][2];
                if (kind_has_halves(kind)) half_scales_neon(kind, head, b, half, &scales);
                sum_neon_dot(kind, w + half * 32, NULL, &scales, a, at, q, nt, rows);
                LOAD_NO_EARLIER();
                block_scales_neon(kind, head, b, half, &scales);
                add_rows_neon_dot(kind, rows, &scales, a, at, nt, acc[g]);
            }
        }
    }
    for (int g = 0; g < nh; g++)
        for (int i = 0; i < nt; i++)
            for (int h = 0; h < 2; h++)
                vst1q_f32(out + (t + (size_t)i) * ld_out + (h0 + (size_t)g) * HALF_ROWS + 4 * (size_t)h, acc[g][i][h]);
}

/* Half `half` of a group times WIDE_TOKENS tokens from token t, four at a time: a block is made ready once for them. */
INLINE_NEON_DOT void wide_tile_neon_dot(const pack_kind kind, const uint8_t *w, size_t half, const activations *a,
                                        size_t t, float *out, size_t ld_out) {
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
            for (size_t i = 0; i < WIDE_TOKENS; i += 4) {
                const size_t at = (t + i) * n_blocks + first + b;
                int32x4_t rows[4][2];
                sum_neon_dot(kind, NULL, &ready, &scales, a, at, q + i * a->k, 4, rows);
                LOAD_NO_EARLIER();
                add_rows_neon_dot(kind, rows, &scales, a, at, 4, acc + i);
            }
        }
    }
    for (size_t i = 0; i < WIDE_TOKENS; i++)
        for (size_t h = 0; h < 2; h++) vst1q_f32(out + (t + i) * ld_out + half * HALF_ROWS + 4 * h, acc[i][h]);
}

/* Parting nibbles is cheap; other codes, and scales of blocks, are put together once for many tokens. */
INLINE_NEON bool is_wide_neon_dot(const pack_kind kind) {
    return kind != PACK_Q8 && kind != PACK_Q4 && kind != PACK_Q4M;
}

#define TILES_NEON_DOT(kind, nt)                                                                                       \
    for (; t + (nt) <= end; t += (nt))                                                                                 \
        for (size_t g = 0; g < n; g++)                                                                                 \
            tile_neon_dot(kind, w + g / 2 * bytes, g % 2, 1, &x, t, nt, out + g / 2 * GROUP_ROWS, ld_out);

/* All groups for each tile of tokens, so that the tile's activations stay in L1. */
#define DEFINE_NEON_DOT(kind, name, set)                                                                               \
    PN_NEON_DOT void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0,         \
                                           size_t n_t, float *out, size_t ld_out) {                                    \
        const activations x = *a; /* nothing that is stored can change it */                                           \
        const size_t bytes = block_group_bytes(kind, x.k), end = t0 + n_t, n = 2 * n_groups;                           \
        size_t t = t0;                                                                                                 \
        for (; is_wide_neon_dot(kind) && t + WIDE_TOKENS <= end; t += WIDE_TOKENS)                                     \
            for (size_t g = 0; g < n; g++)                                                                             \
                wide_tile_neon_dot(kind, w + g / 2 * bytes, g % 2, &x, t, out + g / 2 * GROUP_ROWS, ld_out);           \
        TILES_NEON_DOT(kind, 4)                                                                                        \
        TILES_NEON_DOT(kind, 2)                                                                                        \
        for (; t < end; t++)                                                                                           \
            for (size_t g = 0; g < n_groups; g++)                                                                      \
                tile_neon_dot(kind, w + g * bytes, 0, 2, &x, t, 1, out + g * GROUP_ROWS, ld_out);                      \
    }
BLOCK_KINDS(DEFINE_NEON_DOT, neon_dot)

const kernel_set kernels_neon_dot = {
    .isa = "neon_dot",
    .base = &kernels_neon,
    .usable = cpu_has_dotprod,
    .matmul = { BLOCK_KINDS(BLOCK_ENTRY, neon_dot) },
};

#endif
