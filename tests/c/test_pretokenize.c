/* test_pretokenize.c - the pieces of each splitter, and that any bytes are covered by them. Equal pieces with the
 * reference library on made text are tested in tests/test_pretokenizers.py; the rows here are some of its answers. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "common.h"
#include "pretokenize.h"

static uint32_t random_next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* The pieces of text joined by '|' equal `expected`, which has the text's own '|' nowhere. */
static bool splits_as(const char *rule_name, const char *expected) {
    const pretokenize_rule *const rule = pretokenize_find(rule_name, strlen(rule_name));
    pretokenize_cursor cursor = { { 0 } };
    uint8_t text[256];
    size_t len = 0;
    for (const char *c = expected; *c; c++)
        if (*c != '|') text[len++] = (uint8_t)*c;
    size_t at = 0;
    for (const char *piece = expected; at < len;) {
        const char *const bar = strchr(piece, '|');
        const size_t want = bar ? (size_t)(bar - piece) : strlen(piece);
        const size_t end = pretokenize_next(rule, &cursor, text, len, at);
        if (end - at != want) return false;
        at = end;
        piece += want + 1;
    }
    return true;
}

static void test_pretokenize_gpt2_splits_as_its_expression_does(void) {
    const char *const cases[] = { "1234567",
                                  "日本語|123",
                                  "٣٤٥٦",
                                  "½²",
                                  "I|'|M| can|'t| ’|s",
                                  "!?|\n|\n|#",
                                  "a| \n\n| b",
                                  "a|  | b",
                                  "x|\t|\t|y",
                                  "e|\xcc\x81|a",
                                  "'s|'t|'re|'ve|'m|'ll|'d|'|x",
                                  "!'|s",
                                  " '|s",
                                  "a|  ",
                                  " ",
                                  " a| 1| !",
                                  "a|\xc2\xa0|b",
                                  "a|\xe2\x80\x8b|b",
                                  "'",
                                  "\xe3\x80\x80|日",
                                  "a|\xff|b| \xff\xfe|1" };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) CHECK(splits_as("gpt-2", cases[i]));
    CHECK(!splits_as("gpt-2", "ab|c"));
}

static void test_pretokenize_smollm_takes_digits_out_first(void) {
    const char *const cases[] = { "1|2|3",
                                  "日本語|1|2|3",
                                  "٣|٤|٥|٦",
                                  "½|²",
                                  "a| |1",
                                  "a|  |1",
                                  "a|\n\n|1|b",
                                  "'|1|s",
                                  "a|1|'s",
                                  "Ⅷ",
                                  "1| a",
                                  "a|  | b",
                                  "!|\xf0\x91\xb7\xa0|?",
                                  "x|\xff|1|\xff" };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) CHECK(splits_as("smollm", cases[i]));
}

static const struct {
    const char *name, *pieces;
} SPLITS[] = {
    { "llama-bpe", "123|456|7" },
    { "llama-bpe", "日本語|123" },
    { "llama-bpe", "٣٤٥|٦" },
    { "llama-bpe", "½²" },
    { "llama-bpe", "I|'M| can|'t| ’|s" },
    { "llama-bpe", "!?\n\n|#" },
    { "llama-bpe", "a| \n\n| b" },
    { "llama-bpe", "a|  | b" },
    { "llama-bpe", "x|\t|\ty" },
    { "llama-bpe", "e|\u0301a" },
    { "llama-bpe", "'ſ|x| '|LLy" },
    { "llama-bpe", "//\n|/| a" },
    { "llama-bpe", "  \r\n| | x|  " },
    { "qwen2", "1|2|3|4|5|6|7" },
    { "qwen2", "日本語|1|2|3" },
    { "qwen2", "٣|٤|٥|٦" },
    { "qwen2", "½|²" },
    { "qwen2", "I|'M| can|'t| ’|s" },
    { "qwen2", "!?\n\n|#" },
    { "qwen2", "a| \n\n| b" },
    { "qwen2", "a|  | b" },
    { "qwen2", "x|\t|\ty" },
    { "qwen2", "e|\u0301a" },
    { "tekken", "HELLOworld" },
    { "tekken", "hello|World" },
    { "tekken", "日本|ABC" },
    { "tekken", "e\u0301|A\u0301|B" },
    { "tekken", "\u0301|AB" },
    { "tekken", " \u0301" },
    { "tekken", "!\u0301x" },
    { "tekken", "Ǆabc" },
    { "tekken", "a|//\n//|b" },
    { "tekken", "I|'M| don|'t" },
    { "tekken", "1|2|3" },
    { "gpt-4o", "HELLO'S| don'T" },
    { "gpt-4o", "123|456|7" },
    { "gpt-4o", "A'ſ|b" },
    { "qwen35", "e\u0301a\u0301| \u0301|!\u0301" },
    { "qwen35", "1|2" },
    { "deepseek-llm", "Hello|,| World" },
    { "deepseek-llm", "é|abc" },
    { "deepseek-llm", " | a|  " },
    { "deepseek-llm", "一二|ab" },
    { "deepseek-llm", "!|\u3000" },
    { "deepseek-llm", "1|2| a|\r|\n|\r|\n| b" },
    { "deepseek-llm", "日本語|1|2|3| |٣" },
    { "deepseek-coder", "foo|(|bar|)| =  |1" },
    { "deepseek-coder", "一|a|二|!" },
    { "deepseek-coder", "a|\u3000|b| |1|2|\n" },
    { "falcon", "a|123|45|!|b" },
    { "falcon", "$|x| |=| |'|y|'|s" },
    { "falcon", "\xc2|\xbd|\xc2|\xb2" },
    { "falcon", "\xd0|\xb3| don|'|t| |1| |2" },
    { "llama-bpe", "a|\xff\xfe|1| \xff'|S" },
    { "tekken", "\xffx|\xff\xff|1" },
    { "deepseek-llm", "a|\xff|b|\xe3\x80" },
    { "falcon", "!|\xff|?|\xb2\xb2| a" },
};

