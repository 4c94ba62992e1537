/* model.c - path in, packed and checked weights out.                                                    (rank 8)
 *
 * Everything that the file says is checked before the first weight is read: hyper-parameters (arch.c), then names,
 * shapes and types of all tensors, then the vocabulary. Weights are copied into their packed form (weights.c), and the
 * file is closed: later changes of it cannot hurt. */
#include "model.h"

#include "mathf.h"
#include "pantheon.h"
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PN_USE_BLAS
#include <cblas.h>
#endif

enum { THREADS_MAX = 256 };

/* ---- binding: which tensor of the file is which slot ------------------------------------------------------- */

typedef struct binding {
    const pn_gguf *gguf;
    const hparams *hp;
    int64_t *tensors; /* [L + 1, SLOT_COUNT] index in the file or -1; row L holds the slots that exist once */
} binding;

static int64_t *binding_at(const binding *b, uint32_t layer, tensor_slot slot) {
    return &b->tensors[(size_t)(slot < SLOT_LAYER ? b->hp->n_layer : layer) * SLOT_COUNT + slot];
}

static int check_shape(const binding *b, const arch_tensor *spec, const char *name, const pn_tensor_info *info) {
    const size_t n_dims = strlen(spec->shape);
    bool same = (size_t)info->n_dims == n_dims;
    for (size_t d = 0; same && d < n_dims; d++) same = info->dims[d] == arch_dim(b->hp, spec->shape[d]);
    if (same) return PN_OK;
    return pn_fail(PN_ERR_CORRUPT, "tensor %s has shape [%llu, %llu, %llu, %llu]; expected [%llu, %llu]", name,
                   (unsigned long long)info->dims[0], (unsigned long long)info->dims[1],
                   (unsigned long long)info->dims[2], (unsigned long long)info->dims[3],
                   (unsigned long long)arch_dim(b->hp, spec->shape[0]),
                   (unsigned long long)(n_dims > 1 ? arch_dim(b->hp, spec->shape[1]) : 1));
}

static int check_type(const arch_tensor *spec, const char *name, const pn_tensor_info *info) {
    const bool is_matrix = strlen(spec->shape) == 2;
    if (is_matrix ? matrix_supports(info->type) : dtype_find(info->type) && dtype_find(info->type)->dequantize)
        return PN_OK;
    return pn_fail(PN_ERR_UNSUPPORTED,
                   "tensor %s has element type %s, which this version cannot multiply; "
                   "convert the file to q8_0 with another tool",
                   name, info->type_name);
}

static int bind_one(binding *b, const arch_tensor *spec, uint32_t layer, size_t *n_bound) {
    char name[80];
    pn_tensor_info info;
/* The pattern comes from the table in arch.c, never from a file. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof name, spec->name, layer);
#pragma GCC diagnostic pop
    const int64_t index = gguf_find_tensor(b->gguf, name);
    *binding_at(b, layer, spec->slot) = index;
    if (index < 0 && spec->required)
        return pn_fail(PN_ERR_CORRUPT, "tensor %s is missing: the file is damaged or was not converted completely",
                       name);
    if (index < 0) return PN_OK;
    PN_TRY(pn_gguf_tensor(b->gguf, (uint64_t)index, &info));
    PN_TRY(check_shape(b, spec, name, &info));
    PN_TRY(check_type(spec, name, &info));
    ++*n_bound;
    return PN_OK;
}

/* Name the first tensor that no slot took: ignoring one would compute something else than the file says. */
static int refuse_unbound(const binding *b) {
    const uint64_t n = pn_gguf_n_tensors(b->gguf);
    bool *bound = calloc(n ? n : 1, sizeof *bound);
    if (!bound) return pn_fail(PN_ERR_MEMORY, "load: no memory for a list of %llu tensors", (unsigned long long)n);
    for (size_t i = 0; i < (size_t)(b->hp->n_layer + 1) * SLOT_COUNT; i++)
        if (b->tensors[i] >= 0) bound[b->tensors[i]] = true;
    uint64_t first = 0;
    while (first < n && bound[first]) first++;
    free(bound);
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(b->gguf, first, &info));
    return pn_fail(PN_ERR_UNSUPPORTED,
                   "tensor %.*s is not part of architecture %s as this version knows it; a newer version may",
                   (int)size_min(info.name_len, 64), info.name, b->hp->spec->name);
}

