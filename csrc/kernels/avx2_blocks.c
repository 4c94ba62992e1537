/* avx2_blocks.c - products with quantized weights for x86-64 with AVX2, FMA and F16C.                          (rank 4)
 *
 * Every function carries its target attribute, as in avx2.c. The order of operations is that of kernels.h. One tile
 * serves all kinds: a block's weights are put together once for the tile's tokens; a kind and a width are constants. A
 * vector is half a group: eight rows.
 *
 * vpmaddubsw adds two products of an unsigned and a signed byte in 16 bits. Codes are the unsigned side where they have
 * at most 6 bits, and their 16-bit sums go on over several quads as far as they fit (see quads_per_sum_avx2); then one
 * vpmaddwd adds neighbours and multiplies by the scale of the half, if there is one. Where weights are signed bytes (Q8
 * and the table's values) their magnitude is the unsigned side and their sign goes to the activation: so -128 is right
 * too (|-128| is 128 there, and two products of at most 128 * 127 fit), with one vpmaddwd per quad.
 *
 * What bounds them (Agner Fog's tables, Zen 3 and Golden Cove): the multiplies go to two ports; per 32 multiply-adds
 * and token vpmaddubsw + vpaddw, or vpsignb + vpmaddubsw + vpmaddwd + vpaddd for signed bytes. One token: memory. */
#include "kernels/blocks.h"

#if defined(__x86_64__)

#include "dtype_blocks.h"

#include <immintrin.h>
#include <string.h>

enum { PREFETCH_BYTES = 6144 };

/* The body functions take kind and width as constants and must vanish into their callers. */
#define INLINE_AVX2 PN_AVX2 static inline __attribute__((always_inline))

/* Four bytes of memory in every 32-bit lane: each row of the group meets the same quad. */
INLINE_AVX2 __m256i each_lane_avx2(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE_AVX2 __m256i load_avx2(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
INLINE_AVX2 __m256 load8_f16_avx2(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE_AVX2 __m256 load8_u8_avx2(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
INLINE_AVX2 __m256 load8_i8_avx2(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* One token alone waits for memory: it fetches ahead. */
INLINE_AVX2 void prefetch_avx2(const uint8_t *w, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)((uintptr_t)w + PREFETCH_BYTES + line), _MM_HINT_T0); /* any address will do */
}

/* ---- scales ----------------------------------------------------------------------------------------------- */

/* Of eight rows. What a super-block has for all its blocks, and what a block has. Unused parts vanish. */
typedef struct scales_avx2 {
    __m256 d, offset;    /* of the super-block; of the block, where it has no halves               */
    __m256i first, last; /* scales of the halves, each twice in 16 bits                            */
    __m256i pairs;       /* for vpmaddwd with sum16, in 16 bits: -offset * scale, or the minima    */
} scales_avx2;

INLINE_AVX2 scales_avx2 super_scales_avx2(const pack_kind kind, const uint8_t *head, const int h) {
    scales_avx2 s = { .d = load8_f16_avx2(head + h * 16) };
    if (kind_has_offset(kind)) s.offset = load8_f16_avx2(head + SCALES_BYTES + h * 16);
    return s;
}

INLINE_AVX2 scales_avx2 block_scales_avx2(const pack_kind kind, const uint8_t *head, size_t b, const int h) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    scales_avx2 s = super_scales_avx2(kind, head, h);
    if (kind == PACK_IQ4K) s.d = _mm256_mul_ps(s.d, load8_i8_avx2(each + b * GROUP_ROWS + h * HALF_ROWS));
    if (kind == PACK_Q4K || kind == PACK_Q5K) {
        const uint8_t *at = each + b * 2 * GROUP_ROWS + h * HALF_ROWS;
        s.d = _mm256_mul_ps(s.d, load8_u8_avx2(at));
        s.offset = _mm256_mul_ps(s.offset, load8_u8_avx2(at + GROUP_ROWS));
    }
    if (!kind_has_halves(kind)) return s;
    const __m128i bytes =
        _mm_loadu_si128((const __m128i *)(const void *)(each + b * 2 * GROUP_ROWS + h * 2 * HALF_ROWS));
    __m256i pairs = _mm256_cvtepi8_epi16(bytes);
    if (kind == PACK_Q2K) {
        const __m256i both = _mm256_cvtepu8_epi16(bytes);
        pairs = _mm256_and_si256(both, _mm256_set1_epi16(15));
        s.pairs = _mm256_srli_epi16(both, 4);
    } else
        s.pairs = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(pairs, kind == PACK_Q6K ? 5 : 2));
    s.first = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(pairs, 0xa0), 0xa0);
    s.last = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(pairs, 0xf5), 0xf5);
    return s;
}

