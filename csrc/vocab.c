/* vocab.c - a file's token list in, the bytes and types of each token out; while building, texts to ids. (rank 4)
 *
 * Does not keep spellings: after building only the bytes that tokens stand for remain.
 * Byte-level vocabularies spell each byte as one printable character: bytes that are printable in Latin-1 as
 * themselves, the others, in order, as U+0100 and up. A space is thus spelled U+0120. */
#include "vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "hash.h"
#include "status.h"
#include "unicode.h"

/* ---- Byte-level spelling ---- */

/* Is this byte spelled as the character of the same number? */
static bool vocab_is_printable(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/* The bytes 0x00-0x20, 0x7F-0xA0 and 0xAD, numbered from U+0100. */
static uint32_t vocab_code_of_byte(uint8_t byte) {
    if (vocab_is_printable(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x121u + (byte - 0x7Fu);
}

/* The byte that a character spells, or -1. */
static int vocab_byte_of_code(uint32_t code) {
    if (code < 0x100) return vocab_is_printable(code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

size_t vocab_spell_byte(uint8_t byte, uint8_t out[2]) {
    const uint32_t code = vocab_code_of_byte(byte);
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    out[0] = (uint8_t)(0xC0 | code >> 6);
    out[1] = (uint8_t)(0x80 | (code & 0x3F));
    return 2;
}

/* The bytes that a spelling stands for to out (at most len of them); returns how many. A spelling with any other
 * character stands for itself, as in the reference's decoder. */
static size_t vocab_decode_spelling(vocab_text text, uint8_t *out) {
    size_t n = 0;
    for (size_t at = 0; at < text.len;) {
        uint32_t code = 0;
        const size_t step = unicode_decode(text.at + at, text.len - at, &code);
        const int byte = step ? vocab_byte_of_code(code) : -1;
        if (byte < 0) {
            memcpy(out, text.at, text.len);
            return text.len;
        }
        out[n++] = (uint8_t)byte;
        at += step;
    }
    return n;
}

static int vocab_hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0xHH>" names, with two hex digits; -1 for any other text. */
static int vocab_byte_of_token(vocab_text text) {
    const bool framed = text.len == 6 && memcmp(text.at, "<0x", 3) == 0 && text.at[5] == '>';
    const int high = framed ? vocab_hex_digit(text.at[3]) : -1;
    const int low = framed ? vocab_hex_digit(text.at[4]) : -1;
    return high >= 0 && low >= 0 ? high << 4 | low : -1;
}

/* A token of type BYTE that is spelled in any other way stands for itself. */
static size_t vocab_decode_byte_token(vocab_text text, uint8_t *out) {
    const int byte = vocab_byte_of_token(text);
    if (byte >= 0) {
        out[0] = (uint8_t)byte;
        return 1;
    }
    memcpy(out, text.at, text.len);
    return text.len;
}

/* ---- Marked spaces ---- */

/* U+2581, the mark, becomes a space; everything else is itself. */
static size_t vocab_decode_marks(vocab_text text, uint8_t *out) {
    size_t n = 0;
    for (size_t at = 0; at < text.len;) {
        const bool mark = text.len - at >= 3 && memcmp(text.at + at, VOCAB_SPACE_MARK, 3) == 0;
        out[n++] = mark ? ' ' : text.at[at];
        at += mark ? 3 : 1;
    }
    return n;
}

static size_t vocab_decode(vocab_text text, vocab_spelling spelling, int type, uint8_t *out) {
    if (text.len == 0) return 0;
    if (type == VOCAB_BYTE) return vocab_decode_byte_token(text, out);
    const bool ordinary = type == VOCAB_NORMAL || type == VOCAB_UNUSED;
    if (spelling == VOCAB_BYTE_LEVEL && ordinary) return vocab_decode_spelling(text, out);
    if (spelling == VOCAB_MARKED_SPACES && (ordinary || type == VOCAB_USER_DEFINED))
        return vocab_decode_marks(text, out);
    memcpy(out, text.at, text.len);
    return text.len;
}

bool vocab_is_ordinary(const vocab *v, uint32_t id) {
    return v->types[id] == VOCAB_NORMAL || v->types[id] == VOCAB_UNUSED;
}

bool vocab_is_special(const vocab *v, uint32_t id) {
    if (v->types[id] == VOCAB_USER_DEFINED) return !(v->marks[id] & VOCAB_IS_TEXT);
    return v->types[id] == VOCAB_CONTROL;
}

vocab_text vocab_bytes(const vocab *v, uint32_t id) {
    return (vocab_text){ v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id] };
}

/* ---- Index of spellings ---- */

/* Where a spelling of an ordinary or other token is in the index, or would be. */
static size_t vocab_slot(const vocab_index *index, vocab_text text, bool ordinary) {
    size_t at = hash_bytes_slot(ordinary ? index->seed : ~index->seed, text.at, text.len, index->mask);
    for (;; at = (at + 1) & index->mask) {
        const uint32_t id = index->ids[at];
        if (id == VOCAB_NONE) return at;
        if (index->texts[id].len == text.len && vocab_is_ordinary(index->vocab, id) == ordinary &&
            memcmp(index->texts[id].at, text.at, text.len) == 0)
            return at;
    }
}

uint32_t vocab_find(const vocab_index *index, const uint8_t *text, size_t len, bool ordinary) {
    if (len == 0) return VOCAB_NONE;
    return index->ids[vocab_slot(index, (vocab_text){ text, len }, ordinary)];
}

/* Enter all tokens that have a text; of equal ones the first stays. */
static int vocab_index_fill(vocab_index *index) {
    size_t slots = 16, bytes = 0;
    while (slots < 2 * (uint64_t)index->vocab->n) slots *= 2;
    if (size_mul(slots, sizeof *index->ids, &bytes)) index->ids = malloc(bytes);
    if (!index->ids)
        return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes for the index of tokens)", bytes);
    memset(index->ids, 0xFF, bytes);
    index->mask = slots - 1;
    for (uint32_t id = 0; id < index->vocab->n; id++) {
        if (index->texts[id].len == 0) continue;
        const size_t at = vocab_slot(index, index->texts[id], vocab_is_ordinary(index->vocab, id));
        if (index->ids[at] == VOCAB_NONE) index->ids[at] = id;
    }
    return PN_OK;
}

/* ---- Reading ---- */

/* The array tokenizer.ggml.tokens and its length, which everything else is measured by. */
static int vocab_open_tokens(const pn_gguf *gguf, gguf_array *tokens) {
    PN_TRY(gguf_get_array(gguf, "tokenizer.ggml.tokens", tokens, NULL));
    if (tokens->element_type != PN_VALUE_STRING)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.tokens: wanted strings, found %s",
                       gguf_value_type_name(tokens->element_type));
    if (tokens->n == 0) return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.tokens: the vocabulary is empty");
    if (tokens->n > VOCAB_MAX_TOKENS)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.tokens: %llu tokens are too many",
                       (unsigned long long)tokens->n);
    return PN_OK;
}

/* An array with one entry for each token, if the file has it. */
static int vocab_open_parallel(const pn_gguf *gguf, const char *key, uint64_t n, gguf_array *array, bool *present) {
    PN_TRY(gguf_get_array(gguf, key, array, present));
    if (*present && array->n != n)
        return pn_fail(PN_ERR_METADATA, "%s: has %llu entries, but tokenizer.ggml.tokens has %llu", key,
                       (unsigned long long)array->n, (unsigned long long)n);
    return PN_OK;
}

/* Types default to NORMAL in a file without token_type. */
static int vocab_read_types(const pn_gguf *gguf, vocab *v) {
    gguf_array array;
    bool present = false;
    PN_TRY(vocab_open_parallel(gguf, "tokenizer.ggml.token_type", v->n, &array, &present));
    v->typed = present;
    memset(v->types, VOCAB_NORMAL, v->n);
    for (uint32_t id = 0; present && id < v->n; id++) {
        int32_t type = 0;
        PN_TRY(gguf_array_i32(&array, &type));
        if (type < VOCAB_NORMAL || type > VOCAB_BYTE)
            return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.token_type: token %u has the unknown type %d", id, type);
        v->types[id] = (uint8_t)type;
    }
    return PN_OK;
}

/* Mark the tokens that begin or end something. */
static int vocab_mark_borders(const pn_gguf *gguf, vocab *v) {
    static const char *const KEYS[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    for (size_t i = 0; i < PN_ARRAY_LEN(KEYS); i++) {
        uint32_t id = 0;
        bool present = false;
        PN_TRY(gguf_get_u32(gguf, KEYS[i], &id, &present));
        if (present && id < v->n) v->marks[id] |= VOCAB_BORDER; /* that it exists is checked where it is used */
    }
    return PN_OK;
}

/* Is this how the token of a single byte is spelled? */
static bool vocab_spells_byte(vocab_text text, vocab_spelling spelling) {
    if (spelling == VOCAB_MARKED_SPACES) return vocab_byte_of_token(text) >= 0;
    uint32_t code = 0;
    return text.len && unicode_decode(text.at, text.len, &code) == text.len && vocab_byte_of_code(code) >= 0;
}

/* Byte-level vocabularies have no use for scores, but a file in which they are nonsense is not to be trusted. */
static int vocab_open_scores(const pn_gguf *gguf, const vocab *v, gguf_array *array, bool *present) {
    PN_TRY(vocab_open_parallel(gguf, "tokenizer.ggml.scores", v->n, array, present));
    if (*present && array->element_type != PN_VALUE_F32 && array->element_type != PN_VALUE_F64)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.scores: wanted f32, found %s",
                       gguf_value_type_name(array->element_type));
    return PN_OK;
}

int vocab_read_scores(const pn_gguf *gguf, const vocab *v, float *scores) {
    gguf_array array;
    bool present = false;
    PN_TRY(vocab_open_scores(gguf, v, &array, &present));
    if (!present)
        return pn_fail(PN_ERR_METADATA,
                       "tokenizer.ggml.scores is missing: without it the order of this vocabulary's merges is unknown");
    for (uint32_t id = 0; id < v->n; id++) {
        PN_TRY(gguf_array_f32(&array, &scores[id]));
        if (scores[id] != scores[id])
            return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.scores: that of token %u is not a number", id);
    }
    return PN_OK;
}

/* Are bytes to be known by how they are spelled, because the file has no type for them? */
static bool vocab_guesses_bytes(const vocab *v, vocab_spelling spelling) {
    return spelling == VOCAB_MARKED_SPACES && memchr(v->types, VOCAB_BYTE, v->n) == NULL;
}

/* What the tokens stand for. A token's bytes are never more than its spelling's, so the encoded array's size bounds the
 * block. */
static int vocab_read_texts(gguf_array *tokens, vocab_spelling spelling, vocab *v) {
    const size_t bound = (size_t)(tokens->end - tokens->at);
    const bool guess = vocab_guesses_bytes(v, spelling);
    v->bytes = malloc(bound + 1);
    if (!v->bytes) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes of token texts)", bound);
    size_t used = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *at = NULL;
        size_t len = 0;
        PN_TRY(gguf_array_str(tokens, &at, &len));
        const vocab_text text = { (const uint8_t *)at, len };
        if (v->marks[id] & VOCAB_BORDER && v->types[id] != VOCAB_USER_DEFINED && !vocab_spells_byte(text, spelling))
            v->types[id] = VOCAB_CONTROL;
        if (guess && vocab_is_ordinary(v, id) && vocab_byte_of_token(text) >= 0) v->types[id] = VOCAB_BYTE;
        if (spelling == VOCAB_MARKED_SPACES && vocab_is_ordinary(v, id) && len && memchr(at, ' ', len))
            v->marks[id] |= VOCAB_UNREACHABLE;
        v->offsets[id] = used;
        used += vocab_decode(text, spelling, v->types[id], v->bytes + used);
    }
    v->offsets[v->n] = used;
    uint8_t *const fitted = realloc(v->bytes, used + 1);
    if (fitted) v->bytes = fitted;
    return PN_OK;
}

