/* model_load.c - names, shapes and types of all tensors are checked; then their weights are read and packed.  (rank 8)
 *
 * Knows the slots of the architecture table, not its rows: what an architecture lacks is not bound and stays empty.
 * Several slots may hold parts of one matrix, and one tensor may hold several matrices: rows are whole in every element
 * type, so parts are ranges of rows. */
#include "model_load.h"

#include "weights.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- binding: which tensor of the file is which slot ------------------------------------------------------- */

static int64_t *binding_at(const binding *b, uint32_t layer, tensor_slot slot) {
    return &b->tensors[(size_t)(slot < SLOT_LAYER ? b->hp->n_layer : layer) * SLOT_COUNT + slot];
}

typedef struct shape_text {
    char text[96];
} shape_text;

static shape_text shape_of(const uint64_t *dims, size_t n) {
    shape_text shape = { "[" };
    size_t at = 1;
    for (size_t d = 0; d < n; d++)
        at += (size_t)snprintf(shape.text + at, sizeof shape.text - at, "%llu%s", (unsigned long long)dims[d],
                               d + 1 < n ? ", " : "]");
    return shape;
}

static int check_shape(const binding *b, const char *shape, const char *name, const pn_tensor_info *info) {
    uint64_t expected[4] = { 1, 1, 1, 1 };
    const size_t n_dims = strlen(shape);
    bool same = (size_t)info->n_dims == n_dims;
    for (size_t d = 0; d < n_dims; d++) {
        expected[d] = arch_dim(b->hp, shape[d]);
        same = same && info->dims[d] == expected[d];
    }
    if (same) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT, "tensor %s has shape %s; expected %s", name, shape_of(info->dims, 4).text,
                   shape_of(expected, n_dims < 2 ? 2 : n_dims).text);
}

static int check_type(const char *shape, const char *name, const pn_tensor_info *info) {
    const bool is_matrix = strlen(shape) >= 2;
    if (is_matrix ? matrix_supports(info->type) : dtype_find(info->type) && dtype_find(info->type)->dequantize)
        return PN_OK;
    return pn_fail(PN_ERR_UNSUPPORTED,
                   "tensor %s has element type %s, which this version cannot multiply; "
                   "convert the file to q8_0 with another tool",
                   name, info->type_name);
}

/* Find and check a tensor: its index or -1. */
static int find_tensor(const binding *b, const char *name, const char *shape, int64_t *index) {
    pn_tensor_info info;
    *index = gguf_find_tensor(b->gguf, name);
    if (*index < 0) return PN_OK;
    PN_TRY(pn_gguf_tensor(b->gguf, (uint64_t)*index, &info));
    PN_TRY(check_shape(b, shape, name, &info));
    return check_type(shape, name, &info);
}

static int fail_missing(const char *name) {
    return pn_fail(PN_ERR_CORRUPT, "tensor %s is missing: the file is damaged or was not converted completely", name);
}

typedef struct tensor_name {
    char text[96];
} tensor_name;

/* The pattern comes from the tables in arch.c, never from a file. */
static tensor_name name_of(const char *pattern, uint32_t layer, uint32_t expert) {
    tensor_name name;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
    snprintf(name.text, sizeof name.text, pattern, layer, expert);
#pragma GCC diagnostic pop
    return name;
}

static int bind_one(binding *b, const arch_tensor *spec, uint32_t layer, size_t *n_bound) {
    const tensor_name name = name_of(spec->name, layer, 0);
    int64_t *index = binding_at(b, layer, spec->slot);
    PN_TRY(find_tensor(b, name.text, spec->shape, index));
    if (*index < 0 && spec->required) return fail_missing(name.text);
    *n_bound += *index >= 0;
    return PN_OK;
}

static int64_t *experts_at(const binding *b, uint32_t layer, expert_slot slot) {
    return &b->experts[((size_t)layer * EXPERT_SLOTS + slot) * b->hp->n_expert];
}

