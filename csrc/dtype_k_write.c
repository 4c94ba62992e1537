/* dtype_k_write.c - floats to the super-blocks of Q4_K, Q5_K and Q6_K, with the least squared error that a short search
 * finds.                                                                                                (rank 2)
 *
 * All elements weigh the same: for inputs of which nothing is known, the expected squared error of a product is in
 * proportion to that of the weights. The search of Q4_K and Q5_K has two steps; Q6_K, without minima, needs but the
 * second.
 * 1. Each group alone, its scale and minimum free: codes for a number of trial ranges around the one that just covers
 *    the group, for each the scale and minimum that fit these codes best (linear least squares), the best of all kept.
 * 2. The super-block: the largest scale and minimum give its halves; each group takes the integers whose rounded codes
 *    leave the least error, among those near; then the halves are fitted to all codes, and the integers chosen once
 *    more. What is better stays.
 * Know first: sums go over 8 fixed lanes and a fixed tree, every operation is one float32 rounding, so the bytes are
 * the same on every machine. */
#include "dtype.h"
#include "dtype_blocks.h"
#include "dtype_rows.h"

#include <math.h>
#include <stdlib.h>

enum { LANES = 8, SIX_BIT_MAX = 63, REFITS = 2 };

static const float WRITE_TINY = 1e-30f; /* a group below has no scale that a half could hold; its squares underflow */
static const uint16_t WRITE_HALF_MAX = 0x7bff, WRITE_HALF_INFINITY = 0x7c00;

static float lanes_sum(const float v[LANES]) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* To the nearest whole number, ties to even. |x| <= 2^22. */
static inline float nearest(float x) {
    const float big = 0x1.8p23f;
    return (x + big) - big;
}

/* x held to [low, high] and rounded; both are whole numbers. */
static inline float nearest_within(float x, float low, float high) {
    x = x > low ? x : low;
    x = x < high ? x : high;
    return nearest(x);
}

/* The half nearest to x >= 0, never infinite, and not so far below that `top` steps of it fall short of `reach` by more
 * than half a step (small halves are coarse). */
static uint16_t half_to_reach(float x, float reach, float top) {
    uint16_t h = half_from_float(x);
    if (h < WRITE_HALF_MAX && half_to_float(h) * (top + 0.5f) < reach) h++;
    return h < WRITE_HALF_MAX ? h : WRITE_HALF_MAX;
}

static bool super_fits(const float x[SUPER_LEN], float limit) {
    return floats_max_magnitude(x, SUPER_LEN) < limit; /* not so for NaN, which is above all, and infinity */
}

/* ---- Q4_K and Q5_K: value = scale * s * q - min * m, groups of 32 --------------------------------------------- */

typedef struct affine_fit {
    float scale, min; /* value = scale * q - min; both >= 0 */
    float error;      /* squared, of the group              */
} affine_fit;

/* One trial: codes round((x - low) * inverse) in 0..top, and the best scale and minimum for these. */
static affine_fit affine_try(const float x[32], float sum_x, float sum_xx, float low, float inverse, float top) {
    float q1[LANES] = { 0 }, q2[LANES] = { 0 }, qx[LANES] = { 0 };
    for (size_t i = 0; i < 32; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            const float q = nearest_within((x[i + j] - low) * inverse, 0, top);
            q1[j] += q;
            q2[j] += q * q;
            qx[j] += q * x[i + j];
        }
    const float sum_q = lanes_sum(q1), sum_qq = lanes_sum(q2), sum_qx = lanes_sum(qx);
    const float det = 32 * sum_qq - sum_q * sum_q;
    affine_fit fit = { 0, 0, INFINITY };
    if (!(sum_qq > 0)) return fit;
    if (det > 0) {
        fit.scale = (32 * sum_qx - sum_q * sum_x) / det;
        fit.min = (sum_q * sum_qx - sum_qq * sum_x) / det;
    }
    if (!(det > 0) || fit.min < 0) { /* the codes are all alike, or the format would have to add */
        fit.min = 0;
        fit.scale = sum_qx / sum_qq;
    }
    if (fit.scale > 0) fit.error = (sum_xx - fit.scale * sum_qx) + fit.min * sum_x;
    return fit;
}

