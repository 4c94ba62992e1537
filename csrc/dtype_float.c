/* dtype_float.c - half and bfloat16 to float and back, and the element types that are single numbers.      (rank 2)
 *
 * Integer arithmetic only, so that no result depends on the floating-point environment or on an instruction set. */
#include "dtype.h"
#include "dtype_rows.h"

_Static_assert(sizeof(float) == 4, "F32");

/* ---- half and bfloat16 -------------------------------------------------------------------------------------- */

float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return f32_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    if (magnitude == 0) return f32_from_bits(sign);
    /* Subnormal: magnitude * 2^-24. Move the leading one to bit 10, where it is implicit. */
    const uint32_t shift = (uint32_t)__builtin_clz(magnitude) - 21;
    return f32_from_bits(sign | (113u - shift) << 23 | ((magnitude << shift) & 0x3ffu) << 13);
}

uint16_t half_from_float(float f) {
    const uint32_t bits = f32_bits(f);
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
    return f32_from_bits((uint32_t)h << 16);
}

uint16_t bf16_from_float(float f) {
    const uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* ---- element types ------------------------------------------------------------------------------------------ */

void dtype_f32_dequantize(const uint8_t *src, float *dst, size_t n) {
    memcpy(dst, src, n * sizeof *dst);
}
void dtype_f32_quantize(const float *src, uint8_t *dst, size_t n) {
    memcpy(dst, src, n * sizeof *src);
}

void dtype_f16_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = half_to_float(h);
    }
}

void dtype_f16_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = half_from_float(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

void dtype_bf16_dequantize(const uint8_t *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + i * sizeof h, sizeof h);
        dst[i] = bf16_to_float(h);
    }
}

void dtype_bf16_quantize(const float *src, uint8_t *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = bf16_from_float(src[i]);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}