/* One tensor for all, or one for each. */
static int bind_experts(binding *b, uint32_t layer, expert_slot slot, size_t *n_bound) {
    const arch_experts *spec = &b->hp->spec->experts[slot];
    const tensor_name merged = name_of(spec->merged, layer, 0);
    const char shape[] = { spec->shape[0], spec->shape[1], 'X', 0 };
    int64_t *indices = experts_at(b, layer, slot), index;
    PN_TRY(find_tensor(b, merged.text, shape, &index));
    *n_bound += index >= 0;
    for (uint32_t expert = 0; expert < b->hp->n_expert; expert++) {
        indices[expert] = index + 1;
        if (index >= 0) continue;
        const tensor_name name = name_of(spec->each, layer, expert);
        int64_t own;
        PN_TRY(find_tensor(b, name.text, spec->shape, &own));
        if (own < 0) return fail_missing(expert ? name.text : merged.text);
        indices[expert] = own + 1;
        ++*n_bound;
    }
    return PN_OK;
}

static size_t n_expert_tensors(const hparams *hp) {
    return (size_t)hp->n_layer * EXPERT_SLOTS * hp->n_expert;
}

/* Name the first tensor that no slot took: ignoring one would compute something else than the file says. */
static int refuse_unbound(const binding *b) {
    const uint64_t n = pn_gguf_n_tensors(b->gguf);
    bool *bound = calloc(n ? n : 1, sizeof *bound);
    if (!bound) return pn_fail(PN_ERR_MEMORY, "load: no memory for a list of %llu tensors", (unsigned long long)n);
    for (size_t i = 0; i < (size_t)(b->hp->n_layer + 1) * SLOT_COUNT; i++)
        if (b->tensors[i] >= 0) bound[b->tensors[i]] = true;
    for (size_t i = 0; i < n_expert_tensors(b->hp); i++) bound[b->experts[i] - 1] = true;
    uint64_t first = 0;
    while (first < n && bound[first]) first++;
    free(bound);
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(b->gguf, first, &info));
    return pn_fail(PN_ERR_UNSUPPORTED,
                   "tensor %.*s is not part of architecture %s as this version knows it; a newer version may",
                   (int)size_min(info.name_len, 64), info.name, b->hp->spec->name);
}

static bool is_used(const arch_tensor *spec, const hparams *hp) {
    return spec->use == USE_ALWAYS || (spec->use == USE_EXPERTS) == (hp->n_expert > 0);
}

int binding_make(binding *b, const pn_gguf *gguf, const hparams *hp) {
    *b = (binding){ .gguf = gguf, .hp = hp };
    const arch_spec *spec = hp->spec;
    const size_t n = (size_t)(hp->n_layer + 1) * SLOT_COUNT, n_experts = n_expert_tensors(hp);
    size_t n_bound = 0;
    b->tensors = malloc(n * sizeof *b->tensors);
    b->experts = calloc(n_experts ? n_experts : 1, sizeof *b->experts);
    if (!b->tensors || !b->experts)
        return pn_fail(PN_ERR_MEMORY, "load: no memory for %zu tensor slots", n + n_experts);
    for (size_t i = 0; i < n; i++) b->tensors[i] = -1;
    for (size_t i = 0; i < spec->n_tensors; i++) {
        const arch_tensor *tensor = &spec->tensors[i];
        const uint32_t n_times = tensor->slot < SLOT_LAYER ? 1 : hp->n_layer;
        for (uint32_t layer = 0; is_used(tensor, hp) && layer < n_times; layer++)
            PN_TRY(bind_one(b, tensor, layer, &n_bound));
    }
    for (uint32_t layer = 0; hp->n_expert && layer < hp->n_layer; layer++)
        for (int slot = 0; slot < EXPERT_SLOTS; slot++) PN_TRY(bind_experts(b, layer, (expert_slot)slot, &n_bound));
    if (n_bound < pn_gguf_n_tensors(gguf)) return refuse_unbound(b);
    return PN_OK;
}

void binding_free(binding *b) {
    free(b->tensors);
    free(b->experts);
    b->tensors = b->experts = NULL;
}

/* ---- reading the weights ----------------------------------------------------------------------------------- */

/* A matrix of a layer is these rows of a slot's tensor: as many as the letter says, behind those of the letters before.
 */
