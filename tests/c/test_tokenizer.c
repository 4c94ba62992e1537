/* test_tokenizer.c - characters, merging, control tokens and whole vocabularies, against slow and obvious
 * versions of the same. Equal ids with the reference library are tested in tests/test_tokenizer.py. */
#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "check.h"
#include "common.h"
#include "gguf.h"
#include "special.h"
#include "tokenizer.h"
#include "unicode.h"
#include "vocab.h"

static uint32_t random_next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* ---- unicode ---- */

static void test_unicode_decode_of_well_formed_text_gives_code_points(void) {
    const struct {
        const char *text;
        uint32_t code;
    } cases[] = { { "a", 'a' },
                  { "\x7f", 0x7F },
                  { "\xc2\x80", 0x80 },
                  { "\xdf\xbf", 0x7FF },
                  { "\xe0\xa0\x80", 0x800 },
                  { "\xed\x9f\xbf", 0xD7FF },
                  { "\xee\x80\x80", 0xE000 },
                  { "\xef\xbf\xbf", 0xFFFF },
                  { "\xf0\x90\x80\x80", 0x10000 },
                  { "\xf4\x8f\xbf\xbf", 0x10FFFF } };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) {
        const size_t len = strlen(cases[i].text);
        const uint8_t *const text = (const uint8_t *)cases[i].text;
        uint32_t code = 0;
        CHECK(unicode_decode(text, len, &code) == len);
        CHECK(code == cases[i].code);
        for (size_t cut = 1; cut < len; cut++) CHECK(unicode_decode(text, cut, &code) == 0);
    }
}

static void test_unicode_decode_of_malformed_text_gives_nothing(void) {
    const char *const cases[] = {
        "\x80",         "\xbf",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff\xff",     "\xc2\x41",     "\xe2\x82\x41",     "\xf0\x9f\x98\x41", "\xe2\x41\x82"
    };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) {
        uint32_t code = 0;
        uint8_t props = 0xFF;
        CHECK(unicode_decode((const uint8_t *)cases[i], strlen(cases[i]), &code) == 0);
        CHECK(unicode_step((const uint8_t *)cases[i], strlen(cases[i]), &props) == 1);
        CHECK(props == UNICODE_OTHER);
    }
}

static void test_unicode_props_know_the_borders_of_the_classes(void) {
    const struct {
        uint32_t code;
        int kind;
        bool numeric;
        unicode_category category;
    } cases[] = { { 'a', UNICODE_LETTER, false, UNICODE_LL },     { 'Z', UNICODE_LETTER, false, UNICODE_LU },
                  { '0', UNICODE_NUMBER, true, UNICODE_ND },      { 0xBD, UNICODE_NUMBER, true, UNICODE_NO },
                  { 0x2167, UNICODE_NUMBER, true, UNICODE_NL },   { ' ', UNICODE_SPACE, false, UNICODE_ZS },
                  { 0x1C, UNICODE_OTHER, false, UNICODE_CC },     { 0x85, UNICODE_SPACE, false, UNICODE_CC },
                  { 0xA0, UNICODE_SPACE, false, UNICODE_ZS },     { 0x200B, UNICODE_OTHER, false, UNICODE_CF },
                  { 0x2028, UNICODE_SPACE, false, UNICODE_ZL },   { 0x3000, UNICODE_SPACE, false, UNICODE_ZS },
                  { 0x301, UNICODE_OTHER, false, UNICODE_MN },    { 0x4E09, UNICODE_LETTER, false, UNICODE_LO },
                  { 0x1F638, UNICODE_OTHER, false, UNICODE_SO },  { 0x11DE0, UNICODE_OTHER, true, UNICODE_CN },
                  { 0x10FFFF, UNICODE_OTHER, false, UNICODE_CN }, { 0x110000, UNICODE_OTHER, false, UNICODE_CN },
                  { 0xF0000, UNICODE_OTHER, false, UNICODE_CO },  { UINT32_MAX, UNICODE_OTHER, false, UNICODE_CN } };
    for (size_t i = 0; i < PN_ARRAY_LEN(cases); i++) {
        const uint8_t props = unicode_props(cases[i].code);
        CHECK((props & UNICODE_CLASS_MASK) == cases[i].kind);
        CHECK(((props & UNICODE_NUMERIC) != 0) == cases[i].numeric);
        CHECK((unicode_category)(props >> UNICODE_CATEGORY_SHIFT) == cases[i].category);
    }
}

