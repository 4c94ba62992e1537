/* test_settle.c - a block that moves in the background: the same bytes all the while, stopped at any time, safe after
 * fork. Also meant to be built with -fsanitize=thread. */
#include "map.h"
#include "settle.h"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 24 * 1024 * 1024, ODD = 4096 + 64 };

static uint32_t word_at(size_t i) {
    return (uint32_t)i * 2654435761u ^ 0x5bd1e995u;
}

static void fill(uint32_t *words, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *words; i++) words[i] = word_at(i);
}

static bool is_filled(const uint32_t *words, size_t bytes) {
    bool right = true;
    for (size_t i = 0; i < bytes / sizeof *words; i++) right &= words[i] == word_at(i);
    return right;
}

/* A block of small pages, filled. */
static uint32_t *block_new(size_t bytes) {
    uint32_t *block = memory_new(bytes);
    if (block) fill(block, bytes);
    return block;
}

static void wait_ms(long ms) {
    const struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&pause, NULL);
}

/* KiB of huge pages in this process, as the kernel counts them; -1 where it does not say. */
static long huge_kilobytes(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long found = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "AnonHugePages: %ld", &found) == 1) break;
    if (file) fclose(file);
    return found;
}

/* Does this system join pages when asked? Looked up on a block of the test's own: emulators say yes to any advice. */
static bool can_join(void) {
    uint32_t *block = block_new(BYTES);
    const long before = huge_kilobytes();
    bool can = before >= 0 && block && memory_join_pages_now(block, BYTES) == 0;
    can = can && huge_kilobytes() - before >= BYTES / 1024 && is_filled(block, BYTES);
    free(block);
    return can;
}

/* ---- what it does --------------------------------------------------------------------------------------------- */

static void test_settle_of_a_block_moves_it_into_huge_pages_and_changes_no_byte(void) {
    const bool can = can_join();
    uint32_t *block = block_new(BYTES);
    CHECK(block != NULL);
    const long before = huge_kilobytes(), whole = BYTES / 1024;
    settle *s = settle_start(block, BYTES);
    CHECK(!can || s != NULL);
    for (int i = 0; can && i < 1000 && huge_kilobytes() - before < whole / 2; i++) {
        CHECK(is_filled(block, BYTES)); /* read while it moves */
        wait_ms(10);
    }
    CHECK(!can || huge_kilobytes() - before >= whole / 2); /* a page in use elsewhere may be passed over */
    settle_stop(s);
    CHECK(is_filled(block, BYTES));
    free(block);
}

/* Begins and ends between pages, within a larger piece: nothing outside of it is touched. */
static void test_settle_of_an_odd_range_changes_no_byte(void) {
    uint32_t *block = block_new(BYTES);
    CHECK(block != NULL);
    for (size_t size = BYTES - 2 * ODD; size > BYTES / 2; size -= 3 * 1024 * 1024) {
        settle *s = settle_start((uint8_t *)block + ODD, size);
        wait_ms(240);
        settle_stop(s);
    }
    CHECK(is_filled(block, BYTES));
    free(block);
}

static void test_block_written_while_it_settles_holds_what_was_written(void) {
    uint32_t *block = block_new(BYTES), rounds = 40;
    CHECK(block != NULL);
    settle *s = settle_start(block, BYTES);
    for (uint32_t i = 0; i < rounds; i++) {
        for (size_t w = 0; w < BYTES / sizeof *block; w++) block[w]++;
        wait_ms(10);
    }
    settle_stop(s);
    for (size_t w = 0; w < BYTES / sizeof *block; w++) block[w] -= rounds;
    CHECK(is_filled(block, BYTES));
    free(block);
}

/* ---- life and death ------------------------------------------------------------------------------------------- */

static void test_stop_at_once_or_soon_frees_and_leaves_the_block_alone(void) {
    uint32_t *block = block_new(BYTES);
    CHECK(block != NULL);
    for (int i = 0; i < 40; i++) {
        settle *s = settle_start(block, BYTES);
        if (i % 4) wait_ms(i % 4 * (i % 4 < 3 ? 1 : 75)); /* at its start, before the first move, between moves */
        settle_stop(s);
    }
    CHECK(is_filled(block, BYTES));
    free(block);
}

static void test_nothing_or_too_little_is_not_settled(void) {
    uint32_t small[64];
    CHECK(settle_start(NULL, 0) == NULL);
    CHECK(settle_start(NULL, BYTES) == NULL);
    CHECK(settle_start(small, sizeof small) == NULL);
    settle_stop(NULL);
}

/* Runs `child` after a fork; did it say yes? */
static bool in_child(bool (*child)(void *), void *context) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        _exit(child(context) ? 0 : 1);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

typedef struct inherited {
    settle *settling;
    uint32_t *block;
} inherited;

static bool stop_inherited(void *context) {
    inherited *mine = context;
    settle_stop(mine->settling); /* the thread is not here: to wait for it would be for ever */
    const bool right = is_filled(mine->block, BYTES);
    free(mine->block);
    return right;
}

static void test_forked_child_stops_without_the_thread(void) {
    inherited mine = { .block = block_new(BYTES) };
    CHECK(mine.block != NULL);
    mine.settling = settle_start(mine.block, BYTES);
    CHECK(in_child(stop_inherited, &mine));
    settle_stop(mine.settling);
    CHECK(is_filled(mine.block, BYTES));
    free(mine.block);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need memory of their own */
/* No address space for the stack of a thread. */
static bool settle_without_a_thread(void *block) {
    const struct rlimit none = { 1, 1 };
    void *volatile piece = malloc(4096); /* small ones there shall be */
    free(piece);
    if (setrlimit(RLIMIT_AS, &none) != 0) return false;
    settle *s = settle_start(block, BYTES);
    settle_stop(s);
    return s == NULL && is_filled(block, BYTES);
}

/* Runs first: the C library keeps the stacks of threads that have ended. */
static void test_settle_without_memory_for_a_thread_does_nothing(void) {
    uint32_t *block = block_new(BYTES);
    CHECK(block != NULL);
    CHECK(in_child(settle_without_a_thread, block));
    free(block);
}
#endif

int main(void) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RUN(test_settle_without_memory_for_a_thread_does_nothing);
#endif
    RUN(test_settle_of_a_block_moves_it_into_huge_pages_and_changes_no_byte);
    RUN(test_settle_of_an_odd_range_changes_no_byte);
    RUN(test_stop_at_once_or_soon_frees_and_leaves_the_block_alone);
    RUN(test_nothing_or_too_little_is_not_settled);
    RUN(test_forked_child_stops_without_the_thread);
    RUN(test_block_written_while_it_settles_holds_what_was_written);
    return check_report();
}
