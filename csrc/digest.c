/* digest.c - four lanes of 64 bits, each a chain of steps that can be undone.                             (rank 1)
 *
 * Know first why no change of one word is lost: xor with a word, multiplication by an odd number and rotation are
 * one-to-one, so a lane that once differs stays different whatever equal words follow; the end mixes the lanes by steps
 * of the same kind. */
#include "digest.h"

#include <string.h>

/* Odd, and as good as random: the fractional parts of the golden ratio and of square roots of 2, 3 and 5. */
static const uint64_t START[DIGEST_LANES] = { 0x9e3779b97f4a7c15u, 0x6a09e667f3bcc909u, 0xbb67ae8584caa73bu,
                                              0x3c6ef372fe94f82bu };

static uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static uint64_t step(uint64_t lane, uint64_t word) {
    return rotate((lane ^ word) * START[0], 31);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * START[2];
    x = (x ^ x >> 29) * START[1];
    return x ^ x >> 32;
}

static void add_stripes(digest *d, const uint8_t *bytes, size_t n_stripes) {
    uint64_t a = d->lanes[0], b = d->lanes[1], c = d->lanes[2], e = d->lanes[3];
    for (; n_stripes > 0; n_stripes--, bytes += DIGEST_STRIPE) {
        uint64_t words[DIGEST_LANES];
        memcpy(words, bytes, sizeof words);
        a = step(a, words[0]);
        b = step(b, words[1]);
        c = step(c, words[2]);
        e = step(e, words[3]);
    }
    memcpy(d->lanes, (uint64_t[DIGEST_LANES]){ a, b, c, e }, sizeof d->lanes);
}

void digest_init(digest *d) {
    *d = (digest){ 0 };
    memcpy(d->lanes, START, sizeof d->lanes);
}

void digest_add(digest *d, const void *bytes, size_t n) {
    const uint8_t *at = bytes;
    const size_t held = d->length % DIGEST_STRIPE;
    d->length += n;
    if (n == 0) return;
    if (held) {
        const size_t fill = size_min(DIGEST_STRIPE - held, n);
        memcpy(d->rest + held, at, fill);
        if (held + fill < DIGEST_STRIPE) return;
        add_stripes(d, d->rest, 1);
        at += fill;
        n -= fill;
    }
    add_stripes(d, at, n / DIGEST_STRIPE);
    memcpy(d->rest, at + n / DIGEST_STRIPE * DIGEST_STRIPE, n % DIGEST_STRIPE);
}

uint64_t digest_value(const digest *d) {
    digest end = *d;
    const size_t held = d->length % DIGEST_STRIPE;
    memset(end.rest + held, 0, DIGEST_STRIPE - held);
    add_stripes(&end, end.rest, 1);
    uint64_t value = mix(d->length); /* tells zeros at the end from the padding */
    for (int i = 0; i < DIGEST_LANES; i++) value = mix(value ^ end.lanes[i]);
    return value;
}

uint64_t digest_of(const void *bytes, size_t n) {
    digest d;
    digest_init(&d);
    digest_add(&d, bytes, n);
    return digest_value(&d);
}