/* ---- bpe ---- */

typedef struct pair_rule {
    uint32_t left, right, result;
} pair_rule;

/* The definition, taken by its word: find the lowest rank, leftmost; apply it; again. */
static size_t merge_slowly(const pair_rule *rules, size_t n_rules, uint32_t *ids, size_t n) {
    for (size_t rank = 0; rank < n_rules;) {
        size_t at = 0;
        while (at + 1 < n && !(ids[at] == rules[rank].left && ids[at + 1] == rules[rank].right)) at++;
        if (at + 1 >= n) {
            rank++;
            continue;
        }
        ids[at] = rules[rank].result;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
        rank = 0;
    }
    return n;
}

/* Distinct random pairs over a growing alphabet that starts with 3 symbols. */
static size_t make_rules(uint32_t *seed, pair_rule *rules, size_t n_rules) {
    for (size_t i = 0; i < n_rules; i++) {
        const uint32_t n_ids = 3 + (uint32_t)i;
        bool is_new = false;
        while (!is_new) {
            rules[i] = (pair_rule){ random_next(seed) % n_ids, random_next(seed) % n_ids, n_ids };
            is_new = true;
            for (size_t k = 0; k < i; k++)
                if (rules[k].left == rules[i].left && rules[k].right == rules[i].right) is_new = false;
        }
    }
    return n_rules;
}

static void test_bpe_merge_of_any_length_equals_the_definition(void) {
    uint32_t seed = 1;
    bpe_scratch scratch = { 0 };
    for (int round = 0; round < 300; round++) {
        pair_rule rules[24];
        const size_t n_rules = make_rules(&seed, rules, 1 + random_next(&seed) % PN_ARRAY_LEN(rules));
        bpe *table = NULL;
        CHECK(bpe_new(n_rules, seed, &table) == PN_OK);
        for (size_t i = 0; i < n_rules; i++)
            bpe_add(table, rules[i].left, rules[i].right, (uint32_t)i, rules[i].result);
        for (uint32_t trial = 0; trial < 12; trial++) {
            uint32_t expected[160];
            const size_t n = random_next(&seed) % PN_ARRAY_LEN(expected);
            CHECK(bpe_reserve(&scratch, n) == PN_OK);
            for (size_t i = 0; i < n; i++) scratch.ids[i] = expected[i] = random_next(&seed) % (trial % 3 + 1);
            const size_t n_expected = merge_slowly(rules, n_rules, expected, n);
            const size_t got = bpe_merge(table, &scratch, n);
            CHECK(got == n_expected);
            CHECK(got != n_expected || memcmp(scratch.ids, expected, got * sizeof *expected) == 0);
        }
        bpe_free(table);
    }
    bpe_scratch_free(&scratch);
}

static void test_bpe_add_of_a_pair_again_counts_the_later_rank(void) {
    bpe *table = NULL;
    bpe_scratch scratch = { 0 };
    CHECK(bpe_new(3, 0, &table) == PN_OK);
    bpe_add(table, 0, 1, 0, 10);
    bpe_add(table, 1, 2, 1, 11);
    bpe_add(table, 0, 1, 2, 10);
    CHECK(bpe_reserve(&scratch, 3) == PN_OK);
    for (uint32_t i = 0; i < 3; i++) scratch.ids[i] = i;
    CHECK(bpe_merge(table, &scratch, 3) == 2);
    CHECK(scratch.ids[0] == 0 && scratch.ids[1] == 11);
    bpe_free(table);
    bpe_scratch_free(&scratch);
}

