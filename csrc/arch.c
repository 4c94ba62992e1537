/* arch.c - one row per architecture: its switches and its tensors.                                        (rank 5)
 *
 * Knows names and properties; reads no file (arch_read.c does) and holds no weights. Facts are those of the models' own
 * implementations in transformers, names those of the GGUF document and its reference (llama.cpp, llama-arch.cpp),
 * where the rotation of each architecture is told, too (llama_model_rope_type). */
#include "arch.h"

#include <stdio.h>
#include <string.h>

/* A tensor that must be there, or may; in models with experts, too, or only in those without (DENSE). */
#define MUST(slot, name, shape)       { slot, name, shape, true, USE_ALWAYS }
#define MAY(slot, name, shape)        { slot, name, shape, false, USE_ALWAYS }
#define MUST_DENSE(slot, name, shape) { slot, name, shape, true, USE_DENSE }
#define MAY_DENSE(slot, name, shape)  { slot, name, shape, false, USE_DENSE }

/* What all of them have. An absent output matrix is tied to the embeddings. */
#define TENSORS_COMMON                                                                                                 \
    MUST(SLOT_TOKEN_EMBD, "token_embd.weight", "DV"), MUST(SLOT_OUTPUT_NORM, "output_norm.weight", "D"),               \
        MAY(SLOT_OUTPUT, "output.weight", "DV"), MUST(SLOT_ATTN_NORM, "blk.%u.attn_norm.weight", "D"),                 \
        MUST(SLOT_ATTN_OUT, "blk.%u.attn_output.weight", "QD"), MUST(SLOT_FFN_NORM, "blk.%u.ffn_norm.weight", "D"),    \
        MUST_DENSE(SLOT_FFN_DOWN, "blk.%u.ffn_down.weight", "FD")

#define TENSORS_QKV                                                                                                    \
    MUST(SLOT_ATTN_Q, "blk.%u.attn_q.weight", "DQ"), MUST(SLOT_ATTN_K, "blk.%u.attn_k.weight", "DK"),                  \
        MUST(SLOT_ATTN_V, "blk.%u.attn_v.weight", "DK")

#define TENSORS_QKV_BIAS(presence)                                                                                     \
    presence(SLOT_ATTN_Q_BIAS, "blk.%u.attn_q.bias", "Q"), presence(SLOT_ATTN_K_BIAS, "blk.%u.attn_k.bias", "K"),      \
        presence(SLOT_ATTN_V_BIAS, "blk.%u.attn_v.bias", "K")

#define TENSORS_QK_NORM                                                                                                \
    MUST(SLOT_ATTN_Q_NORM, "blk.%u.attn_q_norm.weight", "E"), MUST(SLOT_ATTN_K_NORM, "blk.%u.attn_k_norm.weight", "E")

#define TENSORS_GATE_UP                                                                                                \
    MUST_DENSE(SLOT_FFN_GATE, "blk.%u.ffn_gate.weight", "DF"), MUST_DENSE(SLOT_FFN_UP, "blk.%u.ffn_up.weight", "DF")

/* attention_bias and mlp_bias of the configuration. */
#define TENSORS_OTHER_BIAS                                                                                             \
    MAY(SLOT_ATTN_OUT_BIAS, "blk.%u.attn_output.bias", "D"),                                                           \
        MAY_DENSE(SLOT_FFN_GATE_BIAS, "blk.%u.ffn_gate.bias", "F"),                                                    \
        MAY_DENSE(SLOT_FFN_UP_BIAS, "blk.%u.ffn_up.bias", "F"),                                                        \
        MAY_DENSE(SLOT_FFN_DOWN_BIAS, "blk.%u.ffn_down.bias", "D")

#define TENSORS_LONG_SHORT                                                                                             \
    MAY(SLOT_ROPE_LONG, "rope_factors_long.weight", "r"), MAY(SLOT_ROPE_SHORT, "rope_factors_short.weight", "r")

static const arch_tensor LLAMA_TENSORS[] = {
    TENSORS_COMMON,
    TENSORS_QKV,
    TENSORS_QKV_BIAS(MAY),
    TENSORS_GATE_UP,
    TENSORS_OTHER_BIAS,
    TENSORS_LONG_SHORT,
    MAY(SLOT_ROPE_FREQS, "rope_freqs.weight", "r"),
    { SLOT_ROUTER, "blk.%u.ffn_gate_inp.weight", "DX", true, USE_EXPERTS },
};
static const arch_experts LLAMA_EXPERTS[EXPERT_SLOTS] = {
    [EXPERT_GATE] = { "blk.%u.ffn_gate_exps.weight", "blk.%u.ffn_gate.%u.weight", "DF" },
    [EXPERT_UP] = { "blk.%u.ffn_up_exps.weight", "blk.%u.ffn_up.%u.weight", "DF" },
    [EXPERT_DOWN] = { "blk.%u.ffn_down_exps.weight", "blk.%u.ffn_down.%u.weight", "FD" },
};
static const arch_tensor QWEN2_TENSORS[] = { TENSORS_COMMON, TENSORS_QKV, TENSORS_QKV_BIAS(MUST), TENSORS_GATE_UP };
static const arch_tensor QWEN3_TENSORS[] = { TENSORS_COMMON, TENSORS_QKV, TENSORS_QKV_BIAS(MAY), TENSORS_QK_NORM,
                                             TENSORS_GATE_UP };
