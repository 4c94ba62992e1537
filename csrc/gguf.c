/* gguf.c - file bytes in, a validated table of metadata and tensors out.                              (rank 3)
 *
 * Knows the container and nothing about models: no tensor name appears in this file. Values are not copied; the table
 * holds offsets into the header, so that gguf_detach can put a heap copy under them.
 * All input is hostile. The only way to read is the cursor below, and every sum and product of numbers from the file is
 * checked: a count is compared with what the remaining bytes can hold before anything is allocated or walked. */
#include "gguf_table.h"

#include "sniff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_LEN_MAX = 65535,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 1 << 20,         /* no writer goes beyond a huge page; more would be a way to skip over data */
    PATH_SHOWN = 200,                /* bytes of a path before a message: the reason must not be cut off */
    ENTRY_BYTES_MIN = 8 + 1 + 4 + 1, /* key, type, value      */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* name, n_dims, one dim, type, offset */
};

static const uint8_t MAGIC[4] = { 'G', 'G', 'U', 'F' };
/* Nothing holds so much: a number above it is damage, not the sign of a download that broke off. */
static const uint64_t PLAUSIBLE_BYTES = (uint64_t)1 << 48;

/* ---- the cursor --------------------------------------------------------------------------------------------- */

/* Reads forward through bytes[size]; the rest says where it is, for messages. */
typedef struct cursor {
    const uint8_t *bytes;
    size_t size, at;
    const char *part;     /* "header", "metadata entry", "tensor"      */
    uint64_t index;       /* which one                                 */
    const uint8_t *label; /* [label_len] its name once known, or NULL  */
    size_t label_len;
} cursor;

/* `metadata entry 3 "general.name"` */
typedef struct place {
    char text[128];
} place;

static place cursor_place(const cursor *c) {
    place p;
    if (c->label)
        snprintf(p.text, sizeof p.text, "%s %" PRIu64 " \"%.*s\"", c->part, c->index,
                 (int)size_min(c->label_len, NAME_LEN_MAX), (const char *)c->label);
    else
        snprintf(p.text, sizeof p.text, "%s %" PRIu64, c->part, c->index);
    return p;
}

static size_t cursor_rest(const cursor *c) {
    return c->size - c->at;
}

static int cursor_fail_short(const cursor *c, const char *what, uint64_t need) {
    if (need > PLAUSIBLE_BYTES)
        return pn_fail(PN_ERR_CORRUPT, "%s at byte %zu claims %s of %" PRIu64 " bytes; the file has %zu",
                       cursor_place(c).text, c->at, what, need, c->size);
    return pn_fail(PN_ERR_TRUNCATED,
                   "truncated: %s needs %" PRIu64 " bytes for its %s at byte %zu; the file ends at %zu",
                   cursor_place(c).text, need, what, c->at, c->size);
}

static int cursor_take(cursor *c, const char *what, uint64_t len, const uint8_t **out) {
    if (len > cursor_rest(c)) return cursor_fail_short(c, what, len);
    *out = c->bytes + c->at;
    c->at += (size_t)len;
    return PN_OK;
}

static int cursor_u32(cursor *c, const char *what, uint32_t *out) {
    const uint8_t *at = NULL;
    PN_TRY(cursor_take(c, what, sizeof *out, &at));
    memcpy(out, at, sizeof *out);
    return PN_OK;
}

static int cursor_u64(cursor *c, const char *what, uint64_t *out) {
    const uint8_t *at = NULL;
    PN_TRY(cursor_take(c, what, sizeof *out, &at));
    memcpy(out, at, sizeof *out);
    return PN_OK;
}

/* `n` items of at least `item_bytes` bytes each must fit into what is left. Divides, so that nothing can wrap. */
static int cursor_check_count(const cursor *c, const char *what, uint64_t n, size_t item_bytes) {
    if (n <= cursor_rest(c) / item_bytes) return PN_OK;
    return pn_fail(n > PLAUSIBLE_BYTES / item_bytes ? PN_ERR_CORRUPT : PN_ERR_TRUNCATED,
                   "%s announces %" PRIu64 " %s of at least %zu bytes each; after byte %zu the file has only %zu bytes",
                   cursor_place(c).text, n, what, item_bytes, c->at, cursor_rest(c));
}