static void test_bpe_reserve_refuses_what_positions_cannot_count(void) {
    bpe_scratch scratch = { 0 };
    CHECK(bpe_reserve(&scratch, BPE_MAX_SYMBOLS + 1) == PN_ERR_ARGUMENT);
    CHECK(strstr(pn_last_error(), "2147483647"));
    bpe_scratch_free(&scratch);
}

static void test_bpe_merge_of_a_million_equal_symbols_ends(void) {
    const size_t n = 1000000;
    bpe *table = NULL;
    bpe_scratch scratch = { 0 };
    CHECK(bpe_new(10, 5, &table) == PN_OK);
    for (uint32_t i = 0; i < 10; i++) bpe_add(table, i, i, i, i + 1);
    CHECK(bpe_reserve(&scratch, n) == PN_OK);
    memset(scratch.ids, 0, n * sizeof *scratch.ids);
    CHECK(bpe_merge(table, &scratch, n) == n / 1024 + 2); /* 576 = 512 + 64 symbols are left over */
    CHECK(scratch.ids[0] == 10 && scratch.ids[n / 1024] == 9 && scratch.ids[n / 1024 + 1] == 6);
    bpe_free(table);
    bpe_scratch_free(&scratch);
}

/* ---- special ---- */

/* Leftmost, then longest, by trying every text at every position. */
static bool find_slowly(const special_text *texts, size_t n, const uint8_t *text, size_t len, size_t from,
                        special_match *out) {
    for (size_t pos = from; pos < len; pos++) {
        *out = (special_match){ pos, 0, 0 };
        for (size_t i = 0; i < n; i++)
            if (texts[i].len > out->len && texts[i].len <= len - pos &&
                memcmp(texts[i].text, text + pos, texts[i].len) == 0)
                *out = (special_match){ pos, texts[i].len, texts[i].id };
        if (out->len > 0) return true;
    }
    return false;
}

static void check_scan(const special_text *texts, size_t n, const special *set, uint32_t *seed) {
    special_matches matches = { 0 };
    uint8_t text[64];
    const size_t len = random_next(seed) % sizeof text;
    for (size_t i = 0; i < len; i++) text[i] = (uint8_t)('a' + random_next(seed) % 3);
    CHECK(special_scan(set, text, len, &matches) == PN_OK);
    special_match expected, got;
    size_t at = 0;
    while (find_slowly(texts, n, text, len, at, &expected)) {
        const bool found = special_next(&matches, at, &got);
        CHECK(found && got.pos == expected.pos && got.len == expected.len && got.id == expected.id);
        at = expected.pos + expected.len;
    }
    CHECK(!special_next(&matches, at, &got));
    special_matches_free(&matches);
}

static void test_special_scan_equals_trying_every_text_everywhere(void) {
    uint32_t seed = 3;
    for (int round = 0; round < 500; round++) {
        uint8_t bytes[10][6];
        special_text texts[10];
        const size_t n = random_next(&seed) % 11;
        for (size_t i = 0; i < n; i++) {
            texts[i] = (special_text){ bytes[i], random_next(&seed) % 7, (uint32_t)i + 100 };
            for (size_t k = 0; k < texts[i].len; k++) bytes[i][k] = (uint8_t)('a' + random_next(&seed) % 2);
        }
        special *set = NULL;
        CHECK(special_new(texts, n, seed, &set) == PN_OK);
        for (int trial = 0; trial < 10; trial++) check_scan(texts, n, set, &seed);
        for (size_t i = 0; i < n; i++) {
            size_t first = 0; /* of equal texts the first counts; an empty one is never found */
            while (texts[first].len != texts[i].len || memcmp(bytes[first], bytes[i], texts[i].len) != 0) first++;
            const int64_t expected = texts[i].len ? (int64_t)texts[first].id : -1;
            CHECK(special_find(set, bytes[i], texts[i].len) == expected);
        }
        special_free(set);
    }
}

