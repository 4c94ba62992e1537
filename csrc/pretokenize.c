/* pretokenize.c - text in, the pieces that byte-pair merging must not cross out: the table.            (rank 3)
 *
 * Knows nothing about vocabularies, and cuts nothing itself: the splitters are in pretokenize_words.c and
 * pretokenize_sets.c.
 * Rows follow the tokenizer.json that was published with the model; where names are those of a file format alone, the
 * split is the one that the format's table of names gives (src/llama-vocab.cpp of llama.cpp). */
#include "pretokenize.h"

#include <string.h>

#include "common.h"
#include "pretokenize_stages.h"

/* Splitters one after the other, each on the pieces of the one before. */
struct pretokenize_split {
    size_t n;
    struct {
        pretokenize_fn *next;
        unsigned option;
    } stages[PRETOKENIZE_MAX_STAGES];
};

static const pretokenize_split SPLIT_GPT2 = { 1, { { pretokenize_gpt2, 0 } } };
static const pretokenize_split SPLIT_DIGITS_GPT2 = { 2, { { pretokenize_each_digit, 0 }, { pretokenize_gpt2, 0 } } };
static const pretokenize_split SPLIT_LLAMA3 = { 1, { { pretokenize_words, WORDS_CONTRACTIONS | WORDS_DIGITS_3 } } };
static const pretokenize_split SPLIT_QWEN2 = { 1, { { pretokenize_words, WORDS_CONTRACTIONS } } };
static const pretokenize_split SPLIT_QWEN35 = { 1, { { pretokenize_words, WORDS_CONTRACTIONS | WORDS_MARKS } } };
static const pretokenize_split SPLIT_TEKKEN = { 1, { { pretokenize_words, WORDS_CASED | WORDS_SLASHES } } };
static const pretokenize_split SPLIT_GPT4O = {
    1,
    { { pretokenize_words, WORDS_CASED | WORDS_SLASHES | WORDS_SUFFIXES | WORDS_DIGITS_3 } },
};
/* Here the reference spells bytes as characters before it looks for digits, so it may cut within a character. */
static const pretokenize_split SPLIT_FALCON = {
    4,
    { { pretokenize_falcon_marks, 0 },
      { pretokenize_gpt2, 0 },
      { pretokenize_digit_bytes, 0 },
      { pretokenize_three_digits, 0 } },
};
static const pretokenize_split SPLIT_DEEPSEEK_LLM = {
    6,
    { { pretokenize_each_line_break, 0 },
      { pretokenize_spaced, SET_DEEPSEEK_LETTERS },
      { pretokenize_spaced, SET_DEEPSEEK_MARKS },
      { pretokenize_last_space, 0 },
      { pretokenize_run, SET_DEEPSEEK_EAST },
      { pretokenize_each_digit, 0 } },
};
static const pretokenize_split SPLIT_DEEPSEEK_CODER = {
    5,
    { { pretokenize_each_line_break, 0 },
      { pretokenize_spaced, SET_LETTERS },
      { pretokenize_spaced, SET_PUNCTUATION },
      { pretokenize_run, SET_DEEPSEEK_EAST },
      { pretokenize_each_digit, 0 } },
};

/* The families, which messages name. */
static const pretokenize_rule PRETOKENIZE_FAMILIES[] = {
    { .name = "smollm", .split = &SPLIT_DIGITS_GPT2 },
    { .name = "gpt-2", .split = &SPLIT_GPT2 },
    { .name = "llama-bpe", .split = &SPLIT_LLAMA3, .whole = true, .add_bos = true },
    { .name = "qwen2", .split = &SPLIT_QWEN2, .nfc = true },
    { .name = "tekken", .split = &SPLIT_TEKKEN, .whole = true, .add_bos = true },
    { .name = "deepseek-llm", .split = &SPLIT_DEEPSEEK_LLM },
    { .name = "deepseek-coder", .split = &SPLIT_DEEPSEEK_CODER },
    { .name = "falcon", .split = &SPLIT_FALCON },
    { .name = "starcoder", .split = &SPLIT_DIGITS_GPT2 },
    { .name = "refact", .split = &SPLIT_DIGITS_GPT2 },
    { .name = "command-r", .split = &SPLIT_DIGITS_GPT2, .nfc = true },
    /* Llama 3's tokenizer, but for the BOS: its ids for the converter's check text are Llama 3's without it. */
    { .name = "smaug-bpe", .split = &SPLIT_LLAMA3, .whole = true },
    /* GPT-NeoX's tokenizer. */
    { .name = "olmo", .split = &SPLIT_GPT2, .nfc = true },
    { .name = "mpt", .split = &SPLIT_GPT2, .nfc = true },
    { .name = "gpt-4o", .split = &SPLIT_GPT4O },
    { .name = "llama4", .split = &SPLIT_GPT4O },
    { .name = "qwen35", .split = &SPLIT_QWEN35, .nfc = true },
};