/* A length and that many bytes: the name of the thing that the cursor is in. */
static int cursor_label(cursor *c, const char *what, size_t len_max, uint64_t *at, uint32_t *len_out) {
    uint64_t len;
    const size_t begin = c->at;
    PN_TRY(cursor_u64(c, what, &len));
    if (len == 0) return pn_fail(PN_ERR_CORRUPT, "%s at byte %zu has an empty %s", cursor_place(c).text, begin, what);
    if (len > len_max)
        return pn_fail(PN_ERR_CORRUPT, "%s at byte %zu has a %s of %" PRIu64 " bytes; at most %zu are allowed",
                       cursor_place(c).text, begin, what, len, len_max);
    *at = c->at;
    PN_TRY(cursor_take(c, what, len, &c->label));
    c->label_len = (size_t)len;
    *len_out = (uint32_t)len;
    return PN_OK;
}

/* ---- metadata ----------------------------------------------------------------------------------------------- */

static int gguf_check_bools(const cursor *c, const uint8_t *at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (at[i] > 1)
            return pn_fail(PN_ERR_CORRUPT, "%s holds the bool %u; only 0 and 1 are", cursor_place(c).text,
                           (unsigned)at[i]);
    return PN_OK;
}

static int gguf_check_value_type(const cursor *c, const char *what, uint32_t type) {
    if (type <= PN_VALUE_F64) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT, "%s has %s %" PRIu32 " before byte %zu; the format knows 0 to %d",
                   cursor_place(c).text, what, type, c->at, PN_VALUE_F64);
}

static int gguf_parse_strings(cursor *c, uint64_t n) {
    PN_TRY(cursor_check_count(c, "strings", n, sizeof(uint64_t)));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len;
        const uint8_t *at = NULL;
        PN_TRY(cursor_u64(c, "string", &len));
        PN_TRY(cursor_take(c, "string", len, &at));
    }
    return PN_OK;
}

static int gguf_parse_array(cursor *c, entry *e) {
    uint32_t type;
    const uint8_t *at = NULL;
    PN_TRY(cursor_u32(c, "element type", &type));
    PN_TRY(gguf_check_value_type(c, "element type", type));
    PN_TRY(cursor_u64(c, "array", &e->n));
    e->element_type = (uint8_t)type;
    e->value = c->at;
    if (type == PN_VALUE_ARRAY)
        return pn_fail(PN_ERR_UNSUPPORTED, "%s is an array of arrays, which this version does not read",
                       cursor_place(c).text);
    if (type == PN_VALUE_STRING) return gguf_parse_strings(c, e->n);
    const size_t size = gguf_value_type_size((int)type);
    PN_TRY(cursor_check_count(c, "elements", e->n, size));
    PN_TRY(cursor_take(c, "array", e->n * size, &at));
    return type == PN_VALUE_BOOL ? gguf_check_bools(c, at, e->n) : PN_OK;
}

static int gguf_parse_value(cursor *c, entry *e) {
    const uint8_t *at = NULL;
    if (e->type == PN_VALUE_ARRAY) return gguf_parse_array(c, e);
    uint64_t len = gguf_value_type_size(e->type);
    if (e->type == PN_VALUE_STRING) PN_TRY(cursor_u64(c, "string", &len));
    e->value = c->at;
    PN_TRY(cursor_take(c, "value", len, &at));
    return e->type == PN_VALUE_BOOL ? gguf_check_bools(c, at, 1) : PN_OK;
}

