/* pretokenize_words.c - splitters that cut all of a text into words: GPT-2's and the tiktoken style.    (rank 3)
 *
 * Each looks at one character after the other and never back; look-ahead is one character past a run. */
#include <string.h>

#include "pretokenize_stages.h"

/* The first character after the run of one class that begins at pos; *last is where its last character begins. */
static pretokenize_char words_run(const uint8_t *text, size_t pos, size_t end, int class, size_t *last) {
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        if (c.end == pos || pretokenize_class(c) != class) return (pretokenize_char){ pos, c.props };
        *last = pos;
        pos = c.end;
    }
}

/* ---- GPT-2 ---- */

/* Length of 's 't 're 've 'm 'll 'd at text[pos], else 0. Lower case only; text[pos] is the apostrophe. */
static size_t words_small_contraction(const uint8_t *text, size_t pos, size_t end) {
    const size_t left = end - pos;
    if (left >= 2 && memchr("stmd", text[pos + 1], 4)) return 2;
    if (left < 3) return 0;
    const char *const two = (const char *)text + pos + 1;
    return memcmp(two, "re", 2) == 0 || memcmp(two, "ve", 2) == 0 || memcmp(two, "ll", 2) == 0 ? 3 : 0;
}

/* The expression that GPT-2 came with:
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * The last two: a run of white space leaves its last character to the piece that follows, if one follows and the run
 * has another character to keep. */
size_t pretokenize_gpt2(const uint8_t *text, size_t from, size_t end, unsigned option) {
    (void)option;
    size_t last = from;
    if (text[from] == '\'') {
        const size_t n = words_small_contraction(text, from, end);
        if (n) return from + n;
    }
    pretokenize_char c = pretokenize_peek(text, from, end);
    if (text[from] == ' ') {
        const pretokenize_char next = pretokenize_peek(text, c.end, end);
        if (next.end != c.end && pretokenize_class(next) != UNICODE_SPACE) c = next;
    }
    const size_t stop = words_run(text, c.end, end, pretokenize_class(c), &last).end;
    if (pretokenize_class(c) != UNICODE_SPACE) return stop;
    return stop == end || last == from ? stop : last;
}

/* ---- The tiktoken style ----
 *
 * What cl100k_base began and Llama 3, Qwen, Tekken and o200k_base vary:
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
 *     | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * with WORDS_CASED instead of the second (and o200k_base with the first, optional, behind both):
 *     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
 *     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]* */

/* Length of 's 't 're 've 'm 'll 'd of any case at text[pos], else 0. Without case the long s, U+017F, is an s. */
static size_t words_contraction(const uint8_t *text, size_t pos, size_t end) {
    const size_t left = end - pos;
    if (left < 2 || text[pos] != '\'') return 0;
    const uint8_t first = text[pos + 1] | 0x20;
    if (text[pos + 1] < 0x80 && memchr("stmd", first, 4)) return 2;
    if (left < 3) return 0;
    if (text[pos + 1] == 0xC5 && text[pos + 2] == 0xBF) return 3;
    if (text[pos + 1] >= 0x80 || text[pos + 2] >= 0x80) return 0;
    const uint8_t two[2] = { first, text[pos + 2] | 0x20 };
    return memcmp(two, "re", 2) == 0 || memcmp(two, "ve", 2) == 0 || memcmp(two, "ll", 2) == 0 ? 3 : 0;
}

static bool words_is_break(uint8_t byte) {
    return byte == '\r' || byte == '\n';
}

/* Whether a word may begin with this one character that is no letter. */
static bool words_is_prefix(const uint8_t *text, size_t pos, pretokenize_char c) {
    return pretokenize_class(c) != UNICODE_LETTER && pretokenize_class(c) != UNICODE_NUMBER &&
           !words_is_break(text[pos]);
}

static bool words_is_letter(pretokenize_char c, unsigned option) {
    return pretokenize_class(c) == UNICODE_LETTER || (option & WORDS_MARKS && unicode_is_mark(c.props));
}