static void test_special_new_refuses_more_text_than_it_can_hold(void) {
    static uint8_t byte;
    const special_text texts[2] = { { &byte, SIZE_MAX, 0 }, { &byte, 2, 1 } };
    special *set = NULL;
    CHECK(special_new(texts, 2, 0, &set) == PN_ERR_UNSUPPORTED);
    CHECK(set == NULL);
}

/* ---- whole vocabularies ---- */

/* A GGUF file in memory, written entry by entry. */
typedef struct file_builder {
    uint8_t bytes[1 << 16];
    size_t len;
    uint64_t n_metadata;
} file_builder;

static void put(file_builder *file, const void *bytes, size_t len) {
    memcpy(file->bytes + file->len, bytes, len);
    file->len += len;
}

static void put_u32(file_builder *file, uint32_t value) {
    put(file, &value, 4);
}

static void put_str(file_builder *file, const char *text, size_t len) {
    const uint64_t n = len;
    put(file, &n, 8);
    put(file, text, len);
}

static void put_key(file_builder *file, const char *name, int type) {
    char key[64];
    const int len = snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    put_str(file, key, (size_t)len);
    put_u32(file, (uint32_t)type);
    file->n_metadata++;
}

static void put_text(file_builder *file, const char *name, const char *text) {
    put_key(file, name, PN_VALUE_STRING);
    put_str(file, text, strlen(text));
}

static void put_array(file_builder *file, const char *name, int type, uint64_t n) {
    put_key(file, name, PN_VALUE_ARRAY);
    put_u32(file, (uint32_t)type);
    put(file, &n, 8);
}

static void start_file(file_builder *file) {
    memset(file, 0, sizeof *file);
    put(file, "GGUF", 4);
    put_u32(file, 3);
    put(file, (const uint64_t[2]){ 0, 0 }, 16);
    put_text(file, "model", "gpt2");
    put_text(file, "pre", "gpt-2");
}

static void put_strings(file_builder *file, const char *name, const char *const *texts, size_t n) {
    put_array(file, name, PN_VALUE_STRING, n);
    for (size_t i = 0; i < n; i++) put_str(file, texts[i], strlen(texts[i]));
}

static int build(file_builder *file, pn_tokenizer **out) {
    memcpy(file->bytes + 16, &file->n_metadata, 8);
    pn_gguf *gguf = NULL;
    *out = NULL;
    const int parsed = gguf_parse(file->bytes, file->len, &gguf);
    CHECK(parsed == PN_OK);
    const int status = parsed == PN_OK ? tokenizer_new(gguf, out) : parsed;
    pn_gguf_free(gguf);
    return status;
}

static const char *const TOKENS[] = { "a", "b", "c", "ab", "<s>", "<u>", "", "abc" };
static const char *const MERGES[] = { "a b", "ab c" };
static const int32_t TYPES[] = { 1, 1, 1, 1, 3, 4, 1, 5 };
static file_builder FILE_BYTES; /* too large for a stack */

static pn_tokenizer *build_small(void) {
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", TOKENS, PN_ARRAY_LEN(TOKENS));
    put_array(&FILE_BYTES, "token_type", PN_VALUE_I32, PN_ARRAY_LEN(TYPES));
    put(&FILE_BYTES, TYPES, sizeof TYPES);
    put_strings(&FILE_BYTES, "merges", MERGES, PN_ARRAY_LEN(MERGES));
    pn_tokenizer *tokenizer = NULL;
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_OK);
    return tokenizer;
}

static void test_pn_tokenize_counts_all_and_writes_what_fits(void) {
    pn_tokenizer *const tokenizer = build_small();
    const char text[] = "abcab<s>";
    uint32_t ids[4] = { 99, 99, 99, 99 };
    CHECK(pn_tokenize(tokenizer, text, 5, 0, NULL, 0) == 2);
    CHECK(pn_tokenize(tokenizer, text, 5, 0, ids, 1) == 2);
    CHECK(ids[0] == 7 && ids[1] == 99);
    CHECK(pn_tokenize(tokenizer, text, 8, PN_ENCODE_SPECIAL, ids, 4) == 3);
    CHECK(ids[1] == 3 && ids[2] == 4 && ids[3] == 99);
    CHECK(pn_tokenize(tokenizer, NULL, 0, PN_ENCODE_SPECIAL | PN_ENCODE_BOS, NULL, 0) == 0);
    pn_tokenizer_free(tokenizer);
}

