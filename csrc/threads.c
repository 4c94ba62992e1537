/* threads.c - chunks from one atomic word; spin for microseconds, then sleep; leave for who costs more.   (rank 3)
 *
 * The word holds {epoch, n, next}. A worker takes a chunk by compare-and-swap on the whole word, so it can only take
 * one of the job that is current at that moment, and while it owns an unfinished chunk that job cannot end: only then
 * does it read the job's function. A worker that was descheduled between jobs therefore never touches a stale job.
 *
 * A worker that loses its core inside of a chunk makes the caller wait for a slice of the scheduler, milliseconds for
 * a chunk of microseconds, and the chunk cannot be taken from it: it may still write. The caller itself may share a
 * core with another program while a worker has the idle one. So the caller keeps an account for each worker: what it
 * saves (the time that the caller would have needed for its chunks), what it costs (waits for it; time the caller had
 * no core). One that costs more than half of what it saves is sent on leave, asleep and holding no core, for a multiple
 * of the last cost, longer each time that it comes back in vain. So two threads beside a busy program do about as well
 * as one, and a single bad core of many is left out alone. Time decides only who computes. */
#include "threads.h"

#include "status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
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

_Static_assert(THREADS_CHUNKS_MAX == 1 << 20, "n and next have 20 bits each in the word");
enum { CHUNK_BITS = 20, SPINS_PER_LOOK = 64, SPINS_OF_CALLER = 2000 };
#define CHUNK_MASK ((1u << CHUNK_BITS) - 1)

/* All in nanoseconds, but for LEAVE_FACTOR. */
enum {
    SPIN_NS = 200000,  /* an idle worker's, before it sleeps: longer than what lies between two steps of a decode */
    STALL_NS = 300000, /* the caller's wait for a chunk, beyond a few chunks' time, that says: it has no core */
    NAP_NS = 50000,    /* between looks at a stalled chunk: an idle core may be given the worker that waits for one */
    LOOK_NS = 4000000, /* between the caller's looks at its own CPU time */
    LOST_NS = 1000000, /* less is no loss of the core but interrupts */
    WINDOW_NS = 64000000, /* accounts reach back this far, halved beyond */
    LEAVE_MAX_NS = 500000000,
    LEAVE_FACTOR = 16, /* leave for so many times the cost: a vain return costs at most 6 % */
};

typedef struct worker {
    _Alignas(64) atomic_bool busy; /* the worker's: it may hold a chunk */
    atomic_bool away;              /* the caller's: take no chunk, sleep until called back */
    bool late;                     /* the rest is the caller's: this job waits for it */
    uint64_t saved_before;         /* the pool's `saved` where this account begins */
    uint64_t lost;                 /* what the worker cost since */
    uint64_t back_at, leave;       /* end and length of the last leave */
    threads *pool;
    pthread_t thread;
} worker;

