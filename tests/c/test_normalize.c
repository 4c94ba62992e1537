/* test_normalize.c - form C of hand-picked texts, and that any bytes keep what the form promises. Equal text with two
 * other implementations is tested in tests/test_pretokenizers.py. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "common.h"
#include "normalize.h"
#include "pantheon.h"

static uint32_t random_next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void test_normalize_nfc_of_known_texts(void) {
    const struct {
        const char *text, *form_c;
    } cases[] = {
        { "", "" },
        { "plain", "plain" },
        { "e\u0301", "\u00e9" },
        { "a\u0302\u0323", "\u1ead" },       /* order does not matter where classes differ    */
        { "a\u0301\u0302", "\u00e1\u0302" }, /* it does where they are equal                  */
        { "\u212b\u2126", "\u00c5\u03a9" },  /* single characters with another form           */
        { "\u0958", "\u0915\u093c" },        /* excluded from composition                     */
        { "\u0344", "\u0308\u0301" },
        { "\u1112\u1161\u11ab", "\ud55c" }, /* Hangul                                        */
        { "\ud558\u11ab\u11ab", "\ud55c\u11ab" },
        { "e\xff\u0301", "e\xff\u0301" }, /* nothing is composed across a wrong byte       */
        { "\xcc\u0323\u0301\xcc", "\xcc\u0323\u0301\xcc" },
        { "\xff\u0301\u0323", "\xff\u0323\u0301" },
        { "\U0001d160", "\U0001d158\U0001d165\U0001d16e" }, /* three times its bytes                 */
        { "x\u07fd\u0334", "x\u07fd\u0334" },               /* later than Unicode 9.0: nothing happens to it */
    };
    normalize_scratch scratch = { 0 };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) {
        const uint8_t *out = NULL;
        size_t len = 0;
        const uint8_t *const text = (const uint8_t *)cases[i].text;
        CHECK(normalize_nfc(&scratch, text, strlen(cases[i].text), &out, &len) == PN_OK);
        CHECK(len == strlen(cases[i].form_c) && memcmp(out, cases[i].form_c, len) == 0);
        if (strcmp(cases[i].text, "plain") == 0) CHECK(out == text);
    }
    normalize_scratch_free(&scratch);
}

/* Twice is once, and it never grows more than it may; in blocks of exactly the text's size. */
static void test_normalize_nfc_of_any_bytes_is_stable(void) {
    static const char *const parts[] = { "a",      "e",      "\u0301",     "\u0323", "\u0334", "\u1100", "\u1161",
                                         "\u11a8", "\uac00", "\u0344",     "\xff",   "\xcc",   "\u00c5", "\u0f73",
                                         "\u0f71", "\u1fb7", "\U0001d160", " ",      "\u0345", "\u0300", "\u00df" };
    normalize_scratch scratch = { 0 }, again = { 0 };
    uint32_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        char text[128];
        size_t len = 0;
        for (size_t n = random_next(&seed) % 24; n > 0; n--) {
            const char *const part = parts[random_next(&seed) % PN_ARRAY_LEN(parts)];
            memcpy(text + len, part, strlen(part));
            len += strlen(part);
        }
        uint8_t *const exact = malloc(len + !len);
        if (!exact) break;
        memcpy(exact, text, len);
        const uint8_t *once = NULL, *twice = NULL;
        size_t once_len = 0, twice_len = 0;
        CHECK(normalize_nfc(&scratch, exact, len, &once, &once_len) == PN_OK);
        CHECK(once_len <= NORMALIZE_GROWTH * len);
        CHECK(normalize_nfc(&again, once, once_len, &twice, &twice_len) == PN_OK);
        CHECK(twice_len == once_len && memcmp(once, twice, once_len) == 0);
        free(exact);
    }
    normalize_scratch_free(&scratch);
    normalize_scratch_free(&again);
}

/* A million combining characters on one letter: a sort by exchanging neighbours would not come to an end. */
static void test_normalize_nfc_of_a_million_combining_characters_ends(void) {
    const size_t n = 1000000;
    char *const text = malloc(2 * n + 1);
    if (!text) return;
    text[0] = 'q';
    for (size_t i = 0; i < n; i++) memcpy(text + 1 + 2 * i, i % 2 ? "\u0323" : "\u0301", 2);
    normalize_scratch scratch = { 0 };
    const uint8_t *out = NULL;
    size_t len = 0;
    CHECK(normalize_nfc(&scratch, (const uint8_t *)text, 2 * n + 1, &out, &len) == PN_OK);
    CHECK(len == 2 * n + 1 && memcmp(out, "q\u0323\u0323", 5) == 0 && memcmp(out + len - 4, "\u0301\u0301", 4) == 0);
    normalize_scratch_free(&scratch);
    free(text);
}

int main(void) {
    RUN(test_normalize_nfc_of_known_texts);
    RUN(test_normalize_nfc_of_any_bytes_is_stable);
    RUN(test_normalize_nfc_of_a_million_combining_characters_ends);
    return check_report();
}
