/* bandwidth.c - a buffer in, bytes per second out.                                                        (rank 4)
 *
 * An honest limit reads as the products read the weights (memory that asks for huge pages, small chunks from the pool,
 * all threads), and does nothing else with them. Which loop is fastest differs between machines: on one with AVX2 the
 * same buffer gave 12 GB/s with plain 16-byte loads, 15 with software prefetch, and 16 with 32-byte loads as well. So
 * several ways are tried in turn, and the fastest is the limit.
 *
 * The one thing to know first: every pass adds up all words, and the sum is checked. A pass that skipped something
 * would be a failure, not a record. */
#include "bandwidth.h"

#include "cpu.h"
#include "map.h"
#include "pantheon.h"
#include "status.h"
#include "threads.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    CHUNK_BYTES = 48 * 1024, /* of weights: matmul.c takes the whole groups of rows that fit, at least one */
    PREFETCH_AHEAD = 4096,   /* bytes; 2 to 16 KiB measured the same */
    RUNS_MAX = 1000,
    THREADS_MAX = 256,
};
#define BYTES_MIN     (UINT64_C(1) << 20)
#define BYTES_MAX     (UINT64_C(1) << 35) /* chunks are numbered in 20 bits */
#define BYTES_PER_RUN (UINT64_C(64) << 20)

/* ---- the loops --------------------------------------------------------------------------------------------- */

/* 16 bytes, on every machine; eight sums that do not wait for each other. */
typedef uint64_t pair __attribute__((vector_size(16), may_alias));

static uint64_t sum_of(const pair *sums, size_t n) {
    pair all = sums[0];
    for (size_t i = 1; i < n; i++) all += sums[i];
    return all[0] + all[1];
}

static uint64_t read_plain(const uint8_t *bytes, size_t size) {
    pair sums[8] = { { 0 } };
    for (size_t at = 0; at < size; at += sizeof sums) {
        const pair *from = (const pair *)(const void *)(bytes + at);
        for (size_t i = 0; i < PN_ARRAY_LEN(sums); i++) sums[i] += from[i];
    }
    return sum_of(sums, PN_ARRAY_LEN(sums));
}

/* A prefetch beyond the end of the buffer asks for nothing and cannot fault. */
static uint64_t read_prefetch(const uint8_t *bytes, size_t size) {
    pair sums[8] = { { 0 } };
    for (size_t at = 0; at < size; at += sizeof sums) {
        const pair *from = (const pair *)(const void *)(bytes + at);
        __builtin_prefetch((const void *)((uintptr_t)from + PREFETCH_AHEAD));
        __builtin_prefetch((const void *)((uintptr_t)from + PREFETCH_AHEAD + 64));
        for (size_t i = 0; i < PN_ARRAY_LEN(sums); i++) sums[i] += from[i];
    }
    return sum_of(sums, PN_ARRAY_LEN(sums));
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t bandwidth_read_avx2(const uint8_t *bytes, size_t size) {
    __m256i sums[8];
    uint64_t words[4];
    for (size_t i = 0; i < 8; i++) sums[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < size; at += sizeof sums) {
        const __m256i *from = (const __m256i *)(const void *)(bytes + at);
        for (size_t line = 0; line < sizeof sums; line += 64)
            __builtin_prefetch((const void *)((uintptr_t)from + PREFETCH_AHEAD + line));
        for (size_t i = 0; i < 8; i++) sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(from + i));
    }
    for (size_t i = 1; i < 8; i++) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
    _mm256_storeu_si256((__m256i *)(void *)words, sums[0]);
    return words[0] + words[1] + words[2] + words[3];
}

__attribute__((target("avx512f"))) static uint64_t bandwidth_read_avx512(const uint8_t *bytes, size_t size) {
    __m512i sums[4];
    uint64_t words[8];
    for (size_t i = 0; i < 4; i++) sums[i] = _mm512_setzero_si512();
    for (size_t at = 0; at < size; at += sizeof sums) {
        const uint8_t *from = bytes + at;
        for (size_t line = 0; line < sizeof sums; line += 64)
            __builtin_prefetch((const void *)((uintptr_t)from + PREFETCH_AHEAD + line));
        for (size_t i = 0; i < 4; i++) sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(from + 64 * i));
    }
    for (size_t i = 1; i < 4; i++) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
    _mm512_storeu_si512(words, sums[0]); /* the compiler's own sum of lanes is one of signed numbers */
    return words[0] + words[1] + words[2] + words[3] + words[4] + words[5] + words[6] + words[7];
}
#endif

static const bandwidth_way WAYS[] = {
    { "plain", read_plain, NULL },
    { "prefetch", read_prefetch, NULL },
#if defined(__x86_64__)
    { "avx2", bandwidth_read_avx2, cpu_has_avx2 },
    { "avx512", bandwidth_read_avx512, cpu_has_avx512vnni },
#endif
};

const bandwidth_way *bandwidth_way_at(size_t index) {
    return index < PN_ARRAY_LEN(WAYS) ? &WAYS[index] : NULL;
}

static bool way_usable(size_t index) {
    return !WAYS[index].usable || WAYS[index].usable();
}

/* ---- passes over the buffer -------------------------------------------------------------------------------- */

