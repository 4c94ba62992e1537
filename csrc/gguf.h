/* gguf.h - file bytes in, a validated table of metadata and tensors out. No knowledge of models.     (rank 3)
 *
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
 * All input is hostile. Nothing here copies values: metadata points into the header bytes, tensor data into the
 * file's bytes. gguf_detach() moves the header to the heap and closes the file. */
#ifndef PN_GGUF_H
#define PN_GGUF_H

#include "dtype.h"
#include "map.h"
#include "pantheon.h"

enum { GGUF_ALIGNMENT_DEFAULT = 32 };

/* Open with a choice of mapping or reading; pn_gguf_open(path) is gguf_open(path, true, &g). Any part of a model
 * that was split opens the whole: its siblings are opened too, and whatever is below speaks of all parts together.
 * Messages begin with the path. *out is NULL on failure. */
int gguf_open(const char *path, bool use_mmap, pn_gguf **out);
/* Parse bytes that the caller owns and keeps alive (tests, fuzzers). One part of a split model stays a part. */
int gguf_parse(const uint8_t *bytes, size_t size, pn_gguf **out);
/* Copy the header to the heap and close the mapping; metadata and directory stay valid, but pointers into either that
 * were handed out before do not, and tensor data is gone. On failure (MEMORY) nothing has changed. */
int gguf_detach(pn_gguf *gguf);

/* Index of a metadata key or tensor, or -1. O(log n), whatever the names. */
int64_t gguf_find_metadata(const pn_gguf *gguf, const char *key);
int64_t gguf_find_tensor(const pn_gguf *gguf, const char *name);
/* Bytes to which tensor offsets are aligned: a power of two. */
uint32_t gguf_alignment(const pn_gguf *gguf);
/* The encoded metadata entry `index` (< the count) as it stands in the file: key, type and value. Borrowed. */
const uint8_t *gguf_metadata_bytes(const pn_gguf *gguf, uint64_t index, size_t *len);
/* First byte of tensor `index` (pn_tensor_info.size bytes follow); NULL after gguf_detach. */
const uint8_t *gguf_tensor_data(const pn_gguf *gguf, uint64_t index);
/* Let the pages of `size` bytes at `at` go (after they were packed), which lie in the data of tensor `index` (< the
 * count); they can be read again. Nothing to do after gguf_detach. */
void gguf_drop(const pn_gguf *gguf, uint64_t index, const uint8_t *at, size_t size);

/* ---- typed getters (gguf_get.c) ----------------------------------------------------------------------------- */

/* Integers of any width are accepted if the value fits; bool only as bool; floats as f32 or f64.
 * *present tells whether the key exists (out untouched if not); with present == NULL a missing key is
 * PN_ERR_METADATA naming it. A wrong type is PN_ERR_METADATA naming key, wanted and found type. */
int gguf_get_u32(const pn_gguf *gguf, const char *key, uint32_t *out, bool *present);
int gguf_get_f32(const pn_gguf *gguf, const char *key, float *out, bool *present);
int gguf_get_bool(const pn_gguf *gguf, const char *key, bool *out, bool *present);
/* Borrowed, not terminated. */
int gguf_get_str(const pn_gguf *gguf, const char *key, const char **str, size_t *len, bool *present);

/* An array's elements, one after the other. Get with the wanted element type: PN_VALUE_STRING, or any integer or
 * float type for numbers (element widths may vary; see the *_at functions). */
typedef struct gguf_array {
    const uint8_t *at; /* next element                  */
    const uint8_t *end;
    uint64_t left; /* elements not yet read         */
    uint64_t n;    /* elements in all               */
    int element_type;
    const char *key; /* borrowed from the caller, for messages */
} gguf_array;

int gguf_get_array(const pn_gguf *gguf, const char *key, gguf_array *out, bool *present);
/* Next element; PN_ERR_METADATA if it has another kind or does not fit, or if none is left. */
int gguf_array_str(gguf_array *array, const char **str, size_t *len);
int gguf_array_i32(gguf_array *array, int32_t *out);
int gguf_array_f32(gguf_array *array, float *out);

/* "u32", "string", ...; "unknown" for other numbers. */
const char *gguf_value_type_name(int type);
/* Bytes of a number or bool of this type; 0 for strings, arrays and other numbers. */
size_t gguf_value_type_size(int type);
/* Decode a number or bool into out->u, ->i or ->f, whichever is its kind. */
void gguf_value_load(int type, const uint8_t *at, pn_metadata *out);

#endif
