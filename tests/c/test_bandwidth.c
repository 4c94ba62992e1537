/* test_bandwidth.c - every way of reading reads every byte; arguments are checked; nothing is said about speed. */
#include "bandwidth.h"

#include "check.h"
#include "pantheon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t naive_sum(const uint8_t *bytes, size_t size) {
    uint64_t sum = 0;
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        sum += word;
    }
    return sum;
}

static void test_ways_any_size_give_the_sum_of_all_words(void) {
    enum { BLOCKS = 37 };
    uint8_t *bytes = aligned_alloc(64, BLOCKS * BANDWIDTH_BLOCK);
    CHECK(bytes != NULL);
    if (!bytes) return;
    for (size_t i = 0; i < BLOCKS * BANDWIDTH_BLOCK; i++) bytes[i] = (uint8_t)(i * i * 31 + i / 7);
    const bandwidth_way *way;
    for (size_t w = 0; (way = bandwidth_way_at(w)); w++) {
        if (way->usable && !way->usable()) continue;
        for (size_t n = 0; n <= BLOCKS; n++)
            CHECK(way->read(bytes, n * BANDWIDTH_BLOCK) == naive_sum(bytes, n * BANDWIDTH_BLOCK));
        for (size_t at = 0; at < 2 * BANDWIDTH_BLOCK; at++) { /* no byte is left out */
            const uint64_t before = way->read(bytes, 2 * BANDWIDTH_BLOCK);
            bytes[at] ^= 1;
            CHECK(way->read(bytes, 2 * BANDWIDTH_BLOCK) != before);
            bytes[at] ^= 1;
        }
    }
    free(bytes);
}

static void test_ways_are_at_least_a_plain_and_a_prefetching_one(void) {
    CHECK(bandwidth_way_at(1) != NULL);
    CHECK(bandwidth_way_at(0) && bandwidth_way_at(0)->usable == NULL);
    CHECK(bandwidth_way_at(1000) == NULL);
}

static void test_pn_read_bandwidth_sizes_and_threads_give_a_rate(void) {
    const uint64_t sizes[] = { 1 << 20, (1 << 20) + 1, (3 << 20) + 49153 };
    for (size_t i = 0; i < 3; i++)
        for (int n_threads = 1; n_threads <= 3; n_threads++)
            for (int runs = 1; runs <= 2; runs++) {
                double rate = -1;
                CHECK(pn_read_bandwidth(n_threads, sizes[i], runs, &rate) == PN_OK);
                CHECK(isfinite(rate) && rate > 0);
            }
}

static void test_pn_read_bandwidth_nonsense_is_refused_by_name(void) {
    const struct {
        int n_threads;
        uint64_t bytes;
        int runs;
        const char *word;
    } cases[] = {
        { 0, 1 << 20, 1, "n_threads is 0" },
        { 257, 1 << 20, 1, "n_threads is 257" },
        { 1, (1 << 20) - 1, 1, "bytes is 1048575" },
        { 1, UINT64_MAX, 1, "bytes is 18446744073709551615" },
        { 1, 1 << 20, 0, "runs is 0" },
        { 1, 1 << 20, 1001, "runs is 1001" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double rate = -1;
        CHECK(pn_read_bandwidth(cases[i].n_threads, cases[i].bytes, cases[i].runs, &rate) == PN_ERR_ARGUMENT);
        CHECK(strstr(pn_last_error(), cases[i].word) != NULL);
        CHECK(rate < 0);
    }
    CHECK(pn_read_bandwidth(1, 1 << 20, 1, NULL) == PN_ERR_ARGUMENT);
}

int main(void) {
    RUN(test_ways_any_size_give_the_sum_of_all_words);
    RUN(test_ways_are_at_least_a_plain_and_a_prefetching_one);
    RUN(test_pn_read_bandwidth_sizes_and_threads_give_a_rate);
    RUN(test_pn_read_bandwidth_nonsense_is_refused_by_name);
    return check_report();
}
