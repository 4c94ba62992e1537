/* gguf_split.c - one part of a model that was split over several files in, the whole model out.              (rank 3)
 *
 * llama.cpp's gguf-split and the `gguf` package write such files: NAME-00001-of-00003.gguf and so on, each a GGUF file
 * of its own with the keys split.no (from 0), split.count and split.tensors.count (of all parts). The first part holds
 * the metadata of the model; tensors lie in any.
 * Siblings are looked up beside the path that was given, never beside the target of a link: caches keep files under
 * other names behind links that have the right ones. Every part is parsed and checked as a file from nowhere, then
 * against the first. The keys split.* are gone from the whole, which is split no more. */
#include "gguf_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS_MAX = 65535, /* the writers keep the number in 16 bits                   */
    ENDING_BYTES = 32, /* of "-00001-of-00003.gguf", terminated, for any uint32_t  */
    NAME_SHOWN = 120,
};

static const char KEY_NO[] = "split.no";
static const char KEY_COUNT[] = "split.count";
static const char KEY_TENSORS[] = "split.tensors.count";

typedef struct split_keys {
    uint32_t no, count, n_tensors;
} split_keys;

/* How the file name of part `no` (from 0) must end. */
typedef struct split_ending {
    char text[ENDING_BYTES];
} split_ending;