static void test_pn_tokenize_refuses_wrong_arguments_and_unknown_bytes(void) {
    pn_tokenizer *const tokenizer = build_small();
    CHECK(pn_tokenize(tokenizer, NULL, 1, 0, NULL, 0) == -PN_ERR_ARGUMENT);
    CHECK(pn_tokenize(tokenizer, "a", 1, 0, NULL, 1) == -PN_ERR_ARGUMENT);
    CHECK(pn_tokenize(tokenizer, "a", 1, 8, NULL, 0) == -PN_ERR_ARGUMENT);
    CHECK(pn_tokenize(tokenizer, "ab\0", 3, 0, NULL, 0) == -PN_ERR_ARGUMENT);
    CHECK(strstr(pn_last_error(), "0x00 at offset 2"));
    CHECK(pn_tokenize(tokenizer, "<s>", 3, 0, NULL, 0) == -PN_ERR_ARGUMENT); /* text, and '<' has no token */
    CHECK(pn_tokenize(tokenizer, "<s>", 3, PN_ENCODE_SPECIAL, NULL, 0) == 1);
    pn_tokenizer_free(tokenizer);
}

static void test_tokens_report_their_bytes_types_and_roles(void) {
    pn_tokenizer *const tokenizer = build_small();
    size_t len = 9;
    CHECK(pn_token_piece(tokenizer, 6, &len) && len == 0);
    CHECK(memcmp(pn_token_piece(tokenizer, 5, &len), "<u>", 3) == 0 && len == 3);
    CHECK(!pn_token_piece(tokenizer, 8, &len) && pn_last_status() == PN_ERR_ARGUMENT);
    CHECK(pn_token_type(tokenizer, 4) == 3 && pn_token_type(tokenizer, 7) == 5 && pn_token_type(tokenizer, 8) == 0);
    CHECK(pn_token_id(tokenizer, "<u>", 3) == 5 && pn_token_id(tokenizer, "ab", 2) == -1);
    CHECK(pn_token_id(tokenizer, "", 0) == -1);
    CHECK(pn_tokenizer_n_vocab(tokenizer) == 8 && pn_tokenizer_bos(tokenizer) == -1);
    CHECK(pn_tokenizer_stop_ids(tokenizer, NULL, 0) == 0 && !pn_tokenizer_add_bos(tokenizer));
    pn_tokenizer_free(tokenizer);
}

static void test_many_tokens_become_bytes_at_once(void) {
    pn_tokenizer *const tokenizer = build_small();
    static const uint32_t ids[] = { 4, 5, 6, 4 };
    size_t control = 0, user = 0;
    const char *const first = pn_token_piece(tokenizer, 4, &control);
    const char *const second = pn_token_piece(tokenizer, 5, &user);
    char bytes[64] = { 0 };
    const int64_t n = pn_detokenize(tokenizer, -1, ids, 4, true, bytes, sizeof bytes);
    CHECK(n == (int64_t)(2 * control + user) && pn_detokenize(tokenizer, -1, ids, 4, true, NULL, 0) == n);
    CHECK(memcmp(bytes, first, control) == 0 && memcmp(bytes + control, second, user) == 0);
    CHECK(memcmp(bytes + control + user, first, control) == 0 && bytes[n] == 0);
    CHECK(pn_detokenize(tokenizer, -1, ids, 4, false, bytes, sizeof bytes) == (int64_t)user);
    CHECK(memcmp(bytes, second, user) == 0);
    memset(bytes, 'x', sizeof bytes);
    CHECK(pn_detokenize(tokenizer, -1, ids, 4, true, bytes, control + 1) == n && bytes[control + 1] == 'x');
    CHECK(pn_detokenize(tokenizer, -1, NULL, 0, true, NULL, 0) == 0);
    CHECK(pn_detokenize(tokenizer, -1, NULL, 1, true, NULL, 0) == -PN_ERR_ARGUMENT);
    static const uint32_t wrong[] = { 4, 8 };
    CHECK(pn_detokenize(tokenizer, -1, wrong, 2, true, NULL, 0) == -PN_ERR_ARGUMENT);
    CHECK(strstr(pn_last_error(), "token 8 does not exist"));
    pn_tokenizer_free(tokenizer);
}

