/* pace.h - how many guesses are worth a try: from how often they came true, and what a pass costs.          (rank 1) */
#ifndef PN_PACE_H
#define PN_PACE_H

#include "common.h"

enum { PACE_CLASSES = 6 };

typedef struct pace {
    double hit[PACE_CLASSES]; /* share of guesses that came true, by the length of the match they came from */
    double plain;             /* seconds of a pass over one token; 0: none was timed yet                    */
    double extra;             /* seconds that each further token adds to a pass                             */
} pace;

void pace_init(pace *p);
/* A guess was right or not, whether it was evaluated or not. match: ids that agreed before it. */
void pace_learn(pace *p, size_t match, bool hit);
/* A pass over one token and n_guesses guesses took so long. */
void pace_time(pace *p, size_t n_guesses, double seconds);
/* How many of at most `most` guesses to evaluate after a match of so many ids: 0 unless it gains clearly. */
size_t pace_choose(const pace *p, size_t match, size_t most);

#endif
