/* mathf.c - double-precision log, exp, sin and cos from + - * / alone.                              (rank 3)
 *
 * For tables (rotary frequencies and angles), not for inner loops. Argument reduction, then a series that is long
 * enough for double precision on the reduced range. */
#include "mathf.h"

#define LN2_HI 6.93147180369123816490e-01 /* upper 32 bits of ln 2, the rest below (FreeBSD msun, e_exp.c) */
#define LN2_LO 1.90821492927058770002e-10

double log_f64(double x) {
    int exponent = 0;
    while (x < 0.70710678118654752440) {
        x *= 2;
        exponent--;
    }
    while (x > 1.41421356237309504880) {
        x *= 0.5;
        exponent++;
    }
    /* ln x = 2 atanh(s), s = (x - 1) / (x + 1), |s| < 0.172: s^25 / 25 is below 2^-60 */
    const double s = (x - 1) / (x + 1), s2 = s * s;
    double sum = 0;
    for (int k = 25; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
    return 2 * s * (1 + sum) + exponent * LN2_LO + exponent * LN2_HI;
}

double exp_f64(double x) {
    const double n = (x * 1.44269504088896338700 + 6755399441055744.0) - 6755399441055744.0; /* nearest integer */
    const double r = (x - n * LN2_HI) - n * LN2_LO;
    double sum = 1;
    for (int k = 16; k >= 1; k--) sum = 1 + sum * r / k;
    return sum * f64_from_bits((uint64_t)(1023 + (int64_t)n) << 52);
}

void sincos_f64(double x, double *sine, double *cosine) {
    /* pi/2 in three parts; the first two have trailing zeros, so that k * part is exact (msun, e_rem_pio2.c) */
    const double k = (x * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0;
    const double r =
        ((x - k * 1.57079632673412561417e+00) - k * 6.07710050630396597660e-11) - k * 2.02226624879595063154e-21;
    const double r2 = r * r;
    double s = 1, c = 1;
    for (int i = 20; i >= 2; i -= 2) {
        s = 1 - s * r2 / (i * (i + 1));
        c = 1 - c * r2 / ((i - 1) * i);
    }
    s *= r;
    const int quadrant = (int)((int64_t)k & 3);
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}
