/* mathf.h - the few transcendental functions of the core, written out so that no result depends on a libm.  (rank 3)
 *
 * exp_f32 is a contract: every instruction set computes these very operations in this very order, each multiply and
 * add rounded on its own (the build passes -ffp-contract=off). The double functions serve tables made at load time;
 * they are accurate to about one unit in the last place of double, far below the float they are rounded to. */
#ifndef PN_MATHF_H
#define PN_MATHF_H

#include "common.h"

/* Range that keeps 2^n a normal number: exp(-87.3) = 1.2e-38, exp(88) = 1.7e38. Arguments are clamped to it. */
#define EXP_LO    (-87.3f)
#define EXP_HI    88.0f
#define EXP_LOG2E 1.44269504088896341f
/* Adding 1.5 * 2^23 rounds to an integer (nearest even) and leaves it in the low mantissa bits. */
#define EXP_MAGIC 12582912.0f
/* ln 2 in two parts and the polynomial of exp on [-ln2/2, ln2/2]: Cephes, expf (Moshier). */
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_P0     1.9875691500e-4f
#define EXP_P1     1.3981999507e-3f
#define EXP_P2     8.3334519073e-3f
#define EXP_P3     4.1665795894e-2f
#define EXP_P4     1.6666665459e-1f
#define EXP_P5     5.0000001201e-1f

/* a * b + c rounded once, as the instruction of that name does. Where there is none: the product of two floats is exact
 * in double; their sum is rounded to odd there, so that the rounding to float cannot go wrong twice (Boldo and
 * Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 57, 2008; the error of the
 * sum is Knuth's TwoSum). */
static inline float fma_f32(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    const double product = (double)a * (double)b, addend = (double)c, sum = product + addend;
    const double virtual_addend = sum - product;
    const double error = (product - (sum - virtual_addend)) + (addend - virtual_addend);
    const uint64_t bits = f64_bits(sum);
    const uint64_t inexact = (uint64_t)((error > 0) | (error < 0)) & ~bits & 1; /* and even; an infinity is neither */
    const uint64_t away = (uint64_t)((error > 0) == (sum > 0));
    return (float)f64_from_bits(bits + inexact * (2 * away) - inexact);
#endif
}

/* e^x for EXP_LO <= x <= EXP_HI, else anything: no branches, for loops that become vector code. */
static inline float exp_f32_in_range(float x) {
    const float t = x * EXP_LOG2E + EXP_MAGIC;
    const float n = t - EXP_MAGIC;
    float r = x - n * EXP_LN2_HI;
    r = r - n * EXP_LN2_LO;
    float p = EXP_P0;
    p = p * r + EXP_P1;
    p = p * r + EXP_P2;
    p = p * r + EXP_P3;
    p = p * r + EXP_P4;
    p = p * r + EXP_P5;
    p = p * (r * r) + r;
    p = p + 1.0f;
    return f32_from_bits(f32_bits(p) + (f32_bits(t) << 23)); /* times 2^n */
}

/* e^x, relative error below 2e-7 within the clamp; NaN stays NaN. */
static inline float exp_f32(float x) {
    float c = EXP_LO > x ? EXP_LO : x;
    c = EXP_HI < c ? EXP_HI : c;
    return x != x ? x : exp_f32_in_range(c);
}

/* Arguments of sincos_f64 are below. */
#define ANGLE_LIMIT 1e9

/* ln x for finite x > 0; e^x for |x| < 700; sin and cos of x for |x| < ANGLE_LIMIT (beyond 1.6e6 the reduction rounds:
 * within 1e-8 up to 7e7, 6e-8 up to the limit). */
double log_f64(double x);
double exp_f64(double x);
void sincos_f64(double x, double *sine, double *cosine);

#endif
