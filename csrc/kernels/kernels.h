/* kernels.h - the contract of the inner loops and the table through which they are called.               (rank 4)
 *
 * A kernel cannot fail, allocates nothing, and computes exactly what is written here: the same operations in the same
 * order. fma(a, b, c) is a * b + c rounded once (mathf.h); wherever it is not written, each multiply and each add is
 * rounded on its own. So every instruction set gives the same bits, and the portable file is the definition. A NULL
 * entry of a set means "use that of its base" (filled in by dispatch.c).
 *
 * Shapes: K columns (the contraction), 16 rows make a group, T tokens; row-major, last dimension contiguous.
 *
 * PACKED WEIGHTS. 16 consecutive rows are interleaved so that a vector of 16 sums, or of 8 or 4, is finished rows, and
 * that a group is one stream of memory. Rows beyond the matrix are zeros. Per group:
 *   float kinds: element [K][16]        [k][row r]
 *   quantized kinds: for each super-block (256 along K for the kinds whose name ends in K, else 32) a head, the scales
 *   as the file has them, and then the codes of its 8 blocks, or its one block, of 32 along K (see pack_layout_of).
 *   A quad of a row is four consecutive k of a block: element 4v + j is byte j of quad v.
 *
 *   kind           codes of a block       weight                     head
 *   Q8             bytes                  the byte, -128 included    f16 d[16]
 *   Q4             nibbles                code - 8                   f16 d[16]
 *   Q4M            nibbles                code                       f16 d[16], f16 m[16]
 *   Q5             nibbles, ones          code - 16                  f16 d[16]
 *   Q5M            nibbles, ones          code                       f16 d[16], f16 m[16]
 *   IQ4            nibbles                IQ4_VALUES[code]           f16 d[16]
 *   IQ4K           nibbles                IQ4_VALUES[code]           f16 d[16], int8 scale[8 blocks][16]
 *   Q4K            nibbles                code                       f16 d[16], dmin[16], uint8 [8][2][16]: scale, min
 *   Q5K            nibbles, ones          code                       as Q4K
 *   Q6K            nibbles, twos          code - 32                  f16 d[16], int8 scale[8][16][2]: halves of a block
 *   Q3K            twos, ones             code - 4                   as Q6K
 *   Q2K            twos                   code                       f16 d[16], dmin[16], uint8 [8][16][2]: low
 *                                                                    nibble the scale, high nibble the min of a half
 *   bytes:   int8  [8][16][4]   [quad v][row r][j]
 *   nibbles: uint8 [4][16][4]   low nibble: quad v, high nibble: quad v + 4
 *   twos:    uint8 [2][16][4]   bits 2u and 2u + 1 of [i][r][j]: quad 4i + u
 *   ones:    uint8 [16][4]      bit v of [r][j]: quad v
 *   The parts of a block's codes follow each other in the order above. A code is put together lower bits first:
 *   nibble + 16 * one, nibble + 16 * two, two + 4 * one. Scales of Q6K, Q3K and IQ4K are those that multiply: the 32
 *   that Q3_K's and IQ4_XS' files count from is taken off. IQ4_VALUES is the format's own table (dtype_blocks.h).
 *
 * ACTIVATIONS for quantized kinds: per token and block of 32, d = max|x| / 127, inverse = 127 / max|x|, q = x * inverse
 * (rounded) rounded to the nearest integer, ties to even, within [-127, 127]; ds = d * sum of q. K is a multiple of 32
 * there, or of 256. bias8 = -128 * sum and bias4 = -8 * sum are what an integer sum must start from when the weights
 * are counted from -128 or -8. sum16 are the sums of q over the first and the last 16 of each block.
 *
 * MATRIX PRODUCT, one accumulator per (token, row), from +0, in the order of K. Products of scales with d, dmin are
 * exact in float, all integer sums are exact, and those turned into floats stay below 2^24.
 *   quantized, per block:
 *     isum = the sum of weight * q, with the scales of the halves (Q6K, Q3K, Q2K):
 *            scale_0 * (the sum over the first 16) + scale_1 * (the sum over the last 16)
 *     acc = fma((float)isum, D * d, acc)     D = d_weight; Q4K, Q5K, IQ4K: d_weight * scale
 *     then, kinds with an offset only:
 *       Q4M, Q5M: acc = fma(m_weight, ds, acc)
 *       Q4K, Q5K: acc = fma(-(dmin * min), ds, acc)
 *       Q2K:      acc = fma((float)msum, -(dmin * d), acc),  msum = min_0 * sum16_0 + min_1 * sum16_1
 *   float, per k: acc = fma(weight, x, acc) */
#ifndef PN_KERNELS_H
#define PN_KERNELS_H

