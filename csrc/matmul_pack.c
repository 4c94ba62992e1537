/* matmul_pack.c - weights from file order to groups of sixteen rows, and rows back to floats.              (rank 5)
 *
 * Knows the file's blocks (dtype_blocks.h) and the layouts of kernels.h, not what a matrix means. Packing only moves
 * bits: the scales stay as the file has them, so a row reads back to the bit. */
#include "matmul_pack.h"

#include "dtype_blocks.h"
#include "kernels/blocks.h"
#include "status.h"

#include <stddef.h>
#include <string.h>

typedef struct pack_format {
    int dtype;
    pack_kind kind;
} pack_format;

static const pack_format PACK_FORMATS[] = {
    { DTYPE_F32, PACK_F32 },    { DTYPE_F16, PACK_F16 },     { DTYPE_BF16, PACK_BF16 }, { DTYPE_Q8_0, PACK_Q8 },
    { DTYPE_Q4_0, PACK_Q4 },    { DTYPE_Q4_1, PACK_Q4M },    { DTYPE_Q5_0, PACK_Q5 },   { DTYPE_Q5_1, PACK_Q5M },
    { DTYPE_IQ4_NL, PACK_IQ4 }, { DTYPE_IQ4_XS, PACK_IQ4K }, { DTYPE_Q2_K, PACK_Q2K },  { DTYPE_Q3_K, PACK_Q3K },
    { DTYPE_Q4_K, PACK_Q4K },   { DTYPE_Q5_K, PACK_Q5K },    { DTYPE_Q6_K, PACK_Q6K },
};

static const pack_format *pack_format_find(int dtype) {
    for (size_t i = 0; i < PN_ARRAY_LEN(PACK_FORMATS); i++)
        if (PACK_FORMATS[i].dtype == dtype) return &PACK_FORMATS[i];
    return NULL;
}

bool matrix_supports(int dtype) {
    return pack_format_find(dtype) != NULL;
}

/* How the file stores the elements of a kind. */
static const dtype_info *file_type(pack_kind kind) {
    size_t i = 0;
    while (PACK_FORMATS[i].kind != kind) i++; /* every kind has a format */
    return dtype_any(PACK_FORMATS[i].dtype);
}

size_t matrix_row_bytes(const matrix *m) {
    const dtype_info *type = file_type(m->kind);
    return m->cols / type->block_len * type->block_bytes;
}

int matrix_plan(int dtype, size_t rows, size_t cols, matrix *out) {
    memset(out, 0, sizeof *out);
    const pack_format *format = pack_format_find(dtype);
    if (!format) return pn_fail(PN_ERR_UNSUPPORTED, "matrix: element type %d cannot be multiplied", dtype);
    const dtype_info *type = dtype_any(dtype);
    if (cols % type->block_len)
        return pn_fail(PN_ERR_CORRUPT, "matrix: rows of %zu elements are not whole blocks of %u, as %s needs", cols,
                       (unsigned)type->block_len, type->name);
    matrix m = {
        .kind = format->kind, .rows = rows, .cols = cols, .n_groups = rows / GROUP_ROWS + (rows % GROUP_ROWS != 0)
    };
    size_t bytes;
    if (!pack_group_bytes(m.kind, cols, &m.group_bytes) || !size_mul(m.group_bytes, m.n_groups, &bytes))
        return pn_fail(PN_ERR_CORRUPT, "matrix: %zu x %zu elements do not fit the address space", rows, cols);
    *out = m;
    return PN_OK;
}

size_t matrix_bytes(const matrix *m) {
    return m->n_groups * m->group_bytes;
}

/* ---- blocks of 32 and plain numbers --------------------------------------------------------------------------- */

/* Words of 4 bytes travel as they are, four at a time where the compiler can be told so. */
typedef uint32_t words4 __attribute__((vector_size(16)));

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLE
#endif
#endif