/* acc + the block's product with one token, whose exact sum this is but for what the codes count from. */
INLINE_AVX2 __m256 add_sum_avx2(const pack_kind kind, __m256i sum, const scales_avx2 *s, const activations *a,
                                size_t at, __m256 acc) {
    const __m256 d = _mm256_set1_ps(a->d[at]);
    if (kind == PACK_Q4) sum = _mm256_add_epi32(sum, _mm256_set1_epi32(a->bias4[at]));
    if (kind == PACK_Q5) sum = _mm256_add_epi32(sum, _mm256_slli_epi32(_mm256_set1_epi32(a->bias4[at]), 1));
    if (kind == PACK_Q6K || kind == PACK_Q3K)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(s->pairs, each_lane_avx2(a->sum16 + 2 * at)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s->d, d), acc);
    if (kind == PACK_Q2K) {
        const __m256i minima = _mm256_madd_epi16(s->pairs, each_lane_avx2(a->sum16 + 2 * at));
        acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(minima), _mm256_mul_ps(s->offset, d), acc);
    }
    if (kind == PACK_Q4M || kind == PACK_Q5M) acc = _mm256_fmadd_ps(s->offset, _mm256_set1_ps(a->ds[at]), acc);
    if (kind == PACK_Q4K || kind == PACK_Q5K) acc = _mm256_fnmadd_ps(s->offset, _mm256_set1_ps(a->ds[at]), acc);
    return acc;
}

/* ---- weights that are codes ------------------------------------------------------------------------------- */

/* Bits of each byte moved by `left` (right if negative); what comes from the neighbour must be masked off. */
INLINE_AVX2 __m256i move_bits_avx2(__m256i v, const int left) {
    return left > 0 ? _mm256_slli_epi16(v, left) : left < 0 ? _mm256_srli_epi16(v, -left) : v;
}
INLINE_AVX2 __m256i bits_avx2(__m256i v, const int left, const char mask) {
    return _mm256_and_si256(move_bits_avx2(v, left), _mm256_set1_epi8(mask));
}

/* The eight quads of a half group's block as unsigned bytes. */
INLINE_AVX2 void codes_avx2(const pack_kind kind, const uint8_t *codes, const int h, __m256i w[8]) {
    const uint8_t *twos = codes + (kind_has_nibbles(kind) ? NIBBLES_BYTES : 0) + h * 32;
    const uint8_t *ones = twos + (kind_has_twos(kind) ? TWOS_BYTES : 0);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        const int u = v % 4;
        if (kind_has_nibbles(kind)) w[v] = bits_avx2(load_avx2(codes + u * QUAD_BYTES + h * 32), v < 4 ? 0 : -4, 15);
        if (kind_has_twos(kind)) {
            const __m256i two = load_avx2(twos + v / 4 * QUAD_BYTES);
            if (kind == PACK_Q6K)
                w[v] = _mm256_or_si256(w[v], bits_avx2(two, 4 - 2 * u, 0x30));
            else
                w[v] = bits_avx2(two, -2 * u, 3);
        }
        if (kind == PACK_Q3K) w[v] = _mm256_or_si256(w[v], bits_avx2(load_avx2(ones), 2 - v, 4));
        if (kind_has_ones(kind) && kind != PACK_Q3K)
            w[v] = _mm256_or_si256(w[v], bits_avx2(load_avx2(ones), 4 - v, 16));
    }
}

/* Two products each of at most `largest code` * 127, and quads of them, fit 16 bits: 2 * 63 * 127 * 2 = 32004,
 * 2 * 31 * 127 * 4 = 31496. Of smaller codes more would fit, but halves have scales of their own, and two short chains
 * of sums are faster than a long one (by a fifth). */
INLINE_AVX2 int quads_per_sum_avx2(const pack_kind kind) {
    return kind == PACK_Q6K ? 2 : 4;
}

/* Sums of codes times the activations at q, with the scales of the halves. */
INLINE_AVX2 __m256i sum_codes_avx2(const pack_kind kind, const __m256i w[8], const scales_avx2 *s, const int8_t *q) {
    const int step = quads_per_sum_avx2(kind);
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int first = 0; first < 8; first += step) {
        __m256i pairs = _mm256_maddubs_epi16(w[first], each_lane_avx2(q + 4 * first));
#pragma GCC unroll 8
        for (int v = first + 1; v < first + step; v++)
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[v], each_lane_avx2(q + 4 * v)));
        const __m256i scale = !kind_has_halves(kind) ? _mm256_set1_epi16(1) : first < 4 ? s->first : s->last;
        const __m256i part = _mm256_madd_epi16(pairs, scale);
        sum = first == 0 ? part : _mm256_add_epi32(sum, part);
    }
    return sum;
}

/* ---- weights that are signed bytes ------------------------------------------------------------------------ */

