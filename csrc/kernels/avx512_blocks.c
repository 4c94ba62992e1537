/* avx512_blocks.c - products with quantized weights for x86-64 with AVX-512 and VNNI.                          (rank 4)
 *
 * Every function carries its target attribute, as in avx512.c. The order of operations is that of kernels.h. One tile
 * serves all kinds: the eight quads of a block, put together once, stay in registers while the tile's tokens pass, and
 * so do its scales; a kind and a width are constants.
 *
 * A group's sixteen rows are one vector. vpdpbusd wants an unsigned and a signed side: weights are taken as codes (Q8
 * and the table's values as weight + 128), and what they count from comes in through the activations' sums: as the
 * start of the sum (bias8, bias4), or, where the halves of a block have scales of their own, as one vpdpwssd with
 * -offset times the scales.
 *
 * What bounds the 8-bit tile (Golden Cove: the 512-bit multiplies go to ports 0 and 5): per 512 multiply-adds and token
 * eight vpdpbusd and four instructions for the scales, and for all tokens of a tile one more per vector of weights. So
 * twelve tokens take about 150 instructions on two ports: 6144 multiply-adds in 75 cycles at best. Putting codes
 * together takes two to four instructions per vector of weights, scales for halves three more per token. One token is
 * bound by memory. */
#include "kernels/blocks.h"

#if defined(__x86_64__)

#include "dtype_blocks.h"

#include <immintrin.h>
#include <string.h>

enum { PREFETCH_BYTES = 6144 };

#define INLINE_AVX512 PN_AVX512 static inline __attribute__((always_inline))

/* Four bytes of memory in every 32-bit lane. */
INLINE_AVX512 __m512i each_lane_avx512(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

INLINE_AVX512 __m512i load_avx512(const uint8_t *p) {
    return _mm512_loadu_si512((const void *)p);
}
INLINE_AVX512 __m512 load16_f16_avx512(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE_AVX512 __m512i load16_i8_avx512(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE_AVX512 __m512i load16_u8_avx512(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Few tokens wait for memory: they fetch ahead. */
INLINE_AVX512 void prefetch_avx512(const uint8_t *w, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)((uintptr_t)w + PREFETCH_BYTES + line), _MM_HINT_T0); /* any address will do */
}

/* ---- weights ---------------------------------------------------------------------------------------------- */

/* Bits of each byte moved by `left` (right if negative); what comes from the neighbour must be masked off. */
INLINE_AVX512 __m512i move_bits_avx512(__m512i v, const int left) {
    return left > 0 ? _mm512_slli_epi16(v, left) : left < 0 ? _mm512_srli_epi16(v, -left) : v;
}
/* code | the bits of `more`, moved, that are in `mask`. */
INLINE_AVX512 __m512i add_bits_avx512(__m512i code, __m512i more, const int left, const char mask) {
    return _mm512_ternarylogic_epi32(move_bits_avx512(more, left), _mm512_set1_epi8(mask), code, 0xea); /* a & b | c */
}

/* Quads 4h to 4h + 3 of a block as unsigned bytes. */
INLINE_AVX512 void half_codes_avx512(const pack_kind kind, const uint8_t *codes, const int h, __m512i w[4]) {
    const uint8_t *twos = codes + (kind_has_nibbles(kind) ? NIBBLES_BYTES : 0);
    const __m512i two = kind_has_twos(kind) ? load_avx512(twos + h * QUAD_BYTES) : _mm512_setzero_si512();
    const __m512i one = kind_has_ones(kind) ? load_avx512(twos + (kind_has_twos(kind) ? TWOS_BYTES : 0)) : two;
    const __m512i low4 = _mm512_set1_epi8(15), low2 = _mm512_set1_epi8(3);
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) {
        if (kind == PACK_Q8)
            w[u] = _mm512_xor_si512(load_avx512(codes + (4 * h + u) * QUAD_BYTES), _mm512_set1_epi8(-128));
        if (kind_has_nibbles(kind))
            w[u] = _mm512_and_si512(move_bits_avx512(load_avx512(codes + u * QUAD_BYTES), -4 * h), low4);
        if (kind == PACK_Q6K) w[u] = add_bits_avx512(w[u], two, 4 - 2 * u, 0x30);
        if (kind == PACK_Q2K || kind == PACK_Q3K) w[u] = _mm512_and_si512(move_bits_avx512(two, -2 * u), low2);
        if (kind == PACK_Q3K) w[u] = add_bits_avx512(w[u], one, 2 - (4 * h + u), 4);
        if (kind_has_ones(kind) && kind != PACK_Q3K) w[u] = add_bits_avx512(w[u], one, 4 - (4 * h + u), 16);
        if (kind_has_table(kind)) {
            const __m128i values = _mm_loadu_si128((const __m128i *)(const void *)IQ4_VALUES);
            const __m128i unsigned_values = _mm_xor_si128(values, _mm_set1_epi8(-128));
            w[u] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(unsigned_values), w[u]);
        }
    }
}

