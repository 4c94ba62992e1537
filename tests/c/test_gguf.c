/* test_gguf.c - small files built byte by byte: what must parse parses, everything else is refused with the right
 * status and a message that names the cause. Every file is parsed from a heap block of exactly its size, so that a
 * sanitizer sees a read of one byte too many. */
#include "check.h"
#include "gguf.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- a writer ------------------------------------------------------------------------------------------------ */

typedef struct builder {
    uint8_t *bytes;
    size_t len, cap;
} builder;

static void put(builder *b, const void *bytes, size_t len) {
    if (b->len + len > b->cap) {
        b->cap = 2 * b->cap + len + 64;
        b->bytes = realloc(b->bytes, b->cap);
    }
    memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

static void put_u8(builder *b, uint8_t x) {
    put(b, &x, sizeof x);
}
static void put_u32(builder *b, uint32_t x) {
    put(b, &x, sizeof x);
}
static void put_u64(builder *b, uint64_t x) {
    put(b, &x, sizeof x);
}
static void put_f64(builder *b, double x) {
    put(b, &x, sizeof x);
}

static void put_str(builder *b, const char *s) {
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void put_header_of(builder *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

static void put_header(builder *b, uint64_t n_tensors, uint64_t n_kv) {
    put_header_of(b, 3, n_tensors, n_kv);
}

static void put_key(builder *b, const char *key, uint32_t type) {
    put_str(b, key);
    put_u32(b, type);
}

static void put_kv_u32(builder *b, const char *key, uint32_t value) {
    put_key(b, key, PN_VALUE_U32);
    put_u32(b, value);
}

static void put_array(builder *b, const char *key, uint32_t element_type, uint64_t n) {
    put_key(b, key, PN_VALUE_ARRAY);
    put_u32(b, element_type);
    put_u64(b, n);
}

static void put_tensor(builder *b, const char *name, uint64_t dim0, uint64_t dim1, uint32_t type, uint64_t offset) {
    put_str(b, name);
    put_u32(b, 2);
    put_u64(b, dim0);
    put_u64(b, dim1);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_zeros(builder *b, size_t n) {
    for (size_t i = 0; i < n; i++) put_u8(b, 0);
}

static void pad_to(builder *b, size_t alignment) {
    while (b->len % alignment) put_u8(b, 0);
}

/* Parse an exact copy of the first `len` bytes; the copy lives as long as *memory. */
static int parse_prefix(const builder *b, size_t len, pn_gguf **out, uint8_t **memory) {
    *memory = malloc(len ? len : 1);
    if (len) memcpy(*memory, b->bytes, len);
    return gguf_parse(len ? *memory : *memory + 1, len, out);
}

/* Build with `make`, expect `status` and a message that contains `words`. */
static void check_refused(const char *name, void (*make)(builder *), int status, const char *words) {
    builder b = { 0 };
    pn_gguf *g;
    uint8_t *memory;
    make(&b);
    const int got = parse_prefix(&b, b.len, &g, &memory);
    const bool right = got == status && g == NULL && strstr(pn_last_error(), words);
    if (!right)
        fprintf(stderr, "%s: status %d (wanted %d), \"%s\" (wanted \"%s\")\n", name, got, status, pn_last_error(),
                words);
    CHECK(right);
    pn_gguf_free(g);
    free(memory);
    free(b.bytes);
}

/* ---- malformed files ------------------------------------------------------------------------------------------ */

static void make_empty(builder *b) {
    (void)b;
}
static void make_magic_only(builder *b) {
    put(b, "GGUF", 4);
}
static void make_half_magic(builder *b) {
    put(b, "GG", 2);
}
static void make_short_header(builder *b) {
    put_header(b, 0, 0);
    b->len = 20;
}
static void make_version_0(builder *b) {
    put_header_of(b, 0, 0, 0);
}
static void make_version_1(builder *b) {
    put_header_of(b, 1, 0, 0);
}
static void make_version_99(builder *b) {
    put_header_of(b, 99, 0, 0);
}
static void make_big_endian(builder *b) {
    put_header_of(b, 0x03000000, 0, 0);
}
static void make_n_kv_max(builder *b) {
    put_header(b, 0, UINT64_MAX);
}
static void make_n_kv_2p63(builder *b) {
    put_header(b, 0, (uint64_t)1 << 63);
}
static void make_n_kv_beyond(builder *b) {
    put_header(b, 0, 3);
    put_zeros(b, 3 * 14 - 1);
}
static void make_n_tensors_max(builder *b) {
    put_header(b, UINT64_MAX, 0);
}
static void make_n_tensors_2p58(builder *b) {
    put_header(b, (uint64_t)1 << 58, 0);
}
static void make_key_len_2p63(builder *b) {
    put_header(b, 0, 1);
    put_u64(b, (uint64_t)1 << 63);
    put_zeros(b, 8);
}
static void make_key_len_max(builder *b) {
    put_header(b, 0, 1);
    put_u64(b, UINT64_MAX);
    put_zeros(b, 8);
}
static void make_key_too_long(builder *b) {
    put_header(b, 0, 1);
    put_u64(b, 65536);
    put_zeros(b, 70000);
}
static void make_key_beyond_end(builder *b) {
    put_header(b, 0, 1);
    put_u64(b, 60000);
    put_zeros(b, 100);
}
static void make_key_empty(builder *b) {
    put_header(b, 0, 1);
    put_kv_u32(b, "", 1);
    put_zeros(b, 8);
}
static void make_type_13(builder *b) {
    put_header(b, 0, 1);
    put_key(b, "a", 13);
    put_u64(b, 0);
}
static void make_element_type_13(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", 13, 0);
}
static void make_value_str_2p63(builder *b) {
    put_header(b, 0, 1);
    put_key(b, "a", PN_VALUE_STRING);
    put_u64(b, (uint64_t)1 << 63);
}
static void make_value_cut(builder *b) {
    put_header(b, 0, 1);
    put_key(b, "some.key", PN_VALUE_U64);
    put_u32(b, 0);
}
static void make_bool_2(builder *b) {
    put_header(b, 0, 1);
    put_key(b, "a.flag", PN_VALUE_BOOL);
    put_u8(b, 2);
}
static void make_bool_2_in_array(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "flags", PN_VALUE_BOOL, 3);
    put(b, "\1\0\xff", 3);
}
static void make_array_2p63(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_U8, (uint64_t)1 << 63);
}
static void make_array_wrap(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_F64, (uint64_t)1 << 61);
    put_u64(b, 0);
}
static void make_array_beyond_end(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_I16, 5);
    put_zeros(b, 9);
}
static void make_strings_2p61(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_STRING, (uint64_t)1 << 61);
    put_zeros(b, 64);
}
static void make_strings_last_too_long(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_STRING, 2);
    put_str(b, "fine");
    put_u64(b, 1);
}
static void make_strings_length_wraps(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "a", PN_VALUE_STRING, 1);
    put_u64(b, UINT64_MAX - 7);
    put_zeros(b, 16);
}
static void make_array_of_arrays(builder *b) {
    put_header(b, 0, 1);
    put_array(b, "nested", PN_VALUE_ARRAY, 1);
    put_u32(b, PN_VALUE_U8);
    put_u64(b, 0);
}
static void make_duplicate_key(builder *b) {
    put_header(b, 0, 3);
    put_kv_u32(b, "twice", 1);
    put_kv_u32(b, "once", 1);
    put_kv_u32(b, "twice", 2);
}

