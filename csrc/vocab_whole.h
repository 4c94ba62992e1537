/* vocab_whole.h - the bytes of a piece of text in, the token that stands for exactly these bytes out.    (rank 4)
 *
 * A hash table that is filled once and then only read. */
#ifndef PN_VOCAB_WHOLE_H
#define PN_VOCAB_WHOLE_H

#include <stddef.h>
#include <stdint.h>

#include "vocab.h"

typedef struct vocab_whole vocab_whole;

/* The ordinary tokens of a byte-level vocabulary by the bytes that they stand for; of equal ones the first. A token
 * whose spelling is not in the alphabet of bytes stands for no text and is left out. `v` is borrowed as long as the
 * table lives; `index` only now. The seed is mixed into the hash so that a file cannot be made to collide. Owned.
 * Errors: MEMORY. */
int vocab_whole_new(const vocab *v, const vocab_index *index, uint64_t seed, vocab_whole **out);
void vocab_whole_free(vocab_whole *table); /* NULL is fine */
/* The token of bytes[0, len), or VOCAB_NONE. */
uint32_t vocab_whole_find(const vocab_whole *table, const uint8_t *bytes, size_t len);

#endif
