/* unicode.h - bytes in, characters with their properties out.                                        (rank 1)
 *
 * Text here is any bytes. A character is either a well-formed UTF-8 sequence (as in the Unicode Standard, table 3-7:
 * no surrogates, nothing overlong, nothing above U+10FFFF) or, where none begins, one single byte of class
 * UNICODE_OTHER, category Cn. So every byte string is a list of characters, and stepping always moves forward. */
#ifndef PN_UNICODE_H
#define PN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A character's properties, packed: category << 3 | UNICODE_NUMERIC | class. The classes exclude each other. */
enum {
    UNICODE_OTHER = 0,      /* none of the following                                                    */
    UNICODE_LETTER = 1,     /* general category L*                                                      */
    UNICODE_NUMBER = 2,     /* general category N* in Unicode 16.0                                      */
    UNICODE_SPACE = 3,      /* property White_Space                                                     */
    UNICODE_CLASS_MASK = 3, /* props & this is the class                                                */
    UNICODE_NUMERIC = 4,    /* a flag: general category N* in Unicode 17.0 (13 more than UNICODE_NUMBER) */
    UNICODE_CATEGORY_SHIFT = 3,
};

/* General categories, props >> UNICODE_CATEGORY_SHIFT. tools/gen_unicode.py has the same order. */
typedef enum unicode_category {
    UNICODE_CN,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CS,
    UNICODE_CO,
} unicode_category;

/* Bytes of the well-formed character at text[0, len), len >= 1, and its code point; 0 if none begins there. */
size_t unicode_decode(const uint8_t *text, size_t len, uint32_t *code);
/* The inverse, for a code point that is no surrogate: 1 to 4 bytes to out; returns how many. */
size_t unicode_encode(uint32_t code, uint8_t out[4]);
/* Properties of a code point; those of an unassigned one above U+10FFFF. */
uint8_t unicode_props(uint32_t code);
/* Properties of the code points below 128. */
extern const uint8_t unicode_ascii[128];
/* unicode_step for any first byte. */
size_t unicode_step_any(const uint8_t *text, size_t len, uint8_t *props);

/* Bytes of the character at text[0, len), len >= 1 (1 where nothing well-formed begins), and its properties. */
static inline size_t unicode_step(const uint8_t *text, size_t len, uint8_t *props) {
    if (text[0] >= 0x80) return unicode_step_any(text, len, props);
    *props = unicode_ascii[text[0]];
    return 1;
}

static inline unicode_category unicode_category_of(uint8_t props) {
    return (unicode_category)(props >> UNICODE_CATEGORY_SHIFT);
}
/* General categories M*, P*, S*. */
static inline bool unicode_is_mark(uint8_t props) {
    return unicode_category_of(props) >= UNICODE_MN && unicode_category_of(props) <= UNICODE_ME;
}
static inline bool unicode_is_punctuation(uint8_t props) {
    return unicode_category_of(props) >= UNICODE_PC && unicode_category_of(props) <= UNICODE_PO;
}
static inline bool unicode_is_symbol(uint8_t props) {
    return unicode_category_of(props) >= UNICODE_SM && unicode_category_of(props) <= UNICODE_SO;
}

#endif