/* ---- scales ----------------------------------------------------------------------------------------------- */

/* What a super-block has for all its blocks, and what a block has. Unused parts vanish. */
typedef struct scales_avx512 {
    __m512 d, offset;    /* of the super-block; of the block, where it has no halves */
    __m512i first, last; /* scales of the halves                                     */
    __m512i pairs;       /* for vpdpwssd with sum16: -offset * scale, or the minima  */
} scales_avx512;

INLINE_AVX512 void block_scales_avx512(const pack_kind kind, const uint8_t *head, size_t b, const scales_avx512 *super,
                                       scales_avx512 *out) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    *out = *super;
    if (kind == PACK_IQ4K)
        out->d = _mm512_mul_ps(super->d, _mm512_cvtepi32_ps(load16_i8_avx512(each + b * GROUP_ROWS)));
    if (kind == PACK_Q4K || kind == PACK_Q5K) {
        const uint8_t *at = each + b * 2 * GROUP_ROWS;
        out->d = _mm512_mul_ps(super->d, _mm512_cvtepi32_ps(load16_u8_avx512(at)));
        out->offset = _mm512_mul_ps(super->offset, _mm512_cvtepi32_ps(load16_u8_avx512(at + GROUP_ROWS)));
    }
    if (!kind_has_halves(kind)) return;
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(each + b * 2 * GROUP_ROWS));
    if (kind == PACK_Q2K) {
        const __m512i both = _mm512_cvtepu8_epi16(bytes);
        const __m512i pairs = _mm512_and_si512(both, _mm512_set1_epi16(15));
        out->first = _mm512_and_si512(pairs, _mm512_set1_epi32(15));
        out->last = _mm512_srli_epi32(pairs, 16);
        out->pairs = _mm512_srli_epi16(both, 4);
    } else {
        const __m512i pairs = _mm512_cvtepi8_epi16(bytes);
        out->first = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16);
        out->last = _mm512_srai_epi32(pairs, 16);
        out->pairs = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(pairs, kind == PACK_Q6K ? 5 : 2));
    }
}

/* ---- the tile --------------------------------------------------------------------------------------------- */

/* What the integer sum of a block starts from. */
INLINE_AVX512 __m512i start_avx512(const pack_kind kind, const activations *a, size_t at) {
    if (kind_is_signed(kind)) return _mm512_set1_epi32(a->bias8[at]);
    if (kind == PACK_Q4) return _mm512_set1_epi32(a->bias4[at]);
    if (kind == PACK_Q5) return _mm512_slli_epi32(_mm512_set1_epi32(a->bias4[at]), 1);
    return _mm512_setzero_si512();
}

/* acc + a block times one token; `q` and `at` are its place. */
INLINE_AVX512 __m512 add_block_avx512(const pack_kind kind, const __m512i w[8], const scales_avx512 *s,
                                      const activations *a, size_t at, const int8_t *q, __m512 acc) {
    __m512i sum = start_avx512(kind, a, at), last = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        sum = _mm512_dpbusd_epi32(sum, w[v], each_lane_avx512(q + 4 * v));
        last = _mm512_dpbusd_epi32(last, w[v + 4], each_lane_avx512(q + 4 * v + 16));
    }
    if (kind_has_halves(kind)) {
        sum = _mm512_mullo_epi32(sum, s->first);
        last = _mm512_mullo_epi32(last, s->last);
    }
    sum = _mm512_add_epi32(sum, last);
    if (kind == PACK_Q6K || kind == PACK_Q3K)
        sum = _mm512_dpwssd_epi32(sum, s->pairs, each_lane_avx512(a->sum16 + 2 * at));
    const __m512 d = _mm512_set1_ps(a->d[at]);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s->d, d), acc);
    if (kind == PACK_Q2K) {
        const __m512i minima = _mm512_madd_epi16(s->pairs, each_lane_avx512(a->sum16 + 2 * at));
        acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima), _mm512_mul_ps(s->offset, d), acc);
    }
    if (kind == PACK_Q4M || kind == PACK_Q5M) acc = _mm512_fmadd_ps(s->offset, _mm512_set1_ps(a->ds[at]), acc);
    if (kind == PACK_Q4K || kind == PACK_Q5K) acc = _mm512_fnmadd_ps(s->offset, _mm512_set1_ps(a->ds[at]), acc);
    return acc;
}

