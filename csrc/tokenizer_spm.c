/* tokenizer_spm.c - the kind "llama": SentencePiece's vocabularies, merged by score.                      (rank 6)
 *
 * Does not merge itself (spm.h) and does not know single models (tokenizer_rules.h). The steps are those of
 * SentencePiece: the text is normalized (character map, white space, the space in front), user-defined pieces are taken
 * out as wholes, the rest is merged, and characters without a piece become the pieces of their bytes.
 * The one thing to know first: between the text and the ids a space is one byte, 0x20, where SentencePiece writes
 * U+2581; pieces were read in that form (VOCAB_MARKED_SPACES), and a U+2581 of the text means the same as a space, as
 * it does there. */
#include <stdlib.h>
#include <string.h>

#include "charsmap.h"
#include "common.h"
#include "spm.h"
#include "status.h"
#include "tokenizer_kinds.h"
#include "tokenizer_rules.h"
#include "unicode.h"
#include "vocab.h"

/* In place of the token for characters that have none. */
#define SPM_LEFT_OUT (UINT32_MAX - 1)

struct tokenizer_spm {
    spm *pieces;
    charsmap *map;          /* NULL: none */
    bool collapse;          /* white space at both ends is dropped, in between one space stays */
    uint32_t byte_ids[256]; /* VOCAB_NONE: the byte has no piece */
    uint32_t unknown;       /* for characters without a piece; VOCAB_NONE: refuse, SPM_LEFT_OUT */
};

void tokenizer_free_spm(tokenizer_spm *own) {
    if (!own) return;
    spm_free(own->pieces);
    charsmap_free(own->map);
    free(own);
}

/* ---- Building ---- */

static int spm_read_roles(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    PN_TRY(tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", &tokenizer->bos));
    tokenizer->add_bos = tokenizer->bos >= 0; /* unless the file says otherwise */
    return tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.unknown_token_id", &tokenizer->unknown);
}

/* The token for characters without a piece: the one that the file names, else the first of that type. Text becomes no
 * control token: where the unknown token is one, the character is left out. */
static void spm_find_unknown(pn_tokenizer *tokenizer) {
    const vocab *const v = &tokenizer->vocab;
    const uint8_t *const typed = memchr(v->types, VOCAB_UNKNOWN, v->n);
    if (tokenizer->unknown < 0 && typed) tokenizer->unknown = typed - v->types;
    tokenizer->spm->unknown = tokenizer->unknown < 0 ? VOCAB_NONE : (uint32_t)tokenizer->unknown;
    if (tokenizer->unknown >= 0 && vocab_is_special(v, tokenizer->spm->unknown)) tokenizer->spm->unknown = SPM_LEFT_OUT;
}

static void spm_find_bytes(pn_tokenizer *tokenizer) {
    const vocab *const v = &tokenizer->vocab;
    memset(tokenizer->spm->byte_ids, 0xFF, sizeof tokenizer->spm->byte_ids);
    for (uint32_t id = v->n; id-- > 0;) { /* the first one stays */
        const vocab_text bytes = vocab_bytes(v, id);
        if (v->types[id] == VOCAB_BYTE && bytes.len == 1) tokenizer->spm->byte_ids[bytes.at[0]] = id;
    }
}

static int spm_build_pieces(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed) {
    const vocab *const v = &tokenizer->vocab;
    float *const scores = malloc((size_t)v->n * sizeof *scores);
    spm_piece *const pieces = malloc((size_t)v->n * sizeof *pieces);
    int status = PN_OK;
    if (!scores || !pieces) status = pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%u tokens)", v->n);
    if (status == PN_OK) status = vocab_read_scores(gguf, v, scores);
    size_t n = 0;
    for (uint32_t id = 0; status == PN_OK && id < v->n; id++) {
        if (!vocab_is_ordinary(v, id) || v->marks[id] & VOCAB_UNREACHABLE) continue;
        const vocab_text bytes = vocab_bytes(v, id);
        pieces[n++] = (spm_piece){ bytes.at, bytes.len, id, scores[id] };
    }
    if (status == PN_OK) status = spm_new(pieces, n, v->n, seed, &tokenizer->spm->pieces);
    free(scores);
    free(pieces);
    return status;
}

static int spm_build_map(tokenizer_spm *own, const pn_gguf *gguf) {
    gguf_array array;
    bool present = false;
    PN_TRY(gguf_get_array(gguf, "tokenizer.ggml.precompiled_charsmap", &array, &present));
    if (!present || array.n == 0) return PN_OK;
    if (array.element_type != PN_VALUE_U8 && array.element_type != PN_VALUE_I8)
        return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.precompiled_charsmap: wanted u8, found %s",
                       gguf_value_type_name(array.element_type));
    uint8_t *const blob = malloc((size_t)array.n);
    if (!blob) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%llu bytes)", (unsigned long long)array.n);
    int status = PN_OK;
    for (size_t i = 0; array.left > 0 && status == PN_OK; i++) {
        int32_t byte = 0;
        status = gguf_array_i32(&array, &byte);
        blob[i] = (uint8_t)byte;
    }
    if (status == PN_OK) status = charsmap_new(blob, (size_t)array.n, &own->map);
    free(blob);
    return status;
}

