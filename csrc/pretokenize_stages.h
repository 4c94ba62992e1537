/* pretokenize_stages.h - the splitters that the rows of pretokenize.c are made of; for pretokenize*.c.  (rank 2)
 *
 * A splitter is given [from, end), what is left of a piece of the splitter before it, from < end, and returns the end
 * of its own piece that begins at `from`: > from, <= end. It sees nothing outside. A splitter that looks for something
 * gives in turn what it found and what lies between. */
#ifndef PN_PRETOKENIZE_STAGES_H
#define PN_PRETOKENIZE_STAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "unicode.h"

typedef size_t pretokenize_fn(const uint8_t *text, size_t from, size_t end, unsigned option);

/* ---- Cutting all of a text into words: pretokenize_words.c ---- */

/* What the expressions of the tiktoken style differ in. */
enum {
    WORDS_CONTRACTIONS = 1, /* 's 't 're 've 'm 'll 'd of any case are pieces                                   */
    WORDS_SUFFIXES = 2,     /* ... or belong to the word before them                                           */
    WORDS_CASED = 4,        /* a word ends where capitals follow small letters; marks belong to words          */
    WORDS_MARKS = 8,        /* marks are letters                                                               */
    WORDS_DIGITS_3 = 16,    /* up to three digits are a piece, else one                                        */
    WORDS_SLASHES = 32,     /* slashes, too, may follow punctuation among line breaks                          */
};

pretokenize_fn pretokenize_gpt2;  /* option: 0 */
pretokenize_fn pretokenize_words; /* option: WORDS_* */

/* ---- Looking for something: pretokenize_sets.c ---- */

pretokenize_fn pretokenize_each_digit;      /* characters of General Category N                      */
pretokenize_fn pretokenize_digit_bytes;     /* runs of bytes that are spelled as digits           */
pretokenize_fn pretokenize_three_digits;    /* three of 0 to 9                                       */
pretokenize_fn pretokenize_each_line_break; /* \r or \n                                              */
pretokenize_fn pretokenize_last_space;      /* all white space at the end                            */
pretokenize_fn pretokenize_falcon_marks;    /* runs of punctuation                                   */
pretokenize_fn pretokenize_spaced;          /* runs of a set, with one white space before if there is */
pretokenize_fn pretokenize_run;             /* runs of a set                                         */

/* The option of the last two. */
enum {
    SET_LETTERS,          /* General Category L          */
    SET_PUNCTUATION,      /* General Category P          */
    SET_DEEPSEEK_LETTERS, /* of deepseek-llm             */
    SET_DEEPSEEK_MARKS,   /* of deepseek-llm             */
    SET_DEEPSEEK_EAST,    /* of deepseek-llm and -coder  */
};

/* ---- Helpers of both ---- */

/* A character: where it ends and its properties. At the end of the piece end == pos. */
typedef struct pretokenize_char {
    size_t end;
    uint8_t props;
} pretokenize_char;

static inline pretokenize_char pretokenize_peek(const uint8_t *text, size_t pos, size_t end) {
    pretokenize_char c = { pos, UNICODE_OTHER };
    if (pos < end) c.end += unicode_step(text + pos, end - pos, &c.props);
    return c;
}

static inline int pretokenize_class(pretokenize_char c) {
    return c.props & UNICODE_CLASS_MASK;
}

#endif