static void test_pretokenize_splits_as_the_reference_does(void) {
    for (size_t i = 0; i < PN_ARRAY_LEN(SPLITS); i++) {
        const bool equal = splits_as(SPLITS[i].name, SPLITS[i].pieces);
        CHECK(equal);
        if (!equal) fprintf(stderr, "    %s: %s\n", SPLITS[i].name, SPLITS[i].pieces);
    }
}

/* Bytes of text in a block of exactly their size, so that a look beyond the end is seen by a sanitizer. */
static void check_covered(const pretokenize_rule *rule, const uint8_t *bytes, size_t len) {
    uint8_t *const text = malloc(len + !len);
    if (!text) return;
    memcpy(text, bytes, len);
    pretokenize_cursor cursor = { { 0 } };
    for (size_t at = 0; at < len;) {
        const size_t end = pretokenize_next(rule, &cursor, text, len, at);
        CHECK(end > at && end <= len);
        at = end > at ? end : len;
    }
    free(text);
}

static void test_pretokenize_pieces_cover_any_bytes_and_never_stand_still(void) {
    static const char alphabet[] =
        "a1 A'\n\r!/\xe6\x97\xa5\xc2\xa0\xcc\x81\xff\xf0\x9f\x98\xb8\xe3\x80\x80stLe\xc5\xbf";
    const char *name = NULL;
    uint32_t seed = 7;
    for (size_t row = 0; (name = pretokenize_name(row)); row++) {
        const pretokenize_rule *const rule = pretokenize_find(name, strlen(name));
        CHECK(rule && strcmp(rule->name, name) == 0);
        for (int round = 0; rule && round < 1500; round++) {
            uint8_t text[32];
            const size_t len = random_next(&seed) % sizeof text;
            for (size_t i = 0; i < len; i++)
                text[i] = round % 4 ? (uint8_t)alphabet[random_next(&seed) % (sizeof alphabet - 1)]
                                    : (uint8_t)random_next(&seed);
            check_covered(rule, text, len);
        }
    }
}

static void test_pretokenize_find_wants_the_exact_name(void) {
    CHECK(pretokenize_find("smollm", 6) && pretokenize_find("gpt-2", 5) && pretokenize_find("llama3", 6));
    CHECK(!pretokenize_find("smollm", 5) && !pretokenize_find("", 0) && !pretokenize_find("default", 7));
    char names[8];
    pretokenize_names(names, sizeof names);
    CHECK(strcmp(names, "smollm,") == 0);
}

int main(void) {
    RUN(test_pretokenize_gpt2_splits_as_its_expression_does);
    RUN(test_pretokenize_smollm_takes_digits_out_first);
    RUN(test_pretokenize_splits_as_the_reference_does);
    RUN(test_pretokenize_pieces_cover_any_bytes_and_never_stand_still);
    RUN(test_pretokenize_find_wants_the_exact_name);
    return check_report();
}
