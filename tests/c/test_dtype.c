/* test_dtype.c - the table of element types against arithmetic in double, against blocks worked out by hand, and its
 * own round trips. (tests/test_gguf.py compares every type with the `gguf` package, bit for bit.) */
#include "check.h"
#include "dtype.h"
#include "dtype_blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* The value of a half by its definition; NaN and infinity excluded. */
static double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void test_half_to_float_gives_the_defined_value_of_every_half(void) {
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const float got = half_to_float((uint16_t)h);
        if ((h & 0x7c00) != 0x7c00) {
            CHECK((double)got == half_value((uint16_t)h));
            CHECK((bool)signbit(got) == (h >> 15 != 0));
        } else if (h & 0x3ff)
            CHECK(f32_bits(got) == ((h & 0x8000) << 16 | 0x7f800000 | (h & 0x3ff) << 13));
        else
            CHECK(got == (h & 0x8000 ? -INFINITY : INFINITY));
    }
}

static void test_half_from_float_gives_back_every_half(void) {
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const bool is_nan = (h & 0x7fff) > 0x7c00;
        CHECK(half_from_float(half_to_float((uint16_t)h)) == (is_nan ? h | 0x200 : h));
    }
}

/* Between two neighbours: below the middle down, above it up, the middle to the even one. */
static void test_half_from_float_rounds_to_nearest_even_between_all_neighbours(void) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double low = half_value((uint16_t)h), high = h == 0x7bff ? 65536 : half_value((uint16_t)(h + 1));
        const float middle = (float)((low + high) / 2); /* exact: one bit more than a half has */
        CHECK(half_from_float(middle) == h + (h & 1));
        CHECK(half_from_float(nextafterf(middle, 0)) == h);
        CHECK(half_from_float(nextafterf(middle, 1e9f)) == h + 1);
        CHECK(half_from_float(-nextafterf(middle, 1e9f)) == (h + 1) + 0x8000);
    }
}

static void test_half_from_float_overflows_to_infinity_and_keeps_nan(void) {
    CHECK(half_from_float(65519.99f) == 0x7bff);
    CHECK(half_from_float(65520) == 0x7c00);
    CHECK(half_from_float(-1e30f) == 0xfc00);
    CHECK(half_from_float(-INFINITY) == 0xfc00);
    CHECK(half_from_float(f32_from_bits(0x7f800001)) == 0x7e00); /* signalling: becomes quiet, not infinity */
    CHECK(half_from_float(f32_from_bits(0xffc02000)) == 0xfe01);
    CHECK(half_from_float(1e-40f) == 0 && half_from_float(-0.0f) == 0x8000);
}

static void test_bf16_rounds_to_nearest_even_and_keeps_nan(void) {
    for (uint32_t h = 0; h <= 0xffff; h++) {
        const bool is_nan = (h & 0x7fff) > 0x7f80;
        CHECK(f32_bits(bf16_to_float((uint16_t)h)) == h << 16);
        CHECK(bf16_from_float(f32_from_bits(h << 16)) == (is_nan ? h | 0x40 : h));
    }
    CHECK(bf16_from_float(f32_from_bits(0x3f808000)) == 0x3f80); /* middle, even below */
    CHECK(bf16_from_float(f32_from_bits(0x3f818000)) == 0x3f82); /* middle, even above */
    CHECK(bf16_from_float(f32_from_bits(0x3f808001)) == 0x3f81);
    CHECK(bf16_from_float(f32_from_bits(0x7f7fffff)) == 0x7f80);
    CHECK(bf16_from_float(f32_from_bits(0x7f800001)) == 0x7fc0);
}

/* ---- blocks by hand ------------------------------------------------------------------------------------------ */

static void test_q8_0_reads_and_writes_a_block_worked_out_by_hand(void) {
    const dtype_info *type = dtype_find(DTYPE_Q8_0);
    float x[32] = { 0 }, back[32];
    uint8_t block[34];
    x[0] = 127, x[1] = -127, x[2] = 0.5f, x[3] = -0.5f, x[4] = 0.49999997f, x[5] = 1.5f, x[6] = 2.5f;
    type->quantize(x, block, 32);
    CHECK(block[0] == 0x00 && block[1] == 0x3c); /* scale 1.0 */
    const int8_t want[8] = { 127, -127, 1, -1, 0, 2, 3, 0 };
    CHECK(memcmp(block + 2, want, sizeof want) == 0); /* halves go away from zero */
    block[2 + 31] = 0x80;                             /* -128 is legal in a file */
    block[1] = 0x40;                                  /* scale 2.0 */
    type->dequantize(block, back, 32);
    CHECK(back[0] == 254 && back[1] == -254 && back[2] == 2 && back[31] == -256);
}

