/* advance.h - one token appended, for callers that hold the state already.                               (rank 11) */
#ifndef PN_ADVANCE_H
#define PN_ADVANCE_H

#include "state.h"

/* pn_advance for a state that the caller has entered and keeps. */
int advance_entered(pn_state *state, uint32_t token, size_t n_left, pn_progress_callback progress, void *user_data);

#endif