int vocab_read(const pn_gguf *gguf, vocab_spelling spelling, vocab *out) {
    gguf_array tokens;
    PN_TRY(vocab_open_tokens(gguf, &tokens));
    out->n = (uint32_t)tokens.n;
    out->types = malloc(out->n);
    out->marks = calloc(out->n, 1);
    out->offsets = malloc(((size_t)out->n + 1) * sizeof *out->offsets);
    if (!out->types || !out->marks || !out->offsets)
        return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%u tokens)", out->n);
    PN_TRY(vocab_read_types(gguf, out));
    PN_TRY(vocab_mark_borders(gguf, out));
    gguf_array scores;
    bool scored = false;
    PN_TRY(vocab_open_scores(gguf, out, &scores, &scored));
    return vocab_read_texts(&tokens, spelling, out);
}

int vocab_index_new(const pn_gguf *gguf, const vocab *v, uint64_t seed, vocab_index *out) {
    gguf_array tokens;
    PN_TRY(vocab_open_tokens(gguf, &tokens));
    out->vocab = v;
    out->seed = seed;
    out->texts = malloc((size_t)v->n * sizeof *out->texts);
    if (!out->texts) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%u tokens)", v->n);
    for (uint32_t id = 0; id < v->n; id++) {
        const char *at = NULL;
        size_t len = 0;
        PN_TRY(gguf_array_str(&tokens, &at, &len)); /* also if the file was changed meanwhile and has fewer */
        out->texts[id] = (vocab_text){ (const uint8_t *)at, len };
    }
    return vocab_index_fill(out);
}

void vocab_free(vocab *v) {
    free(v->types);
    free(v->marks);
    free(v->offsets);
    free(v->bytes);
    *v = (vocab){ 0 };
}

void vocab_index_free(vocab_index *index) {
    free(index->texts);
    free(index->ids);
    *index = (vocab_index){ 0 };
}
