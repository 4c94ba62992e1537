/* dtype.c - encoded rows to floats and back, and what one block of each element type looks like.        (rank 2)
 *
 * To add a type: one block struct with its size assert, one pair of functions, one row in TYPES.
 * It does not multiply: the loops that a model spends its time in are in kernels/.
 * Know first: what is computed here must equal the reference implementation to the bit, so every multiply, add and
 * division is one float32 rounding in the written order (the build forbids contraction). */
#include "dtype.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read in place; the format is little-endian");

enum { BLOCK_LEN = 32, NIBBLE_PAIRS = BLOCK_LEN / 2 };

/* In the 4-bit blocks element i is the low half of qs[i] and element i + 16 the high half. */
typedef struct q8_0_block {
    uint16_t scale; /* half; value = scale * qs */
    int8_t qs[BLOCK_LEN];
} q8_0_block;
typedef struct q4_0_block {
    uint16_t scale; /* half; value = scale * (q - 8) */
    uint8_t qs[NIBBLE_PAIRS];
} q4_0_block;
typedef struct q4_1_block {
    uint16_t scale, min; /* halves; value = scale * q + min */
    uint8_t qs[NIBBLE_PAIRS];
} q4_1_block;
_Static_assert(sizeof(q8_0_block) == 34, "Q8_0: 2 bytes of scale, 32 of values");
_Static_assert(sizeof(q4_0_block) == 18, "Q4_0: 2 bytes of scale, 16 of values");
_Static_assert(sizeof(q4_1_block) == 20, "Q4_1: 2 bytes of scale, 2 of minimum, 16 of values");
_Static_assert(sizeof(float) == 4, "F32");

static uint32_t float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static bool float_is_finite(float f) {
    return (float_bits(f) & 0x7f800000u) != 0x7f800000u;
}

/* Which NaN an operation returns differs between CPUs, and between operand orders that a compiler may swap. */
static float float_one_nan(float f) {
    return (float_bits(f) & 0x7fffffffu) > 0x7f800000u ? float_from_bits(0x7fc00000u) : f;
}

/* ---- half and bfloat16 -------------------------------------------------------------------------------------- */

float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    if (magnitude == 0) return float_from_bits(sign);
    /* Subnormal: magnitude * 2^-24. Move the leading one to bit 10, where it is implicit. */
    const uint32_t shift = (uint32_t)__builtin_clz(magnitude) - 21;
    return float_from_bits(sign | (113u - shift) << 23 | ((magnitude << shift) & 0x3ffu) << 13);
}

uint16_t half_from_float(float f) {
    const uint32_t bits = float_bits(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    else if (magnitude >= 0x477ff000u)
        half = 0x7c00u;                  /* 65520 is half way to the first that does not exist */
    else if (magnitude >= 0x38800000u) { /* 2^-14: normal */
        const uint32_t rebased = magnitude - (112u << 23);
        half = (rebased + 0xfffu + (rebased >> 13 & 1)) >> 13;
    } else if (magnitude >= 0x33000000u) { /* 2^-25, half of the smallest subnormal */
        const uint32_t shift = 126u - (magnitude >> 23);
        const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        half = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    } else
        half = 0;
    return (uint16_t)(sign | half);
}

float bf16_to_float(uint16_t h) {
    return float_from_bits((uint32_t)h << 16);
}

uint16_t bf16_from_float(float f) {
    const uint32_t bits = float_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* ---- element types ------------------------------------------------------------------------------------------ */

static void f32_dequantize(const uint8_t *src, float *dst, size_t n) {
    memcpy(dst, src, n * sizeof *dst);
}
static void f32_quantize(const float *src, uint8_t *dst, size_t n) {
    memcpy(dst, src, n * sizeof *src);
}

static void f16_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = half_to_float(h);
    }
}

static void f16_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = half_from_float(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

static void bf16_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = bf16_to_float(h);
    }
}

