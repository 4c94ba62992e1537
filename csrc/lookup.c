/* lookup.c - where the last ids stood before: chains of equal runs, found by hash.                           (rank 1)
 *
 * Knows nothing of models or of what an id stands for, and decides nothing: whether a guess is worth a try is pace.c's.
 * Prompt lookup decoding: a reply that repeats its source goes on as the source does.
 *
 * The one thing to know first: ids are taken back in the reverse order of their coming. So a hash table with open
 * addressing needs no marks for what was deleted: taking back the last place restores the table as it was before. */
#include "lookup.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
enum { FIRST_CAPACITY = 256 };
static const size_t MAX_IDS = (size_t)1 << 30;

static const size_t GRAM[GRAM_LENGTHS] = { 3, 2 }; /* the longer one is asked first */

void lookup_free(lookup *l) {
    free(l->ids);
    for (size_t g = 0; g < GRAM_LENGTHS; g++) {
        free(l->earlier[g]);
        free(l->latest[g]);
    }
    memset(l, 0, sizeof *l);
}

size_t lookup_bytes(const lookup *l) {
    return (l->capacity * (1 + GRAM_LENGTHS) + l->n_slots * GRAM_LENGTHS) * sizeof(uint32_t);
}

static bool same_run(const uint32_t *a_end, const uint32_t *b_end, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (*(a_end - i) != *(b_end - i)) return false;
    return true;
}

/* The slot of the run that ends at `end`: the one that holds it, or the empty one where it belongs. */
static uint32_t *find_slot(const lookup *l, size_t g, size_t end) {
    uint64_t hash = 0;
    for (size_t i = 0; i < GRAM[g]; i++) hash = (hash ^ l->ids[end - i]) * 0x9e3779b97f4a7c15u;
    for (size_t slot = (size_t)(hash >> 32) & (l->n_slots - 1);; slot = (slot + 1) & (l->n_slots - 1)) {
        uint32_t *place = &l->latest[g][slot];
        if (*place == NONE || same_run(l->ids + *place, l->ids + end, GRAM[g])) return place;
    }
}

static void add_place(lookup *l, size_t end) {
    for (size_t g = 0; g < GRAM_LENGTHS; g++) {
        if (end + 1 < GRAM[g]) continue;
        uint32_t *slot = find_slot(l, g, end);
        l->earlier[g][end] = *slot;
        *slot = (uint32_t)end;
    }
}

static bool grow_array(uint32_t **array, size_t n) {
    uint32_t *grown = realloc(*array, n * sizeof *grown);
    if (grown) *array = grown;
    return grown != NULL;
}

/* Room for n ids; the tables are filled anew. What fails leaves arrays that are larger than needed, and no harm. */
static int reserve(lookup *l, size_t n) {
    if (n <= l->capacity) return PN_OK;
    size_t capacity = FIRST_CAPACITY;
    while (capacity < n) capacity *= 2;
    const size_t n_slots = 2 * capacity;
    uint32_t *tables[GRAM_LENGTHS];
    bool ok = grow_array(&l->ids, capacity);
    for (size_t g = 0; g < GRAM_LENGTHS; g++) {
        tables[g] = malloc(n_slots * sizeof *tables[g]);
        ok = grow_array(&l->earlier[g], capacity) && tables[g] && ok;
    }
    for (size_t g = 0; g < GRAM_LENGTHS; g++) {
        free(ok ? l->latest[g] : tables[g]);
        if (ok) l->latest[g] = memset(tables[g], 0xff, n_slots * sizeof *tables[g]);
    }
    if (!ok) return pn_fail(PN_ERR_MEMORY, "lookup: no memory for %zu ids", capacity);
    l->capacity = capacity;
    l->n_slots = n_slots;
    for (size_t end = 0; end < l->n; end++) add_place(l, end);
    return PN_OK;
}

int lookup_append(lookup *l, const uint32_t *ids, size_t n) {
    if (n > MAX_IDS || l->n > MAX_IDS - n)
        return pn_fail(PN_ERR_ARGUMENT, "lookup: %zu ids after %zu are more than %zu", n, l->n, MAX_IDS);
    PN_TRY(reserve(l, l->n + n));
    for (size_t i = 0; i < n; i++) {
        l->ids[l->n] = ids[i];
        add_place(l, l->n++);
    }
    return PN_OK;
}

void lookup_truncate(lookup *l, size_t n) {
    while (l->n > n) {
        const size_t end = --l->n;
        for (size_t g = 0; g < GRAM_LENGTHS; g++)
            if (end + 1 >= GRAM[g]) *find_slot(l, g, end) = l->earlier[g][end];
    }
}

/* Over how many ids the places a < b agree, looking back. */
static size_t match_length(const lookup *l, size_t a, size_t b) {
    const size_t most = size_min(a + 1, LOOKUP_MATCH_MAX);
    size_t n = 0;
    while (n < most && l->ids[a - n] == l->ids[b - n]) n++;
    return n;
}

size_t lookup_guess(const lookup *l, size_t most, uint32_t *out, size_t *match) {
    const size_t end = l->n - 1;
    size_t best = 0;
    *match = 0;
    for (size_t g = 0; g < GRAM_LENGTHS && *match == 0; g++) {
        if (l->n < GRAM[g]) continue;
        uint32_t place = l->earlier[g][end];
        for (int i = 0; i < LOOKUP_CANDIDATES && place != NONE; i++, place = l->earlier[g][place]) {
            const size_t length = match_length(l, place, end);
            if (length <= *match) continue;
            *match = length;
            best = place;
        }
    }
    if (*match == 0) return 0;
    for (size_t i = 0; i < most; i++) {
        const size_t from = best + 1 + i;
        out[i] = from < l->n ? l->ids[from] : out[from - l->n];
    }
    return most;
}
