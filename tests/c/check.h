/* check.h - the whole C test framework: CHECK, and a closing line that test runners understand.
 *
 * A test program: static void test_<function>_<situation>_<result>(void) {...}; main() calls RUN(test_...) for each
 * and returns check_report(). A test that the environment's LEAVE_OUT names does not run (tests/emulated.py says
 * which and why); the closing line counts it. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed, check_failed, check_left_out, check_current;

/* Is this one of the words of LEAVE_OUT? */
static inline int check_is_left_out(const char *test) {
    const char *word = getenv("LEAVE_OUT");
    for (size_t n; word && *word; word += n + (word[n] != 0)) {
        n = strcspn(word, " ");
        if (n == strlen(test) && memcmp(word, test, n) == 0) return 1;
    }
    return 0;
}

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            check_current = 1;                                                                                         \
            fprintf(stderr, "%s:%d: %s: CHECK(%s) failed\n", __FILE__, __LINE__, __func__, #cond);                     \
        }                                                                                                              \
    } while (0)

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        if (check_is_left_out(#test)) {                                                                                \
            check_left_out++;                                                                                          \
            break;                                                                                                     \
        }                                                                                                              \
        check_current = 0;                                                                                             \
        test();                                                                                                        \
        if (check_current)                                                                                             \
            check_failed++;                                                                                            \
        else                                                                                                           \
            check_passed++;                                                                                            \
    } while (0)

static inline int check_report(void) {
    printf("%d passed, %d failed", check_passed, check_failed);
    if (check_left_out) printf(", %d left out", check_left_out);
    printf("\n");
    return check_failed != 0;
}

#endif
