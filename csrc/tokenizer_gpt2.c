/* tokenizer_gpt2.c - the kind "gpt2": byte-level byte-pair merging.                                    (rank 6)
 *
 * Does not cut into pieces or merge itself: pretokenize.h and bpe.h do. Here the keys of a byte-level vocabulary are
 * read, and text without control tokens goes through the steps. */
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "common.h"
#include "pretokenize.h"
#include "status.h"
#include "tokenizer_kinds.h"
#include "vocab.h"

/* In place of a byte's token. */
#define TOKENIZER_LEFT_OUT (UINT32_MAX - 1)

/* ---- Building ---- */

static int tokenizer_find_rule(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    const char *pre = NULL;
    size_t len = 0;
    bool present = false;
    char known[256];
    pretokenize_names(known, sizeof known);
    PN_TRY(gguf_get_str(gguf, "tokenizer.ggml.pre", &pre, &len, &present));
    if (!present)
        return pn_fail(PN_ERR_UNSUPPORTED,
                       "tokenizer.ggml.pre is missing: how this vocabulary cuts text into words is unknown (known: %s)",
                       known);
    tokenizer->rule = pretokenize_find(pre, len);
    if (!tokenizer->rule)
        return pn_fail(PN_ERR_UNSUPPORTED, "tokenizer.ggml.pre: \"%.*s\" is not supported (known: %s)",
                       TOKENIZER_SHOWN(len), pre, known);
    tokenizer->add_bos = tokenizer->rule->add_bos;
    return PN_OK;
}

/* The token of each byte, or what takes its place. */
static void tokenizer_find_bytes(pn_tokenizer *tokenizer, const vocab_index *index) {
    uint32_t missing = VOCAB_NONE;
    if (tokenizer->unknown >= 0) {
        missing = (uint32_t)tokenizer->unknown;
        if (vocab_is_special(&tokenizer->vocab, missing)) missing = TOKENIZER_LEFT_OUT;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t spelling[2];
        const size_t len = vocab_spell_byte((uint8_t)byte, spelling);
        const uint32_t id = vocab_find(index, spelling, len, true);
        tokenizer->byte_ids[byte] = id != VOCAB_NONE ? id : missing;
    }
}

/* One entry of tokenizer.ggml.merges, "left right", taken apart: two non-empty spellings round the only space. */
static int tokenizer_split_merge(const uint8_t *text, size_t len, uint64_t rank, size_t *left_len) {
    const uint8_t *const space = len ? memchr(text, ' ', len) : NULL;
    const size_t left = space ? (size_t)(space - text) : 0;
    if (left == 0 || left + 1 == len || memchr(space + 1, ' ', len - left - 1))
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.merges: entry %llu, \"%.*s\", is not two tokens and a space",
                       (unsigned long long)rank, TOKENIZER_SHOWN(len), (const char *)text);
    *left_len = left;
    return PN_OK;
}

/* The ordinary token of a spelling. A spelling that only a control or user-defined token has gives VOCAB_NONE: its
 * merge is skipped, or text could become that token. One that no token has is an error, as in the reference. */
static int tokenizer_merge_token(const vocab_index *index, const uint8_t *text, size_t len, uint64_t rank,
                                 uint32_t *id) {
    *id = vocab_find(index, text, len, true);
    if (*id == VOCAB_NONE && vocab_find(index, text, len, false) == VOCAB_NONE)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.merges: entry %llu names \"%.*s\", which is not a token",
                       (unsigned long long)rank, TOKENIZER_SHOWN(len), (const char *)text);
    return PN_OK;
}

/* Enter one merge. joined has room for len bytes. */
static int tokenizer_add_merge(bpe *merges, const vocab_index *index, const uint8_t *text, size_t len, uint64_t rank,
                               uint8_t *joined) {
    size_t left_len = 0;
    PN_TRY(tokenizer_split_merge(text, len, rank, &left_len));
    const uint8_t *const right_text = text + left_len + 1;
    const size_t right_len = len - left_len - 1;
    memcpy(joined, text, left_len);
    memcpy(joined + left_len, right_text, right_len);
    uint32_t left = 0, right = 0, result = 0;
    PN_TRY(tokenizer_merge_token(index, text, left_len, rank, &left));
    PN_TRY(tokenizer_merge_token(index, right_text, right_len, rank, &right));
    PN_TRY(tokenizer_merge_token(index, joined, len - 1, rank, &result));
    if (left != VOCAB_NONE && right != VOCAB_NONE && result != VOCAB_NONE)
        bpe_add(merges, left, right, (uint32_t)rank, result);
    return PN_OK;
}

