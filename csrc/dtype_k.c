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

/* Sixteen numbers of 6 bits, 0..63: four low bits in a half of bytes 0..7, two high bits in a quarter of 8..11. */
static void q3_k_scales(const uint8_t packed[SIX_BIT_BYTES], uint8_t scales[SUPER_GROUPS_16]) {
    for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
        const int low = packed[g % 8] >> g / 8 * 4 & 15, high = packed[8 + g % 4] >> g / 4 * 2 & 3;
        scales[g] = (uint8_t)(low | high << 4);
    }
}

void dtype_q3_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q3_k_block block;
        uint8_t scales[SUPER_GROUPS_16];
        memcpy(&block, src + b * sizeof block, sizeof block);
        q3_k_scales(block.scales, scales);
        const float scale = half_to_float(block.scale);
        for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
            const uint8_t *qs = block.qs + g / 8 * 32 + g % 2 * 16, *high = block.high + g % 2 * 16;
            const float group_scale = scale * (float)(scales[g] - 32);
            for (size_t i = 0; i < 16; i++) {
                const int q = (qs[i] >> g % 8 / 2 * 2 & 3) - (high[i] >> g / 2 & 1 ? 0 : 4);
                dst[g * 16 + i] = group_scale * (float)q;
            }
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, SUPER_LEN);
    }
}

/* Scales and minima of 8 groups, 0..63 each: for the first four the low six bits of bytes 0..3 and 4..7; for the others
 * four low bits in the halves of bytes 8..11, and two high bits on top of bytes 0..3 and 4..7. */
static void k_scales_read(const uint8_t packed[SIX_BIT_BYTES], uint8_t scales[SUPER_GROUPS_32],
                          uint8_t mins[SUPER_GROUPS_32]) {
    for (size_t g = 0; g < SUPER_GROUPS_32 / 2; g++) {
        scales[g] = packed[g] & 63;
        mins[g] = packed[g + 4] & 63;
        scales[g + 4] = (uint8_t)((packed[g + 8] & 15) | packed[g] >> 6 << 4);
        mins[g + 4] = (uint8_t)(packed[g + 8] >> 4 | packed[g + 4] >> 6 << 4);
    }
}

void dtype_q4_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q4_k_block block;
        uint8_t scales[SUPER_GROUPS_32], mins[SUPER_GROUPS_32];
        memcpy(&block, src + b * sizeof block, sizeof block);
        k_scales_read(block.scales, scales, mins);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
            const uint8_t *qs = block.qs + g / 2 * 32;
            const float group_scale = scale * (float)scales[g], group_min = min * (float)mins[g];
            for (size_t i = 0; i < 32; i++)
                dst[g * 32 + i] = group_scale * (float)(qs[i] >> g % 2 * 4 & 15) - group_min;
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, SUPER_LEN);
    }
}

void dtype_q5_k_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / SUPER_LEN; b++, dst += SUPER_LEN) {
        q5_k_block block;
        uint8_t scales[SUPER_GROUPS_32], mins[SUPER_GROUPS_32];
        memcpy(&block, src + b * sizeof block, sizeof block);
        k_scales_read(block.scales, scales, mins);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
            const uint8_t *qs = block.qs + g / 2 * 32;
            const float group_scale = scale * (float)scales[g], group_min = min * (float)mins[g];
            for (size_t i = 0; i < 32; i++) {
                const int q = (qs[i] >> g % 2 * 4 & 15) | (block.high[i] >> g & 1) << 4;
                dst[g * 32 + i] = group_scale * (float)q - group_min;
            }
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) floats_one_nan(dst, SUPER_LEN);
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
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
            const uint8_t *qs = block.qs + g * NIBBLE_PAIRS;
            const int low = block.scales_low[g / 2] >> g % 2 * 4 & 15, high = block.scales_high >> g * 2 & 3;
            const float group_scale = scale * (float)((low | high << 4) - 32);
            for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
                dst[g * 32 + i] = group_scale * (float)IQ4_VALUES[qs[i] & 15];
                dst[g * 32 + i + NIBBLE_PAIRS] = group_scale * (float)IQ4_VALUES[qs[i] >> 4];
            }
        }
        if (!float_is_finite(scale)) floats_one_nan(dst, SUPER_LEN);
    }
}
