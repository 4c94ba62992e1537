/* dtype_k.c - the types whose super-blocks have 256 elements, to floats.                                  (rank 2)
 *
 * dtype_k_write.c goes the other way.
 * Know first: what is computed here must equal the reference implementation to the bit: first the scale of a group,
 * scale * s, as a float32; then times the code; then, where there is one, minus the minimum of the group, min * m. */
#include "dtype.h"
#include "dtype_blocks.h"
#include "dtype_rows.h"

void dtype_q2_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q2_k_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
            const uint8_t *qs = block.qs + g / 8 * 32 + g % 2 * 16;
            const float group_scale = scale * (float)(block.scales[g] & 15);
            const float group_min = min * (float)(block.scales[g] >> 4);
            for (size_t i = 0; i < 16; i++)
                dst[g * 16 + i] = group_scale * (float)(qs[i] >> g % 8 / 2 * 2 & 3) - group_min;
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, SUPER_LEN);
    }
}

void dtype_q3_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q3_k_block block;
        int8_t scales[SUPER_GROUPS_16];
        memcpy(&block, src + b * sizeof block, sizeof block);
        q3_k_scales(block.scales, scales);
        const float scale = half_to_float(block.scale);
        for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
            const uint8_t *qs = block.qs + g / 8 * 32 + g % 2 * 16, *high = block.high + g % 2 * 16;
            const float group_scale = scale * (float)scales[g];
            for (size_t i = 0; i < 16; i++) {
                const int q = (qs[i] >> g % 8 / 2 * 2 & 3) - (high[i] >> g / 2 & 1 ? 0 : 4);
                dst[g * 16 + i] = group_scale * (float)q;
            }
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, SUPER_LEN);
    }
}

/* high: NULL for codes of 4 bits. */
static inline void affine_to_floats(uint16_t scale_half, uint16_t min_half, const uint8_t packed[SIX_BIT_BYTES],
                                    const uint8_t *low, const uint8_t *high, float *dst) {
    const float scale = half_to_float(scale_half), min = half_to_float(min_half);
    uint8_t scales[2 * SUPER_GROUPS_32];
    affine_scales(packed, scales);
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        const uint8_t *qs = low + g / 2 * 32;
        const float group_scale = scale * (float)scales[2 * g], group_min = min * (float)scales[2 * g + 1];
        for (size_t i = 0; i < 32; i++) {
            const int q = (qs[i] >> g % 2 * 4 & 15) | (high ? (high[i] >> g & 1) << 4 : 0);
            dst[g * 32 + i] = group_scale * (float)q - group_min;
        }
    }
    if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, SUPER_LEN);
}

void dtype_q4_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q4_k_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        affine_to_floats(block.scale, block.min, block.scales, block.qs, NULL, dst);
    }
}

void dtype_q5_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q5_k_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        affine_to_floats(block.scale, block.min, block.scales, block.qs, block.high, dst);
    }
}

void dtype_q6_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q6_k_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
            const size_t half = g / 8, part = g % 8 / 2, odd = g % 2;
            const uint8_t *low = block.low + half * 64 + part % 2 * 32 + odd * 16;
            const uint8_t *high = block.high + half * 32 + odd * 16;
            const float group_scale = scale * (float)block.scales[g];
            for (size_t i = 0; i < 16; i++) {
                const int q = (low[i] >> part / 2 * 4 & 15) | (high[i] >> part * 2 & 3) << 4;
                dst[g * 16 + i] = group_scale * (float)(q - 32);
            }
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, SUPER_LEN);
    }
}

void dtype_iq4_xs_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        iq4_xs_block block;
        int8_t scales[SUPER_GROUPS_32];
        memcpy(&block, src + b * sizeof block, sizeof block);
        iq4_xs_scales(block.scales, scales);
        const float scale = half_to_float(block.scale);
        for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
            const uint8_t *qs = block.qs + g * NIBBLE_PAIRS;
            const float group_scale = scale * (float)scales[g];
            for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
                dst[g * 32 + i] = group_scale * (float)IQ4_VALUES[qs[i] & 15];
                dst[g * 32 + i + NIBBLE_PAIRS] = group_scale * (float)IQ4_VALUES[qs[i] >> 4];
            }
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, SUPER_LEN);
    }
}
