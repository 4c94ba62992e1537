/* dtype_rows.h - the functions behind the table of element types, for its own files alone.               (rank 1)
 *
 * Each follows the contract of dtype_info in dtype.h: n elements, whole blocks, any alignment. */
#ifndef PN_DTYPE_ROWS_H
#define PN_DTYPE_ROWS_H

#include "common.h"

#define PN_DTYPE_READS(name)  void name##_dequantize(const uint8_t *src, float *dst, size_t n)
#define PN_DTYPE_WRITES(name) void name##_quantize(const float *src, uint8_t *dst, size_t n)

PN_DTYPE_READS(dtype_f32);
PN_DTYPE_READS(dtype_f16);
PN_DTYPE_READS(dtype_bf16);
PN_DTYPE_READS(dtype_q8_0);
PN_DTYPE_READS(dtype_q4_0);
PN_DTYPE_READS(dtype_q4_1);
PN_DTYPE_READS(dtype_q5_0);
PN_DTYPE_READS(dtype_q5_1);
PN_DTYPE_READS(dtype_iq4_nl);
PN_DTYPE_READS(dtype_q2_k);
PN_DTYPE_READS(dtype_q3_k);
PN_DTYPE_READS(dtype_q4_k);
PN_DTYPE_READS(dtype_q5_k);
PN_DTYPE_READS(dtype_q6_k);
PN_DTYPE_READS(dtype_iq4_xs);

PN_DTYPE_WRITES(dtype_f32);
PN_DTYPE_WRITES(dtype_f16);
PN_DTYPE_WRITES(dtype_bf16);
PN_DTYPE_WRITES(dtype_q8_0);
PN_DTYPE_WRITES(dtype_q4_0);
PN_DTYPE_WRITES(dtype_q4_1);
PN_DTYPE_WRITES(dtype_q5_0);
PN_DTYPE_WRITES(dtype_q5_1);
PN_DTYPE_WRITES(dtype_q4_k);
PN_DTYPE_WRITES(dtype_q5_k);
PN_DTYPE_WRITES(dtype_q6_k);

/* Values of these magnitudes and above cannot be written: HALF_LIMIT rounds to infinity as a half. */
#define HALF_LIMIT     65520.0f
#define K_AFFINE_LIMIT (63 * HALF_LIMIT)       /* Q4_K, Q5_K: the largest minimum */
#define Q6_K_LIMIT     (128 * 32 * HALF_LIMIT) /* integers of scale and code      */

static inline bool float_is_finite(float f) {
    return (f32_bits(f) & 0x7f800000u) != 0x7f800000u;
}

/* Which NaN an operation returns differs between CPUs, and between operand orders that a compiler may swap. */
static inline void floats_one_nan(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((f32_bits(x[i]) & 0x7fffffffu) > 0x7f800000u) x[i] = f32_from_bits(0x7fc00000u);
}

/* Largest magnitude. As integers magnitudes order like the floats, and NaN is above infinity. */
static inline float floats_max_magnitude(const float *x, size_t n) {
    int32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t magnitude = (int32_t)(f32_bits(x[i]) & 0x7fffffffu);
        max = magnitude > max ? magnitude : max;
    }
    return f32_from_bits((uint32_t)max);
}

#endif
