/* normalize.c - text in, the same text in Unicode's normalization form C out.                        (rank 2)
 *
 * Text is cut into stretches that begin with a character which neither changes nor joins the one before it; a stretch
 * whose characters all stay as they are and stand in order is left alone, another one is taken apart, sorted and put
 * together. Terms and algorithms: Unicode Standard Annex 15 and chapter 3.11 and 3.12 (Hangul) of the standard.
 * The tables in normalize_tables.h follow the reference tokenizer's idea of Unicode; see tools/gen_unicode.py. */
#include "normalize.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "normalize_tables.h"
#include "status.h"
#include "unicode.h"

/* Of a character's byte in NORMALIZE_BLOCKS: it has another form, or it may join the character before it. */
#define NORMALIZE_CHANGING 0x80u
#define NORMALIZE_RANK     0x7Fu /* of its combining class; 0: a starter */
/* A run of combining characters up to this long is sorted by insertion. */
#define NORMALIZE_SHORT 16
/* No character has more parts in all, and none more than twice as many as bytes. */
#define NORMALIZE_MOST_PARTS 4

/* Hangul syllables (chapter 3.12): leading consonants, vowels, trailing consonants and what they make. */
enum {
    HANGUL_S = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_N_L = 19,
    HANGUL_N_V = 21,
    HANGUL_N_T = 28,
    HANGUL_N_S = HANGUL_N_L * HANGUL_N_V * HANGUL_N_T,
};

static uint8_t normalize_props(uint32_t code) {
    return NORMALIZE_BLOCKS[(size_t)NORMALIZE_INDEX[code >> 7] * 128 + (code & 127)];
}

/* ---- Taking apart ---- */

/* The row of NORMALIZE_PARTS for a code point, or NULL. */
static const uint32_t *normalize_parts(uint32_t code) {
    size_t low = 0, high = PN_ARRAY_LEN(NORMALIZE_PARTS);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (NORMALIZE_PARTS[middle][0] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < PN_ARRAY_LEN(NORMALIZE_PARTS) && NORMALIZE_PARTS[low][0] == code ? NORMALIZE_PARTS[low] : NULL;
}

/* Full decomposition of a character to out[0, NORMALIZE_MOST_PARTS); returns how many. Only the first of a pair has
 * parts itself. */
static size_t normalize_take_apart(uint32_t code, uint32_t *out) {
    if (code - HANGUL_S < HANGUL_N_S) {
        const uint32_t at = code - HANGUL_S, tail = at % HANGUL_N_T;
        out[0] = HANGUL_L + at / (HANGUL_N_V * HANGUL_N_T);
        out[1] = HANGUL_V + at / HANGUL_N_T % HANGUL_N_V;
        out[2] = HANGUL_T + tail;
        return tail ? 3 : 2;
    }
    uint32_t seconds[NORMALIZE_MOST_PARTS];
    size_t n = 0;
    for (const uint32_t *parts; n < NORMALIZE_MOST_PARTS - 1 && (parts = normalize_parts(code)); code = parts[1])
        if (parts[2]) seconds[n++] = parts[2];
    out[0] = code;
    for (size_t i = 0; i < n; i++) out[1 + i] = seconds[n - 1 - i];
    return n + 1;
}

/* ---- Sorting ---- */

/* codes[0, n), combining characters, stably by the rank of their class. sorted has room for n. */
static void normalize_sort_run(uint32_t *codes, uint32_t *sorted, size_t n) {
    if (n <= NORMALIZE_SHORT) {
        for (size_t i = 1; i < n; i++) {
            const uint32_t code = codes[i];
            const unsigned rank = normalize_props(code) & NORMALIZE_RANK;
            size_t at = i;
            for (; at > 0 && (normalize_props(codes[at - 1]) & NORMALIZE_RANK) > rank; at--) codes[at] = codes[at - 1];
            codes[at] = code;
        }
        return;
    }
    size_t begin[NORMALIZE_RANKS + 1] = { 0 };
    for (size_t i = 0; i < n; i++) begin[(normalize_props(codes[i]) & NORMALIZE_RANK) + 1]++;
    for (size_t rank = 0; rank < NORMALIZE_RANKS; rank++) begin[rank + 1] += begin[rank];
    for (size_t i = 0; i < n; i++) sorted[begin[normalize_props(codes[i]) & NORMALIZE_RANK]++] = codes[i];
    memcpy(codes, sorted, n * sizeof *codes);
}

static void normalize_sort(uint32_t *codes, uint32_t *sorted, size_t n) {
    for (size_t i = 0; i < n;) {
        if (!(normalize_props(codes[i]) & NORMALIZE_RANK)) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < n && normalize_props(codes[end]) & NORMALIZE_RANK) end++;
        normalize_sort_run(codes + i, sorted, end - i);
        i = end;
    }
}

