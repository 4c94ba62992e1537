/* test_threads.c - the pool: every chunk exactly once, one caller at a time, safe after fork. Also meant to be built
 * with -fsanitize=thread. */
#include "threads.h"

#include "check.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- counting chunks ------------------------------------------------------------------------------------------ */

typedef struct tally {
    size_t n;
    uint32_t *plain;   /* [n] written without atomics: a race or a lost write shows */
    atomic_size_t all; /* calls */
} tally;

static void count_chunk(void *context, size_t chunk) {
    tally *t = context;
    if (chunk < t->n) t->plain[chunk]++;
    atomic_fetch_add_explicit(&t->all, 1, memory_order_relaxed);
}

/* Run n chunks `times` times; is each chunk called exactly once per run? */
static bool run_counts(threads *pool, size_t n, uint32_t times) {
    tally t = { .n = n, .plain = calloc(n ? n : 1, sizeof *t.plain) };
    if (!t.plain) return false;
    atomic_init(&t.all, 0);
    bool right = true;
    for (uint32_t i = 1; i <= times; i++) {
        threads_run(pool, count_chunk, &t, n);
        for (size_t c = 0; c < n; c++) right &= t.plain[c] == i;
        right &= atomic_load(&t.all) == n * i;
    }
    free(t.plain);
    return right;
}

static const size_t COUNTS[] = { 0, 1, 2, 3, 7, 64, 1000 };

static void test_run_on_any_number_of_threads_calls_each_chunk_once(void) {
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        threads *pool = NULL;
        CHECK(threads_new(n_threads, &pool) == 0);
        const bool entered = threads_enter(pool);
        CHECK(entered == (n_threads > 1)); /* one thread has no one to share with */
        for (size_t i = 0; i < PN_ARRAY_LEN(COUNTS); i++) CHECK(run_counts(entered ? pool : NULL, COUNTS[i], 20));
        if (entered) threads_leave(pool);
        threads_free(pool);
    }
}

static void test_run_without_a_pool_calls_each_chunk_in_order(void) {
    for (size_t i = 0; i < PN_ARRAY_LEN(COUNTS); i++) CHECK(run_counts(NULL, COUNTS[i], 1));
}

static void test_run_of_many_small_jobs_in_a_row_loses_none(void) {
    threads *pool = NULL;
    CHECK(threads_new(3, &pool) == 0);
    CHECK(threads_enter(pool));
    for (size_t n = 2; n < 10; n++) CHECK(run_counts(pool, n, 500));
    threads_leave(pool);
    threads_free(pool);
}

static void test_run_on_more_threads_than_cores_ends(void) {
    threads *pool = NULL;
    CHECK(threads_new(16, &pool) == 0);
    CHECK(threads_enter(pool));
    CHECK(run_counts(pool, 333, 100));
    CHECK(run_counts(pool, 2, 200));
    threads_leave(pool);
    threads_free(pool);
}

static void test_run_of_a_million_chunks_calls_each_once(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    CHECK(threads_enter(pool));
    CHECK(run_counts(pool, (1u << 20) - 1, 1));
    threads_leave(pool);
    threads_free(pool);
}

/* Workers fall asleep after microseconds; a job that comes later must wake them and be done all the same. */
static void test_run_after_a_pause_wakes_the_workers(void) {
    threads *pool = NULL;
    CHECK(threads_new(3, &pool) == 0);
    CHECK(threads_enter(pool));
    for (int i = 0; i < 10; i++) {
        const struct timespec pause = { 0, 3000000 };
        nanosleep(&pause, NULL);
        CHECK(run_counts(pool, 50, 1));
    }
    threads_leave(pool);
    threads_free(pool);
}

/* ---- who helps ------------------------------------------------------------------------------------------------ */

typedef struct meeting {
    atomic_int here;
    atomic_bool met;
} meeting;

/* Waits (a second at most) until another thread is in a chunk of the same job. */
static void meet_chunk(void *context, size_t chunk) {
    (void)chunk;
    meeting *m = context;
    atomic_fetch_add(&m->here, 1);
    for (int i = 0; i < 1000 && !atomic_load(&m->met); i++) {
        if (atomic_load(&m->here) > 1) atomic_store(&m->met, true);
        const struct timespec pause = { 0, 1000000 };
        nanosleep(&pause, NULL);
    }
}