/* dst[v][r] = src[r][v] for four rows and four words: both have strides in bytes. */
static inline void transpose_words(uint8_t *dst, size_t dst_stride, const words4 src[4]) {
#ifdef HAVE_SHUFFLE
    const words4 low01 = __builtin_shufflevector(src[0], src[1], 0, 4, 1, 5);
    const words4 low23 = __builtin_shufflevector(src[2], src[3], 0, 4, 1, 5);
    const words4 high01 = __builtin_shufflevector(src[0], src[1], 2, 6, 3, 7);
    const words4 high23 = __builtin_shufflevector(src[2], src[3], 2, 6, 3, 7);
    const words4 out[4] = { __builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                            __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                            __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                            __builtin_shufflevector(high01, high23, 2, 3, 6, 7) };
    for (size_t v = 0; v < 4; v++) memcpy(dst + v * dst_stride, &out[v], sizeof out[v]);
#else
    for (size_t v = 0; v < 4; v++)
        for (size_t r = 0; r < 4; r++) memcpy(dst + v * dst_stride + 4 * r, (const uint8_t *)&src[r] + 4 * v, 4);
#endif
}

/* Where a group begins in the file, and how many rows it has there: GROUP_ROWS but for a matrix's last group. */
typedef struct group_source {
    const uint8_t *at;
    size_t row_bytes;
    size_t n_rows;
} group_source;

/* One half-precision number of each row, `at` bytes into the row: dst [16 rows]. */
static inline void pack_halves(uint8_t *dst, const group_source *src, size_t at) {
    for (size_t r = 0; r < src->n_rows; r++) memcpy(dst + 2 * r, src->at + r * src->row_bytes + at, 2);
    for (size_t r = src->n_rows; r < GROUP_ROWS; r++) memset(dst + 2 * r, 0, 2);
}

/* 16 bytes of each row, `at` bytes into the row: dst [4 quads][16 rows][4]. */
static inline void pack_quads(uint8_t *dst, const group_source *src, size_t at) {
    for (size_t first = 0; first < GROUP_ROWS; first += 4) {
        words4 rows[4] = { 0 };
        for (size_t r = first; r < size_min(first + 4, src->n_rows); r++)
            memcpy(&rows[r - first], src->at + r * src->row_bytes + at, sizeof *rows);
        transpose_words(dst + 4 * first, 4 * GROUP_ROWS, rows);
    }
}

static inline void pack_q8(uint8_t *dst, const group_source *src, size_t n_blocks) {
    for (size_t b = 0; b < n_blocks; b++, dst += Q8_BLOCK_BYTES) {
        pack_halves(dst, src, b * 34);
        pack_quads(dst + SCALES_BYTES, src, b * 34 + 2);
        pack_quads(dst + SCALES_BYTES + 4 * QUAD_BYTES, src, b * 34 + 18);
    }
}

/* Q4_0, Q4_1, IQ4_NL. The file's byte j holds elements j (low) and j + 16 (high): quads v and v + 4, as kernels.h wants
 * them. A block is its scales (2 bytes, Q4_1 4), then 16 bytes. */
static inline void pack_q4(uint8_t *dst, const group_source *src, size_t n_blocks, size_t n_halves) {
    const size_t block_bytes = 2 * n_halves + 16;
    for (size_t b = 0; b < n_blocks; b++) {
        for (size_t i = 0; i < n_halves; i++, dst += 2 * GROUP_ROWS) pack_halves(dst, src, b * block_bytes + 2 * i);
        pack_quads(dst, src, b * block_bytes + 2 * n_halves);
        dst += 4 * QUAD_BYTES;
    }
}

/* Bits 0..31 of one row's block to its part of the ones: bit v of byte j is bit 4v + j. */
static inline uint32_t ones_of_bits(uint32_t bits) {
    uint32_t ones = 0;
    /* The product puts bit j of a nibble to bit 8j (among others). */
    for (int v = 0; v < 8; v++) ones |= ((bits >> 4 * v & 15) * 0x00204081u & 0x01010101u) << v;
    return ones;
}

