/* forward.c - slices of tokens to batches, and back: pn_eval.                                              (rank 10)
 *
 * Checks what the caller gave, takes it apart into batches (forward_layers.c runs them), and hands the logits out. A
 * failure leaves every state with the whole batches that were finished. */
#include "forward.h"

#include "forward_layers.h"
#include "pantheon.h"
#include "status.h"

#include <math.h>
#include <string.h>

enum { BATCH_MIN = 16 }; /* below it a prompt reads the weights too often */

/* ---- slices to batches ---------------------------------------------------------------------------------------- */

/* Where in the slices the next token comes from. */
typedef struct cursor {
    size_t slice, token;
} cursor;

static int fail_token(size_t at, uint32_t token, uint32_t n_vocab) {
    return pn_fail(PN_ERR_ARGUMENT, "eval: token %zu is %u; the vocabulary has %u", at, token, n_vocab);
}

/* Take up to `most` tokens; each state's room is reserved. The caller's ids are read once and checked as read: another
 * thread of a careless caller may write to them. */
static int batch_fill(batch *b, const watch *w, cursor *at, size_t most) {
    const uint32_t n_vocab = b->model->hp.n_vocab;
    b->n = 0;
    b->wants_logits = false;
    while (b->n < most && at->slice < w->n_slices) {
        const pn_slice *slice = &w->slices[at->slice];
        const size_t n = size_min(slice->n - at->token, most - b->n);
        PN_TRY(state_reserve(slice->state, slice->state->n_tokens + n));
        for (size_t i = 0; i < n; i++, at->token++) {
            float *logits = at->token + 1 == slice->n ? slice->state->logits : NULL;
            if (slice->all_logits) logits = slice->all_logits + at->token * n_vocab;
            row *r = &b->rows[b->n++];
            *r = (row){ slice->state, slice->tokens[at->token], slice->state->n_tokens + i, logits };
            if (r->token >= n_vocab) return fail_token(at->token, r->token, n_vocab);
            b->wants_logits |= logits != NULL;
        }
        if (at->token == slice->n) *at = (cursor){ at->slice + 1, 0 };
    }
    batch_tile(b);
    return PN_OK;
}

/* The tokens of a finished batch now belong to their states. */
static void batch_commit(batch *b) {
    for (size_t t = 0; t < b->n; t++) {
        pn_state *state = b->rows[t].state;
        state->tokens[state->n_tokens++] = b->rows[t].token;
    }
}

/* Every row that the caller gets; only when all are finite does any state have logits. */
static int check_logits(const watch *w, uint32_t n_vocab) {
    for (size_t i = 0; i < w->n_slices; i++) {
        const pn_slice *slice = &w->slices[i];
        const float *rows = slice->all_logits ? slice->all_logits : slice->state->logits;
        const size_t n_rows = slice->all_logits ? slice->n : 1;
        for (size_t v = 0; v < n_rows * n_vocab; v++)
            if (!isfinite(rows[v]))
                return pn_fail(PN_ERR_NUMERIC,
                               "eval: the logit of token %zu is not finite: the weights overflow or hold NaN",
                               v % n_vocab);
    }
    for (size_t i = 0; i < w->n_slices; i++) {
        const pn_slice *slice = &w->slices[i];
        if (slice->all_logits)
            memcpy(slice->state->logits, slice->all_logits + (slice->n - 1) * n_vocab, n_vocab * sizeof(float));
        slice->state->has_logits = true;
    }
    return PN_OK;
}

