/* pretokenize.h - text in, the pieces that byte-pair merging must not cross out.                     (rank 3)
 *
 * One table row for each value of tokenizer.ggml.pre (pretokenize.c). The reference tokenizers apply a list of
 * splitters one after the other, each to the pieces of the one before; so does a row here, with hand-written splitters
 * that give the same pieces as the reference's regular expressions, in linear time and without recursion. To add a
 * model family whose splitters exist add a row, else write its splitter (pretokenize_stages.h).
 * Text is any bytes: a byte that begins no well-formed UTF-8 is a character of its own, neither letter, number nor
 * space (unicode.h). */
#ifndef PN_PRETOKENIZE_H
#define PN_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRETOKENIZE_MAX_STAGES 6

typedef struct pretokenize_split pretokenize_split;

typedef struct pretokenize_rule {
    const char *name; /* as in tokenizer.ggml.pre */
    const pretokenize_split *split;
    bool nfc;     /* the reference brings text to normalization form C first (normalize.h)              */
    bool whole;   /* a piece that is a token as a whole is taken as it is, whatever the merges make of it */
    bool add_bos; /* where the file does not say: the reference puts a BOS in front                     */
} pretokenize_rule;

/* Where a walk over one text is; starts as {0}. ends[i]: end of the piece of splitter i that the walk is in. */
typedef struct pretokenize_cursor {
    size_t ends[PRETOKENIZE_MAX_STAGES];
} pretokenize_cursor;

/* End of the piece that begins at text[pos], pos < len: always > pos and <= len. Called with pos = 0 and then the end
 * before, with one cursor, it gives pieces that cover the text. Only whole texts may be given: their end decides how
 * trailing white space is cut. */
size_t pretokenize_next(const pretokenize_rule *rule, pretokenize_cursor *cursor, const uint8_t *text, size_t len,
                        size_t pos);

/* The row of a name of `len` bytes, or NULL. Static. */
const pretokenize_rule *pretokenize_find(const char *name, size_t len);
/* The name of row i, families first; NULL behind the last. */
const char *pretokenize_name(size_t i);
/* The names of the families, "smollm, gpt-2", for a message, into out[cap], cut to fit and terminated; cap >= 1. */
void pretokenize_names(char *out, size_t cap);

#endif