static affine_fit affine_search(const float x[32], float top) {
    float low = 0, high = x[0], s1[LANES] = { 0 }, s2[LANES] = { 0 };
    for (size_t i = 0; i < 32; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            low = x[i + j] < low ? x[i + j] : low;
            high = x[i + j] > high ? x[i + j] : high;
            s1[j] += x[i + j];
            s2[j] += x[i + j] * x[i + j];
        }
    affine_fit best = { 0, -low, INFINITY };
    if (high - low < WRITE_TINY) return best; /* all one number, which the minimum holds */
    const float sum_x = lanes_sum(s1), sum_xx = lanes_sum(s2);
    for (int cut = -1; cut <= 3; cut++)          /* twelfths of the lower end left out */
        for (int step = -5; step <= 8; step++) { /* quarters of a step of the upper one */
            const float start = low * (1 - (float)cut / 12);
            const float inverse = (top + (float)step * 0.25f) / (high - start);
            const affine_fit fit = affine_try(x, sum_x, sum_xx, start, inverse, top);
            if (fit.error < best.error) best = fit;
        }
    for (int i = 0; i < 3 && best.scale > 0; i++) { /* and the codes that fit the best fit */
        const affine_fit fit = affine_try(x, sum_x, sum_xx, -best.min, 1 / best.scale, top);
        if (!(fit.error < best.error)) break;
        best = fit;
    }
    return best;
}

typedef struct affine_super {
    uint16_t scale, min; /* halves */
    uint8_t s[SUPER_GROUPS_32], m[SUPER_GROUPS_32];
    float error;
} affine_super;

/* What a group of this scale and minimum loses. */
static float affine_error(const float x[32], float scale, float min, float top) {
    const float inverse = scale > 0 ? 1 / scale : 0;
    float lanes[LANES] = { 0 };
    for (size_t i = 0; i < 32; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            const float q = nearest_within((x[i + j] + min) * inverse, 0, top);
            const float miss = (scale * q - min) - x[i + j];
            lanes[j] += miss * miss;
        }
    return lanes_sum(lanes);
}

/* Of s and m and their neighbours the ones that lose least. */
static void affine_settle(const float x[32], affine_super *b, size_t g, float top) {
    static const int8_t MOVES[9][2] = { { 0, 0 },   { 0, -1 }, { 0, 1 },  { -1, 0 }, { 1, 0 },
                                        { -1, -1 }, { -1, 1 }, { 1, -1 }, { 1, 1 } };
    const float scale = half_to_float(b->scale), min = half_to_float(b->min);
    const int s = b->s[g], m = b->m[g];
    float best = INFINITY;
    for (size_t i = 0; i < PN_ARRAY_LEN(MOVES); i++) {
        const int try_s = s + MOVES[i][0], try_m = m + MOVES[i][1];
        if (try_s < 0 || try_s > SIX_BIT_MAX || try_m < 0 || try_m > SIX_BIT_MAX) continue;
        const float error = affine_error(x, scale * (float)try_s, min * (float)try_m, top);
        if (!(error < best)) continue;
        best = error;
        b->s[g] = (uint8_t)try_s;
        b->m[g] = (uint8_t)try_m;
    }
    b->error += best;
}

static uint8_t six_bits(float x) {
    return (uint8_t)nearest_within(x, 0, SIX_BIT_MAX);
}

/* 1 / x for a half; 0 for none. */
static float half_inverse(uint16_t h) {
    return h ? 1 / half_to_float(h) : 0;
}

static affine_super affine_first(const float x[SUPER_LEN], float top) {
    affine_fit fits[SUPER_GROUPS_32];
    float scale = 0, min = 0;
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        fits[g] = affine_search(x + g * 32, top);
        scale = fits[g].scale > scale ? fits[g].scale : scale;
        min = fits[g].min > min ? fits[g].min : min;
    }
    affine_super b = { .scale = half_to_reach(scale / SIX_BIT_MAX, scale, SIX_BIT_MAX),
                       .min = half_to_reach(min / SIX_BIT_MAX, min, SIX_BIT_MAX) };
    const float scale_inverse = half_inverse(b.scale), min_inverse = half_inverse(b.min);
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        b.s[g] = six_bits(fits[g].scale * scale_inverse);
        b.m[g] = six_bits(fits[g].min * min_inverse);
        affine_settle(x + g * 32, &b, g, top);
    }
    return b;
}

