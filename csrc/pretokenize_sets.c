/* pretokenize_sets.c - splitters that look for characters of a set, and give what they find and what lies between.
 *
 * Rank 3. All but the last white space are the same walk: from where a piece begins, either something that is looked
 * for begins there, or the piece goes on to where one does. */
#include "common.h"
#include "pretokenize_stages.h"

/* ---- Sets ---- */

/* Code points from first to last, ascending. */
typedef struct set_range {
    uint32_t first, last;
} set_range;

/* The letters that deepseek-llm's expression lists: of alphabets that have capitals. */
static const set_range DEEPSEEK_LETTERS[] = {
    { 0x0041, 0x005A },   { 0x0061, 0x007A },   { 0x00B5, 0x00B5 },   { 0x00C0, 0x00D6 },   { 0x00D8, 0x00F6 },
    { 0x00F8, 0x01BA },   { 0x01BC, 0x01BF },   { 0x01C4, 0x0293 },   { 0x0295, 0x02AF },   { 0x0370, 0x0373 },
    { 0x0376, 0x0377 },   { 0x037B, 0x037D },   { 0x037F, 0x037F },   { 0x0386, 0x0386 },   { 0x0388, 0x038A },
    { 0x038C, 0x038C },   { 0x038E, 0x03A1 },   { 0x03A3, 0x03F5 },   { 0x03F7, 0x0481 },   { 0x048A, 0x052F },
    { 0x0531, 0x0556 },   { 0x10A0, 0x10C5 },   { 0x13A0, 0x13F5 },   { 0x13F8, 0x13FD },   { 0x1C90, 0x1CBA },
    { 0x1CBD, 0x1CBF },   { 0x1D00, 0x1D2B },   { 0x1D6B, 0x1D77 },   { 0x1D79, 0x1D9A },   { 0x1E00, 0x1F15 },
    { 0x1F18, 0x1F1D },   { 0x1F20, 0x1F45 },   { 0x1F48, 0x1F4D },   { 0x1F50, 0x1F57 },   { 0x1F59, 0x1F59 },
    { 0x1F5B, 0x1F5B },   { 0x1F5D, 0x1F5D },   { 0x1F5F, 0x1F7D },   { 0x1F80, 0x1FB4 },   { 0x1FB6, 0x1FBC },
    { 0x1FBE, 0x1FBE },   { 0x1FC2, 0x1FC4 },   { 0x1FC6, 0x1FCC },   { 0x1FD0, 0x1FD3 },   { 0x1FD6, 0x1FDB },
    { 0x1FE0, 0x1FEC },   { 0x1FF2, 0x1FF4 },   { 0x1FF6, 0x1FFC },   { 0x2102, 0x2102 },   { 0x2107, 0x2107 },
    { 0x210A, 0x2113 },   { 0x2115, 0x2115 },   { 0x2119, 0x211D },   { 0x2124, 0x2124 },   { 0x2126, 0x2126 },
    { 0x2128, 0x2128 },   { 0x212A, 0x212D },   { 0x212F, 0x2134 },   { 0x2139, 0x2139 },   { 0x213C, 0x213F },
    { 0x2145, 0x2149 },   { 0x214E, 0x214E },   { 0x2183, 0x2184 },   { 0x2C00, 0x2C7B },   { 0x2C7E, 0x2CE4 },
    { 0x2CEB, 0x2CEE },   { 0x2CF2, 0x2CF3 },   { 0xA640, 0xA66D },   { 0xA680, 0xA69B },   { 0xA722, 0xA76F },
    { 0xA771, 0xA787 },   { 0xA78B, 0xA78E },   { 0xAB70, 0xABBF },   { 0xFB00, 0xFB06 },   { 0xFB13, 0xFB17 },
    { 0xFF21, 0xFF3A },   { 0xFF41, 0xFF5A },   { 0x10400, 0x1044F }, { 0x104B0, 0x104D3 }, { 0x104D8, 0x104FB },
    { 0x10C80, 0x10CB2 }, { 0x10CC0, 0x10CF2 }, { 0x118A0, 0x118DF }, { 0x1E900, 0x1E943 },
};
/* Its punctuation, which from ':' on runs over the letters to '~'. */
static const set_range DEEPSEEK_MARKS[] = {
    { 0x0021, 0x002F }, { 0x003A, 0x007E }, { 0x2018, 0x201F },
    { 0x3000, 0x3002 }, { 0xFF01, 0xFF0F }, { 0xFF1A, 0xFF5E },
};
/* What it takes for East Asian. */
static const set_range DEEPSEEK_EAST[] = { { 0x0800, 0x9FA5 }, { 0xAC00, 0xD7FF } };

