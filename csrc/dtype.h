/* dtype.h - THE TABLE OF ELEMENT TYPES: block layout, row dequantize and quantize.                    (rank 2)
 *
 * Layouts are those of the GGUF document and the reference implementation (ggml); each block struct is size-asserted
 * in dtype_blocks.h. Values equal the `gguf` package's bit for bit. Rows are whole blocks. Conversions between float
 * formats are integer-only, so they do not depend on the floating-point environment. */
#ifndef PN_DTYPE_H
#define PN_DTYPE_H

#include "common.h"

/* Numbers as in the file. */
enum {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ4_XS = 23,
    DTYPE_BF16 = 30,
};

typedef struct dtype_info {
    int id;
    const char *name;   /* "Q8_0"               */
    uint32_t block_len; /* elements per block   */
    uint32_t block_bytes;
    /* n is a multiple of block_len; src/dst need no alignment. A result that is not a number is always the same quiet
     * NaN for the block types; element types (block_len 1) keep NaN payloads. NULL: cannot be read. */
    void (*dequantize)(const uint8_t *src, float *dst, size_t n);
    /* A block that holds NaN or infinity gets a scale that is not finite, so that it reads back as NaN. NULL: cannot be
     * written. */
    void (*quantize)(const float *src, uint8_t *dst, size_t n);
    float limit; /* finite values of this magnitude and above overflow when written; INFINITY: none do */
} dtype_info;

/* The entry for a number of the file, or NULL if this build cannot read the type. */
const dtype_info *dtype_find(int id);
/* The entry for any number that the format defines, readable here (dequantize != NULL) or not; NULL for others. Enough
 * to check the size of a tensor. */
const dtype_info *dtype_any(int id);
/* Whether two names are the same but for the case of letters A to Z. */
bool dtype_name_equal(const char *a, const char *b);
/* By name, case-insensitive ("q8_0"), readable types only, or NULL. */
const dtype_info *dtype_find_name(const char *name);
/* Name of any type number that the format defines, readable here or not; "type 999" style for others is the
 * caller's affair: NULL. */
const char *dtype_any_name(int id);
/* The entries that this build can read, for loops in tests and messages. */
const dtype_info *dtype_table(size_t *n);

/* IEEE half, bfloat16 to float (exact, subnormals too, NaN payloads kept) and float to half and bfloat16 (round to
 * nearest even, overflow to infinity, NaN to a quiet NaN as F16C's vcvtps2ph does: sign, quiet bit, top payload). */
float half_to_float(uint16_t h);
uint16_t half_from_float(float f);
float bf16_to_float(uint16_t h);
uint16_t bf16_from_float(float f);

#endif