static int bind_all(binding *b) {
    const arch_spec *spec = b->hp->spec;
    const size_t n = (size_t)(b->hp->n_layer + 1) * SLOT_COUNT;
    size_t n_bound = 0;
    b->tensors = malloc(n * sizeof *b->tensors);
    if (!b->tensors) return pn_fail(PN_ERR_MEMORY, "load: no memory for %zu tensor slots", n);
    for (size_t i = 0; i < n; i++) b->tensors[i] = -1;
    for (size_t i = 0; i < spec->n_tensors; i++) {
        const uint32_t n_times = spec->tensors[i].slot < SLOT_LAYER ? 1 : b->hp->n_layer;
        for (uint32_t layer = 0; layer < n_times; layer++) PN_TRY(bind_one(b, &spec->tensors[i], layer, &n_bound));
    }
    if (n_bound < pn_gguf_n_tensors(b->gguf)) return refuse_unbound(b);
    return PN_OK;
}

/* ---- reading the weights ----------------------------------------------------------------------------------- */

typedef struct loader {
    pn_model *model;
    const binding *bound;
    const pn_load_params *params;
    threads *pool; /* entered, or NULL */
    weight_list matrices;
    uint64_t vector_bytes, total; /* of the file */
} loader;

static int tell_progress(void *context, uint64_t matrix_bytes) {
    const loader *l = context;
    if (!l->params->progress) return PN_OK;
    const double fraction = (double)(l->vector_bytes + matrix_bytes) / (double)l->total;
    if (l->params->progress(l->params->progress_data, fraction))
        return pn_fail(PN_ERR_CANCELLED, "load: cancelled by the progress callback");
    return PN_OK;
}

/* Matrices are only listed here; they are packed together. */
static int load_matrix(loader *l, uint32_t layer, tensor_slot slot, matrix *out) {
    const int64_t index = *binding_at(l->bound, layer, slot);
    if (index < 0) return PN_OK; /* optional: stays empty */
    PN_TRY(weight_list_add(&l->matrices, (uint64_t)index, out));
    l->model->n_params += (uint64_t)out->rows * out->cols;
    return PN_OK;
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
    l->vector_bytes += info.size;
    return PN_OK;
}

static int load_layer(loader *l, uint32_t i) {
    layer_weights *w = &l->model->layers[i];
    PN_TRY(load_vector(l, i, SLOT_ATTN_NORM, &w->attn_norm));
    PN_TRY(load_matrix(l, i, SLOT_ATTN_Q, &w->q));
    PN_TRY(load_matrix(l, i, SLOT_ATTN_K, &w->k));
    PN_TRY(load_matrix(l, i, SLOT_ATTN_V, &w->v));
    PN_TRY(load_matrix(l, i, SLOT_ATTN_OUT, &w->out));
    PN_TRY(load_vector(l, i, SLOT_FFN_NORM, &w->ffn_norm));
    PN_TRY(load_matrix(l, i, SLOT_FFN_GATE, &w->gate));
    PN_TRY(load_matrix(l, i, SLOT_FFN_UP, &w->up));
    return load_matrix(l, i, SLOT_FFN_DOWN, &w->down);
}

/* Radians per position of each rotated pair: base^(-2i/R), divided by the file's factors and the linear scale. */
static int load_rope(loader *l) {
    pn_model *model = l->model;
    const hparams *hp = &model->hp;
    float *factors = NULL;
    int status = load_vector(l, 0, SLOT_ROPE_FACTORS, &factors);
    if (status == PN_OK) {
        model->rope_freqs = malloc(hp->n_rot / 2 * sizeof *model->rope_freqs);
        if (!model->rope_freqs) status = pn_fail(PN_ERR_MEMORY, "load: no memory for %u frequencies", hp->n_rot / 2);
    }
    for (uint32_t i = 0; status == PN_OK && i < hp->n_rot / 2; i++) {
        const double factor = factors ? (double)factors[i] : 1.0;
        if (!(factor >= 1e-2 && factor <= 1e6))
            status = pn_fail(PN_ERR_CORRUPT, "rope_freqs.weight[%u] is %g; it must be between 0.01 and 1e6", i, factor);
        else {
            const double exponent = -2.0 * i / hp->n_rot * log_f64((double)hp->rope_base);
            model->rope_freqs[i] = exp_f64(exponent) / factor / (double)hp->rope_scale;
        }
    }
    free(factors);
    return status;
}