#include "common.h"

enum { GROUP_ROWS = 16, HALF_ROWS = GROUP_ROWS / 2, BLOCK_K = 32, KV_BLOCK = 128 };

typedef enum pack_kind {
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_Q8, /* the first that is quantized */
    PACK_Q4,
    PACK_Q4M,
    PACK_Q5,
    PACK_Q5M,
    PACK_IQ4,
    PACK_IQ4K,
    PACK_Q2K,
    PACK_Q3K,
    PACK_Q4K,
    PACK_Q5K,
    PACK_Q6K,
    PACK_KINDS
} pack_kind;

enum {
    SCALES_BYTES = 2 * GROUP_ROWS, /* of a block: d, or m */
    QUAD_BYTES = 4 * GROUP_ROWS,   /* one quad of each row, in bytes */
    NIBBLES_BYTES = 4 * QUAD_BYTES,
    TWOS_BYTES = 2 * QUAD_BYTES,
    ONES_BYTES = QUAD_BYTES,
    SUPER_BLOCKS = 8, /* blocks of a super-block of 256 */
    Q8_BLOCK_BYTES = SCALES_BYTES + 8 * QUAD_BYTES,
    Q4_BLOCK_BYTES = SCALES_BYTES + NIBBLES_BYTES,
    Q4M_BLOCK_BYTES = 2 * SCALES_BYTES + NIBBLES_BYTES,
};

/* A super-block of a quantized kind: head_bytes, then n_blocks times block_bytes. */
typedef struct pack_layout {
    size_t n_blocks, head_bytes, block_bytes;
} pack_layout;

/* All zeros for the float kinds. A constant kind gives constants. */
static inline pack_layout pack_layout_of(pack_kind kind) {
    enum { D = SCALES_BYTES, S = SUPER_BLOCKS, SCALE_EACH = S * GROUP_ROWS, SCALES_EACH = 2 * S * GROUP_ROWS };
    switch (kind) {
    case PACK_Q8:
        return (pack_layout){ 1, D, 8 * QUAD_BYTES };
    case PACK_Q4:
    case PACK_IQ4:
        return (pack_layout){ 1, D, NIBBLES_BYTES };
    case PACK_Q4M:
        return (pack_layout){ 1, 2 * D, NIBBLES_BYTES };
    case PACK_Q5:
        return (pack_layout){ 1, D, NIBBLES_BYTES + ONES_BYTES };
    case PACK_Q5M:
        return (pack_layout){ 1, 2 * D, NIBBLES_BYTES + ONES_BYTES };
    case PACK_IQ4K:
        return (pack_layout){ S, D + SCALE_EACH, NIBBLES_BYTES };
    case PACK_Q2K:
        return (pack_layout){ S, 2 * D + SCALES_EACH, TWOS_BYTES };
    case PACK_Q3K:
        return (pack_layout){ S, D + SCALES_EACH, TWOS_BYTES + ONES_BYTES };
    case PACK_Q4K:
        return (pack_layout){ S, 2 * D + SCALES_EACH, NIBBLES_BYTES };
    case PACK_Q5K:
        return (pack_layout){ S, 2 * D + SCALES_EACH, NIBBLES_BYTES + ONES_BYTES };
    case PACK_Q6K:
        return (pack_layout){ S, D + SCALES_EACH, NIBBLES_BYTES + TWOS_BYTES };
    case PACK_F32:
    case PACK_F16:
    case PACK_BF16:
    case PACK_KINDS:
        break;
    }
    return (pack_layout){ 0, 0, 0 };
}

/* The activations of T tokens, as floats and in 8 bits. */
typedef struct activations {
    const float *x; /* [T, ld_x]                                        */
    size_t ld_x;
    const int8_t *q;      /* [T, K]                                           */
    const float *d;       /* [T, K/32]                                        */
    const float *ds;      /* [T, K/32]                                        */
    const int32_t *bias8; /* [T, K/32]                                        */
    const int32_t *bias4; /* [T, K/32]                                        */
    const int16_t *sum16; /* [T, K/16]                                        */
    size_t k;
} activations;

/* Where one row of K activations in 8 bits goes. */
typedef struct quantized_row {
    int8_t *q;              /* [K]    */
    float *d, *ds;          /* [K/32] */
    int32_t *bias8, *bias4; /* [K/32] */
    int16_t *sum16;         /* [K/16] */
} quantized_row;

/* out[t][16 * g + r] for groups [0, n_groups) at w and tokens [t0, t0 + n_t); out is indexed from token 0. */
typedef void (*matmul_fn)(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t, float *out,
                          size_t ld_out);

