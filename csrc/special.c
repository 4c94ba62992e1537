/* special.c - text in, the control tokens spelled in it out.                                         (rank 4)
 *
 * Does not decide between overlapping matches while scanning: that is what makes scanners quadratic.
 * An Aho-Corasick automaton of the reversed texts reads the text from its end to its start. At each position it then
 * knows the longest text that begins there, and taking the leftmost, longest matches is a walk over that list.
 * States are numbered level by level, so a state's fallback always has a smaller number. */
#include "special.h"

#include <stdlib.h>

#include "common.h"
#include "hash.h"
#include "status.h"

#define SPECIAL_NONE UINT32_MAX

/* One state: a suffix of some text. Token and length tell the longest text of the set that the suffix begins with. */
typedef struct special_state {
    uint32_t parent;   /* the suffix without its first byte                                  */
    uint32_t fallback; /* the longest other state that this suffix begins with (0: none)     */
    uint32_t token;    /* SPECIAL_NONE: no text                                              */
    uint32_t len;      /* of that text                                                       */
} special_state;

struct special {
    special_state *states; /* [n_states]; 0 is the empty suffix                              */
    uint8_t *bytes;        /* [n_states] first byte of the suffix                            */
    uint32_t *edges;       /* [mask + 1] open addressing: (state, byte) to state; 0 is empty */
    size_t n_states, mask;
    uint64_t seed;
    uint32_t root[256]; /* the edges of state 0 once more: most bytes of most texts end here */
};

/* ---- The automaton ---- */

/* Where the edge from a state by a byte is, or would be. */
static size_t special_edge(const special *set, uint32_t state, uint8_t byte) {
    size_t at = hash_slot(((uint64_t)state << 8 | byte) ^ set->seed, set->mask);
    for (;; at = (at + 1) & set->mask) {
        const uint32_t to = set->edges[at];
        if (to == 0 || (set->states[to].parent == state && set->bytes[to] == byte)) return at;
    }
}

/* The state after `byte` was put in front of what `state` stands for: the longest suffix that fits. */
static uint32_t special_step(const special *set, uint32_t state, uint8_t byte) {
    while (state != 0) {
        const uint32_t to = set->edges[special_edge(set, state, byte)];
        if (to != 0) return to;
        state = set->states[state].fallback;
    }
    return set->root[byte];
}

/* The state `byte` in front of `state`, made if need be. Its fallback is one level or more above and so complete. */
static uint32_t special_extend(special *set, uint32_t state, uint8_t byte) {
    const size_t at = special_edge(set, state, byte);
    if (set->edges[at] != 0) return set->edges[at];
    const uint32_t fallback = state == 0 ? 0 : special_step(set, set->states[state].fallback, byte);
    const uint32_t made = (uint32_t)set->n_states++;
    set->states[made] = (special_state){ state, fallback, set->states[fallback].token, set->states[fallback].len };
    set->bytes[made] = byte;
    set->edges[at] = made;
    if (state == 0) set->root[byte] = made;
    return made;
}

/* Grow all texts by one byte at a time, level by level. reached[i] is the state of text i, order[0, n) the texts that
 * are still growing. */
static void special_grow(special *set, const special_text *texts, uint32_t *reached, size_t *order, size_t n) {
    for (size_t depth = 0; n > 0; depth++) {
        size_t left = 0;
        for (size_t k = 0; k < n; k++) {
            const special_text *const t = &texts[order[k]];
            if (t->len == depth) continue;
            const uint32_t state = special_extend(set, reached[order[k]], t->text[t->len - 1 - depth]);
            reached[order[k]] = state;
            /* A text as long as the state is the state's own: the first of equal texts stays. */
            special_state *const s = &set->states[state];
            if (t->len == depth + 1 && (s->token == SPECIAL_NONE || s->len < t->len)) {
                s->token = t->id;
                s->len = (uint32_t)t->len;
            }
            order[left++] = order[k];
        }
        n = left;
    }
}

static int special_allocate(special *set, size_t max_states) {
    size_t slots = 16;
    while (slots < 2 * max_states) slots *= 2;
    set->mask = slots - 1;
    set->states = malloc(max_states * sizeof *set->states);
    set->bytes = malloc(max_states);
    set->edges = calloc(slots, sizeof *set->edges);
    if (!set->states || !set->bytes || !set->edges)
        return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes of control tokens)", max_states - 1);
    set->states[0] = (special_state){ SPECIAL_NONE, 0, SPECIAL_NONE, 0 };
    set->bytes[0] = 0;
    set->n_states = 1;
    return PN_OK;
}

static int special_build(special *set, const special_text *texts, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        if (!size_add(total, texts[i].len, &total) || total > SPECIAL_MAX_BYTES)
            return pn_fail(PN_ERR_UNSUPPORTED,
                           "tokenizer: the control and user-defined tokens have more than %zu bytes together",
                           SPECIAL_MAX_BYTES);
    PN_TRY(special_allocate(set, total + 1));
    uint32_t *const reached = calloc(n + 1, sizeof *reached);
    size_t *const order = calloc(n + 1, sizeof *order);
    if (reached && order) {
        for (size_t i = 0; i < n; i++) order[i] = i;
        special_grow(set, texts, reached, order, n);
    }
    const bool ok = reached && order;
    free(reached);
    free(order);
    return ok ? PN_OK : pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu control tokens)", n);
}

int special_new(const special_text *texts, size_t n, uint64_t seed, special **out) {
    *out = NULL;
    special *const set = calloc(1, sizeof *set);
    if (!set) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes)", sizeof *set);
    set->seed = seed;
    const int status = special_build(set, texts, n);
    if (status != PN_OK) {
        special_free(set);
        return status;
    }
    *out = set;
    return PN_OK;
}

void special_free(special *set) {
    if (!set) return;
    free(set->states);
    free(set->bytes);
    free(set->edges);
    free(set);
}

/* ---- Looking things up ---- */

int64_t special_find(const special *set, const uint8_t *text, size_t len) {
    uint32_t state = 0;
    for (size_t i = len; i-- > 0;) {
        state = set->edges[special_edge(set, state, text[i])];
        if (state == 0) return -1;
    }
    const special_state *const s = &set->states[state];
    return state != 0 && s->token != SPECIAL_NONE && s->len == len ? (int64_t)s->token : -1;
}

static int special_record(special_matches *matches, special_match match) {
    if (matches->n == matches->cap) {
        size_t cap = 0, bytes = 0;
        const bool fits = size_add(matches->cap + 16, matches->cap, &cap) && size_mul(cap, sizeof match, &bytes);
        special_match *const grown = fits ? realloc(matches->items, bytes) : NULL;
        if (!grown)
            return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu control tokens in the text)", matches->n);
        matches->items = grown;
        matches->cap = cap;
    }
    matches->items[matches->n++] = match;
    return PN_OK;
}

int special_scan(const special *set, const uint8_t *text, size_t len, special_matches *matches) {
    matches->n = 0;
    uint32_t state = 0;
    for (size_t pos = len; pos-- > 0;) {
        state = special_step(set, state, text[pos]);
        const special_state *const s = &set->states[state];
        if (s->token != SPECIAL_NONE) PN_TRY(special_record(matches, (special_match){ pos, s->len, s->token }));
    }
    return PN_OK;
}

bool special_next(special_matches *matches, size_t from, special_match *out) {
    while (matches->n > 0) {
        *out = matches->items[--matches->n];
        if (out->pos >= from) return true;
    }
    return false;
}

void special_matches_free(special_matches *matches) {
    free(matches->items);
    *matches = (special_matches){ 0 };
}