static int load_weights(loader *l) {
    pn_model *model = l->model;
    for (uint64_t i = 0; i < pn_gguf_n_tensors(l->bound->gguf); i++) {
        pn_tensor_info info;
        PN_TRY(pn_gguf_tensor(l->bound->gguf, i, &info));
        l->total += info.size; /* no overlap within the file, so no overflow */
    }
    model->layers = calloc(model->hp.n_layer, sizeof *model->layers);
    if (!model->layers) return pn_fail(PN_ERR_MEMORY, "load: no memory for %u layers", model->hp.n_layer);
    PN_TRY(weight_list_init(&l->matrices, l->bound->gguf, (size_t)pn_gguf_n_tensors(l->bound->gguf)));
    PN_TRY(load_rope(l));
    PN_TRY(load_matrix(l, 0, SLOT_TOKEN_EMBD, &model->token_embd));
    for (uint32_t i = 0; i < model->hp.n_layer; i++) PN_TRY(load_layer(l, i));
    PN_TRY(load_vector(l, 0, SLOT_OUTPUT_NORM, &model->output_norm));
    PN_TRY(load_matrix(l, 0, SLOT_OUTPUT, &model->output));
    return weight_list_pack(&l->matrices, l->pool, tell_progress, l, &model->weights, &model->weights_size);
}

/* ---- the whole way ----------------------------------------------------------------------------------------- */

static int check_vocab(const pn_model *model) {
    const uint32_t n = pn_tokenizer_n_vocab(model->tokenizer);
    if (n == model->hp.n_vocab) return PN_OK;
    return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.tokens has %u entries, but token_embd.weight has %u rows", n,
                   model->hp.n_vocab);
}

static int model_bind_and_load(pn_model *model, const pn_load_params *params) {
    binding bound = { .gguf = model->gguf, .hp = &model->hp };
    loader l = { .model = model, .bound = &bound, .params = params };
    int status = bind_all(&bound);
    if (status == PN_OK) {
        model->tokenizer = pn_tokenizer_new(model->gguf);
        status = model->tokenizer ? check_vocab(model) : (int)pn_last_status();
    }
    if (status == PN_OK) status = threads_new(model->n_threads, &model->pool);
    if (status == PN_OK) {
        const fp_env saved = fp_enter(); /* rotary frequencies are computed here, rows of floats converted */
        l.pool = threads_enter(model->pool) ? model->pool : NULL;
        status = load_weights(&l);
        weight_list_free(&l.matrices);
        if (l.pool) threads_leave(l.pool);
        fp_leave(saved);
    }
    free(bound.tensors);
    return status;
}

/* One part of a model that was split over files has a header that looks complete and lacks most tensors. */
static int refuse_split(const pn_gguf *gguf) {
    uint32_t count = 0, number = 0;
    bool present;
    PN_TRY(gguf_get_u32(gguf, "split.count", &count, &present));
    if (!present || count < 2) return PN_OK;
    PN_TRY(gguf_get_u32(gguf, "split.no", &number, &present));
    return pn_fail(PN_ERR_UNSUPPORTED,
                   "split.count is %u: this is part %llu of a split model, which cannot be loaded in parts; merge them "
                   "into one file first (llama-gguf-split --merge)",
                   count, (unsigned long long)number + 1);
}

static int model_open(pn_model *model, const char *path, const pn_load_params *params) {
    if (!path) return pn_fail(PN_ERR_ARGUMENT, "load: path is NULL");
    if (params->n_threads < 0 || params->n_threads > THREADS_MAX)
        return pn_fail(PN_ERR_ARGUMENT, "load: n_threads is %d; it must be between 0 (default) and %d",
                       params->n_threads, THREADS_MAX);
    PN_TRY(kernels_pick(params->isa, &model->kernels));
    model->n_threads = params->n_threads ? params->n_threads : pn_default_threads(NULL, 0);
#ifdef PN_USE_BLAS
    model->use_blas = params->use_blas;
    if (model->use_blas) openblas_set_num_threads(1); /* the pool shares the work out */
#endif
    PN_TRY(gguf_open(path, params->use_mmap, &model->gguf));
    PN_TRY(refuse_split(model->gguf));
    PN_TRY(arch_read(model->gguf, &model->hp));
    PN_TRY(model_bind_and_load(model, params));
    return gguf_detach(model->gguf);
}