/* The halves that fit the codes best, all groups together: least squares for x = scale * (s q) - min * m. */
static void affine_refit(const float x[SUPER_LEN], affine_super *b, float top) {
    const float scale = half_to_float(b->scale), min = half_to_float(b->min);
    float aa = 0, bb = 0, ab = 0, ax = 0, bx = 0;
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        const float s = (float)b->s[g], m = (float)b->m[g];
        const float group_scale = scale * s, group_min = min * m, inverse = group_scale > 0 ? 1 / group_scale : 0;
        float q1[LANES] = { 0 }, q2[LANES] = { 0 }, qx[LANES] = { 0 }, x1[LANES] = { 0 };
        for (size_t i = 0; i < 32; i += LANES)
            for (size_t j = 0; j < LANES; j++) {
                const float value = x[g * 32 + i + j];
                const float q = nearest_within((value + group_min) * inverse, 0, top);
                q1[j] += q;
                q2[j] += q * q;
                qx[j] += q * value;
                x1[j] += value;
            }
        aa += s * s * lanes_sum(q2);
        bb += m * m * 32;
        ab += s * m * lanes_sum(q1);
        ax += s * lanes_sum(qx);
        bx += m * lanes_sum(x1);
    }
    const float det = aa * bb - ab * ab;
    const float fit_scale = det > 0 ? (ax * bb - ab * bx) / det : aa > 0 ? ax / aa : 0;
    const float fit_min = det > 0 ? (ab * ax - aa * bx) / det : min;
    if (!(fit_scale >= 0) || !(fit_min >= 0)) return;
    b->scale = half_to_reach(fit_scale, 0, 0);
    b->min = half_to_reach(fit_min, 0, 0);
}

static affine_super affine_best(const float x[SUPER_LEN], float top) {
    affine_super best = affine_first(x, top);
    for (int round = 0; round < REFITS; round++) {
        affine_super b = best;
        affine_refit(x, &b, top);
        b.error = 0;
        for (size_t g = 0; g < SUPER_GROUPS_32; g++) affine_settle(x + g * 32, &b, g, top);
        if (!(b.error < best.error)) break;
        best = b;
    }
    return best;
}

/* The inverse of affine_scales. */
static void affine_pack_scales(const affine_super *b, uint8_t packed[SIX_BIT_BYTES]) {
    for (size_t g = 0; g < SUPER_GROUPS_32 / 2; g++) {
        packed[g] = (uint8_t)(b->s[g] | b->s[g + 4] >> 4 << 6);
        packed[g + 4] = (uint8_t)(b->m[g] | b->m[g + 4] >> 4 << 6);
        packed[g + 8] = (uint8_t)((b->s[g + 4] & 15) | (b->m[g + 4] & 15) << 4);
    }
}

/* The best fit and its codes; numbers that cannot be written become infinite halves, and nothing else. */
static affine_super affine_encode(const float x[SUPER_LEN], float top, uint8_t codes[SUPER_LEN]) {
    memset(codes, 0, SUPER_LEN);
    if (!super_fits(x, K_AFFINE_LIMIT))
        return (affine_super){ .scale = WRITE_HALF_INFINITY, .min = WRITE_HALF_INFINITY };
    const affine_super b = affine_best(x, top);
    const float scale = half_to_float(b.scale), min = half_to_float(b.min);
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        const float group_scale = scale * (float)b.s[g], group_min = min * (float)b.m[g];
        const float inverse = group_scale > 0 ? 1 / group_scale : 0;
        for (size_t i = g * 32; i < g * 32 + 32; i++)
            codes[i] = (uint8_t)nearest_within((x[i] + group_min) * inverse, 0, top);
    }
    return b;
}

/* Low four bits of the codes: pairs of groups share bytes. */
static void affine_pack_nibbles(const uint8_t codes[SUPER_LEN], uint8_t qs[SUPER_LEN / 2]) {
    for (size_t i = 0; i < SUPER_LEN / 2; i++) {
        const uint8_t *low = codes + i / 32 * 64 + i % 32;
        qs[i] = (uint8_t)((low[0] & 15) | (low[32] & 15) << 4);
    }
}

void dtype_q4_k_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n / SUPER_LEN; i++, src += SUPER_LEN) {
        uint8_t codes[SUPER_LEN];
        const affine_super b = affine_encode(src, 15, codes);
        q4_k_block block = { .scale = b.scale, .min = b.min };
        affine_pack_scales(&b, block.scales);
        affine_pack_nibbles(codes, block.qs);
        memcpy(dst + i * sizeof block, &block, sizeof block);
    }
}

void dtype_q5_k_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n / SUPER_LEN; i++, src += SUPER_LEN) {
        uint8_t codes[SUPER_LEN];
        const affine_super b = affine_encode(src, 31, codes);
        q5_k_block block = { .scale = b.scale, .min = b.min };
        affine_pack_scales(&b, block.scales);
        affine_pack_nibbles(codes, block.qs);
        for (size_t e = 0; e < SUPER_LEN; e++) block.high[e % 32] |= (uint8_t)(codes[e] >> 4 << e / 32);
        memcpy(dst + i * sizeof block, &block, sizeof block);
    }
}

/* ---- Q6_K: value = scale * s * (q - 32), groups of 16 --------------------------------------------------------- */

static const float Q6_LOW = -32, Q6_HIGH = 31;
static const float CODE_REACH_LEAST = 28, CODE_REACH_MOST = 36;

