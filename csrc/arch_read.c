/* arch_read.c - metadata in, hyper-parameters out, and the checks that each passes before it is used.       (rank 5)
 *
 * The second half of arch.h. Knows metadata keys; no weights, no arithmetic on them. Limits are generous (ten times
 * what any published model has) and keep every later product of dimensions inside 64 bits. What would change the result
 * and is not built is refused, never ignored. */
#include "arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "llama." + suffix. */
typedef struct key_name {
    char text[96];
} key_name;

static key_name key_of(const arch_spec *spec, const char *suffix) {
    key_name key;
    snprintf(key.text, sizeof key.text, "%s.%s", spec->name, suffix);
    return key;
}

/* An integer in [lo, hi]; `missing` is the value of an absent key, or -1 if it must be there. */
static int read_count(const pn_gguf *gguf, const arch_spec *spec, const char *suffix, uint32_t lo, uint32_t hi,
                      int64_t missing, uint32_t *out) {
    const key_name key = key_of(spec, suffix);
    bool present = true;
    PN_TRY(gguf_get_u32(gguf, key.text, out, missing < 0 ? NULL : &present));
    if (!present) {
        *out = (uint32_t)missing;
        return PN_OK;
    }
    if (*out < lo || *out > hi)
        return pn_fail(PN_ERR_METADATA, "%s is %u; it must be between %u and %u", key.text, *out, lo, hi);
    return PN_OK;
}

static int read_float(const pn_gguf *gguf, const arch_spec *spec, const char *suffix, float lo, float hi, float missing,
                      float *out) {
    const key_name key = key_of(spec, suffix);
    bool present = true;
    PN_TRY(gguf_get_f32(gguf, key.text, out, &present));
    if (!present) {
        *out = missing;
        return PN_OK;
    }
    if (!(*out >= lo && *out <= hi))
        return pn_fail(PN_ERR_METADATA, "%s is %g; it must be between %g and %g", key.text, (double)*out, (double)lo,
                       (double)hi);
    return PN_OK;
}

static int find_spec(const pn_gguf *gguf, const arch_spec **out) {
    const char *name;
    size_t len;
    PN_TRY(gguf_get_str(gguf, "general.architecture", &name, &len, NULL));
    *out = arch_find(name, len);
    if (*out) return PN_OK;
    return pn_fail(PN_ERR_UNSUPPORTED, "architecture \"%.*s\" is not supported; known: %s", (int)size_min(len, 64),
                   name, arch_known());
}

/* ---- what is not built ---------------------------------------------------------------------------------------- */

/* Keys of the format that change the result, with the values that do not: one or two numbers, or a dimension. */
static const struct {
    const char *suffix;
    double neutral[2];
    char dim;
} UNBUILT[] = {
    { "attention.causal", { 1, 1 }, 0 },
    { "attention.clamp_kqv", { 0, 0 }, 0 },
    { "attention.max_alibi_bias", { 0, 0 }, 0 },
    { "attention.output_scale", { 0, 1 }, 0 },
    { "attention.value_scale", { 0, 1 }, 0 },
    { "attention.temperature_scale", { 0, 0 }, 0 },
    { "attention.temperature_length", { 0, 0 }, 0 },
    { "attention.shared_kv_layers", { 0, 0 }, 0 },
    { "attention.rope_pattern", { NAN, NAN }, 0 },
    { "attention.key_length_swa", { NAN, NAN }, 'E' },
    { "attention.value_length_swa", { NAN, NAN }, 'E' },
    { "attn_logit_softcapping", { 0, 0 }, 0 },
    { "embedding_scale", { 1, 1 }, 0 },
    { "residual_scale", { 1, 1 }, 0 },
    { "logit_scale", { 0, 1 }, 0 },
    { "use_parallel_residual", { 0, 0 }, 0 },
    { "rope.dimension_count_swa", { NAN, NAN }, 'R' },
    { "rope.dimension_sections", { NAN, NAN }, 0 },
    { "rope.scaling.alpha", { 0, 0 }, 0 },
    { "rope.scaling.yarn_log_multiplier", { 0, 0 }, 0 },
    { "expert_shared_count", { 0, 0 }, 0 },
    { "expert_shared_feed_forward_length", { 0, 0 }, 0 },
    { "expert_feed_forward_length", { NAN, NAN }, 'F' },
    { "expert_group_count", { 0, 1 }, 0 },
    { "expert_gating_func", { 0, 1 }, 0 }, /* 1: softmax */
    { "expert_weights_norm", { 1, 1 }, 0 },
    { "expert_weights_scale", { 0, 1 }, 0 },
    { "leading_dense_block_count", { 0, 0 }, 0 },
    { "interleave_moe_layer_step", { 0, 1 }, 0 },
    { "nextn_predict_layers", { 0, 0 }, 0 },
    { "swiglu_clamp_exp", { NAN, NAN }, 0 },
};

