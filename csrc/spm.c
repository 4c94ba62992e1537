/* spm.c - pieces with scores in; a text to ids by always merging the pair whose piece scores highest.    (rank 5)
 *
 * Does not look up texts while merging: for each piece, all ways to put it together from two symbols are found once,
 * when the table is built, and entered into a table of bpe.h, whose rank is the place of the piece's score.
 * Two neighbouring characters that stand side by side in no piece are never merged across, so there the text is cut,
 * and most stretches are words. Which characters are neighbours in some piece is remembered in a filter of bits, which
 * may say yes too often (a longer stretch, the same ids) but never no. */
#include "spm.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "hash.h"
#include "pantheon.h"
#include "status.h"
#include "unicode.h"

#define SPM_NONE UINT32_MAX
/* Bytes that begin no well-formed character are characters of their own, numbered behind all others. */
#define SPM_RAW_BYTE UINT32_C(0x110000)

typedef struct spm_char {
    uint32_t code;   /* SPM_NONE: the slot is empty */
    uint32_t symbol; /* id of its piece, or n_ids + its place among the bare characters */
} spm_char;

struct spm {
    bpe *merges;
    uint64_t seed;
    uint32_t n_ids;
    uint32_t ascii[128]; /* symbols once more; SPM_NONE: none                                  */
    spm_char *chars;     /* [char_mask + 1] open addressing                                    */
    size_t char_mask, n_chars;
    uint32_t *bare; /* [n_bare] codes of characters that pieces begin or end with, but that have none themselves */
    size_t n_bare;
    uint64_t *joins; /* [join_mask / 64 + 1] the filter                                        */
    size_t join_mask;
};

/* While building. */
typedef struct spm_merge {
    uint32_t left, right;
    uint32_t piece; /* place in `pieces` */
} spm_merge;

typedef struct spm_builder {
    spm *table;
    const spm_piece *pieces; /* [n]                                                   */
    size_t n;
    uint32_t *places; /* [mask + 1] open addressing: text to the first piece with it  */
    size_t mask;
    spm_merge *merges; /* [n_merges]                                                   */
    size_t n_merges, cap;
} spm_builder;

/* The character at text[0, len), len >= 1: how many bytes, and its code. */
static inline size_t spm_step(const uint8_t *text, size_t len, uint32_t *code) {
    if (text[0] < 0x80) {
        *code = text[0];
        return 1;
    }
    const size_t step = unicode_decode(text, len, code);
    if (step) return step;
    *code = SPM_RAW_BYTE | text[0];
    return 1;
}

/* ---- Characters ---- */

static spm_char *spm_char_slot(const spm *table, uint32_t code) {
    size_t at = hash_slot(code ^ table->seed, table->char_mask);
    while (table->chars[at].code != code && table->chars[at].code != SPM_NONE) at = (at + 1) & table->char_mask;
    return &table->chars[at];
}

static inline uint32_t spm_symbol(const spm *table, uint32_t code) {
    return code < 128 ? table->ascii[code] : spm_char_slot(table, code)->symbol;
}

/* Give a character its symbol, unless it has one. The table has room. */
static void spm_add_char(spm *table, uint32_t code, uint32_t symbol) {
    spm_char *const slot = spm_char_slot(table, code);
    if (slot->code == code) return;
    *slot = (spm_char){ code, symbol };
    table->n_chars++;
    if (code < 128) table->ascii[code] = symbol;
}

static void spm_add_bare(spm *table, uint32_t code) {
    if (spm_char_slot(table, code)->code == code) return;
    spm_add_char(table, code, table->n_ids + (uint32_t)table->n_bare);
    table->bare[table->n_bare++] = code;
}

size_t spm_character(const spm *table, uint32_t symbol, uint8_t out[4]) {
    const uint32_t code = table->bare[symbol - table->n_ids];
    if (code < SPM_RAW_BYTE) return unicode_encode(code, out);
    out[0] = (uint8_t)code;
    return 1;
}

/* ---- Neighbours ---- */

static inline size_t spm_join_bit(const spm *table, uint32_t left, uint32_t right) {
    return hash_slot(((uint64_t)left << 32 | right) ^ table->seed, table->join_mask);
}

static inline bool spm_may_join(const spm *table, uint32_t left, uint32_t right) {
    const size_t bit = spm_join_bit(table, left, right);
    return table->joins[bit / 64] >> bit % 64 & 1;
}

/* ---- Building: the index of texts ---- */

