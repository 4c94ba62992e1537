/* model.h - a file's weights, bound to the slots of its architecture and packed.                        (rank 8)
 *
 * Immutable after loading, but for the reference count and the list of scratch memory, which have their own locks. */
#ifndef PN_MODEL_H
#define PN_MODEL_H

#include "arch.h"
#include "matmul.h"
#include "rope.h"
#include "scratch.h"
#include "settle.h"
#include "threads.h"

#include <stdatomic.h>

/* One of the experts of a layer. */
typedef struct expert_weights {
    matrix gate, up, down; /* [F, D], [F, D], [D, F] */
} expert_weights;

/* What an architecture or a file lacks is empty or NULL. */
typedef struct layer_weights {
    arch_layer kind;
    float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm; /* [D] */
    float *q_norm, *k_norm;                                       /* [E], of each head */
    float *q_bias, *k_bias, *v_bias, *out_bias;                   /* [H*E], [G*E], [G*E], [D] */
    float *gate_bias, *up_bias, *down_bias;                       /* [F], [F], [D] */
    matrix q, k, v;                                               /* [H*E, D], [G*E, D], [G*E, D] */
    matrix out;                                                   /* [D, H*E] */
    matrix gate, up, down;                                        /* [F, D], [F, D], [D, F] */
    matrix router;                                                /* [X, D] */
    expert_weights *experts;                                      /* [X], in place of the three above */
} layer_weights;

struct pn_model {
    atomic_int references; /* the caller's, and one for each state */
    hparams hp;
    kernel_set kernels;
    threads *pool;
    int n_threads;
    bool use_blas;
    pn_gguf *gguf; /* header only: the file is closed after loading */
    pn_tokenizer *tokenizer;
    uint64_t n_params;
    uint64_t weight_bytes; /* of matrices and vectors in memory */

    matrix token_embd;  /* [V, D] */
    matrix output;      /* [V, D]; empty if tied to token_embd */
    float *output_norm; /* [D] */
    rope rope;
    layer_weights *layers; /* [L] */
    uint8_t *weights;      /* [weights_size] the block in which the data of all matrices lies */
    size_t weights_size;
    settle *settling; /* of that block, or NULL */

    scratch_list scratch; /* memory of evaluations, kept between them */

    _Atomic uint64_t fingerprint; /* 0: not asked for yet */
};

void model_retain(pn_model *model);
/* Give up one reference; frees with the last. */
void model_release(pn_model *model);

#endif
