/* rope.h - rotary positions: the frequencies of a model, the angles of a token, the rotation of a head.     (rank 6)
 *
 * arXiv:2104.09864. A model has up to four tables of frequencies: of global layers and of local ones, each for short
 * and for long contexts. Which of the latter two counts is chosen once, by the window of a state. */
#ifndef PN_ROPE_H
#define PN_ROPE_H

#include "arch.h"

typedef enum rope_layers { ROPE_GLOBAL, ROPE_LOCAL, ROPE_LAYERS } rope_layers;

typedef struct rope_table {
    double *frequencies; /* [R/2] radians per position, owned  */
    double magnitude;    /* cosines and sines are multiplied by it */
} rope_table;

typedef struct rope {
    size_t n_pairs; /* R/2 */
    bool interleaved;
    size_t n_layers;                   /* 1: local layers rotate as global ones do; or ROPE_LAYERS */
    uint32_t short_max;                /* the longest window for which the short tables hold       */
    rope_table tables[ROPE_LAYERS][2]; /* [.][long?]; without factors only the short ones          */
    bool has_long;
} rope;

/* The factors of a file by which frequencies are divided, [R/2] each or NULL: at any length, or at one of the two. */
typedef struct rope_factors {
    const float *any, *long_context, *short_context;
} rope_factors;

/* Make the tables. Errors: CORRUPT (a factor out of range, or one that makes angles larger than sincos_f64 takes; one
 * of long and short without the other), METADATA (the same of the scaling's factor), UNSUPPORTED (factors for any
 * length beside those two), MEMORY; then rope_free is due, too. */
int rope_init(rope *r, const hparams *hp, const rope_factors *factors);
void rope_free(rope *r);

/* Does a state of this window take the long tables? */
bool rope_is_long(const rope *r, size_t window);
/* The angles of a position for each kind of layers: cosine[n_layers, R/2], sine alike. */
void rope_angles(const rope *r, bool is_long, size_t position, float *cosine, float *sine);
/* Rotate the pairs of each head of x[n_heads, E] in place: (a, b) -> (a cos - b sin, a sin + b cos). Elements from R on
 * stay. cosine[R/2] and sine[R/2] are those of one kind of layers. */
void rope_rotate(const rope *r, float *x, size_t n_heads, size_t head_size, const float *cosine, const float *sine);

#endif
