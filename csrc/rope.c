/* rope.c - frequencies for each way of scaling, angles and rotation.                                       (rank 6)
 *
 * Tables are made at load in double, from functions of our own (mathf.h), so that no machine's libm decides a bit. */
#include "rope.h"

#include "mathf.h"
#include "status.h"

#include <math.h>
#include <stdlib.h>

#define TWO_PI 6.28318530717958647693

/* ---- frequencies ------------------------------------------------------------------------------------------- */

static double floor_f64(double x) {
    const double whole = (double)(int64_t)x; /* |x| is far below 2^63 here */
    return whole > x ? whole - 1 : whole;
}

static double clamp_f64(double x, double lo, double hi) {
    return x < lo ? lo : x > hi ? hi : x;
}

/* How much longer contexts may be than those of the training. A file with factors of its own need not say it. */
static double stretch_of(const hparams *hp, bool own_factors) {
    if (hp->rope_factor > 0) return (double)hp->rope_factor;
    return own_factors ? (double)hp->n_ctx / hp->rope_n_ctx : 1;
}

/* What all frequencies are divided by. */
static double divisor_of(const hparams *hp, bool own_factors) {
    return own_factors || hp->scaling == ROPE_SCALING_NONE ? 1 : stretch_of(hp, false);
}

/* The pair that turns `turns` times within the context of the training (arXiv:2309.00071, 3.2; as transformers and ggml
 * count it). */
static double yarn_pair(const hparams *hp, double turns) {
    return hp->n_rot * log_f64(hp->rope_n_ctx / (turns * TWO_PI)) / (2 * log_f64((double)hp->rope_base));
}

/* Which share of pair i keeps its frequency: those that turn often all, those that turn seldom none (ibid., "NTK by
 * parts"). */
static double yarn_kept(const hparams *hp, uint32_t i) {
    const double low = floor_f64(yarn_pair(hp, (double)hp->yarn_beta_fast));
    const double high = -floor_f64(-yarn_pair(hp, (double)hp->yarn_beta_slow));
    const double first = low > 0 ? low : 0, last = high < hp->n_rot - 1 ? high : hp->n_rot - 1;
    const double width = last - first > 0.001 ? last - first : 0.001;
    return (1 - clamp_f64((i - first) / width, 0, 1)) * (double)hp->yarn_ext_factor;
}

/* base^(-2i/R). */
static double frequency_of(const hparams *hp, double base, uint32_t i) {
    return exp_f64(-2.0 * i / hp->n_rot * log_f64(base));
}

/* Of global layers, but for the factors of a file. */
static double scaled_frequency(const hparams *hp, bool own_factors, uint32_t i) {
    const double plain = frequency_of(hp, (double)hp->rope_base, i), divisor = divisor_of(hp, own_factors);
    if (own_factors || hp->scaling != ROPE_SCALING_YARN) return plain / divisor;
    const double kept = yarn_kept(hp, i);
    return plain / divisor * (1 - kept) + plain * kept;
}

/* The factor of cosines and sines. With factors of its own, unless the file says it: sqrt(1 + ln s / ln n) for a
 * training of n tokens and s times longer contexts (arXiv:2402.13753). With yarn: the file's or 1 + 0.1 ln s
 * (arXiv:2309.00071, 3.4), times what the file may say besides. Both as in transformers, modeling_rope_utils.py. */
static double magnitude_of(const hparams *hp, bool own_factors) {
    const double stated = hp->rope_magnitude > 0 ? (double)hp->rope_magnitude : 1;
    const double s = stretch_of(hp, own_factors);
    if (own_factors && hp->rope_magnitude > 0) return stated;
    if (own_factors) return s > 1 && hp->rope_n_ctx > 1 ? sqrt(1 + log_f64(s) / log_f64(hp->rope_n_ctx)) : 1;
    if (hp->scaling != ROPE_SCALING_YARN) return stated;
    if (hp->yarn_magnitude > 0) return stated * (double)hp->yarn_magnitude;
    return s > 1 ? stated * (1 + 0.1 * log_f64(s)) : stated;
}

/* The angle of the last position is one that sincos_f64 takes. No plain frequency is above 1, nor is a position above
 * 2^26, so what is at fault is a divisor below 1: of all frequencies or this one's, whichever is less. */
static int check_angle(const hparams *hp, double frequency, double divisor, const char *name, uint32_t i,
                       double factor) {
    const double angle = frequency * (hp->n_ctx - 1);
    if (angle < ANGLE_LIMIT) return PN_OK;
    if (divisor < factor)
        return pn_fail(PN_ERR_METADATA,
                       "%s.rope.scaling.factor is %g: with %s.context_length %u an angle reaches %g; it must stay "
                       "below %g",
                       hp->spec->name, divisor, hp->spec->name, hp->n_ctx, angle, ANGLE_LIMIT);
    return pn_fail(PN_ERR_CORRUPT, "%s[%u] is %g: with %s.context_length %u an angle reaches %g; it must stay below %g",
                   name, i, factor, hp->spec->name, hp->n_ctx, angle, ANGLE_LIMIT);
}