/* ---- Putting together ---- */

/* What first and second make, or 0. */
static uint32_t normalize_join(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < HANGUL_N_L && second - HANGUL_V < HANGUL_N_V)
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_N_V + (second - HANGUL_V)) * HANGUL_N_T;
    if (first - HANGUL_S < HANGUL_N_S && (first - HANGUL_S) % HANGUL_N_T == 0 && second - HANGUL_T - 1 < HANGUL_N_T - 1)
        return first + (second - HANGUL_T);
    size_t low = 0, high = PN_ARRAY_LEN(NORMALIZE_PAIRS);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const uint32_t *const row = NORMALIZE_PAIRS[middle];
        if (row[0] < first || (row[0] == first && row[1] < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == PN_ARRAY_LEN(NORMALIZE_PAIRS)) return 0;
    const uint32_t *const row = NORMALIZE_PAIRS[low];
    return row[0] == first && row[1] == second ? row[2] : 0;
}

/* Compose codes[0, n), sorted, in place; returns how many are left. A character joins the last starter unless one that
 * is left between them has no lower class. */
static size_t normalize_compose(uint32_t *codes, size_t n) {
    size_t used = 0, starter = SIZE_MAX;
    unsigned last = 0; /* rank of the last character left after the starter; 0: none yet, or it is a starter */
    for (size_t i = 0; i < n; i++) {
        const uint32_t code = codes[i];
        const unsigned rank = normalize_props(code) & NORMALIZE_RANK;
        const bool adjacent = starter != SIZE_MAX && starter + 1 == used;
        if (starter != SIZE_MAX && (adjacent || (last < rank && last))) {
            const uint32_t joined = normalize_join(codes[starter], code);
            if (joined) {
                codes[starter] = joined;
                continue;
            }
        }
        if (rank == 0) starter = used;
        last = rank;
        codes[used++] = code;
    }
    return used;
}

/* ---- Stretches ---- */

/* One character of the text, and what the tables say about it. */
typedef struct normalize_char {
    size_t len;
    uint32_t code;
    uint8_t props;
    bool valid; /* false: a byte that begins no well-formed UTF-8 */
} normalize_char;

static normalize_char normalize_step(const uint8_t *text, size_t len) {
    normalize_char c = { 1, text[0], 0, true };
    if (text[0] < 0x80) return c;
    c.len = unicode_decode(text, len, &c.code);
    if (c.len == 0) return (normalize_char){ 1, 0, 0, false };
    c.props = normalize_props(c.code);
    return c;
}

