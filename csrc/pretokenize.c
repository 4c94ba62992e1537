/* pretokenize.c - text in, the pieces that byte-pair merging must not cross out.                     (rank 2)
 *
 * Knows nothing about vocabularies. A scanner looks at one character after the other and never back; look-ahead is one
 * character past a run.
 * The reference applies its splitters one after the other, each to the pieces of the one before. A first splitter that
 * isolates single characters therefore acts as the end of the text on the second: that is the `wall` below. */
#include "pretokenize.h"

#include <stdbool.h>
#include <string.h>

#include "common.h"
#include "unicode.h"

/* The character at a position: where it ends and its class. At the end of the text, and at a wall, end == pos. */
typedef struct pretokenize_char {
    size_t end;
    uint8_t kind;
} pretokenize_char;

/* wall: property flags that end the text as far as the scanner can see; 0 for none. */
static pretokenize_char pretokenize_peek(const uint8_t *text, size_t len, size_t pos, uint8_t wall) {
    if (pos >= len) return (pretokenize_char){ pos, UNICODE_OTHER };
    uint8_t props = 0;
    const size_t n = unicode_step(text + pos, len - pos, &props);
    if (props & wall) return (pretokenize_char){ pos, UNICODE_OTHER };
    return (pretokenize_char){ pos + n, props & UNICODE_CLASS_MASK };
}

/* End of the run of characters of one class that begins at pos; *last is where its last character begins. */
static size_t pretokenize_run(const uint8_t *text, size_t len, size_t pos, uint8_t wall, uint8_t kind, size_t *last) {
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, len, pos, wall);
        if (c.end == pos || c.kind != kind) return pos;
        *last = pos;
        pos = c.end;
    }
}

/* Length of 's 't 're 've 'm 'll 'd at text[pos], else 0. Lower case only; text[pos] is the apostrophe. */
static size_t pretokenize_contraction(const uint8_t *text, size_t len, size_t pos) {
    const size_t left = len - pos;
    if (left >= 2 && memchr("stmd", text[pos + 1], 4)) return 2;
    if (left < 3) return 0;
    const char *const two = (const char *)text + pos + 1;
    return memcmp(two, "re", 2) == 0 || memcmp(two, "ve", 2) == 0 || memcmp(two, "ll", 2) == 0 ? 3 : 0;
}

/* The expression that GPT-2 came with:
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * The last two: a run of white space leaves its last character to the piece that follows, if one follows and the run
 * has another character to keep. */
static size_t pretokenize_gpt2(const uint8_t *text, size_t len, size_t pos, uint8_t wall) {
    size_t last = pos;
    if (text[pos] == '\'') {
        const size_t n = pretokenize_contraction(text, len, pos);
        if (n) return pos + n;
    }
    pretokenize_char c = pretokenize_peek(text, len, pos, wall);
    if (text[pos] == ' ') {
        const pretokenize_char next = pretokenize_peek(text, len, c.end, wall);
        if (next.end != c.end && next.kind != UNICODE_SPACE) c = next;
    }
    const size_t end = pretokenize_run(text, len, c.end, wall, c.kind, &last);
    if (c.kind != UNICODE_SPACE) return end;
    const bool at_end = pretokenize_peek(text, len, end, wall).end == end;
    return at_end || last == pos ? end : last;
}

static size_t pretokenize_next_gpt2(const uint8_t *text, size_t len, size_t pos) {
    return pretokenize_gpt2(text, len, pos, 0);
}

/* Each numeric character alone, then GPT-2's expression on what lies between. */
static size_t pretokenize_next_smollm(const uint8_t *text, size_t len, size_t pos) {
    uint8_t props = 0;
    const size_t n = unicode_step(text + pos, len - pos, &props);
    if (props & UNICODE_NUMERIC) return pos + n;
    return pretokenize_gpt2(text, len, pos, UNICODE_NUMERIC);
}

static const pretokenize_rule PRETOKENIZE_RULES[] = {
    { "smollm", pretokenize_next_smollm },
    { "gpt-2", pretokenize_next_gpt2 },
};

const pretokenize_rule *pretokenize_find(const char *name, size_t len) {
    for (size_t i = 0; i < PN_ARRAY_LEN(PRETOKENIZE_RULES); i++) {
        const pretokenize_rule *const rule = &PRETOKENIZE_RULES[i];
        if (strlen(rule->name) == len && memcmp(rule->name, name, len) == 0) return rule;
    }
    return NULL;
}

void pretokenize_names(char *out, size_t cap) {
    size_t used = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(PRETOKENIZE_RULES); i++) {
        const char *const parts[2] = { i ? ", " : "", PRETOKENIZE_RULES[i].name };
        for (size_t k = 0; k < 2; k++) {
            const size_t n = size_min(strlen(parts[k]), cap - 1 - used);
            memcpy(out + used, parts[k], n);
            used += n;
        }
    }
    out[used] = '\0';
}