/* A group times `nt` tokens from token t. */
INLINE_AVX512 void tile_avx512(const pack_kind kind, const uint8_t *w, const activations *a, size_t t, const int nt,
                               float *out, size_t ld_out) {
    const pack_layout layout = pack_layout_of(kind);
    const size_t n_blocks = a->k / BLOCK_K;
    const int8_t *q = a->q + t * a->k;
    __m512 acc[12];
    for (int i = 0; i < nt; i++) acc[i] = _mm512_setzero_ps();
    for (size_t first = 0; first < n_blocks; first += layout.n_blocks) {
        const uint8_t *head = w;
        scales_avx512 super = { .d = load16_f16_avx512(head) };
        if (kind_has_offset(kind)) super.offset = load16_f16_avx512(head + SCALES_BYTES);
        if (nt <= 8) prefetch_avx512(w, layout.head_bytes);
        w += layout.head_bytes;
#pragma GCC unroll 1
        for (size_t b = 0; b < layout.n_blocks; b++, w += layout.block_bytes, q += BLOCK_K) {
            __m512i codes[8];
            scales_avx512 scales;
            if (nt <= 8) prefetch_avx512(w, layout.block_bytes);
            half_codes_avx512(kind, w, 0, codes);
            half_codes_avx512(kind, w, 1, codes + 4);
            block_scales_avx512(kind, head, b, &super, &scales);
#pragma GCC unroll 12
            for (int i = 0; i < nt; i++)
                acc[i] = add_block_avx512(kind, codes, &scales, a, (t + (size_t)i) * n_blocks + first + b,
                                          q + (size_t)i * a->k, acc[i]);
        }
    }
    for (int i = 0; i < nt; i++) _mm512_storeu_ps(out + (t + (size_t)i) * ld_out, acc[i]);
}

/* All groups for each tile of `nt` tokens, so that the tile's activations stay in L1; the first token that is left. */
INLINE_AVX512 size_t tiles_avx512(const pack_kind kind, const uint8_t *w, size_t n_groups, const activations *a,
                                  size_t t, size_t end, const int nt, float *out, size_t ld_out) {
    const size_t group_bytes = block_group_bytes(kind, a->k);
    for (; t + (size_t)nt <= end; t += (size_t)nt)
        for (size_t g = 0; g < n_groups; g++)
            tile_avx512(kind, w + g * group_bytes, a, t, nt, out + g * GROUP_ROWS, ld_out);
    return t;
}

INLINE_AVX512 void matmul_avx512(const pack_kind kind, const uint8_t *w, size_t n_groups, const activations *a,
                                 size_t t, size_t n_t, float *out, size_t ld_out) {
    const size_t end = t + n_t;
    t = tiles_avx512(kind, w, n_groups, a, t, end, 12, out, ld_out);
    t = tiles_avx512(kind, w, n_groups, a, t, end, 8, out, ld_out);
    t = tiles_avx512(kind, w, n_groups, a, t, end, 4, out, ld_out);
    t = tiles_avx512(kind, w, n_groups, a, t, end, 2, out, ld_out);
    tiles_avx512(kind, w, n_groups, a, t, end, 1, out, ld_out);
}

#define DEFINE_AVX512(kind, name, set)                                                                                 \
    PN_AVX512 void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0,           \
                                         size_t n_t, float *out, size_t ld_out) {                                      \
        matmul_avx512(kind, w, n_groups, a, t0, n_t, out, ld_out);                                                     \
    }
BLOCK_KINDS(DEFINE_AVX512, avx512)

#endif
