/* arch.h - THE TABLE OF ARCHITECTURES: metadata to hyper-parameters, tensor names to slots and shapes.      (rank 5)
 *
 * An architecture is data: code asks a property of its row, never its name.
 * L layers  D model width  H heads  G key/value heads  E head width  F feed-forward width  V vocabulary  R rotated */
#ifndef PN_ARCH_H
#define PN_ARCH_H

#include "gguf.h"

/* Which elements of a head are rotated together: (2i, 2i+1), or (i, i + R/2). arXiv:2104.09864. */
typedef enum rope_kind { ROPE_INTERLEAVED, ROPE_HALF_SPLIT } rope_kind;

/* What a tensor is for. Those from SLOT_LAYER on exist once per layer. */
typedef enum tensor_slot {
    SLOT_TOKEN_EMBD,
    SLOT_OUTPUT_NORM,
    SLOT_OUTPUT,
    SLOT_ROPE_FACTORS,
    SLOT_LAYER,
    SLOT_ATTN_NORM = SLOT_LAYER,
    SLOT_ATTN_Q,
    SLOT_ATTN_K,
    SLOT_ATTN_V,
    SLOT_ATTN_OUT,
    SLOT_FFN_NORM,
    SLOT_FFN_GATE,
    SLOT_FFN_UP,
    SLOT_FFN_DOWN,
    SLOT_COUNT,
} tensor_slot;

/* shape: letters of the file's order, dims[0] (contiguous) first: "D", "DV", "D(HE)" written as "DQ" with
 * Q = H*E, K = G*E, and r = R/2. */
typedef struct arch_tensor {
    tensor_slot slot;
    const char *name; /* "%u" stands for the layer */
    const char *shape;
    bool required;
} arch_tensor;

typedef struct arch_spec {
    const char *name; /* general.architecture */
    rope_kind rope;
    const arch_tensor *tensors;
    size_t n_tensors;
} arch_spec;

typedef struct hparams {
    const arch_spec *spec;
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_size, n_ff, n_vocab, n_ctx, n_rot;
    float rms_eps;
    float rope_base;
    float rope_scale; /* positions are divided by it (linear scaling); 1: off */
} hparams;

/* Read and check the hyper-parameters; n_vocab comes from token_embd. Errors: METADATA (key, value, and what would be
 * right), UNSUPPORTED (architecture or a feature of it that is not built), CORRUPT (token_embd missing). */
int arch_read(const pn_gguf *gguf, hparams *out);

/* The size that a shape letter stands for. */
uint64_t arch_dim(const hparams *hp, char letter);
/* "llama, qwen2": the known names, for messages. Borrowed until this thread's next call. */
const char *arch_known(void);

#endif
