/* state.h - one conversation: the ids that were evaluated, their cache, the last logits.                  (rank 9) */
#ifndef PN_STATE_H
#define PN_STATE_H

#include "kv.h"
#include "lookup.h"
#include "model.h"
#include "pace.h"

/* Guesses at the tokens to come, and what was evaluated of them ahead of time. Used by advance.c. */
typedef struct speculation {
    size_t most, n_row_capacity; /* guesses at a time; rows that there is memory for                     */
    bool always;                 /* every guess is tried                                                 */
    lookup index;                /* over a front part of the state's ids                                 */
    pace pace;
    uint32_t guesses[PN_GUESSES_MAX]; /* [n_guesses] for the places behind the state's tokens             */
    size_t n_guesses, match, n_used;  /* made; ids that the match had; how many of them came true so far  */
    float *rows;                      /* [n_rows, V] logits: of the token, then after each evaluated guess */
    size_t n_rows;
    size_t end;       /* the state's length after the last advance...                                     */
    uint64_t changes; /* ...and its count of changes: if either differs, guesses and rows are void        */
    uint64_t n_proposed, n_accepted;
} speculation;

struct pn_state {
    pn_model *model; /* retained */
    size_t window;   /* the most tokens that it may hold, 1 to the model's context */
    bool long_rope;  /* which tables of rotary frequencies hold for that window */
    atomic_flag busy;
    atomic_bool cancel; /* asked for, not yet taken */
    uint32_t *tokens;   /* [n_tokens] of capacity */
    size_t n_tokens, capacity;
    kv_cache kv;
    float *logits; /* [V] */
    bool has_logits;
    uint64_t changes;         /* grows with all that may write behind n_tokens or take tokens away */
    speculation *speculation; /* owned; NULL: off                                                  */
};

/* The state for the caller alone until state_leave; false if somebody has it. */
bool state_enter(pn_state *state);
void state_leave(pn_state *state);
/* Room for n tokens in all, in ids and cache: whoever asks is about to write behind n_tokens. */
int state_reserve(pn_state *state, size_t n);
/* Become what another state was, in one step that cannot fail: its ids [n] of `capacity`, its cache, which has room for
 * n positions, and its logits [V], or NULL where there are none. All are the state's now, what it had is freed. */
void state_adopt(pn_state *state, uint32_t *tokens, size_t n, size_t capacity, const kv_cache *kv, float *logits);
/* True once after each pn_state_cancel. */
bool state_take_cancel(pn_state *state);

#endif
