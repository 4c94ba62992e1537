/* tokenizer_rules.c - what files leave open about their tokens, filled in by model and by spelling.       (rank 5)
 *
 * Spaces, after the published tokenizer.json and tokenizer_config.json of the models:
 *   - Llama 2, TinyLlama, Zephyr, Mistral v0.1 and v0.2, Mixtral 8x7B: the normalizer puts a space in front of the text
 *     and of each part behind a control token.
 *   - Phi-3 and Phi-3.5: likewise, and the added tokens but <unk>, <s> and <|endoftext|> have rstrip.
 *   - Phi-4-mini: byte-level, so no space anywhere; the added tokens but <|endoftext|> and <|endofprompt|> have rstrip.
 *   - Mistral v0.3 and Mixtral 8x22B (they have [INST] as a token): only in front of the text; what follows a token has
 *     the spaces that the template writes. Mistral's own mistral-common comes to the same ids.
 *   - Gemma: none.
 * User-defined tokens: the reference takes each of them out of any text. Here those that look like markers are left to
 * the templates (docs/tokenizers.md says more), for in files of the Phi-3 kind they are the markers of roles. */
#include "tokenizer_rules.h"

#include <string.h>

#include "common.h"
#include "pantheon.h"

static const char *const KEEPING_PHI3[] = { "<unk>", "<s>", "<|endoftext|>", "<|endofprompt|>", NULL };

/* The first row that fits counts. */
static const tokenizer_rule TOKENIZER_RULES[] = {
    { "phi3", "<|assistant|>", true, true, KEEPING_PHI3 },
    { "gemma", NULL, false, false, NULL },
    { "gemma2", NULL, false, false, NULL },
    { "gemma3", NULL, false, false, NULL },
    { NULL, "[INST]", true, false, NULL },
    { NULL, NULL, true, true, NULL },
};

typedef struct tokenizer_repair {
    const char *architecture, *token;
} tokenizer_repair;

/* Control tokens that published files have as VOCAB_NORMAL, since the conversion took the types from the SentencePiece
 * model, where they are ordinary pieces. */
static const tokenizer_repair TOKENIZER_REPAIRS[] = {
    { "gemma", "<start_of_turn>" }, { "gemma", "<end_of_turn>" },    { "gemma2", "<start_of_turn>" },
    { "gemma2", "<end_of_turn>" },  { "gemma3", "<start_of_turn>" }, { "gemma3", "<end_of_turn>" },
};

/* Elements of HTML that vocabularies have tokens for (Gemma's list). */
static const char *const HTML_ELEMENTS[] = { "a",   "b",     "bbox",   "blockquote", "body",   "caption", "code",
                                             "div", "em",    "footer", "h1",         "h2",     "h3",      "h4",
                                             "h5",  "h6",    "html",   "i",          "iframe", "img",     "li",
                                             "s",   "span",  "strong", "sub",        "sup",    "table",   "tbody",
                                             "td",  "tfoot", "th",     "thead",      "tr",     "u",       "ul" };

static bool rule_equals(vocab_text text, const char *literal) {
    return text.len == strlen(literal) && memcmp(text.at, literal, text.len) == 0;
}

/* ---- Rules of models ---- */

/* Is there a control or user-defined token with this text? */
static bool rule_has_token(const vocab *v, const char *text) {
    for (uint32_t id = 0; id < v->n; id++)
        if (vocab_is_special(v, id) && rule_equals(vocab_bytes(v, id), text)) return true;
    return false;
}

/* The string under a key; empty if the file does not have it. Borrowed. */
static int rule_read(const pn_gguf *gguf, const char *key, vocab_text *out) {
    const char *at = "";
    size_t len = 0;
    bool present = false;
    PN_TRY(gguf_get_str(gguf, key, &at, &len, &present));
    *out = (vocab_text){ (const uint8_t *)at, len };
    return PN_OK;
}