static split_ending split_ending_of(uint32_t no, uint32_t count) {
    split_ending ending;
    snprintf(ending.text, sizeof ending.text, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", no + 1, count);
    return ending;
}

/* ---- what a part says about itself -------------------------------------------------------------------------- */

/* With a count below 2 the file is not a part of anything, and the rest is 0. */
static int split_read_keys(const pn_gguf *g, split_keys *out) {
    bool present;
    *out = (split_keys){ .count = 0 };
    PN_TRY(gguf_get_u32(g, KEY_COUNT, &out->count, &present));
    if (out->count < 2) return PN_OK;
    if (out->count > PARTS_MAX)
        return pn_fail(PN_ERR_METADATA, "%s is %" PRIu32 "; a model has at most %d parts", KEY_COUNT, out->count,
                       PARTS_MAX);
    PN_TRY(gguf_get_u32(g, KEY_NO, &out->no, NULL));
    PN_TRY(gguf_get_u32(g, KEY_TENSORS, &out->n_tensors, NULL));
    if (out->no < out->count) return PN_OK;
    return pn_fail(PN_ERR_METADATA, "%s is %" PRIu32 ", but %s is %" PRIu32 ": parts are counted from 0", KEY_NO,
                   out->no, KEY_COUNT, out->count);
}

static bool split_is_key(const pn_gguf *g, uint64_t index) {
    static const char *const keys[] = { KEY_NO, KEY_COUNT, KEY_TENSORS };
    const entry *e = &g->entries[index];
    for (size_t i = 0; i < PN_ARRAY_LEN(keys); i++)
        if (e->key_len == strlen(keys[i]) && memcmp(g->header + e->key, keys[i], e->key_len) == 0) return true;
    return false;
}

/* ---- the others --------------------------------------------------------------------------------------------- */

/* The path of part `no`, given the path of part `from`; owned. */
static int split_sibling_path(const char *path, const split_keys *from, uint32_t no, char **out) {
    const split_ending mine = split_ending_of(from->no, from->count), wanted = split_ending_of(no, from->count);
    const size_t len = strlen(path), ending_len = strlen(mine.text);
    if (len < ending_len || strcmp(path + len - ending_len, mine.text) != 0)
        return pn_fail(PN_ERR_IO,
                       "this is part %" PRIu32 " of %" PRIu32
                       " of a split model (%s, %s), but its name does not end in "
                       "%s, so the other parts cannot be found; give the parts their names back: NAME%s and so on, in "
                       "one folder",
                       from->no + 1, from->count, KEY_NO, KEY_COUNT, mine.text, split_ending_of(0, from->count).text);
    /* Both endings have as many digits: PARTS_MAX has five. */
    char *sibling = malloc(len + 1);
    if (!sibling) return pn_fail(PN_ERR_MEMORY, "no memory for a path of %zu bytes", len);
    memcpy(sibling, path, len - ending_len);
    memcpy(sibling + len - ending_len, wanted.text, ending_len + 1);
    *out = sibling;
    return PN_OK;
}

/* The end of a file's name, which holds the number. */
static const char *split_shown_name(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const size_t len = strlen(name);
    return len > NAME_SHOWN ? name + len - NAME_SHOWN : name;
}

/* Put "part 2 of 3 (name): " before the message of a failure. */
static int split_fail_in_part(const char *path, const split_keys *keys, int status) {
    char where[NAME_SHOWN + 48];
    snprintf(where, sizeof where, "part %" PRIu32 " of %" PRIu32 " (%s)", keys->no + 1, keys->count,
             split_shown_name(path));
    return gguf_fail_in(where, status);
}

static int split_check_same(const split_keys *expected, const split_keys *found) {
    const struct {
        const char *key;
        uint32_t expected, found;
    } pairs[] = {
        { KEY_COUNT, expected->count, found->count },
        { KEY_NO, expected->no, found->no },
        { KEY_TENSORS, expected->n_tensors, found->n_tensors },
    };
    for (size_t i = 0; i < PN_ARRAY_LEN(pairs); i++)
        if (pairs[i].expected != pairs[i].found)
            return pn_fail(PN_ERR_CORRUPT,
                           "%s is %" PRIu32 "; the other parts want %" PRIu32
                           " here: files of different models, or one that was renamed",
                           pairs[i].key, pairs[i].found, pairs[i].expected);
    return PN_OK;
}

/* Open the part `keys->no` at its own path and check what it says of itself. */
static int split_open_part(const char *sibling, bool use_mmap, const split_keys *keys, pn_gguf **out) {
    split_keys found;
    file_map map;
    PN_TRY(map_open(sibling, use_mmap, &map));
    PN_TRY(gguf_parse_map(map, out));
    PN_TRY(split_read_keys(*out, &found));
    return split_check_same(keys, &found);
}

/* Open part `no` beside `path`, which is part `from->no`. *out may be there on failure, too. */
static int split_open_sibling(const char *path, bool use_mmap, const split_keys *from, uint32_t no, pn_gguf **out) {
    const split_keys keys = { .no = no, .count = from->count, .n_tensors = from->n_tensors };
    char *sibling = NULL;
    PN_TRY(split_sibling_path(path, from, no, &sibling));
    int status;
    if (map_is_missing(sibling)) {
        status = pn_fail(
            PN_ERR_IO, "part %" PRIu32 " of %" PRIu32 " is missing: %s must lie in the same folder as all other parts",
            no + 1, from->count, split_shown_name(sibling));
    } else {
        status = split_open_part(sibling, use_mmap, &keys, out);
        if (status != PN_OK) status = split_fail_in_part(sibling, &keys, status);
    }
    free(sibling);
    return status;
}

/* ---- together ----------------------------------------------------------------------------------------------- */

/* The model's metadata stands in the first part. What another part repeats must be the same; alignment is its own. */
static int split_check_metadata(const pn_gguf *first, const pn_gguf *part) {
    for (uint64_t i = 0; i < part->n_entries; i++) {
        if (split_is_key(part, i)) continue;
        const entry *e = &part->entries[i];
        char key[96];
        if (e->key_len >= sizeof key) continue;
        memcpy(key, part->header + e->key, e->key_len);
        key[e->key_len] = 0;
        const int64_t there = strcmp(key, "general.alignment") ? gguf_find_metadata(first, key) : -1;
        if (there < 0) continue;
        size_t len, len_there;
        const uint8_t *bytes = gguf_metadata_bytes(part, i, &len);
        const uint8_t *bytes_there = gguf_metadata_bytes(first, (uint64_t)there, &len_there);
        if (len != len_there || memcmp(bytes, bytes_there, len) != 0)
            return pn_fail(PN_ERR_CORRUPT, "%s is not what the first part says: files of different models", key);
    }
    return PN_OK;
}

/* Some writers use the first part's alignment in all parts and name it in the first alone. Data is then not where the
 * format puts it; the bytes that are left over at the end tell. */
static int split_check_alignment(const pn_gguf *first, const pn_gguf *part) {
    uint64_t end;
    if (part->alignment == first->alignment) return PN_OK;
    if (u64_align_up(part->data_end, part->alignment, &end) && end >= part->size) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT,
                   "its data ends at byte %" PRIu64 " of %zu: it seems to be aligned to %" PRIu32
                   ", which only the first part says; split the model again",
                   part->data_end, part->size, first->alignment);
}

