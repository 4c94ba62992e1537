/* forward.h - evaluation for callers that hold the state already.                                        (rank 10) */
#ifndef PN_FORWARD_H
#define PN_FORWARD_H

#include "state.h"

/* pn_eval of n tokens for one state that the caller has entered and keeps. all_logits [n, V] may be NULL. */
int forward_eval(pn_state *state, const uint32_t *tokens, size_t n, float *all_logits, pn_progress_callback progress,
                 void *user_data);

#endif