static int fill_table(rope_table *table, const hparams *hp, bool own_factors, const char *name, const float *factors) {
    const uint32_t n = hp->n_rot / 2;
    table->frequencies = malloc(n * sizeof *table->frequencies);
    if (!table->frequencies) return pn_fail(PN_ERR_MEMORY, "load: no memory for %u frequencies", n);
    for (uint32_t i = 0; i < n; i++) {
        const double factor = factors ? (double)factors[i] : 1.0;
        if (!(factor >= 1e-2 && factor <= 1e6))
            return pn_fail(PN_ERR_CORRUPT, "%s[%u] is %g; it must be between 0.01 and 1e6", name, i, factor);
        table->frequencies[i] = scaled_frequency(hp, own_factors, i) / factor;
        PN_TRY(check_angle(hp, table->frequencies[i], divisor_of(hp, own_factors), name, i, factor));
    }
    return PN_OK;
}

/* Local layers with a base of their own: nothing is scaled. */
static int fill_local_table(rope_table *table, const hparams *hp) {
    const uint32_t n = hp->n_rot / 2;
    table->magnitude = 1;
    table->frequencies = malloc(n * sizeof *table->frequencies);
    if (!table->frequencies) return pn_fail(PN_ERR_MEMORY, "load: no memory for %u frequencies", n);
    for (uint32_t i = 0; i < n; i++) table->frequencies[i] = frequency_of(hp, (double)hp->local_rope_base, i);
    return PN_OK;
}

static int check_factors(const hparams *hp, const rope_factors *factors) {
    const bool has_long = factors->long_context, has_short = factors->short_context;
    if (has_long != has_short || (hp->scaling == ROPE_SCALING_LONGROPE && !has_long))
        return pn_fail(PN_ERR_CORRUPT,
                       "tensor rope_factors_%s.weight is missing: the file is damaged or was not "
                       "converted completely",
                       has_long ? "short" : "long");
    if (has_long && factors->any)
        return pn_fail(PN_ERR_UNSUPPORTED, "the file has rope_freqs.weight and rope_factors_long.weight; known is only "
                                           "one of them");
    return PN_OK;
}

int rope_init(rope *r, const hparams *hp, const rope_factors *factors) {
    const bool own_base = hp->window && hp->local_rope_base > 0;
    *r = (rope){ .n_pairs = hp->n_rot / 2,
                 .interleaved = hp->spec->rope == ROPE_INTERLEAVED,
                 .n_layers = own_base ? ROPE_LAYERS : 1,
                 .short_max = hp->rope_n_ctx,
                 .has_long = factors->long_context };
    PN_TRY(check_factors(hp, factors));
    const char *const names[2] = { r->has_long ? "rope_factors_short.weight" : "rope_freqs.weight",
                                   "rope_factors_long.weight" };
    const float *const values[2] = { r->has_long ? factors->short_context : factors->any, factors->long_context };
    for (int i = 0; i < (r->has_long ? 2 : 1); i++) {
        r->tables[ROPE_GLOBAL][i].magnitude = magnitude_of(hp, r->has_long);
        PN_TRY(fill_table(&r->tables[ROPE_GLOBAL][i], hp, r->has_long, names[i], values[i]));
        if (own_base) PN_TRY(fill_local_table(&r->tables[ROPE_LOCAL][i], hp));
    }
    return PN_OK;
}

void rope_free(rope *r) {
    for (int i = 0; i < ROPE_LAYERS; i++)
        for (int j = 0; j < 2; j++) free(r->tables[i][j].frequencies);
}

bool rope_is_long(const rope *r, size_t window) {
    return r->has_long && window > r->short_max;
}

/* ---- tokens ------------------------------------------------------------------------------------------------- */

void rope_angles(const rope *r, bool is_long, size_t position, float *cosine, float *sine) {
    for (size_t layers = 0; layers < r->n_layers; layers++) {
        const rope_table *table = &r->tables[layers][is_long];
        for (size_t i = 0; i < r->n_pairs; i++) {
            double s, c;
            sincos_f64((double)position * table->frequencies[i], &s, &c);
            *sine++ = (float)(s * table->magnitude);
            *cosine++ = (float)(c * table->magnitude);
        }
    }
}

void rope_rotate(const rope *r, float *x, size_t n_heads, size_t head_size, const float *cosine, const float *sine) {
    for (size_t h = 0; h < n_heads; h++, x += head_size)
        for (size_t i = 0; i < r->n_pairs; i++) {
            float *first = r->interleaved ? x + 2 * i : x + i;
            float *second = r->interleaved ? first + 1 : first + r->n_pairs;
            const float a = *first, b = *second;
            *first = a * cosine[i] - b * sine[i];
            *second = a * sine[i] + b * cosine[i];
        }
}