static void put_alignment(builder *b, uint32_t alignment) {
    put_header(b, 0, 1);
    put_kv_u32(b, "general.alignment", alignment);
}
static void make_alignment_0(builder *b) {
    put_alignment(b, 0);
}
static void make_alignment_3(builder *b) {
    put_alignment(b, 3);
}
static void make_alignment_4(builder *b) {
    put_alignment(b, 4);
}
static void make_alignment_2p31(builder *b) {
    put_alignment(b, (uint32_t)1 << 31);
}
static void make_alignment_i32(builder *b) {
    put_header(b, 0, 1);
    put_key(b, "general.alignment", PN_VALUE_I32);
    put_u32(b, 32);
}

static void make_name_empty(builder *b) {
    put_header(b, 1, 0);
    put_tensor(b, "", 32, 1, 0, 0);
    put_zeros(b, 256);
}
static void make_name_65(builder *b) {
    put_header(b, 1, 0);
    put_tensor(b, "a2345678901234567890123456789012345678901234567890123456789012345", 32, 1, 0, 0);
    put_zeros(b, 256);
}
static void make_name_twice(builder *b) {
    put_header(b, 2, 0);
    put_tensor(b, "same", 8, 1, 0, 0);
    put_tensor(b, "same", 8, 1, 0, 32);
    put_zeros(b, 256);
}
static void put_n_dims(builder *b, uint32_t n_dims) {
    put_header(b, 1, 0);
    put_str(b, "t");
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < 5; d++) put_u64(b, 1);
    put_u32(b, 0);
    put_u64(b, 0);
    put_zeros(b, 256);
}
static void make_n_dims_0(builder *b) {
    put_n_dims(b, 0);
}
static void make_n_dims_5(builder *b) {
    put_n_dims(b, 5);
}
static void make_n_dims_max(builder *b) {
    put_n_dims(b, UINT32_MAX);
}

static void put_one(builder *b, uint64_t dim0, uint64_t dim1, uint32_t type, uint64_t offset, size_t data) {
    put_header(b, 1, 0);
    put_tensor(b, "blk.0.x", dim0, dim1, type, offset);
    pad_to(b, 32);
    put_zeros(b, data);
}
static void make_dim_0(builder *b) {
    put_one(b, 32, 0, 0, 0, 128);
}
static void make_dim_wrap(builder *b) {
    put_one(b, (uint64_t)1 << 32, (uint64_t)1 << 32, 0, 0, 128);
}
static void make_dim_wrap_by_type(builder *b) {
    put_one(b, (uint64_t)1 << 31, (uint64_t)1 << 31, 0, 0, 128);
}
static void make_dim_max(builder *b) {
    put_one(b, UINT64_MAX, 1, 24, 0, 128);
}
static void make_dim_block(builder *b) {
    put_one(b, 48, 2, 8, 0, 256);
}
static void make_type_999(builder *b) {
    put_one(b, 32, 1, 999, 0, 128);
}
static void make_type_negative(builder *b) {
    put_one(b, 32, 1, UINT32_MAX, 0, 128);
}
static void make_type_removed(builder *b) {
    put_one(b, 32, 1, 4, 0, 128);
}
static void make_offset_past_end(builder *b) {
    put_one(b, 32, 1, 0, (uint64_t)1 << 40, 128);
}
static void make_offset_one_block_past(builder *b) {
    put_one(b, 32, 1, 0, 32, 128);
}
static void make_offset_wraps(builder *b) {
    put_one(b, 32, 1, 0, UINT64_MAX - 31, 128);
}
static void make_offset_unaligned(builder *b) {
    put_one(b, 16, 1, 0, 1, 128);
}
static void make_tensor_data_missing(builder *b) {
    put_one(b, 32, 1, 0, 0, 127);
}
static void make_overlap(builder *b) {
    put_header(b, 3, 0);
    put_tensor(b, "last", 32, 1, 0, 96);
    put_tensor(b, "first", 8, 1, 0, 0);
    put_tensor(b, "middle", 32, 1, 0, 32);
    pad_to(b, 32);
    put_zeros(b, 256);
}
static void make_same_offset(builder *b) {
    put_header(b, 2, 0);
    put_tensor(b, "a", 8, 1, 0, 0);
    put_tensor(b, "b", 8, 1, 0, 0);
    pad_to(b, 32);
    put_zeros(b, 64);
}
static void make_joined(builder *b) {
    put_one(b, 32, 1, 0, 0, 128);
    put_header(b, 0, 0);
}

