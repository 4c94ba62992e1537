/* threads.h - a pool that runs one function over the chunks [0, n) and comes back when all are done.     (rank 3)
 *
 * Who computes a chunk never changes its result: chunks are fixed by the caller, only their owner varies. The caller
 * works too, so a pool whose workers sleep, are descheduled, or are gone (after fork) is slower but never stuck: a
 * worker that holds no chunk holds up nobody. One that does hold up the caller, or takes its core, is left out for up
 * to half a second at a time: the jobs meanwhile run on the threads that remain, the caller alone if need be. */
#ifndef PN_THREADS_H
#define PN_THREADS_H

#include "common.h"

enum { THREADS_CHUNKS_MAX = 1 << 20 };

typedef struct threads threads;
typedef void (*threads_fn)(void *context, size_t chunk);

/* n_threads in all, the caller included (1: no worker is made). PN_OK, or PN_ERR_MEMORY if not even the pool itself
 * could be made; fewer workers than asked for is not an error. */
int threads_new(int n_threads, threads **out);
void threads_free(threads *pool); /* NULL is fine; not during a run */

/* Take the pool for a sequence of runs. False if another caller has it (or in a forked child): run with NULL then. */
bool threads_enter(threads *pool);
void threads_leave(threads *pool);

/* Call fn(context, chunk) for each chunk in [0, n), on all threads if `pool` (entered by this caller) is not NULL.
 * All effects of the chunks are visible to the caller afterwards. n < THREADS_CHUNKS_MAX. */
void threads_run(threads *pool, threads_fn fn, void *context, size_t n);

/* The floating-point environment in which every result is defined: round to nearest, no flushing of subnormals.
 * A host program may have changed it in the calling thread. fp_enter saves and sets, fp_leave restores. */
typedef struct fp_env {
    uint32_t control;
} fp_env;
fp_env fp_enter(void);
void fp_leave(fp_env saved);

#endif