/* End of the run of ASCII characters at text[at], at < len. */
static size_t normalize_skip_ascii(const uint8_t *text, size_t len, size_t at) {
    for (uint64_t word = 0; len - at >= sizeof word; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (at < len && text[at] < 0x80) at++;
    return at;
}

/* From `from`, where a stretch begins, to the first stretch that is not in form C already; its end to *end. Returns len
 * if there is none. */
static size_t normalize_find(const uint8_t *text, size_t len, size_t from, size_t *end) {
    size_t begin = from;
    unsigned last = 0;
    bool stays = true;
    for (size_t at = from; at < len;) {
        const normalize_char c = normalize_step(text + at, len - at);
        if (c.props == 0) {
            if (!stays) {
                *end = at;
                return begin;
            }
            last = 0;
            const size_t end_of_ascii = normalize_skip_ascii(text, len, at);
            if (end_of_ascii > at) {
                begin = end_of_ascii - 1;
                at = end_of_ascii;
                continue;
            }
            begin = at;
        } else {
            const unsigned rank = c.props & NORMALIZE_RANK;
            if (c.props & NORMALIZE_CHANGING || (rank && rank < last)) stays = false;
            last = rank;
        }
        at += c.len;
    }
    *end = len;
    return stays ? len : begin;
}

static int normalize_reserve_codes(normalize_scratch *scratch, size_t n) {
    if (n <= scratch->codes_cap) return PN_OK;
    size_t bytes = 0;
    const size_t cap = size_max(64, n);
    free(scratch->codes);
    free(scratch->sorted);
    scratch->codes = scratch->sorted = NULL;
    scratch->codes_cap = 0;
    if (size_mul(cap, sizeof *scratch->codes, &bytes)) {
        scratch->codes = malloc(bytes);
        scratch->sorted = malloc(bytes);
    }
    if (!scratch->codes || !scratch->sorted)
        return pn_fail(PN_ERR_MEMORY, "normalize: out of memory (%zu characters)", n);
    scratch->codes_cap = cap;
    return PN_OK;
}

/* text[0, len), one stretch, in form C to out, which has NORMALIZE_GROWTH * len bytes; *n is how many it has. A stretch
 * holds no byte that begins nothing, but as its first. */
static int normalize_stretch(normalize_scratch *scratch, const uint8_t *text, size_t len, uint8_t *out, size_t *n) {
    size_t at = 0, n_codes = 0;
    *n = 0;
    if (!normalize_step(text, len).valid) out[(*n)++] = text[at++];
    PN_TRY(normalize_reserve_codes(scratch, 2 * len + NORMALIZE_MOST_PARTS));
    while (at < len) {
        const normalize_char c = normalize_step(text + at, len - at);
        n_codes += normalize_take_apart(c.code, scratch->codes + n_codes);
        at += c.len;
    }
    normalize_sort(scratch->codes, scratch->sorted, n_codes);
    n_codes = normalize_compose(scratch->codes, n_codes);
    for (size_t i = 0; i < n_codes; i++) *n += unicode_encode(scratch->codes[i], out + *n);
    return PN_OK;
}

static int normalize_reserve_bytes(normalize_scratch *scratch, size_t len) {
    size_t bytes = 0;
    if (!size_mul(len, NORMALIZE_GROWTH, &bytes)) bytes = SIZE_MAX;
    if (bytes <= scratch->cap) return PN_OK;
    free(scratch->bytes);
    scratch->cap = 0;
    scratch->bytes = bytes == SIZE_MAX ? NULL : malloc(bytes);
    if (!scratch->bytes) return pn_fail(PN_ERR_MEMORY, "normalize: out of memory (%zu bytes)", bytes);
    scratch->cap = bytes;
    return PN_OK;
}

int normalize_nfc(normalize_scratch *scratch, const uint8_t *text, size_t len, const uint8_t **out, size_t *out_len) {
    size_t end = 0, used = 0, copied = 0;
    size_t begin = normalize_find(text, len, 0, &end);
    *out = text;
    *out_len = len;
    if (begin == len) return PN_OK;
    PN_TRY(normalize_reserve_bytes(scratch, len));
    for (; begin < len; begin = normalize_find(text, len, end, &end)) {
        memcpy(scratch->bytes + used, text + copied, begin - copied);
        used += begin - copied;
        size_t n = 0;
        PN_TRY(normalize_stretch(scratch, text + begin, end - begin, scratch->bytes + used, &n));
        used += n;
        copied = end;
    }
    memcpy(scratch->bytes + used, text + copied, len - copied);
    *out = scratch->bytes;
    *out_len = used + (len - copied);
    return PN_OK;
}

void normalize_scratch_free(normalize_scratch *scratch) {
    free(scratch->bytes);
    free(scratch->codes);
    free(scratch->sorted);
    *scratch = (normalize_scratch){ 0 };
}