static int gguf_parse_entry(cursor *c, uint64_t index, entry *e) {
    uint32_t type;
    *e = (entry){ .begin = c->at };
    c->part = "metadata entry";
    c->index = index;
    c->label = NULL;
    PN_TRY(cursor_label(c, "key", KEY_LEN_MAX, &e->key, &e->key_len));
    PN_TRY(cursor_u32(c, "value type", &type));
    PN_TRY(gguf_check_value_type(c, "value type", type));
    e->type = (uint8_t)type;
    PN_TRY(gguf_parse_value(c, e));
    e->end = c->at;
    return PN_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static int gguf_parse_dims(cursor *c, tensor *t) {
    uint32_t n;
    PN_TRY(cursor_u32(c, "number of dimensions", &n));
    if (n < 1 || n > 4)
        return pn_fail(PN_ERR_CORRUPT, "%s has %" PRIu32 " dimensions; 1 to 4 are allowed", cursor_place(c).text, n);
    t->n_dims = (int)n;
    for (uint32_t d = 0; d < 4; d++) {
        t->dims[d] = 1;
        if (d < n) PN_TRY(cursor_u64(c, "dimensions", &t->dims[d]));
        if (t->dims[d] == 0)
            return pn_fail(PN_ERR_CORRUPT, "%s has dimension %" PRIu32 " of length 0", cursor_place(c).text, d);
    }
    return PN_OK;
}

static int gguf_parse_type(cursor *c, tensor *t) {
    uint32_t type;
    PN_TRY(cursor_u32(c, "element type", &type));
    t->type = type <= INT32_MAX ? dtype_any((int)type) : NULL;
    if (t->type) return PN_OK;
    return pn_fail(PN_ERR_UNSUPPORTED, "%s has element type number %" PRIu32 ", which this version does not know",
                   cursor_place(c).text, type);
}

/* Bytes of the tensor: the product of all dimensions, in blocks along the first. */
static int gguf_parse_size(const cursor *c, tensor *t) {
    const dtype_info *type = t->type;
    if (t->dims[0] % type->block_len)
        return pn_fail(PN_ERR_CORRUPT, "%s has rows of %" PRIu64 " elements; %s needs a multiple of %" PRIu32,
                       cursor_place(c).text, t->dims[0], type->name, type->block_len);
    uint64_t n = t->dims[0] / type->block_len;
    bool fits = u64_mul(n, type->block_bytes, &t->size);
    for (int d = 1; d < 4; d++) fits = fits && u64_mul(t->size, t->dims[d], &t->size);
    if (fits) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT,
                   "%s has [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "] elements: its size overflows",
                   cursor_place(c).text, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
}

/* Offsets stay relative to the data section until its start is known. */
static int gguf_parse_tensor(cursor *c, uint64_t index, tensor *t) {
    *t = (tensor){ .n_dims = 0 };
    c->part = "tensor";
    c->index = index;
    c->label = NULL;
    PN_TRY(cursor_label(c, "name", NAME_LEN_MAX, &t->name, &t->name_len));
    PN_TRY(gguf_parse_dims(c, t));
    PN_TRY(gguf_parse_type(c, t));
    PN_TRY(gguf_parse_size(c, t));
    return cursor_u64(c, "offset", &t->offset);
}

/* From relative to absolute offset, and into the file with it. */
static int gguf_place_tensor(const pn_gguf *g, uint64_t data, uint64_t index, tensor *t) {
    const uint64_t relative = t->offset;
    const int len = (int)t->name_len;
    const char *name = (const char *)g->header + t->name;
    uint64_t end;
    if (relative % g->alignment)
        return pn_fail(PN_ERR_CORRUPT,
                       "tensor %" PRIu64 " \"%.*s\" has offset %" PRIu64 ", no multiple of the alignment %" PRIu32,
                       index, len, name, relative, g->alignment);
    if (!u64_add(data, relative, &t->offset) || !u64_add(t->offset, t->size, &end))
        return pn_fail(PN_ERR_CORRUPT,
                       "tensor %" PRIu64 " \"%.*s\" has offset %" PRIu64 " and %" PRIu64 " bytes: beyond any file",
                       index, len, name, relative, t->size);
    if (end > g->size)
        return pn_fail(end > PLAUSIBLE_BYTES ? PN_ERR_CORRUPT : PN_ERR_TRUNCATED,
                       "truncated: tensor %" PRIu64 " \"%.*s\" needs the bytes %" PRIu64 " to %" PRIu64
                       "; the file has %zu",
                       index, len, name, t->offset, end, g->size);
    return PN_OK;
}

/* ---- where the data lies ------------------------------------------------------------------------------------- */

/* No byte belongs to two tensors, and what follows the last one is not another model. */
static int gguf_check_overlap(pn_gguf *g, const uint64_t *by_offset, uint64_t data) {
    uint64_t end = data;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const tensor *t = &g->tensors[by_offset[i]];
        if (t->offset < end) {
            const tensor *before = &g->tensors[by_offset[i - 1]];
            return pn_fail(PN_ERR_CORRUPT,
                           "tensors \"%.*s\" and \"%.*s\" overlap: one ends at byte %" PRIu64
                           ", the other begins at %" PRIu64,
                           (int)before->name_len, (const char *)g->header + before->name, (int)t->name_len,
                           (const char *)g->header + t->name, end, t->offset);
        }
        end = t->offset + t->size;
    }
    g->data_end = end;
    if (u64_align_up(end, g->alignment, &end) && end <= g->size && g->size - end >= sizeof MAGIC &&
        memcmp(g->bytes + end, MAGIC, sizeof MAGIC) == 0)
        return pn_fail(PN_ERR_CORRUPT,
                       "a second GGUF file begins at byte %" PRIu64 ": parts of a split model were joined end to "
                       "end; merge them with a tool that knows the format",
                       end);
    return PN_OK;
}

