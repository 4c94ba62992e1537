/* vocab_whole.c - the bytes of a piece of text in, the token that stands for exactly these bytes out.    (rank 4) */
#include "vocab_whole.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "hash.h"
#include "status.h"

struct vocab_whole {
    const vocab *vocab;
    uint64_t seed;
    size_t mask;
    size_t longest; /* bytes of the longest token: nothing longer needs to be looked for */
    uint32_t ids[]; /* [mask + 1] open addressing; VOCAB_NONE: empty */
};

/* Where the bytes are in the table, or would be. */
static size_t vocab_whole_slot(const vocab_whole *table, const uint8_t *bytes, size_t len) {
    const vocab *const v = table->vocab;
    for (size_t at = hash_bytes_slot(table->seed, bytes, len, table->mask);; at = (at + 1) & table->mask) {
        const uint32_t id = table->ids[at];
        if (id == VOCAB_NONE) return at;
        if (v->offsets[id + 1] - v->offsets[id] == len && memcmp(v->bytes + v->offsets[id], bytes, len) == 0) return at;
    }
}

/* Whether a token's spelling is that of its bytes. */
static bool vocab_whole_is_spelled(const uint8_t *bytes, size_t len, vocab_text spelling) {
    size_t at = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte[2];
        const size_t n = vocab_spell_byte(bytes[i], byte);
        if (spelling.len - at < n || memcmp(spelling.at + at, byte, n) != 0) return false;
        at += n;
    }
    return at == spelling.len;
}

int vocab_whole_new(const vocab *v, const vocab_index *index, uint64_t seed, vocab_whole **out) {
    size_t slots = 16, bytes = 0;
    while (slots < 2 * (uint64_t)v->n) slots *= 2;
    *out = NULL;
    if (size_mul(slots, sizeof(uint32_t), &bytes) && size_add(bytes, sizeof **out, &bytes)) *out = malloc(bytes);
    vocab_whole *const table = *out;
    if (!table) return pn_fail(PN_ERR_MEMORY, "tokenizer: out of memory (%zu bytes for whole words)", bytes);
    *table = (vocab_whole){ .vocab = v, .seed = seed, .mask = slots - 1 };
    memset(table->ids, 0xFF, slots * sizeof *table->ids);
    for (uint32_t id = 0; id < v->n; id++) {
        const uint8_t *const text = v->bytes + v->offsets[id];
        const size_t len = v->offsets[id + 1] - v->offsets[id];
        if (len == 0 || !vocab_is_ordinary(v, id) || !vocab_whole_is_spelled(text, len, index->texts[id])) continue;
        const size_t at = vocab_whole_slot(table, text, len);
        if (table->ids[at] == VOCAB_NONE) table->ids[at] = id;
        table->longest = size_max(table->longest, len);
    }
    return PN_OK;
}

void vocab_whole_free(vocab_whole *table) {
    free(table);
}

uint32_t vocab_whole_find(const vocab_whole *table, const uint8_t *bytes, size_t len) {
    return len > table->longest ? VOCAB_NONE : table->ids[vocab_whole_slot(table, bytes, len)];
}
