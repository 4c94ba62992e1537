/* test_mathf.c - the own exp, log, sin and cos against libm in double precision. */
#include "mathf.h"

#include "check.h"
#include "common.h"

#include <math.h>

static double relative(double got, double want) {
    return fabs(got - want) / fabs(want);
}

/* ---- exp_f32 ------------------------------------------------------------------------------------------------- */

static void test_exp_f32_over_its_whole_range_is_within_2e_7(void) {
    double worst = 0;
    for (float x = EXP_LO; x <= EXP_HI; x += 0.00037f) {
        const double error = relative((double)exp_f32(x), exp((double)x));
        worst = error > worst ? error : worst;
    }
    CHECK(worst < 2e-7);
}

static void test_exp_f32_near_zero_is_near_one(void) {
    CHECK(exp_f32(0.0f) == 1.0f);
    CHECK(exp_f32(-0.0f) == 1.0f);
    for (float x = 1e-45f; x < 1e-3f; x *= 1.7f) {
        CHECK(relative((double)exp_f32(x), exp((double)x)) < 2e-7);
        CHECK(relative((double)exp_f32(-x), exp(-(double)x)) < 2e-7);
    }
}

static void test_exp_f32_beyond_its_range_is_the_value_at_the_end(void) {
    const float low = exp_f32(EXP_LO), high = exp_f32(EXP_HI);
    CHECK(low > 0 && isnormal(low));
    CHECK(isfinite(high));
    CHECK(exp_f32(-88.0f) == low && exp_f32(-1e30f) == low && exp_f32(-INFINITY) == low);
    CHECK(exp_f32(88.5f) == high && exp_f32(1e30f) == high && exp_f32(INFINITY) == high);
}

static void test_exp_f32_of_nan_is_nan(void) {
    CHECK(isnan(exp_f32(NAN)));
    CHECK(isnan(exp_f32(-NAN)));
    CHECK(isnan(exp_f32(f32_from_bits(0x7fc01234u))));
}

/* A step down at the seam between two powers of two would turn the order of probabilities around. */
static void test_exp_f32_never_falls_by_more_than_rounding(void) {
    float before = exp_f32(-20.0f);
    for (float x = -20.0f; x < 20.0f; x += 0.0001f) {
        const float now = exp_f32(x);
        CHECK(now >= before * (1 - 3e-7f));
        before = now;
    }
}

/* ---- the double functions ------------------------------------------------------------------------------------ */

static void test_log_f64_is_within_1e_14(void) {
    double worst = 0;
    for (double x = 1e-300; x < 1e300; x *= 1.3) {
        const double want = log(x), error = fabs(log_f64(x) - want) / fmax(1, fabs(want));
        worst = fmax(worst, error);
    }
    for (double x = 0.5; x < 2; x += 0.0007) worst = fmax(worst, fabs(log_f64(x) - log(x)));
    CHECK(worst < 1e-14);
    CHECK(log_f64(1.0) == 0.0);
}

static void test_exp_f64_is_within_1e_14(void) {
    double worst = 0;
    for (double x = -699.9; x < 700; x += 0.0931) worst = fmax(worst, relative(exp_f64(x), exp(x)));
    for (double x = 1e-18; x < 1; x *= 1.9) {
        worst = fmax(worst, relative(exp_f64(x), exp(x)));
        worst = fmax(worst, relative(exp_f64(-x), exp(-x)));
    }
    CHECK(worst < 1e-14);
    CHECK(exp_f64(0.0) == 1.0);
}

static void check_angle(double x, double *worst) {
    double sine, cosine;
    sincos_f64(x, &sine, &cosine);
    *worst = fmax(*worst, fmax(fabs(sine - sin(x)), fabs(cosine - cos(x))));
}

static void test_sincos_f64_of_the_angles_of_long_contexts_is_within_1e_14(void) {
    double worst = 0;
    for (double x = 0; x < 300; x += 0.0713) {
        check_angle(x, &worst);
        check_angle(-x, &worst);
    }
    for (double x = 1; x < 1.6e6; x *= 1.00713) check_angle(x, &worst);
    for (int i = 0; i < 200; i++) check_angle(1000.0 * i, &worst); /* whole positions, frequency 1 */
    CHECK(worst < 1e-14);
}