static void test_run_on_two_threads_uses_both(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    CHECK(threads_enter(pool));
    meeting m;
    atomic_init(&m.here, 0);
    atomic_init(&m.met, false);
    threads_run(pool, meet_chunk, &m, 2);
    CHECK(atomic_load(&m.met));
    threads_leave(pool);
    threads_free(pool);
}

/* ---- one caller at a time ------------------------------------------------------------------------------------- */

static void test_enter_while_another_has_the_pool_is_refused(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    CHECK(threads_enter(pool));
    CHECK(!threads_enter(pool));
    CHECK(run_counts(pool, 20, 3));
    threads_leave(pool);
    CHECK(threads_enter(pool));
    threads_leave(pool);
    threads_free(pool);
}

static void *call_often(void *argument) {
    threads *pool = argument;
    uintptr_t right = 1;
    for (int i = 0; i < 300; i++) {
        threads *mine = threads_enter(pool) ? pool : NULL;
        right &= run_counts(mine, 40, 2);
        if (mine) threads_leave(mine);
    }
    return (void *)right;
}

static void test_callers_from_several_threads_each_get_all_of_their_chunks(void) {
    threads *pool = NULL;
    pthread_t callers[4];
    CHECK(threads_new(3, &pool) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(pthread_create(&callers[i], NULL, call_often, pool) == 0);
    for (size_t i = 0; i < 4; i++) {
        void *right = NULL;
        pthread_join(callers[i], &right);
        CHECK(right != NULL);
    }
    threads_free(pool);
}

/* ---- life and death ------------------------------------------------------------------------------------------- */

static void test_free_without_a_run_and_of_nothing_is_fine(void) {
    threads_free(NULL);
    for (int i = 0; i < 60; i++) {
        threads *pool = NULL;
        CHECK(threads_new(1 + i % 6, &pool) == 0);
        if (i % 3 == 0 && threads_enter(pool)) {
            CHECK(run_counts(pool, 30, 2));
            threads_leave(pool);
        }
        threads_free(pool);
    }
}

static bool new_pool_works(void) {
#ifdef __SANITIZE_THREAD__
    return true; /* ThreadSanitizer refuses new threads after a fork */
#else
    threads *pool = NULL;
    const bool right = threads_new(2, &pool) == 0 && threads_enter(pool) && run_counts(pool, 100, 2);
    threads_free(pool);
    return right;
#endif
}

static void test_forked_child_without_the_workers_computes_alone_and_frees(void) {
    threads *pool = NULL;
    CHECK(threads_new(3, &pool) == 0);
    for (int held = 0; held < 2; held++) { /* idle, and in the middle of a caller's sequence of runs */
        if (held) CHECK(threads_enter(pool));
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            const bool refused = !threads_enter(pool);
            const bool right = run_counts(NULL, 100, 2);
            const bool again = new_pool_works();
            threads_free(pool);
            _exit(refused && right && again ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (held) {
            CHECK(run_counts(pool, 100, 2));
            threads_leave(pool);
        }
    }
    threads_free(pool);
}

/* ---- leave ---------------------------------------------------------------------------------------------------- */

/* A thread without its core is played by a chunk that sleeps: STALL_MS, which costs a leave of half a second. Checks
 * of what happens during the leave are made only if it cannot be over: a slow machine proves nothing. */
enum { STALL_MS = 40, LEAVE_SURE_MS = 400 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void sleep_ms(long ms) {
    const struct timespec pause = { 0, ms * 1000000 };
    nanosleep(&pause, NULL);
}

/* The number of this thread in the process, from 1 in the order of asking. */
static int thread_number(void) {
    static atomic_int n_known;
    static _Thread_local int mine;
    if (!mine) mine = atomic_fetch_add(&n_known, 1) + 1;
    return mine;
}

typedef struct stage {
    int caller; /* thread_number */
    bool caller_stalls, worker_stalls;
    atomic_int bad;               /* the worker that stalled; 0: none yet */
    atomic_int here;              /* threads in a chunk of this job */
    atomic_int by_bad, by_others; /* chunks of workers */
} stage;

static stage stage_make(void) {
    return (stage){ .caller = thread_number() };
}

/* Two chunks, one for the caller and one for a worker (or both for the caller, which waits for company in vain): the
 * first worker that comes by stalls if worker_stalls. */
static void staged_chunk(void *context, size_t chunk) {
    (void)chunk;
    stage *s = context;
    const int me = thread_number();
    atomic_fetch_add(&s->here, 1);
    for (int i = 0; i < 20 && atomic_load(&s->here) < 2; i++) sleep_ms(1);
    if (me == s->caller) {
        if (s->caller_stalls && atomic_load(&s->here) > 1) sleep_ms(STALL_MS);
        return;
    }
    int none = 0;
    if (s->worker_stalls && atomic_compare_exchange_strong(&s->bad, &none, me)) sleep_ms(STALL_MS);
    atomic_fetch_add(me == atomic_load(&s->bad) ? &s->by_bad : &s->by_others, 1);
}

static void stage_run(threads *pool, stage *s) {
    atomic_store(&s->here, 0);
    threads_run(pool, staged_chunk, s, 2);
}

/* Jobs until one stalled; the time after it. */
static double stage_stall(threads *pool, stage *s) {
    for (int i = 0; i < 1000 && !atomic_load(&s->by_bad) && !(s->caller_stalls && atomic_load(&s->by_others)); i++)
        stage_run(pool, s);
    return now_ms();
}

/* Jobs until a worker other than the bad one, or the bad one, helps; false if none does for a long time. */
static bool helps_again(threads *pool, stage *s, atomic_int *count) {
    const int before = atomic_load(count);
    for (int i = 0; i < 1000 && atomic_load(count) == before; i++) {
        stage_run(pool, s);
        sleep_ms(5);
    }
    return atomic_load(count) != before;
}

static void test_worker_that_stalled_is_left_out_and_comes_back(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    CHECK(threads_enter(pool));
    stage s = stage_make();
    s.worker_stalls = true;
    const double stalled = stage_stall(pool, &s);
    CHECK(atomic_load(&s.by_bad) == 1);
    const bool right = run_counts(pool, 100, 20); /* nothing is lost while it is away */
    for (int i = 0; i < 3; i++) stage_run(pool, &s);
    if (now_ms() - stalled < LEAVE_SURE_MS) CHECK(atomic_load(&s.by_bad) == 1);
    CHECK(right);
    CHECK(helps_again(pool, &s, &s.by_bad));
    CHECK(run_counts(pool, 100, 20));
    threads_leave(pool);
    threads_free(pool);
}

/* Did the other worker help while the bad one was surely on leave, and the bad one later? */
static bool others_help_meanwhile(void) {
    threads *pool = NULL;
    if (threads_new(3, &pool) || !threads_enter(pool)) return false;
    stage s = stage_make();
    s.worker_stalls = true;
    const double stalled = stage_stall(pool, &s);
    const int before = atomic_load(&s.by_others);
    bool meanwhile = helps_again(pool, &s, &s.by_others);
    meanwhile &= atomic_load(&s.by_others) > before && now_ms() - stalled < LEAVE_SURE_MS;
    if (meanwhile) CHECK(atomic_load(&s.by_bad) == 1);
    CHECK(helps_again(pool, &s, &s.by_bad));
    threads_leave(pool);
    threads_free(pool);
    return meanwhile;
}

/* A busy machine may keep the other worker waiting too: not each time. */
static void test_one_worker_that_stalled_does_not_stop_the_others(void) {
    bool seen = false;
    for (int i = 0; i < 10 && !seen; i++) seen = others_help_meanwhile();
    CHECK(seen);
}

/* In one sequence of runs the caller looks at its own time at a later job, between two of them when it leaves. */
static void test_caller_that_lost_its_core_does_without_a_worker_for_a_while(void) {
    for (int leaves = 0; leaves < 2; leaves++) {
        threads *pool = NULL;
        CHECK(threads_new(2, &pool) == 0);
        CHECK(threads_enter(pool));
        stage s = stage_make();
        s.caller_stalls = true;
        const double stalled = stage_stall(pool, &s);
        s.caller_stalls = false;
        if (leaves) threads_leave(pool);
        if (leaves) CHECK(threads_enter(pool));
        const int before = atomic_load(&s.by_others);
        for (int i = 0; i < 3; i++) stage_run(pool, &s);
        if (now_ms() - stalled < LEAVE_SURE_MS) CHECK(atomic_load(&s.by_others) == before);
        CHECK(helps_again(pool, &s, &s.by_others));
        threads_leave(pool);
        threads_free(pool);
    }
}

static void test_pool_whose_worker_is_on_leave_can_be_freed_and_forked(void) {
    threads *pool = NULL;
    CHECK(threads_new(2, &pool) == 0);
    CHECK(threads_enter(pool));
    stage s = stage_make();
    s.worker_stalls = true;
    stage_stall(pool, &s);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        const bool right = !threads_enter(pool) && run_counts(NULL, 100, 2);
        threads_free(pool);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    threads_leave(pool);
    threads_free(pool);
}

/* ---- floating-point environment ------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define HAS_FP_CONTROL
enum { FLUSHING_UPWARD = 0x1f80 | 0x8040 | 0x4000 }; /* flush and ignore subnormals, round up */

static unsigned control_get(void) {
    return _mm_getcsr() & ~0x3fu; /* without the flags of what happened */
}
static void control_set(unsigned control) {
    _mm_setcsr(control);
}
#elif defined(__aarch64__)
#define HAS_FP_CONTROL
enum { FLUSHING_UPWARD = 1 << 24 | 1 << 22 }; /* the same in FPCR: FZ, and RMode towards plus infinity */

static unsigned control_get(void) {
    uint64_t control;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
    return (unsigned)control;
}
static void control_set(unsigned control) {
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)control));
}
#endif

