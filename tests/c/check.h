/* check.h - the whole C test framework: CHECK, and a closing line that test runners understand.
 *
 * A test program: static void test_<function>_<situation>_<result>(void) {...}; main() calls RUN(test_...) for each
 * and returns check_report(). */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int check_passed, check_failed, check_current;

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            check_current = 1;                                                                                         \
            fprintf(stderr, "%s:%d: %s: CHECK(%s) failed\n", __FILE__, __LINE__, __func__, #cond);                     \
        }                                                                                                              \
    } while (0)

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        check_current = 0;                                                                                             \
        test();                                                                                                        \
        if (check_current)                                                                                             \
            check_failed++;                                                                                            \
        else                                                                                                           \
            check_passed++;                                                                                            \
    } while (0)

static inline int check_report(void) {
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}

#endif