static void make_ggml(builder *b) {
    put_u32(b, 0x67676d6c), put_zeros(b, 20);
}
static void make_ggmf(builder *b) {
    put_u32(b, 0x67676d66), put_zeros(b, 20);
}
static void make_ggjt(builder *b) {
    put_u32(b, 0x67676a74), put_zeros(b, 20);
}
static void make_ggla(builder *b) {
    put_u32(b, 0x67676c61), put_zeros(b, 20);
}
static void make_zip(builder *b) {
    put(b, "PK\3\4\0\0\0\0", 8);
}
static void make_html(builder *b) {
    put(b, "\n  <!DOCTYPE html><html>", 24);
}
static void make_html_short(builder *b) {
    put(b, "<HTML>", 6);
}
static void make_lfs(builder *b) {
    put(b, "version https://git-lfs.github.com/spec/v1\noid sha256:0", 54);
}
static void make_safetensors(builder *b) {
    put_u64(b, 24);
    put(b, "{\"__metadata__\":{\"a\":1}}", 24);
}
static void make_noise(builder *b) {
    put(b, "\x01\x02\x03\x04\xfe\xff\x00\x10zzz", 11);
}
static void make_one_byte(builder *b) {
    put(b, "x", 1);
}

static const struct {
    const char *name;
    void (*make)(builder *);
    int status;
    const char *words;
} MALFORMED[] = {
    { "empty", make_empty, PN_ERR_TRUNCATED, "only 0 bytes" },
    { "magic only", make_magic_only, PN_ERR_TRUNCATED, "version" },
    { "half of the magic", make_half_magic, PN_ERR_TRUNCATED, "only 2 bytes" },
    { "short header", make_short_header, PN_ERR_TRUNCATED, "number of metadata entries at byte 16" },
    { "version 0", make_version_0, PN_ERR_UNSUPPORTED, "version 0" },
    { "version 1", make_version_1, PN_ERR_UNSUPPORTED, "version 1" },
    { "version 99", make_version_99, PN_ERR_UNSUPPORTED, "version 99" },
    { "big-endian", make_big_endian, PN_ERR_UNSUPPORTED, "big-endian" },
    { "2^64-1 entries", make_n_kv_max, PN_ERR_CORRUPT, "18446744073709551615 metadata entries" },
    { "2^63 entries", make_n_kv_2p63, PN_ERR_CORRUPT, "9223372036854775808 metadata entries" },
    { "one entry too many", make_n_kv_beyond, PN_ERR_TRUNCATED, "3 metadata entries" },
    { "2^64-1 tensors", make_n_tensors_max, PN_ERR_CORRUPT, "18446744073709551615 tensors" },
    { "2^58 tensors", make_n_tensors_2p58, PN_ERR_CORRUPT, "288230376151711744 tensors" },
    { "key of 2^63 bytes", make_key_len_2p63, PN_ERR_CORRUPT, "key of 9223372036854775808 bytes" },
    { "key of 2^64-1 bytes", make_key_len_max, PN_ERR_CORRUPT, "at most 65535" },
    { "key of 65536 bytes", make_key_too_long, PN_ERR_CORRUPT, "at most 65535" },
    { "key beyond the end", make_key_beyond_end, PN_ERR_TRUNCATED, "60000 bytes for its key" },
    { "empty key", make_key_empty, PN_ERR_CORRUPT, "empty key" },
    { "value type 13", make_type_13, PN_ERR_CORRUPT, "\"a\" has value type 13" },
    { "element type 13", make_element_type_13, PN_ERR_CORRUPT, "element type 13" },
    { "string of 2^63 bytes", make_value_str_2p63, PN_ERR_CORRUPT, "9223372036854775808" },
    { "value cut", make_value_cut, PN_ERR_TRUNCATED, "metadata entry 0 \"some.key\"" },
    { "bool 2", make_bool_2, PN_ERR_CORRUPT, "\"a.flag\" holds the bool 2" },
    { "bool 255 in an array", make_bool_2_in_array, PN_ERR_CORRUPT, "holds the bool 255" },
    { "array of 2^63", make_array_2p63, PN_ERR_CORRUPT, "9223372036854775808 elements" },
    { "array of 2^64 bytes", make_array_wrap, PN_ERR_CORRUPT, "2305843009213693952 elements" },
    { "array beyond the end", make_array_beyond_end, PN_ERR_TRUNCATED, "5 elements" },
    { "2^61 strings", make_strings_2p61, PN_ERR_CORRUPT, "2305843009213693952 strings" },
    { "last string too long", make_strings_last_too_long, PN_ERR_TRUNCATED, "\"a\" needs 1 bytes for its string" },
    { "string length wraps", make_strings_length_wraps, PN_ERR_CORRUPT, "18446744073709551608" },
    { "array of arrays", make_array_of_arrays, PN_ERR_UNSUPPORTED, "\"nested\" is an array of arrays" },
    { "duplicate key", make_duplicate_key, PN_ERR_CORRUPT, "entries 0 and 2 have the same key \"twice\"" },
    { "alignment 0", make_alignment_0, PN_ERR_CORRUPT, "general.alignment is 0" },
    { "alignment 3", make_alignment_3, PN_ERR_CORRUPT, "general.alignment is 3" },
    { "alignment 4", make_alignment_4, PN_ERR_CORRUPT, "general.alignment is 4" },
    { "alignment 2^31", make_alignment_2p31, PN_ERR_CORRUPT, "general.alignment is 2147483648" },
    { "alignment as i32", make_alignment_i32, PN_ERR_CORRUPT, "general.alignment is of type i32" },
    { "empty tensor name", make_name_empty, PN_ERR_CORRUPT, "tensor 0 at byte 24 has an empty name" },
    { "tensor name of 65 bytes", make_name_65, PN_ERR_CORRUPT, "name of 65 bytes; at most 64" },
    { "tensor name twice", make_name_twice, PN_ERR_CORRUPT, "tensors 0 and 1 have the same name \"same\"" },
    { "0 dimensions", make_n_dims_0, PN_ERR_CORRUPT, "\"t\" has 0 dimensions" },
    { "5 dimensions", make_n_dims_5, PN_ERR_CORRUPT, "\"t\" has 5 dimensions" },
    { "2^32-1 dimensions", make_n_dims_max, PN_ERR_CORRUPT, "4294967295 dimensions" },
    { "dimension of 0", make_dim_0, PN_ERR_CORRUPT, "\"blk.0.x\" has dimension 1 of length 0" },
    { "dimensions wrap", make_dim_wrap, PN_ERR_CORRUPT, "size overflows" },
    { "dimensions x type wrap", make_dim_wrap_by_type, PN_ERR_CORRUPT, "size overflows" },
    { "dimension of 2^64-1", make_dim_max, PN_ERR_CORRUPT, "\"blk.0.x\"" },
    { "rows of no whole blocks", make_dim_block, PN_ERR_CORRUPT, "48 elements; Q8_0 needs a multiple of 32" },
    { "element type 999", make_type_999, PN_ERR_UNSUPPORTED, "element type number 999" },
    { "element type -1", make_type_negative, PN_ERR_UNSUPPORTED, "element type number 4294967295" },
    { "element type removed", make_type_removed, PN_ERR_UNSUPPORTED, "element type number 4" },
    { "offset past the end", make_offset_past_end, PN_ERR_TRUNCATED, "\"blk.0.x\" needs the bytes" },
    { "offset one step too far", make_offset_one_block_past, PN_ERR_TRUNCATED,
      "needs the bytes 128 to 256; the file has 224" },
    { "offset wraps", make_offset_wraps, PN_ERR_CORRUPT, "offset 18446744073709551584" },
    { "offset unaligned", make_offset_unaligned, PN_ERR_CORRUPT, "offset 1, no multiple of the alignment 32" },
    { "last byte missing", make_tensor_data_missing, PN_ERR_TRUNCATED, "needs the bytes 96 to 224; the file has 223" },
    { "overlap", make_overlap, PN_ERR_CORRUPT, "\"middle\" and \"last\" overlap" },
    { "same offset", make_same_offset, PN_ERR_CORRUPT, "overlap" },
    { "two files joined", make_joined, PN_ERR_CORRUPT, "a second GGUF file begins at byte 224" },
    { "ggml", make_ggml, PN_ERR_NOT_GGUF, "old GGML" },
    { "ggmf", make_ggmf, PN_ERR_NOT_GGUF, "old GGMF" },
    { "ggjt", make_ggjt, PN_ERR_NOT_GGUF, "old GGJT" },
    { "ggla", make_ggla, PN_ERR_NOT_GGUF, "GGLA adapter" },
    { "zip", make_zip, PN_ERR_NOT_GGUF, "zip archive" },
    { "html", make_html, PN_ERR_NOT_GGUF, "HTML page: the download failed" },
    { "html without doctype", make_html_short, PN_ERR_NOT_GGUF, "HTML page" },
    { "git-lfs", make_lfs, PN_ERR_NOT_GGUF, "git lfs pull" },
    { "safetensors", make_safetensors, PN_ERR_NOT_GGUF, "safetensors" },
    { "noise", make_noise, PN_ERR_NOT_GGUF, "01 02 03 04 fe ff 00 10, a GGUF" },
    { "one byte", make_one_byte, PN_ERR_NOT_GGUF, "bytes 78, a GGUF" },
};