static double number_of(const pn_metadata *value) {
    switch (value->type) {
    case PN_VALUE_F32:
    case PN_VALUE_F64:
        return value->f;
    case PN_VALUE_I8:
    case PN_VALUE_I16:
    case PN_VALUE_I32:
    case PN_VALUE_I64:
        return (double)value->i;
    case PN_VALUE_STRING:
    case PN_VALUE_ARRAY:
        return NAN;
    default:
        return (double)value->u;
    }
}

static int refuse_unbuilt(const pn_gguf *gguf, const hparams *hp) {
    for (size_t i = 0; i < PN_ARRAY_LEN(UNBUILT); i++) {
        const key_name key = key_of(hp->spec, UNBUILT[i].suffix);
        const int64_t index = gguf_find_metadata(gguf, key.text);
        if (index < 0) continue;
        pn_metadata value = { 0 };
        PN_TRY(pn_gguf_metadata(gguf, (uint64_t)index, &value));
        const double number = number_of(&value);
        if (number == UNBUILT[i].neutral[0] || number == UNBUILT[i].neutral[1]) continue;
        if (UNBUILT[i].dim && number == (double)arch_dim(hp, UNBUILT[i].dim)) continue;
        if (isnan(number))
            return pn_fail(PN_ERR_UNSUPPORTED, "%s is set: this version cannot compute what it asks for", key.text);
        return pn_fail(PN_ERR_UNSUPPORTED, "%s is %g: this version cannot compute what it asks for", key.text, number);
    }
    return PN_OK;
}

static int read_experts(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    PN_TRY(read_count(gguf, spec, "expert_count", 0, EXPERTS_MAX, 0, &hp->n_expert));
    if (!hp->n_expert) return PN_OK;
    if (!spec->experts)
        return pn_fail(PN_ERR_UNSUPPORTED, "%s.expert_count is %u: this version knows no experts of this architecture",
                       spec->name, hp->n_expert);
    const uint32_t n_matrices = hp->n_layer * EXPERT_SLOTS * hp->n_expert; /* both are bounded */
    if (n_matrices > EXPERT_MATRICES_MAX)
        return pn_fail(PN_ERR_METADATA, "%s.expert_count is %u: with %s.block_count %u that is %u matrices; at most %d",
                       spec->name, hp->n_expert, spec->name, hp->n_layer, n_matrices, EXPERT_MATRICES_MAX);
    return read_count(gguf, spec, "expert_used_count", 1, hp->n_expert, -1, &hp->n_expert_used);
}

/* ---- rotation -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    rope_scaling scaling;
} SCALINGS[] = {
    { "none", ROPE_SCALING_NONE },
    { "linear", ROPE_SCALING_LINEAR },
    { "yarn", ROPE_SCALING_YARN },
    { "longrope", ROPE_SCALING_LONGROPE },
};

/* Without a type a factor means linear scaling, as in older files. */
static int read_scaling_type(const pn_gguf *gguf, const arch_spec *spec, rope_scaling *out) {
    const key_name key = key_of(spec, "rope.scaling.type");
    const char *type;
    size_t len;
    bool present;
    *out = ROPE_SCALING_LINEAR;
    PN_TRY(gguf_get_str(gguf, key.text, &type, &len, &present));
    if (!present) return PN_OK;
    for (size_t i = 0; i < PN_ARRAY_LEN(SCALINGS); i++)
        if (strlen(SCALINGS[i].name) == len && !memcmp(SCALINGS[i].name, type, len)) {
            *out = SCALINGS[i].scaling;
            return PN_OK;
        }
    return pn_fail(PN_ERR_UNSUPPORTED, "%s is \"%.*s\"; known: none, linear, yarn, longrope", key.text,
                   (int)size_min(len, 32), type);
}

/* The keys of yarn. A stored attention factor stands for that of the paper's formula, as in transformers
 * (modeling_rope_utils.py), from whose configurations these keys are taken. */
static int read_yarn(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    if (hp->rope_base <= 1)
        return pn_fail(PN_ERR_METADATA, "%s.rope.freq_base is %g; yarn needs one above 1", spec->name,
                       (double)hp->rope_base);
    PN_TRY(read_float(gguf, spec, "rope.scaling.yarn_beta_fast", 1e-3f, 1e6f, 32.0f, &hp->yarn_beta_fast));
    PN_TRY(read_float(gguf, spec, "rope.scaling.yarn_beta_slow", 1e-3f, 1e6f, 1.0f, &hp->yarn_beta_slow));
    PN_TRY(read_float(gguf, spec, "rope.scaling.yarn_ext_factor", 0.0f, 1.0f, 1.0f, &hp->yarn_ext_factor));
    return read_float(gguf, spec, "rope.scaling.yarn_attn_factor", 1e-2f, 1e2f, 0.0f, &hp->yarn_magnitude);
}

