/* test_digest.c - the digest of bytes: as a second implementation has it (tests/state_bytes.py), in any pieces, and
 * different for every change of one byte. */
#include "check.h"
#include "digest.h"

static uint8_t bytes[200];

static void test_digest_is_what_the_description_gives(void) {
    CHECK(digest_of("", 0) == 0xb3e862da1f10e8b3u);
    CHECK(digest_of("a", 1) == 0x35e0be9b336c47d3u);
    CHECK(digest_of(bytes, 100) == 0x62758245d1402de2u);
    const uint8_t zeros[32] = { 0 };
    CHECK(digest_of(zeros, 31) == 0xecb33836e3704188u);
    CHECK(digest_of(zeros, 32) == 0xde492bac8b2a825eu);
}

static void test_digest_does_not_depend_on_the_pieces(void) {
    for (size_t n = 0; n <= 130; n++)
        for (size_t first = 0; first <= n; first++) {
            digest d;
            digest_init(&d);
            digest_add(&d, bytes, first);
            digest_value(&d); /* may be asked for on the way */
            digest_add(&d, bytes + first, (n - first) / 2);
            digest_add(&d, bytes + first + (n - first) / 2, n - first - (n - first) / 2);
            CHECK(digest_value(&d) == digest_of(bytes, n));
        }
}

static void test_digest_tells_every_change_of_a_byte_and_every_length(void) {
    const uint64_t whole = digest_of(bytes, sizeof bytes);
    for (size_t at = 0; at < sizeof bytes; at++)
        for (int change = 1; change < 256; change++) {
            bytes[at] ^= (uint8_t)change;
            CHECK(digest_of(bytes, sizeof bytes) != whole);
            bytes[at] ^= (uint8_t)change;
        }
    const uint8_t zeros[70] = { 0 };
    for (size_t n = 0; n < sizeof zeros; n++)
        for (size_t m = 0; m < n; m++) CHECK(digest_of(zeros, n) != digest_of(zeros, m));
}

int main(void) {
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)i;
    RUN(test_digest_is_what_the_description_gives);
    RUN(test_digest_does_not_depend_on_the_pieces);
    RUN(test_digest_tells_every_change_of_a_byte_and_every_length);
    return check_report();
}