/* Q5_0, Q5_1: the scales, 4 bytes of high bits, 16 of nibbles as in Q4_0. */
static inline void pack_q5(uint8_t *dst, const group_source *src, size_t n_blocks, size_t n_halves) {
    const size_t block_bytes = 2 * n_halves + 20;
    for (size_t b = 0; b < n_blocks; b++) {
        for (size_t i = 0; i < n_halves; i++, dst += 2 * GROUP_ROWS) pack_halves(dst, src, b * block_bytes + 2 * i);
        pack_quads(dst, src, b * block_bytes + 2 * n_halves + 4);
        dst += NIBBLES_BYTES;
        for (size_t r = 0; r < GROUP_ROWS; r++, dst += 4) {
            uint32_t bits = 0;
            if (r < src->n_rows) memcpy(&bits, src->at + r * src->row_bytes + b * block_bytes + 2 * n_halves, 4);
            bits = ones_of_bits(bits);
            memcpy(dst, &bits, 4);
        }
    }
}

static inline void pack_floats(uint8_t *dst, const group_source *src, size_t k, size_t size) {
    for (size_t i = 0; i < k; i++, dst += GROUP_ROWS * size) {
        for (size_t r = 0; r < src->n_rows; r++) memcpy(dst + r * size, src->at + r * src->row_bytes + i * size, size);
        memset(dst + src->n_rows * size, 0, (GROUP_ROWS - src->n_rows) * size);
    }
}

/* ---- super-blocks of 256 ------------------------------------------------------------------------------------- */

enum { WORDS_MAX = 6, SCALES_MAX = 16 };

/* Where a file's super-block keeps what. */
typedef struct super_format {
    size_t bytes, d, scales, dmin, nibbles, twos, ones;
} super_format;

#define AT(block, part) offsetof(block, part)
#define K_FORMAT(block, ...)                                                                                           \
    (super_format) {                                                                                                   \
        sizeof(block), AT(block, scale), AT(block, scales), __VA_ARGS__                                                \
    }

static inline super_format super_format_of(pack_kind kind) {
    switch (kind) {
    case PACK_Q2K:
        return K_FORMAT(q2_k_block, .dmin = AT(q2_k_block, min), .twos = AT(q2_k_block, qs));
    case PACK_Q3K:
        return K_FORMAT(q3_k_block, .twos = AT(q3_k_block, qs), .ones = AT(q3_k_block, high));
    case PACK_Q4K:
        return K_FORMAT(q4_k_block, .dmin = AT(q4_k_block, min), .nibbles = AT(q4_k_block, qs));
    case PACK_Q5K:
        return K_FORMAT(q5_k_block, .dmin = AT(q5_k_block, min), .nibbles = AT(q5_k_block, qs),
                        .ones = AT(q5_k_block, high));
    case PACK_Q6K:
        return K_FORMAT(q6_k_block, .nibbles = AT(q6_k_block, low), .twos = AT(q6_k_block, high));
    default: /* PACK_IQ4K */
        return K_FORMAT(iq4_xs_block, .nibbles = AT(iq4_xs_block, qs));
    }
}

/* 4 words of nibbles of block b: byte j has element j low and element j + 16 high. In the file (but for IQ4_XS, which
 * has them so) 32 bytes hold two blocks, one in the low and one in the high halves: Q4_K's are neighbours, Q6_K's are
 * two apart. */
static inline void nibble_words(pack_kind kind, const uint8_t *nibbles, size_t b, uint32_t out[4]) {
    uint32_t in[8];
    if (kind == PACK_IQ4K) {
        memcpy(out, nibbles + 16 * b, 16);
        return;
    }
    const size_t part = kind == PACK_Q6K ? b / 4 * 2 + b % 2 : b / 2;
    const bool high = kind == PACK_Q6K ? b % 4 >= 2 : b % 2 != 0;
    memcpy(in, nibbles + 32 * part, sizeof in);
    for (size_t i = 0; i < 4; i++)
        out[i] = high ? (in[i] >> 4 & 0x0f0f0f0fu) | (in[i + 4] & 0xf0f0f0f0u)
                      : (in[i] & 0x0f0f0f0fu) | (in[i + 4] & 0x0f0f0f0fu) << 4;
}