/* The splitter of punctuation that the reference has for falcon knows Unicode 8.0: punctuation that came later is none
 * to it, and two characters that were punctuation then are. */
static const set_range PUNCTUATION_SINCE_9[] = {
    { 0x061D, 0x061D },   { 0x09FD, 0x09FD },   { 0x0A76, 0x0A76 },   { 0x0C77, 0x0C77 },   { 0x0C84, 0x0C84 },
    { 0x1B4E, 0x1B4F },   { 0x1B7D, 0x1B7F },   { 0x2E43, 0x2E4F },   { 0x2E52, 0x2E5D },   { 0x10D6E, 0x10D6E },
    { 0x10EAD, 0x10EAD }, { 0x10F55, 0x10F59 }, { 0x10F86, 0x10F89 }, { 0x113D4, 0x113D5 }, { 0x113D7, 0x113D8 },
    { 0x1144B, 0x1144F }, { 0x1145A, 0x1145B }, { 0x1145D, 0x1145D }, { 0x11660, 0x1166C }, { 0x116B9, 0x116B9 },
    { 0x1183B, 0x1183B }, { 0x11944, 0x11946 }, { 0x119E2, 0x119E2 }, { 0x11A3F, 0x11A46 }, { 0x11A9A, 0x11A9C },
    { 0x11A9E, 0x11AA2 }, { 0x11B00, 0x11B09 }, { 0x11BE1, 0x11BE1 }, { 0x11C41, 0x11C45 }, { 0x11C70, 0x11C71 },
    { 0x11EF7, 0x11EF8 }, { 0x11F43, 0x11F4F }, { 0x11FFF, 0x11FFF }, { 0x12FF1, 0x12FF2 }, { 0x16D6D, 0x16D6F },
    { 0x16E97, 0x16E9A }, { 0x16FE2, 0x16FE2 }, { 0x1E5FF, 0x1E5FF }, { 0x1E95E, 0x1E95F },
};
static const set_range PUNCTUATION_UNTIL_8[] = { { 0x166D, 0x166D }, { 0x111C9, 0x111C9 } };

static bool set_has(const set_range *ranges, size_t n, uint32_t code) {
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ranges[low].first <= code;
}
#define SET_HAS(ranges, code) set_has(ranges, PN_ARRAY_LEN(ranges), code)

/* Whether the set holds the character at text[pos], which pretokenize_peek found. Bytes that are no UTF-8 are in no
 * set. */
static bool sets_have(const uint8_t *text, size_t pos, pretokenize_char c, unsigned set) {
    if (set == SET_LETTERS) return pretokenize_class(c) == UNICODE_LETTER;
    if (set == SET_PUNCTUATION) return unicode_is_punctuation(c.props);
    uint32_t code = 0;
    if (c.end == pos || unicode_decode(text + pos, c.end - pos, &code) == 0) return false;
    if (set == SET_DEEPSEEK_LETTERS) return SET_HAS(DEEPSEEK_LETTERS, code);
    if (set == SET_DEEPSEEK_MARKS) return SET_HAS(DEEPSEEK_MARKS, code);
    return SET_HAS(DEEPSEEK_EAST, code);
}

/* ---- What is looked for: where it ends if it begins at pos, else pos ---- */

typedef size_t sets_fn(const uint8_t *text, size_t pos, size_t end, unsigned option);

static size_t sets_digit(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    (void)option;
    const pretokenize_char c = pretokenize_peek(text, pos, end);
    return c.props & UNICODE_NUMERIC ? c.end : pos;
}

