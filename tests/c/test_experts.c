/* test_experts.c - the choice of experts: the best scores, ties, shares, and who is a member of whom. */
#include "experts.h"

#include "check.h"

#include <math.h>

static void test_experts_choose_takes_the_best_and_their_softmax(void) {
    float scores[] = { 0.5f, -1, 3, 2, -7 };
    experts_choose(scores, 5, 3);
    const double total = exp(0.5) + exp(3) + exp(2);
    CHECK(fabs((double)scores[0] - exp(0.5) / total) < 1e-6);
    CHECK(fabs((double)scores[2] - exp(3) / total) < 1e-6);
    CHECK(fabs((double)scores[3] - exp(2) / total) < 1e-6);
    CHECK(scores[1] == -1 && scores[4] == -1);
}

static void test_experts_choose_prefers_lower_numbers_among_equals(void) {
    float scores[] = { 1, 2, 2, 2, 1 }, zeros[] = { -0.0f, 0, -0.0f };
    experts_choose(scores, 5, 2);
    CHECK(scores[0] == -1 && scores[1] == 0.5f && scores[2] == 0.5f && scores[3] == -1 && scores[4] == -1);
    experts_choose(zeros, 3, 1);
    CHECK(zeros[0] == 1 && zeros[1] == -1 && zeros[2] == -1);
}

static void test_experts_choose_all_and_one(void) {
    float all[] = { -100, 100 }, one[] = { 3 }, first[] = { -INFINITY, -2e38f, -INFINITY };
    experts_choose(all, 2, 2);
    CHECK(all[1] == 1 && all[0] >= 0 && all[0] < 1e-30f); /* chosen, though nothing is left of its share */
    experts_choose(one, 1, 1);
    CHECK(one[0] == 1);
    experts_choose(first, 3, 1);
    CHECK(first[1] == 1 && first[0] == -1 && first[2] == -1);
}

/* A NaN must reach the logits, where it is refused; the choice stays one of K. */
static void test_experts_choose_lets_nan_through(void) {
    for (size_t at = 0; at < 4; at++)
        for (size_t k = 1; k <= 4; k++) {
            float scores[] = { 4, 3, 2, 1 };
            size_t n_chosen = 0, n_nan = 0;
            scores[at] = NAN;
            experts_choose(scores, 4, k);
            for (size_t i = 0; i < 4; i++) {
                n_nan += isnan(scores[i]) != 0;
                n_chosen += !(scores[i] < 0);
            }
            CHECK(n_nan >= 1 && n_chosen == k);
        }
}

static void test_experts_members_lists_each_token_once_in_order(void) {
    enum { TOKENS = 50, N = 7, LD = 16, K = 3 };
    float shares[TOKENS * LD];
    uint16_t members[TOKENS];
    size_t total = 0;
    uint32_t state = 1;
    for (size_t i = 0; i < TOKENS * LD; i++) shares[i] = (float)((state = state * 1664525u + 1013904223u) >> 28);
    for (size_t t = 0; t < TOKENS; t++) experts_choose(shares + t * LD, N, K);
    for (size_t expert = 0; expert < N; expert++) {
        const size_t n = experts_members(shares, LD, TOKENS, expert, members);
        total += n;
        for (size_t i = 0; i < n; i++) {
            CHECK(members[i] < TOKENS && (i == 0 || members[i] > members[i - 1]));
            CHECK(shares[members[i] * LD + expert] >= 0);
        }
    }
    CHECK(total == TOKENS * K);
}

int main(void) {
    RUN(test_experts_choose_takes_the_best_and_their_softmax);
    RUN(test_experts_choose_prefers_lower_numbers_among_equals);
    RUN(test_experts_choose_all_and_one);
    RUN(test_experts_choose_lets_nan_through);
    RUN(test_experts_members_lists_each_token_once_in_order);
    return check_report();
}