static int gguf_check_layout(pn_gguf *g, uint64_t data) {
    uint64_t *by_offset = NULL;
    for (uint64_t i = 0; i < g->n_tensors; i++) PN_TRY(gguf_place_tensor(g, data, i, &g->tensors[i]));
    PN_TRY(gguf_index_make(g, g->n_tensors, gguf_order_by_offset, &by_offset));
    const int status = gguf_check_overlap(g, by_offset, data);
    free(by_offset);
    return status;
}

/* ---- the whole file ----------------------------------------------------------------------------------------- */

static int gguf_check_version(uint32_t version) {
    if (version == 2 || version == 3) return PN_OK;
    /* A big-endian 3 reads as 0x03000000. */
    if (version != 0 && (version & 0xffff) == 0)
        return pn_fail(PN_ERR_UNSUPPORTED,
                       "a big-endian GGUF file (its version reads as %" PRIu32 "): fetch the little-endian one",
                       version);
    if (version == 1)
        return pn_fail(
            PN_ERR_UNSUPPORTED,
            "GGUF version 1, a layout of the first days of the format: convert the model again, or fetch a newer file");
    return pn_fail(PN_ERR_UNSUPPORTED, "GGUF version %" PRIu32 "; this version of the program reads 2 and 3", version);
}

static int gguf_parse_header(cursor *c, pn_gguf *g) {
    c->part = "header of version";
    if (c->size < sizeof MAGIC || memcmp(c->bytes, MAGIC, sizeof MAGIC) != 0) return sniff_refuse(c->bytes, c->size);
    c->at = sizeof MAGIC;
    PN_TRY(cursor_u32(c, "version", &g->version));
    PN_TRY(gguf_check_version(g->version));
    c->index = g->version;
    PN_TRY(cursor_u64(c, "number of tensors", &g->n_tensors));
    PN_TRY(cursor_u64(c, "number of metadata entries", &g->n_entries));
    PN_TRY(cursor_check_count(c, "metadata entries", g->n_entries, ENTRY_BYTES_MIN));
    PN_TRY(cursor_check_count(c, "tensors", g->n_tensors, TENSOR_BYTES_MIN));
    g->entries = calloc((size_t)g->n_entries + 1, sizeof *g->entries);
    g->tensors = calloc((size_t)g->n_tensors + 1, sizeof *g->tensors);
    if (g->entries && g->tensors) return PN_OK;
    return pn_fail(PN_ERR_MEMORY, "no memory for a table of %" PRIu64 " metadata entries and %" PRIu64 " tensors",
                   g->n_entries, g->n_tensors);
}

static int gguf_read_alignment(pn_gguf *g) {
    g->alignment = GGUF_ALIGNMENT_DEFAULT;
    const int64_t index = gguf_find_metadata(g, "general.alignment");
    if (index < 0) return PN_OK;
    const entry *e = &g->entries[index];
    if (e->type != PN_VALUE_U32)
        return pn_fail(PN_ERR_CORRUPT, "general.alignment is of type %s; it must be u32",
                       gguf_value_type_name(e->type));
    memcpy(&g->alignment, g->header + e->value, sizeof g->alignment);
    const uint32_t a = g->alignment;
    if (a >= ALIGNMENT_MIN && a <= ALIGNMENT_MAX && (a & (a - 1)) == 0) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT, "general.alignment is %" PRIu32 "; it must be a power of two from %d to %d", a,
                   ALIGNMENT_MIN, ALIGNMENT_MAX);
}

static int gguf_parse_all(pn_gguf *g) {
    cursor c = { .bytes = g->bytes, .size = g->size };
    uint64_t data;
    PN_TRY(gguf_parse_header(&c, g));
    for (uint64_t i = 0; i < g->n_entries; i++) PN_TRY(gguf_parse_entry(&c, i, &g->entries[i]));
    PN_TRY(gguf_index_entries(g));
    PN_TRY(gguf_read_alignment(g));
    for (uint64_t i = 0; i < g->n_tensors; i++) PN_TRY(gguf_parse_tensor(&c, i, &g->tensors[i]));
    g->header_size = c.at;
    PN_TRY(gguf_index_tensors(g));
    if (!u64_align_up(c.at, g->alignment, &data))
        return pn_fail(PN_ERR_CORRUPT, "the tensor data would begin beyond any file");
    return gguf_check_layout(g, data);
}

