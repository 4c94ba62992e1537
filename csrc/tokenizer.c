/* tokenizer.c - text to token ids and back, from a file's metadata.                                  (rank 6)
 *
 * What all kinds of vocabulary share: the keys for roles, the control tokens, the public calls. How text without
 * control tokens becomes ids is up to the kind: one file each, one row each in the table below (tokenizer_kinds.h).
 * A tokenizer never changes after tokenizer_new; a call's working memory is in its tokenizer_run. */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bpe.h"
#include "common.h"
#include "special.h"
#include "status.h"
#include "tokenizer_kinds.h"
#include "tokenizer_rules.h"
#include "unicode.h"
#include "vocab.h"

/* ---- Building ---- */

static const tokenizer_kind TOKENIZER_KINDS[] = {
    { "gpt2", tokenizer_build_gpt2, tokenizer_encode_gpt2 },
    { "llama", tokenizer_build_spm, tokenizer_encode_spm },
};

const char *tokenizer_kind_name(size_t index) {
    return index < PN_ARRAY_LEN(TOKENIZER_KINDS) ? TOKENIZER_KINDS[index].name : NULL;
}

static int tokenizer_find_kind(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    const char *model = NULL;
    size_t len = 0;
    PN_TRY(gguf_get_str(gguf, "tokenizer.ggml.model", &model, &len, NULL));
    for (size_t i = 0; i < PN_ARRAY_LEN(TOKENIZER_KINDS); i++) {
        const tokenizer_kind *const kind = &TOKENIZER_KINDS[i];
        if (strlen(kind->name) != len || memcmp(kind->name, model, len) != 0) continue;
        tokenizer->kind = kind;
        return PN_OK;
    }
    return pn_fail(PN_ERR_UNSUPPORTED, "tokenizer.ggml.model: \"%.*s\" is not supported (known: gpt2, llama)",
                   TOKENIZER_SHOWN(len), model);
}

int tokenizer_read_id(const pn_tokenizer *tokenizer, const pn_gguf *gguf, const char *key, int64_t *id) {
    uint32_t value = 0;
    bool present = false;
    *id = -1;
    PN_TRY(gguf_get_u32(gguf, key, &value, &present));
    if (!present) return PN_OK;
    if (value >= tokenizer->vocab.n)
        return pn_fail(PN_ERR_METADATA, "%s: token %u does not exist, the vocabulary has %u", key, value,
                       tokenizer->vocab.n);
    *id = value;
    return PN_OK;
}

/* Ids with a role are never text: in a file without types they are what is known about control tokens. */
static int tokenizer_mark_roles(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    static const char *const KEYS[] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.eom_token_id",
    };
    vocab *const v = &tokenizer->vocab;
    for (size_t i = 0; i < PN_ARRAY_LEN(KEYS); i++) {
        int64_t id = -1;
        PN_TRY(tokenizer_read_id(tokenizer, gguf, KEYS[i], &id));
        if (id < 0) continue;
        v->marks[id] &= (uint8_t)~VOCAB_IS_TEXT;
        if (!v->typed && !(v->marks[id] & VOCAB_BORDER)) v->types[id] = VOCAB_CONTROL;
    }
    return PN_OK;
}

/* Does a token belong into a set? */
typedef bool tokenizer_choice(const vocab *v, uint32_t id);

static bool tokenizer_is_text(const vocab *v, uint32_t id) {
    return v->marks[id] & VOCAB_IS_TEXT;
}

/* The set of the chosen tokens, by the bytes that they stand for; NULL if there are none. */
static int tokenizer_build_set(const vocab *v, tokenizer_choice *chosen, uint64_t seed, special **out) {
    size_t n = 0;
    *out = NULL;
    for (uint32_t id = 0; id < v->n; id++) n += chosen(v, id);
    if (n == 0) return PN_OK;
    special_text *const texts = calloc(n, sizeof *texts);
    if (!texts) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu control and user-defined tokens)", n);
    size_t used = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        if (!chosen(v, id)) continue;
        const vocab_text bytes = vocab_bytes(v, id);
        texts[used++] = (special_text){ bytes.at, bytes.len, id };
    }
    const int status = special_new(texts, n, seed, out);
    free(texts);
    return status;
}