typedef struct linear_super {
    uint16_t scale; /* half */
    int8_t s[SUPER_GROUPS_16];
    float error;
} linear_super;

static float linear_error(const float x[16], float scale) {
    const float inverse = scale != 0 ? 1 / scale : 0;
    float lanes[LANES] = { 0 };
    for (size_t i = 0; i < 16; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            const float miss = scale * nearest_within(x[i + j] * inverse, Q6_LOW, Q6_HIGH) - x[i + j];
            lanes[j] += miss * miss;
        }
    return lanes_sum(lanes);
}

/* The integer from `first` to `last` (<= 128) that loses least, with either sign: codes reach further down than up. */
static void linear_settle(const float x[16], linear_super *b, size_t g, int first, int last) {
    const float scale = half_to_float(b->scale);
    float best = INFINITY;
    for (int s = first; s <= last; s++)
        for (int sign = -1; sign <= 1; sign += 2) {
            if (sign * s > INT8_MAX) continue;
            const float error = linear_error(x, scale * (float)(sign * s));
            if (!(error < best)) continue;
            best = error;
            b->s[g] = (int8_t)(sign * s);
        }
    b->error += best;
}

/* All integers are tried at which the code of the group's extreme, were it not cut off at 32, lies between 28 and 36:
 * further away nothing is gained. */
static linear_super linear_first(const float x[SUPER_LEN]) {
    const float extreme = floats_max_magnitude(x, SUPER_LEN);
    linear_super b = { .scale = half_to_reach(extreme / (CODE_REACH_LEAST * 128), extreme / 32, 128) };
    const float inverse = half_inverse(b.scale);
    for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
        const float group = floats_max_magnitude(x + g * 16, 16) * inverse;
        const int first = (int)nearest_within(group / CODE_REACH_MOST, 0, 128),
                  last = (int)nearest_within(group / CODE_REACH_LEAST, 0, 128);
        linear_settle(x + g * 16, &b, g, first, last);
    }
    return b;
}

static void linear_refit(const float x[SUPER_LEN], linear_super *b) {
    const float scale = half_to_float(b->scale);
    float aa = 0, ax = 0;
    for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
        const float s = (float)b->s[g], group_scale = scale * s, inverse = group_scale != 0 ? 1 / group_scale : 0;
        float q2[LANES] = { 0 }, qx[LANES] = { 0 };
        for (size_t i = 0; i < 16; i += LANES)
            for (size_t j = 0; j < LANES; j++) {
                const float value = x[g * 16 + i + j];
                const float q = nearest_within(value * inverse, Q6_LOW, Q6_HIGH);
                q2[j] += q * q;
                qx[j] += q * value;
            }
        aa += s * s * lanes_sum(q2);
        ax += s * lanes_sum(qx);
    }
    if (!(aa > 0)) return;
    if (ax > 0) b->scale = half_to_reach(ax / aa, 0, 0);
}

static linear_super linear_best(const float x[SUPER_LEN]) {
    linear_super best = linear_first(x);
    for (int round = 0; round < REFITS; round++) {
        linear_super b = best;
        linear_refit(x, &b);
        b.error = 0;
        for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
            const int s = abs(best.s[g]);
            linear_settle(x + g * 16, &b, g, s > 0 ? s - 1 : 0, s < 128 ? s + 1 : 128);
        }
        if (!(b.error < best.error)) break;
        best = b;
    }
    return best;
}

/* Element e: see the layout in dtype_blocks.h. */
static void q6_k_pack(q6_k_block *block, size_t e, uint8_t code) {
    const size_t half = e / 128, part = e % 128 / 32, i = e % 32;
    block->low[half * 64 + part % 2 * 32 + i] |= (uint8_t)((code & 15) << part / 2 * 4);
    block->high[half * 32 + i] |= (uint8_t)(code >> 4 << part * 2);
}

void dtype_q6_k_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n / SUPER_LEN; i++, src += SUPER_LEN) {
        q6_k_block block = { .scale = WRITE_HALF_INFINITY };
        if (super_fits(src, Q6_K_LIMIT)) {
            const linear_super b = linear_best(src);
            const float scale = half_to_float(b.scale);
            block.scale = b.scale;
            memcpy(block.scales, b.s, sizeof block.scales);
            for (size_t e = 0; e < SUPER_LEN; e++) {
                const float group_scale = scale * (float)b.s[e / 16], inverse = group_scale != 0 ? 1 / group_scale : 0;
                q6_k_pack(&block, e, (uint8_t)(nearest_within(src[e] * inverse, Q6_LOW, Q6_HIGH) + 32));
            }
        }
        memcpy(dst + i * sizeof block, &block, sizeof block);
    }
}
