/* The choice of how many guesses to try, on made-up texts and machines: what it gains, and what it costs at worst. */
#include "check.h"
#include "pace.h"

enum { MOST = 8 };

static uint32_t seed;

static double next_uniform(void) {
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / (1 << 24);
}

/* A text in which a guess is right with a chance and its match then longer, on a machine where a pass over 1 + k tokens
 * takes 1 + extra * k. Returns tokens for each unit of time: 1 without guesses. */
static double run(pace *p, double chance, double extra, size_t match, int n_tokens) {
    const size_t shortest = match;
    double time = 0;
    int n = 0;
    while (n < n_tokens) {
        const size_t k = pace_choose(p, match, MOST);
        const double cost = 1 + extra * (double)k;
        size_t hits = 0;
        bool hit = true;
        for (size_t i = 0; i < (k ? k : 1) && hit; i++) {
            hit = next_uniform() < chance;
            pace_learn(p, match, hit);
            match = hit ? match + 1 : shortest;
            hits += hit && k;
        }
        pace_time(p, k, cost);
        time += cost;
        n += 1 + (int)hits;
    }
    return n / time;
}

static void test_nothing_is_tried_before_a_pass_was_timed(void) {
    pace p;
    pace_init(&p);
    CHECK(pace_choose(&p, 30, MOST) == 0);
    pace_time(&p, 3, 1.0); /* a pass with guesses in it says nothing yet */
    CHECK(pace_choose(&p, 30, MOST) == 0);
    pace_time(&p, 0, 0.0);
    CHECK(pace_choose(&p, 30, MOST) == 0);
    pace_time(&p, 0, 0.01);
    CHECK(pace_choose(&p, 30, MOST) > 1);
    CHECK(pace_choose(&p, 30, 1) == 1);
    CHECK(pace_choose(&p, 30, 0) == 0);
    CHECK(pace_choose(&p, 2, MOST) == 0);
}

static void test_text_that_repeats_itself_is_guessed_and_gains(void) {
    pace p;
    pace_init(&p);
    CHECK(run(&p, 1.0, 0.2, 20, 300) > 2.5);
    CHECK(pace_choose(&p, 20, MOST) == MOST);
    CHECK(run(&p, 0.9, 0.2, 20, 2000) > 1.5);
}

static void test_chance_matches_cost_nothing(void) {
    static const double EXTRAS[] = { 0.05, 0.2, 0.4, 1.0 };
    for (size_t e = 0; e < PN_ARRAY_LEN(EXTRAS); e++)
        for (size_t match = 2; match <= 20; match += 3)
            for (double chance = 0; chance < 0.35; chance += 0.1) {
                pace p;
                pace_init(&p);
                run(&p, chance, EXTRAS[e], match, 100); /* what it may cost to learn, for the longest matches */
                CHECK(run(&p, chance, EXTRAS[e], match, 3000) > 0.97);
            }
}

static void test_a_machine_without_gain_is_left_alone(void) {
    for (double chance = 0; chance <= 1; chance += 0.1) {
        pace p;
        pace_init(&p);
        CHECK(run(&p, chance, 1.0, 20, 3000) > 0.97);
    }
}

static void test_a_text_that_begins_to_repeat_is_noticed(void) {
    pace p;
    pace_init(&p);
    run(&p, 0.05, 0.2, 2, 1000);
    CHECK(pace_choose(&p, 2, MOST) == 0);
    CHECK(run(&p, 0.95, 0.2, 2, 300) > 1.5);
}

static void test_one_interruption_is_forgotten(void) {
    pace p;
    pace_init(&p);
    run(&p, 0.95, 0.2, 20, 200);
    pace_time(&p, 8, 1000.0);
    pace_time(&p, 0, 1000.0);
    CHECK(run(&p, 0.95, 0.2, 20, 500) > 1.8);
}

int main(void) {
    RUN(test_nothing_is_tried_before_a_pass_was_timed);
    RUN(test_text_that_repeats_itself_is_guessed_and_gains);
    RUN(test_chance_matches_cost_nothing);
    RUN(test_a_machine_without_gain_is_left_alone);
    RUN(test_a_text_that_begins_to_repeat_is_noticed);
    RUN(test_one_interruption_is_forgotten);
    return check_report();
}
