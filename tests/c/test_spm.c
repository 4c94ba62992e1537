/* test_spm.c - merging by score against a slow and obvious version of the same; character maps of any bytes. Equal ids
 * with the reference library are tested in tests/test_spm.py. */
#include <stdlib.h>
#include <string.h>

#include "charsmap.h"
#include "check.h"
#include "common.h"
#include "pantheon.h"
#include "spm.h"
#include "unicode.h"

static uint32_t random_next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static spm_piece piece_of(const char *text, uint32_t id, float score) {
    return (spm_piece){ (const uint8_t *)text, strlen(text), id, score };
}

/* ---- Merging ---- */

typedef struct part {
    size_t at, len;
} part;

/* The piece of text[0, len), NULL if there is none. */
static const spm_piece *slow_find(const spm_piece *pieces, size_t n, const uint8_t *text, size_t len) {
    for (size_t i = 0; i < n; i++)
        if (pieces[i].len == len && memcmp(pieces[i].text, text, len) == 0) return &pieces[i];
    return NULL;
}

/* The parts of a text after all merges, the best pair looked for anew each time; returns how many. */
static size_t slow_merge(const spm_piece *pieces, size_t n_pieces, const uint8_t *text, size_t len, part *parts) {
    size_t n = 0;
    for (size_t at = 0; at < len; at += parts[n - 1].len) {
        uint8_t props = 0;
        parts[n++] = (part){ at, unicode_step(text + at, len - at, &props) };
    }
    for (;;) {
        size_t best = n;
        const spm_piece *found = NULL;
        for (size_t i = 0; i + 1 < n; i++) {
            const spm_piece *const p = slow_find(pieces, n_pieces, text + parts[i].at, parts[i].len + parts[i + 1].len);
            if (!p || (found && p->score <= found->score)) continue;
            found = p;
            best = i;
        }
        if (!found) return n;
        parts[best].len += parts[best + 1].len;
        memmove(&parts[best + 1], &parts[best + 2], (n - best - 2) * sizeof *parts);
        n--;
    }
}

/* Compare one text; true if equal. */
static bool merges_alike(const spm *table, const spm_piece *pieces, size_t n_pieces, const uint8_t *text, size_t len) {
    static part parts[256];
    bpe_scratch scratch = { 0 };
    const size_t n_wanted = slow_merge(pieces, n_pieces, text, len, parts);
    size_t got = 0;
    bool alike = true;
    for (size_t at = 0; at < len && alike;) {
        const size_t from = at;
        size_t n = 0;
        alike = spm_next(table, text, len, &at, &scratch, &n) == PN_OK && at > from;
        if (n == 0) { /* a character that no piece has anything to do with */
            alike &= got < n_wanted && parts[got].at == from && parts[got].len == at - from &&
                     !slow_find(pieces, n_pieces, text + from, at - from);
            got++;
        }
        for (size_t i = 0; i < n && alike; i++, got++) {
            const part want = parts[got < n_wanted ? got : 0];
            const spm_piece *const piece = slow_find(pieces, n_pieces, text + want.at, want.len);
            uint8_t character[4];
            if (scratch.ids[i] < 1000) {
                alike = got < n_wanted && piece && piece->id == scratch.ids[i];
            } else {
                const size_t size = spm_character(table, scratch.ids[i], character);
                alike = got < n_wanted && !piece && size == want.len && memcmp(character, text + want.at, size) == 0;
            }
        }
    }
    bpe_scratch_free(&scratch);
    return alike && got == n_wanted;
}