static void bf16_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = bf16_from_float(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

/* ---- block types -------------------------------------------------------------------------------------------- */

static void block_one_nan(float *x) {
    for (size_t i = 0; i < BLOCK_LEN; i++) x[i] = float_one_nan(x[i]);
}

/* Largest magnitude of a block. As integers magnitudes order like the floats, and NaN is above infinity. */
static float block_max_magnitude(const float *x) {
    int32_t max = 0;
    for (size_t i = 0; i < BLOCK_LEN; i++) {
        const int32_t magnitude = (int32_t)(float_bits(x[i]) & 0x7fffffffu);
        max = magnitude > max ? magnitude : max;
    }
    return float_from_bits((uint32_t)max);
}

/* 1 / scale; 0 where there is none, and where a scale so small that it is stored as 0 has an infinite one. */
static float block_inverse(float scale) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    return float_is_finite(inverse) ? inverse : 0;
}

static void q8_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q8_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t i = 0; i < BLOCK_LEN; i++) dst[i] = (float)block.qs[i] * scale;
        if (!float_is_finite(scale)) block_one_nan(dst);
    }
}

/* Halves away from zero. |x| < 2^31. Adding 0.5 and cutting would be wrong for the float just below 0.5. */
static int32_t dtype_round_away(float x) {
    const float magnitude = fabsf(x);
    const int32_t whole = (int32_t)magnitude;
    const int32_t rounded = whole + (magnitude - (float)whole >= 0.5f);
    return x < 0 ? -rounded : rounded;
}

static void q8_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q8_0_block block = { 0 };
        const float max = block_max_magnitude(src);
        const float scale = max / 127;
        block.scale = half_from_float(scale);
        const float inverse = block_inverse(scale);
        if (float_is_finite(max))
            for (size_t i = 0; i < BLOCK_LEN; i++) block.qs[i] = (int8_t)dtype_round_away(src[i] * inverse);
        memcpy(dst + b * sizeof block, &block, sizeof block);
    }
}

static void q4_0_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_0_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            dst[i] = scale * (float)((block.qs[i] & 15) - 8);
            dst[i + NIBBLE_PAIRS] = scale * (float)((block.qs[i] >> 4) - 8);
        }
        if (!float_is_finite(scale)) block_one_nan(dst);
    }
}

/* The whole part of x, held to 0..15; 0 for NaN. */
static uint8_t dtype_nibble_from_float(float x) {
    return (uint8_t)(x >= 15 ? 15 : x > 0 ? (int)x : 0);
}

static void q4_0_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_0_block block = { 0 };
        const float magnitude = block_max_magnitude(src);
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

static void q4_1_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, dst += BLOCK_LEN) {
        q4_1_block block;
        memcpy(&block, src + b * sizeof block, sizeof block);
        const float scale = half_to_float(block.scale), min = half_to_float(block.min);
        for (size_t i = 0; i < NIBBLE_PAIRS; i++) {
            dst[i] = scale * (float)(block.qs[i] & 15) + min;
            dst[i + NIBBLE_PAIRS] = scale * (float)(block.qs[i] >> 4) + min;
        }
        if (!float_is_finite(scale) || !float_is_finite(min)) block_one_nan(dst);
    }
}