static void test_gguf_parse_refuses_every_malformed_file_and_names_the_cause(void) {
    for (size_t i = 0; i < PN_ARRAY_LEN(MALFORMED); i++)
        check_refused(MALFORMED[i].name, MALFORMED[i].make, MALFORMED[i].status, MALFORMED[i].words);
}

/* ---- a good file ---------------------------------------------------------------------------------------------- */

enum { GOOD_ENTRIES = 16, GOOD_TENSORS = 3 };

static void put_good_metadata(builder *b) {
    put_key(b, "s", PN_VALUE_STRING), put_u64(b, 5), put(b, "a\0b\xff\n", 5);
    put_key(b, "u8", PN_VALUE_U8), put_u8(b, 200);
    put_key(b, "i8", PN_VALUE_I8), put_u8(b, 0xfe);
    put_key(b, "u16", PN_VALUE_U16), put(b, "\xff\xff", 2);
    put_key(b, "i16", PN_VALUE_I16), put(b, "\x00\x80", 2);
    put_kv_u32(b, "u32", UINT32_MAX);
    put_key(b, "i32", PN_VALUE_I32), put_u32(b, (uint32_t)-7);
    put_key(b, "f32", PN_VALUE_F32), put(b, "\x00\x00\xc0\x3f", 4);
    put_key(b, "yes", PN_VALUE_BOOL), put_u8(b, 1);
    put_key(b, "u64", PN_VALUE_U64), put_u64(b, (uint64_t)1 << 40);
    put_key(b, "i64", PN_VALUE_I64), put_u64(b, (uint64_t)-3);
    put_key(b, "f64", PN_VALUE_F64), put_f64(b, 0.1);
    put_array(b, "strings", PN_VALUE_STRING, 3), put_str(b, "one"), put_str(b, ""), put_str(b, "three");
    put_array(b, "numbers", PN_VALUE_I16, 3), put(b, "\x01\x00\xff\xff\x00\x80", 6);
    put_array(b, "none", PN_VALUE_F32, 0);
    put_kv_u32(b, "general.alignment", 64);
}

