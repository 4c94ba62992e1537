/* vocab.h - a file's token list in, the bytes and types of each token out; while building, texts to ids. (rank 4)
 *
 * Knows the metadata of the list (tokenizer.ggml.tokens, token_type, scores) and how token texts are spelled, but no
 * algorithm that cuts text into tokens. Two spellings are known: byte-level (each byte is a printable character) and
 * marked spaces (text as it is, but U+2581 for a space, and "<0x0A>" for the byte 0x0A). */
#ifndef PN_VOCAB_H
#define PN_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf.h"

#define VOCAB_NONE UINT32_MAX
/* U+2581: how vocabularies with marked spaces spell a space. */
#define VOCAB_SPACE_MARK "\xE2\x96\x81"
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

typedef enum vocab_spelling { VOCAB_BYTE_LEVEL, VOCAB_MARKED_SPACES } vocab_spelling;

/* What a kind of vocabulary found out about a token, beside its type. */
enum {
    VOCAB_IS_TEXT = 1,     /* user-defined, but no marker: ordinary text becomes it, whoever wrote the text */
    VOCAB_SWALLOWS = 2,    /* white space that follows it in a text is dropped                              */
    VOCAB_UNREACHABLE = 4, /* ordinary, but spelled with a space where the spelling marks them              */
    VOCAB_BORDER = 8,      /* the file names it as what begins or ends a sequence, a turn or a message      */
};

typedef struct vocab {
    uint32_t n;
    bool typed;      /* the file has token_type (else all are VOCAB_NORMAL)                    */
    uint8_t *types;  /* [n] vocab_type                                                         */
    uint8_t *marks;  /* [n] the flags above                                                    */
    size_t *offsets; /* [n + 1] token i has the bytes bytes[offsets[i], offsets[i + 1])        */
    uint8_t *bytes;  /* what the tokens stand for, in one block                                */
} vocab;

/* Some bytes: as spelled in the file, or what they stand for. Borrowed. */
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

/* Read the list. *out starts as {0} and is released with vocab_free(), also after a failure. With marked spaces, and no
 * token of type BYTE in the file, ordinary tokens spelled "<0x00>" to "<0xFF>" become VOCAB_BYTE. Tokens that the file
 * names as its bos, eos, eot or eom become VOCAB_CONTROL whatever type they have, so that no text is ever read as the
 * end of a turn; but user-defined ones stay so, and a byte's own token stays text, which could not be written without
 * it. Errors: METADATA, MEMORY. */
int vocab_read(const pn_gguf *gguf, vocab_spelling spelling, vocab *out);
/* Index the spellings of the file that v was read from. *out starts as {0} and is released with vocab_index_free(),
 * also after a failure. It holds ordinary tokens (VOCAB_NORMAL, VOCAB_UNUSED) and, apart from them, all others; it
 * points into gguf and v. Errors: METADATA, MEMORY. */
int vocab_index_new(const pn_gguf *gguf, const vocab *v, uint64_t seed, vocab_index *out);
/* The scores to scores[v->n]. Errors: METADATA (there are none, or one is not a number). */
int vocab_read_scores(const pn_gguf *gguf, const vocab *v, float *scores);
void vocab_free(vocab *v);
void vocab_index_free(vocab_index *index);

/* Can text become this token without a caller's leave? */
bool vocab_is_ordinary(const vocab *v, uint32_t id);
/* Is it looked for as a whole where the caller allows it (control and user-defined tokens, no VOCAB_IS_TEXT)? */
bool vocab_is_special(const vocab *v, uint32_t id);
/* The bytes that a token stands for; borrowed. */
vocab_text vocab_bytes(const vocab *v, uint32_t id);
/* First ordinary (or, with ordinary false, first other) token spelled text[0, len); VOCAB_NONE if none is. */
uint32_t vocab_find(const vocab_index *index, const uint8_t *text, size_t len, bool ordinary);
/* How a byte is spelled in byte-level vocabularies: 1 or 2 bytes of UTF-8 to out; returns how many. */
size_t vocab_spell_byte(uint8_t byte, uint8_t out[2]);

#endif