int gguf_parse(const uint8_t *bytes, size_t size, pn_gguf **out) {
    *out = NULL;
    pn_gguf *g = calloc(1, sizeof *g);
    if (!g) return pn_fail(PN_ERR_MEMORY, "no memory for %zu bytes", sizeof *g);
    g->bytes = bytes;
    g->header = bytes;
    g->size = size;
    const int status = gguf_parse_all(g);
    if (status != PN_OK)
        pn_gguf_free(g);
    else
        *out = g;
    return status;
}

int gguf_fail_in(const char *where, int status) {
    /* The message is about to be written over: keep it beside itself. */
    char why[800];
    snprintf(why, sizeof why, "%s", pn_last_error());
    return pn_fail((pn_status)status, "%.*s: %s", PATH_SHOWN, where, why);
}

int gguf_parse_map(file_map map, pn_gguf **out) {
    const int status = gguf_parse(map.bytes, map.size, out);
    if (status == PN_OK)
        (*out)->map = map;
    else
        map_close(&map);
    return status;
}

int gguf_open(const char *path, bool use_mmap, pn_gguf **out) {
    file_map map;
    *out = NULL;
    PN_TRY(map_open(path, use_mmap, &map));
    int status = gguf_parse_map(map, out);
    if (status == PN_OK) status = gguf_join(path, use_mmap, out);
    if (status == PN_OK) return PN_OK;
    pn_gguf_free(*out);
    *out = NULL;
    if ((status == PN_ERR_NOT_GGUF || status == PN_ERR_TRUNCATED) && gguf_is_piece(path))
        gguf_fail_in("one piece of a file that was cut by bytes (put the pieces together again, in order: cat)",
                     status);
    return gguf_fail_in(path, status);
}

/* Copies of the headers of all parts, in their `copy`; none if one fails. */
static int gguf_copy_headers(pn_gguf *const *parts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const size_t size = parts[i]->header_size;
        parts[i]->copy = malloc(size);
        if (parts[i]->copy) {
            memcpy(parts[i]->copy, parts[i]->header, size);
            continue;
        }
        while (i-- > 0) {
            free(parts[i]->copy);
            parts[i]->copy = NULL;
        }
        return pn_fail(PN_ERR_MEMORY, "no memory for the %zu bytes of the header", size);
    }
    return PN_OK;
}

int gguf_detach(pn_gguf *gguf) {
    if (gguf->copy) return PN_OK;
    pn_gguf *const *parts = gguf->parts ? gguf->parts : &gguf;
    const size_t n = (size_t)gguf->n_others + 1;
    PN_TRY(gguf_copy_headers(parts, n));
    for (size_t i = 0; i < n; i++) {
        parts[i]->header = parts[i]->copy;
        parts[i]->bytes = NULL;
        map_close(&parts[i]->map);
    }
    return PN_OK;
}

/* ---- the parsed file, to the rest of the core ----------------------------------------------------------------- */

uint32_t gguf_alignment(const pn_gguf *gguf) {
    return gguf->alignment;
}

const uint8_t *gguf_metadata_bytes(const pn_gguf *gguf, uint64_t index, size_t *len) {
    const entry *e = &gguf->entries[index];
    *len = (size_t)(e->end - e->begin);
    return gguf->header + e->begin;
}

const uint8_t *gguf_tensor_data(const pn_gguf *gguf, uint64_t index) {
    if (index >= gguf->n_tensors) return NULL;
    const tensor *t = &gguf->tensors[index];
    const pn_gguf *part = gguf_part(gguf, t->part);
    return part->bytes ? part->bytes + t->offset : NULL;
}

void gguf_drop(const pn_gguf *gguf, uint64_t index, const uint8_t *at, size_t size) {
    const pn_gguf *part = gguf_part(gguf, gguf->tensors[index].part);
    if (part->bytes) map_drop(&part->map, (size_t)(at - part->bytes), size);
}

/* ---- the public functions ----------------------------------------------------------------------------------- */

pn_gguf *pn_gguf_open(const char *path) {
    pn_gguf *gguf;
    return gguf_open(path, true, &gguf) == PN_OK ? gguf : NULL;
}