/* Tensors: F32 [4, 2], Q8_0 [32, 1], IQ2_S [256] (known, not readable); the last ends with the file. */
static void make_good(builder *b, uint32_t version) {
    const float values[8] = { 1, 2, 3, 4, -5, 6, 7, 8 };
    put_header_of(b, version, GOOD_TENSORS, GOOD_ENTRIES);
    put_good_metadata(b);
    put_tensor(b, "z.weight", 4, 2, 0, 64);
    put_tensor(b, "a.weight", 32, 1, 8, 0);
    put_tensor(b, "k.weight", 256, 1, 22, 128);
    pad_to(b, 64);
    put(b, "\x00\x3c", 2); /* Q8_0 scale 1.0 */
    for (uint8_t i = 0; i < 32; i++) put_u8(b, i);
    pad_to(b, 64);
    put(b, values, sizeof values);
    pad_to(b, 64);
    put_zeros(b, 82);
}

typedef struct good {
    builder b;
    uint8_t *memory;
    pn_gguf *g;
} good;

static good open_good(void) {
    good f = { 0 };
    make_good(&f.b, 3);
    CHECK(parse_prefix(&f.b, f.b.len, &f.g, &f.memory) == PN_OK);
    return f;
}

static void close_good(good *f) {
    pn_gguf_free(f->g);
    free(f->memory);
    free(f->b.bytes);
}

static void test_gguf_parse_refuses_every_prefix_of_a_good_file(void) {
    builder b = { 0 };
    pn_gguf *g;
    uint8_t *memory;
    make_good(&b, 3);
    for (size_t len = 0; len < b.len; len++) {
        CHECK(parse_prefix(&b, len, &g, &memory) == PN_ERR_TRUNCATED);
        CHECK(g == NULL);
        free(memory);
    }
    CHECK(parse_prefix(&b, b.len, &g, &memory) == PN_OK);
    pn_gguf_free(g);
    free(memory);
    free(b.bytes);
}

static void test_gguf_parse_survives_every_changed_byte(void) {
    builder b = { 0 };
    make_good(&b, 3);
    const uint8_t changes[] = { 0x01, 0x80, 0xff };
    for (size_t at = 0; at < b.len; at++)
        for (size_t c = 0; c < PN_ARRAY_LEN(changes); c++) {
            pn_gguf *g;
            uint8_t *memory;
            pn_tensor_info info;
            b.bytes[at] ^= changes[c];
            if (parse_prefix(&b, b.len, &g, &memory) == PN_OK)
                for (uint64_t t = 0; t < pn_gguf_n_tensors(g); t++) {
                    CHECK(pn_gguf_tensor(g, t, &info) == PN_OK);
                    CHECK(info.offset + info.size <= b.len);
                }
            b.bytes[at] ^= changes[c];
            pn_gguf_free(g);
            free(memory);
        }
    free(b.bytes);
}

static void test_gguf_parse_reads_versions_2_and_3_and_files_without_anything(void) {
    builder b = { 0 }, empty = { 0 };
    pn_gguf *g;
    uint8_t *memory;
    make_good(&b, 2);
    CHECK(parse_prefix(&b, b.len, &g, &memory) == PN_OK);
    CHECK(pn_gguf_version(g) == 2);
    CHECK(pn_gguf_n_tensors(g) == GOOD_TENSORS && pn_gguf_n_metadata(g) == GOOD_ENTRIES);
    CHECK(gguf_alignment(g) == 64);
    pn_gguf_free(g);
    free(memory);
    free(b.bytes);
    put_header(&empty, 0, 0);
    CHECK(parse_prefix(&empty, empty.len, &g, &memory) == PN_OK);
    CHECK(pn_gguf_n_tensors(g) == 0 && pn_gguf_n_metadata(g) == 0 && gguf_alignment(g) == 32);
    CHECK(gguf_find_metadata(g, "x") == -1 && gguf_find_tensor(g, "x") == -1);
    pn_gguf_free(g);
    free(memory);
    free(empty.bytes);
}

static void test_pn_gguf_metadata_gives_every_kind_of_value_in_file_order(void) {
    good f = open_good();
    pn_metadata m;
    const char *keys[GOOD_ENTRIES] = { "s",   "u8",  "i8",  "u16", "i16",     "u32",     "i32",  "f32",
                                       "yes", "u64", "i64", "f64", "strings", "numbers", "none", "general.alignment" };
    for (uint64_t i = 0; i < GOOD_ENTRIES; i++) {
        CHECK(pn_gguf_metadata(f.g, i, &m) == PN_OK);
        CHECK(m.key_len == strlen(keys[i]) && memcmp(m.key, keys[i], m.key_len) == 0);
        CHECK(gguf_find_metadata(f.g, keys[i]) == (int64_t)i);
    }
    CHECK(pn_gguf_metadata(f.g, 0, &m) == PN_OK && m.type == PN_VALUE_STRING && m.len == 5 &&
          !memcmp(m.str, "a\0b\xff\n", 5));
    CHECK(pn_gguf_metadata(f.g, 1, &m) == PN_OK && m.type == PN_VALUE_U8 && m.u == 200);
    CHECK(pn_gguf_metadata(f.g, 2, &m) == PN_OK && m.i == -2);
    CHECK(pn_gguf_metadata(f.g, 3, &m) == PN_OK && m.u == 65535);
    CHECK(pn_gguf_metadata(f.g, 4, &m) == PN_OK && m.i == -32768);
    CHECK(pn_gguf_metadata(f.g, 5, &m) == PN_OK && m.u == UINT32_MAX);
    CHECK(pn_gguf_metadata(f.g, 6, &m) == PN_OK && m.i == -7);
    CHECK(pn_gguf_metadata(f.g, 7, &m) == PN_OK && m.f == 1.5);
    CHECK(pn_gguf_metadata(f.g, 8, &m) == PN_OK && m.type == PN_VALUE_BOOL && m.u == 1);
    CHECK(pn_gguf_metadata(f.g, 9, &m) == PN_OK && m.u == (uint64_t)1 << 40);
    CHECK(pn_gguf_metadata(f.g, 10, &m) == PN_OK && m.i == -3);
    CHECK(pn_gguf_metadata(f.g, 11, &m) == PN_OK && m.f == 0.1);
    CHECK(pn_gguf_metadata(f.g, 12, &m) == PN_OK && m.element_type == PN_VALUE_STRING && m.n == 3 && m.len == 24 + 8);
    CHECK(pn_gguf_metadata(f.g, 13, &m) == PN_OK && m.element_type == PN_VALUE_I16 && m.n == 3 && m.len == 6);
    CHECK(pn_gguf_metadata(f.g, 14, &m) == PN_OK && m.element_type == PN_VALUE_F32 && m.n == 0 && m.len == 0);
    CHECK(pn_gguf_metadata(f.g, GOOD_ENTRIES, &m) == PN_ERR_ARGUMENT);
    close_good(&f);
}

