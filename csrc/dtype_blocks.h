/* dtype_blocks.h - what one block of each block type looks like in the file, byte for byte.             (rank 1)
 *
 * Facts alone, from the GGUF document and the reference implementation (ggml): whoever reads, writes or packs blocks
 * shares them. Blocks of a file have no alignment: copy one with memcpy before its fields are read.
 * Know first: a block of 32 has one scale. A super-block of 256 has a scale (and for some a minimum) in half precision
 * for all, and small integers that multiply it for each group of 16 or 32. All scales named `scale` and `min` are
 * halves. In blocks of 32 with 4 bits, element i is the low half of qs[i] and element i + 16 the high half. */
#ifndef PN_DTYPE_BLOCKS_H
#define PN_DTYPE_BLOCKS_H

#include "common.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read in place; the format is little-endian");

enum {
    BLOCK_LEN = 32,
    NIBBLE_PAIRS = BLOCK_LEN / 2,
    SUPER_LEN = 256,
    SUPER_GROUPS_16 = SUPER_LEN / 16,
    SUPER_GROUPS_32 = SUPER_LEN / 32,
    SIX_BIT_BYTES = 12,      /* sixteen numbers of 6 bits */
    IQ4_XS_SCALES_BYTES = 6, /* eight of them */
};

/* ---- blocks of 32 -------------------------------------------------------------------------------------------- */

typedef struct q8_0_block {
    uint16_t scale; /* value = scale * qs */
    int8_t qs[BLOCK_LEN];
} q8_0_block;
typedef struct q4_0_block {
    uint16_t scale; /* value = scale * (q - 8) */
    uint8_t qs[NIBBLE_PAIRS];
} q4_0_block;
typedef struct q4_1_block {
    uint16_t scale, min; /* value = scale * q + min */
    uint8_t qs[NIBBLE_PAIRS];
} q4_1_block;
typedef struct q5_0_block {
    uint16_t scale;  /* value = scale * (q - 16)               */
    uint8_t high[4]; /* bit i, little-endian: bit 4 of element i */
    uint8_t qs[NIBBLE_PAIRS];
} q5_0_block;
typedef struct q5_1_block {
    uint16_t scale, min; /* value = scale * q + min */
    uint8_t high[4];     /* as in Q5_0              */
    uint8_t qs[NIBBLE_PAIRS];
} q5_1_block;
typedef struct iq4_nl_block {
    uint16_t scale; /* value = scale * IQ4_VALUES[q] */
    uint8_t qs[NIBBLE_PAIRS];
} iq4_nl_block;
_Static_assert(sizeof(q8_0_block) == 34, "Q8_0: 2 bytes of scale, 32 of values");
_Static_assert(sizeof(q4_0_block) == 18, "Q4_0: 2 bytes of scale, 16 of values");
_Static_assert(sizeof(q4_1_block) == 20, "Q4_1: 2 bytes of scale, 2 of minimum, 16 of values");
_Static_assert(sizeof(q5_0_block) == 22, "Q5_0: 2 bytes of scale, 4 of fifth bits, 16 of values");
_Static_assert(sizeof(q5_1_block) == 24, "Q5_1: 2 bytes of scale, 2 of minimum, 4 of fifth bits, 16 of values");
_Static_assert(sizeof(iq4_nl_block) == 18, "IQ4_NL: 2 bytes of scale, 16 of values");

