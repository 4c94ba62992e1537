/* gguf_get.c - a metadata key in, a value of the wanted C type or an error that names both types out.      (rank 3)
 *
 * The second half of gguf.h: built on pn_gguf_metadata alone. It judges types and whether a value fits, not whether it
 * makes sense; that is for whoever knows what the key means.
 * Know first: array elements are checked against the end again while they are read. A mapped file may have been changed
 * by another program since it was parsed. */
#include "gguf.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef enum value_kind { KIND_UNSIGNED, KIND_SIGNED, KIND_FLOAT, KIND_BOOL, KIND_OTHER } value_kind;

static const struct {
    const char *name;
    uint8_t size;
    value_kind kind;
} VALUE_TYPES[] = {
    [PN_VALUE_U8] = { "u8", 1, KIND_UNSIGNED },      [PN_VALUE_I8] = { "i8", 1, KIND_SIGNED },
    [PN_VALUE_U16] = { "u16", 2, KIND_UNSIGNED },    [PN_VALUE_I16] = { "i16", 2, KIND_SIGNED },
    [PN_VALUE_U32] = { "u32", 4, KIND_UNSIGNED },    [PN_VALUE_I32] = { "i32", 4, KIND_SIGNED },
    [PN_VALUE_F32] = { "f32", 4, KIND_FLOAT },       [PN_VALUE_BOOL] = { "bool", 1, KIND_BOOL },
    [PN_VALUE_STRING] = { "string", 0, KIND_OTHER }, [PN_VALUE_ARRAY] = { "array", 0, KIND_OTHER },
    [PN_VALUE_U64] = { "u64", 8, KIND_UNSIGNED },    [PN_VALUE_I64] = { "i64", 8, KIND_SIGNED },
    [PN_VALUE_F64] = { "f64", 8, KIND_FLOAT },
};

static bool gguf_type_is_known(int type) {
    return type >= 0 && (size_t)type < PN_ARRAY_LEN(VALUE_TYPES);
}

const char *gguf_value_type_name(int type) {
    return gguf_type_is_known(type) ? VALUE_TYPES[type].name : "unknown";
}
size_t gguf_value_type_size(int type) {
    return gguf_type_is_known(type) ? VALUE_TYPES[type].size : 0;
}

void gguf_value_load(int type, const uint8_t *at, pn_metadata *out) {
    uint64_t bits = 0;
    float f;
    const size_t size = gguf_value_type_size(type);
    memcpy(&bits, at, size); /* little-endian: the low bytes come first */
    switch (VALUE_TYPES[type].kind) {
    case KIND_UNSIGNED:
    case KIND_BOOL:
        out->u = bits;
        break;
    case KIND_SIGNED: {
        const uint64_t sign = (uint64_t)1 << (8 * size - 1);
        out->i = (int64_t)((bits ^ sign) - sign);
        break;
    }
    case KIND_FLOAT:
        memcpy(&f, at, sizeof f);
        if (size == sizeof f)
            out->f = (double)f;
        else
            memcpy(&out->f, at, sizeof out->f);
        break;
    case KIND_OTHER:
        break;
    }
}

/* ---- scalars ------------------------------------------------------------------------------------------------ */

/* Find a key. *found false and PN_OK: it is not there and need not be. */
static int gguf_get_any(const pn_gguf *gguf, const char *key, pn_metadata *out, bool *present, bool *found) {
    const int64_t index = gguf_find_metadata(gguf, key);
    *found = index >= 0;
    if (present) *present = *found;
    if (*found) return pn_gguf_metadata(gguf, (uint64_t)index, out);
    if (present) return PN_OK;
    return pn_fail(PN_ERR_METADATA, "metadata key %s is missing", key);
}

static int gguf_fail_type(const char *key, const char *wanted, int found) {
    return pn_fail(PN_ERR_METADATA, "metadata key %s is of type %s; wanted %s", key, gguf_value_type_name(found),
                   wanted);
}

int gguf_get_u32(const pn_gguf *gguf, const char *key, uint32_t *out, bool *present) {
    pn_metadata value;
    bool found;
    PN_TRY(gguf_get_any(gguf, key, &value, present, &found));
    if (!found) return PN_OK;
    const value_kind kind = VALUE_TYPES[value.type].kind;
    if (kind != KIND_UNSIGNED && kind != KIND_SIGNED) return gguf_fail_type(key, "an integer", value.type);
    if (kind == KIND_SIGNED && value.i < 0)
        return pn_fail(PN_ERR_METADATA, "metadata key %s is %" PRId64 "; wanted 0 to 2^32 - 1", key, value.i);
    const uint64_t u = kind == KIND_SIGNED ? (uint64_t)value.i : value.u;
    if (u > UINT32_MAX) return pn_fail(PN_ERR_METADATA, "metadata key %s is %" PRIu64 "; wanted 0 to 2^32 - 1", key, u);
    *out = (uint32_t)u;
    return PN_OK;
}