static void test_gguf_metadata_bytes_gives_the_entries_as_they_stand_in_the_file(void) {
    good f = open_good();
    size_t at = 24;
    for (uint64_t i = 0; i < GOOD_ENTRIES; i++) {
        size_t len;
        CHECK(gguf_metadata_bytes(f.g, i, &len) == f.memory + at);
        at += len;
    }
    CHECK(memcmp(f.memory + at + 8, "z.weight", 8) == 0);
    close_good(&f);
}

static void test_pn_gguf_tensor_gives_the_directory_with_absolute_offsets(void) {
    good f = open_good();
    pn_tensor_info info;
    CHECK(gguf_find_tensor(f.g, "z.weight") == 0 && gguf_find_tensor(f.g, "k.weight") == 2);
    CHECK(gguf_find_tensor(f.g, "z.weigh") == -1 && gguf_find_tensor(f.g, "z.weights") == -1);
    CHECK(pn_gguf_tensor(f.g, 0, &info) == PN_OK);
    CHECK(info.name_len == 8 && !memcmp(info.name, "z.weight", 8) && info.n_dims == 2 && info.dims[0] == 4);
    CHECK(info.dims[1] == 2 && info.dims[2] == 1 && info.dims[3] == 1 && info.type == 0 && info.size == 32);
    CHECK(f.memory + info.offset == gguf_tensor_data(f.g, 0) &&
          memcmp(gguf_tensor_data(f.g, 0), "\0\0\x80\x3f", 4) == 0);
    CHECK(pn_gguf_tensor(f.g, 2, &info) == PN_OK && !strcmp(info.type_name, "IQ2_S") && info.size == 82);
    CHECK(pn_gguf_tensor(f.g, 3, &info) == PN_ERR_ARGUMENT);
    close_good(&f);
}

static void test_pn_gguf_read_rows_reads_what_it_can_and_checks_the_range(void) {
    good f = open_good();
    float rows[32];
    CHECK(pn_gguf_read_rows(f.g, 0, 1, 1, rows) == PN_OK && rows[0] == -5 && rows[3] == 8);
    CHECK(pn_gguf_read_rows(f.g, 0, 0, 2, rows) == PN_OK && rows[0] == 1 && rows[7] == 8);
    CHECK(pn_gguf_read_rows(f.g, 1, 0, 1, rows) == PN_OK && rows[31] == 31);
    CHECK(pn_gguf_read_rows(f.g, 0, 2, 0, rows) == PN_OK);
    CHECK(pn_gguf_read_rows(f.g, 0, 1, 2, rows) == PN_ERR_ARGUMENT);
    CHECK(pn_gguf_read_rows(f.g, 0, 1, UINT64_MAX, rows) == PN_ERR_ARGUMENT);
    CHECK(pn_gguf_read_rows(f.g, 3, 0, 1, rows) == PN_ERR_ARGUMENT);
    CHECK(pn_gguf_read_rows(f.g, 2, 0, 1, rows) == PN_ERR_UNSUPPORTED &&
          strstr(pn_last_error(), "\"k.weight\" has element type IQ2_S"));
    close_good(&f);
}

/* ---- getters -------------------------------------------------------------------------------------------------- */

static void test_gguf_getters_accept_a_value_that_fits_and_name_both_types_otherwise(void) {
    good f = open_good();
    uint32_t u = 5;
    float x = 0;
    bool b = false, present = true;
    const char *s;
    size_t len;
    CHECK(gguf_get_u32(f.g, "u8", &u, NULL) == PN_OK && u == 200);
    CHECK(gguf_get_u32(f.g, "u32", &u, &present) == PN_OK && u == UINT32_MAX && present);
    CHECK(gguf_get_u32(f.g, "i8", &u, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "i8 is -2"));
    CHECK(gguf_get_u32(f.g, "u64", &u, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "1099511627776"));
    CHECK(gguf_get_u32(f.g, "yes", &u, NULL) == PN_ERR_METADATA &&
          strstr(pn_last_error(), "type bool; wanted an integer"));
    CHECK(gguf_get_u32(f.g, "strings", &u, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "type array"));
    CHECK(gguf_get_u32(f.g, "missing.key", &u, NULL) == PN_ERR_METADATA &&
          strstr(pn_last_error(), "missing.key is missing"));
    CHECK(gguf_get_u32(f.g, "missing.key", &u, &present) == PN_OK && !present && u == UINT32_MAX);
    CHECK(gguf_get_f32(f.g, "f32", &x, NULL) == PN_OK && x == 1.5f);
    CHECK(gguf_get_f32(f.g, "f64", &x, NULL) == PN_OK && x == 0.1f);
    CHECK(gguf_get_f32(f.g, "u8", &x, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "wanted a float"));
    CHECK(gguf_get_bool(f.g, "yes", &b, NULL) == PN_OK && b);
    CHECK(gguf_get_bool(f.g, "u8", &b, NULL) == PN_ERR_METADATA);
    CHECK(gguf_get_str(f.g, "s", &s, &len, NULL) == PN_OK && len == 5 && s[1] == 0);
    CHECK(gguf_get_str(f.g, "u8", &s, &len, &present) == PN_ERR_METADATA);
    close_good(&f);
}