static void q4_1_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t b = 0; b < n / BLOCK_LEN; b++, src += BLOCK_LEN) {
        q4_1_block block = { 0 };
        float max = src[0], min = src[0];
        for (size_t i = 1; i < BLOCK_LEN; i++) {
            max = src[i] > max ? src[i] : max;
            min = src[i] < min ? src[i] : min;
        }
        const float magnitude = block_max_magnitude(src);
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

/* ---- the table ---------------------------------------------------------------------------------------------- */

#define HALF_LIMIT 65520.0f /* rounds to infinity as a half */

/* Readable types first (dtype_table shows only those), then those whose size we know, so that a directory can be
 * checked and listed. The sizes of the latter are those of the `gguf` package, which a test compares. */
static const dtype_info TYPES[] = {
    { DTYPE_F32, "F32", 1, 4, f32_dequantize, f32_quantize, INFINITY, 0 },
    { DTYPE_F16, "F16", 1, 2, f16_dequantize, f16_quantize, HALF_LIMIT, 1 },
    { DTYPE_BF16, "BF16", 1, 2, bf16_dequantize, bf16_quantize, 0x1.ffp127f, 32 },
    { DTYPE_Q8_0, "Q8_0", BLOCK_LEN, sizeof(q8_0_block), q8_0_dequantize, q8_0_quantize, 127 * HALF_LIMIT, 7 },
    { DTYPE_Q4_0, "Q4_0", BLOCK_LEN, sizeof(q4_0_block), q4_0_dequantize, q4_0_quantize, 8 * HALF_LIMIT, 2 },
    { DTYPE_Q4_1, "Q4_1", BLOCK_LEN, sizeof(q4_1_block), q4_1_dequantize, q4_1_quantize, HALF_LIMIT, 3 },
#define KNOWN(id, name, block_len, block_bytes) { id, name, block_len, block_bytes, NULL, NULL, 0, -1 }
    KNOWN(6, "Q5_0", 32, 22),
    KNOWN(7, "Q5_1", 32, 24),
    KNOWN(9, "Q8_1", 32, 40),
    KNOWN(10, "Q2_K", 256, 84),
    KNOWN(11, "Q3_K", 256, 110),
    KNOWN(12, "Q4_K", 256, 144),
    KNOWN(13, "Q5_K", 256, 176),
    KNOWN(14, "Q6_K", 256, 210),
    KNOWN(15, "Q8_K", 256, 292),
    KNOWN(16, "IQ2_XXS", 256, 66),
    KNOWN(17, "IQ2_XS", 256, 74),
    KNOWN(18, "IQ3_XXS", 256, 98),
    KNOWN(19, "IQ1_S", 256, 50),
    KNOWN(20, "IQ4_NL", 32, 18),
    KNOWN(21, "IQ3_S", 256, 110),
    KNOWN(22, "IQ2_S", 256, 82),
    KNOWN(23, "IQ4_XS", 256, 136),
    KNOWN(24, "I8", 1, 1),
    KNOWN(25, "I16", 1, 2),
    KNOWN(26, "I32", 1, 4),
    KNOWN(27, "I64", 1, 8),
    KNOWN(28, "F64", 1, 8),
    KNOWN(29, "IQ1_M", 256, 56),
    /* Taken out of the format again, but such files are still about: Q4_0 with its rows interleaved. */
    KNOWN(31, "Q4_0_4_4", 32, 18),
    KNOWN(32, "Q4_0_4_8", 32, 18),
    KNOWN(33, "Q4_0_8_8", 32, 18),
    KNOWN(34, "TQ1_0", 256, 54),
    KNOWN(35, "TQ2_0", 256, 66),
    KNOWN(39, "MXFP4", 32, 17),
    KNOWN(40, "NVFP4", 64, 36),
    KNOWN(41, "Q1_0", 128, 18),
#undef KNOWN
};

enum { READABLE_COUNT = 6 };

const dtype_info *dtype_table(size_t *n) {
    *n = READABLE_COUNT;
    return TYPES;
}

const dtype_info *dtype_any(int id) {
    for (size_t i = 0; i < PN_ARRAY_LEN(TYPES); i++)
        if (TYPES[i].id == id) return &TYPES[i];
    return NULL;
}

const dtype_info *dtype_find(int id) {
    const dtype_info *type = dtype_any(id);
    return type && type->dequantize ? type : NULL;
}

const char *dtype_any_name(int id) {
    const dtype_info *type = dtype_any(id);
    return type ? type->name : NULL;
}

/* Not strcasecmp: that asks the locale what upper case is. */
static bool dtype_name_equal(const char *a, const char *b) {
    for (;; a++, b++) {
        const char lower_a = *a >= 'A' && *a <= 'Z' ? (char)(*a + 32) : *a;
        const char lower_b = *b >= 'A' && *b <= 'Z' ? (char)(*b + 32) : *b;
        if (lower_a != lower_b) return false;
        if (!lower_a) return true;
    }
}

const dtype_info *dtype_find_name(const char *name) {
    for (size_t i = 0; i < READABLE_COUNT; i++)
        if (dtype_name_equal(TYPES[i].name, name)) return &TYPES[i];
    return NULL;
}
