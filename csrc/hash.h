/* hash.h - where a number or some bytes belong in a table of open addressing.                            (rank 1)
 *
 * The seed is a number that a file's author cannot know, so that no file is made to collide. No result may depend on
 * it. */
#ifndef PN_HASH_H
#define PN_HASH_H

#include "common.h"

#include <string.h>

/* The first slot to look at for x in a table of mask + 1 slots, a power of two. */
static inline size_t hash_slot(uint64_t x, size_t mask) {
    x = (x ^ x >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    x = (x ^ x >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(x >> 20) & mask;
}

/* The same for bytes[0, len). */
static inline size_t hash_bytes_slot(uint64_t seed, const uint8_t *bytes, size_t len, size_t mask) {
    uint64_t x = seed ^ (uint64_t)len;
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, size_min(8, len - at));
        x = (x ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        x ^= x >> 32;
    }
    return hash_slot(x, mask);
}

#endif