static int eval_all(pn_model *model, watch *w) {
    const hparams *hp = &model->hp;
    const scratch_shape shape = { hp->n_embd, (size_t)hp->n_head * hp->head_size, (size_t)hp->n_head_kv * hp->head_size,
                                  hp->n_ff,   hp->n_rot * model->rope.n_layers,   hp->n_expert,
                                  hp->n_vocab };
    size_t n_logits = w->n_slices;
    for (size_t i = 0; i < w->n_slices; i++) n_logits += w->slices[i].all_logits ? w->slices[i].n : 0;
    /* The widest product of a layer: queries, keys and values, or gate and up. */
    const size_t widest = size_max(QKV_PLANES * (shape.q + 2 * shape.k), 2 * shape.f) * shape.d;
    const size_t most = size_max(BATCH_MIN, tokens_at_a_time(widest, BATCH_MAX));
    batch b = { .model = model, .watch = w };
    PN_TRY(scratch_take(&model->scratch, &shape, size_min(w->total, most), size_min(n_logits, LOGIT_ROWS), &b.s));
    const fp_env saved = fp_enter();
    b.pool = threads_enter(model->pool) ? model->pool : NULL;
    cursor at = { 0, 0 };
    int status = PN_OK;
    while (status == PN_OK && w->done < w->total) {
        if ((status = batch_fill(&b, w, &at, most)) != PN_OK || (status = batch_run(&b)) != PN_OK) break;
        batch_commit(&b);
        w->done += b.n;
    }
    if (b.pool) threads_leave(b.pool);
    fp_leave(saved);
    scratch_give(&model->scratch, b.s);
    return status == PN_OK ? check_logits(w, hp->n_vocab) : status;
}

static int check_slice(const pn_model *model, const pn_slice *slice, size_t index) {
    const pn_state *state = slice->state;
    if (!slice->tokens || !slice->n) return pn_fail(PN_ERR_ARGUMENT, "eval: slice %zu has no tokens", index);
    if (slice->n > state->window || state->n_tokens > state->window - slice->n)
        return pn_fail(PN_ERR_CONTEXT, "eval: %zu tokens held and %zu new ones exceed the %s of %zu", state->n_tokens,
                       slice->n, state->window < model->hp.n_ctx ? "state's window" : "context", state->window);
    for (size_t i = 0; i < slice->n; i++)
        if (slice->tokens[i] >= model->hp.n_vocab) return fail_token(i, slice->tokens[i], model->hp.n_vocab);
    return PN_OK;
}

/* All states are entered. */
static int eval_entered(pn_model *model, watch *w) {
    clock_gettime(CLOCK_MONOTONIC, &w->last);
    for (size_t i = 0; i < w->n_slices; i++) {
        PN_TRY(check_slice(model, &w->slices[i], i));
        w->total += w->slices[i].n;
    }
    for (size_t i = 0; i < w->n_slices; i++) w->slices[i].state->has_logits = false;
    return eval_all(model, w);
}

int forward_eval(pn_state *state, const uint32_t *tokens, size_t n, float *all_logits, pn_progress_callback progress,
                 void *user_data) {
    const pn_slice slice = { .state = state, .tokens = tokens, .n = n, .all_logits = all_logits };
    watch w = { .slices = &slice, .n_slices = 1, .progress = progress, .user_data = user_data };
    return eval_entered(state->model, &w);
}

int pn_eval(pn_model *model, const pn_slice *slices, size_t n_slices, pn_progress_callback progress, void *user_data) {
    if (!model || !slices || !n_slices) return pn_fail(PN_ERR_ARGUMENT, "eval: no model or no slices");
    watch w = { .slices = slices, .n_slices = n_slices, .progress = progress, .user_data = user_data };
    int status = PN_OK;
    size_t entered = 0;
    for (; status == PN_OK && entered < n_slices; entered++) {
        pn_state *state = slices[entered].state;
        if (!state || state->model != model)
            status = pn_fail(PN_ERR_ARGUMENT, "eval: the state of slice %zu does not belong to this model", entered);
        else if (!state_enter(state))
            status = pn_fail(PN_ERR_BUSY, "eval: the state of slice %zu is in use by another call or slice", entered);
        if (status != PN_OK) break;
    }
    if (status == PN_OK) status = eval_entered(model, &w);
    for (size_t i = 0; i < entered; i++) state_leave(slices[i].state);
    return status;
}