static int tokenizer_read_merges(pn_tokenizer *tokenizer, const pn_gguf *gguf, const vocab_index *index,
                                 uint64_t seed) {
    gguf_array array;
    PN_TRY(gguf_get_array(gguf, "tokenizer.ggml.merges", &array, NULL));
    if (array.element_type != PN_VALUE_STRING)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.merges: wanted strings, found %s",
                       gguf_value_type_name(array.element_type));
    if (array.n > VOCAB_MAX_TOKENS)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.merges: %llu merges are too many", (unsigned long long)array.n);
    PN_TRY(bpe_new((size_t)array.n, seed, &tokenizer->merges));
    const size_t bound = (size_t)(array.end - array.at); /* no entry is longer */
    uint8_t *const joined = malloc(bound + 1);
    if (!joined) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes)", bound);
    int status = PN_OK;
    for (uint64_t rank = 0; rank < array.n && status == PN_OK; rank++) {
        const char *text = NULL;
        size_t len = 0;
        status = gguf_array_str(&array, &text, &len);
        if (status == PN_OK)
            status = tokenizer_add_merge(tokenizer->merges, index, (const uint8_t *)text, len, rank, joined);
    }
    free(joined);
    return status;
}

int tokenizer_build_gpt2(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed) {
    PN_TRY(tokenizer_find_rule(tokenizer, gguf));
    vocab_index index = { 0 };
    PN_TRY(vocab_read(gguf, VOCAB_BYTE_LEVEL, &tokenizer->vocab));
    PN_TRY(tokenizer_sort_tokens(tokenizer, gguf, seed));
    int status = vocab_index_new(gguf, &tokenizer->vocab, seed, &index);
    if (status == PN_OK)
        status = tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.unknown_token_id", &tokenizer->unknown);
    if (status == PN_OK) tokenizer_find_bytes(tokenizer, &index);
    if (status == PN_OK) status = tokenizer_read_merges(tokenizer, gguf, &index, seed);
    if (status == PN_OK && tokenizer->rule->whole)
        status = vocab_whole_new(&tokenizer->vocab, &index, seed, &tokenizer->whole);
    vocab_index_free(&index);
    return status;
}

/* ---- Encoding ---- */

/* piece[0, len), at `offset` of its text, to symbols in the scratch; *n is how many (bytes may be left out). */
static int tokenizer_load_symbols(tokenizer_run *run, const uint8_t *piece, size_t len, size_t offset, size_t *n) {
    PN_TRY(bpe_reserve(&run->scratch, len));
    uint32_t *const ids = run->scratch.ids;
    size_t used = 0;
    for (size_t at = 0; at < len; at++) {
        const uint32_t id = run->tokenizer->byte_ids[piece[at]];
        if (id < TOKENIZER_LEFT_OUT) {
            ids[used++] = id;
        } else if (id == VOCAB_NONE) {
            return pn_fail(PN_ERR_ARGUMENT,
                           "tokenizer: byte 0x%02X at offset %zu of the text has no token in this vocabulary, and the "
                           "file names no unknown token; leave the byte out",
                           piece[at], offset + at);
        }
    }
    *n = used;
    return PN_OK;
}

static int tokenizer_encode_piece(tokenizer_run *run, const uint8_t *piece, size_t len, size_t offset) {
    const pn_tokenizer *const tokenizer = run->tokenizer;
    if (tokenizer->whole) {
        const uint32_t id = vocab_whole_find(tokenizer->whole, piece, len);
        if (id != VOCAB_NONE) {
            tokenizer_emit(run, id);
            return PN_OK;
        }
    }
    size_t n = 0;
    PN_TRY(tokenizer_load_symbols(run, piece, len, offset, &n));
    n = bpe_merge(tokenizer->merges, &run->scratch, n);
    for (size_t i = 0; i < n; i++) tokenizer_emit(run, run->scratch.ids[i]);
    return PN_OK;
}

/* Normalized text without user-defined tokens, at `offset` of its text. The rule sees it as a whole text, as the
 * reference splits what stands between added tokens. */
static int tokenizer_encode_stretch(tokenizer_run *run, const uint8_t *stretch, size_t len, size_t offset) {
    pretokenize_cursor cursor = { { 0 } };
    for (size_t at = 0; at < len;) {
        const size_t end = pretokenize_next(run->tokenizer->rule, &cursor, stretch, len, at);
        PN_TRY(tokenizer_encode_piece(run, stretch + at, end - at, offset + at));
        at = end;
    }
    return PN_OK;
}

/* The reference normalizes each part between control tokens by itself, and then takes out the user-defined tokens that
 * are text: of the families that normalize at all, all have these as "normalized": true. */
int tokenizer_encode_gpt2(tokenizer_run *run, size_t from, size_t to) {
    const pn_tokenizer *const tokenizer = run->tokenizer;
    const uint8_t *part = run->text + from;
    size_t len = to - from, at = 0;
    if (tokenizer->rule->nfc) PN_TRY(normalize_nfc(&run->normalized, part, len, &part, &len));
    if (tokenizer->texts) PN_TRY(special_scan(tokenizer->texts, part, len, &run->texts));
    for (special_match match; special_next(&run->texts, at, &match); at = match.pos + match.len) {
        PN_TRY(tokenizer_encode_stretch(run, part + at, match.pos - at, from + at));
        tokenizer_emit(run, match.id);
    }
    return tokenizer_encode_stretch(run, part + at, len - at, from + at);
}