static void test_gguf_get_f32_refuses_a_double_that_no_float_holds(void) {
    builder b = { 0 };
    pn_gguf *g;
    uint8_t *memory;
    float x = 0;
    put_header(&b, 0, 2);
    put_key(&b, "big", PN_VALUE_F64), put_f64(&b, 1e300);
    put_key(&b, "inf", PN_VALUE_F64), put_f64(&b, -INFINITY);
    CHECK(parse_prefix(&b, b.len, &g, &memory) == PN_OK);
    CHECK(gguf_get_f32(g, "big", &x, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "big is 1e+300"));
    CHECK(gguf_get_f32(g, "inf", &x, NULL) == PN_OK && x == -INFINITY);
    pn_gguf_free(g);
    free(memory);
    free(b.bytes);
}

static void test_gguf_arrays_are_read_element_by_element_and_no_further(void) {
    good f = open_good();
    gguf_array a;
    const char *s;
    size_t len;
    int32_t i = 0;
    float x;
    bool present;
    CHECK(gguf_get_array(f.g, "strings", &a, NULL) == PN_OK && a.n == 3 && a.left == 3);
    CHECK(gguf_array_i32(&a, &i) == PN_ERR_METADATA &&
          strstr(pn_last_error(), "array of string; wanted an array of integers"));
    CHECK(gguf_array_str(&a, &s, &len) == PN_OK && len == 3 && !memcmp(s, "one", 3) && a.left == 2);
    CHECK(gguf_array_str(&a, &s, &len) == PN_OK && len == 0);
    CHECK(gguf_array_str(&a, &s, &len) == PN_OK && len == 5 && !memcmp(s, "three", 5) && a.left == 0);
    CHECK(gguf_array_str(&a, &s, &len) == PN_ERR_METADATA && strstr(pn_last_error(), "only 3 elements"));
    CHECK(gguf_get_array(f.g, "numbers", &a, &present) == PN_OK && present);
    CHECK(gguf_array_f32(&a, &x) == PN_ERR_METADATA);
    CHECK(gguf_array_i32(&a, &i) == PN_OK && i == 1);
    CHECK(gguf_array_i32(&a, &i) == PN_OK && i == -1);
    CHECK(gguf_array_i32(&a, &i) == PN_OK && i == -32768);
    CHECK(gguf_array_i32(&a, &i) == PN_ERR_METADATA);
    CHECK(gguf_get_array(f.g, "none", &a, NULL) == PN_OK && a.left == 0 && gguf_array_f32(&a, &x) == PN_ERR_METADATA);
    CHECK(gguf_get_array(f.g, "u8", &a, NULL) == PN_ERR_METADATA && strstr(pn_last_error(), "wanted an array"));
    CHECK(gguf_get_array(f.g, "not.there", &a, &present) == PN_OK && !present);
    close_good(&f);
}

static void test_gguf_array_str_checks_lengths_again_if_the_file_changed_meanwhile(void) {
    good f = open_good();
    gguf_array a;
    const char *s;
    size_t len;
    CHECK(gguf_get_array(f.g, "strings", &a, NULL) == PN_OK);
    memset(f.memory + (a.at - f.memory), 0xff, 8);
    CHECK(gguf_array_str(&a, &s, &len) == PN_ERR_METADATA && strstr(pn_last_error(), "beyond the array"));
    close_good(&f);
}

static void test_gguf_detach_keeps_the_metadata_and_lets_the_file_go(void) {
    good f = open_good();
    pn_metadata m;
    float row[32];
    uint32_t u;
    pn_tensor_info info;
    CHECK(gguf_detach(f.g) == PN_OK);
    memset(f.memory, 0xee, f.b.len);
    CHECK(gguf_get_u32(f.g, "u8", &u, NULL) == PN_OK && u == 200);
    CHECK(pn_gguf_metadata(f.g, 0, &m) == PN_OK && !memcmp(m.str, "a\0b\xff\n", 5));
    CHECK(gguf_find_tensor(f.g, "a.weight") == 1);
    CHECK(pn_gguf_tensor(f.g, 1, &info) == PN_OK && !memcmp(info.name, "a.weight", 8));
    CHECK(gguf_tensor_data(f.g, 0) == NULL);
    CHECK(pn_gguf_read_rows(f.g, 0, 0, 1, row) == PN_ERR_ARGUMENT);
    gguf_drop(f.g, 0, f.memory, f.b.len);
    CHECK(gguf_detach(f.g) == PN_OK);
    close_good(&f);
}

/* ---- size and speed -------------------------------------------------------------------------------------------- */

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_gguf_parse_takes_a_vocabulary_of_250000_in_a_blink(void) {
    builder b = { 0 };
    pn_gguf *g;
    char token[32];
    put_header(&b, 0, 1);
    put_array(&b, "tokenizer.ggml.tokens", PN_VALUE_STRING, 250000);
    for (int i = 0; i < 250000; i++) {
        snprintf(token, sizeof token, "token%d", i);
        put_str(&b, token);
    }
    const double start = seconds_now();
    CHECK(gguf_parse(b.bytes, b.len, &g) == PN_OK);
    CHECK(seconds_now() - start < 0.2);
    pn_gguf_free(g);
    free(b.bytes);
}