int tokenizer_sort_tokens(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed) {
    vocab *const v = &tokenizer->vocab;
    const tokenizer_rule *rule = NULL;
    PN_TRY(tokenizer_rule_repair(gguf, v));
    tokenizer_rule_mark_text(v);
    PN_TRY(tokenizer_mark_roles(tokenizer, gguf));
    PN_TRY(tokenizer_rule_find(gguf, v, &rule));
    tokenizer_rule_mark_swallowing(rule, v);
    return tokenizer_build_set(v, tokenizer_is_text, seed, &tokenizer->texts);
}

static int tokenizer_compare_ids(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Append the ids of the optional array eos_token_ids to ids[*n], which has room for them. */
static int tokenizer_append_eos_ids(const pn_tokenizer *tokenizer, gguf_array *array, uint32_t *ids, size_t *n) {
    while (array->left > 0) {
        int32_t id = 0;
        PN_TRY(gguf_array_i32(array, &id));
        if (id < 0 || (uint32_t)id >= tokenizer->vocab.n)
            return pn_fail(PN_ERR_METADATA, "%s: token %d does not exist, the vocabulary has %u", array->key, id,
                           tokenizer->vocab.n);
        ids[(*n)++] = (uint32_t)id;
    }
    return PN_OK;
}

/* What ends a reply: only what the file's keys say, never how a token is spelled. */
static int tokenizer_read_stop_ids(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    int64_t named[3] = { tokenizer->eos, -1, -1 };
    PN_TRY(tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eot_token_id", &named[1]));
    PN_TRY(tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eom_token_id", &named[2]));
    gguf_array array = { 0 };
    bool present = false;
    PN_TRY(gguf_get_array(gguf, "tokenizer.ggml.eos_token_ids", &array, &present));
    const size_t room = PN_ARRAY_LEN(named) + (present ? (size_t)array.n : 0);
    uint32_t *const ids = tokenizer->stop_ids = calloc(room, sizeof *ids);
    if (!ids) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu end tokens)", room);
    size_t n = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(named); i++)
        if (named[i] >= 0) ids[n++] = (uint32_t)named[i];
    if (present) PN_TRY(tokenizer_append_eos_ids(tokenizer, &array, ids, &n));
    qsort(ids, n, sizeof *ids, tokenizer_compare_ids);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || ids[i] != ids[i - 1]) ids[tokenizer->n_stop_ids++] = ids[i];
    return PN_OK;
}

/* Whether encoding adds the token `id`. *add holds what the kind does where the file does not say. */
static int tokenizer_read_add(const pn_gguf *gguf, const char *what, const char *role, int64_t id, bool *add) {
    char key[64];
    bool asked = false, present = false;
    snprintf(key, sizeof key, "tokenizer.ggml.add_%s_token", role);
    PN_TRY(gguf_get_bool(gguf, key, &asked, &present));
    if (asked && id < 0)
        return pn_fail(PN_ERR_METADATA, "%s: asks for %s, but tokenizer.ggml.%s_token_id is missing", key, what, role);
    *add = present ? asked : *add && id >= 0;
    return PN_OK;
}

static int tokenizer_read_roles(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    PN_TRY(tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", &tokenizer->bos));
    PN_TRY(tokenizer_read_id(tokenizer, gguf, "tokenizer.ggml.eos_token_id", &tokenizer->eos));
    PN_TRY(tokenizer_read_add(gguf, "a BOS", "bos", tokenizer->bos, &tokenizer->add_bos));
    PN_TRY(tokenizer_read_add(gguf, "an EOS", "eos", tokenizer->eos, &tokenizer->add_eos));
    return tokenizer_read_stop_ids(tokenizer, gguf);
}

/* A number that a file's author cannot know, so that no file is made to collide in the hash tables. Results do not
 * depend on it. */
static uint64_t tokenizer_make_seed(void) {
    struct timespec now = { 0 };
    timespec_get(&now, TIME_UTC);
    const uint64_t time = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    return (time ^ (uint64_t)(uintptr_t)&now << 20) * UINT64_C(0x9E3779B97F4A7C15);
}

static int tokenizer_build(pn_tokenizer *tokenizer, const pn_gguf *gguf) {
    const uint64_t seed = tokenizer_make_seed();
    PN_TRY(tokenizer_find_kind(tokenizer, gguf));
    PN_TRY(tokenizer->kind->build(tokenizer, gguf, seed));
    PN_TRY(tokenizer_read_roles(tokenizer, gguf));
    return tokenizer_build_set(&tokenizer->vocab, vocab_is_special, seed, &tokenizer->specials);
}

int tokenizer_new(const pn_gguf *gguf, pn_tokenizer **out) {
    *out = NULL;
    pn_tokenizer *const tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes)", sizeof *tokenizer);
    tokenizer->bos = tokenizer->eos = tokenizer->unknown = -1;
    const int status = tokenizer_build(tokenizer, gguf);
    if (status != PN_OK) {
        pn_tokenizer_free(tokenizer);
        return status;
    }
    *out = tokenizer;
    return PN_OK;
}

