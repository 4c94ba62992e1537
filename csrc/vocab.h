/* vocab.h - a file's token list in, the bytes and types of each token out; while building, texts to ids. (rank 4)
 *
 * Knows the metadata of the list (tokenizer.ggml.tokens, token_type, scores) and how token texts are spelled, but no
 * algorithm that cuts text into tokens. */
#ifndef PN_VOCAB_H
#define PN_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf.h"

#define VOCAB_NONE UINT32_MAX
/* Ids are used as uint32_t and as int by callers. */
#define VOCAB_MAX_TOKENS ((uint64_t)INT32_MAX)

/* As numbered in GGUF files. Text is made of NORMAL, UNUSED and, in byte-fallback vocabularies, BYTE tokens. */
typedef enum vocab_type {
    VOCAB_NORMAL = 1,
    VOCAB_UNKNOWN = 2,
    VOCAB_CONTROL = 3,
    VOCAB_USER_DEFINED = 4,
    VOCAB_UNUSED = 5,
    VOCAB_BYTE = 6,
} vocab_type;

typedef struct vocab {
    uint32_t n;
    uint8_t *types;  /* [n] vocab_type                                                         */
    size_t *offsets; /* [n + 1] token i has the bytes bytes[offsets[i], offsets[i + 1])        */
    uint8_t *bytes;  /* what the tokens stand for, in one block                                */
} vocab;

/* Texts as spelled in the file, for the time of building; points into the gguf. */
typedef struct vocab_text {
    const uint8_t *at;
    size_t len;
} vocab_text;

typedef struct vocab_index {
    const vocab *vocab;
    vocab_text *texts; /* [n]                                                                            */
    uint32_t *ids;     /* [mask + 1] open addressing: spelling to the first token with it; VOCAB_NONE: empty */
    size_t mask;
    uint64_t seed;
} vocab_index;

/* Read the list of a byte-level vocabulary. *out and *index start as {0} and are released with the functions below,
 * also after a failure. The index holds ordinary tokens (VOCAB_NORMAL, VOCAB_UNUSED) and, apart from them, all others.
 * Errors: METADATA, MEMORY. */
int vocab_read(const pn_gguf *gguf, uint64_t seed, vocab *out, vocab_index *index);
void vocab_free(vocab *v);
void vocab_index_free(vocab_index *index);

/* Can text become this token without a caller's leave? */
bool vocab_is_ordinary(const vocab *v, uint32_t id);
/* Is it looked for as a whole in text (control and user-defined tokens)? */
bool vocab_is_special(const vocab *v, uint32_t id);
/* First ordinary (or, with ordinary false, first other) token spelled text[0, len); VOCAB_NONE if none is. */
uint32_t vocab_find(const vocab_index *index, const uint8_t *text, size_t len, bool ordinary);
/* How a byte is spelled in byte-level vocabularies: 1 or 2 bytes of UTF-8 to out; returns how many. */
size_t vocab_spell_byte(uint8_t byte, uint8_t out[2]);

#endif
