/* arch.c - one row per architecture, and the checks that every hyper-parameter passes before it is used.    (rank 5)
 *
 * Knows metadata keys and tensor names; no weights, no arithmetic on them. Limits are generous (ten times what any
 * published model has) and keep every later product of dimensions inside 64 bits. */
#include "arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const arch_tensor LLAMA_TENSORS[] = {
    { SLOT_TOKEN_EMBD, "token_embd.weight", "DV", true },   { SLOT_OUTPUT_NORM, "output_norm.weight", "D", true },
    { SLOT_OUTPUT, "output.weight", "DV", false }, /* absent: tied to token_embd */
    { SLOT_ROPE_FACTORS, "rope_freqs.weight", "r", false }, { SLOT_ATTN_NORM, "blk.%u.attn_norm.weight", "D", true },
    { SLOT_ATTN_Q, "blk.%u.attn_q.weight", "DQ", true },    { SLOT_ATTN_K, "blk.%u.attn_k.weight", "DK", true },
    { SLOT_ATTN_V, "blk.%u.attn_v.weight", "DK", true },    { SLOT_ATTN_OUT, "blk.%u.attn_output.weight", "QD", true },
    { SLOT_FFN_NORM, "blk.%u.ffn_norm.weight", "D", true }, { SLOT_FFN_GATE, "blk.%u.ffn_gate.weight", "DF", true },
    { SLOT_FFN_UP, "blk.%u.ffn_up.weight", "DF", true },    { SLOT_FFN_DOWN, "blk.%u.ffn_down.weight", "FD", true },
};

static const arch_spec ARCHS[] = {
    { "llama", ROPE_INTERLEAVED, LLAMA_TENSORS, PN_ARRAY_LEN(LLAMA_TENSORS) },
};

const char *arch_known(void) {
    static _Thread_local char names[256];
    size_t at = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(ARCHS) && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", ARCHS[i].name);
    return names;
}

uint64_t arch_dim(const hparams *hp, char letter) {
    switch (letter) {
    case 'D':
        return hp->n_embd;
    case 'V':
        return hp->n_vocab;
    case 'F':
        return hp->n_ff;
    case 'Q':
        return (uint64_t)hp->n_head * hp->head_size;
    case 'K':
        return (uint64_t)hp->n_head_kv * hp->head_size;
    case 'r':
        return hp->n_rot / 2;
    default:
        return 0;
    }
}

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
    if (!present) *out = missing;
    if (!(*out >= lo && *out <= hi))
        return pn_fail(PN_ERR_METADATA, "%s is %g; it must be between %g and %g", key.text, (double)*out, (double)lo,
                       (double)hi);
    return PN_OK;
}

static int find_spec(const pn_gguf *gguf, const arch_spec **out) {
    const char *name;
    size_t len;
    PN_TRY(gguf_get_str(gguf, "general.architecture", &name, &len, NULL));
    for (size_t i = 0; i < PN_ARRAY_LEN(ARCHS); i++)
        if (strlen(ARCHS[i].name) == len && !memcmp(ARCHS[i].name, name, len)) {
            *out = &ARCHS[i];
            return PN_OK;
        }
    return pn_fail(PN_ERR_UNSUPPORTED, "architecture \"%.*s\" is not supported; known: %s", (int)size_min(len, 64),
                   name, arch_known());
}

/* Features of the format that change the result and are not built: refused, never ignored. */
static int refuse_unbuilt(const pn_gguf *gguf, const arch_spec *spec, uint32_t n_ctx) {
    uint32_t value = 0;
    bool present;
    key_name key = key_of(spec, "expert_count");
    PN_TRY(gguf_get_u32(gguf, key.text, &value, &present));
    if (present && value)
        return pn_fail(PN_ERR_UNSUPPORTED, "%s is %u: expert layers are not supported", key.text, value);
    key = key_of(spec, "attention.sliding_window");
    PN_TRY(gguf_get_u32(gguf, key.text, &value, &present));
    if (present && value && value < n_ctx)
        return pn_fail(PN_ERR_UNSUPPORTED, "%s is %u: sliding-window attention is not supported", key.text, value);
    float scale;
    key = key_of(spec, "attention.scale");
    PN_TRY(gguf_get_f32(gguf, key.text, &scale, &present));
    if (present) return pn_fail(PN_ERR_UNSUPPORTED, "%s is set: an own attention scale is not supported", key.text);
    return PN_OK;
}

/* Positions divided by a factor. Without a type a factor means linear scaling, also under the key of older files. */
static int read_rope_scaling(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    const key_name key = key_of(spec, "rope.scaling.type");
    const char *type;
    size_t len;
    bool present;
    hp->rope_scale = 1;
    PN_TRY(gguf_get_str(gguf, key.text, &type, &len, &present));
    if (present && len == 4 && !memcmp(type, "none", 4)) return PN_OK;
    if (present && !(len == 6 && !memcmp(type, "linear", 6)))
        return pn_fail(PN_ERR_UNSUPPORTED, "%s is \"%.*s\"; known: none, linear", key.text, (int)size_min(len, 32),
                       type);
    PN_TRY(read_float(gguf, spec, "rope.scale_linear", 1e-2f, 1e6f, 1.0f, &hp->rope_scale));
    return read_float(gguf, spec, "rope.scaling.factor", 1e-2f, 1e6f, hp->rope_scale, &hp->rope_scale);
}

static int read_rope(const pn_gguf *gguf, const arch_spec *spec, hparams *hp) {
    PN_TRY(read_count(gguf, spec, "rope.dimension_count", 2, hp->head_size, hp->head_size, &hp->n_rot));
    if (hp->n_rot % 2)
        return pn_fail(PN_ERR_METADATA, "%s.rope.dimension_count is %u; it must be even", spec->name, hp->n_rot);
    PN_TRY(read_float(gguf, spec, "rope.freq_base", 1.0f, 1e12f, 10000.0f, &hp->rope_base));
    return read_rope_scaling(gguf, spec, hp);
}

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
    PN_TRY(read_rope(gguf, spec, &hp));
    PN_TRY(read_float(gguf, spec, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, 1e-5f, &hp.rms_eps));
    PN_TRY(refuse_unbuilt(gguf, spec, hp.n_ctx));
    PN_TRY(read_vocab(gguf, spec, &hp));
    *out = hp;
    return PN_OK;
}
