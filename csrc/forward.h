/* forward.h - evaluation for callers that hold the state already.                                            (rank 10) */
#ifndef PN_FORWARD_H
#define PN_FORWARD_H

#include "state.h"

/* pn_eval of n tokens for one state that the caller has entered and keeps. */
int forward_eval(pn_state *state, const uint32_t *tokens, size_t n, pn_progress_callback progress, void *user_data);

#endif
