/* bandwidth.h - how fast this machine reads memory: the limit that decoding is held against.             (rank 4) */
#ifndef PN_BANDWIDTH_H
#define PN_BANDWIDTH_H

#include "common.h"

/* Buffers are read in whole blocks of so many bytes. */
enum { BANDWIDTH_BLOCK = 256 };

/* One way to read: the sum (modulo 2^64) of the 64-bit words of bytes[size]; size is a multiple of BANDWIDTH_BLOCK and
 * bytes is aligned to 64. So a test can tell that every byte was read, and a compiler cannot leave the reading out. */
typedef struct bandwidth_way {
    const char *name;
    uint64_t (*read)(const uint8_t *bytes, size_t size);
    bool (*usable)(void); /* NULL: everywhere */
} bandwidth_way;

/* Borrowed, static. NULL if there is no way `index` (they count from 0). */
const bandwidth_way *bandwidth_way_at(size_t index);

#endif