static void test_q4_0_reads_and_writes_a_block_worked_out_by_hand(void) {
    const dtype_info *type = dtype_find(DTYPE_Q4_0);
    float x[32] = { 0 }, back[32];
    uint8_t block[18];
    x[0] = -8, x[1] = 7, x[2] = 8, x[16] = 1, x[17] = -3.5f;
    type->quantize(x, block, 32);
    CHECK(block[0] == 0x00 && block[1] == 0x3c); /* -8 / -8 */
    CHECK(block[2] == 0x90 && block[3] == 0x5f && block[4] == 0x8f && block[5] == 0x88);
    type->dequantize(block, back, 32);
    CHECK(back[0] == -8 && back[1] == 7 && back[2] == 7 && back[16] == 1 && back[17] == -3 && back[31] == 0);
}

static void test_q4_1_reads_and_writes_a_block_worked_out_by_hand(void) {
    const dtype_info *type = dtype_find(DTYPE_Q4_1);
    float x[32], back[32];
    uint8_t block[20];
    for (int i = 0; i < 32; i++) x[i] = -1;
    x[1] = 14, x[2] = 0.5f, x[18] = 3;
    type->quantize(x, block, 32);
    CHECK(block[0] == 0x00 && block[1] == 0x3c && block[2] == 0x00 && block[3] == 0xbc);
    CHECK(block[4] == 0x00 && block[5] == 0x0f && block[6] == 0x42);
    type->dequantize(block, back, 32);
    CHECK(back[0] == -1 && back[1] == 14 && back[2] == 1 && back[18] == 3 && back[31] == -1);
}

/* Numbers of 6 bits where the format hides them: one group at a time differs from the others. */
static void test_q3_k_and_q4_k_take_every_scale_from_its_own_bits(void) {
    for (size_t g = 0; g < 16; g++) { /* s = 32 + 21 for group g, 32 (a scale of zero) for the others */
        q3_k_block block = { .scale = 0x3c00 };
        float x[256];
        memset(block.qs, 0xff, sizeof block.qs);
        memset(block.high, 0xff, sizeof block.high);
        memset(block.scales + 8, 0xaa, 4); /* high quarters: 2 */
        block.scales[g % 8] = (uint8_t)(5 << g / 8 * 4);
        block.scales[8 + g % 4] |= (uint8_t)(1 << g / 4 * 2); /* 3 */
        dtype_find(DTYPE_Q3_K)->dequantize((const uint8_t *)&block, x, 256);
        for (size_t i = 0; i < 256; i++) CHECK(x[i] == (i / 16 == g ? 63 : 0));
    }
    for (size_t g = 0; g < 8; g++) { /* s = 37, m = 42 of group g; q = 15 */
        q4_k_block block = { .scale = 0x3c00, .min = 0x4000 };
        float x[256];
        memset(block.qs, 0xff, sizeof block.qs);
        block.scales[g % 4] = (uint8_t)(g < 4 ? 37 : 2 << 6);
        block.scales[g % 4 + 4] = (uint8_t)(g < 4 ? 42 : 2 << 6);
        if (g >= 4) block.scales[g + 4] = 5 | 10 << 4;
        dtype_find(DTYPE_Q4_K)->dequantize((const uint8_t *)&block, x, 256);
        for (size_t i = 0; i < 256; i++) CHECK(x[i] == (i / 32 == g ? 37 * 15 - 2 * 42 : 0));
    }
}

/* Rows that a block can hold come back, to the bit where its halves can, whatever the search tries on the way. */
static void test_the_k_types_give_back_what_a_block_of_theirs_holds(void) {
    float x[256], back[256];
    uint8_t row[210];
    for (int i = 0; i < 256; i++) x[i] = (float)(i % 16) - 8;
    dtype_find(DTYPE_Q4_K)->quantize(x, row, 256);
    dtype_find(DTYPE_Q4_K)->dequantize(row, back, 256);
    for (int i = 0; i < 256; i++) CHECK(fabsf(back[i] - x[i]) < 0.01f); /* 1 / 63 and 8 / 63 are no halves */
    for (int i = 0; i < 256; i++) x[i] = (float)(i % 32) * 63 - (i < 128 ? 0 : 2 * 63);
    dtype_find(DTYPE_Q5_K)->quantize(x, row, 256);
    dtype_find(DTYPE_Q5_K)->dequantize(row, back, 256);
    for (int i = 0; i < 256; i++) CHECK(back[i] == x[i]);
    for (int i = 0; i < 256; i++) x[i] = (float)(i % 16 ? i * 7 % 64 - 32 : -32) * (i < 128 ? 128 : -64);
    dtype_find(DTYPE_Q6_K)->quantize(x, row, 256);
    dtype_find(DTYPE_Q6_K)->dequantize(row, back, 256);
    for (int i = 0; i < 256; i++) CHECK(fabsf(back[i] - x[i]) < 2); /* a half has 11 bits */
}