static size_t sets_three_digits(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    (void)option;
    if (end - pos < 3) return pos;
    for (size_t i = 0; i < 3; i++)
        if (text[pos + i] < '0' || text[pos + i] > '9') return pos;
    return pos + 3;
}

static size_t sets_line_break(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    (void)end;
    (void)option;
    return text[pos] == '\r' || text[pos] == '\n' ? pos + 1 : pos;
}

static bool sets_is_falcon_mark(const uint8_t *text, size_t pos, pretokenize_char c) {
    if (text[pos] < 0x80) return unicode_is_punctuation(c.props) || unicode_is_symbol(c.props);
    uint32_t code = 0;
    if (unicode_decode(text + pos, c.end - pos, &code) == 0) return false;
    if (unicode_is_punctuation(c.props)) return !SET_HAS(PUNCTUATION_SINCE_9, code);
    return SET_HAS(PUNCTUATION_UNTIL_8, code);
}

static size_t sets_falcon_marks(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    (void)option;
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        if (c.end == pos || !sets_is_falcon_mark(text, pos, c)) return pos;
        pos = c.end;
    }
}

static size_t sets_run(const uint8_t *text, size_t pos, size_t end, unsigned set) {
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        if (c.end == pos || !sets_have(text, pos, c, set)) return pos;
        pos = c.end;
    }
}

/* \s?[set]+ : white space that is itself in the set is taken either way. */
static size_t sets_spaced(const uint8_t *text, size_t pos, size_t end, unsigned set) {
    const pretokenize_char c = pretokenize_peek(text, pos, end);
    if (pretokenize_class(c) == UNICODE_SPACE) {
        const size_t stop = sets_run(text, c.end, end, set);
        if (stop > c.end) return stop;
    }
    return sets_run(text, pos, end, set);
}

/* ---- Splitters ---- */

/* What is found at `from`, or all up to where something is found. */
static size_t sets_next(const uint8_t *text, size_t from, size_t end, unsigned option, sets_fn *find) {
    const size_t found = find(text, from, end, option);
    if (found > from) return found;
    size_t pos = pretokenize_peek(text, from, end).end;
    while (pos < end && find(text, pos, end, option) == pos) pos = pretokenize_peek(text, pos, end).end;
    return pos;
}

size_t pretokenize_each_digit(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_digit);
}

size_t pretokenize_three_digits(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_three_digits);
}

size_t pretokenize_each_line_break(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_line_break);
}

size_t pretokenize_falcon_marks(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_falcon_marks);
}

size_t pretokenize_spaced(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_spaced);
}

size_t pretokenize_run(const uint8_t *text, size_t from, size_t end, unsigned option) {
    return sets_next(text, from, end, option, sets_run);
}

/* \s+$ : one walk over the piece; what is left then is all white space. */
size_t pretokenize_last_space(const uint8_t *text, size_t from, size_t end, unsigned option) {
    (void)option;
    size_t begin = from; /* of the white space that ends at pos */
    for (size_t pos = from; pos < end;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        pos = c.end;
        if (pretokenize_class(c) != UNICODE_SPACE) begin = pos;
    }
    return begin > from ? begin : end;
}

/* Bytes whose spelling in byte-level vocabularies is a digit: '0' to '9' and, spelled as themselves, the bytes that are
 * the numbers U+00B2, B3, B9 and BC to BE in Latin-1. */
static bool sets_is_digit_byte(uint8_t byte) {
    if (byte < 0x80) return byte >= '0' && byte <= '9';
    return byte == 0xB2 || byte == 0xB3 || byte == 0xB9 || (byte >= 0xBC && byte <= 0xBE);
}

size_t pretokenize_digit_bytes(const uint8_t *text, size_t from, size_t end, unsigned option) {
    (void)option;
    const bool digits = sets_is_digit_byte(text[from]);
    size_t pos = from + 1;
    while (pos < end && sets_is_digit_byte(text[pos]) == digits) pos++;
    return pos;
}