/* The values that a code of IQ4_NL and IQ4_XS stands for, closer together around zero. */
static const int8_t IQ4_VALUES[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

/* ---- super-blocks of 256 ------------------------------------------------------------------------------------- */

/* 2 bits. Elements come in halves of 128: element e of a half is bits 2 * (e / 32) of byte e % 32 of its 32 qs. */
typedef struct q2_k_block {
    uint8_t scales[SUPER_GROUPS_16]; /* of group g: low half times scale, high half times min */
    uint8_t qs[SUPER_LEN / 4];
    uint16_t scale, min; /* value = scale * s * q - min * m */
} q2_k_block;
/* 3 bits: two as in Q2_K; element i of 32 in part p of 8 has its third in bit p of high[i], a zero there means -4. */
typedef struct q3_k_block {
    uint8_t high[SUPER_LEN / 8];
    uint8_t qs[SUPER_LEN / 4];
    uint8_t scales[SIX_BIT_BYTES]; /* of 16 groups, see q3_k_scales */
    uint16_t scale;                /* value = scale * s * q         */
} q3_k_block;
/* 4 bits. Elements come in quarters of 64: the low halves of 32 bytes, then their high halves. */
typedef struct q4_k_block {
    uint16_t scale, min;           /* value = scale * s * q - min * m             */
    uint8_t scales[SIX_BIT_BYTES]; /* s and m of 8 groups of 32, see affine_scales */
    uint8_t qs[SUPER_LEN / 2];
} q4_k_block;
/* 5 bits: four as in Q4_K; element i of group g has its fifth in bit g of high[i]. */
typedef struct q5_k_block {
    uint16_t scale, min;
    uint8_t scales[SIX_BIT_BYTES];
    uint8_t high[SUPER_LEN / 8];
    uint8_t qs[SUPER_LEN / 2];
} q5_k_block;
/* 6 bits. Elements come in halves of 128, of four parts of 32: element i of part p has its low four bits in byte
 * i + 32 * (p % 2) of 64 (low half of the byte for p < 2), and the other two in bits 2 * p of high[i] of 32. */
typedef struct q6_k_block {
    uint8_t low[SUPER_LEN / 2];
    uint8_t high[SUPER_LEN / 4];
    int8_t scales[SUPER_GROUPS_16]; /* value = scale * s * (q - 32) */
    uint16_t scale;
} q6_k_block;
/* Groups of 32, each laid out as in IQ4_NL. */
typedef struct iq4_xs_block {
    uint16_t scale;
    uint8_t scales[IQ4_XS_SCALES_BYTES]; /* of 8 groups of 32, see iq4_xs_scales */
    uint8_t qs[SUPER_LEN / 2];           /* value = scale * s * IQ4_VALUES[q]    */
} iq4_xs_block;
_Static_assert(sizeof(q2_k_block) == 84, "Q2_K: 16 bytes of scales, 64 of values, 4 of scale and minimum");
_Static_assert(sizeof(q3_k_block) == 110, "Q3_K: 32 bytes of third bits, 64 of values, 12 of scales, 2 of scale");
_Static_assert(sizeof(q4_k_block) == 144, "Q4_K: 4 bytes of scale and minimum, 12 of scales, 128 of values");
_Static_assert(sizeof(q5_k_block) == 176, "Q5_K: as Q4_K, and 32 bytes of fifth bits");
_Static_assert(sizeof(q6_k_block) == 210, "Q6_K: 128 + 64 bytes of values, 16 of scales, 2 of scale");
_Static_assert(sizeof(iq4_xs_block) == 136, "IQ4_XS: 2 bytes of scale, 6 of scales, 128 of values");

/* ---- the integers of groups, 6 bits each ---------------------------------------------------------------------- */

/* s of 16 groups, -32..31: four low bits in a half of bytes 0..7, two high bits in a quarter of 8..11. */
static inline void q3_k_scales(const uint8_t packed[SIX_BIT_BYTES], int8_t out[SUPER_GROUPS_16]) {
    for (size_t g = 0; g < SUPER_GROUPS_16; g++) {
        const int low = packed[g % 8] >> g / 8 * 4 & 15, high = packed[8 + g % 4] >> g / 4 * 2 & 3;
        out[g] = (int8_t)((low | high << 4) - 32);
    }
}

/* Q4_K and Q5_K: s and m of 8 groups, 0..63, those of a group side by side. For the first four they are the low six
 * bits of bytes 0..3 and 4..7; the others have four low bits in the halves of bytes 8..11, and two high bits on top of
 * bytes 0..3 and 4..7. */
static inline void affine_scales(const uint8_t packed[SIX_BIT_BYTES], uint8_t out[2 * SUPER_GROUPS_32]) {
    for (size_t g = 0; g < SUPER_GROUPS_32 / 2; g++) {
        out[2 * g] = packed[g] & 63;
        out[2 * g + 1] = packed[g + 4] & 63;
        out[2 * g + 8] = (uint8_t)((packed[g + 8] & 15) | packed[g] >> 6 << 4);
        out[2 * g + 9] = (uint8_t)(packed[g + 8] >> 4 | packed[g + 4] >> 6 << 4);
    }
}

/* s of 8 groups, -32..31: two high bits in a quarter of bytes 0..1, four low bits in a half of 2..5. */
static inline void iq4_xs_scales(const uint8_t packed[IQ4_XS_SCALES_BYTES], int8_t out[SUPER_GROUPS_32]) {
    for (size_t g = 0; g < SUPER_GROUPS_32; g++) {
        const int low = packed[2 + g / 2] >> g % 2 * 4 & 15, high = packed[g / 4] >> g % 4 * 2 & 3;
        out[g] = (int8_t)((low | high << 4) - 32);
    }
}

#endif