typedef struct pass {
    uint8_t *bytes;
    size_t size, n_chunks;
    const bandwidth_way *way;
    _Atomic uint64_t sum;
} pass;

static size_t chunk_size(const pass *p, size_t chunk) {
    return size_min(CHUNK_BYTES, p->size - chunk * CHUNK_BYTES);
}

/* Written by the threads that will read, as weights are packed; words that differ, so that no sum is right by
 * chance. */
static void fill_chunk(void *context, size_t chunk) {
    pass *p = context;
    uint64_t *words = (uint64_t *)(void *)(p->bytes + chunk * CHUNK_BYTES);
    const size_t n = chunk_size(p, chunk) / sizeof *words;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        words[i] = (chunk * CHUNK_BYTES + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        sum += words[i];
    }
    atomic_fetch_add_explicit(&p->sum, sum, memory_order_relaxed);
}

static void read_chunk(void *context, size_t chunk) {
    pass *p = context;
    const uint64_t sum = p->way->read(p->bytes + chunk * CHUNK_BYTES, chunk_size(p, chunk));
    atomic_fetch_add_explicit(&p->sum, sum, memory_order_relaxed);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes per second of one run: passes over the buffer, enough of them for the clock. */
static int run_once(pass *p, const bandwidth_way *way, threads *pool, uint64_t expected, double *rate) {
    const size_t n_passes = 1 + (size_t)(BYTES_PER_RUN / p->size);
    atomic_store(&p->sum, 0);
    p->way = way;
    const double started = now_s();
    for (size_t i = 0; i < n_passes; i++) threads_run(pool, read_chunk, p, p->n_chunks);
    const double seconds = now_s() - started;
    if (atomic_load(&p->sum) != expected * n_passes)
        return pn_fail(PN_ERR_NUMERIC, "bandwidth: reading %zu bytes (%s) gave a wrong sum: the memory is faulty",
                       p->size, way->name);
    *rate = (double)p->size * (double)n_passes / (seconds > 0 ? seconds : 1e-9);
    return PN_OK;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Every way once per run, in turn, so that a drift of the machine meets all alike; run -1 only warms up. */
static int measure(pass *p, threads *pool, int runs, double *rates, double *best) {
    const uint64_t expected = atomic_load(&p->sum);
    for (int run = -1; run < runs; run++)
        for (size_t way = 0; way < PN_ARRAY_LEN(WAYS); way++) {
            double rate = 0;
            if (!way_usable(way)) continue;
            PN_TRY(run_once(p, &WAYS[way], pool, expected, &rate));
            if (run >= 0) rates[way * (size_t)runs + (size_t)run] = rate;
        }
    *best = 0;
    for (size_t way = 0; way < PN_ARRAY_LEN(WAYS); way++) {
        const double rate = way_usable(way) ? median(rates + way * (size_t)runs, runs) : 0;
        if (rate > *best) *best = rate;
    }
    return PN_OK;
}

/* ---- the whole way ----------------------------------------------------------------------------------------- */

/* In memory that asks for huge pages, as weights do. */
static uint8_t *buffer_new(size_t size) {
    uint8_t *memory = memory_new(size);
    if (memory && size >= HUGE_PAGE) memory_join_pages(memory, size);
    return memory;
}

static int check_arguments(int n_threads, uint64_t bytes, int runs, const double *bytes_per_s) {
    if (!bytes_per_s) return pn_fail(PN_ERR_ARGUMENT, "bandwidth: bytes_per_s is NULL");
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "bandwidth: n_threads is %d; it must be between 1 and %d", n_threads,
                       THREADS_MAX);
    if (runs < 1 || runs > RUNS_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "bandwidth: runs is %d; it must be between 1 and %d", runs, RUNS_MAX);
    if (bytes < BYTES_MIN || bytes > BYTES_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "bandwidth: bytes is %llu; it must be between %llu and %llu",
                       (unsigned long long)bytes, (unsigned long long)BYTES_MIN, (unsigned long long)BYTES_MAX);
    return PN_OK;
}

int pn_read_bandwidth(int n_threads, uint64_t bytes, int runs, double *bytes_per_s) {
    PN_TRY(check_arguments(n_threads, bytes, runs, bytes_per_s));
    const size_t size = (size_t)(bytes / BANDWIDTH_BLOCK * BANDWIDTH_BLOCK);
    pass p = { .bytes = buffer_new(size), .size = size, .n_chunks = (size + CHUNK_BYTES - 1) / CHUNK_BYTES };
    double *rates = malloc(PN_ARRAY_LEN(WAYS) * (size_t)runs * sizeof *rates);
    threads *pool = NULL;
    int status = PN_OK;
    atomic_init(&p.sum, 0);
    if (!p.bytes || !rates) status = pn_fail(PN_ERR_MEMORY, "bandwidth: no memory for a buffer of %zu bytes", size);
    if (status == PN_OK) status = threads_new(n_threads, &pool);
    if (status == PN_OK) {
        threads *mine = threads_enter(pool) ? pool : NULL; /* NULL for one thread */
        threads_run(mine, fill_chunk, &p, p.n_chunks);
        status = measure(&p, mine, runs, rates, bytes_per_s);
        if (mine) threads_leave(mine);
    }
    threads_free(pool);
    free(rates);
    free(p.bytes);
    return status;
}
