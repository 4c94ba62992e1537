/* normalize.h - text in, the same text in Unicode's normalization form C out.                        (rank 2)
 *
 * Canonical decomposition, canonical order, canonical composition (Unicode Standard Annex 15), in time and memory
 * linear in the text, whatever it is. Text is any bytes: a byte that begins no well-formed UTF-8 stays where it is, and
 * nothing is composed across it. Text that is in the form already, as nearly all is, costs one look at each character;
 * nothing is copied. The data are those of Unicode 9.0, which the reference tokenizers follow: a character that came
 * later is one that nothing happens to. */
#ifndef PN_NORMALIZE_H
#define PN_NORMALIZE_H

#include <stddef.h>
#include <stdint.h>

/* In UTF-8 no text grows to more than this many times its bytes. */
#define NORMALIZE_GROWTH ((size_t)3)

/* Working memory of one caller: starts as {0}, grows, is reused from text to text. */
typedef struct normalize_scratch {
    uint8_t *bytes; /* [cap] the result, where it is not the text itself         */
    size_t cap;
    uint32_t *codes; /* [codes_cap] characters of one stretch that may change    */
    uint32_t *sorted;
    size_t codes_cap;
} normalize_scratch;

/* Point *out at *out_len bytes: text[0, len) in form C. They are `text` itself or the scratch's, good until its next
 * use. Errors: MEMORY. */
int normalize_nfc(normalize_scratch *scratch, const uint8_t *text, size_t len, const uint8_t **out, size_t *out_len);
void normalize_scratch_free(normalize_scratch *scratch);

#endif