/* One table of tensors from those of all parts. `first` gets its own table back if there is no memory. */
static int split_join_tensors(pn_gguf *first, uint32_t n_expected) {
    uint64_t n = 0, at = 0;
    for (uint32_t i = 0; i <= first->n_others; i++) n += gguf_part(first, i)->n_tensors; /* each <= its file's bytes */
    if (n != n_expected)
        return pn_fail(PN_ERR_CORRUPT,
                       "the parts hold %" PRIu64 " tensors together, but %s is %" PRIu32
                       ": files of different models, or damage",
                       n, KEY_TENSORS, n_expected);
    tensor *all = calloc((size_t)n + 1, sizeof *all);
    if (!all) return pn_fail(PN_ERR_MEMORY, "no memory for a table of %" PRIu64 " tensors", n);
    for (uint32_t i = 0; i <= first->n_others; i++) {
        const pn_gguf *part = gguf_part(first, i);
        for (uint64_t t = 0; t < part->n_tensors; t++, at++) {
            all[at] = part->tensors[t];
            all[at].part = i;
        }
    }
    free(first->tensors);
    first->tensors = all;
    first->n_tensors = n;
    return gguf_index_tensors(first);
}

static int split_drop_keys(pn_gguf *first) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < first->n_entries; i++)
        if (!split_is_key(first, i)) first->entries[kept++] = first->entries[i];
    first->n_entries = kept;
    return gguf_index_entries(first);
}

static int split_check_parts(const pn_gguf *first) {
    for (uint32_t i = 1; i <= first->n_others; i++) {
        const pn_gguf *part = gguf_part(first, i);
        int status = split_check_metadata(first, part);
        if (status == PN_OK) status = split_check_alignment(first, part);
        if (status == PN_OK) continue;
        char where[48];
        snprintf(where, sizeof where, "part %" PRIu32 " of %" PRIu32, i + 1, first->n_others + 1);
        return gguf_fail_in(where, status);
    }
    return PN_OK;
}

/* Fill in those of parts[count] that are not there. */
static int split_open_all(const char *path, bool use_mmap, const split_keys *from, pn_gguf **parts) {
    for (uint32_t no = 0; no < from->count; no++)
        if (no != from->no) PN_TRY(split_open_sibling(path, use_mmap, from, no, &parts[no]));
    return PN_OK;
}

int gguf_join(const char *path, bool use_mmap, pn_gguf **gguf) {
    split_keys keys;
    PN_TRY(split_read_keys(*gguf, &keys));
    if (keys.count < 2) return PN_OK;
    pn_gguf **parts = calloc(keys.count, sizeof *parts);
    if (!parts) return pn_fail(PN_ERR_MEMORY, "no memory for a list of %" PRIu32 " parts", keys.count);
    parts[keys.no] = *gguf;
    const int status = split_open_all(path, use_mmap, &keys, parts);
    if (status != PN_OK) {
        parts[keys.no] = NULL; /* stays with the caller */
        for (uint32_t i = 0; i < keys.count; i++) pn_gguf_free(parts[i]);
        free(parts);
        return status;
    }
    pn_gguf *const first = parts[0];
    first->parts = parts;
    first->n_others = keys.count - 1;
    *gguf = first;
    PN_TRY(split_check_parts(first));
    PN_TRY(split_join_tensors(first, keys.n_tensors));
    return split_drop_keys(first);
}

/* ---- files that were cut by bytes --------------------------------------------------------------------------- */

static const char *split_skip_digits(const char *at) {
    while (*at >= '0' && *at <= '9') at++;
    return at;
}

bool gguf_is_piece(const char *path) {
    const char *at = NULL; /* the last "part" in the path */
    for (const char *next = path; (next = strstr(next, "part")); next++) at = next + strlen("part");
    if (!at) return false;
    const char *of = split_skip_digits(at);
    if (of == at || strncmp(of, "of", 2) != 0) return false;
    const char *end = split_skip_digits(of + 2);
    return end != of + 2 && *end == 0;
}
