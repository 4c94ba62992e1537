/* stream.c - a prompt in, a reply token by token through a callback: evaluate, sample, call back, repeat.    (rank 12)
 *
 * No arithmetic and no policy of its own. It has the state from its first look at it to its end, so that no other call
 * can come between two tokens, and holds nothing between calls. Everything is checked before the state changes.
 *
 * The one thing to know first: a token is evaluated only when another one is to be sampled after it. So the last token
 * of a reply needs no room in the context, and a prompt that fills the context still gets one token. */
#include "advance.h"
#include "forward.h"
#include "pantheon.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

enum { STOP_IDS_MAX = 64 };

typedef struct stream {
    pn_model *model;
    pn_state *state;
    pn_sampler *sampler;
    pn_token_callback callback;
    void *user_data;
    uint32_t stop_ids[STOP_IDS_MAX];
    int n_stop_ids;
} stream;

static bool is_stop(const stream *s, uint32_t token) {
    for (int i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == token) return true;
    return false;
}

/* Pass a token to the callback; true if it wants no more. */
static bool tell(const stream *s, uint32_t token) {
    size_t len;
    const char *bytes = pn_token_piece(pn_model_tokenizer(s->model), token, &len);
    return s->callback && s->callback(s->user_data, token, bytes, len) != 0;
}

/* From the state's logits on. */
static int generate(const stream *s, int max_tokens, int *n_generated) {
    for (*n_generated = 0; *n_generated < max_tokens;) {
        uint32_t token;
        if (state_take_cancel(s->state)) return pn_fail(PN_ERR_CANCELLED, "stream: cancelled");
        PN_TRY(pn_sample(s->sampler, s->state->logits, s->state->tokens, s->state->n_tokens, &token));
        if (is_stop(s, token)) return PN_OK;
        ++*n_generated;
        if (tell(s, token) || *n_generated == max_tokens) return PN_OK;
        if (s->state->n_tokens >= s->state->window) return PN_OK; /* sampled, but there is no room to go on from it */
        PN_TRY(advance_entered(s->state, token, (size_t)(max_tokens - *n_generated), NULL, NULL));
    }
    return PN_OK;
}

static int check_arguments(const pn_model *model, const pn_state *state, const uint32_t *tokens, int n_tokens,
                           int max_tokens) {
    if (!model) return pn_fail(PN_ERR_ARGUMENT, "stream: model is NULL");
    if (!state) return pn_fail(PN_ERR_ARGUMENT, "stream: state is NULL");
    if (state->model != model) return pn_fail(PN_ERR_ARGUMENT, "stream: the state does not belong to this model");
    if (n_tokens < 0) return pn_fail(PN_ERR_ARGUMENT, "stream: n_tokens is %d; it must be 0 or more", n_tokens);
    if (max_tokens < 0) return pn_fail(PN_ERR_ARGUMENT, "stream: max_tokens is %d; it must be 0 or more", max_tokens);
    if (n_tokens && !tokens) return pn_fail(PN_ERR_ARGUMENT, "stream: tokens is NULL, n_tokens is %d", n_tokens);
    return PN_OK;
}

static int stream_init(stream *s, pn_sampling_params *params) {
    const pn_tokenizer *tokenizer = pn_model_tokenizer(s->model);
    s->n_stop_ids = pn_tokenizer_stop_ids(tokenizer, s->stop_ids, STOP_IDS_MAX);
    if (s->n_stop_ids > STOP_IDS_MAX)
        return pn_fail(PN_ERR_UNSUPPORTED, "stream: the file names %d end tokens; at most %d", s->n_stop_ids,
                       STOP_IDS_MAX);
    s->sampler = pn_sampler_new(s->model->hp.n_vocab, params);
    return s->sampler ? PN_OK : (int)pn_last_status();
}

/* With the state entered: the prompt, then the reply. */
static int run(const stream *s, const uint32_t *tokens, int n_tokens, int max_tokens, int *n_generated) {
    if (n_tokens)
        PN_TRY(forward_eval(s->state, tokens, (size_t)n_tokens, NULL, NULL, NULL));
    else if (!s->state->has_logits)
        return pn_fail(PN_ERR_ARGUMENT, "stream: no tokens, and the state has no logits to go on from");
    return generate(s, max_tokens, n_generated);
}

/* With the state entered. */
static int stream_entered(stream *s, const uint32_t *tokens, int n_tokens, int max_tokens, pn_sampling_params *params) {
    int n_generated = 0;
    int status = stream_init(s, params);
    if (status == PN_OK) status = run(s, tokens, n_tokens, max_tokens, &n_generated);
    pn_sampler_free(s->sampler);
    return status == PN_OK ? n_generated : -1;
}

static bool enter_or_fail(pn_state *state) {
    if (state_enter(state)) return true;
    pn_fail(PN_ERR_BUSY, "stream: the state is in use by another call");
    return false;
}

int pn_stream_tokens(pn_model *model, pn_state *state, const uint32_t *tokens, int n_tokens, int max_tokens,
                     pn_sampling_params *params, pn_token_callback callback, void *user_data) {
    if (check_arguments(model, state, tokens, n_tokens, max_tokens) != PN_OK || !enter_or_fail(state)) return -1;
    stream s = { .model = model, .state = state, .callback = callback, .user_data = user_data };
    const int result = stream_entered(&s, tokens, n_tokens, max_tokens, params);
    state_leave(state);
    return result;
}

/* The ids of a text, owned, at least one place; NULL on failure. */
static uint32_t *encode(const pn_tokenizer *tokenizer, const char *text, int flags, int *n_tokens) {
    const size_t len = strlen(text);
    const int64_t n = pn_tokenize(tokenizer, text, len, flags, NULL, 0);
    if (n < 0) return NULL;
    if (n > INT32_MAX) {
        pn_fail(PN_ERR_ARGUMENT, "stream: a prompt of %lld tokens", (long long)n);
        return NULL;
    }
    uint32_t *tokens = malloc((size_t)(n ? n : 1) * sizeof *tokens);
    if (!tokens) {
        pn_fail(PN_ERR_MEMORY, "stream: no memory for %lld tokens", (long long)n);
        return NULL;
    }
    *n_tokens = (int)n;
    if (pn_tokenize(tokenizer, text, len, flags, tokens, (size_t)n) == n) return tokens;
    free(tokens);
    return NULL;
}

int pn_stream(pn_model *model, pn_state *state, const char *prompt, int max_tokens, pn_sampling_params *params,
              pn_token_callback callback, void *user_data) {
    if (!prompt) {
        pn_fail(PN_ERR_ARGUMENT, "stream: prompt is NULL");
        return -1;
    }
    if (check_arguments(model, state, NULL, 0, max_tokens) != PN_OK || !enter_or_fail(state)) return -1;
    stream s = { .model = model, .state = state, .callback = callback, .user_data = user_data };
    int n_tokens, result = -1;
    uint32_t *tokens = encode(pn_model_tokenizer(model), prompt, state->n_tokens ? 0 : PN_ENCODE_BOS, &n_tokens);
    if (tokens) result = stream_entered(&s, tokens, n_tokens, max_tokens, params);
    free(tokens);
    state_leave(state);
    return result;
}
