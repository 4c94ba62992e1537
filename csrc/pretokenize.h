/* pretokenize.h - text in, the pieces that byte-pair merging must not cross out.                     (rank 2)
 *
 * One table row for each value of tokenizer.ggml.pre; a row is a hand-written scanner that gives the same pieces as
 * the regular expressions of the model's reference tokenizer, in linear time and without recursion. To add a model
 * family write its scanner in pretokenize.c and add the row.
 * Text is any bytes: a byte that begins no well-formed UTF-8 is a character of its own, neither letter, number nor
 * space (unicode.h). */
#ifndef PN_PRETOKENIZE_H
#define PN_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

typedef struct pretokenize_rule {
    const char *name; /* as in tokenizer.ggml.pre */
    /* End of the piece that begins at text[pos], pos < len: always > pos and <= len. The pieces from 0 to len cover
     * the text. Only whole texts may be given: the end of the text decides how trailing white space is cut. */
    size_t (*next)(const uint8_t *text, size_t len, size_t pos);
} pretokenize_rule;

/* The row of a name of `len` bytes, or NULL. Static. */
const pretokenize_rule *pretokenize_find(const char *name, size_t len);
/* The names of all rows, "smollm, gpt-2", into out[cap], cut to fit and terminated; cap >= 1. */
void pretokenize_names(char *out, size_t cap);

#endif