static int spm_read_spaces(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    const tokenizer_rule *rule = NULL;
    bool present = false;
    PN_TRY(tokenizer_rule_find(gguf, &tokenizer->vocab, &rule));
    tokenizer->space_first = rule->space_first;
    PN_TRY(gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &tokenizer->space_first, &present));
    tokenizer->space_after_special = tokenizer->space_first && rule->space_after_special;
    return gguf_get_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces", &tokenizer->spm->collapse, &present);
}

int tokenizer_build_spm(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed) {
    tokenizer_spm *const own = tokenizer->spm = calloc(1, sizeof *own);
    if (!own) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes)", sizeof *own);
    PN_TRY(vocab_read(gguf, VOCAB_MARKED_SPACES, &tokenizer->vocab));
    PN_TRY(tokenizer_sort_tokens(tokenizer, gguf, seed));
    PN_TRY(spm_read_roles(tokenizer, gguf));
    spm_find_unknown(tokenizer);
    spm_find_bytes(tokenizer);
    PN_TRY(spm_read_spaces(tokenizer, gguf));
    PN_TRY(spm_build_map(own, gguf));
    return spm_build_pieces(tokenizer, gguf, seed);
}

/* ---- Normalizing: run->text[from, to) to run->buffer ---- */

/* Makes room for `more` bytes behind those that are there. */
static int spm_reserve(tokenizer_run *run, size_t more) {
    size_t need = 0;
    if (size_add(run->buffer_len, more, &need) && need <= run->buffer_cap) return PN_OK;
    size_t cap = 0;
    uint8_t *const grown = size_add(need, run->buffer_cap, &cap) && need >= more ? realloc(run->buffer, cap) : NULL;
    if (!grown) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes more of text)", more);
    run->buffer = grown;
    run->buffer_cap = cap;
    return PN_OK;
}

static int spm_append(tokenizer_run *run, const uint8_t *at, size_t len) {
    if (len == 0) return PN_OK;
    PN_TRY(spm_reserve(run, len));
    memcpy(run->buffer + run->buffer_len, at, len);
    run->buffer_len += len;
    return PN_OK;
}

/* Each U+2581 becomes a space. */
static void spm_unmark(tokenizer_run *run) {
    uint8_t *const bytes = run->buffer;
    size_t to = 0;
    for (size_t at = 0; at < run->buffer_len;) {
        const uint8_t *const lead = memchr(bytes + at, 0xE2, run->buffer_len - at);
        const size_t plain = lead ? (size_t)(lead - bytes) - at : run->buffer_len - at;
        if (to != at) memmove(bytes + to, bytes + at, plain);
        to += plain;
        at += plain;
        if (!lead) break;
        const bool mark = run->buffer_len - at >= 3 && memcmp(bytes + at, VOCAB_SPACE_MARK, 3) == 0;
        bytes[to++] = mark ? ' ' : bytes[at];
        at += mark ? 3 : 1;
    }
    run->buffer_len = to;
}

/* What a stretch of the text stands for. */
typedef struct spm_chunk {
    const uint8_t *at;
    size_t len;
    size_t used; /* bytes of the text */
} spm_chunk;

/* The chunk at text[at, to): a user-defined piece as it is, what the map says, or one character. */
static spm_chunk spm_next_chunk(tokenizer_run *run, size_t from, size_t at, size_t to) {
    const tokenizer_spm *const own = run->tokenizer->spm;
    const uint8_t *const text = run->text + at;
    spm_chunk chunk = { text, 1, 1 };
    if (!own->map) return chunk; /* only spaces matter, and they are bytes */
    const special_match *const kept = run->texts.n ? &run->texts.items[run->texts.n - 1] : NULL;
    if (kept && kept->pos == at - from) return (spm_chunk){ text, kept->len, kept->len };
    chunk.used = charsmap_match(own->map, text, to - at, &chunk.at, &chunk.len);
    if (chunk.used) return chunk;
    uint8_t props = 0;
    chunk.len = chunk.used = unicode_step(text, to - at, &props);
    chunk.at = text;
    return chunk;
}

/* Drop the matches of user-defined pieces that begin before `at`; the last one is then the next in the text. */
static void spm_pass_kept(tokenizer_run *run, size_t at) {
    while (run->texts.n && run->texts.items[run->texts.n - 1].pos < at) run->texts.n--;
}

/* Characters that the map replaces, white space that is dropped. The order of steps is the reference's: spaces in front
 * first, then the space that is put there, then runs of spaces. */