/* A double that is finite but has no float is refused; NaN and infinity pass: the caller knows what they mean. */
static int gguf_narrow_float(const char *key, double value, float *out) {
    if (fabs(value) > (double)FLT_MAX && !isinf(value))
        return pn_fail(PN_ERR_METADATA, "metadata key %s is %g, too large for a 32-bit float", key, value);
    *out = (float)value;
    return PN_OK;
}

int gguf_get_f32(const pn_gguf *gguf, const char *key, float *out, bool *present) {
    pn_metadata value;
    bool found;
    PN_TRY(gguf_get_any(gguf, key, &value, present, &found));
    if (!found) return PN_OK;
    if (VALUE_TYPES[value.type].kind != KIND_FLOAT) return gguf_fail_type(key, "a float", value.type);
    return gguf_narrow_float(key, value.f, out);
}

int gguf_get_bool(const pn_gguf *gguf, const char *key, bool *out, bool *present) {
    pn_metadata value;
    bool found;
    PN_TRY(gguf_get_any(gguf, key, &value, present, &found));
    if (!found) return PN_OK;
    if (value.type != PN_VALUE_BOOL) return gguf_fail_type(key, "a bool", value.type);
    *out = value.u != 0;
    return PN_OK;
}

int gguf_get_str(const pn_gguf *gguf, const char *key, const char **str, size_t *len, bool *present) {
    pn_metadata value;
    bool found;
    PN_TRY(gguf_get_any(gguf, key, &value, present, &found));
    if (!found) return PN_OK;
    if (value.type != PN_VALUE_STRING) return gguf_fail_type(key, "a string", value.type);
    *str = value.str;
    *len = value.len;
    return PN_OK;
}

/* ---- arrays ------------------------------------------------------------------------------------------------- */

int gguf_get_array(const pn_gguf *gguf, const char *key, gguf_array *out, bool *present) {
    pn_metadata value;
    bool found;
    PN_TRY(gguf_get_any(gguf, key, &value, present, &found));
    if (!found) return PN_OK;
    if (value.type != PN_VALUE_ARRAY) return gguf_fail_type(key, "an array", value.type);
    const uint8_t *at = (const uint8_t *)value.str;
    *out = (gguf_array){
        .at = at, .end = at + value.len, .left = value.n, .n = value.n, .element_type = value.element_type, .key = key
    };
    return PN_OK;
}

static int gguf_fail_element(const gguf_array *array, const char *wanted) {
    return pn_fail(PN_ERR_METADATA, "metadata key %s is an array of %s; wanted an array of %s", array->key,
                   gguf_value_type_name(array->element_type), wanted);
}

/* Step over the next `size` bytes. */
static int gguf_array_take(gguf_array *array, uint64_t size, const uint8_t **at) {
    if (array->left == 0)
        return pn_fail(PN_ERR_METADATA, "metadata key %s has only %" PRIu64 " elements", array->key, array->n);
    if (size > (size_t)(array->end - array->at))
        return pn_fail(PN_ERR_METADATA, "metadata key %s: element %" PRIu64 " reaches beyond the array", array->key,
                       array->n - array->left);
    *at = array->at;
    array->at += size;
    return PN_OK;
}

int gguf_array_str(gguf_array *array, const char **str, size_t *len) {
    uint64_t n;
    const uint8_t *at = NULL;
    if (array->element_type != PN_VALUE_STRING) return gguf_fail_element(array, "strings");
    PN_TRY(gguf_array_take(array, sizeof n, &at));
    memcpy(&n, at, sizeof n);
    PN_TRY(gguf_array_take(array, n, &at));
    *str = (const char *)at;
    *len = (size_t)n;
    array->left--;
    return PN_OK;
}

static int gguf_array_number(gguf_array *array, pn_metadata *out) {
    const uint8_t *at = NULL;
    PN_TRY(gguf_array_take(array, gguf_value_type_size(array->element_type), &at));
    gguf_value_load(array->element_type, at, out);
    array->left--;
    return PN_OK;
}

int gguf_array_i32(gguf_array *array, int32_t *out) {
    pn_metadata value = { 0 };
    const value_kind kind = VALUE_TYPES[array->element_type].kind;
    if (kind != KIND_UNSIGNED && kind != KIND_SIGNED) return gguf_fail_element(array, "integers");
    PN_TRY(gguf_array_number(array, &value));
    if (kind == KIND_UNSIGNED ? value.u > INT32_MAX : value.i < INT32_MIN || value.i > INT32_MAX)
        return pn_fail(PN_ERR_METADATA, "metadata key %s: element %" PRIu64 " does not fit 32 bits", array->key,
                       array->n - array->left - 1);
    *out = kind == KIND_UNSIGNED ? (int32_t)value.u : (int32_t)value.i;
    return PN_OK;
}

int gguf_array_f32(gguf_array *array, float *out) {
    pn_metadata value = { 0 };
    if (VALUE_TYPES[array->element_type].kind != KIND_FLOAT) return gguf_fail_element(array, "floats");
    PN_TRY(gguf_array_number(array, &value));
    return gguf_narrow_float(array->key, value.f, out);
}