/* 2 words of twos: in the file 32 bytes hold four blocks, two bits each. */
static inline void two_words(const uint8_t *twos, size_t b, uint32_t out[2]) {
    uint32_t in[8];
    memcpy(in, twos + b / 4 * 32, sizeof in);
    for (size_t i = 0; i < 2; i++) {
        out[i] = 0;
        for (size_t u = 0; u < 4; u++) out[i] |= (in[4 * i + u] >> b % 4 * 2 & 0x03030303u) << 2 * u;
    }
}

/* The word of ones: in the file 32 bytes hold all eight blocks, one bit each. */
static inline uint32_t one_word(const uint8_t *ones, size_t b) {
    uint32_t in[8], out = 0;
    memcpy(in, ones, sizeof in);
    for (size_t v = 0; v < 8; v++) out |= (in[v] >> b & 0x01010101u) << v;
    return out;
}

/* The codes of a row's super-block in the order of the packed ones; how many words. */
static inline size_t super_words(pack_kind kind, const uint8_t *src, uint32_t *words) {
    const super_format format = super_format_of(kind);
    size_t n = 0;
    for (size_t b = 0; b < SUPER_BLOCKS; b++) {
        if (kind_has_nibbles(kind)) {
            nibble_words(kind, src + format.nibbles, b, words + n);
            n += 4;
        }
        if (kind_has_twos(kind)) {
            two_words(src + format.twos, b, words + n);
            n += 2;
        }
        if (kind_has_ones(kind)) words[n++] = one_word(src + format.ones, b);
    }
    return n;
}

/* The scales of a row's super-block, those of a block side by side: Q4K and Q5K scale and min, Q6K, Q3K and Q2K the two
 * halves (of Q2K as they are, two numbers in a byte), IQ4K one for each. */
static inline void super_scales(pack_kind kind, const uint8_t *packed, uint8_t out[SCALES_MAX]) {
    if (kind == PACK_Q4K || kind == PACK_Q5K)
        affine_scales(packed, out);
    else if (kind == PACK_Q3K)
        q3_k_scales(packed, (int8_t *)out);
    else if (kind == PACK_IQ4K)
        iq4_xs_scales(packed, (int8_t *)out);
    else
        memcpy(out, packed, SCALES_MAX);
}

static inline void pack_super_head(pack_kind kind, uint8_t *dst, const group_source *src, size_t at) {
    const super_format format = super_format_of(kind);
    pack_halves(dst, src, at + format.d);
    if (kind_has_offset(kind)) pack_halves(dst + SCALES_BYTES, src, at + format.dmin);
    uint8_t *each = dst + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        uint8_t scales[SCALES_MAX] = { 0 };
        if (r < src->n_rows) super_scales(kind, src->at + r * src->row_bytes + at + format.scales, scales);
        for (size_t b = 0; b < SUPER_BLOCKS; b++) {
            if (kind == PACK_IQ4K)
                each[b * GROUP_ROWS + r] = scales[b];
            else if (kind_has_halves(kind))
                memcpy(each + (b * GROUP_ROWS + r) * 2, scales + 2 * b, 2);
            else {
                each[2 * b * GROUP_ROWS + r] = scales[2 * b];
                each[(2 * b + 1) * GROUP_ROWS + r] = scales[2 * b + 1];
            }
        }
    }
}

static inline void pack_super(pack_kind kind, uint8_t *dst, const group_source *src, size_t n_supers) {
    const pack_layout layout = pack_layout_of(kind);
    for (size_t i = 0; i < n_supers; i++) {
        const size_t at = i * super_format_of(kind).bytes, n_words = SUPER_BLOCKS * layout.block_bytes / QUAD_BYTES;
        pack_super_head(kind, dst, src, at);
        dst += layout.head_bytes;
        for (size_t first = 0; first < GROUP_ROWS; first += 4) {
            uint32_t words[4][SUPER_BLOCKS * WORDS_MAX] = { 0 };
            for (size_t r = first; r < size_min(first + 4, src->n_rows); r++)
                super_words(kind, src->at + r * src->row_bytes + at, words[r - first]);
            for (size_t v = 0; v < n_words; v += 4) {
                words4 rows[4];
                for (size_t r = 0; r < 4; r++) memcpy(&rows[r], &words[r][v], sizeof *rows);
                transpose_words(dst + v * QUAD_BYTES + 4 * first, QUAD_BYTES, rows);
            }
        }
        dst += SUPER_BLOCKS * layout.block_bytes;
    }
}