typedef struct kernel_set {
    const char *isa;
    const struct kernel_set *base; /* gives the entries that are NULL here; the portable set has none */
    bool (*usable)(void);
    matmul_fn matmul[PACK_KINDS];

    /* One row x[k] to 8 bits. max|x| is taken on the bit patterns, so NaN beats infinity beats numbers. A block with
     * max below 2^-100 becomes zeros; one with a non-finite max gets d = NaN and q = 0. */
    void (*quantize)(const float *x, size_t k, const quantized_row *out);

    /* What quantize lost of x: rest[i] = fma(-(float)q[i], d of its block, x[i]); k is a multiple of 32. */
    void (*quantize_rest)(const float *x, size_t k, const int8_t *q, const float *d, float *rest);

    /* out[i] = (x[i] * s) * w[i], s = 1 / sqrt(sum / n + eps). The sum of squares: 8 lanes from +0, element i into lane
     * i % 8 in order, lanes added as ((0+4) + (2+6)) + ((1+5) + (3+7)). RMSNorm, arXiv:1910.07467. out may be x. */
    void (*rms_norm)(const float *x, const float *w, float *out, size_t n, float eps);

    /* out[i] = (gate[i] / (1 + exp(-gate[i]))) * up[i], exp = exp_f32. SwiGLU, arXiv:2002.05202. out may be gate. */
    void (*swiglu)(const float *gate, const float *up, float *out, size_t n);

    /* out[i] = x[i] as f16, rounded to nearest even; a NaN stays one. */
    void (*narrow)(const float *x, uint16_t *out, size_t n);

    /* Attention of n_q query rows that share a key head, over one block of keys. E is the head size, E8 = E rounded up
     * to 8.
     * scores: s[i][j] = dot * scale for j < n_keys, dot = fma(q[i][e], k[e][j], dot) from +0 over e in order; s is
     *   [n_q, KV_BLOCK], the entries up to the next multiple of 16 are written too (meaningless). q is [n_q, E], k is
     *   f16 [E, KV_BLOCK].
     * ahead (here and below): KV_BLOCK * E8 halves that will be wanted next, which may be fetched meanwhile; any
     *   address. */
    void (*attend_scores)(const float *q, size_t n_q, const uint16_t *k, size_t n_keys, size_t head_size, float scale,
                          float *s, const uint16_t *ahead);
    /* Each row i of s[n_q, KV_BLOCK] in place, with n = n_keys[i] >= 1: s[j] -> exp_f32(s[j] - max) for j < n, 0 for
     * n <= j < n rounded up to 8. max[i] is the maximum and sum[i] the total, in lanes as in rms_norm (the maximum too:
     * lane = lane > s ? lane : s, from -INFINITY). */
    void (*softmax_block)(float *s, size_t n_q, const size_t *n_keys, float *max, float *sum);
    /* out[i][e] = fma(p[i][j], v[j][e], out[i][e]) from +0 over j < n_keys[i] in order (each row has keys of its own:
     * later queries see more). p is [n_q, KV_BLOCK], v is f16 [KV_BLOCK, E8], out is [n_q, E8]. */
    void (*attend_values)(const float *p, size_t n_q, const uint16_t *v, const size_t *n_keys, size_t e8, float *out,
                          const uint16_t *ahead);
    /* Fold the result of a block into the running one: acc[e] = fma(values[e], block_weight, acc[e] * acc_weight) for
     * e < E8. */
    void (*attend_combine)(float *acc, const float *values, size_t e8, float acc_weight, float block_weight);
} kernel_set;

extern const kernel_set kernels_portable;
#if defined(__x86_64__)
extern const kernel_set kernels_avx2, kernels_avx512;
#elif defined(__aarch64__)
extern const kernel_set kernels_neon, kernels_neon_dot;
#endif

/* The named set, or the best usable one for NULL; all entries filled in. PN_ERR_ISA if the name is unknown or its set
 * cannot run here. */
int kernels_pick(const char *isa, kernel_set *out);
/* The usable sets' names, best first, space separated; borrowed until this thread's next call. */
const char *kernels_available(void);

/* The bytes of one group of a kind. k is a multiple of 32 for quantized kinds, of 256 for those with super-blocks.
 * False on overflow. */
bool pack_group_bytes(pack_kind kind, size_t k, size_t *out);
static inline bool pack_is_quantized(pack_kind kind) {
    return kind >= PACK_Q8;
}

#define PN_AVX2   __attribute__((target("avx2,f16c,fma")))
#define PN_AVX512 __attribute__((target("avx2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
/* The architecture is named too because gcc's header gives its intrinsics that one and inlines them into no less. */
#define PN_NEON_DOT __attribute__((target("arch=armv8.2-a+dotprod")))

#endif
