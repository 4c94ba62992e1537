/* fingerprint.c - a loaded model in, 64 bits that tell it from others out.                                 (rank 9)
 *
 * Covered is what logits depend on: the architecture with all of its metadata ("llama.*"), name, type and shape of
 * every tensor, all vectors (norms, biases, rotary frequencies), and of each matrix some rows, spread over it. Weights
 * count as the numbers that the file says, not as they are packed, so neither the instruction set nor the number of
 * threads nor the way of reading the file has a part in it, and later versions may pack them otherwise. Not covered:
 * the vocabulary, the chat template, names and licences; and a file in which someone changed single rows by hand.
 * Reading some rows of each matrix takes milliseconds; all of them would take seconds for a large model. */
#include "digest.h"
#include "model.h"
#include "model_load.h"
#include "pantheon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_IN_ALL = 4096, ROWS_PER_MATRIX = 16 };

typedef struct print {
    digest sum;
    size_t n_matrices, rows_each, index; /* in all; read of each; the current one */
    size_t cols;                         /* of the widest                         */
    float *row;                          /* [cols] */
} print;

/* Orders of metadata and tensors do not matter, so the digests of the entries are added up. */
static uint64_t metadata_value(const pn_gguf *gguf, const char *architecture) {
    static const char NAME[] = "general.architecture";
    const size_t prefix = strlen(architecture);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < pn_gguf_n_metadata(gguf); i++) {
        pn_metadata entry;
        if (pn_gguf_metadata(gguf, i, &entry) != PN_OK) continue; /* i is in range */
        const bool own =
            entry.key_len > prefix && memcmp(entry.key, architecture, prefix) == 0 && entry.key[prefix] == '.';
        const bool name = entry.key_len == sizeof NAME - 1 && memcmp(entry.key, NAME, sizeof NAME - 1) == 0;
        size_t len;
        const uint8_t *bytes = gguf_metadata_bytes(gguf, i, &len);
        if (own || name) sum += digest_of(bytes, len);
    }
    return sum;
}

static uint64_t directory_value(const pn_gguf *gguf) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < pn_gguf_n_tensors(gguf); i++) {
        pn_tensor_info info;
        digest d;
        if (pn_gguf_tensor(gguf, i, &info) != PN_OK) continue; /* i is in range */
        const uint64_t facts[] = { (uint64_t)info.type, info.dims[0], info.dims[1], info.dims[2], info.dims[3] };
        digest_init(&d);
        digest_add(&d, facts, sizeof facts);
        digest_add(&d, info.name, info.name_len);
        sum += digest_value(&d);
    }
    return sum;
}

/* A NaN may lose its payload on the way through a float. */
static void add_floats(print *p, float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i])) x[i] = NAN;
    digest_add(&p->sum, x, n * sizeof *x);
}

static void count_matrix(void *context, const matrix *m) {
    print *p = context;
    p->n_matrices++;
    p->cols = size_max(p->cols, m->cols);
}

static void add_matrix(void *context, const matrix *m) {
    print *p = context;
    const size_t shift = p->index++ * 37 % m->rows; /* not the same rows of all */
    for (size_t i = 0; i < p->rows_each; i++) {
        matrix_read_row(m, (size_t)(((uint64_t)i * m->rows + shift) / p->rows_each), p->row);
        add_floats(p, p->row, m->cols);
    }
}

static void ignore_vector(void *context, const float *x, size_t n) {
    (void)x;
    print *p = context;
    p->cols = size_max(p->cols, n);
}

static void add_vector(void *context, const float *x, size_t n) {
    print *p = context;
    memcpy(p->row, x, n * sizeof *x);
    add_floats(p, p->row, n);
}

static void add_rope(print *p, const rope *r) {
    for (size_t layers = 0; layers < r->n_layers; layers++)
        for (int is_long = 0; is_long <= r->has_long; is_long++) {
            const rope_table *table = &r->tables[layers][is_long];
            digest_add(&p->sum, table->frequencies, r->n_pairs * sizeof *table->frequencies);
            digest_add(&p->sum, &table->magnitude, sizeof table->magnitude);
        }
}

static int add_weights(print *p, const pn_model *model) {
    model_visit(model, count_matrix, ignore_vector, p);
    p->rows_each = ROWS_IN_ALL / size_max(p->n_matrices, 1);
    p->rows_each = size_max(1, size_min(p->rows_each, ROWS_PER_MATRIX));
    p->row = malloc(p->cols * sizeof *p->row);
    if (!p->row) return pn_fail(PN_ERR_MEMORY, "fingerprint: no memory for %zu floats", p->cols);
    const fp_env saved = fp_enter(); /* rows are computed */
    model_visit(model, add_matrix, add_vector, p);
    fp_leave(saved);
    free(p->row);
    return PN_OK;
}

int pn_model_fingerprint(pn_model *model, uint64_t *out) {
    if (!model || !out) return pn_fail(PN_ERR_ARGUMENT, "fingerprint: an argument is NULL");
    uint64_t value = atomic_load_explicit(&model->fingerprint, memory_order_relaxed);
    if (!value) { /* two threads at once find the same */
        print p = { .rows_each = 1 };
        const uint64_t header[] = { metadata_value(model->gguf, model->hp.spec->name), directory_value(model->gguf) };
        digest_init(&p.sum);
        digest_add(&p.sum, header, sizeof header);
        add_rope(&p, &model->rope);
        PN_TRY(add_weights(&p, model));
        value = digest_value(&p.sum);
        if (!value) value = 1; /* 0: not known yet */
        atomic_store_explicit(&model->fingerprint, value, memory_order_relaxed);
    }
    *out = value;
    return PN_OK;
}