INLINE_AVX2 __m256i signed_weights_avx2(const pack_kind kind, const uint8_t *codes, const int v, const int h) {
    if (kind == PACK_Q8) return load_avx2(codes + v * QUAD_BYTES + h * 32);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)IQ4_VALUES));
    return _mm256_shuffle_epi8(table, bits_avx2(load_avx2(codes + v % 4 * QUAD_BYTES + h * 32), v < 4 ? 0 : -4, 15));
}

/* Sums of a half group's block times the activations of `nt` tokens, k apart, at q. */
INLINE_AVX2 void sum_signed_avx2(const pack_kind kind, const uint8_t *codes, const int h, const int8_t *q, size_t k,
                                 const int nt, __m256i *sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < nt; i++) sums[i] = _mm256_setzero_si256();
    for (int v = 0; v < 8; v++) {
        const __m256i weights = signed_weights_avx2(kind, codes, v, h), magnitudes = _mm256_abs_epi8(weights);
        for (int i = 0; i < nt; i++) {
            const __m256i quad = each_lane_avx2(q + (size_t)i * k + 4 * v);
            const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(quad, weights));
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
        }
    }
}

/* ---- the tile --------------------------------------------------------------------------------------------- */

/* `nh` halves of a group, from half `h0` on, times `nt` tokens from token t. */
INLINE_AVX2 void tile_avx2(const pack_kind kind, const uint8_t *w, const int h0, const int nh, const activations *a,
                           size_t t, const int nt, float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    const size_t n_blocks = a->k / BLOCK_K;
    const int8_t *q = a->q + t * a->k;
    __m256 acc[2][8];
    for (int h = 0; h < nh; h++)
        for (int i = 0; i < nt; i++) acc[h][i] = _mm256_setzero_ps();
    for (size_t first = 0; first < n_blocks; first += layout.n_blocks) {
        const uint8_t *head = w;
        if (nt == 1) prefetch_avx2(w, layout.head_bytes);
        w += layout.head_bytes;
#pragma GCC unroll 1
        for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes, q += BLOCK_K) {
            if (nt == 1) prefetch_avx2(w, layout.block_bytes);
            for (int h = 0; h < nh; h++) {
                const scales_avx2 scales = block_scales_avx2(kind, head, b, h0 + h);
                __m256i codes[8], sums[8];
                if (kind_is_signed(kind))
                    sum_signed_avx2(kind, w, h0 + h, q, a->k, nt, sums);
                else
                    codes_avx2(kind, w, h0 + h, codes);
#pragma GCC unroll 8
                for (int i = 0; i < nt; i++) {
                    const size_t at = (t + (size_t)i) * n_blocks + first + b;
                    const __m256i sum =
                        kind_is_signed(kind) ? sums[i] : sum_codes_avx2(kind, codes, &scales, q + (size_t)i * a->k);
                    acc[h][i] = add_sum_avx2(kind, sum, &scales, a, at, acc[h][i]);
                }
            }
        }
    }
    for (int h = 0; h < nh; h++)
        for (int i = 0; i < nt; i++) _mm256_storeu_ps(out + (t + (size_t)i) * ld_out + (h0 + h) * HALF_ROWS, acc[h][i]);
}

/* All groups for each tile of `nt` tokens, so that the tile's activations stay in L1; the first token left.
 * Several tokens go over the halves of a group in turn, for want of registers; one over both at once. */
INLINE_AVX2 size_t tiles_avx2(const pack_kind kind, const uint8_t *w, size_t n_groups, const activations *a, size_t t,
                              size_t end, const int nt, float *out, size_t ld_out) {
    const size_t group_bytes = block_group_bytes(kind, a->k);
    const int nh = nt == 1 ? 2 : 1;
    for (; t + (size_t)nt <= end; t += (size_t)nt)
        for (size_t g = 0; g < n_groups; g++)
            for (int h = 0; h < 2; h += nh)
                tile_avx2(kind, w + g * group_bytes, h, nh, a, t, nt, out + g * GROUP_ROWS, ld_out);
    return t;
}

INLINE_AVX2 void matmul_avx2(const pack_kind kind, const uint8_t *w, size_t n_groups, const activations *a, size_t t,
                             size_t n_t, float *out, size_t ld_out) {
    const size_t end = t + n_t;
    t = tiles_avx2(kind, w, n_groups, a, t, end, 8, out, ld_out);
    t = tiles_avx2(kind, w, n_groups, a, t, end, 4, out, ld_out);
    t = tiles_avx2(kind, w, n_groups, a, t, end, 2, out, ld_out);
    tiles_avx2(kind, w, n_groups, a, t, end, 1, out, ld_out);
}

#define DEFINE_AVX2(kind, name, set)                                                                                   \
    PN_AVX2 void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t, \
                                       float *out, size_t ld_out) {                                                    \
        matmul_avx2(kind, w, n_groups, a, t0, n_t, out, ld_out);                                                       \
    }
BLOCK_KINDS(DEFINE_AVX2, avx2)

#endif