/* Halves this small are coarse: a scale that is rounded down may not cut off the extremes. */
static void test_the_k_types_write_values_whose_scales_are_the_smallest_halves(void) {
    const int ids[] = { DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K };
    for (size_t t = 0; t < PN_ARRAY_LEN(ids); t++)
        for (float size = 1e-3f; size > 1e-5f; size *= 0.9f) {
            const dtype_info *type = dtype_find(ids[t]);
            float x[256], back[256];
            uint8_t row[210];
            uint32_t state = 1;
            for (int i = 0; i < 256; i++) x[i] = (float)(int32_t)next_random(&state) * 0x1p-31f * size;
            type->quantize(x, row, 256);
            type->dequantize(row, back, 256);
            double error = 0, power = 0;
            for (int i = 0; i < 256; i++) {
                error += ((double)back[i] - x[i]) * ((double)back[i] - x[i]);
                power += (double)x[i] * x[i];
            }
            CHECK(error < power / 20);
        }
}

/* ---- properties of every row of the table --------------------------------------------------------------------- */

/* Largest step between two neighbouring codes of a block with values in [-1, 1]; the error is at most half of it, but
 * for Q4_0, whose codes reach 8 steps down and only 7 up. Relative for the element types. */
static double type_error(const dtype_info *type) {
    switch (type->id) {
    case DTYPE_F32:
        return 0;
    case DTYPE_F16:
        return 0x1p-11;
    case DTYPE_BF16:
        return 0x1p-8;
    case DTYPE_Q8_0:
        return 0.5 / 127 + 0x1p-11;
    case DTYPE_Q4_0:
        return 1.0 / 8 + 0x1p-11;
    case DTYPE_Q5_0:
        return 1.0 / 16 + 0x1p-11;
    case DTYPE_Q5_1:
        return 2.0 / 31 / 2 + 0x1p-10;
    case DTYPE_Q4_K: /* a search may cut the extremes off where that helps all the others */
        return 2.0 / 15;
    case DTYPE_Q5_K:
        return 2.0 / 31;
    case DTYPE_Q6_K:
        return 1.0 / 32;
    default:
        return 2.0 / 15 / 2 + 0x1p-10;
    }
}

static void test_every_type_gives_back_a_row_within_its_step_from_unaligned_memory(void) {
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    uint32_t state = 1;
    CHECK(n_types == 15);
    for (size_t t = 0; t < n_types; t++) {
        if (!types[t].quantize) continue;
        enum { N = 4096 };
        float *x = malloc(N * sizeof *x), *back = malloc(N * sizeof *back);
        uint8_t *memory = malloc(N * 4 + 1), *row = memory + 1;
        double worst = 0;
        for (size_t i = 0; i < N; i++) x[i] = (float)(int32_t)next_random(&state) * 0x1p-31f;
        types[t].quantize(x, row, N);
        types[t].dequantize(row, back, N);
        for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)x[i] - (double)back[i]));
        CHECK(worst <= type_error(&types[t]));
        CHECK(worst >= type_error(&types[t]) / 4); /* the bound is one that can fail */
        free(x);
        free(back);
        free(memory);
    }
}