/* ---- a group --------------------------------------------------------------------------------------------------- */

static inline void pack_group(pack_kind kind, uint8_t *dst, const group_source *src, size_t k) {
    switch (kind) {
    case PACK_F32:
        pack_floats(dst, src, k, 4);
        break;
    case PACK_F16:
    case PACK_BF16:
        pack_floats(dst, src, k, 2);
        break;
    case PACK_Q8:
        pack_q8(dst, src, k / BLOCK_K);
        break;
    case PACK_Q4:
    case PACK_IQ4:
        pack_q4(dst, src, k / BLOCK_K, 1);
        break;
    case PACK_Q4M:
        pack_q4(dst, src, k / BLOCK_K, 2);
        break;
    case PACK_Q5:
        pack_q5(dst, src, k / BLOCK_K, 1);
        break;
    case PACK_Q5M:
        pack_q5(dst, src, k / BLOCK_K, 2);
        break;
#define PACK_SUPER(constant)                                                                                           \
    case constant:                                                                                                     \
        pack_super(constant, dst, src, k / SUPER_LEN);                                                                 \
        break;
        PACK_SUPER(PACK_IQ4K)
        PACK_SUPER(PACK_Q2K)
        PACK_SUPER(PACK_Q3K)
        PACK_SUPER(PACK_Q4K)
        PACK_SUPER(PACK_Q5K)
        PACK_SUPER(PACK_Q6K)
#undef PACK_SUPER
    case PACK_KINDS:
        break;
    }
}

void matrix_pack(const matrix *m, const uint8_t *src, size_t first, size_t n) {
    const size_t row_bytes = matrix_row_bytes(m);
    for (size_t g = first; g < first + n; g++) {
        const size_t row = g * GROUP_ROWS, n_rows = size_min(GROUP_ROWS, m->rows - row);
        uint8_t *const dst = m->data + g * m->group_bytes;
        const uint8_t *const at = src + row * row_bytes;
        /* The constant makes loops over rows disappear. */
        if (n_rows == GROUP_ROWS)
            pack_group(m->kind, dst, &(group_source){ at, row_bytes, GROUP_ROWS }, m->cols);
        else
            pack_group(m->kind, dst, &(group_source){ at, row_bytes, n_rows }, m->cols);
    }
}

/* ---- reading back ------------------------------------------------------------------------------------------ */

static float load_half(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return half_to_float(half);
}

/* Row r of a group of floats. */
static void read_row_float(pack_kind kind, const uint8_t *group, size_t r, size_t n, float *out) {
    for (size_t k = 0; k < n; k++) {
        const size_t at = k * GROUP_ROWS + r;
        uint16_t half = 0;
        if (kind == PACK_F32)
            memcpy(&out[k], group + at * 4, 4);
        else
            memcpy(&half, group + at * 2, 2);
        if (kind == PACK_F16) out[k] = half_to_float(half);
        if (kind == PACK_BF16) out[k] = bf16_to_float(half);
    }
}

static inline uint32_t word_at(const uint8_t *codes, size_t quad, size_t r) {
    uint32_t word;
    memcpy(&word, codes + quad * QUAD_BYTES + r * 4, sizeof word);
    return word;
}

