/* charsmap.c - the character map of a SentencePiece file in, what characters are replaced by out.      (rank 4)
 *
 * Layout of the blob, after SentencePiece's source (normalizer.cc): the number of bytes of a trie, u32; the trie, u32
 * units; the replacements, each ended by a zero byte. All little-endian.
 * The trie is a double array (Darts-clone). Of a unit, bits 0-7 are the byte that leads to it, together with bit 31,
 * which is set in units that hold a value; bit 8 says that a text ends here; bits 10-30, shifted left by another 8 if
 * bit 9 is set, lead to its children: the child for byte c is at (place of the unit) xor offset xor c, and the value
 * (where the replacement begins) at that of no byte at all. */
#include "charsmap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "pantheon.h"
#include "status.h"

#define CHARSMAP_LABEL UINT32_C(0x800000FF)
#define CHARSMAP_VALUE UINT32_C(0x7FFFFFFF)

struct charsmap {
    uint32_t *units; /* [n_units], n_units >= 1                                    */
    uint8_t *texts;  /* [n_texts], the last one is 0, so that every text has an end */
    size_t n_units, n_texts;
};

static uint32_t charsmap_load(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Texts end with a zero byte, the last one too. */
static int charsmap_check_texts(const uint8_t *texts, size_t n) {
    for (size_t at = 0; at < n;) {
        const size_t len = (size_t)((const uint8_t *)memchr(texts + at, 0, n - at) - (texts + at));
        if (len > CHARSMAP_MAX)
            return pn_fail(PN_ERR_UNSUPPORTED,
                           "tokenizer.ggml.precompiled_charsmap: a replacement has %zu bytes; at most %zu are allowed",
                           len, CHARSMAP_MAX);
        at += len + 1;
    }
    return PN_OK;
}

int charsmap_new(const uint8_t *blob, size_t len, charsmap **out) {
    *out = NULL;
    const size_t trie = len >= 4 ? charsmap_load(blob) : 0;
    if (trie < 4 || trie % 4 != 0 || trie > len - 4 || trie == len - 4 || blob[len - 1] != 0)
        return pn_fail(PN_ERR_METADATA,
                       "tokenizer.ggml.precompiled_charsmap: its %zu bytes are not a trie and the texts after it", len);
    PN_TRY(charsmap_check_texts(blob + 4 + trie, len - 4 - trie));
    charsmap *const map = calloc(1, sizeof *map);
    if (map) {
        map->n_units = trie / 4;
        map->n_texts = len - 4 - trie;
        map->units = malloc(trie);
        map->texts = malloc(map->n_texts);
    }
    if (!map || !map->units || !map->texts) {
        charsmap_free(map);
        return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes of character map)", len);
    }
    for (size_t i = 0; i < map->n_units; i++) map->units[i] = charsmap_load(blob + 4 + 4 * i);
    memcpy(map->texts, blob + 4 + trie, map->n_texts);
    *out = map;
    return PN_OK;
}

void charsmap_free(charsmap *map) {
    if (!map) return;
    free(map->units);
    free(map->texts);
    free(map);
}

/* From a unit at *at to where its children are counted from. */
static size_t charsmap_children(size_t at, uint32_t unit) {
    return at ^ (size_t)(unit >> 10 & 0x1FFFFF) << ((unit & 1u << 9) >> 6);
}

/* Where the replacement of a text that ends at this unit begins; false if the map is nonsense. */
static bool charsmap_value(const charsmap *map, size_t children, size_t *value) {
    if (children >= map->n_units) return false;
    *value = map->units[children] & CHARSMAP_VALUE;
    return *value < map->n_texts;
}

size_t charsmap_match(const charsmap *map, const uint8_t *text, size_t len, const uint8_t **to, size_t *to_len) {
    size_t used = 0, children = charsmap_children(0, map->units[0]);
    for (size_t i = 0; i < size_min(len, CHARSMAP_MAX); i++) {
        const size_t at = children ^ text[i];
        if (at >= map->n_units || (map->units[at] & CHARSMAP_LABEL) != text[i]) break;
        children = charsmap_children(at, map->units[at]);
        size_t value = 0;
        if (!(map->units[at] & 1u << 8) || !charsmap_value(map, children, &value)) continue;
        used = i + 1;
        *to = map->texts + value;
    }
    if (used) *to_len = (size_t)((const uint8_t *)memchr(*to, 0, (size_t)(map->texts + map->n_texts - *to)) - *to);
    return used;
}
