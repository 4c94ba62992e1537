/* gguf_index.c - the tables of a GGUF file, sorted: a key or a name in, its number out, whatever names a file chose.
 *                                                                                                        (rank 3)
 * Knows labels and their order, not how they got into the tables. */
#include "gguf_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What a table is looked up by: the key of a metadata entry, the name of a tensor. */
typedef struct label {
    const uint8_t *bytes;
    size_t len;
} label;
typedef label (*gguf_label)(const pn_gguf *g, uint64_t index);

static label gguf_key_label(const pn_gguf *g, uint64_t index) {
    return (label){ g->header + g->entries[index].key, g->entries[index].key_len };
}

static label gguf_name_label(const pn_gguf *g, uint64_t index) {
    const tensor *t = &g->tensors[index];
    return (label){ gguf_part(g, t->part)->header + t->name, t->name_len };
}

static int gguf_label_compare(label a, label b) {
    const int order = memcmp(a.bytes, b.bytes, size_min(a.len, b.len));
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int gguf_order_by_key(const pn_gguf *g, uint64_t a, uint64_t b) {
    return gguf_label_compare(gguf_key_label(g, a), gguf_key_label(g, b));
}

static int gguf_order_by_name(const pn_gguf *g, uint64_t a, uint64_t b) {
    return gguf_label_compare(gguf_name_label(g, a), gguf_name_label(g, b));
}

int gguf_order_by_offset(const pn_gguf *g, uint64_t a, uint64_t b) {
    const uint64_t x = g->tensors[a].offset, y = g->tensors[b].offset;
    return x != y ? (x > y) - (x < y) : (a > b) - (a < b);
}

static void gguf_index_sink(const pn_gguf *g, uint64_t *index, size_t root, size_t n, gguf_index_order order) {
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && order(g, index[child], index[child + 1]) < 0) child++;
        if (order(g, index[root], index[child]) >= 0) return;
        const uint64_t swapped = index[root];
        index[root] = index[child];
        index[child] = swapped;
    }
}

/* Heap sort: n log n whatever names the file chose, and no memory. A hash table needs a secret to promise that. */
static void gguf_index_sort(const pn_gguf *g, uint64_t *index, size_t n, gguf_index_order order) {
    for (size_t i = n / 2; i-- > 0;) gguf_index_sink(g, index, i, n, order);
    for (size_t end = n; end > 1; end--) {
        const uint64_t last = index[end - 1];
        index[end - 1] = index[0];
        index[0] = last;
        gguf_index_sink(g, index, 0, end - 1, order);
    }
}

int gguf_index_make(const pn_gguf *g, uint64_t n, gguf_index_order order, uint64_t **out) {
    uint64_t *index = malloc((size_t)(n ? n : 1) * sizeof *index);
    if (!index) return pn_fail(PN_ERR_MEMORY, "no memory for an index of %" PRIu64 " names", n);
    for (uint64_t i = 0; i < n; i++) index[i] = i;
    gguf_index_sort(g, index, (size_t)n, order);
    *out = index;
    return PN_OK;
}

/* No two of the n labels are equal. */
static int gguf_check_unique(const pn_gguf *g, const uint64_t *index, uint64_t n, gguf_label label_of,
                             const char *things, const char *kind) {
    for (uint64_t i = 1; i < n; i++) {
        const uint64_t a = index[i - 1], b = index[i];
        const label twice = label_of(g, a);
        if (gguf_label_compare(twice, label_of(g, b)) != 0) continue;
        return pn_fail(PN_ERR_CORRUPT, "%s %" PRIu64 " and %" PRIu64 " have the same %s \"%.*s\"", things,
                       a < b ? a : b, a < b ? b : a, kind, (int)size_min(twice.len, NAME_LEN_MAX),
                       (const char *)twice.bytes);
    }
    return PN_OK;
}

int gguf_index_entries(pn_gguf *g) {
    free(g->entry_by_key);
    g->entry_by_key = NULL;
    PN_TRY(gguf_index_make(g, g->n_entries, gguf_order_by_key, &g->entry_by_key));
    return gguf_check_unique(g, g->entry_by_key, g->n_entries, gguf_key_label, "metadata entries", "key");
}

int gguf_index_tensors(pn_gguf *g) {
    free(g->tensor_by_name);
    g->tensor_by_name = NULL;
    PN_TRY(gguf_index_make(g, g->n_tensors, gguf_order_by_name, &g->tensor_by_name));
    return gguf_check_unique(g, g->tensor_by_name, g->n_tensors, gguf_name_label, "tensors", "name");
}

/* ---- looking things up -------------------------------------------------------------------------------------- */

static int64_t gguf_find(const pn_gguf *g, const uint64_t *index, uint64_t n, gguf_label label_of, const char *text) {
    const label wanted = { (const uint8_t *)text, strlen(text) };
    for (uint64_t low = 0, high = n; low < high;) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = gguf_label_compare(wanted, label_of(g, index[middle]));
        if (order == 0) return (int64_t)index[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

int64_t gguf_find_metadata(const pn_gguf *gguf, const char *key) {
    return gguf_find(gguf, gguf->entry_by_key, gguf->n_entries, gguf_key_label, key);
}

int64_t gguf_find_tensor(const pn_gguf *gguf, const char *name) {
    return gguf_find(gguf, gguf->tensor_by_name, gguf->n_tensors, gguf_name_label, name);
}
