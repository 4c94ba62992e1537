/* settle.c - a thread that asks for one huge page after the other.                                         (rank 2)
 *
 * Decoding streams through all weights, and in huge pages they come faster. To pack them into new huge pages at once
 * would keep the first reply waiting: a virtual machine may have lent its large free pieces back to its host, and to
 * get the 143 MB of SmolLM2 in huge pages took 0.43 s of system time instead of 0.06 s. The kernel's own khugepaged,
 * left to itself, takes minutes for them. So they are moved while the program goes on. Knows nothing of what the bytes
 * mean. */
#include "settle.h"

#include "map.h"

#if defined(__linux__)

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BYTES_MIN = 8 * 1024 * 1024, /* what is smaller finds its small pages in the processor's table of them */
    FAILURES_MAX = 8,            /* in a row: then there is no memory in pieces of that size */
    FIRST_REST_NS = 200000000,   /* a short prompt that comes with the model is done by then */
    REST_TIMES = 8,
};

struct settle {
    uint8_t *at; /* [n] huge pages' worth */
    size_t n;
    pid_t owner; /* the process that has the thread */
    pthread_t thread;
    pthread_mutex_t mutex; /* of stop */
    pthread_cond_t wake;
    bool stop;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleep until then; false at once if it is time to stop. */
static bool rest_until(settle *s, int64_t ns) {
    const struct timespec until = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
    pthread_mutex_lock(&s->mutex);
    while (!s->stop && pthread_cond_timedwait(&s->wake, &s->mutex, &until) == 0) continue;
    const bool go_on = !s->stop;
    pthread_mutex_unlock(&s->mutex);
    return go_on;
}

/* While a page moves, whoever reads it or needs new memory in this process waits: without rests the first reply of
 * SmolLM2 after loading came up to three times later. After each move this thread rests for some times as long, so that
 * it takes a fixed share of the time, whatever a move takes here (0.5 to 6 ms were seen) and however busy the machine
 * is. */
static void *settle_main(void *argument) {
    settle *s = argument;
    int failures = 0;
    int64_t start = now_ns(), rest = FIRST_REST_NS;
    for (size_t i = 0; i < s->n && failures < FAILURES_MAX && rest_until(s, start + rest); i++) {
        start = now_ns();
        const int error = memory_join_pages_now(s->at + i * HUGE_PAGE, HUGE_PAGE);
        if (error == EINVAL) break;
        failures = error ? failures + 1 : 0;
        rest = (1 + REST_TIMES) * (now_ns() - start);
    }
    return NULL;
}

/* Signals belong to the host program's own threads. */
static bool start_thread(settle *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&s->thread, NULL, settle_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void settle_free(settle *s) {
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* Whoever runs this machine wants no huge pages: the kernel would make them here all the same. */
static bool are_forbidden(void) {
    char line[64] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (!file) return false;
    const bool found = fgets(line, sizeof line, file) && strstr(line, "[never]");
    fclose(file);
    return found;
}

settle *settle_start(void *block, size_t bytes) {
    if (!block || bytes < BYTES_MIN || are_forbidden()) return NULL;
    settle *s = malloc(sizeof *s);
    if (!s) return NULL;
    const size_t skip = (HUGE_PAGE - (uintptr_t)block % HUGE_PAGE) % HUGE_PAGE;
    *s = (settle){ .at = (uint8_t *)block + skip, .n = (bytes - skip) / HUGE_PAGE, .owner = getpid() };
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (start_thread(s)) return s;
    settle_free(s);
    return NULL;
}

void settle_stop(settle *s) {
    if (!s) return;
    if (s->owner != getpid()) { /* the lock may be held for ever by a thread that is not here */
        free(s);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    settle_free(s);
}

#else

settle *settle_start(void *block, size_t bytes) {
    (void)block, (void)bytes;
    return NULL;
}

void settle_stop(settle *s) {
    (void)s;
}

#endif