static size_t spm_place(const spm_builder *b, const uint8_t *text, size_t len) {
    for (size_t at = hash_bytes_slot(b->table->seed, text, len, b->mask);; at = (at + 1) & b->mask) {
        const uint32_t place = b->places[at];
        if (place == SPM_NONE || (b->pieces[place].len == len && memcmp(b->pieces[place].text, text, len) == 0))
            return at;
    }
}

/* The symbol of a text: of its piece, or of the one character that it is; SPM_NONE if there is none. */
static uint32_t spm_symbol_of(const spm_builder *b, const uint8_t *text, size_t len) {
    const uint32_t place = b->places[spm_place(b, text, len)];
    if (place != SPM_NONE) return b->pieces[place].id;
    uint32_t code = 0;
    return spm_step(text, len, &code) == len ? spm_symbol(b->table, code) : SPM_NONE;
}

/* ---- Building: what the table holds ---- */

/* Characters that are pieces, then those at the ends of pieces that are not; the filter of neighbours. */
static void spm_fill_chars(const spm_builder *b) {
    spm *const table = b->table;
    for (size_t i = 0; i < b->n; i++) {
        const spm_piece *const piece = &b->pieces[i];
        uint32_t code = 0;
        if (piece->len && spm_step(piece->text, piece->len, &code) == piece->len) spm_add_char(table, code, piece->id);
    }
    for (size_t i = 0; i < b->n; i++) {
        const spm_piece *const piece = &b->pieces[i];
        uint32_t first = 0, last = 0;
        size_t at = piece->len ? spm_step(piece->text, piece->len, &first) : 0;
        if (at == piece->len) continue;
        for (uint32_t before = first; at < piece->len; before = last) {
            at += spm_step(piece->text + at, piece->len - at, &last);
            const size_t bit = spm_join_bit(table, before, last);
            table->joins[bit / 64] |= UINT64_C(1) << bit % 64;
        }
        spm_add_bare(table, first);
        spm_add_bare(table, last);
    }
}

static int spm_record(spm_builder *b, spm_merge merge) {
    if (b->n_merges == b->cap) {
        if (b->cap >= SPM_MAX_MERGES)
            return pn_fail(PN_ERR_UNSUPPORTED, "tokenizer: more than %zu ways to merge tokens", SPM_MAX_MERGES);
        const size_t cap = size_min(2 * b->cap + 1024, SPM_MAX_MERGES);
        spm_merge *const grown = realloc(b->merges, cap * sizeof merge);
        if (!grown) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu merges)", cap);
        b->merges = grown;
        b->cap = cap;
    }
    b->merges[b->n_merges++] = merge;
    return PN_OK;
}

/* All ways to put a piece together from two symbols. */
static int spm_split_piece(spm_builder *b, uint32_t place) {
    const spm_piece *const piece = &b->pieces[place];
    if (piece->len > SPM_MAX_PIECE)
        return pn_fail(PN_ERR_UNSUPPORTED, "tokenizer: token %u has %zu bytes, a piece of text has at most %zu",
                       piece->id, piece->len, SPM_MAX_PIECE);
    if (piece->len == 0 || b->places[spm_place(b, piece->text, piece->len)] != place) return PN_OK;
    uint32_t code = 0;
    for (size_t at = spm_step(piece->text, piece->len, &code); at < piece->len;
         at += spm_step(piece->text + at, piece->len - at, &code)) {
        const uint32_t left = spm_symbol_of(b, piece->text, at);
        if (left == SPM_NONE) continue;
        const uint32_t right = spm_symbol_of(b, piece->text + at, piece->len - at);
        if (right != SPM_NONE) PN_TRY(spm_record(b, (spm_merge){ left, right, place }));
    }
    return PN_OK;
}

typedef struct spm_ranked {
    float score;
    uint32_t place;
} spm_ranked;

static int spm_compare_scores(const void *a, const void *b) {
    const float x = ((const spm_ranked *)a)->score, y = ((const spm_ranked *)b)->score;
    return (x < y) - (x > y);
}

/* Enter the merges; the rank is the number of higher scores among the pieces. */
static int spm_rank(const spm_builder *b, uint64_t seed) {
    spm_ranked *const order = malloc((b->n + 1) * sizeof *order);
    uint32_t *const ranks = malloc((b->n + 1) * sizeof *ranks);
    int status = PN_OK;
    if (!order || !ranks) status = pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu tokens)", b->n);
    if (status == PN_OK) status = bpe_new(b->n_merges, seed, &b->table->merges);
    if (status == PN_OK) {
        for (size_t i = 0; i < b->n; i++) order[i] = (spm_ranked){ b->pieces[i].score, (uint32_t)i };
        qsort(order, b->n, sizeof *order, spm_compare_scores);
        uint32_t rank = 0;
        for (size_t i = 0; i < b->n; i++) {
            if (i > 0 && order[i].score < order[i - 1].score) rank++;
            ranks[order[i].place] = rank;
        }
        for (size_t i = 0; i < b->n_merges; i++) {
            const spm_merge *const m = &b->merges[i];
            bpe_add(b->table->merges, m->left, m->right, ranks[m->piece], b->pieces[m->piece].id);
        }
    }
    free(order);
    free(ranks);
    return status;
}