#ifdef HAS_FP_CONTROL

/* 1 + 2^-24 is 1 by rounding to nearest even, more by rounding up; the subnormal is 0 where subnormals are ignored. */
static bool rounds_as_defined(void) {
    volatile float tiny = FLT_MIN / 4, one = 1.0f, half_step = 0x1p-24f;
    volatile float sum = one + half_step, subnormal = tiny * 2.0f;
    const float want = FLT_MIN / 2;
    float got = subnormal;
    return sum == 1.0f && memcmp(&got, &want, sizeof got) == 0; /* a comparison would ignore subnormals too */
}

static void environment_chunk(void *context, size_t chunk) {
    bool *right = context;
    const struct timespec pause = { 0, 200000 }; /* so that the workers get some of the chunks */
    nanosleep(&pause, NULL);
    right[chunk] = rounds_as_defined();
}

static void test_fp_enter_in_a_changed_environment_gives_the_defined_one_until_fp_leave(void) {
    const unsigned original = control_get();
    control_set(FLUSHING_UPWARD);
    const bool before = rounds_as_defined();
    const fp_env saved = fp_enter();
    const bool inside = rounds_as_defined();
    fp_leave(saved);
    const unsigned after = control_get();
    control_set(original);
    CHECK(!before);
    CHECK(inside);
    CHECK(after == FLUSHING_UPWARD);
}