static int read_rope_scaling(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    float old;
    PN_TRY(read_scaling_type(gguf, spec, &hp->scaling));
    PN_TRY(read_float(gguf, spec, "rope.scale_linear", 1e-2f, 1e6f, 0.0f, &old)); /* the key of older files */
    PN_TRY(read_float(gguf, spec, "rope.scaling.factor", 1e-2f, 1e6f, old, &hp->rope_factor));
    PN_TRY(read_count(gguf, spec, "rope.scaling.original_context_length", 2, 1u << 26, hp->n_ctx, &hp->rope_n_ctx));
    PN_TRY(read_float(gguf, spec, "rope.scaling.attn_factor", 1e-2f, 1e2f, 0.0f, &hp->rope_magnitude));
    return hp->scaling == ROPE_SCALING_YARN ? read_yarn(gguf, spec, hp) : PN_OK;
}

static int read_rope(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    PN_TRY(read_count(gguf, spec, "rope.dimension_count", 2, hp->head_size, hp->head_size, &hp->n_rot));
    if (hp->n_rot % 2)
        return pn_fail(PN_ERR_METADATA, "%s.rope.dimension_count is %u; it must be even", spec->name, hp->n_rot);
    PN_TRY(read_float(gguf, spec, "rope.freq_base", 1.0f, 1e12f, 10000.0f, &hp->rope_base));
    PN_TRY(read_float(gguf, spec, "rope.freq_base_swa", 1.0f, 1e12f, spec->local_rope_base, &hp->local_rope_base));
    return read_rope_scaling(gguf, spec, hp);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

static int read_heads(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    PN_TRY(read_count(gguf, spec, "attention.head_count", 1, 1024, -1, &hp->n_head));
    PN_TRY(read_count(gguf, spec, "attention.head_count_kv", 1, 1024, hp->n_head, &hp->n_head_kv));
    if (hp->n_head_kv > hp->n_head || hp->n_head % hp->n_head_kv)
        return pn_fail(PN_ERR_METADATA, "%s.attention.head_count_kv is %u; it must divide head_count %u", spec->name,
                       hp->n_head_kv, hp->n_head);
    PN_TRY(read_count(gguf, spec, "attention.key_length", 1, 1024, 0, &hp->head_size));
    if (!hp->head_size) {
        if (hp->n_embd % hp->n_head)
            return pn_fail(PN_ERR_METADATA, "%s.embedding_length %u is not a multiple of attention.head_count %u",
                           spec->name, hp->n_embd, hp->n_head);
        hp->head_size = hp->n_embd / hp->n_head;
        if (hp->head_size > 1024)
            return pn_fail(PN_ERR_METADATA, "%s.embedding_length %u makes heads of %u; at most 1024", spec->name,
                           hp->n_embd, hp->head_size);
    }
    uint32_t value_length;
    PN_TRY(read_count(gguf, spec, "attention.value_length", 1, 1024, hp->head_size, &value_length));
    if (value_length != hp->head_size)
        return pn_fail(PN_ERR_UNSUPPORTED, "%s.attention.value_length %u differs from the key length %u", spec->name,
                       value_length, hp->head_size);
    return PN_OK;
}

/* The scale of scores: the file's, or the architecture's. 0 in the file means that, too. */
static int read_attn_scale(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    const bool by_width = spec->width_scale_depth && hp->n_layer == spec->width_scale_depth;
    const uint32_t divisor = by_width ? hp->n_embd / hp->n_head : hp->head_size;
    if (!divisor)
        return pn_fail(PN_ERR_METADATA, "%s.embedding_length %u is below attention.head_count %u", spec->name,
                       hp->n_embd, hp->n_head);
    PN_TRY(read_float(gguf, spec, "attention.scale", 0.0f, 1e3f, 0.0f, &hp->attn_scale));
    if (!(hp->attn_scale > 0)) hp->attn_scale = 1.0f / sqrtf((float)divisor);
    return PN_OK;
}

/* Elements of the pattern are true for local layers: a bool or a number. */
static int read_flag(gguf_array *array, bool *out) {
    int32_t number = 0;
    if (array->element_type != PN_VALUE_BOOL) {
        PN_TRY(gguf_array_i32(array, &number));
    } else {
        if (!array->left || array->at == array->end)
            return pn_fail(PN_ERR_METADATA, "metadata key %s has too few elements", array->key);
        number = *array->at++;
        array->left--;
    }
    *out = number != 0;
    return PN_OK;
}

/* Which layers are local: as stored, layer by layer or as the number of layers of which the last is global; or by the
 * architecture. */
static int read_pattern(const pn_gguf *gguf, const hparams *hp, arch_layer *out) {
    const key_name key = key_of(hp->spec, "attention.sliding_window_pattern");
    const int64_t index = gguf_find_metadata(gguf, key.text);
    int64_t step = hp->spec->global_step;
    pn_metadata value = { 0 };
    if (index >= 0) PN_TRY(pn_gguf_metadata(gguf, (uint64_t)index, &value));
    if (index >= 0 && value.type == PN_VALUE_ARRAY) {
        gguf_array array;
        PN_TRY(gguf_get_array(gguf, key.text, &array, NULL));
        if (array.n != hp->n_layer)
            return pn_fail(PN_ERR_METADATA, "%s has %llu elements; block_count is %u", key.text,
                           (unsigned long long)array.n, hp->n_layer);
        for (uint32_t i = 0; i < hp->n_layer; i++) PN_TRY(read_flag(&array, &out[i].local));
        return PN_OK;
    }
    if (index >= 0) {
        uint32_t stored;
        PN_TRY(read_count(gguf, hp->spec, "attention.sliding_window_pattern", 0, 10000, -1, &stored));
        step = stored;
    }
    /* No window, or none that anybody would notice. */
    if (step == UNKNOWN_PATTERN && (!hp->window || hp->window >= hp->n_ctx)) step = 1;
    if (step == UNKNOWN_PATTERN)
        return pn_fail(PN_ERR_UNSUPPORTED,
                       "%s.attention.sliding_window is %u, but no sliding_window_pattern says which layers have it",
                       hp->spec->name, hp->window);
    for (uint32_t i = 0; i < hp->n_layer; i++) out[i].local = step == 0 || (int64_t)(i % step) != step - 1;
    return PN_OK;
}

int arch_read_layers(const pn_gguf *gguf, const hparams *hp, arch_layer *out) {
    const uint32_t step = hp->spec->unrotated_step;
    for (uint32_t i = 0; i < hp->n_layer; i++) out[i] = (arch_layer){ .rotated = !step || (i + 1) % step != 0 };
    PN_TRY(read_pattern(gguf, hp, out));
    for (uint32_t i = 0; i < hp->n_layer; i++) out[i].local &= hp->window != 0;
    return PN_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static int read_vocab(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    const int64_t index = gguf_find_tensor(gguf, "token_embd.weight");
    pn_tensor_info info;
    if (index < 0) return pn_fail(PN_ERR_CORRUPT, "tensor token_embd.weight is missing");
    PN_TRY(pn_gguf_tensor(gguf, (uint64_t)index, &info));
    if (info.n_dims != 2 || info.dims[1] > 4000000)
        return pn_fail(PN_ERR_CORRUPT,
                       "token_embd.weight has %d dimensions and %llu rows; expected 2 and at most 4000000", info.n_dims,
                       (unsigned long long)info.dims[1]);
    hp->n_vocab = (uint32_t)info.dims[1];
    uint32_t stated;
    PN_TRY(read_count(gguf, spec, "vocab_size", 1, UINT32_MAX, hp->n_vocab, &stated));
    if (stated != hp->n_vocab)
        return pn_fail(PN_ERR_METADATA, "%s.vocab_size is %u, but token_embd.weight has %u rows", spec->name, stated,
                       hp->n_vocab);
    return PN_OK;
}

int arch_read(const pn_gguf *gguf, hparams *out) {
    const arch_spec *spec;
    PN_TRY(find_spec(gguf, &spec));
    hparams hp = { .spec = spec };
    PN_TRY(read_count(gguf, spec, "block_count", 1, 10000, -1, &hp.n_layer));
    PN_TRY(read_count(gguf, spec, "context_length", 1, 1u << 26, -1, &hp.n_ctx));
    PN_TRY(read_count(gguf, spec, "embedding_length", 1, 1u << 20, -1, &hp.n_embd));
    PN_TRY(read_count(gguf, spec, "feed_forward_length", 1, 1u << 21, -1, &hp.n_ff));
    PN_TRY(read_heads(gguf, spec, &hp));
    PN_TRY(read_experts(gguf, spec, &hp));
    PN_TRY(read_rope(gguf, spec, &hp));
    PN_TRY(read_float(gguf, spec, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, 1e-5f, &hp.rms_eps));
    PN_TRY(read_attn_scale(gguf, spec, &hp));
    PN_TRY(read_count(gguf, spec, "attention.sliding_window", 0, UINT32_MAX, 0, &hp.window));
    PN_TRY(read_float(gguf, spec, "final_logit_softcapping", 0.0f, 1e6f, 0.0f, &hp.logit_cap));
    hp.embd_scale = spec->scales_embeddings ? sqrtf((float)hp.n_embd) : 1.0f;
    PN_TRY(refuse_unbuilt(gguf, &hp));
    PN_TRY(read_vocab(gguf, spec, &hp));
    *out = hp;
    return PN_OK;
}
