/* arch.h - THE TABLE OF ARCHITECTURES: metadata to hyper-parameters, tensor names to slots and shapes.      (rank 5)
 *
 * An architecture is data: code asks a property of its row, never its name.
 * L layers  D model width  H heads  G key/value heads  E head width  F feed-forward width  V vocabulary  R rotated */
#ifndef PN_ARCH_H
#define PN_ARCH_H

#include "gguf.h"

/* Which elements of a head are rotated together: (2i, 2i+1), or (i, i + R/2). arXiv:2104.09864. */
typedef enum rope_kind { ROPE_INTERLEAVED, ROPE_HALF_SPLIT } rope_kind;

/* How frequencies are changed for contexts longer than those of the training: not at all, divided by a factor, some of
 * them divided (arXiv:2309.00071), or each by its own factor (arXiv:2402.13753). */
typedef enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_YARN,
    ROPE_SCALING_LONGROPE
} rope_scaling;

/* What the gate of the feed-forward block goes through. */
typedef enum gate_kind { GATE_SILU, GATE_GELU_TANH } gate_kind;

/* What a tensor is for. Those from SLOT_LAYER on exist once per layer. */
typedef enum tensor_slot {
    SLOT_TOKEN_EMBD,
    SLOT_OUTPUT_NORM,
    SLOT_OUTPUT,
    SLOT_ROPE_FREQS,
    SLOT_ROPE_LONG,
    SLOT_ROPE_SHORT,
    SLOT_LAYER,
    SLOT_ATTN_NORM = SLOT_LAYER,
    SLOT_ATTN_QKV, /* rows of the three below, one after the other */
    SLOT_ATTN_Q,
    SLOT_ATTN_K,
    SLOT_ATTN_V,
    SLOT_ATTN_Q_BIAS,
    SLOT_ATTN_K_BIAS,
    SLOT_ATTN_V_BIAS,
    SLOT_ATTN_Q_NORM,
    SLOT_ATTN_K_NORM,
    SLOT_ATTN_OUT,
    SLOT_ATTN_OUT_BIAS,
    SLOT_ATTN_POST_NORM,
    SLOT_FFN_NORM,
    SLOT_FFN_GATE_UP, /* rows of the two below */
    SLOT_FFN_GATE,
    SLOT_FFN_UP,
    SLOT_FFN_DOWN,
    SLOT_FFN_GATE_BIAS,
    SLOT_FFN_UP_BIAS,
    SLOT_FFN_DOWN_BIAS,
    SLOT_FFN_POST_NORM,
    SLOT_ROUTER,
    SLOT_COUNT,
} tensor_slot;

/* What the matrices of all experts of a layer are for. */
typedef enum expert_slot { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_SLOTS } expert_slot;

/* Models with experts have these tensors, those without, or both. */
typedef enum tensor_use { USE_ALWAYS, USE_DENSE, USE_EXPERTS } tensor_use;

/* shape: letters of the file's order, dims[0] (contiguous) first: "D", "DV", "D(HE)" written as "DQ" with
 * Q = H*E, K = G*E, S = Q + 2K, U = 2F, X experts, and r = R/2. */
typedef struct arch_tensor {
    tensor_slot slot;
    const char *name; /* "%u" stands for the layer */
    const char *shape;
    bool required;
    tensor_use use;
} arch_tensor;

/* The matrices of all experts of a layer: one tensor, or, in older files, one for each. */
typedef struct arch_experts {
    const char *merged, *each; /* "%u" stands for the layer, then for the expert */
    const char *shape;         /* of one matrix; the merged tensor has X of them */
} arch_experts;

typedef struct arch_spec {
    const char *name; /* general.architecture */
    rope_kind rope;
    gate_kind gate;
    /* Where the file has a sliding window and no pattern: every so-manieth layer is global, the others are local; 0:
     * all are local; UNKNOWN_PATTERN: the file must say. */
    int global_step;
    float local_rope_base;      /* of local layers, which are not scaled then; 0: they rotate as global ones do */
    uint32_t unrotated_step;    /* every so-manieth layer does not rotate; 0: all do */
    uint32_t width_scale_depth; /* a model of so many layers divides scores by sqrt(D / H) instead of sqrt(E) */
    bool scales_embeddings;     /* by sqrt(D) */
    const arch_tensor *tensors;
    size_t n_tensors;
    const arch_experts *experts; /* [EXPERT_SLOTS], or NULL: it has none */
} arch_spec;

enum { UNKNOWN_PATTERN = -1, EXPERTS_MAX = 512, EXPERT_MATRICES_MAX = 1 << 17 };

typedef struct hparams {
    const arch_spec *spec;
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_size, n_ff, n_vocab, n_ctx, n_rot;
    uint32_t n_expert, n_expert_used; /* X, and how many of them compute for a token; 0: none */
    float rms_eps;
    float attn_scale; /* of scores */
    float embd_scale; /* of embeddings; 1: none */
    float logit_cap;  /* logits x become cap * tanh(x / cap); 0: off */
    uint32_t window;  /* local layers: query i sees key j if i - j < window; 0: no layer is local */
    rope_scaling scaling;
    float rope_base, local_rope_base; /* the second 0: local layers rotate as global ones do */
    float rope_factor;                /* how much longer contexts may be than in training; 0: not said */
    float rope_magnitude;             /* cosines and sines are multiplied by it; 0: not said */
    uint32_t rope_n_ctx;              /* context length of the training, before it was stretched */
    float yarn_beta_fast, yarn_beta_slow, yarn_ext_factor;
    float yarn_magnitude; /* in place of the formula; 0: by the formula */
} hparams;

/* What sets a layer apart from others of its model. */
typedef struct arch_layer {
    bool local;   /* sees hp.window keys at most */
    bool rotated; /* its queries and keys are */
} arch_layer;

/* Read and check the hyper-parameters; n_vocab comes from token_embd. Errors: METADATA (key, value, and what would be
 * right), UNSUPPORTED (architecture or a feature of it that is not built), CORRUPT (token_embd missing). */
int arch_read(const pn_gguf *gguf, hparams *out);
/* The layers of the model that hp was read from: out[L]. METADATA, UNSUPPORTED. */
int arch_read_layers(const pn_gguf *gguf, const hparams *hp, arch_layer *out);

/* The row for a name, or NULL. */
const arch_spec *arch_find(const char *name, size_t len);
/* The size that a shape letter stands for. */
uint64_t arch_dim(const hparams *hp, char letter);
/* "llama, qwen2": the known names, for messages. Borrowed until this thread's next call. */
const char *arch_known(void);
/* The name in row `index` of the table, or NULL past its end. Static. */
const char *arch_name(size_t index);

#endif
