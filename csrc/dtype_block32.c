/* dtype_block32.c - the types whose blocks have 32 elements: to floats and back.                           (rank 2)
 *
 * Know first: what is computed here must equal the reference implementation to the bit, so every multiply, add and
 * division is one float32 rounding in the written order (the build forbids contraction). */
#include "dtype.h"
#include "dtype_blocks.h"
#include "dtype_rows.h"

#include <math.h>

/* ---- to floats ----------------------------------------------------------------------------------------------- */

static inline void linear_to_floats(const int8_t codes[BLOCK_LEN], uint16_t scale_half, float *dst) {
    const float scale = half_to_float(scale_half);
    for (size_t i = 0; i < BLOCK_LEN; i++) dst[i] = scale * (float)codes[i];
    if (!float_is_finite(scale)) floats_one_nan(dst, BLOCK_LEN);
}

static inline void affine_to_floats(const int8_t codes[BLOCK_LEN], uint16_t scale_half, uint16_t min_half, float *dst) {
    const float scale = half_to_float(scale_half), min = half_to_float(min_half);
    for (size_t i = 0; i < BLOCK_LEN; i++) dst[i] = scale * (float)codes[i] + min;
    if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, BLOCK_LEN);
}

/* Nibbles, and the fifth bits where there are any (else NULL), less `zero`. */
static inline void block_codes(const uint8_t qs[NIBBLE_PAIRS], const uint8_t *high, int zero, int8_t codes[BLOCK_LEN]) {
    uint32_t bits = 0; /* bit i belongs to element i */
    if (high) memcpy(&bits, high, sizeof bits);
    for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
        codes[i] = (int8_t)((qs[i] & 15) + (int)(bits >> i & 1) * 16 - zero);
        codes[i + NIBBLE_PAIRS] = (int8_t)((qs[i] >> 4) + (int)(bits >> (i + NIBBLE_PAIRS) & 1) * 16 - zero);
    }
}

void dtype_q8_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q8_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        linear_to_floats(block.qs, block.scale, dst);
    }
}

void dtype_q4_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_0_block block;
        int8_t codes[BLOCK_LEN];
        memcpy(&block, src + b * sizeof block, sizeof block);
        block_codes(block.qs, NULL, 8, codes);
        linear_to_floats(codes, block.scale, dst);
    }
}

void dtype_q4_1_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_1_block block;
        int8_t codes[BLOCK_LEN];
        memcpy(&block, src + b * sizeof block, sizeof block);
        block_codes(block.qs, NULL, 0, codes);
        affine_to_floats(codes, block.scale, block.min, dst);
    }
}

void dtype_q5_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q5_0_block block;
        int8_t codes[BLOCK_LEN];
        memcpy(&block, src + b * sizeof block, sizeof block);
        block_codes(block.qs, block.high, 16, codes);
        linear_to_floats(codes, block.scale, dst);
    }
}

void dtype_q5_1_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q5_1_block block;
        int8_t codes[BLOCK_LEN];
        memcpy(&block, src + b * sizeof block, sizeof block);
        block_codes(block.qs, block.high, 0, codes);
        affine_to_floats(codes, block.scale, block.min, dst);
    }
}

void dtype_iq4_nl_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        iq4_nl_block block;
        int8_t codes[BLOCK_LEN];
        memcpy(&block, src + b * sizeof block, sizeof block);
        block_codes(block.qs, NULL, 0, codes);
        for (size_t i = 0; i < BLOCK_LEN; i++) codes[i] = IQ4_VALUES[codes[i]];
        linear_to_floats(codes, block.scale, dst);
    }
}

/* ---- from floats --------------------------------------------------------------------------------------------- */

/* 1 / scale; 0 where there is none, and where a scale so small that it is stored as 0 has an infinite one. */
static float block_inverse(float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    return float_is_finite(inverse) ? inverse : 0;
}

/* Halves away from zero. |x| < 2^31. Adding 0.5 and cutting would be wrong for the float just below 0.5. */
static int32_t block_round_away(float x) {
    const float magnitude = fabsf(x);
    const int32_t whole = (int32_t)magnitude;
    const int32_t rounded = whole + (magnitude - (float)whole >= 0.5f);
    return x < 0 ? -rounded : rounded;
}