static const struct {
    tensor_slot slot;
    size_t member; /* of layer_weights */
    const char *before;
    char rows;
} LAYER_MATRICES[] = {
    { SLOT_ATTN_Q, offsetof(layer_weights, q), "", 'Q' },
    { SLOT_ATTN_K, offsetof(layer_weights, k), "", 'K' },
    { SLOT_ATTN_V, offsetof(layer_weights, v), "", 'K' },
    { SLOT_ATTN_QKV, offsetof(layer_weights, q), "", 'Q' },
    { SLOT_ATTN_QKV, offsetof(layer_weights, k), "Q", 'K' },
    { SLOT_ATTN_QKV, offsetof(layer_weights, v), "QK", 'K' },
    { SLOT_ATTN_OUT, offsetof(layer_weights, out), "", 'D' },
    { SLOT_FFN_GATE, offsetof(layer_weights, gate), "", 'F' },
    { SLOT_FFN_UP, offsetof(layer_weights, up), "", 'F' },
    { SLOT_FFN_GATE_UP, offsetof(layer_weights, gate), "", 'F' },
    { SLOT_FFN_GATE_UP, offsetof(layer_weights, up), "F", 'F' },
    { SLOT_FFN_DOWN, offsetof(layer_weights, down), "", 'D' },
    { SLOT_ROUTER, offsetof(layer_weights, router), "", 'X' },
};

/* A vector of a layer is all of a slot's tensor. */
static const struct {
    tensor_slot slot;
    size_t member; /* of layer_weights */
} LAYER_VECTORS[] = {
    { SLOT_ATTN_NORM, offsetof(layer_weights, attn_norm) },
    { SLOT_ATTN_Q_BIAS, offsetof(layer_weights, q_bias) },
    { SLOT_ATTN_K_BIAS, offsetof(layer_weights, k_bias) },
    { SLOT_ATTN_V_BIAS, offsetof(layer_weights, v_bias) },
    { SLOT_ATTN_Q_NORM, offsetof(layer_weights, q_norm) },
    { SLOT_ATTN_K_NORM, offsetof(layer_weights, k_norm) },
    { SLOT_ATTN_OUT_BIAS, offsetof(layer_weights, out_bias) },
    { SLOT_ATTN_POST_NORM, offsetof(layer_weights, attn_post_norm) },
    { SLOT_FFN_NORM, offsetof(layer_weights, ffn_norm) },
    { SLOT_FFN_GATE_BIAS, offsetof(layer_weights, gate_bias) },
    { SLOT_FFN_UP_BIAS, offsetof(layer_weights, up_bias) },
    { SLOT_FFN_DOWN_BIAS, offsetof(layer_weights, down_bias) },
    { SLOT_FFN_POST_NORM, offsetof(layer_weights, ffn_post_norm) },
};

static matrix *matrix_of(layer_weights *w, size_t member) {
    return (matrix *)(void *)((char *)w + member);
}

static float **vector_of(layer_weights *w, size_t member) {
    return (float **)(void *)((char *)w + member);
}

typedef struct loader {
    pn_model *model;
    const binding *bound;
    const pn_load_params *params;
    weight_list matrices;
    uint64_t vector_bytes, total; /* of the file */
} loader;

static int tell_progress(void *context, uint64_t matrix_bytes_done) {
    const loader *l = context;
    if (!l->params->progress) return PN_OK;
    const double fraction = (double)(l->vector_bytes + matrix_bytes_done) / (double)l->total;
    if (l->params->progress(l->params->progress_data, fraction))
        return pn_fail(PN_ERR_CANCELLED, "load: cancelled by the progress callback");
    return PN_OK;
}

/* Matrices are only listed here; they are packed together. */
static int load_rows(loader *l, int64_t tensor, uint64_t row, uint64_t n_rows, matrix *out) {
    PN_TRY(weight_list_add(&l->matrices, (uint64_t)tensor, row, n_rows, out));
    l->model->n_params += (uint64_t)out->rows * out->cols;
    l->model->weight_bytes += matrix_bytes(out);
    return PN_OK;
}

/* The whole of a slot that exists once. */
static int load_matrix(loader *l, tensor_slot slot, char rows, matrix *out) {
    const int64_t index = *binding_at(l->bound, 0, slot);
    if (index < 0) return PN_OK; /* optional: stays empty */
    return load_rows(l, index, 0, arch_dim(l->bound->hp, rows), out);
}