static void test_vocabulary_without_tokens_or_merges_is_refused(void) {
    pn_tokenizer *tokenizer = NULL;
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", TOKENS, 0);
    put_strings(&FILE_BYTES, "merges", MERGES, 0);
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_ERR_METADATA && !tokenizer);
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", TOKENS, 8);
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_ERR_METADATA && strstr(pn_last_error(), "tokenizer.ggml.merges"));
    start_file(&FILE_BYTES);
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_ERR_METADATA && strstr(pn_last_error(), "tokenizer.ggml.tokens"));
    CHECK(!pn_tokenizer_new(NULL) && pn_last_status() == PN_ERR_ARGUMENT);
}

static void test_vocabulary_with_no_merges_at_all_is_bytes(void) {
    pn_tokenizer *tokenizer = NULL;
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", TOKENS, 3);
    put_strings(&FILE_BYTES, "merges", MERGES, 0);
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_OK);
    uint32_t ids[3] = { 0 };
    CHECK(tokenizer && pn_tokenize(tokenizer, "cab", 3, 0, ids, 3) == 3 && ids[0] == 2);
    pn_tokenizer_free(tokenizer);
}

static void test_vocabulary_with_invalid_utf8_in_its_tokens_keeps_the_bytes(void) {
    const char *const tokens[] = { "a", "\xff\xfe", "\xe6\xad", "\xc4\xa0\xff" };
    pn_tokenizer *tokenizer = NULL;
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", tokens, 4);
    put_strings(&FILE_BYTES, "merges", MERGES, 0);
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_OK);
    for (uint32_t id = 0; tokenizer && id < 4; id++) {
        size_t len = 0;
        const char *const piece = pn_token_piece(tokenizer, id, &len);
        CHECK(len == strlen(tokens[id]) && memcmp(piece, tokens[id], len) == 0);
    }
    pn_tokenizer_free(tokenizer);
}

static void test_user_defined_text_is_taken_out_first_leftmost_and_longest(void) {
    static const char *const texts[] = { "a", "b", "c", "ab", "bc", "bca", "<u>", "  " };
    static const int32_t types[] = { 1, 1, 1, 1, 4, 4, 4, 4 };
    static const uint32_t expected[] = { 7, 0, 5, 4, 1, 3, 7 };
    start_file(&FILE_BYTES);
    put_strings(&FILE_BYTES, "tokens", texts, PN_ARRAY_LEN(texts));
    put_array(&FILE_BYTES, "token_type", PN_VALUE_I32, PN_ARRAY_LEN(types));
    put(&FILE_BYTES, types, sizeof types);
    put_strings(&FILE_BYTES, "merges", MERGES, 1);
    pn_tokenizer *tokenizer = NULL;
    CHECK(build(&FILE_BYTES, &tokenizer) == PN_OK);
    uint32_t ids[8] = { 0 };
    CHECK(pn_tokenize(tokenizer, "  abcabcbab  ", 13, 0, ids, 8) == 7 && memcmp(ids, expected, sizeof expected) == 0);
    CHECK(pn_tokenize(tokenizer, "bc", 2, PN_ENCODE_SPECIAL, ids, 8) == 1 && ids[0] == 4);
    CHECK(pn_tokenize(tokenizer, "<u>", 3, 0, ids, 8) == -PN_ERR_ARGUMENT); /* a marker, and '<' has no token */
    CHECK(pn_token_id(tokenizer, "<u>", 3) == 6 && pn_token_id(tokenizer, "bc", 2) == -1);
    pn_tokenizer_free(tokenizer);
}