void dtype_q8_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q8_0_block block = { 0 };
        const float max = floats_max_magnitude(src, BLOCK_LEN);
        const float scale = max / 127;
        block.scale = half_from_float(scale);
        const float inverse = block_inverse(scale);
        if (float_is_finite(max))
            for (size_t i = 0; i < BLOCK_LEN; i++) block.qs[i] = (int8_t)block_round_away(src[i] * inverse);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

/* The whole part of x, held to 0..top; 0 for NaN. */
static uint8_t block_code(float x, int top) {
    return (uint8_t)(x >= (float)top ? top : x > 0 ? (int)x : 0);
}

/* The first element of this magnitude, the largest: its sign goes into the scale. */
static float block_first_of(const float *x, float magnitude) {
    size_t at = 0;
    while (f32_bits(fabsf(x[at])) != f32_bits(magnitude)) at++;
    return x[at];
}

/* The half of the scale, and the codes of value = scale * (q - (top + 1) / 2); 0 where they are not finite. */
static uint16_t linear_encode(const float *src, int top, uint8_t codes[BLOCK_LEN]) {
    const float zero = (float)((top + 1) / 2), magnitude = floats_max_magnitude(src, BLOCK_LEN);
    const float scale = block_first_of(src, magnitude) / -zero;
    const float inverse = block_inverse(scale);
    memset(codes, 0, BLOCK_LEN);
    for (size_t i = 0; i < BLOCK_LEN && float_is_finite(magnitude); i++)
        codes[i] = block_code(src[i] * inverse + (zero + 0.5f), top);
    return half_from_float(scale);
}

static void block_range(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (size_t i = 1; i < BLOCK_LEN; i++) {
        *max = x[i] > *max ? x[i] : *max;
        *min = x[i] < *min ? x[i] : *min;
    }
}

/* The same for value = scale * q + min. */
static void affine_encode(const float *src, int top, uint8_t codes[BLOCK_LEN], uint16_t *scale_half,
                          uint16_t *min_half) {
    float min, max;
    block_range(src, &min, &max);
    const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
    const bool finite = float_is_finite(magnitude);
    const float scale = finite ? (max - min) / (float)top : magnitude;
    const float inverse = block_inverse(scale);
    *scale_half = half_from_float(scale);
    *min_half = half_from_float(finite ? min : 0);
    memset(codes, 0, BLOCK_LEN);
    for (size_t i = 0; i < BLOCK_LEN && finite; i++) codes[i] = block_code((src[i] - min) * inverse + 0.5f, top);
}

/* high: 4 bytes of zeros for the fifth bits, or NULL. */
static void block_pack(const uint8_t codes[BLOCK_LEN], uint8_t qs[NIBBLE_PAIRS], uint8_t *high) {
    for (size_t i = 0; i < NIBBLE_PAIRS; i++) qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + NIBBLE_PAIRS] & 15) << 4);
    for (size_t i = 0; high && i < BLOCK_LEN; i++) high[i / 8] |= (uint8_t)(codes[i] >> 4 << i % 8);
}

void dtype_q4_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_0_block block = { 0 };
        uint8_t codes[BLOCK_LEN];
        block.scale = linear_encode(src, 15, codes);
        block_pack(codes, block.qs, NULL);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

void dtype_q4_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_1_block block = { 0 };
        uint8_t codes[BLOCK_LEN];
        affine_encode(src, 15, codes, &block.scale, &block.min);
        block_pack(codes, block.qs, NULL);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

void dtype_q5_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q5_0_block block = { 0 };
        uint8_t codes[BLOCK_LEN];
        block.scale = linear_encode(src, 31, codes);
        block_pack(codes, block.qs, block.high);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

void dtype_q5_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q5_1_block block = { 0 };
        uint8_t codes[BLOCK_LEN];
        affine_encode(src, 31, codes, &block.scale, &block.min);
        block_pack(codes, block.qs, block.high);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}