/* End of the word that begins at pos, pos if none does: [^\r\n\p{L}\p{N}]?\p{L}+ */
static size_t words_plain(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    pretokenize_char c = pretokenize_peek(text, pos, end);
    if (!words_is_letter(c, option)) {
        if (!words_is_prefix(text, pos, c)) return pos;
        const pretokenize_char next = pretokenize_peek(text, c.end, end);
        if (next.end == c.end || !words_is_letter(next, option)) return pos;
        c = next;
    }
    for (;;) {
        const pretokenize_char next = pretokenize_peek(text, c.end, end);
        if (next.end == c.end || !words_is_letter(next, option)) return c.end;
        c = next;
    }
}

/* The two sets of the cased expressions; both hold Lm, Lo and M. */
static bool words_is_upper(pretokenize_char c) {
    const unicode_category category = unicode_category_of(c.props);
    return category >= UNICODE_LU && category <= UNICODE_ME && category != UNICODE_LL;
}
static bool words_is_lower(pretokenize_char c) {
    const unicode_category category = unicode_category_of(c.props);
    return category >= UNICODE_LL && category <= UNICODE_ME && category != UNICODE_LT;
}

/* The same for the cased expressions. The first takes all of the first set that it can and then needs one of the
 * second: a small letter behind the run and what follows it, else the last one of the run that is in both. Where there
 * is neither, it tries without a prefix, which helps only a prefix that is a mark; then the second takes the run. */
static size_t words_cased(const uint8_t *text, size_t pos, size_t end) {
    const pretokenize_char first = pretokenize_peek(text, pos, end);
    const bool has_prefix = words_is_prefix(text, pos, first);
    const size_t begin = has_prefix ? first.end : pos;
    size_t at = begin, last_of_both = 0;
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, at, end);
        if (c.end == at || !words_is_upper(c)) break;
        at = c.end;
        if (words_is_lower(c)) last_of_both = at;
    }
    const size_t end_of_upper = at;
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, at, end);
        if (c.end == at || !words_is_lower(c)) break;
        at = c.end;
    }
    if (at > end_of_upper) return at;
    if (last_of_both) return last_of_both;
    if (has_prefix && unicode_is_mark(first.props)) return first.end;
    return end_of_upper > begin ? end_of_upper : pos;
}

/* [^\s\p{L}\p{N}]+[\r\n]* from pos, where the run begins. */
static size_t words_punctuation(const uint8_t *text, size_t pos, size_t end, unsigned option) {
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        if (c.end == pos || pretokenize_class(c) != UNICODE_OTHER || words_is_letter(c, option)) break;
        pos = c.end;
    }
    while (pos < end && (words_is_break(text[pos]) || (option & WORDS_SLASHES && text[pos] == '/'))) pos++;
    return pos;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run; else as in GPT-2's expression. */
static size_t words_space(const uint8_t *text, size_t from, size_t end) {
    size_t last = from, after_break = from, pos = from;
    for (;;) {
        const pretokenize_char c = pretokenize_peek(text, pos, end);
        if (c.end == pos || pretokenize_class(c) != UNICODE_SPACE) break;
        last = pos;
        if (words_is_break(text[pos])) after_break = c.end;
        pos = c.end;
    }
    if (after_break > from) return after_break;
    return pos == end || last == from ? pos : last;
}

size_t pretokenize_words(const uint8_t *text, size_t from, size_t end, unsigned option) {
    if (option & WORDS_CONTRACTIONS) {
        const size_t n = words_contraction(text, from, end);
        if (n) return from + n;
    }
    const size_t word = option & WORDS_CASED ? words_cased(text, from, end) : words_plain(text, from, end, option);
    if (word > from) return option & WORDS_SUFFIXES ? word + words_contraction(text, word, end) : word;
    const pretokenize_char c = pretokenize_peek(text, from, end);
    if (pretokenize_class(c) == UNICODE_NUMBER) {
        size_t pos = c.end;
        for (int n = 1; option & WORDS_DIGITS_3 && n < 3; n++) {
            const pretokenize_char next = pretokenize_peek(text, pos, end);
            if (pretokenize_class(next) != UNICODE_NUMBER) break;
            pos = next.end;
        }
        return pos;
    }
    if (pretokenize_class(c) == UNICODE_OTHER) return words_punctuation(text, from, end, option);
    if (text[from] == ' ') {
        const pretokenize_char next = pretokenize_peek(text, c.end, end);
        if (next.end > c.end && pretokenize_class(next) == UNICODE_OTHER)
            return words_punctuation(text, c.end, end, option);
    }
    return words_space(text, from, end);
}