/* Every half of every block type: where it stands. A zero is written over the other one of the block, if any. */
static const struct {
    int id;
    size_t at, other; /* other: one more than its offset, 0: none */
} HALVES[] = {
    { DTYPE_Q8_0, offsetof(q8_0_block, scale), 0 },
    { DTYPE_Q4_0, offsetof(q4_0_block, scale), 0 },
    { DTYPE_Q4_1, offsetof(q4_1_block, scale), 1 + offsetof(q4_1_block, min) },
    { DTYPE_Q4_1, offsetof(q4_1_block, min), 1 + offsetof(q4_1_block, scale) },
    { DTYPE_Q5_0, offsetof(q5_0_block, scale), 0 },
    { DTYPE_Q5_1, offsetof(q5_1_block, scale), 1 + offsetof(q5_1_block, min) },
    { DTYPE_Q5_1, offsetof(q5_1_block, min), 1 + offsetof(q5_1_block, scale) },
    { DTYPE_IQ4_NL, offsetof(iq4_nl_block, scale), 0 },
    { DTYPE_Q2_K, offsetof(q2_k_block, scale), 1 + offsetof(q2_k_block, min) },
    { DTYPE_Q2_K, offsetof(q2_k_block, min), 1 + offsetof(q2_k_block, scale) },
    { DTYPE_Q3_K, offsetof(q3_k_block, scale), 0 },
    { DTYPE_Q4_K, offsetof(q4_k_block, scale), 1 + offsetof(q4_k_block, min) },
    { DTYPE_Q4_K, offsetof(q4_k_block, min), 1 + offsetof(q4_k_block, scale) },
    { DTYPE_Q5_K, offsetof(q5_k_block, scale), 1 + offsetof(q5_k_block, min) },
    { DTYPE_Q5_K, offsetof(q5_k_block, min), 1 + offsetof(q5_k_block, scale) },
    { DTYPE_Q6_K, offsetof(q6_k_block, scale), 0 },
    { DTYPE_IQ4_XS, offsetof(iq4_xs_block, scale), 0 },
};

static void test_every_block_type_turns_a_scale_of_nan_or_infinity_into_one_kind_of_nan(void) {
    const uint16_t scales[] = { 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xffff };
    for (size_t t = 0; t < PN_ARRAY_LEN(HALVES); t++)
        for (size_t s = 0; s < PN_ARRAY_LEN(scales); s++) {
            const dtype_info *type = dtype_find(HALVES[t].id);
            uint8_t block[256];
            float x[256];
            for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)(i * 37);
            if (HALVES[t].other) memset(block + HALVES[t].other - 1, 0, 2);
            memcpy(block + HALVES[t].at, &scales[s], 2);
            type->dequantize(block, x, type->block_len);
            for (size_t i = 0; i < type->block_len; i++) CHECK(isinf(x[i]) || f32_bits(x[i]) == 0x7fc00000);
            if ((scales[s] & 0x3ff) == 0) continue;
            for (size_t i = 0; i < type->block_len; i++) CHECK(isnan(x[i]));
        }
}

static void test_every_block_type_gives_back_nan_for_a_block_that_holds_nan_or_infinity(void) {
    const float bad[] = { NAN, INFINITY, -INFINITY };
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    for (size_t t = 0; t < n_types; t++)
        for (size_t b = 0; b < PN_ARRAY_LEN(bad) && types[t].quantize && types[t].block_len > 1; b++)
            for (size_t at = 0; at < types[t].block_len; at += types[t].block_len - 1) {
                float x[256] = { 1, -2, 3 }, back[256];
                uint8_t block[256];
                x[at] = bad[b];
                types[t].quantize(x, block, types[t].block_len);
                types[t].dequantize(block, back, types[t].block_len);
                CHECK(!isfinite(back[at]));
            }
}

static void test_every_type_overflows_from_its_limit_on_and_not_below(void) {
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        float x[256], back[256];
        uint8_t row[1024];
        if (!types[t].quantize || isinf(types[t].limit)) continue;
        for (int i = 0; i < 256; i++) x[i] = i % 2 ? -nextafterf(types[t].limit, 0) : 0;
        types[t].quantize(x, row, 256);
        types[t].dequantize(row, back, 256);
        CHECK(fabsf(back[0] / types[t].limit) < 1.0f / 64 && fabsf(back[1] / types[t].limit + 1) < 1.0f / 64);
        for (int i = 0; i < 256; i++) x[i] = i % 2 ? -types[t].limit : 0;
        types[t].quantize(x, row, 256);
        types[t].dequantize(row, back, 256);
        CHECK(!isfinite(back[1]));
    }
}

static void test_every_block_type_survives_values_whose_inverse_scale_is_infinite(void) {
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        float x[256] = { 1e-44f, -1e-44f, 1e-40f }, back[256];
        uint8_t block[256];
        if (!types[t].quantize || types[t].block_len == 1) continue;
        types[t].quantize(x, block, types[t].block_len);
        types[t].dequantize(block, back, types[t].block_len);
        for (size_t i = 0; i < types[t].block_len; i++) CHECK(back[i] == 0);
    }
}

