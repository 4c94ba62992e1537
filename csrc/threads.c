/* threads.c - chunks from one atomic word; spin for microseconds, then sleep.                            (rank 3)
 *
 * The word holds {epoch, n, next}. A worker takes a chunk by compare-and-swap on the whole word, so it can only take
 * one of the job that is current at that moment, and while it owns an unfinished chunk that job cannot end: only then
 * does it read the job's function. A worker that was descheduled between jobs therefore never touches a stale job. */
#include "threads.h"

#include "status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define cpu_relax() _mm_pause()
#elif defined(__aarch64__)
#define cpu_relax() __asm__ __volatile__("yield")
#else
#define cpu_relax() ((void)0)
#endif

enum { CHUNK_BITS = 20, SPIN_NS = 60000, SPINS_PER_LOOK = 64 };
#define CHUNK_MASK ((1u << CHUNK_BITS) - 1)

struct threads {
    _Alignas(64) _Atomic uint64_t word; /* epoch << 40 | n << 20 | next */
    _Alignas(64) atomic_size_t done;    /* finished chunks of the current job */
    _Alignas(64) threads_fn fn;         /* written only while no chunk is out */
    void *context;
    _Alignas(64) atomic_int sleepers;
    atomic_bool stop;
    atomic_flag taken; /* by threads_enter */
    pid_t owner;       /* the process that has the workers */
    int n_workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t workers[];
};

fp_env fp_enter(void) {
#if defined(__x86_64__)
    const fp_env saved = { _mm_getcsr() };
    _mm_setcsr(0x1f80); /* all exceptions masked, nearest, no FTZ, no DAZ */
    return saved;
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)0));
    return (fp_env){ (uint32_t)fpcr };
#else
    return (fp_env){ 0 };
#endif
}

void fp_leave(fp_env saved) {
#if defined(__x86_64__)
    _mm_setcsr(saved.control);
#elif defined(__aarch64__)
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)saved.control));
#else
    (void)saved;
#endif
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Take and run chunks of whatever job is current until none is left; returns whether there was any. */
static bool run_chunks(threads *pool) {
    bool any = false;
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    for (;;) {
        const uint32_t next = (uint32_t)word & CHUNK_MASK, n = (uint32_t)(word >> CHUNK_BITS) & CHUNK_MASK;
        if (next >= n) return any;
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        pool->fn(pool->context, next);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        any = true;
        word = atomic_load_explicit(&pool->word, memory_order_acquire);
    }
}

static bool has_chunk(const threads *pool) {
    const uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    return ((uint32_t)word & CHUNK_MASK) < ((uint32_t)(word >> CHUNK_BITS) & CHUNK_MASK);
}

static void sleep_until_work(threads *pool) {
    pthread_mutex_lock(&pool->mutex);
    /* Sequentially consistent on both sides (see publish): either the publisher sees the sleeper, or the sleeper
     * sees the job. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (!atomic_load(&pool->stop) && !has_chunk(pool)) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument) {
    threads *pool = argument;
    fp_enter();
    uint64_t idle_since = now_ns();
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (run_chunks(pool)) {
            idle_since = now_ns();
            continue;
        }
        for (int i = 0; i < SPINS_PER_LOOK && !has_chunk(pool); i++) cpu_relax();
        if (!has_chunk(pool) && now_ns() - idle_since > SPIN_NS) {
            sleep_until_work(pool);
            idle_since = now_ns();
        }
    }
    return NULL;
}

int threads_new(int n_threads, threads **out) {
    const size_t n_workers = n_threads > 1 ? (size_t)n_threads - 1 : 0;
    *out = NULL;
    const size_t bytes = (sizeof(threads) + n_workers * sizeof(pthread_t) + 63) & ~(size_t)63;
    threads *pool = aligned_alloc(64, bytes);
    if (!pool) return pn_fail(PN_ERR_MEMORY, "threads: no memory for a pool of %d", n_threads);
    atomic_init(&pool->word, 0);
    atomic_init(&pool->done, 0);
    pool->fn = NULL;
    pool->context = NULL;
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->stop, false);
    atomic_flag_clear(&pool->taken);
    pool->owner = getpid();
    pool->n_workers = 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    /* Signals belong to the host program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i < n_workers; i++) {
        if (pthread_create(&pool->workers[i], NULL, worker_main, pool)) break;
        pool->n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *out = pool;
    return PN_OK;
}

void threads_free(threads *pool) {
    if (!pool) return;
    if (pool->owner == getpid()) { /* a forked child has no workers to join */
        atomic_store(&pool->stop, true);
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
        for (int i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i], NULL);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->mutex);
    }
    free(pool);
}

bool threads_enter(threads *pool) {
    if (pool->n_workers == 0 || pool->owner != getpid()) return false;
    return !atomic_flag_test_and_set_explicit(&pool->taken, memory_order_acquire);
}

void threads_leave(threads *pool) {
    atomic_flag_clear_explicit(&pool->taken, memory_order_release);
}

static void publish(threads *pool, threads_fn fn, void *context, size_t n) {
    pool->fn = fn;
    pool->context = context;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    const uint64_t epoch = (atomic_load_explicit(&pool->word, memory_order_relaxed) >> (2 * CHUNK_BITS)) + 1;
    atomic_store(&pool->word, epoch << (2 * CHUNK_BITS) | (uint64_t)n << CHUNK_BITS);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

void threads_run(threads *pool, threads_fn fn, void *context, size_t n) {
    if (!pool || n < 2) {
        for (size_t i = 0; i < n; i++) fn(context, i);
        return;
    }
    publish(pool, fn, context, n);
    run_chunks(pool);
    /* All chunks are out; the last ones may still be running elsewhere. If their thread lost its core, give it this
     * one instead of burning it. */
    for (int spins = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < n; spins++) {
        if (spins < 2000)
            cpu_relax();
        else
            sched_yield();
    }
}