struct threads {
    _Alignas(64) _Atomic uint64_t word; /* epoch << 40 | n << 20 | next */
    _Alignas(64) atomic_size_t done;    /* finished chunks of the current job */
    _Alignas(64) threads_fn fn;         /* written only while no chunk is out */
    void *context;
    _Alignas(64) uint64_t saved;              /* by one worker, in all; like the next ones for the caller alone */
    uint64_t looked_at, cpu_then, saved_then; /* at the last look: clock, CPU time of the caller's thread, `saved` */
    int n_away;                               /* workers on leave */
    _Alignas(64) atomic_int sleepers;
    atomic_bool stop;
    atomic_flag taken; /* by threads_enter */
    pid_t owner;       /* the process that has the workers */
    int n_workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake, recall; /* a job is there; a leave is over */
    worker workers[];
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

static uint64_t u64_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* CPU time of the calling thread. */
static uint64_t own_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Take and run chunks of whatever job is current until none is left; returns how many. */
static size_t run_chunks(threads *pool) {
    size_t n_run = 0;
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    for (;;) {
        const uint32_t next = (uint32_t)word & CHUNK_MASK, n = (uint32_t)(word >> CHUNK_BITS) & CHUNK_MASK;
        if (next >= n) return n_run;
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        pool->fn(pool->context, next);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        n_run++;
        word = atomic_load_explicit(&pool->word, memory_order_acquire);
    }
}

static bool has_chunk(const threads *pool) {
    const uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    return ((uint32_t)word & CHUNK_MASK) < ((uint32_t)(word >> CHUNK_BITS) & CHUNK_MASK);
}

static bool is_away(const worker *w) {
    return atomic_load_explicit(&w->away, memory_order_relaxed);
}

static void sleep_until_work(worker *w) {
    threads *pool = w->pool;
    pthread_mutex_lock(&pool->mutex);
    while (!atomic_load(&pool->stop) && is_away(w)) pthread_cond_wait(&pool->recall, &pool->mutex);
    /* Sequentially consistent on both sides (see publish): either the publisher sees the sleeper, or the sleeper
     * sees the job. Who is on leave is not counted: no job wakes it. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (!atomic_load(&pool->stop) && !is_away(w) && !has_chunk(pool)) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument) {
    worker *w = argument;
    threads *pool = w->pool;
    fp_enter();
    uint64_t idle_since = now_ns();
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (has_chunk(pool) && !is_away(w)) {
            atomic_store_explicit(&w->busy, true, memory_order_relaxed);
            run_chunks(pool);
            atomic_store_explicit(&w->busy, false, memory_order_relaxed);
            idle_since = now_ns();
        }
        for (int i = 0; i < SPINS_PER_LOOK && !has_chunk(pool); i++) cpu_relax();
        if (is_away(w) || (!has_chunk(pool) && now_ns() - idle_since > SPIN_NS)) {
            sleep_until_work(w);
            idle_since = now_ns();
        }
    }
    return NULL;
}

int threads_new(int n_threads, threads **out) {
    const size_t n_workers = n_threads > 1 ? (size_t)n_threads - 1 : 0;
    *out = NULL;
    const size_t bytes = (sizeof(threads) + n_workers * sizeof(worker) + 63) & ~(size_t)63;
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
    pool->n_away = 0;
    pool->saved = pool->looked_at = pool->cpu_then = pool->saved_then = 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->recall, NULL);
    /* Signals belong to the host program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i < n_workers; i++) {
        worker *w = &pool->workers[i];
        memset(w, 0, sizeof *w);
        atomic_init(&w->busy, false);
        atomic_init(&w->away, false);
        w->pool = pool;
        if (pthread_create(&w->thread, NULL, worker_main, w)) break;
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
        pthread_cond_broadcast(&pool->recall);
        pthread_mutex_unlock(&pool->mutex);
        for (int i = 0; i < pool->n_workers; i++) pthread_join(pool->workers[i].thread, NULL);
        pthread_cond_destroy(&pool->recall);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->mutex);
    }
    free(pool);
}

/* ---- leave ---------------------------------------------------------------------------------------------------- */

static void send_away(threads *pool, worker *w) {
    if (is_away(w)) return;
    atomic_store_explicit(&w->away, true, memory_order_relaxed);
    pool->n_away++;
}

/* Enter a cost into the worker's account; send it on leave if that is more than half of what it saved. */
static void charge(threads *pool, worker *w, uint64_t cost, uint64_t now) {
    uint64_t saved = pool->saved - w->saved_before;
    for (; saved > WINDOW_NS; saved /= 2) w->lost /= 2;
    w->saved_before = pool->saved - saved;
    w->lost += cost;
    if (w->lost <= saved / 2) return;
    uint64_t leave = cost * LEAVE_FACTOR;
    if (now - w->back_at < w->leave && leave < 2 * w->leave) leave = 2 * w->leave; /* it came back in vain */
    if (leave > LEAVE_MAX_NS) leave = LEAVE_MAX_NS;
    w->leave = leave;
    w->back_at = now + leave;
    send_away(pool, w);
}

/* Note where the caller's next stretch begins. */
static void look(threads *pool, uint64_t now) {
    pool->looked_at = now;
    pool->cpu_then = own_cpu_ns();
    pool->saved_then = pool->saved;
}

/* Whose leave is over comes back, with a fresh account. */
static void call_back(threads *pool, uint64_t now) {
    const int n_before = pool->n_away;
    for (int i = 0; i < pool->n_workers; i++) {
        worker *w = &pool->workers[i];
        if (!is_away(w) || now < w->back_at) continue;
        w->lost = 0;
        w->saved_before = pool->saved;
        atomic_store_explicit(&w->away, false, memory_order_relaxed);
        pool->n_away--;
    }
    if (pool->n_away == n_before) return;
    look(pool, now); /* what was lost without them is not their fault */
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->recall);
    pthread_mutex_unlock(&pool->mutex);
}

/* Had the caller its core since the last look? If not, a worker less may leave it a free one. Each one that is away
 * already makes it less likely that another one helps. */
static void check_own_core(threads *pool, uint64_t now) {
    const uint64_t wall = now - pool->looked_at, cpu = own_cpu_ns() - pool->cpu_then;
    const uint64_t lost = wall > cpu ? wall - cpu : 0;
    const bool had_core = lost < LOST_NS || lost < wall / 8;
    if (!had_core) pool->saved -= u64_min(lost, pool->saved - pool->saved_then); /* it seemed to be so slow itself */
    look(pool, now);
    for (int i = pool->n_workers; !had_core && i-- > 0;) {
        if (is_away(&pool->workers[i])) continue;
        charge(pool, &pool->workers[i], lost / (1 + (uint64_t)pool->n_away), now);
        return;
    }
}

bool threads_enter(threads *pool) {
    if (pool->n_workers == 0 || pool->owner != getpid()) return false;
    if (atomic_flag_test_and_set_explicit(&pool->taken, memory_order_acquire)) return false;
    look(pool, now_ns());
    return true;
}

void threads_leave(threads *pool) {
    const uint64_t now = now_ns();
    if (pool->n_away < pool->n_workers && now - pool->looked_at > LOST_NS) check_own_core(pool, now);
    atomic_flag_clear_explicit(&pool->taken, memory_order_release);
}

/* ---- jobs ----------------------------------------------------------------------------------------------------- */

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

static void run_alone(threads_fn fn, void *context, size_t n) {
    for (size_t i = 0; i < n; i++) fn(context, i);
}

static bool is_done(const threads *pool, size_t n) {
    return atomic_load_explicit(&pool->done, memory_order_acquire) >= n;
}

/* Wait for the chunks of others without a core: they get this one, or the idle one that it becomes. */
static void wait_for_stalled(threads *pool, size_t n, uint64_t since) {
    for (int i = 0; i < pool->n_workers; i++) {
        worker *w = &pool->workers[i];
        w->late = atomic_load_explicit(&w->busy, memory_order_relaxed) && !is_away(w);
    }
    while (!is_done(pool, n)) {
        const struct timespec nap = { 0, NAP_NS };
        nanosleep(&nap, NULL);
    }
    const uint64_t now = now_ns();
    for (int i = 0; i < pool->n_workers; i++)
        if (pool->workers[i].late) charge(pool, &pool->workers[i], now - since, now);
    look(pool, now); /* the wait is charged already */
}

/* All chunks are out; the last ones may still be running elsewhere. `patience` is how long that is nothing unusual. */
static void wait_for_others(threads *pool, size_t n, uint64_t since, uint64_t patience) {
    for (int spins = 0; spins < SPINS_OF_CALLER; spins++) {
        if (is_done(pool, n)) return;
        cpu_relax();
    }
    while (!is_done(pool, n)) {
        if (now_ns() - since > patience) {
            wait_for_stalled(pool, n, since);
            return;
        }
        sched_yield(); /* on a machine with too many threads the chunk's may be waiting for this core */
    }
}

void threads_run(threads *pool, threads_fn fn, void *context, size_t n) {
    if (!pool || n < 2) {
        run_alone(fn, context, n);
        return;
    }
    const uint64_t started = now_ns();
    if (pool->n_away) call_back(pool, started);
    if (pool->n_away < pool->n_workers && started - pool->looked_at > LOOK_NS) check_own_core(pool, started);
    if (pool->n_away == pool->n_workers) {
        run_alone(fn, context, n);
        return;
    }
    publish(pool, fn, context, n);
    const size_t n_own = run_chunks(pool);
    const uint64_t ended = now_ns(), time = ended - started, per_chunk = time / (n_own ? n_own : 1);
    const uint64_t n_present = (uint64_t)(pool->n_workers - pool->n_away);
    wait_for_others(pool, n, ended, STALL_NS + 4 * per_chunk);
    /* What one of the others spared the rest: its share of the chunks, at the pace of all but itself. */
    if (n_own) pool->saved += u64_min((n - n_own) * per_chunk, time * n_present) / (n_present * n_present);
}