static void test_spm_merges_like_the_obvious_version(void) {
    static const char *const atoms[] = { "a", "b", " ", "\xC3\xA9", "\xF0\x9F\x98\xB8", "\xE2", "\x80" };
    uint32_t state = 11;
    for (int round = 0; round < 400; round++) {
        char words[12][24];
        spm_piece pieces[12];
        const size_t n = 1 + random_next(&state) % 12;
        for (size_t i = 0; i < n; i++) {
            words[i][0] = 0;
            for (size_t k = random_next(&state) % 5; k > 0; k--)
                strcat(words[i], atoms[random_next(&state) % PN_ARRAY_LEN(atoms)]);
            pieces[i] = piece_of(words[i], (uint32_t)i, -(float)(random_next(&state) % 4));
            if (words[i][0] && slow_find(pieces, i, pieces[i].text, pieces[i].len)) pieces[i].len = 0;
        }
        spm *table = NULL;
        CHECK(spm_new(pieces, n, 1000, state, &table) == PN_OK);
        for (int k = 0; k < 20; k++) {
            char text[256] = "";
            for (size_t atom = random_next(&state) % (k < 18 ? 8 : 60); atom > 0; atom--)
                strcat(text, atoms[random_next(&state) % PN_ARRAY_LEN(atoms)]);
            CHECK(merges_alike(table, pieces, n, (const uint8_t *)text, strlen(text)));
        }
        spm_free(table);
    }
}

static void test_spm_of_equal_texts_the_first_counts_and_infinite_scores_are_scores(void) {
    const float infinite = 1e30f * 1e30f;
    const spm_piece pieces[] = { piece_of("a", 7, 0),         piece_of("b", 8, 0),         piece_of("ab", 1, -infinite),
                                 piece_of("ba", 2, infinite), piece_of("ab", 3, infinite), piece_of("", 4, 0) };
    spm *table = NULL;
    bpe_scratch scratch = { 0 };
    size_t at = 0, n = 0;
    CHECK(spm_new(pieces, PN_ARRAY_LEN(pieces), 9, 1, &table) == PN_OK);
    CHECK(spm_next(table, (const uint8_t *)"abab", 4, &at, &scratch, &n) == PN_OK);
    CHECK(n == 3 && scratch.ids[0] == 7 && scratch.ids[1] == 2 && scratch.ids[2] == 8);
    bpe_scratch_free(&scratch);
    spm_free(table);
}

static void test_spm_refuses_pieces_beyond_its_bounds(void) {
    static uint8_t text[SPM_MAX_PIECE + 1];
    memset(text, 'a', sizeof text);
    spm *table = NULL;
    spm_piece piece = { text, SPM_MAX_PIECE, 0, 0 };
    CHECK(spm_new(&piece, 1, 1, 1, &table) == PN_OK);
    spm_free(table);
    piece.len++;
    CHECK(spm_new(&piece, 1, 1, 1, &table) == PN_ERR_UNSUPPORTED);
    CHECK(table == NULL);
    CHECK(spm_new(NULL, 0, 1, 1, &table) == PN_OK);
    spm_free(table);
}

/* ---- Character maps ---- */

/* A map of the bytes "a" to "xy" and "ab" to nothing, its trie laid out by hand: the root's children at 256 ^ byte. */
static size_t write_map(uint8_t *blob) {
    enum { UNITS = 1024 };
    static uint32_t units[UNITS];
    memset(units, 0, sizeof units);
    const uint32_t leaf = 1u << 8;
    units[0] = 256u << 10;
    const uint32_t a = 256 ^ 'a', children = 512;
    units[a] = 'a' | leaf | (a ^ children) << 10;
    units[children] = 0x80000000u | 0;
    const uint32_t ab = children ^ 'b', end = 768;
    units[ab] = 'b' | leaf | (ab ^ end) << 10;
    units[end] = 0x80000000u | 2;
    const size_t bytes = sizeof units;
    for (int i = 0; i < 4; i++) blob[i] = (uint8_t)(bytes >> 8 * i);
    for (size_t i = 0; i < UNITS; i++)
        for (size_t k = 0; k < 4; k++) blob[4 + 4 * i + k] = (uint8_t)(units[i] >> 8 * k);
    memcpy(blob + 4 + bytes, "xy", 3);
    return 4 + bytes + 3;
}

