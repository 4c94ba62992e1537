/* blocks.h - the quantized kinds as a list, and the entries that the files *_blocks.c give to the tables.     (rank 4)
 *
 * One body per instruction set serves all kinds: a kind is a constant there, and each entry is the body with one of
 * them. What a kind is stands in kernels.h. */
#ifndef PN_BLOCKS_H
#define PN_BLOCKS_H

#include "kernels/kernels.h"

/* X(name of the kind, name of its functions, argument) for every quantized kind. */
#define BLOCK_KINDS(X, argument)                                                                                       \
    X(PACK_Q8, q8, argument)                                                                                           \
    X(PACK_Q4, q4, argument)                                                                                           \
    X(PACK_Q4M, q4m, argument)                                                                                         \
    X(PACK_Q5, q5, argument)                                                                                           \
    X(PACK_Q5M, q5m, argument)                                                                                         \
    X(PACK_IQ4, iq4, argument)                                                                                         \
    X(PACK_IQ4K, iq4k, argument)                                                                                       \
    X(PACK_Q2K, q2k, argument)                                                                                         \
    X(PACK_Q3K, q3k, argument)                                                                                         \
    X(PACK_Q4K, q4k, argument)                                                                                         \
    X(PACK_Q5K, q5k, argument)                                                                                         \
    X(PACK_Q6K, q6k, argument)

/* The declaration of matmul_q8_portable and so on, and its place in a table of kernels. */
#define BLOCK_DECLARE(kind, name, set)                                                                                 \
    void matmul_##name##_##set(const uint8_t *w, size_t n_groups, const activations *a, size_t t0, size_t n_t,         \
                               float *out, size_t ld_out);
#define BLOCK_ENTRY(kind, name, set) [kind] = matmul_##name##_##set,

BLOCK_KINDS(BLOCK_DECLARE, portable)
#if defined(__x86_64__)
BLOCK_KINDS(BLOCK_DECLARE, avx2)
BLOCK_KINDS(BLOCK_DECLARE, avx512)
#elif defined(__aarch64__)
BLOCK_KINDS(BLOCK_DECLARE, neon)
BLOCK_KINDS(BLOCK_DECLARE, neon_dot)
#endif

/* The bytes of a group whose size was checked. */
static inline size_t block_group_bytes(pack_kind kind, size_t k) {
    const pack_layout layout = pack_layout_of(kind);
    return k / (layout.n_blocks * BLOCK_K) * (layout.head_bytes + layout.n_blocks * layout.block_bytes);
}

/* What a kind's codes and scales are made of: constants for a constant kind. */
static inline bool kind_has_nibbles(pack_kind kind) {
    return kind != PACK_Q8 && kind != PACK_Q2K && kind != PACK_Q3K;
}
static inline bool kind_has_twos(pack_kind kind) {
    return kind == PACK_Q2K || kind == PACK_Q3K || kind == PACK_Q6K;
}
static inline bool kind_has_ones(pack_kind kind) {
    return kind == PACK_Q5 || kind == PACK_Q5M || kind == PACK_Q5K || kind == PACK_Q3K;
}
static inline bool kind_has_table(pack_kind kind) {
    return kind == PACK_IQ4 || kind == PACK_IQ4K;
}
/* Weights that are bytes with a sign, not codes that count from something. */
static inline bool kind_is_signed(pack_kind kind) {
    return kind == PACK_Q8 || kind_has_table(kind);
}
/* Scales of the two halves of a block. */
static inline bool kind_has_halves(pack_kind kind) {
    return kind == PACK_Q2K || kind == PACK_Q3K || kind == PACK_Q6K;
}
/* What a code counts from; the bytes of Q8 and the table's values are signed as they are. */
static inline int kind_code_offset(pack_kind kind) {
    return kind == PACK_Q4 ? 8 : kind == PACK_Q5 ? 16 : kind == PACK_Q6K ? 32 : kind == PACK_Q3K ? 4 : 0;
}
/* f16 m or dmin behind d. */
static inline bool kind_has_offset(pack_kind kind) {
    return kind == PACK_Q4M || kind == PACK_Q5M || kind == PACK_Q2K || kind == PACK_Q4K || kind == PACK_Q5K;
}

#endif