pn_tokenizer *pn_tokenizer_new(const pn_gguf *gguf) {
    pn_tokenizer *tokenizer = NULL;
    if (!gguf)
        pn_fail(PN_ERR_ARGUMENT, "pn_tokenizer_new: no file given");
    else
        tokenizer_new(gguf, &tokenizer);
    return tokenizer;
}

void pn_tokenizer_free(pn_tokenizer *tokenizer) {
    if (!tokenizer) return;
    vocab_free(&tokenizer->vocab);
    tokenizer_free_spm(tokenizer->spm);
    special_free(tokenizer->specials);
    special_free(tokenizer->texts);
    bpe_free(tokenizer->merges);
    vocab_whole_free(tokenizer->whole);
    free(tokenizer->stop_ids);
    free(tokenizer);
}

/* ---- Encoding ---- */

void tokenizer_emit(tokenizer_run *run, uint32_t id) {
    if (run->n < run->cap) run->ids[run->n] = id;
    run->n++;
}

bool tokenizer_adds_space(const pn_tokenizer *tokenizer, int64_t previous) {
    if (previous < 0) return tokenizer->space_first;
    return tokenizer->space_after_special && vocab_is_special(&tokenizer->vocab, (uint32_t)previous);
}

/* text[from, to), which holds no control token and follows `previous`: some of those swallow the white space there. */
static int tokenizer_encode_part(tokenizer_run *run, int64_t previous, size_t from, size_t to) {
    const vocab *const v = &run->tokenizer->vocab;
    if (previous >= 0 && v->marks[previous] & VOCAB_SWALLOWS) {
        while (from < to) {
            uint8_t props = 0;
            const size_t step = unicode_step(run->text + from, to - from, &props);
            if ((props & UNICODE_CLASS_MASK) != UNICODE_SPACE) break;
            from += step;
        }
    }
    run->previous = previous;
    return run->tokenizer->kind->encode(run, from, to);
}

static int tokenizer_encode(tokenizer_run *run, int64_t previous, size_t len, int flags) {
    const pn_tokenizer *const tokenizer = run->tokenizer;
    const bool looks = flags & PN_ENCODE_SPECIAL && tokenizer->specials;
    if (looks) PN_TRY(special_scan(tokenizer->specials, run->text, len, &run->matches));
    special_match match;
    bool found = special_next(&run->matches, 0, &match);
    const bool has_bos = found && match.pos == 0 && (int64_t)match.id == tokenizer->bos;
    if (flags & PN_ENCODE_BOS && tokenizer->add_bos && !has_bos) tokenizer_emit(run, (uint32_t)tokenizer->bos);
    size_t at = 0;
    bool has_eos = false;
    for (; found; found = special_next(&run->matches, at, &match)) {
        PN_TRY(tokenizer_encode_part(run, previous, at, match.pos));
        tokenizer_emit(run, match.id);
        at = match.pos + match.len;
        has_eos = at == len && (int64_t)match.id == tokenizer->eos;
        previous = match.id;
    }
    PN_TRY(tokenizer_encode_part(run, previous, at, len));
    if (flags & PN_ENCODE_EOS && tokenizer->add_eos && !has_eos) tokenizer_emit(run, (uint32_t)tokenizer->eos);
    return PN_OK;
}

int64_t pn_tokenize_after(const pn_tokenizer *tokenizer, int64_t previous, const char *text, size_t len, int flags,
                          uint32_t *ids, size_t cap) {
    if ((!text && len) || (!ids && cap)) return -pn_fail(PN_ERR_ARGUMENT, "pn_tokenize: NULL with a length");
    if (flags & ~(PN_ENCODE_SPECIAL | PN_ENCODE_BOS | PN_ENCODE_EOS))
        return -pn_fail(PN_ERR_ARGUMENT, "pn_tokenize: unknown flags %#x", (unsigned)flags);
    if (previous < -1 || previous >= (int64_t)tokenizer->vocab.n)
        return -pn_fail(PN_ERR_ARGUMENT, "pn_tokenize: token %lld does not exist, the vocabulary has %u",
                        (long long)previous, tokenizer->vocab.n);
    if (previous >= 0 && flags & PN_ENCODE_BOS)
        return -pn_fail(PN_ERR_ARGUMENT, "pn_tokenize: a BOS stands at the beginning, not behind token %lld",
                        (long long)previous);
    /* An empty text may come as NULL, to which no offset may be added. */
    const char *const bytes = text ? text : "";
    tokenizer_run run = { .tokenizer = tokenizer, .text = (const uint8_t *)bytes, .ids = ids, .cap = cap };
    const int status = tokenizer_encode(&run, previous, len, flags);
    bpe_scratch_free(&run.scratch);
    normalize_scratch_free(&run.normalized);
    special_matches_free(&run.matches);
    special_matches_free(&run.texts);
    free(run.buffer);
    return status == PN_OK ? (int64_t)run.n : -status;
}