/* Up to the longest context that a file may state; below half a unit in the last place of the float that it becomes. */
static void test_sincos_f64_of_the_largest_angles_is_within_1e_8(void) {
    double worst = 0;
    for (double x = 1.6e6; x < 6.8e7; x *= 1.000713) check_angle(x, &worst);
    CHECK(worst < 1e-8);
}

static void test_sincos_f64_near_multiples_of_a_right_angle_is_within_1e_14(void) {
    double worst = 0;
    for (int k = -1000; k <= 1000; k++)
        for (int side = -1; side <= 1; side++) check_angle(k * 1.5707963267948966 + side * 1e-9, &worst);
    CHECK(worst < 1e-14);
}

/* ---- fma_f32 ------------------------------------------------------------------------------------------------- */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void) { /* xorshift64 (Marsaglia) */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static bool fma_is_libms(float a, float b, float c) {
    const float got = fma_f32(a, b, c), want = fmaf(a, b, c);
    return f32_bits(got) == f32_bits(want) || (isnan(got) && isnan(want));
}

static void test_fma_f32_of_any_bits_is_libms(void) {
    size_t wrong = 0;
    for (int i = 0; i < 3000000; i++) {
        const uint64_t ab = random_u64(), c = random_u64();
        wrong +=
            !fma_is_libms(f32_from_bits((uint32_t)ab), f32_from_bits((uint32_t)(ab >> 32)), f32_from_bits((uint32_t)c));
    }
    CHECK(wrong == 0);
}

/* The addend near the product, half way between two floats of it, or far below: where two roundings differ from one. */
static void test_fma_f32_near_ties_and_cancellation_is_libms(void) {
    size_t wrong = 0;
    for (int i = 0; i < 3000000; i++) {
        const uint64_t r = random_u64();
        const float a = f32_from_bits(0x3f800000u | (uint32_t)(r & 0x7ffffe)),
                    b = f32_from_bits(0x3f800001u + (uint32_t)(r >> 40 & 0xfff));
        const float tiny = f32_from_bits((uint32_t)(1 + (r >> 52 & 0x3f)) << 23 | (uint32_t)(r >> 20 & 1) << 31);
        wrong += !fma_is_libms(a, b, -(a * b));
        wrong += !fma_is_libms(a, b, tiny);
        wrong += !fma_is_libms(a, -b, ldexpf(b, (int)(r >> 58) - 32));
        wrong += !fma_is_libms(a * 0x1p-70f, b * 0x1p-70f, tiny); /* results among the subnormals */
        wrong += !fma_is_libms(ldexpf(a, 12), ldexpf(b, -12), ldexpf(1.0f, (int)(r >> 58) - 40));
    }
    CHECK(wrong == 0);
}

static void test_fma_f32_of_zeros_and_infinities_is_libms(void) {
    static const float values[] = {
        0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-149f, 3.4e38f
    };
    for (size_t a = 0; a < PN_ARRAY_LEN(values); a++)
        for (size_t b = 0; b < PN_ARRAY_LEN(values); b++)
            for (size_t c = 0; c < PN_ARRAY_LEN(values); c++) CHECK(fma_is_libms(values[a], values[b], values[c]));
}

int main(void) {
    RUN(test_exp_f32_over_its_whole_range_is_within_2e_7);
    RUN(test_exp_f32_near_zero_is_near_one);
    RUN(test_exp_f32_beyond_its_range_is_the_value_at_the_end);
    RUN(test_exp_f32_of_nan_is_nan);
    RUN(test_exp_f32_never_falls_by_more_than_rounding);
    RUN(test_log_f64_is_within_1e_14);
    RUN(test_exp_f64_is_within_1e_14);
    RUN(test_sincos_f64_of_the_angles_of_long_contexts_is_within_1e_14);
    RUN(test_sincos_f64_of_the_largest_angles_is_within_1e_8);
    RUN(test_sincos_f64_near_multiples_of_a_right_angle_is_within_1e_14);
    RUN(test_fma_f32_of_any_bits_is_libms);
    RUN(test_fma_f32_near_ties_and_cancellation_is_libms);
    RUN(test_fma_f32_of_zeros_and_infinities_is_libms);
    return check_report();
}