static const arch_tensor PHI3_TENSORS[] = {
    TENSORS_COMMON,
    TENSORS_LONG_SHORT,
    MUST(SLOT_ATTN_QKV, "blk.%u.attn_qkv.weight", "DS"),
    MUST(SLOT_FFN_GATE_UP, "blk.%u.ffn_up.weight", "DU"),
};
static const arch_tensor GEMMA3_TENSORS[] = {
    TENSORS_COMMON,
    TENSORS_QKV,
    TENSORS_QK_NORM,
    TENSORS_GATE_UP,
    MUST(SLOT_ATTN_POST_NORM, "blk.%u.post_attention_norm.weight", "D"),
    MUST(SLOT_FFN_POST_NORM, "blk.%u.post_ffw_norm.weight", "D"),
};
static const arch_tensor SMOLLM3_TENSORS[] = { TENSORS_COMMON, TENSORS_QKV, TENSORS_QKV_BIAS(MAY), TENSORS_GATE_UP,
                                               TENSORS_OTHER_BIAS };

#define TENSORS(list) .tensors = list, .n_tensors = PN_ARRAY_LEN(list)

static const arch_spec ARCHS[] = {
    /* Mistral v0.1 is a llama with a window in all layers, Mixtral one with experts. */
    { .name = "llama", .rope = ROPE_INTERLEAVED, .global_step = 0, .experts = LLAMA_EXPERTS, TENSORS(LLAMA_TENSORS) },
    { .name = "qwen2", .rope = ROPE_HALF_SPLIT, .global_step = UNKNOWN_PATTERN, TENSORS(QWEN2_TENSORS) },
    { .name = "qwen3", .rope = ROPE_HALF_SPLIT, .global_step = UNKNOWN_PATTERN, TENSORS(QWEN3_TENSORS) },
    { .name = "phi3", .rope = ROPE_HALF_SPLIT, .global_step = 0, TENSORS(PHI3_TENSORS) },
    { .name = "gemma3",
      .rope = ROPE_HALF_SPLIT,
      .gate = GATE_GELU_TANH,
      .global_step = 6,
      .local_rope_base = 10000.0f,
      .width_scale_depth = 62, /* the 27B model: query_pre_attn_scalar 168 = 5376 / 32 */
      .scales_embeddings = true,
      TENSORS(GEMMA3_TENSORS) },
    { .name = "smollm3",
      .rope = ROPE_INTERLEAVED,
      .global_step = UNKNOWN_PATTERN,
      .unrotated_step = 4,
      TENSORS(SMOLLM3_TENSORS) },
};

const char *arch_known(void) {
    static _Thread_local char names[256];
    size_t at = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(ARCHS) && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", ARCHS[i].name);
    return names;
}

const char *arch_name(size_t index) {
    return index < PN_ARRAY_LEN(ARCHS) ? ARCHS[index].name : NULL;
}

const arch_spec *arch_find(const char *name, size_t len) {
    for (size_t i = 0; i < PN_ARRAY_LEN(ARCHS); i++)
        if (strlen(ARCHS[i].name) == len && !memcmp(ARCHS[i].name, name, len)) return &ARCHS[i];
    return NULL;
}

uint64_t arch_dim(const hparams *hp, char letter) {
    const uint64_t q = (uint64_t)hp->n_head * hp->head_size, k = (uint64_t)hp->n_head_kv * hp->head_size;
    switch (letter) {
    case 'D':
        return hp->n_embd;
    case 'V':
        return hp->n_vocab;
    case 'F':
        return hp->n_ff;
    case 'U':
        return 2 * (uint64_t)hp->n_ff;
    case 'X':
        return hp->n_expert;
    case 'E':
        return hp->head_size;
    case 'Q':
        return q;
    case 'K':
        return k;
    case 'S':
        return q + 2 * k;
    case 'R':
        return hp->n_rot;
    case 'r':
        return hp->n_rot / 2;
    default:
        return 0;
    }
}
