/* model_load.h - the tensors of a file to the slots of its architecture, and from there to memory.        (rank 8) */
#ifndef PN_MODEL_LOAD_H
#define PN_MODEL_LOAD_H

#include "model.h"
#include "pantheon.h"

/* Which tensor of the file is which slot. Zeroed: empty. */
typedef struct binding {
    const pn_gguf *gguf;
    const hparams *hp;
    int64_t *tensors; /* [L + 1, SLOT_COUNT] index in the file or -1; row L holds the slots that exist once */
    int64_t *experts; /* [L, EXPERT_SLOTS, X] the same plus 1, or 0; experts of a merged tensor share its index */
} binding;

/* Find and check all tensors. Errors: CORRUPT (missing, or of another shape), UNSUPPORTED (an element type, or a tensor
 * that no slot takes), MEMORY; binding_free is due in any case. */
int binding_make(binding *b, const pn_gguf *gguf, const hparams *hp);
void binding_free(binding *b);

/* Make the layers, empty but for what sets them apart. MEMORY, METADATA, UNSUPPORTED. */
int model_make_layers(pn_model *model, const pn_gguf *gguf);
/* Read and pack all that is bound into the model, on all threads if `pool` (entered) is not NULL. Errors: CORRUPT,
 * METADATA, UNSUPPORTED, MEMORY, CANCELLED (by the progress callback of params); what is in the model then is the
 * model's. */
int model_load_weights(pn_model *model, const binding *b, const pn_load_params *params, threads *pool);
/* Call back for every matrix that is there, and for every vector x[n], in an order that the architecture alone sets. */
void model_visit(const pn_model *model, void (*visit_matrix)(void *context, const matrix *m),
                 void (*visit_vector)(void *context, const float *x, size_t n), void *context);
/* Free what a layer owns. */
void model_free_layer(layer_weights *w);

#endif