void pn_gguf_free(pn_gguf *gguf) {
    if (!gguf) return;
    map_close(&gguf->map);
    free(gguf->copy);
    free(gguf->entries);
    free(gguf->tensors);
    free(gguf->entry_by_key);
    free(gguf->tensor_by_name);
    for (uint32_t i = 1; i <= gguf->n_others; i++) pn_gguf_free(gguf->parts[i]);
    free(gguf->parts);
    free(gguf);
}

uint32_t pn_gguf_version(const pn_gguf *gguf) {
    return gguf->version;
}
uint64_t pn_gguf_n_metadata(const pn_gguf *gguf) {
    return gguf->n_entries;
}
uint64_t pn_gguf_n_tensors(const pn_gguf *gguf) {
    return gguf->n_tensors;
}
uint32_t pn_gguf_n_parts(const pn_gguf *gguf) {
    return gguf->n_others + 1;
}

uint64_t pn_gguf_size(const pn_gguf *gguf) {
    uint64_t sum = 0; /* all of them are in the address space at once, so it fits */
    for (uint32_t i = 0; i <= gguf->n_others; i++) sum += gguf_part(gguf, i)->size;
    return sum;
}

int pn_gguf_metadata(const pn_gguf *gguf, uint64_t index, pn_metadata *out) {
    if (index >= gguf->n_entries)
        return pn_fail(PN_ERR_ARGUMENT, "metadata entry %" PRIu64 " of %" PRIu64, index, gguf->n_entries);
    const entry *e = &gguf->entries[index];
    *out = (pn_metadata){ .key = (const char *)gguf->header + e->key, .key_len = e->key_len, .type = e->type };
    out->element_type = -1;
    if (e->type == PN_VALUE_ARRAY || e->type == PN_VALUE_STRING) {
        out->str = (const char *)gguf->header + e->value;
        out->len = (size_t)(e->end - e->value);
    } else
        gguf_value_load(e->type, gguf->header + e->value, out);
    if (e->type == PN_VALUE_ARRAY) {
        out->element_type = e->element_type;
        out->n = e->n;
    }
    return PN_OK;
}

int pn_gguf_tensor(const pn_gguf *gguf, uint64_t index, pn_tensor_info *out) {
    if (index >= gguf->n_tensors)
        return pn_fail(PN_ERR_ARGUMENT, "tensor %" PRIu64 " of %" PRIu64, index, gguf->n_tensors);
    const tensor *t = &gguf->tensors[index];
    *out = (pn_tensor_info){
        .name = (const char *)gguf_part(gguf, t->part)->header + t->name,
        .name_len = t->name_len,
        .n_dims = t->n_dims,
        .dims = { t->dims[0], t->dims[1], t->dims[2], t->dims[3] },
        .type = t->type->id,
        .type_name = t->type->name,
        .offset = t->offset,
        .size = t->size,
        .part = t->part,
    };
    return PN_OK;
}

int pn_gguf_read_rows(const pn_gguf *gguf, uint64_t index, uint64_t row, uint64_t n_rows, float *out) {
    if (index >= gguf->n_tensors)
        return pn_fail(PN_ERR_ARGUMENT, "tensor %" PRIu64 " of %" PRIu64, index, gguf->n_tensors);
    const tensor *t = &gguf->tensors[index];
    const pn_gguf *part = gguf_part(gguf, t->part);
    const char *name = (const char *)part->header + t->name;
    const uint64_t total = t->dims[1] * t->dims[2] * t->dims[3]; /* <= size, which was checked */
    if (row > total || n_rows > total - row)
        return pn_fail(PN_ERR_ARGUMENT, "rows %" PRIu64 " + %" PRIu64 " of tensor \"%.*s\", which has %" PRIu64, row,
                       n_rows, (int)t->name_len, name, total);
    if (!t->type->dequantize)
        return pn_fail(PN_ERR_UNSUPPORTED, "tensor \"%.*s\" has element type %s, which this version cannot read",
                       (int)t->name_len, name, t->type->name);
    if (!part->bytes)
        return pn_fail(PN_ERR_ARGUMENT, "tensor \"%.*s\": the file was closed after loading", (int)t->name_len, name);
    const uint64_t row_bytes = t->dims[0] / t->type->block_len * t->type->block_bytes;
    if (n_rows) t->type->dequantize(part->bytes + t->offset + row * row_bytes, out, (size_t)(n_rows * t->dims[0]));
    return PN_OK;
}
