/* charsmap.h - the character map of a SentencePiece file in, what characters are replaced by out.      (rank 4)
 *
 * The map ("precompiled_charsmap") is how such a file writes down a normalization such as nmt_nfkc: for sequences of
 * bytes the bytes that take their place. It is all input: any bytes are safe, nonsense at worst replaces nothing. */
#ifndef PN_CHARSMAP_H
#define PN_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct charsmap charsmap;

/* Build from a copy of the blob. Owned. Errors: METADATA (sizes that cannot be), MEMORY. */
int charsmap_new(const uint8_t *blob, size_t len, charsmap **out);
void charsmap_free(charsmap *map); /* NULL is fine */
/* How many bytes at text[0, len) are replaced: those of the longest rule that fits, 0 if none does. *to and *to_len
 * are the replacement (it may be empty), borrowed from the map. */
size_t charsmap_match(const charsmap *map, const uint8_t *text, size_t len, const uint8_t **to, size_t *to_len);

#endif