pn_load_params pn_load_defaults(void) {
    return (pn_load_params){ .use_mmap = true, .use_blas = true };
}

pn_model *pn_load_with(const char *path, const pn_load_params *params) {
    const pn_load_params defaults = pn_load_defaults();
    pn_model *model = calloc(1, sizeof *model);
    if (!model) {
        pn_fail(PN_ERR_MEMORY, "load: no memory for a model");
        return NULL;
    }
    atomic_init(&model->references, 1);
    scratch_list_init(&model->scratch);
    if (model_open(model, path, params ? params : &defaults) != PN_OK) {
        const pn_status status = pn_last_status();
        if (path && status != PN_ERR_ARGUMENT && status != PN_ERR_ISA && status != PN_ERR_CANCELLED)
            status_prefix(path);
        model_release(model);
        return NULL;
    }
    model->settling = settle_start(model->weights, model->weights_size);
    return model;
}

pn_model *pn_load(const char *path) {
    return pn_load_with(path, NULL);
}

static void layer_free(layer_weights *w) {
    free(w->attn_norm);
    free(w->ffn_norm);
}

static void model_destroy(pn_model *model) {
    settle_stop(model->settling);
    for (uint32_t i = 0; model->layers && i < model->hp.n_layer; i++) layer_free(&model->layers[i]);
    free(model->layers);
    free(model->output_norm);
    free(model->rope_freqs);
    free(model->weights);
    scratch_list_free(&model->scratch);
    threads_free(model->pool);
    pn_tokenizer_free(model->tokenizer);
    pn_gguf_free(model->gguf);
    free(model);
}

void model_retain(pn_model *model) {
    atomic_fetch_add_explicit(&model->references, 1, memory_order_relaxed);
}

void model_release(pn_model *model) {
    if (atomic_fetch_sub_explicit(&model->references, 1, memory_order_acq_rel) == 1) model_destroy(model);
}

void pn_free(pn_model *model) {
    if (model) model_release(model);
}

static uint64_t weight_bytes(const pn_model *model) {
    uint64_t sum = matrix_bytes(&model->token_embd) + matrix_bytes(&model->output) + 4u * model->hp.n_embd;
    for (uint32_t i = 0; i < model->hp.n_layer; i++) {
        const layer_weights *w = &model->layers[i];
        sum += matrix_bytes(&w->q) + matrix_bytes(&w->k) + matrix_bytes(&w->v) + matrix_bytes(&w->out) +
               matrix_bytes(&w->gate) + matrix_bytes(&w->up) + matrix_bytes(&w->down) + 8u * model->hp.n_embd;
    }
    return sum;
}

void pn_model_describe(const pn_model *model, pn_model_info *out) {
    const hparams *hp = &model->hp;
    *out = (pn_model_info){
        .n_vocab = hp->n_vocab,
        .n_context = hp->n_ctx,
        .n_embed = hp->n_embd,
        .n_layer = hp->n_layer,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .head_size = hp->head_size,
        .n_ff = hp->n_ff,
        .n_threads = model->n_threads,
        .blas = model->use_blas,
        .n_params = model->n_params,
        .weight_bytes = weight_bytes(model),
        .kv_bytes_per_token = (uint64_t)hp->n_layer * hp->n_head_kv * 2 * ((hp->head_size + 7) / 8 * 8) * 2,
    };
    snprintf(out->architecture, sizeof out->architecture, "%s", hp->spec->name);
    snprintf(out->isa, sizeof out->isa, "%s", model->kernels.isa);
}

const pn_tokenizer *pn_model_tokenizer(const pn_model *model) {
    return model->tokenizer;
}
const pn_gguf *pn_model_gguf(const pn_model *model) {
    return model->gguf;
}

const char *pn_version(void) {
    return "0.1.0";
}

bool pn_has_blas(void) {
#ifdef PN_USE_BLAS
    return true;
#else
    return false;
#endif
}