static int load_vector(loader *l, uint32_t layer, tensor_slot slot, float **out) {
    const int64_t index = *binding_at(l->bound, layer, slot);
    pn_tensor_info info;
    if (index < 0) return PN_OK;
    PN_TRY(pn_gguf_tensor(l->bound->gguf, (uint64_t)index, &info));
    *out = malloc((size_t)info.dims[0] * sizeof **out);
    if (!*out) return pn_fail(PN_ERR_MEMORY, "load: no memory for %llu floats", (unsigned long long)info.dims[0]);
    PN_TRY(pn_gguf_read_rows(l->bound->gguf, (uint64_t)index, 0, 1, *out));
    l->model->n_params += info.dims[0];
    l->model->weight_bytes += info.dims[0] * sizeof **out;
    l->vector_bytes += info.size;
    return PN_OK;
}

static int load_experts(loader *l, uint32_t layer) {
    static const size_t members[EXPERT_SLOTS] = { [EXPERT_GATE] = offsetof(expert_weights, gate),
                                                  [EXPERT_UP] = offsetof(expert_weights, up),
                                                  [EXPERT_DOWN] = offsetof(expert_weights, down) };
    const hparams *hp = l->bound->hp;
    expert_weights *experts = calloc(hp->n_expert, sizeof *experts);
    l->model->layers[layer].experts = experts;
    if (!experts) return pn_fail(PN_ERR_MEMORY, "load: no memory for %u experts", hp->n_expert);
    for (int slot = 0; slot < EXPERT_SLOTS; slot++) {
        const int64_t *indices = experts_at(l->bound, layer, (expert_slot)slot);
        const uint64_t n_rows = arch_dim(hp, hp->spec->experts[slot].shape[1]);
        uint64_t row = 0;
        for (uint32_t i = 0; i < hp->n_expert; i++) {
            row = i && indices[i] == indices[i - 1] ? row + n_rows : 0; /* the next one of a merged tensor */
            matrix *out = (matrix *)(void *)((char *)&experts[i] + members[slot]);
            PN_TRY(load_rows(l, indices[i] - 1, row, n_rows, out));
        }
    }
    return PN_OK;
}

static int load_layer(loader *l, uint32_t layer) {
    const hparams *hp = l->bound->hp;
    layer_weights *w = &l->model->layers[layer];
    for (size_t i = 0; i < PN_ARRAY_LEN(LAYER_VECTORS); i++)
        PN_TRY(load_vector(l, layer, LAYER_VECTORS[i].slot, vector_of(w, LAYER_VECTORS[i].member)));
    for (size_t i = 0; i < PN_ARRAY_LEN(LAYER_MATRICES); i++) {
        const int64_t index = *binding_at(l->bound, layer, LAYER_MATRICES[i].slot);
        uint64_t row = 0;
        if (index < 0) continue;
        for (const char *letter = LAYER_MATRICES[i].before; *letter; letter++) row += arch_dim(hp, *letter);
        PN_TRY(load_rows(l, index, row, arch_dim(hp, LAYER_MATRICES[i].rows), matrix_of(w, LAYER_MATRICES[i].member)));
    }
    return hp->n_expert ? load_experts(l, layer) : PN_OK;
}

static int load_rope(loader *l) {
    float *any = NULL, *long_context = NULL, *short_context = NULL;
    int status = load_vector(l, 0, SLOT_ROPE_FREQS, &any);
    if (status == PN_OK) status = load_vector(l, 0, SLOT_ROPE_LONG, &long_context);
    if (status == PN_OK) status = load_vector(l, 0, SLOT_ROPE_SHORT, &short_context);
    if (status == PN_OK) {
        const rope_factors factors = { any, long_context, short_context };
        status = rope_init(&l->model->rope, &l->model->hp, &factors);
    }
    free(any);
    free(long_context);
    free(short_context);
    return status;
}

