/* advance.c - one token in, its logits out; and guesses at the next ones evaluated along with it.           (rank 11)
 *
 * Speculative decoding (arXiv:2211.17192) with the conversation itself as the one that guesses, and exact: it never
 * draws a token. It only has ready what an evaluation of the next token would give.
 *
 * The one thing to know first: after each call the state is what it would be without guessing. Keys and values of
 * guesses lie behind its last token, where nobody looks, and their logits in rows of their own. If the next token is
 * the one that was guessed, the state takes both over; if anything else happens, they are void and get overwritten. So
 * stop tokens, limits, cancels and penalties need no care here. Logits are the same to the bit in one pass or in
 * many. */
#include "advance.h"

#include "forward.h"
#include "pantheon.h"
#include "status.h"

#include <string.h>
#include <time.h>

/* A pass with guesses must compute what plain passes do: never through BLAS, all rows of logits alike. */
_Static_assert(1 + PN_GUESSES_MAX < BLAS_MIN_TOKENS && 1 + PN_GUESSES_MAX <= LOGIT_ROWS, "a pass is small");

/* Nothing but pn_advance has touched the state since the last one. */
static bool is_current(const pn_state *state) {
    const speculation *s = state->speculation;
    return s->n_guesses && s->changes == state->changes && s->end == state->n_tokens;
}

/* What comes after the last guess that came true: is it the next guess? */
static bool check_guess(speculation *s, uint32_t token) {
    if (s->n_used >= s->n_guesses) return false;
    const bool hit = s->guesses[s->n_used] == token;
    pace_learn(&s->pace, s->match + s->n_used, hit);
    return hit;
}

/* The state's next logits. */
static void take_row(pn_state *state, size_t row) {
    const size_t n_vocab = state->model->hp.n_vocab;
    memcpy(state->logits, state->speculation->rows + row * n_vocab, n_vocab * sizeof *state->logits);
    state->has_logits = true;
}

/* The token was evaluated ahead: no work is left. */
static int accept(pn_state *state, uint32_t token) {
    speculation *s = state->speculation;
    if (state_take_cancel(state)) {
        state->has_logits = false;
        return pn_fail(PN_ERR_CANCELLED, "eval: cancelled");
    }
    state->tokens[state->n_tokens++] = token;
    take_row(state, ++s->n_used);
    s->end = state->n_tokens;
    s->n_accepted++;
    return PN_OK;
}

/* Guess what follows the token; returns how many guesses are worth an evaluation. Without memory there are none. */
static size_t guess(pn_state *state, uint32_t token, size_t n_left) {
    speculation *s = state->speculation;
    const size_t room = state->window - state->n_tokens; /* the token takes one place of it */
    const uint32_t *missing = state->tokens + s->index.n;
    s->n_guesses = s->n_used = 0;
    if (s->index.n < state->n_tokens && lookup_append(&s->index, missing, state->n_tokens - s->index.n) != PN_OK)
        return 0;
    if (lookup_append(&s->index, &token, 1) != PN_OK) return 0;
    s->n_guesses = lookup_guess(&s->index, s->most, s->guesses, &s->match);
    const size_t n_places = size_min(room, n_left);
    const size_t most = n_places ? size_min(s->n_guesses, n_places - 1) : 0;
    return s->always ? most : pace_choose(&s->pace, s->match, most);
}

/* One pass over the token and n guesses; afterwards the state holds the token alone. */
static int eval_with_guesses(pn_state *state, uint32_t token, size_t n, pn_progress_callback progress,
                             void *user_data) {
    speculation *s = state->speculation;
    const size_t before = state->n_tokens;
    uint32_t tokens[1 + PN_GUESSES_MAX] = { token };
    memcpy(tokens + 1, s->guesses, n * sizeof *tokens);
    PN_TRY(forward_eval(state, tokens, 1 + n, s->rows, progress, user_data));
    state->n_tokens = before + 1;
    take_row(state, 0);
    s->n_proposed += n;
    return PN_OK;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int eval(pn_state *state, uint32_t token, size_t n_left, pn_progress_callback progress, void *user_data) {
    speculation *s = state->speculation;
    const size_t before = state->n_tokens;
    size_t n = guess(state, token, n_left);
    const double start = seconds();
    int status = PN_OK;
    if (n) {
        status = eval_with_guesses(state, token, n, progress, user_data);
        if (status != PN_OK) state->n_tokens = before;
    }
    if (n == 0 || (status != PN_OK && status != PN_ERR_CANCELLED)) { /* what a guess broke is not the token's fault */
        n = 0;
        status = forward_eval(state, &token, 1, NULL, progress, user_data);
    }
    if (status == PN_OK)
        pace_time(&s->pace, n, seconds() - start);
    else {
        s->n_guesses = 0;
        lookup_truncate(&s->index, before);
    }
    s->n_rows = 1 + n;
    s->end = state->n_tokens;
    s->changes = state->changes;
    return status;
}

int advance_entered(pn_state *state, uint32_t token, size_t n_left, pn_progress_callback progress, void *user_data) {
    speculation *s = state->speculation;
    if (!s) return forward_eval(state, &token, 1, NULL, progress, user_data);
    const bool hit = is_current(state) && check_guess(s, token);
    if (hit && s->n_used + 1 < s->n_rows) return accept(state, token);
    return eval(state, token, n_left, progress, user_data);
}

int pn_advance(pn_state *state, uint32_t token, size_t n_left, pn_progress_callback progress, void *user_data) {
    if (!state) return pn_fail(PN_ERR_ARGUMENT, "advance: state is NULL");
    if (!state_enter(state)) return pn_fail(PN_ERR_BUSY, "advance: the state is in use by another call");
    const int status = advance_entered(state, token, n_left, progress, user_data);
    state_leave(state);
    return status;
}