/* The weights of row r of a block, before any scale; four codes at a time in a word. */
static inline void read_weights(const pack_kind kind, const uint8_t *codes, size_t r, int8_t out[BLOCK_K]) {
    const uint8_t *twos = codes + (kind_has_nibbles(kind) ? NIBBLES_BYTES : 0);
    const uint8_t *ones = twos + (kind_has_twos(kind) ? TWOS_BYTES : 0);
    for (size_t v = 0; v < 8; v++) {
        uint32_t word = 0;
        int shift = 0;
        if (kind == PACK_Q8) word = word_at(codes, v, r);
        if (kind_has_nibbles(kind)) {
            word = word_at(codes, v % 4, r) >> (v < 4 ? 0 : 4) & 0x0f0f0f0fu;
            shift = 4;
        }
        if (kind_has_twos(kind)) {
            word |= (word_at(twos, v / 4, r) >> v % 4 * 2 & 0x03030303u) << shift;
            shift += 2;
        }
        if (kind_has_ones(kind)) word |= (word_at(ones, 0, r) >> v & 0x01010101u) << shift;
        memcpy(out + 4 * v, &word, sizeof word);
    }
    if (kind_is_signed(kind) && kind != PACK_Q8)
        for (size_t k = 0; k < BLOCK_K; k++) out[k] = IQ4_VALUES[out[k]];
    else
        for (size_t k = 0; k < BLOCK_K; k++) out[k] = (int8_t)(out[k] - kind_code_offset(kind));
}

/* What 16 weights are multiplied by, and what is added then: half h of block b. */
typedef struct half_scale {
    float d, offset;
} half_scale;

static inline half_scale read_half_scale(const pack_kind kind, const uint8_t *head, size_t r, size_t b, size_t h) {
    const uint8_t *each = head + (kind_has_offset(kind) ? 2 : 1) * SCALES_BYTES;
    half_scale s = { load_half(head + 2 * r), 0 };
    if (kind_has_offset(kind)) s.offset = load_half(head + SCALES_BYTES + 2 * r);
    if (kind == PACK_IQ4K) s.d = s.d * (float)(int8_t)each[b * GROUP_ROWS + r];
    if (kind == PACK_Q4K || kind == PACK_Q5K) {
        s.d = s.d * (float)each[2 * b * GROUP_ROWS + r];
        s.offset = -(s.offset * (float)each[(2 * b + 1) * GROUP_ROWS + r]);
    }
    if (!kind_has_halves(kind)) return s;
    const uint8_t scale = each[(b * GROUP_ROWS + r) * 2 + h];
    s.d = s.d * (float)(kind == PACK_Q2K ? scale & 15 : (int8_t)scale);
    s.offset = -(s.offset * (float)(scale >> 4));
    return s;
}

/* Row r of a group of blocks, n super-blocks, in the file's own arithmetic. */
static inline void read_row_blocks(const pack_kind kind, const uint8_t *head, size_t r, size_t n, float *out) {
    const pack_layout layout = pack_layout_of(kind);
    int8_t weights[BLOCK_K];
    for (size_t i = 0; i < n; i++) {
        const uint8_t *codes = head + layout.head_bytes;
        for (size_t b = 0; b < layout.n_blocks; b++, codes += layout.block_bytes) {
            read_weights(kind, codes, r, weights);
            for (size_t h = 0; h < 2; h++, out += 16) {
                const half_scale s = read_half_scale(kind, head, r, b, h);
                for (size_t k = 0; k < 16; k++) {
                    const float product = s.d * (float)weights[16 * h + k];
                    out[k] = kind_has_offset(kind) ? product + s.offset : product;
                }
            }
        }
        head = codes;
    }
}

void matrix_read_row(const matrix *m, size_t row, float *out) {
    const uint8_t *group = m->data + row / GROUP_ROWS * m->group_bytes;
    const size_t r = row % GROUP_ROWS;
    switch (m->kind) {
#define READ_ROW(kind, name, unused)                                                                                   \
    case kind:                                                                                                         \
        read_row_blocks(kind, group, r, m->cols / (pack_layout_of(kind).n_blocks * BLOCK_K), out);                     \
        break;
        BLOCK_KINDS(READ_ROW, )
#undef READ_ROW
    default:
        read_row_float(m->kind, group, r, m->cols, out);
    }
}