static void test_workers_of_a_pool_made_in_a_changed_environment_compute_in_the_defined_one(void) {
    bool right[60] = { false };
    threads *pool = NULL;
    const unsigned original = control_get();
    control_set(FLUSHING_UPWARD);
    const int status = threads_new(4, &pool);
    const bool entered = threads_enter(pool);
    const fp_env saved = fp_enter();
    threads_run(pool, environment_chunk, right, PN_ARRAY_LEN(right));
    fp_leave(saved);
    control_set(original);
    CHECK(status == 0 && entered);
    for (size_t i = 0; i < PN_ARRAY_LEN(right); i++) CHECK(right[i]);
    threads_leave(pool);
    threads_free(pool);
}

#endif

int main(void) {
    RUN(test_run_on_any_number_of_threads_calls_each_chunk_once);
    RUN(test_run_without_a_pool_calls_each_chunk_in_order);
    RUN(test_run_of_many_small_jobs_in_a_row_loses_none);
    RUN(test_run_on_more_threads_than_cores_ends);
    RUN(test_run_of_a_million_chunks_calls_each_once);
    RUN(test_run_after_a_pause_wakes_the_workers);
    RUN(test_run_on_two_threads_uses_both);
    RUN(test_enter_while_another_has_the_pool_is_refused);
    RUN(test_callers_from_several_threads_each_get_all_of_their_chunks);
    RUN(test_free_without_a_run_and_of_nothing_is_fine);
    RUN(test_forked_child_without_the_workers_computes_alone_and_frees);
    RUN(test_worker_that_stalled_is_left_out_and_comes_back);
    RUN(test_one_worker_that_stalled_does_not_stop_the_others);
    RUN(test_caller_that_lost_its_core_does_without_a_worker_for_a_while);
    RUN(test_pool_whose_worker_is_on_leave_can_be_freed_and_forked);
#ifdef HAS_FP_CONTROL
    RUN(test_fp_enter_in_a_changed_environment_gives_the_defined_one_until_fp_leave);
    RUN(test_workers_of_a_pool_made_in_a_changed_environment_compute_in_the_defined_one);
#endif
    return check_report();
}
