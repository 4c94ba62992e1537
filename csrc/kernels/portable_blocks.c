/* portable_blocks.c - products with quantized weights in plain C: the definition of the right answer.          (rank 4)
 *
 * Written for the order of operations in kernels.h, not for speed; the compiler may vectorize over rows, which changes
 * no order. A block's weights are put together once and then meet all tokens; the output is the accumulator. */
#include "dtype.h"
#include "dtype_blocks.h"
#include "kernels/blocks.h"
#include "mathf.h"

#include <string.h>

#define INLINE_PORTABLE static inline __attribute__((always_inline))

/* A block as the sums want it: its weights, [quad][row and j], and its scales as far as they are exact. */
typedef struct block_portable {
    int8_t weights[8][QUAD_BYTES];
    float d[GROUP_ROWS], offset[GROUP_ROWS];
    int32_t scale[2][GROUP_ROWS], min[2][GROUP_ROWS]; /* of the halves, for the kinds that have them */
} block_portable;

INLINE_PORTABLE void weights_portable(const pack_kind kind, const uint8_t *codes, block_portable *out) {
    const uint8_t *nibbles = codes, *twos = codes + (kind_has_nibbles(kind) ? NIBBLES_BYTES : 0);
    const uint8_t *ones = twos + (kind_has_twos(kind) ? TWOS_BYTES : 0);
    if (kind == PACK_Q8) {
        memcpy(out->weights, codes, sizeof out->weights);
        return;
    }
    for (int v = 0; v < 8; v++)
        for (int i = 0; i < QUAD_BYTES; i++) {
            int code = 0, shift = 0;
            if (kind_has_nibbles(kind)) {
                code = nibbles[v % 4 * QUAD_BYTES + i] >> (v < 4 ? 0 : 4) & 15;
                shift = 4;
            }
            if (kind_has_twos(kind)) {
                code |= (twos[v / 4 * QUAD_BYTES + i] >> v % 4 * 2 & 3) << shift;
                shift += 2;
            }
            if (kind_has_ones(kind)) code |= (ones[i] >> v & 1) << shift;
            out->weights[v][i] = kind_has_table(kind) ? IQ4_VALUES[code] : (int8_t)(code - kind_code_offset(kind));
        }
}

static float half_at(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return half_to_float(u);
}

/* Of block `b` of a super-block whose head this is. */
INLINE_PORTABLE void scales_portable(const pack_kind kind, const uint8_t *head, size_t b, block_portable *out) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    for (int r = 0; r < GROUP_ROWS; r++) {
        out->d[r] = half_at(head + 2 * r);
        out->offset[r] = kind_has_offset(kind) ? half_at(head + SCALES_BYTES + 2 * r) : 0;
        if (kind == PACK_Q4K || kind == PACK_Q5K) {
            out->d[r] = out->d[r] * (float)each[b * 2 * GROUP_ROWS + (size_t)r];
            out->offset[r] = -(out->offset[r] * (float)each[(b * 2 + 1) * GROUP_ROWS + (size_t)r]);
        }
        if (kind == PACK_IQ4K) out->d[r] = out->d[r] * (float)(int8_t)each[b * GROUP_ROWS + (size_t)r];
        for (int h = 0; kind_has_halves(kind) && h < 2; h++) {
            const uint8_t byte = each[(b * GROUP_ROWS + (size_t)r) * 2 + (size_t)h];
            out->scale[h][r] = kind == PACK_Q2K ? byte & 15 : (int8_t)byte;
            out->min[h][r] = kind == PACK_Q2K ? byte >> 4 : 0;
        }
    }
}

/* Rows of exact integer sums of four quads from `first` on. */
INLINE_PORTABLE void half_sums_portable(const block_portable *block, int first, const int8_t *q,
                                        int32_t sums[GROUP_ROWS]) {
    for (int v = first; v < first + 4; v++)
        for (int r = 0; r < GROUP_ROWS; r++)
            for (int j = 0; j < 4; j++) sums[r] += block->weights[v][r * 4 + j] * q[v * 4 + j];
}

/* Add a block's product with token t to 16 rows. */
INLINE_PORTABLE void add_block_portable(const pack_kind kind, const block_portable *block, const activations *a,
                                        size_t t, size_t b, float *acc) {
    const size_t at = t * (a->k / BLOCK_K) + b;
    const int8_t *q = a->q + t * a->k + b * BLOCK_K;
    int32_t isum[GROUP_ROWS] = { 0 };
    half_sums_portable(block, 0, q, isum);
    if (!kind_has_halves(kind)) {
        half_sums_portable(block, 4, q, isum);
    } else {
        int32_t last[GROUP_ROWS] = { 0 };
        half_sums_portable(block, 4, q, last);
        for (int r = 0; r < GROUP_ROWS; r++) isum[r] = block->scale[0][r] * isum[r] + block->scale[1][r] * last[r];
    }
    for (int r = 0; r < GROUP_ROWS; r++) {
        acc[r] = fma_f32((float)isum[r], block->d[r] * a->d[at], acc[r]);
        if (kind == PACK_Q2K) {
            const int32_t msum = block->min[0][r] * a->sum16[2 * at] + block->min[1][r] * a->sum16[2 * at + 1];
            acc[r] = fma_f32((float)msum, -(block->offset[r] * a->d[at]), acc[r]);
        } else if (kind_has_offset(kind))
            acc[r] = fma_f32(block->offset[r], a->ds[at], acc[r]);
    }
}

INLINE_PORTABLE void matmul_portable(const pack_kind kind, const uint8_t *w, size_t n_groups, const activations *a,
                                     size_t t0, size_t n_t, float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    block_portable block;
    for (size_t g = 0; g < n_groups; g++, out += GROUP_ROWS) {
        for (size_t t = t0; t < t0 + n_t; t++) memset(out + t * ld_out, 0, GROUP_ROWS * sizeof *out);
        for (size_t first = 0; first < a->k / BLOCK_K; first += layout.n_blocks) {
            const uint8_t *head = w;
            w += layout.head_bytes;
            for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes) {
                scales_portable(kind, head, b, &block);
                weights_portable(kind, w, &block);
                for (size_t t = t0; t < t0 + n_t; t++)
                    add_block_portable(kind, &block, a, t, first + b, out + t * ld_out);
            }
        }
    }
}

#define DEFINE_PORTABLE(kind, name, set)                                                                               \
    void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,         \
                               float *out, size_t ld_out) {                                                            \
        matmul_portable(kind, w, n_groups, a, t0, n_t, out, ld_out);                                                   \
    }
BLOCK_KINDS(DEFINE_PORTABLE, portable)
