/* dtype_block32.c - the types whose blocks have 32 elements: to floats and back.                           (rank 2)
 *
 * Know first: what is computed here must equal the reference implementation to the bit, so every multiply, add and
 * division is one float32 rounding in the written order (the build forbids contraction). */
#include "dtype.h"
#include "dtype_blocks.h"
#include "dtype_rows.h"

#include <math.h>

/* 1 / scale; 0 where there is none, and where a scale so small that it is stored as 0 has an infinite one. */
static float block_inverse(float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    return float_is_finite(inverse) ? inverse : 0;
}

void dtype_q8_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q8_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t i = 0; i < BLOCK_LEN; i++) dst[i] = (float)block.qs[i] * scale;
        if (!float_is_finite(scale)) floats_one_nan(dst, BLOCK_LEN);
    }
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

void dtype_q4_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            dst[i] = scale * (float)((block.qs[i] & 15) - 8);
            dst[i + NIBBLE_PAIRS] = scale * (float)((block.qs[i] >> 4) - 8);
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, BLOCK_LEN);
    }
}

/* The whole part of x, held to 0..top; 0 for NaN. */
static uint8_t block_code(float x, int top) {
    return (uint8_t)(x >= (float)top ? top : x > 0 ? (int)x : 0);
}

/* The first element of this magnitude, the largest: its sign goes into the scale. */
static float block_first_of(const float *x, float magnitude) {
    size_t at = 0;
    while (float_bits(fabsf(x[at])) != float_bits(magnitude)) at++;
    return x[at];
}

void dtype_q4_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_0_block block = { 0 };
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        const float scale = block_first_of(src, magnitude) / -8;
        const float inverse = block_inverse(scale);
        block.scale = half_from_float(scale);
        for (size_t i = 0; i < NIBBLE_PAIRS && float_is_finite(magnitude); i++) {
            const uint8_t low = block_code(src[i] * inverse + 8.5f, 15);
            const uint8_t high = block_code(src[i + NIBBLE_PAIRS] * inverse + 8.5f, 15);
            block.qs[i] = (uint8_t)(low | high << 4);
        }
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

void dtype_q4_1_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_1_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            dst[i] = scale * (float)(block.qs[i] & 15) + min;
            dst[i + NIBBLE_PAIRS] = scale * (float)(block.qs[i] >> 4) + min;
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, BLOCK_LEN);
    }
}

static void block_range(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (size_t i = 1; i < BLOCK_LEN; i++) {
        *max = x[i] > *max ? x[i] : *max;
        *min = x[i] < *min ? x[i] : *min;
    }
}

void dtype_q4_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_1_block block = { 0 };
        float min, max;
        block_range(src, &min, &max);
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        const bool finite = float_is_finite(magnitude);
        const float scale = finite ? (max - min) / 15 : magnitude;
        const float inverse = block_inverse(scale);
        block.scale = half_from_float(scale);
        block.min = half_from_float(finite ? min : 0);
        for (size_t i = 0; i < NIBBLE_PAIRS && finite; i++) {
            const uint8_t low = block_code((src[i] - min) * inverse + 0.5f, 15);
            const uint8_t high = block_code((src[i + NIBBLE_PAIRS] - min) * inverse + 0.5f, 15);
            block.qs[i] = (uint8_t)(low | high << 4);
        }
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

/* ---- 5 bits -------------------------------------------------------------------------------------------------- */

/* The fifth bits as one number: bit i belongs to element i. */
static uint32_t block_high_bits(const uint8_t *high) {
    uint32_t bits;
    memcpy(&bits, high, sizeof bits);
    return bits;
}

void dtype_q5_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q5_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        const uint32_t high = block_high_bits(block.high);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            const uint32_t low_q = (block.qs[i] & 15u) | (high >> i & 1) << 4;
            const uint32_t high_q = (uint32_t)block.qs[i] >> 4 | (high >> (i + NIBBLE_PAIRS) & 1) << 4;
            dst[i] = scale * (float)((int)low_q - 16);
            dst[i + NIBBLE_PAIRS] = scale * (float)((int)high_q - 16);
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, BLOCK_LEN);
    }
}

void dtype_q5_1_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q5_1_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        const uint32_t high = block_high_bits(block.high);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            const uint32_t low_q = (block.qs[i] & 15u) | (high >> i & 1) << 4;
            const uint32_t high_q = (uint32_t)block.qs[i] >> 4 | (high >> (i + NIBBLE_PAIRS) & 1) << 4;
            dst[i] = scale * (float)low_q + min;
            dst[i + NIBBLE_PAIRS] = scale * (float)high_q + min;
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, BLOCK_LEN);
    }
}

static void block_pack_five(const uint8_t codes[BLOCK_LEN], uint8_t qs[NIBBLE_PAIRS], uint8_t high[4]) {
    for (size_t i = 0; i < NIBBLE_PAIRS; i++) qs[i] = (uint8_t)((codes[i] & 15) | (codes[i + NIBBLE_PAIRS] & 15) << 4);
    for (size_t i = 0; i < BLOCK_LEN; i++) high[i / 8] |= (uint8_t)(codes[i] >> 4 << i % 8);
}

void dtype_q5_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q5_0_block block = { 0 };
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        const float scale = block_first_of(src, magnitude) / -16;
        const float inverse = block_inverse(scale);
        uint8_t codes[BLOCK_LEN] = { 0 };
        block.scale = half_from_float(scale);
        for (size_t i = 0; i < BLOCK_LEN && float_is_finite(magnitude); i++)
            codes[i] = block_code(src[i] * inverse + 16.5f, 31);
        block_pack_five(codes, block.qs, block.high);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

void dtype_q5_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q5_1_block block = { 0 };
        float min, max;
        block_range(src, &min, &max);
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        const bool finite = float_is_finite(magnitude);
        const float scale = finite ? (max - min) / 31 : magnitude;
        const float inverse = block_inverse(scale);
        uint8_t codes[BLOCK_LEN] = { 0 };
        block.scale = half_from_float(scale);
        block.min = half_from_float(finite ? min : 0);
        for (size_t i = 0; i < BLOCK_LEN && finite; i++) codes[i] = block_code((src[i] - min) * inverse + 0.5f, 31);
        block_pack_five(codes, block.qs, block.high);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

/* ---- IQ4_NL, read alone -------------------------------------------------------------------------------------- */

void dtype_iq4_nl_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        iq4_nl_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            dst[i] = scale * (float)IQ4_VALUES[block.qs[i] & 15];
            dst[i + NIBBLE_PAIRS] = scale * (float)IQ4_VALUES[block.qs[i] >> 4];
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, BLOCK_LEN);
    }
}