/* Bytes of the vocabulary changed at random: refused or built, and then usable; the sanitizers watch. */
static void test_vocabulary_with_random_damage_never_crashes(void) {
    static uint8_t good[sizeof FILE_BYTES.bytes];
    pn_tokenizer_free(build_small());
    const size_t len = FILE_BYTES.len;
    memcpy(good, FILE_BYTES.bytes, len);
    uint32_t seed = 11;
    for (int round = 0; round < 3000; round++) {
        memcpy(FILE_BYTES.bytes, good, len);
        for (uint32_t n = 1 + random_next(&seed) % 3; n > 0; n--)
            FILE_BYTES.bytes[24 + random_next(&seed) % (len - 24)] = (uint8_t)random_next(&seed);
        pn_gguf *gguf = NULL;
        if (gguf_parse(FILE_BYTES.bytes, len, &gguf) != PN_OK) continue;
        pn_tokenizer *const tokenizer = pn_tokenizer_new(gguf);
        pn_gguf_free(gguf);
        uint32_t ids[16];
        if (tokenizer) {
            CHECK(pn_tokenize(tokenizer, "abc<s>cab", 9, PN_ENCODE_SPECIAL, ids, 16) <= 10);
            CHECK(pn_tokenize(tokenizer, "abcabc", 6, PN_ENCODE_BOS, ids, 16) <= 7);
        }
        pn_tokenizer_free(tokenizer);
    }
}

static void test_bytes_are_spelled_as_gpt2_does(void) {
    uint8_t spelling[2];
    CHECK(vocab_spell_byte('!', spelling) == 1 && spelling[0] == '!');
    CHECK(vocab_spell_byte(' ', spelling) == 2 && memcmp(spelling, "\xc4\xa0", 2) == 0);  /* U+0120 */
    CHECK(vocab_spell_byte(0x7F, spelling) == 2 && memcmp(spelling, "\xc4\xa1", 2) == 0); /* U+0121 */
    CHECK(vocab_spell_byte(0xA0, spelling) == 2 && memcmp(spelling, "\xc5\x82", 2) == 0); /* U+0142 */
    CHECK(vocab_spell_byte(0xAD, spelling) == 2 && memcmp(spelling, "\xc5\x83", 2) == 0); /* U+0143 */
    CHECK(vocab_spell_byte(0xFF, spelling) == 2 && memcmp(spelling, "\xc3\xbf", 2) == 0); /* U+00FF */
}

int main(void) {
    RUN(test_unicode_decode_of_well_formed_text_gives_code_points);
    RUN(test_unicode_decode_of_malformed_text_gives_nothing);
    RUN(test_unicode_props_know_the_borders_of_the_classes);
    RUN(test_bpe_merge_of_any_length_equals_the_definition);
    RUN(test_bpe_add_of_a_pair_again_counts_the_later_rank);
    RUN(test_bpe_reserve_refuses_what_positions_cannot_count);
    RUN(test_bpe_merge_of_a_million_equal_symbols_ends);
    RUN(test_special_scan_equals_trying_every_text_everywhere);
    RUN(test_special_new_refuses_more_text_than_it_can_hold);
    RUN(test_pn_tokenize_counts_all_and_writes_what_fits);
    RUN(test_pn_tokenize_refuses_wrong_arguments_and_unknown_bytes);
    RUN(test_tokens_report_their_bytes_types_and_roles);
    RUN(test_many_tokens_become_bytes_at_once);
    RUN(test_vocabulary_without_tokens_or_merges_is_refused);
    RUN(test_vocabulary_with_no_merges_at_all_is_bytes);
    RUN(test_vocabulary_with_invalid_utf8_in_its_tokens_keeps_the_bytes);
    RUN(test_user_defined_text_is_taken_out_first_leftmost_and_longest);
    RUN(test_vocabulary_with_random_damage_never_crashes);
    RUN(test_bytes_are_spelled_as_gpt2_does);
    return check_report();
}
