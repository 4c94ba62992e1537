/* state.c - the life of a conversation's memory; the busy and cancel flags.                                (rank 9)
 *
 * No arithmetic: forward.c fills what lies here. */
#include "state.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

pn_state *pn_state_new(pn_model *model) {
    return pn_state_new_window(model, 0);
}

pn_state *pn_state_new_window(pn_model *model, size_t window) {
    if (!model) {
        pn_fail(PN_ERR_ARGUMENT, "state: model is NULL");
        return NULL;
    }
    if (window > model->hp.n_ctx) {
        pn_fail(PN_ERR_ARGUMENT, "state: a window of %zu tokens is beyond the model's context of %u", window,
                model->hp.n_ctx);
        return NULL;
    }
    pn_state *state = calloc(1, sizeof *state);
    float *logits = malloc((size_t)model->hp.n_vocab * sizeof *logits);
    if (!state || !logits) {
        free(state);
        free(logits);
        pn_fail(PN_ERR_MEMORY, "state: no memory for the logits of %u tokens", model->hp.n_vocab);
        return NULL;
    }
    model_retain(model);
    state->model = model;
    state->window = window ? window : model->hp.n_ctx;
    state->long_rope = rope_is_long(&model->rope, state->window);
    state->logits = logits;
    atomic_flag_clear(&state->busy);
    atomic_init(&state->cancel, false);
    kv_init(&state->kv, model->hp.n_layer, model->hp.n_head_kv, model->hp.head_size);
    return state;
}

static void speculation_free(pn_state *state) {
    speculation *s = state->speculation;
    if (!s) return;
    lookup_free(&s->index);
    free(s->rows);
    free(s);
    state->speculation = NULL;
}

void pn_state_free(pn_state *state) {
    if (!state) return;
    speculation_free(state);
    kv_clear(&state->kv);
    free(state->tokens);
    free(state->logits);
    model_release(state->model);
    free(state);
}

bool state_enter(pn_state *state) {
    return !atomic_flag_test_and_set_explicit(&state->busy, memory_order_acquire);
}

void state_leave(pn_state *state) {
    atomic_flag_clear_explicit(&state->busy, memory_order_release);
}

bool state_take_cancel(pn_state *state) {
    return atomic_load_explicit(&state->cancel, memory_order_relaxed) && atomic_exchange(&state->cancel, false);
}

int state_reserve(pn_state *state, size_t n) {
    state->changes++;
    if (n > state->capacity) {
        size_t capacity = state->capacity ? state->capacity : 256;
        while (capacity < n) capacity *= 2; /* n is at most the window */
        uint32_t *tokens = realloc(state->tokens, capacity * sizeof *tokens);
        if (!tokens) return pn_fail(PN_ERR_MEMORY, "state: no memory for %zu token ids", capacity);
        state->tokens = tokens;
        state->capacity = capacity;
    }
    return kv_reserve(&state->kv, n);
}

static int fail_busy(void) {
    return pn_fail(PN_ERR_BUSY, "state: it is in use by another call");
}

static void drop_tokens(pn_state *state, size_t n) {
    state->n_tokens = n;
    state->has_logits = false;
    state->changes++;
    if (state->speculation) lookup_truncate(&state->speculation->index, n);
}

int pn_state_reset(pn_state *state) {
    if (!state_enter(state)) return fail_busy();
    drop_tokens(state, 0);
    kv_clear(&state->kv);
    state_leave(state);
    return PN_OK;
}

void state_adopt(pn_state *state, uint32_t *tokens, size_t n, size_t capacity, const kv_cache *kv, float *logits) {
    drop_tokens(state, 0);
    kv_clear(&state->kv);
    free(state->tokens);
    state->kv = *kv;
    state->tokens = tokens;
    state->n_tokens = n;
    state->capacity = capacity;
    if (logits) {
        free(state->logits);
        state->logits = logits;
    }
    state->has_logits = logits;
}

int pn_state_rewind(pn_state *state, size_t n) {
    if (!state_enter(state)) return fail_busy();
    int status = PN_OK;
    if (n > state->n_tokens)
        status = pn_fail(PN_ERR_ARGUMENT, "state: cannot rewind to %zu tokens, it holds %zu", n, state->n_tokens);
    else if (n < state->n_tokens) {
        /* The cache behind n is overwritten by what comes next. */
        drop_tokens(state, n);
    }
    state_leave(state);
    return status;
}

size_t pn_state_window(const pn_state *state) {
    return state->window;
}

const uint32_t *pn_state_tokens(const pn_state *state, size_t *n) {
    if (n) *n = state->n_tokens;
    return state->tokens;
}

const float *pn_state_logits(const pn_state *state) {
    return state->has_logits ? state->logits : NULL;
}

uint64_t pn_state_bytes(const pn_state *state) {
    const speculation *s = state->speculation;
    const uint64_t row = (uint64_t)state->model->hp.n_vocab * sizeof *state->logits;
    const uint64_t ahead = s ? sizeof *s + lookup_bytes(&s->index) + s->n_row_capacity * row : 0;
    return kv_bytes(&state->kv) + state->capacity * sizeof *state->tokens + row + ahead;
}

void pn_state_cancel(pn_state *state) {
    atomic_store(&state->cancel, true);
}

void pn_state_clear_cancel(pn_state *state) {
    atomic_store(&state->cancel, false);
}

/* ---- speculation ------------------------------------------------------------------------------------------------- */

static int speculation_reserve(pn_state *state, size_t most) {
    speculation *s = state->speculation;
    if (!s) {
        s = state->speculation = calloc(1, sizeof *s);
        if (!s) return pn_fail(PN_ERR_MEMORY, "speculate: out of memory");
        pace_init(&s->pace);
    }
    if (most + 1 > s->n_row_capacity) {
        const size_t n_vocab = state->model->hp.n_vocab;
        float *rows = realloc(s->rows, (most + 1) * n_vocab * sizeof *rows);
        if (!rows) return pn_fail(PN_ERR_MEMORY, "speculate: no memory for %zu rows of %zu logits", most + 1, n_vocab);
        s->rows = rows;
        s->n_row_capacity = most + 1;
    }
    s->most = most;
    s->n_guesses = s->n_rows = 0;
    s->n_proposed = s->n_accepted = 0;
    return PN_OK;
}

int pn_state_speculate(pn_state *state, int most, bool always) {
    if (most < 0 || most > PN_GUESSES_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "speculate: %d guesses at a time; it must be 0 (off) to %d", most,
                       PN_GUESSES_MAX);
    if (!state_enter(state)) return fail_busy();
    const int status = most ? speculation_reserve(state, (size_t)most) : PN_OK;
    if (status != PN_OK || most == 0)
        speculation_free(state);
    else
        state->speculation->always = always;
    state_leave(state);
    return status;
}

void pn_state_speculation(const pn_state *state, uint64_t *proposed, uint64_t *accepted) {
    *proposed = state->speculation ? state->speculation->n_proposed : 0;
    *accepted = state->speculation ? state->speculation->n_accepted : 0;
}