/* Exactly as large as they must be, so that a sanitizer sees a step beyond them. */
static void test_no_bytes_of_a_block_and_no_numbers_do_harm(void) {
    size_t n_types;
    const dtype_info *types = dtype_table(&n_types);
    uint32_t state = 7;
    for (size_t t = 0; t < n_types; t++) {
        const dtype_info *type = &types[t];
        uint8_t *block = malloc(type->block_bytes);
        float *x = malloc(type->block_len * sizeof *x);
        for (int round = 0; round < 4000; round++) {
            for (size_t i = 0; i < type->block_bytes; i++) block[i] = (uint8_t)(next_random(&state) >> 11);
            type->dequantize(block, x, type->block_len);
            for (size_t i = 0; i < type->block_len && type->block_len > 1; i++)
                CHECK(!isnan(x[i]) || f32_bits(x[i]) == 0x7fc00000);
        }
        for (int round = 0; round < 400 && type->quantize; round++) {
            const uint32_t exponents = round % 2 ? 0xff : 0x0f; /* all sizes, or numbers of one kind */
            for (size_t i = 0; i < type->block_len; i++) {
                const uint32_t bits = next_random(&state), exponent = (bits >> 23 & exponents) + (round % 2 ? 0 : 110);
                x[i] = f32_from_bits((bits & 0x807fffff) | exponent << 23);
                if (!(fabsf(x[i]) < type->limit)) x[i] = 1;
            }
            type->quantize(x, block, type->block_len);
            type->dequantize(block, x, type->block_len);
            for (size_t i = 0; i < type->block_len; i++) CHECK(isfinite(x[i]));
        }
        free(block);
        free(x);
    }
}

static void test_dtype_find_knows_what_it_can_read_and_dtype_any_what_it_can_measure(void) {
    CHECK(dtype_find(DTYPE_BF16)->block_bytes == 2);
    CHECK(dtype_find(16) == NULL);
    CHECK(dtype_any(16)->block_len == 256 && dtype_any(16)->block_bytes == 66 && !dtype_any(16)->dequantize);
    CHECK(dtype_find(12) == dtype_any(12) && dtype_find(12)->block_bytes == 144);
    CHECK(dtype_any(4) == NULL && dtype_any(999) == NULL && dtype_any(-1) == NULL);
    CHECK(strcmp(dtype_any_name(14), "Q6_K") == 0 && dtype_any_name(5) == NULL);
    CHECK(dtype_find_name("q8_0")->id == DTYPE_Q8_0 && dtype_find_name("Bf16")->id == DTYPE_BF16);
    CHECK(dtype_find_name("iq4_nl")->id == DTYPE_IQ4_NL && dtype_find_name("iq2_xxs") == NULL);
    CHECK(dtype_find_name("q8_") == NULL && dtype_find_name("") == NULL);
}

int main(void) {
    RUN(test_half_to_float_gives_the_defined_value_of_every_half);
    RUN(test_half_from_float_gives_back_every_half);
    RUN(test_half_from_float_rounds_to_nearest_even_between_all_neighbours);
    RUN(test_half_from_float_overflows_to_infinity_and_keeps_nan);
    RUN(test_bf16_rounds_to_nearest_even_and_keeps_nan);
    RUN(test_q8_0_reads_and_writes_a_block_worked_out_by_hand);
    RUN(test_q4_0_reads_and_writes_a_block_worked_out_by_hand);
    RUN(test_q4_1_reads_and_writes_a_block_worked_out_by_hand);
    RUN(test_q3_k_and_q4_k_take_every_scale_from_its_own_bits);
    RUN(test_the_k_types_give_back_what_a_block_of_theirs_holds);
    RUN(test_the_k_types_write_values_whose_scales_are_the_smallest_halves);
    RUN(test_every_type_gives_back_a_row_within_its_step_from_unaligned_memory);
    RUN(test_every_block_type_turns_a_scale_of_nan_or_infinity_into_one_kind_of_nan);
    RUN(test_every_block_type_gives_back_nan_for_a_block_that_holds_nan_or_infinity);
    RUN(test_every_type_overflows_from_its_limit_on_and_not_below);
    RUN(test_every_block_type_survives_values_whose_inverse_scale_is_infinite);
    RUN(test_no_bytes_of_a_block_and_no_numbers_do_harm);
    RUN(test_dtype_find_knows_what_it_can_read_and_dtype_any_what_it_can_measure);
    return check_report();
}
