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
static int32_t dtype_round_away(float x) {
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
            for (size_t i = 0; i < BLOCK_LEN; i++) block.qs[i] = (int8_t)dtype_round_away(src[i] * inverse);
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

/* The whole part of x, held to 0..15; 0 for NaN. */
static uint8_t dtype_nibble_from_float(float x) {
    return (uint8_t)(x >= 15 ? 15 : x > 0 ? (int)x : 0);
}

void dtype_q4_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_0_block block = { 0 };
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        size_t at = 0; /* the first of the largest: its sign goes into the scale */
        while (float_bits(fabsf(src[at])) != float_bits(magnitude)) at++;
        const float scale = src[at] / -8;
        const float inverse = block_inverse(scale);
        block.scale = half_from_float(scale);
        for (size_t i = 0; i < NIBBLE_PAIRS && float_is_finite(magnitude); i++) {
            const uint8_t low = dtype_nibble_from_float(src[i] * inverse + 8.5f);
            const uint8_t high = dtype_nibble_from_float(src[i + NIBBLE_PAIRS] * inverse + 8.5f);
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

void dtype_q4_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_1_block block = { 0 };
        float max = src[0], min = src[0];
        for (size_t i = 1; i < BLOCK_LEN; i++) {
            max = src[i] > max ? src[i] : max;
            min = src[i] < min ? src[i] : min;
        }
        const float magnitude = floats_max_magnitude(src, BLOCK_LEN);
        const bool finite = float_is_finite(magnitude);
        const float scale = finite ? (max - min) / 15 : magnitude;
        const float inverse = block_inverse(scale);
        block.scale = half_from_float(scale);
        block.min = half_from_float(finite ? min : 0);
        for (size_t i = 0; i < NIBBLE_PAIRS && finite; i++) {
            const uint8_t low = dtype_nibble_from_float((src[i] - min) * inverse + 0.5f);
            const uint8_t high = dtype_nibble_from_float((src[i + NIBBLE_PAIRS] - min) * inverse + 0.5f);
            block.qs[i] = (uint8_t)(low | high << 4);
        }
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

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
