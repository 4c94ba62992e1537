/* tokenizer.h - text to token ids and back, from a file's metadata; the public calls are in pantheon.h.   (rank 6)
 *
 * What pantheon.h leaves open:
 *   - Text is any bytes. A byte that begins no well-formed UTF-8 is a character by itself, neither letter, number nor
 *     space, so where the vocabulary has all 256 bytes, the pieces of pn_tokenize's ids always join to the text again;
 *     where the reference normalizes, to the text whose parts between control tokens are in normalization form C.
 *   - A byte (in vocabularies of SentencePiece a character) that the vocabulary has no token for becomes the file's
 *     unknown token. Where that one is a control token, which text must never become, it is left out, as the reference
 *     does with it. In a file that names no unknown token it is PN_ERR_ARGUMENT, naming the byte.
 *   - Without PN_ENCODE_SPECIAL no control or user-defined token comes out, whatever the text and the file's merges;
 *     but for user-defined tokens that are plain text (tokenizer_rules.h).
 *   - Vocabularies of SentencePiece: the pieces join to the text with a space in front where pn_tokenizer_adds_space()
 *     says so. A U+2581 comes back as a space, and what the file itself normalizes away does not come back.
 *   - PN_ENCODE_BOS adds no second BOS to a text that begins with one (with PN_ENCODE_SPECIAL, spelled out),
 *     PN_ENCODE_EOS no second EOS to one that ends with it. */
#ifndef PN_TOKENIZER_H
#define PN_TOKENIZER_H

#include "gguf.h"
#include "pantheon.h"

/* pn_tokenizer_new with a status. *out is NULL after a failure. */
int tokenizer_new(const pn_gguf *gguf, pn_tokenizer **out);
/* The name in row `index` of the table of kinds (tokenizer.ggml.model), or NULL past its end. Static. */
const char *tokenizer_kind_name(size_t index);

#endif