/* Many names that share a prefix: what breaks weak hash tables and naive searches. */
static void test_gguf_parse_is_not_quadratic_in_the_number_of_names(void) {
    enum { N = 300000 };
    builder b = { 0 };
    pn_gguf *g;
    char name[64];
    put_header(&b, N, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "the.same.prefix.of.every.key.%d", N - i);
        put_key(&b, name, PN_VALUE_U8), put_u8(&b, 0);
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "the.same.prefix.of.every.tensor.%d", i);
        put_tensor(&b, name, 1, 1, 24, (uint64_t)(N - 1 - i) * 32);
    }
    pad_to(&b, 32);
    put_zeros(&b, (size_t)N * 32);
    const double start = seconds_now();
    CHECK(gguf_parse(b.bytes, b.len, &g) == PN_OK);
    CHECK(seconds_now() - start < 10); /* a second here; quadratic would be minutes */
    CHECK(gguf_find_tensor(g, "the.same.prefix.of.every.tensor.77777") == 77777);
    CHECK(gguf_find_metadata(g, "the.same.prefix.of.every.key.1") == N - 1);
    pn_gguf_free(g);
    free(b.bytes);
}

/* ---- files on disk --------------------------------------------------------------------------------------------- */

static char test_dir[] = "/tmp/pantheon_test_gguf_XXXXXX";

static const char *test_path(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", test_dir, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, len, file) == len);
    if (file) fclose(file);
}

static void test_gguf_open_reads_a_mapped_and_a_copied_file_alike(void) {
    builder b = { 0 };
    make_good(&b, 3);
    const char *path = test_path("\xd0\xbc\xd0\xbe\xd0\xb4 \xc3\xbc.gguf");
    write_file(path, b.bytes, b.len);
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        pn_gguf *g;
        float row[4];
        CHECK(gguf_open(path, use_mmap, &g) == PN_OK);
        CHECK(pn_gguf_read_rows(g, 0, 1, 1, row) == PN_OK && row[0] == -5);
        gguf_drop(g, 0, gguf_tensor_data(g, 0), 16);
        CHECK(pn_gguf_read_rows(g, 0, 1, 1, row) == PN_OK && row[0] == -5);
        CHECK(gguf_detach(g) == PN_OK && gguf_find_metadata(g, "f64") == 11);
        pn_gguf_free(g);
    }
    unlink(path);
    free(b.bytes);
}

static void check_open_fails(const char *path, int status, const char *words) {
    for (int use_mmap = 0; use_mmap < 2; use_mmap++) {
        pn_gguf *g;
        const int got = gguf_open(path, use_mmap, &g);
        const bool right = got == status && !g && strstr(pn_last_error(), words);
        if (!right) fprintf(stderr, "%s: %d \"%s\"\n", path, got, pn_last_error());
        CHECK(right);
    }
}

static void test_gguf_open_says_what_a_path_is_instead_of_a_file(void) {
    check_open_fails(test_path("missing.gguf"), PN_ERR_IO, "missing.gguf: No such file or directory");
    check_open_fails(test_dir, PN_ERR_IO, "is a directory");
    check_open_fails("/dev/null", PN_ERR_IO, "is a device");
    check_open_fails("", PN_ERR_ARGUMENT, "empty");
    const char *path = test_path("fifo");
    CHECK(mkfifo(path, 0600) == 0);
    check_open_fails(path, PN_ERR_IO, "is a named pipe"); /* and does not wait for a writer */
    unlink(path);
    path = test_path("empty.gguf");
    write_file(path, "", 0);
    check_open_fails(path, PN_ERR_TRUNCATED, "is empty (0 bytes)");
    write_file(path, "PK\3\4", 4);
    check_open_fails(path, PN_ERR_NOT_GGUF, "empty.gguf: not a GGUF file but a zip archive");
    chmod(path, 0);
    if (geteuid() != 0) check_open_fails(path, PN_ERR_IO, "Permission denied");
    unlink(path);
}

static void test_gguf_open_leaves_no_descriptor_behind(void) {
    builder b = { 0 };
    pn_gguf *g;
    make_good(&b, 3);
    const char *path = test_path("descriptor.gguf");
    write_file(path, b.bytes, b.len);
    const int before = dup(0);
    close(before);
    CHECK(gguf_open(path, true, &g) == PN_OK);
    pn_gguf_free(g);
    CHECK(gguf_open(test_dir, true, &g) == PN_ERR_IO);
    const int after = dup(0);
    close(after);
    CHECK(before == after);
    unlink(path);
    free(b.bytes);
}

int main(void) {
    if (!mkdtemp(test_dir)) return 1;
    RUN(test_gguf_parse_refuses_every_malformed_file_and_names_the_cause);
    RUN(test_gguf_parse_refuses_every_prefix_of_a_good_file);
    RUN(test_gguf_parse_survives_every_changed_byte);
    RUN(test_gguf_parse_reads_versions_2_and_3_and_files_without_anything);
    RUN(test_pn_gguf_metadata_gives_every_kind_of_value_in_file_order);
    RUN(test_gguf_metadata_bytes_gives_the_entries_as_they_stand_in_the_file);
    RUN(test_pn_gguf_tensor_gives_the_directory_with_absolute_offsets);
    RUN(test_pn_gguf_read_rows_reads_what_it_can_and_checks_the_range);
    RUN(test_gguf_getters_accept_a_value_that_fits_and_name_both_types_otherwise);
    RUN(test_gguf_get_f32_refuses_a_double_that_no_float_holds);
    RUN(test_gguf_arrays_are_read_element_by_element_and_no_further);
    RUN(test_gguf_array_str_checks_lengths_again_if_the_file_changed_meanwhile);
    RUN(test_gguf_detach_keeps_the_metadata_and_lets_the_file_go);
    RUN(test_gguf_parse_takes_a_vocabulary_of_250000_in_a_blink);
    RUN(test_gguf_parse_is_not_quadratic_in_the_number_of_names);
    RUN(test_gguf_open_reads_a_mapped_and_a_copied_file_alike);
    RUN(test_gguf_open_says_what_a_path_is_instead_of_a_file);
    RUN(test_gguf_open_leaves_no_descriptor_behind);
    rmdir(test_dir);
    return check_report();
}
