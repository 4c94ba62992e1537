/* dtype.c - THE TABLE OF ELEMENT TYPES, and how a type is found in it.                                    (rank 2)
 *
 * To add a type: a block struct with its size assert in dtype_blocks.h, a function or two in the file of its kind
 * (dtype_float.c: single numbers, dtype_block32.c: blocks of 32, dtype_k.c and dtype_k_write.c: super-blocks of 256),
 * declared in dtype_rows.h, and one row in READABLE.
 * It does not multiply: the loops that a model spends its time in are in kernels/. */
#include "dtype.h"

#include "dtype_blocks.h"
#include "dtype_rows.h"

#include <math.h>

/* What this build can read; the messages list the types in this order. A type is written if its row says so. */
static const dtype_info READABLE[] = {
#define READS(stem)  dtype_##stem##_dequantize
#define WRITES(stem) dtype_##stem##_quantize
    { DTYPE_F32, "F32", 1, 4, READS(f32), WRITES(f32), INFINITY },
    { DTYPE_F16, "F16", 1, 2, READS(f16), WRITES(f16), HALF_LIMIT },
    { DTYPE_BF16, "BF16", 1, 2, READS(bf16), WRITES(bf16), 0x1.ffp127f },
    { DTYPE_Q8_0, "Q8_0", BLOCK_LEN, sizeof(q8_0_block), READS(q8_0), WRITES(q8_0), 127 * HALF_LIMIT },
    { DTYPE_Q4_0, "Q4_0", BLOCK_LEN, sizeof(q4_0_block), READS(q4_0), WRITES(q4_0), 8 * HALF_LIMIT },
    { DTYPE_Q4_1, "Q4_1", BLOCK_LEN, sizeof(q4_1_block), READS(q4_1), WRITES(q4_1), HALF_LIMIT },
    { DTYPE_Q5_0, "Q5_0", BLOCK_LEN, sizeof(q5_0_block), READS(q5_0), WRITES(q5_0), 16 * HALF_LIMIT },
    { DTYPE_Q5_1, "Q5_1", BLOCK_LEN, sizeof(q5_1_block), READS(q5_1), WRITES(q5_1), HALF_LIMIT },
    { DTYPE_Q2_K, "Q2_K", SUPER_LEN, sizeof(q2_k_block), READS(q2_k), NULL, 0 },
    { DTYPE_Q3_K, "Q3_K", SUPER_LEN, sizeof(q3_k_block), READS(q3_k), NULL, 0 },
    { DTYPE_Q4_K, "Q4_K", SUPER_LEN, sizeof(q4_k_block), READS(q4_k), WRITES(q4_k), K_AFFINE_LIMIT },
    { DTYPE_Q5_K, "Q5_K", SUPER_LEN, sizeof(q5_k_block), READS(q5_k), WRITES(q5_k), K_AFFINE_LIMIT },
    { DTYPE_Q6_K, "Q6_K", SUPER_LEN, sizeof(q6_k_block), READS(q6_k), WRITES(q6_k), Q6_K_LIMIT },
    { DTYPE_IQ4_NL, "IQ4_NL", BLOCK_LEN, sizeof(iq4_nl_block), READS(iq4_nl), NULL, 0 },
    { DTYPE_IQ4_XS, "IQ4_XS", SUPER_LEN, sizeof(iq4_xs_block), READS(iq4_xs), NULL, 0 },
#undef READS
#undef WRITES
};

/* Those whose size alone is known, so that a directory can be checked and listed: the sizes of the `gguf` package,
 * which a test compares. */
static const dtype_info MEASURABLE[] = {
#define KNOWN(id, name, block_len, block_bytes) { id, name, block_len, block_bytes, NULL, NULL, 0 }
    KNOWN(9, "Q8_1", 32, 40),
    KNOWN(15, "Q8_K", 256, 292),
    KNOWN(16, "IQ2_XXS", 256, 66),
    KNOWN(17, "IQ2_XS", 256, 74),
    KNOWN(18, "IQ3_XXS", 256, 98),
    KNOWN(19, "IQ1_S", 256, 50),
    KNOWN(21, "IQ3_S", 256, 110),
    KNOWN(22, "IQ2_S", 256, 82),
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

const dtype_info *dtype_table(size_t *n) {
    *n = PN_ARRAY_LEN(READABLE);
    return READABLE;
}

const dtype_info *dtype_find(int id) {
    for (size_t i = 0; i < PN_ARRAY_LEN(READABLE); i++)
        if (READABLE[i].id == id) return &READABLE[i];
    return NULL;
}

const dtype_info *dtype_any(int id) {
    for (size_t i = 0; i < PN_ARRAY_LEN(MEASURABLE); i++)
        if (MEASURABLE[i].id == id) return &MEASURABLE[i];
    return dtype_find(id);
}

const char *dtype_any_name(int id) {
    const dtype_info *type = dtype_any(id);
    return type ? type->name : NULL;
}

/* Not strcasecmp: that asks the locale what upper case is. */
bool dtype_name_equal(const char *a, const char *b) {
    for (;; a++, b++) {
        const char lower_a = *a >= 'A' && *a <= 'Z' ? (char)(*a + 32) : *a;
        const char lower_b = *b >= 'A' && *b <= 'Z' ? (char)(*b + 32) : *b;
        if (lower_a != lower_b) return false;
        if (!lower_a) return true;
    }
}

const dtype_info *dtype_find_name(const char *name) {
    for (size_t i = 0; i < PN_ARRAY_LEN(READABLE); i++)
        if (dtype_name_equal(READABLE[i].name, name)) return &READABLE[i];
    return NULL;
}
