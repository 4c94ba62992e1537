/* state.h - one conversation: the ids that were evaluated, their cache, the last logits.                  (rank 9) */
#ifndef PN_STATE_H
#define PN_STATE_H

#include "kv.h"
#include "model.h"

struct pn_state {
    pn_model *model; /* retained */
    atomic_flag busy;
    atomic_bool cancel; /* asked for, not yet taken */
    uint32_t *tokens;   /* [n_tokens] of capacity */
    size_t n_tokens, capacity;
    kv_cache kv;
    float *logits; /* [V] */
    bool has_logits;
};

/* The state for the caller alone until state_leave; false if somebody has it. */
bool state_enter(pn_state *state);
void state_leave(pn_state *state);
/* Room for n tokens in all, in ids and cache. */
int state_reserve(pn_state *state, size_t n);
/* True once after each pn_state_cancel. */
bool state_take_cancel(pn_state *state);

#endif