int64_t pn_tokenize(const pn_tokenizer *tokenizer, const char *text, size_t len, int flags, uint32_t *ids, size_t cap) {
    return pn_tokenize_after(tokenizer, -1, text, len, flags, ids, cap);
}

/* ---- Looking at tokens ---- */

const char *pn_token_piece(const pn_tokenizer *tokenizer, uint32_t id, size_t *len) {
    if (id >= tokenizer->vocab.n) {
        *len = 0;
        pn_fail(PN_ERR_ARGUMENT, "token %u does not exist, the vocabulary has %u", id, tokenizer->vocab.n);
        return NULL;
    }
    const vocab_text bytes = vocab_bytes(&tokenizer->vocab, id);
    *len = bytes.len;
    return (const char *)bytes.at;
}

int64_t pn_detokenize(const pn_tokenizer *tokenizer, int64_t previous, const uint32_t *ids, size_t n, bool spell_out,
                      char *bytes, size_t cap) {
    const vocab *const v = &tokenizer->vocab;
    if ((!ids && n) || (!bytes && cap)) return -pn_fail(PN_ERR_ARGUMENT, "pn_detokenize: NULL with a length");
    bool drops_space = pn_tokenizer_adds_space(tokenizer, previous);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= v->n)
            return -pn_fail(PN_ERR_ARGUMENT, "token %u does not exist, the vocabulary has %u", ids[i], v->n);
        vocab_text piece = vocab_bytes(v, ids[i]);
        const bool is_control = v->types[ids[i]] == VOCAB_CONTROL;
        if (piece.len == 0 || (is_control && !spell_out)) continue;
        if (drops_space && !is_control) {
            drops_space = false;
            if (piece.at[0] == ' ') piece = (vocab_text){ piece.at + 1, piece.len - 1 };
        }
        if (piece.len > (size_t)INT64_MAX - used)
            return -pn_fail(PN_ERR_ARGUMENT, "pn_detokenize: the text is too long");
        if (used < cap) memcpy(bytes + used, piece.at, size_min(piece.len, cap - used));
        used += piece.len;
    }
    return (int64_t)used;
}

bool pn_tokenizer_adds_space(const pn_tokenizer *tokenizer, int64_t previous) {
    return previous < (int64_t)tokenizer->vocab.n && tokenizer_adds_space(tokenizer, previous);
}

int64_t pn_token_id(const pn_tokenizer *tokenizer, const char *text, size_t len) {
    return tokenizer->specials ? special_find(tokenizer->specials, (const uint8_t *)text, len) : -1;
}

int pn_token_type(const pn_tokenizer *tokenizer, uint32_t id) {
    return id < tokenizer->vocab.n ? tokenizer->vocab.types[id] : 0;
}

uint32_t pn_tokenizer_n_vocab(const pn_tokenizer *tokenizer) {
    return tokenizer->vocab.n;
}

int64_t pn_tokenizer_bos(const pn_tokenizer *tokenizer) {
    return tokenizer->bos;
}

int64_t pn_tokenizer_eos(const pn_tokenizer *tokenizer) {
    return tokenizer->eos;
}

bool pn_tokenizer_add_bos(const pn_tokenizer *tokenizer) {
    return tokenizer->add_bos;
}

bool pn_tokenizer_add_eos(const pn_tokenizer *tokenizer) {
    return tokenizer->add_eos;
}

int pn_tokenizer_stop_ids(const pn_tokenizer *tokenizer, uint32_t *ids, int cap) {
    const size_t room = cap > 0 ? (size_t)cap : 0;
    for (size_t i = 0; i < size_min(room, tokenizer->n_stop_ids); i++) ids[i] = tokenizer->stop_ids[i];
    return (int)tokenizer->n_stop_ids;
}
