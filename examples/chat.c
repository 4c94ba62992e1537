/* chat.c - embed a conversation in a C program: load a model, write ChatML by hand, stream the replies.
 *
 *     cc -O3 -D_GNU_SOURCE -ffp-contract=off -pthread -Icsrc examples/chat.c csrc/?*.c csrc/kernels/?*.c -lm -o chat
 *     ./chat MODEL.gguf ["a message" "another one" ...]
 *
 * The state keeps what was evaluated, so each turn sends only its new tokens. Control tokens are looked up by their
 * exact spelling and text is encoded as text: nothing that a user types can become a control token.
 *
 * The one thing to know first: the last token of a reply was sampled but not evaluated. After an end token that is
 * the end token itself, which is never reported; after max_tokens it is the last one that the callback saw. Either way
 * the next turn begins with it. */
#include "pantheon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 128 };

/* The ids of one turn, and the last one that was generated. */
typedef struct turn {
    const pn_tokenizer *tokenizer;
    uint32_t *ids;
    size_t n, capacity;
    uint32_t last;
} turn;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pn_last_error());
    exit(1);
}

static void reserve(turn *t, size_t n) {
    if (t->n + n <= t->capacity) return;
    t->capacity = 2 * (t->n + n);
    t->ids = realloc(t->ids, t->capacity * sizeof *t->ids);
    if (!t->ids) fail("out of memory");
}

static void add_control(turn *t, const char *spelling) {
    const int64_t id = pn_token_id(t->tokenizer, spelling, strlen(spelling));
    if (id < 0) {
        fprintf(stderr, "this model has no token %s: it does not speak ChatML\n", spelling);
        exit(1);
    }
    reserve(t, 1);
    t->ids[t->n++] = (uint32_t)id;
}

static void add_text(turn *t, const char *text) {
    const size_t len = strlen(text);
    const int64_t after = t->n ? (int64_t)t->ids[t->n - 1] : -1;
    const int64_t n = pn_tokenize_after(t->tokenizer, after, text, len, 0, NULL, 0);
    if (n < 0) fail("tokenize");
    reserve(t, (size_t)n);
    pn_tokenize_after(t->tokenizer, after, text, len, 0, t->ids + t->n, (size_t)n);
    t->n += (size_t)n;
}

/* <|im_start|>role\ntext<|im_end|>\n; the text is encoded in one piece with what surrounds it, as in training. */
static void add_message(turn *t, const char *role, const char *text) {
    char *whole = malloc(strlen(role) + strlen(text) + 2);
    if (!whole) fail("out of memory");
    sprintf(whole, "%s\n%s", role, text);
    add_control(t, "<|im_start|>");
    add_text(t, whole);
    add_control(t, "<|im_end|>");
    add_text(t, "\n");
    free(whole);
}

static int on_token(void *user_data, uint32_t token, const char *bytes, size_t len) {
    ((turn *)user_data)->last = token;
    fwrite(bytes, 1, len, stdout); /* bytes: a character may come in several pieces */
    fflush(stdout);
    return 0;
}

static size_t tokens_held(const pn_state *state) {
    size_t n;
    pn_state_tokens(state, &n);
    return n;
}

/* Send a user's message, print the reply, and leave in `t` what the next turn has to begin with. */
static void run_turn(pn_model *model, pn_state *state, turn *t, const char *message) {
    pn_sampling_params params = pn_sampling_defaults(); /* greedy */
    add_message(t, "user", message);
    add_control(t, "<|im_start|>");
    add_text(t, "assistant\n");
    const size_t expected = tokens_held(state) + t->n;
    const int n = pn_stream_tokens(model, state, t->ids, (int)t->n, MAX_TOKENS, &params, on_token, t);
    if (n < 0) fail("stream");
    putchar('\n');
    t->n = 0;
    if (tokens_held(state) < expected + (size_t)n) {
        reserve(t, 1);
        t->ids[t->n++] = t->last;
    }
    add_control(t, "<|im_end|>");
    add_text(t, "\n");
}

int main(int argc, char **argv) {
    char *example[] = { "What is the capital of France?", "And Germany?" };
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [MESSAGE ...]\n", argv[0]);
        return 2;
    }
    const int n_messages = argc > 2 ? argc - 2 : 2;
    char **messages = argc > 2 ? argv + 2 : example;

    pn_model *model = pn_load(argv[1]);
    if (!model) fail("load");
    pn_state *state = pn_state_new(model);
    if (!state) fail("state");
    turn t = { .tokenizer = pn_model_tokenizer(model) };
    add_message(&t, "system", "You are a helpful assistant.");
    for (int i = 0; i < n_messages; i++) run_turn(model, state, &t, messages[i]);

    free(t.ids);
    pn_state_free(state);
    pn_free(model);
    return 0;
}
