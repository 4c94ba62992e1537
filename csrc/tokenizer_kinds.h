/* tokenizer_kinds.h - what tokenizer.c and the files of the kinds of vocabulary share.                  (rank 5)
 *
 * For tokenizer*.c alone. A kind is what tokenizer.ggml.model names; to add one, write tokenizer_NAME.c, declare its
 * functions here and add its row to the table in tokenizer.c. */
#ifndef PN_TOKENIZER_KINDS_H
#define PN_TOKENIZER_KINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bpe.h"
#include "common.h"
#include "gguf.h"
#include "normalize.h"
#include "pantheon.h"
#include "pretokenize.h"
#include "special.h"
#include "vocab.h"
#include "vocab_whole.h"

/* Names in messages come from the file: show this much of them. */
#define TOKENIZER_SHOWN(len) ((int)size_min(len, 80))

typedef struct tokenizer_spm tokenizer_spm;

/* One call of pn_tokenize. */
typedef struct tokenizer_run {
    const pn_tokenizer *tokenizer;
    const uint8_t *text;
    int64_t previous; /* the token that the part to encode follows; -1: it begins the text */
    uint32_t *ids;    /* [cap] */
    size_t cap;
    size_t n; /* ids that the text has so far; those from cap on are only counted */
    bpe_scratch scratch;
    normalize_scratch normalized;
    special_matches matches;
    special_matches texts; /* user-defined tokens in the part to encode */
    /* Of the kind "llama": */
    uint8_t *buffer; /* [buffer_cap] the part as its merges see it, buffer_len bytes */
    size_t buffer_len, buffer_cap;
    bool after_unknown; /* the last id stands for characters without a piece */
} tokenizer_run;

/* What tokenizer.ggml.model chooses. */
typedef struct tokenizer_kind {
    const char *name;
    /* Read the vocabulary and `unknown`, and what the kind needs; tokenizer_sort_tokens() comes right behind
     * vocab_read(). After a failure the tokenizer is freed as it is. */
    int (*build)(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed);
    /* Encode text[from, to), which holds no control token. */
    int (*encode)(tokenizer_run *run, size_t from, size_t to);
} tokenizer_kind;

struct pn_tokenizer {
    const tokenizer_kind *kind;
    vocab vocab;
    special *specials;
    special *texts;            /* user-defined tokens that ordinary text becomes; NULL: none */
    int64_t bos, eos, unknown; /* -1: none */
    bool add_bos, add_eos;     /* what the file asks for; the kind sets what holds where it does not say */
    uint32_t *stop_ids;        /* [n_stop_ids] ascending */
    size_t n_stop_ids;
    /* Where a text gets a space in front that decoding takes off again: at its beginning, behind special tokens. */
    bool space_first, space_after_special;
    tokenizer_spm *spm; /* of the kind "llama", else NULL */
    /* Byte-level merging: */
    const pretokenize_rule *rule;
    bpe *merges;
    vocab_whole *whole;     /* NULL: pieces are always merged        */
    uint32_t byte_ids[256]; /* VOCAB_NONE: no token, refuse */
};

/* The token id under a key, -1 if the file does not have the key; tokenizer->vocab was read. Errors: METADATA. */
int tokenizer_read_id(const pn_tokenizer *tokenizer, const pn_gguf *gguf, const char *key, int64_t *id);
/* Finish what is known about the tokens of tokenizer->vocab, which was just read: types and marks by the rules
 * (tokenizer_rules.h) and by the roles that the file names; makes the set `texts`. Errors: METADATA, MEMORY,
 * UNSUPPORTED. */
int tokenizer_sort_tokens(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed);
/* Append an id to what the call has so far. */
void tokenizer_emit(tokenizer_run *run, uint32_t id);

/* Does a text that follows this token (-1: begins) get a space in front? */
bool tokenizer_adds_space(const pn_tokenizer *tokenizer, int64_t previous);

/* tokenizer_spm.c */
int tokenizer_build_spm(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed);
int tokenizer_encode_spm(tokenizer_run *run, size_t from, size_t to);
void tokenizer_free_spm(tokenizer_spm *own); /* NULL is fine */

/* tokenizer_gpt2.c */
int tokenizer_build_gpt2(pn_tokenizer *tokenizer, const pn_gguf *gguf, uint64_t seed);
int tokenizer_encode_gpt2(tokenizer_run *run, size_t from, size_t to);

#endif
