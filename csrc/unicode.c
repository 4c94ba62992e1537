/* unicode.c - bytes in, characters with their properties out.                                        (rank 1)
 *
 * Does not normalize, change case or know about grapheme clusters.
 * The tables in unicode_tables.h follow the reference tokenizer's idea of Unicode; see tools/gen_unicode.py. */
#include "unicode.h"

#include "unicode_tables.h"

_Static_assert(UNICODE_CO == 29, "categories are numbered as in tools/gen_unicode.py");

/* What a first byte >= 0x80 announces: how many bytes in all, and the range of the second. n == 0: no first byte. */
typedef struct unicode_lead {
    uint8_t n, low, high;
} unicode_lead;

static unicode_lead unicode_lead_of(uint8_t byte) {
    if (byte >= 0xC2 && byte <= 0xDF) return (unicode_lead){ 2, 0x80, 0xBF };
    if (byte == 0xE0) return (unicode_lead){ 3, 0xA0, 0xBF };
    if (byte == 0xED) return (unicode_lead){ 3, 0x80, 0x9F };
    if (byte >= 0xE1 && byte <= 0xEF) return (unicode_lead){ 3, 0x80, 0xBF };
    if (byte == 0xF0) return (unicode_lead){ 4, 0x90, 0xBF };
    if (byte >= 0xF1 && byte <= 0xF3) return (unicode_lead){ 4, 0x80, 0xBF };
    if (byte == 0xF4) return (unicode_lead){ 4, 0x80, 0x8F };
    return (unicode_lead){ 0, 0, 0 };
}

size_t unicode_decode(const uint8_t *text, size_t len, uint32_t *code) {
    const uint8_t first = text[0];
    if (first < 0x80) {
        *code = first;
        return 1;
    }
    const unicode_lead lead = unicode_lead_of(first);
    if (lead.n == 0 || len < lead.n || text[1] < lead.low || text[1] > lead.high) return 0;
    uint32_t value = first & (0x7Fu >> lead.n);
    value = value << 6 | (text[1] & 0x3Fu);
    for (size_t i = 2; i < lead.n; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (text[i] & 0x3Fu);
    }
    *code = value;
    return lead.n;
}

size_t unicode_encode(uint32_t code, uint8_t out[4]) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xC0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xE0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (code & 0x3F));
    return 4;
}

uint8_t unicode_props(uint32_t code) {
    if (code > 0x10FFFF) return UNICODE_OTHER;
    return UNICODE_BLOCKS[(size_t)UNICODE_INDEX[code >> 7] * 128 + (code & 127)];
}

size_t unicode_step_any(const uint8_t *text, size_t len, uint8_t *props) {
    uint32_t code = 0;
    const size_t n = unicode_decode(text, len, &code);
    *props = n ? unicode_props(code) : UNICODE_OTHER;
    return n ? n : 1;
}
