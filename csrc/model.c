/* model.c - path in, packed and checked weights out.                                                    (rank 8)
 *
 * Everything that the file says is checked before the first weight is read: hyper-parameters (arch_read.c), then names,
 * shapes and types of all tensors (model_load.c), then the vocabulary. Weights are copied into their packed form, and
 * the file is closed: later changes of it cannot hurt. */
#include "model.h"

#include "kv.h"
#include "model_load.h"
#include "pantheon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PN_USE_BLAS
#include <cblas.h>
#endif

enum { THREADS_MAX = 256 };

/* ---- the whole way ----------------------------------------------------------------------------------------- */

static int check_vocab(const pn_model *model) {
    const uint32_t n = pn_tokenizer_n_vocab(model->tokenizer);
    if (n == model->hp.n_vocab) return PN_OK;
    return pn_fail(PN_ERR_METADATA, "tokenizer.ggml.tokens has %u entries, but token_embd.weight has %u rows", n,
                   model->hp.n_vocab);
}

static int model_bind_and_load(pn_model *model, const pn_load_params *params) {
    binding bound = { 0 };
    int status = model_make_layers(model, model->gguf);
    if (status == PN_OK) status = binding_make(&bound, model->gguf, &model->hp);
    if (status == PN_OK) {
        model->tokenizer = pn_tokenizer_new(model->gguf);
        status = model->tokenizer ? check_vocab(model) : (int)pn_last_status();
    }
    if (status == PN_OK) status = threads_new(model->n_threads, &model->pool);
    if (status == PN_OK) {
        threads *pool = threads_enter(model->pool) ? model->pool : NULL;
        status = model_load_weights(model, &bound, params, pool);
        if (pool) threads_leave(pool);
    }
    binding_free(&bound);
    return status;
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
    const fp_env saved = fp_enter(); /* scales and rotary frequencies are computed here, rows of floats converted */
    int status = arch_read(model->gguf, &model->hp);
    if (status == PN_OK) status = model_bind_and_load(model, params);
    fp_leave(saved);
    return status == PN_OK ? gguf_detach(model->gguf) : status;
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
    atomic_init(&model->fingerprint, 0);
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

static void model_destroy(pn_model *model) {
    settle_stop(model->settling);
    for (uint32_t i = 0; model->layers && i < model->hp.n_layer; i++) model_free_layer(&model->layers[i]);
    free(model->layers);
    free(model->output_norm);
    rope_free(&model->rope);
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
        .weight_bytes = model->weight_bytes,
        .kv_bytes_per_token = kv_position_bytes(hp->n_layer, hp->n_head_kv, hp->head_size),
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