static int spm_normalize_chunks(tokenizer_run *run, size_t from, size_t to, bool space) {
    const tokenizer_spm *const own = run->tokenizer->spm;
    const special *const texts = run->tokenizer->texts;
    if (own->map && texts) PN_TRY(special_scan(texts, run->text + from, to - from, &run->texts));
    size_t at = from;
    bool begun = false, after_space = own->collapse;
    while (at < to) {
        spm_pass_kept(run, at - from);
        spm_chunk chunk = spm_next_chunk(run, from, at, to);
        at += chunk.used;
        if (!begun && own->collapse && chunk.len == 1 && chunk.at[0] == ' ') continue;
        if (!begun && space) PN_TRY(spm_append(run, (const uint8_t *)" ", 1));
        begun = true;
        while (after_space && chunk.len && chunk.at[0] == ' ') {
            chunk.at++;
            chunk.len--;
        }
        PN_TRY(spm_append(run, chunk.at, chunk.len));
        if (chunk.len) after_space = own->collapse && chunk.at[chunk.len - 1] == ' ';
    }
    run->texts.n = 0;
    return PN_OK;
}

/* A text, or its part behind a token, that is not empty. */
static int spm_normalize(tokenizer_run *run, size_t from, size_t to) {
    const pn_tokenizer *const tokenizer = run->tokenizer;
    const bool space = tokenizer_adds_space(tokenizer, run->previous), collapse = tokenizer->spm->collapse;
    run->buffer_len = 0;
    if (tokenizer->spm->map || collapse) {
        PN_TRY(spm_normalize_chunks(run, from, to, space));
    } else {
        if (space) PN_TRY(spm_append(run, (const uint8_t *)" ", 1));
        PN_TRY(spm_append(run, run->text + from, to - from));
    }
    if (run->buffer_len) spm_unmark(run);
    while (collapse && run->buffer_len && run->buffer[run->buffer_len - 1] == ' ') run->buffer_len--;
    return PN_OK;
}

/* ---- Encoding ---- */

static void spm_emit(tokenizer_run *run, uint32_t id) {
    tokenizer_emit(run, id);
    run->after_unknown = false;
}

/* A character without a piece: its bytes' pieces if it has all of them, else the unknown token, once for a run. */
static int spm_fall_back(tokenizer_run *run, const uint8_t *character, size_t len) {
    const tokenizer_spm *const own = run->tokenizer->spm;
    if (len == 1 && character[0] == ' ') {
        character = (const uint8_t *)VOCAB_SPACE_MARK;
        len = 3;
    }
    bool known = true;
    for (size_t i = 0; i < len; i++) known &= own->byte_ids[character[i]] != VOCAB_NONE;
    if (known) {
        for (size_t i = 0; i < len; i++) spm_emit(run, own->byte_ids[character[i]]);
        return PN_OK;
    }
    if (own->unknown == VOCAB_NONE)
        return pn_fail(
            PN_ERR_ARGUMENT,
            "tokenizer: \"%.*s\" (byte 0x%02X) has no token in this vocabulary, and the file names no unknown "
            "token; leave it out",
            (int)len, (const char *)character, character[0]);
    if (own->unknown == SPM_LEFT_OUT || run->after_unknown) return PN_OK;
    tokenizer_emit(run, own->unknown);
    run->after_unknown = true;
    return PN_OK;
}

/* Merge run->buffer[at, to), which holds no user-defined piece. */
static int spm_encode_stretch(tokenizer_run *run, size_t at, size_t to) {
    const pn_tokenizer *const tokenizer = run->tokenizer;
    while (at < to) {
        const size_t from = at;
        size_t n = 0;
        PN_TRY(spm_next(tokenizer->spm->pieces, run->buffer, to, &at, &run->scratch, &n));
        if (n == 0) PN_TRY(spm_fall_back(run, run->buffer + from, at - from));
        for (size_t i = 0; i < n; i++) {
            const uint32_t symbol = run->scratch.ids[i];
            uint8_t character[4];
            if (symbol < tokenizer->vocab.n)
                spm_emit(run, symbol);
            else
                PN_TRY(spm_fall_back(run, character, spm_character(tokenizer->spm->pieces, symbol, character)));
        }
    }
    return PN_OK;
}

int tokenizer_encode_spm(tokenizer_run *run, size_t from, size_t to) {
    const special *const texts = run->tokenizer->texts;
    if (from == to) return PN_OK;
    PN_TRY(spm_normalize(run, from, to));
    run->after_unknown = false;
    if (texts) PN_TRY(special_scan(texts, run->buffer, run->buffer_len, &run->texts));
    size_t at = 0;
    for (special_match match; special_next(&run->texts, at, &match); at = match.pos + match.len) {
        PN_TRY(spm_encode_stretch(run, at, match.pos));
        spm_emit(run, match.id);
    }
    return spm_encode_stretch(run, at, run->buffer_len);
}
