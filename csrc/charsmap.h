/* charsmap.h - the character map of a SentencePiece file in, what characters are replaced by out.      (rank 4)
 *
 * The map ("precompiled_charsmap") is how such a file writes down a normalization such as nmt_nfkc: for sequences of
 * bytes the bytes that take their place. It is all input: any bytes are safe, nonsense at worst replaces nothing. */
#ifndef PN_CHARSMAP_H
#define PN_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

/* Longest rule and longest replacement in bytes, far above what the maps of SentencePiece have (12 and 33). They bound
 * what a hostile map costs: a trie whose units lead back to themselves would be walked to the end of the text from each
 * of its characters, and a replacement of a megabyte would come for each. */
#define CHARSMAP_MAX ((size_t)256)

typedef struct charsmap charsmap;

/* Build from a copy of the blob. Owned. Errors: METADATA (sizes that cannot be), UNSUPPORTED (a replacement beyond
 * CHARSMAP_MAX), MEMORY. */
int charsmap_new(const uint8_t *blob, size_t len, charsmap **out);
void charsmap_free(charsmap *map); /* NULL is fine */
/* How many bytes at text[0, len) are replaced: those of the longest rule that fits, 0 if none does; a rule beyond
 * CHARSMAP_MAX never fits. *to and *to_len are the replacement (it may be empty), borrowed from the map. */
size_t charsmap_match(const charsmap *map, const uint8_t *text, size_t len, const uint8_t **to, size_t *to_len);

#endif