/* A power of two that is at least n and 64. */
static size_t spm_power(uint64_t n) {
    size_t power = 64;
    while (power < n) power *= 2;
    return power;
}

/* Room for everything that is bounded by the pieces: each brings at most two characters. */
static int spm_allocate(spm_builder *b) {
    spm *const table = b->table;
    size_t bytes = 0;
    for (size_t i = 0; i < b->n; i++) bytes += b->pieces[i].len; /* of texts in memory: no overflow */
    const size_t slots = spm_power(2 * (uint64_t)b->n + 1), chars = spm_power(2 * size_min(2 * b->n, 0x110100) + 1);
    const size_t bits = spm_power(size_min(16 * (uint64_t)bytes, UINT64_C(1) << 21));
    b->places = malloc(slots * sizeof *b->places);
    table->chars = malloc(chars * sizeof *table->chars);
    table->bare = malloc((2 * b->n + 1) * sizeof *table->bare);
    table->joins = calloc(bits / 64, sizeof *table->joins);
    if (!b->places || !table->chars || !table->bare || !table->joins)
        return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu tokens)", b->n);
    memset(b->places, 0xFF, slots * sizeof *b->places);
    memset(table->chars, 0xFF, chars * sizeof *table->chars);
    memset(table->ascii, 0xFF, sizeof table->ascii);
    b->mask = slots - 1;
    table->char_mask = chars - 1;
    table->join_mask = bits - 1;
    return PN_OK;
}

static int spm_build(spm_builder *b, uint64_t seed) {
    PN_TRY(spm_allocate(b));
    for (uint32_t i = 0; i < b->n; i++) {
        const size_t at = spm_place(b, b->pieces[i].text, b->pieces[i].len);
        if (b->places[at] == SPM_NONE) b->places[at] = i;
    }
    spm_fill_chars(b);
    for (uint32_t i = 0; i < b->n; i++) PN_TRY(spm_split_piece(b, i));
    return spm_rank(b, seed);
}

int spm_new(const spm_piece *pieces, size_t n, uint32_t n_ids, uint64_t seed, spm **out) {
    *out = NULL;
    spm *const table = calloc(1, sizeof *table);
    if (!table) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes)", sizeof *table);
    table->seed = seed;
    table->n_ids = n_ids;
    spm_builder builder = { .table = table, .pieces = pieces, .n = n };
    const int status = spm_build(&builder, seed);
    free(builder.places);
    free(builder.merges);
    if (status != PN_OK) {
        spm_free(table);
        return status;
    }
    *out = table;
    return PN_OK;
}

void spm_free(spm *table) {
    if (!table) return;
    bpe_free(table->merges);
    free(table->chars);
    free(table->bare);
    free(table->joins);
    free(table);
}

/* ---- Encoding ---- */

/* Where the stretch that begins at `at` ends, and how many characters with a symbol it has. */
static size_t spm_stretch(const spm *table, const uint8_t *text, size_t len, size_t at, size_t *n) {
    uint32_t code = 0, next = 0;
    at += spm_step(text + at, len - at, &code);
    *n = spm_symbol(table, code) != SPM_NONE;
    if (*n == 0) return at;
    for (; at < len; code = next) {
        const size_t step = spm_step(text + at, len - at, &next);
        if (!spm_may_join(table, code, next) || spm_symbol(table, next) == SPM_NONE) break;
        at += step;
        ++*n;
    }
    return at;
}

int spm_next(const spm *table, const uint8_t *text, size_t len, size_t *at, bpe_scratch *scratch, size_t *n) {
    const size_t end = spm_stretch(table, text, len, *at, n);
    if (*n == 0) {
        *at = end;
        return PN_OK;
    }
    PN_TRY(bpe_reserve(scratch, *n));
    uint32_t code = 0;
    for (size_t i = 0; i < *n; i++) {
        *at += spm_step(text + *at, end - *at, &code);
        scratch->ids[i] = spm_symbol(table, code);
    }
    *n = bpe_merge(table->merges, scratch, *n);
    return PN_OK;
}
