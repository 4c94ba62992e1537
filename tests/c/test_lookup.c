/* Guesses against a scan of the whole list, through appends and truncations in any order. */
#include "check.h"
#include "lookup.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 9 };

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* The definition of lookup_guess, by looking at every place. */
static size_t scan(const uint32_t *ids, size_t n, size_t most, uint32_t *out, size_t *match) {
    size_t best = 0;
    *match = 0;
    for (size_t gram = 3; gram >= 2 && *match == 0; gram--) {
        int seen = 0;
        for (size_t end = n < gram ? 0 : n - 1; end-- > gram - 1 && seen < LOOKUP_CANDIDATES;) {
            size_t length = 0;
            while (length <= end && length < LOOKUP_MATCH_MAX && ids[end - length] == ids[n - 1 - length]) length++;
            if (length < gram) continue;
            seen++;
            if (length <= *match) continue;
            *match = length;
            best = end;
        }
    }
    if (*match == 0) return 0;
    const size_t period = n - 1 - best; /* beyond the end the continuation repeats itself */
    for (size_t i = 0; i < most; i++) out[i] = ids[best + 1 + i % period];
    return most;
}

static void check_same(const lookup *l, const uint32_t *ids, size_t n) {
    uint32_t guess[MOST], expected[MOST];
    size_t match = 99, expected_match = 98;
    const size_t n_expected = scan(ids, n, MOST, expected, &expected_match);
    CHECK(l->n == n);
    CHECK(lookup_guess(l, MOST, guess, &match) == n_expected);
    CHECK(match == expected_match);
    CHECK(n_expected == 0 || memcmp(guess, expected, sizeof guess) == 0);
}

static void test_empty_and_short_lists_give_no_guess(void) {
    lookup l = { 0 };
    const uint32_t ids[] = { 7, 7, 7, 7 };
    for (size_t n = 0; n <= 2; n++) {
        check_same(&l, ids, n);
        size_t match;
        uint32_t out[1];
        CHECK(lookup_guess(&l, 1, out, &match) == 0);
        CHECK(lookup_append(&l, ids, 1) == PN_OK);
    }
    check_same(&l, ids, 3); /* 7 7 7: the last two stand one place earlier too */
    lookup_free(&l);
    CHECK(lookup_bytes(&l) == 0);
}

static void test_a_continuation_that_reaches_the_end_goes_on_with_itself(void) {
    lookup l = { 0 };
    const uint32_t ids[] = { 9, 1, 2, 3, 1, 2, 3, 1 }, expected[] = { 2, 3, 1, 2, 3, 1, 2 };
    uint32_t out[7];
    size_t match;
    CHECK(lookup_append(&l, ids, PN_ARRAY_LEN(ids)) == PN_OK);
    CHECK(lookup_guess(&l, 7, out, &match) == 7 && match == 4);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    lookup_free(&l);
}

static void test_the_longer_match_wins_over_the_later_one(void) {
    lookup l = { 0 };
    const uint32_t ids[] = { 5, 1, 2, 3, 40, 6, 1, 2, 3, 50, 5, 1, 2, 3 };
    uint32_t out[1];
    size_t match;
    CHECK(lookup_append(&l, ids, PN_ARRAY_LEN(ids)) == PN_OK);
    CHECK(lookup_guess(&l, 1, out, &match) == 1 && match == 4 && out[0] == 40);
    lookup_truncate(&l, 10);
    CHECK(lookup_append(&l, (const uint32_t[]){ 8, 1, 2, 3 }, 4) == PN_OK);
    CHECK(lookup_guess(&l, 1, out, &match) == 1 && match == 3 && out[0] == 50); /* equal lengths: the later one */
    lookup_free(&l);
}

/* Small alphabets repeat a lot and make chains longer than what is compared; large ones meet by chance only. */
static void test_random_appends_and_truncations_equal_a_scan(void) {
    enum { LONGEST = 1500 };
    static uint32_t ids[LONGEST];
    size_t n_guessed = 0;
    for (uint32_t seed = 0; seed < 24; seed++) {
        const uint32_t alphabet = (const uint32_t[]){ 1, 2, 3, 10, 60, 50000 }[seed % 6];
        uint32_t state = seed;
        size_t n = 0;
        lookup l = { 0 };
        for (int step = 0; step < 150; step++) {
            if (next_random(&state) % 4 == 0) {
                n = n ? next_random(&state) % (n + 1) : 0;
                lookup_truncate(&l, n);
                lookup_truncate(&l, n + 5); /* more than there is: nothing happens */
            } else {
                const size_t begin = n, most = size_min(LONGEST - n, step % 7 == 0 ? 400 : 5);
                const size_t from = n ? next_random(&state) % n : 0;
                const bool is_copy = n > 20 && next_random(&state) % 2;
                for (; n < begin + most; n++)
                    ids[n] = is_copy && from + (n - begin) < begin ? ids[from + (n - begin)]
                                                                   : next_random(&state) % alphabet;
                CHECK(lookup_append(&l, ids + begin, n - begin) == PN_OK);
            }
            check_same(&l, ids, n);
            uint32_t out[1];
            size_t match;
            n_guessed += lookup_guess(&l, 1, out, &match);
        }
        lookup_free(&l);
    }
    CHECK(n_guessed > 1000);
}

static void test_too_many_ids_are_refused_before_anything_changes(void) {
    lookup l = { 0 };
    const uint32_t ids[] = { 1, 2, 3, 1, 2, 3 };
    CHECK(lookup_append(&l, ids, 6) == PN_OK);
    CHECK(lookup_append(&l, ids, (size_t)1 << 30) == PN_ERR_ARGUMENT);
    check_same(&l, ids, 6);
    lookup_free(&l);
}

int main(void) {
    RUN(test_empty_and_short_lists_give_no_guess);
    RUN(test_a_continuation_that_reaches_the_end_goes_on_with_itself);
    RUN(test_the_longer_match_wins_over_the_later_one);
    RUN(test_random_appends_and_truncations_equal_a_scan);
    RUN(test_too_many_ids_are_refused_before_anything_changes);
    return check_report();
}