static void test_charsmap_takes_the_longest_rule(void) {
    static uint8_t blob[5000];
    charsmap *map = NULL;
    CHECK(charsmap_new(blob, write_map(blob), &map) == PN_OK);
    const uint8_t *to = NULL;
    size_t n = 9;
    CHECK(charsmap_match(map, (const uint8_t *)"ac", 2, &to, &n) == 1 && n == 2 && memcmp(to, "xy", 2) == 0);
    CHECK(charsmap_match(map, (const uint8_t *)"abc", 3, &to, &n) == 2 && n == 0);
    CHECK(charsmap_match(map, (const uint8_t *)"ab", 1, &to, &n) == 1);
    CHECK(charsmap_match(map, (const uint8_t *)"ba", 2, &to, &n) == 0);
    CHECK(charsmap_match(map, (const uint8_t *)"a", 0, &to, &n) == 0);
    charsmap_free(map);
}

/* "a" leads to itself, with a value: without a bound every text of them would be one rule. */
static void test_charsmap_walks_no_circle_to_the_end_of_the_text(void) {
    static uint8_t blob[4 + 4 * 256 + 2], text[4 * CHARSMAP_MAX];
    charsmap *map = NULL;
    const uint8_t *to = NULL;
    size_t n = 9;
    blob[1] = 4; /* 1024 bytes of trie */
    const uint32_t unit = (uint32_t)'a' << 10 | 1u << 8 | 'a';
    for (size_t k = 0; k < 4; k++) blob[4 + 4 * 'a' + k] = (uint8_t)(unit >> 8 * k);
    memset(text, 'a', sizeof text);
    CHECK(charsmap_new(blob, sizeof blob, &map) == PN_OK);
    CHECK(charsmap_match(map, text, sizeof text, &to, &n) == CHARSMAP_MAX && n == 0);
    CHECK(charsmap_match(map, text, 7, &to, &n) == 7);
    charsmap_free(map);
}

static void test_charsmap_refuses_long_replacements(void) {
    static uint8_t blob[4 + 4 + CHARSMAP_MAX + 4];
    charsmap *map = NULL;
    blob[0] = 4;
    memset(blob + 9, 'x', CHARSMAP_MAX);
    CHECK(charsmap_new(blob, sizeof blob, &map) == PN_OK);
    charsmap_free(map);
    blob[9 + CHARSMAP_MAX] = 'x';
    CHECK(charsmap_new(blob, sizeof blob, &map) == PN_ERR_UNSUPPORTED && map == NULL);
}

static void test_charsmap_of_any_bytes_stays_inside(void) {
    uint32_t state = 3;
    static uint8_t blob[5000];
    for (int round = 0; round < 3000; round++) {
        const size_t whole = write_map(blob);
        const size_t len = round % 2 ? whole : random_next(&state) % 80;
        if (round % 2)
            for (int k = 0; k < 40; k++) blob[4 + 4 * (random_next(&state) % 1024) + 1] ^= (uint8_t)random_next(&state);
        else
            for (size_t i = 0; i < len; i++)
                blob[i] = (uint8_t)(i == 0 ? random_next(&state) % 80 : random_next(&state) % 7);
        if (round % 4 == 0 && len > 4) memset(blob + 1, 0, 3);
        if (len) blob[len - 1] = 0;
        uint8_t *const copy = malloc(len ? len : 1);
        if (!copy) continue;
        memcpy(copy, blob, len);
        charsmap *map = NULL;
        if (charsmap_new(copy, len, &map) == PN_OK) {
            for (int k = 0; k < 50; k++) {
                uint8_t text[4];
                for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)(k % 2 ? random_next(&state) : 'a' + i % 2);
                const uint8_t *to = NULL;
                size_t n = 0;
                CHECK(charsmap_match(map, text, sizeof text, &to, &n) <= sizeof text);
            }
        }
        charsmap_free(map);
        free(copy);
    }
}

int main(void) {
    RUN(test_spm_merges_like_the_obvious_version);
    RUN(test_spm_of_equal_texts_the_first_counts_and_infinite_scores_are_scores);
    RUN(test_spm_refuses_pieces_beyond_its_bounds);
    RUN(test_charsmap_takes_the_longest_rule);
    RUN(test_charsmap_walks_no_circle_to_the_end_of_the_text);
    RUN(test_charsmap_refuses_long_replacements);
    RUN(test_charsmap_of_any_bytes_stays_inside);
    return check_report();
}
