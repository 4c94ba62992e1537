/* forward_layers.h - one batch of tokens through all layers.                                              (rank 10)
 *
 * What forward.c and forward_layers.c share; nobody else needs it. */
#ifndef PN_FORWARD_LAYERS_H
#define PN_FORWARD_LAYERS_H

#include "scratch.h"
#include "state.h"

#include <time.h>

/* One token of a batch. */
typedef struct row {
    pn_state *state;
    uint32_t token;
    size_t position;
    float *logits; /* where its logits go, or NULL */
} row;

/* Consecutive tokens of one state: rows [row, row + n). */
typedef struct tile {
    size_t row, n;
} tile;

/* What the caller sees of a running evaluation. */
typedef struct watch {
    const pn_slice *slices;
    size_t n_slices;
    pn_progress_callback progress;
    void *user_data;
    size_t done, total; /* tokens */
    struct timespec last;
} watch;

typedef struct batch {
    pn_model *model;
    scratch *s;
    threads *pool; /* entered, or NULL */
    row rows[BATCH_MAX];
    size_t n;
    tile tiles[BATCH_MAX]; /* for attention */
    size_t n_tiles;
    size_t n_parts, part_heads; /* the query heads of a key head are handled in parts of so many */
    size_t n_spans;             /* of the longest cache */
    size_t partial_floats;      /* of one job's results over all spans, at most */
    size_t layer;
    size_t expert;               /* whose turn it is... */
    uint16_t members[BATCH_MAX]; /* ...and the rows that chose it: [n_members] */
    size_t n_members;
    bool wants_logits;
    bool quantize; /* the next product wants its activations in 8 bits */
    watch *watch;
} batch;

/* Cut the rows of a filled batch into tiles for attention. */
void batch_tile(batch *b);
/* Run it: keys and values of its rows go to the caches of their states, logits to where the rows say. Errors:
 * CANCELLED. */
int batch_run(batch *b);
/* Tokens whose largest product takes about a tenth of a second on one core: between products a cancel is seen. */
size_t tokens_at_a_time(size_t macs_per_token, size_t most);

#endif
