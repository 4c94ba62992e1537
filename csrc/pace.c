/* pace.c - a running estimate of luck and of costs, and the choice that they suggest.                         (rank 1)
 *
 * Reads no clock and no ids: it is told what happened. Nothing here can change what is generated, only how fast.
 *
 * A pass over one token and k guesses yields 1 + P1 + P1 P2 + ... + P1..Pk tokens and costs plain + k extra seconds,
 * where Pi is the chance of guess i if those before it came true. The k with the most tokens per second is chosen.
 *
 * Two things to know first. A guess that is not evaluated is still compared with what comes: so the chances of text
 * that does not repeat itself are learned, and learned anew when it begins to, for nothing. And costs are measured,
 * because they differ widely: a further token costs a sixth of a pass where memory is the limit, and a whole one where
 * multiplications are. */
#include "pace.h"

static const double LEARN = 1.0 / 16, TIME = 1.0 / 8, TIME_EXTRA = 1.0 / 2, FORGET = 1.0 / 1024;
static const double EXTRA_AT_FIRST = 0.25; /* of a plain pass: what is assumed until it is measured              */
static const double GAIN_MIN = 1.05;       /* a smaller gain may be an error of the estimate                     */
static const double PLAIN_MAX = 2;         /* a plain pass that takes so many times the usual was interrupted    */

/* A match of length 2, 3, 4-5, 6-8, 9-16, more; and how often a guess after it comes true, until something is known:
 * low where matches are mere chance, so that ordinary text costs nothing from its first token on. */
static const size_t CLASS_END[PACE_CLASSES] = { 2, 3, 5, 8, 16, SIZE_MAX };
static const double HIT_AT_FIRST[PACE_CLASSES] = { 0.15, 0.3, 0.5, 0.7, 0.8, 0.9 };

static size_t class_of(size_t match) {
    size_t c = 0;
    while (match > CLASS_END[c]) c++;
    return c;
}

void pace_init(pace *p) {
    *p = (pace){ 0 };
    for (size_t c = 0; c < PACE_CLASSES; c++) p->hit[c] = HIT_AT_FIRST[c];
}

void pace_learn(pace *p, size_t match, bool hit) {
    double *estimate = &p->hit[class_of(match)];
    *estimate += ((hit ? 1 : 0) - *estimate) * LEARN;
}

static double clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

void pace_time(pace *p, size_t n_guesses, double seconds) {
    if (!(seconds > 0)) return; /* a clock that stands still tells nothing */
    if (!(p->plain > 0)) {      /* with guesses in it the first pass cannot be told apart */
        if (n_guesses) return;
        p->plain = seconds;
        p->extra = EXTRA_AT_FIRST * seconds;
        return;
    }
    if (n_guesses == 0) {
        p->plain += (clamp(seconds, 0, PLAIN_MAX * p->plain) - p->plain) * TIME;
        p->extra += (EXTRA_AT_FIRST * p->plain - p->extra) * FORGET; /* one unlucky figure must not stand forever */
        return;
    }
    /* No token costs more than a pass of its own; if it seems to, the pass was interrupted. */
    const double extra = clamp((seconds - p->plain) / (double)n_guesses, 0, p->plain);
    p->extra += (extra - p->extra) * TIME_EXTRA;
}

size_t pace_choose(const pace *p, size_t match, size_t most) {
    if (!(p->plain > 0)) return 0;
    size_t best_k = 0;
    double chance = 1, tokens = 1, best = GAIN_MIN / p->plain;
    for (size_t k = 1; k <= most; k++) {
        chance *= p->hit[class_of(match + k - 1)];
        tokens += chance;
        const double rate = tokens / (p->plain + (double)k * p->extra);
        if (rate < best) continue;
        best = rate;
        best_k = k;
    }
    return best_k;
}