int tokenizer_rule_find(const pn_gguf *gguf, const vocab *v, const tokenizer_rule **out) {
    vocab_text architecture;
    PN_TRY(rule_read(gguf, "general.architecture", &architecture));
    const tokenizer_rule *rule = TOKENIZER_RULES;
    while ((rule->architecture && !rule_equals(architecture, rule->architecture)) ||
           (rule->token && !rule_has_token(v, rule->token)))
        rule++; /* the last row fits everything */
    *out = rule;
    return PN_OK;
}

void tokenizer_rule_mark_swallowing(const tokenizer_rule *rule, vocab *v) {
    if (!rule->keeping) return;
    for (uint32_t id = 0; id < v->n; id++) {
        if (!vocab_is_special(v, id)) continue;
        bool keeps = false;
        for (const char *const *name = rule->keeping; *name; name++) keeps |= rule_equals(vocab_bytes(v, id), *name);
        if (!keeps) v->marks[id] |= VOCAB_SWALLOWS;
    }
}

/* ---- Wrong types ---- */

static bool rule_contains(vocab_text text, const char *literal) {
    const size_t len = strlen(literal);
    for (size_t at = 0; at < text.len; at++) {
        const uint8_t *const found = memchr(text.at + at, literal[0], text.len - at);
        if (!found) return false;
        at = (size_t)(found - text.at);
        if (text.len - at >= len && memcmp(found, literal, len) == 0) return true;
    }
    return false;
}

int tokenizer_rule_repair(const pn_gguf *gguf, vocab *v) {
    vocab_text architecture, written;
    PN_TRY(rule_read(gguf, "general.architecture", &architecture));
    for (size_t i = 0; i < PN_ARRAY_LEN(TOKENIZER_REPAIRS); i++) {
        const tokenizer_repair repair = TOKENIZER_REPAIRS[i];
        if (!rule_equals(architecture, repair.architecture)) continue;
        PN_TRY(rule_read(gguf, "tokenizer.chat_template", &written));
        if (!rule_contains(written, repair.token)) continue;
        for (uint32_t id = 0; id < v->n; id++)
            if (v->types[id] == VOCAB_NORMAL && rule_equals(vocab_bytes(v, id), repair.token))
                v->types[id] = VOCAB_CONTROL;
    }
    return PN_OK;
}

/* ---- User-defined tokens ---- */

/* Without the spaces round it. */
static vocab_text rule_trim(vocab_text text) {
    while (text.len && text.at[0] == ' ') text = (vocab_text){ text.at + 1, text.len - 1 };
    while (text.len && text.at[text.len - 1] == ' ') text.len--;
    return text;
}

static bool rule_is_framed(vocab_text text) {
    if (text.len < 3) return false;
    const uint8_t first = text.at[0], last = text.at[text.len - 1];
    return (first == '<' && last == '>') || (first == '[' && last == ']');
}

/* <name> or </name> with the name of an element. */
static bool rule_is_html(vocab_text text) {
    const size_t skip = text.len > 2 && text.at[1] == '/' ? 2 : 1;
    if (text.len < skip + 2 || text.at[0] != '<' || text.at[text.len - 1] != '>') return false;
    const vocab_text name = { text.at + skip, text.len - skip - 1 };
    for (size_t i = 0; i < PN_ARRAY_LEN(HTML_ELEMENTS); i++)
        if (rule_equals(name, HTML_ELEMENTS[i])) return true;
    return false;
}

void tokenizer_rule_mark_text(vocab *v) {
    bool html = false;
    for (uint32_t id = 0; id < v->n && !html; id++)
        html = v->types[id] == VOCAB_USER_DEFINED && rule_equals(vocab_bytes(v, id), "<table>");
    for (uint32_t id = 0; id < v->n; id++) {
        const vocab_text text = rule_trim(vocab_bytes(v, id));
        if (v->types[id] == VOCAB_USER_DEFINED && (!rule_is_framed(text) || (html && rule_is_html(text))))
            v->marks[id] |= VOCAB_IS_TEXT;
    }
}
