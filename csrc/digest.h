/* digest.h - 64 bits that tell whether bytes are the same bytes.                                          (rank 1)
 *
 * Against damage, not against an adversary: whoever wants two inputs of one digest can make them. Every change within
 * one aligned run of 8 bytes changes the digest, without exception; of other changes one in 2^64 goes unnoticed. It
 * runs at about the speed of memory and is the same on every machine, in whatever pieces the bytes come.
 * The function is of our own and part of the formats that carry it: to change it is to change their versions. */
#ifndef PN_DIGEST_H
#define PN_DIGEST_H

#include "common.h"

enum { DIGEST_LANES = 4, DIGEST_STRIPE = DIGEST_LANES * 8 };

typedef struct digest {
    uint64_t lanes[DIGEST_LANES];
    uint64_t length;
    uint8_t rest[DIGEST_STRIPE]; /* [length % DIGEST_STRIPE] bytes that fill no stripe yet */
} digest;

void digest_init(digest *d);
void digest_add(digest *d, const void *bytes, size_t n);
/* The digest of all that was added; more can be added afterwards. */
uint64_t digest_value(const digest *d);
/* In one go. */
uint64_t digest_of(const void *bytes, size_t n);

#endif
