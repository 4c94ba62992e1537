/* known.c - the tables of the core, by name: what a caller may ask of this build.                       (rank 7)
 *
 * Adds nothing to the tables: a row that is added to one of them shows here by itself, in README.md through
 * tools/what_runs.py, and must then be one that a test holds against an oracle (tests/test_readme.py). */
#include "arch.h"
#include "dtype.h"
#include "matmul_pack.h"
#include "pantheon.h"
#include "pretokenize.h"
#include "quantize_mix.h"
#include "tokenizer.h"

/* Name number `index` of the readable element types, of all of them or of those that a matrix may have. */
static const char *known_type(size_t index, bool matrices) {
    size_t n;
    const dtype_info *types = dtype_table(&n);
    for (size_t i = 0; i < n; i++)
        if ((!matrices || matrix_supports(types[i].id)) && index-- == 0) return types[i].name;
    return NULL;
}

const char *pn_known(int list, size_t index) {
    switch (list) {
    case PN_KNOWN_ARCHITECTURES:
        return arch_name(index);
    case PN_KNOWN_TYPES:
        return known_type(index, false);
    case PN_KNOWN_MATRIX_TYPES:
        return known_type(index, true);
    case PN_KNOWN_TARGETS:
        return quantize_mix_name(index);
    case PN_KNOWN_TOKENIZERS:
        return tokenizer_kind_name(index);
    case PN_KNOWN_PRETOKENIZERS:
        return pretokenize_name(index);
    default:
        return NULL;
    }
}