int model_make_layers(pn_model *model, const pn_gguf *gguf) {
    const uint32_t n = model->hp.n_layer;
    model->layers = calloc(n, sizeof *model->layers);
    arch_layer *kinds = calloc(n, sizeof *kinds);
    int status = PN_OK;
    if (!model->layers || !kinds) status = pn_fail(PN_ERR_MEMORY, "load: no memory for %u layers", n);
    if (status == PN_OK) status = arch_read_layers(gguf, &model->hp, kinds);
    for (uint32_t i = 0; status == PN_OK && i < n; i++) model->layers[i].kind = kinds[i];
    free(kinds);
    return status;
}

static int load_all(loader *l) {
    pn_model *model = l->model;
    const uint32_t n_layer = model->hp.n_layer;
    for (uint64_t i = 0; i < pn_gguf_n_tensors(l->bound->gguf); i++) {
        pn_tensor_info info;
        PN_TRY(pn_gguf_tensor(l->bound->gguf, i, &info));
        l->total += info.size; /* no overlap within the file, so no overflow */
    }
    const size_t most = 2 + (size_t)n_layer * PN_ARRAY_LEN(LAYER_MATRICES) + n_expert_tensors(&model->hp);
    PN_TRY(weight_list_init(&l->matrices, l->bound->gguf, most));
    PN_TRY(load_rope(l));
    PN_TRY(load_matrix(l, SLOT_TOKEN_EMBD, 'V', &model->token_embd));
    for (uint32_t i = 0; i < n_layer; i++) PN_TRY(load_layer(l, i));
    PN_TRY(load_vector(l, 0, SLOT_OUTPUT_NORM, &model->output_norm));
    return load_matrix(l, SLOT_OUTPUT, 'V', &model->output);
}

int model_load_weights(pn_model *model, const binding *b, const pn_load_params *params, threads *pool) {
    loader l = { .model = model, .bound = b, .params = params };
    int status = load_all(&l);
    if (status == PN_OK)
        status = weight_list_pack(&l.matrices, pool, tell_progress, &l, &model->weights, &model->weights_size);
    weight_list_free(&l.matrices);
    return status;
}

/* How many elements a vector of a layer has. */
static size_t vector_length(const hparams *hp, tensor_slot slot) {
    size_t i = 0;
    while (i < hp->spec->n_tensors && hp->spec->tensors[i].slot != slot) i++;
    return i < hp->spec->n_tensors ? (size_t)arch_dim(hp, hp->spec->tensors[i].shape[0]) : 0;
}

/* Some matrices come from either of two slots. */
static bool is_first_of_member(size_t i) {
    size_t first = 0;
    while (LAYER_MATRICES[first].member != LAYER_MATRICES[i].member) first++;
    return first == i;
}

void model_visit(const pn_model *model, void (*visit_matrix)(void *context, const matrix *m),
                 void (*visit_vector)(void *context, const float *x, size_t n), void *context) {
    const hparams *hp = &model->hp;
    visit_matrix(context, &model->token_embd);
    for (uint32_t layer = 0; layer < hp->n_layer; layer++) {
        layer_weights *w = &model->layers[layer];
        for (size_t i = 0; i < PN_ARRAY_LEN(LAYER_VECTORS); i++) {
            const float *x = *vector_of(w, LAYER_VECTORS[i].member);
            if (x) visit_vector(context, x, vector_length(hp, LAYER_VECTORS[i].slot));
        }
        for (size_t i = 0; i < PN_ARRAY_LEN(LAYER_MATRICES); i++) {
            const matrix *m = matrix_of(w, LAYER_MATRICES[i].member);
            if (m->data && is_first_of_member(i)) visit_matrix(context, m);
        }
        for (uint32_t i = 0; w->experts && i < hp->n_expert; i++) {
            visit_matrix(context, &w->experts[i].gate);
            visit_matrix(context, &w->experts[i].up);
            visit_matrix(context, &w->experts[i].down);
        }
    }
    visit_vector(context, model->output_norm, hp->n_embd);
    if (model->output.data) visit_matrix(context, &model->output);
}

void model_free_layer(layer_weights *w) {
    for (size_t i = 0; i < PN_ARRAY_LEN(LAYER_VECTORS); i++) free(*vector_of(w, LAYER_VECTORS[i].member));
    free(w->experts);
}
