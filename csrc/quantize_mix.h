/* quantize_mix.h - which element type each tensor of a file gets.                                         (rank 4) */
#ifndef PN_QUANTIZE_MIX_H
#define PN_QUANTIZE_MIX_H

#include "dtype.h"
#include "gguf.h"

typedef struct quantize_recipe quantize_recipe;

/* A recipe, and what its rules ask about the file. */
typedef struct quantize_mix {
    const quantize_recipe *recipe;
    uint32_t n_layers, n_experts;
    bool is_tied;       /* there is no output matrix: the embedding is the output, too                          */
    bool shares_values; /* the 70B models: eight query heads share a value head, so these few weights count more */
} quantize_mix;

/* The recipe by its name, whatever its case; PN_ERR_ARGUMENT lists the known ones. `name` may be NULL. */
int quantize_mix_find(const char *name, const quantize_recipe **out);
/* The name of recipe number `index`, or NULL past the end. Static. */
const char *quantize_mix_name(size_t index);
/* Look at the file. Errors: METADATA. */
int quantize_mix_init(quantize_mix *mix, const quantize_recipe *recipe, const pn_gguf *gguf);
/* What a tensor of the file becomes. Never NULL; its rows are whole blocks of it. */
const dtype_info *quantize_mix_choose(const quantize_mix *mix, const pn_tensor_info *info);
/* general.file_type of the result, a number of the `gguf` package's LlamaFileType. */
uint32_t quantize_mix_file_type(const quantize_mix *mix);

#endif