/* More names of the same splits: of models that took over a family's tokenizer or made their own after it. */
static const pretokenize_rule PRETOKENIZE_OTHERS[] = {
    { .name = "llama3", .split = &SPLIT_LLAMA3, .whole = true, .add_bos = true },
    { .name = "llama-v3", .split = &SPLIT_LLAMA3, .whole = true, .add_bos = true },
    { .name = "pixtral", .split = &SPLIT_LLAMA3, .whole = true, .add_bos = true },
    { .name = "lfm2", .split = &SPLIT_LLAMA3, .whole = true, .add_bos = true },
    { .name = "falcon3", .split = &SPLIT_LLAMA3, .whole = true },
    { .name = "falcon-h1", .split = &SPLIT_LLAMA3, .whole = true },
    { .name = "midm-2.0", .split = &SPLIT_LLAMA3, .whole = true },
    { .name = "glm4", .split = &SPLIT_LLAMA3, .whole = true },
    { .name = "chatglm-bpe", .split = &SPLIT_LLAMA3 },
    { .name = "dbrx", .split = &SPLIT_LLAMA3 },
    { .name = "deepseek-r1-qwen", .split = &SPLIT_QWEN2, .nfc = true },
    { .name = "stablelm2", .split = &SPLIT_QWEN2, .nfc = true },
    { .name = "hunyuan", .split = &SPLIT_QWEN2, .nfc = true },
    { .name = "megrez", .split = &SPLIT_QWEN2, .nfc = true },
    { .name = "grok-2", .split = &SPLIT_QWEN2 },
    { .name = "phi-2", .split = &SPLIT_GPT2 },
    { .name = "jais", .split = &SPLIT_GPT2 },
    { .name = "gigachat", .split = &SPLIT_GPT2 },
    { .name = "mellum", .split = &SPLIT_GPT2 },
    { .name = "granite-docling", .split = &SPLIT_GPT2 },
    { .name = "codeshell", .split = &SPLIT_DIGITS_GPT2 },
    { .name = "exaone", .split = &SPLIT_DIGITS_GPT2 },
    { .name = "minerva-7b", .split = &SPLIT_DIGITS_GPT2 },
};

size_t pretokenize_next(const pretokenize_rule *rule, pretokenize_cursor *cursor, const uint8_t *text, size_t len,
                        size_t pos) {
    const pretokenize_split *const split = rule->split;
    size_t end = len;
    for (size_t i = 0; i < split->n; i++) {
        if (cursor->ends[i] <= pos) cursor->ends[i] = split->stages[i].next(text, pos, end, split->stages[i].option);
        end = cursor->ends[i];
    }
    return end;
}

static const pretokenize_rule *pretokenize_find_in(const pretokenize_rule *rules, size_t n, const char *name,
                                                   size_t len) {
    for (size_t i = 0; i < n; i++)
        if (strlen(rules[i].name) == len && memcmp(rules[i].name, name, len) == 0) return &rules[i];
    return NULL;
}

const pretokenize_rule *pretokenize_find(const char *name, size_t len) {
    const pretokenize_rule *const rule =
        pretokenize_find_in(PRETOKENIZE_FAMILIES, PN_ARRAY_LEN(PRETOKENIZE_FAMILIES), name, len);
    return rule ? rule : pretokenize_find_in(PRETOKENIZE_OTHERS, PN_ARRAY_LEN(PRETOKENIZE_OTHERS), name, len);
}

const char *pretokenize_name(size_t i) {
    const size_t n = PN_ARRAY_LEN(PRETOKENIZE_FAMILIES);
    if (i < n) return PRETOKENIZE_FAMILIES[i].name;
    return i - n < PN_ARRAY_LEN(PRETOKENIZE_OTHERS) ? PRETOKENIZE_OTHERS[i - n].name : NULL;
}

void pretokenize_names(char *out, size_t cap) {
    size_t used = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(PRETOKENIZE_FAMILIES); i++) {
        const char *const parts[2] = { i ? ", " : "", PRETOKENIZE_FAMILIES[i].name };
        for (size_t k = 0; k < 2; k++) {
            const size_t n = size_min(strlen(parts[k]), cap - 1 - used);
            memcpy(out + used, parts[k], n);
            used += n;
        }
    }
    out[used] = '\0';
}
