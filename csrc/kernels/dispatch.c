/* dispatch.c - which kernel sets exist, best first; the choice between them.                            (rank 4)
 *
 * Chosen once per model and stored there: no global. A forced set that cannot run is an error, never a silent
 * fallback. */
#include "cpu.h"
#include "kernels/kernels.h"
#include "pantheon.h"
#include "status.h"

#include <stdio.h>
#include <string.h>

static const kernel_set *const KERNEL_SETS[] = {
#if defined(__x86_64__)
    &kernels_avx512,
    &kernels_avx2,
#elif defined(__aarch64__)
    &kernels_neon_dot,
    &kernels_neon,
#endif
    &kernels_portable, /* last, always usable */
};

/* Entries that a set leaves to its base, and what the base leaves to its own. */
static void fill_in(kernel_set *set) {
    const kernel_set *base = set->base;
    if (!base) return; /* the portable set has them all */
    for (size_t i = 0; i < PACK_KINDS; i++)
        if (!set->matmul[i]) set->matmul[i] = base->matmul[i];
    if (!set->quantize) set->quantize = base->quantize;
    if (!set->quantize_rest) set->quantize_rest = base->quantize_rest;
    if (!set->rms_norm) set->rms_norm = base->rms_norm;
    if (!set->swiglu) set->swiglu = base->swiglu;
    if (!set->narrow) set->narrow = base->narrow;
    if (!set->attend_scores) set->attend_scores = base->attend_scores;
    if (!set->softmax_block) set->softmax_block = base->softmax_block;
    if (!set->attend_values) set->attend_values = base->attend_values;
    if (!set->attend_combine) set->attend_combine = base->attend_combine;
    set->base = base->base;
    fill_in(set);
}

int kernels_pick(const char *isa, kernel_set *out) {
    for (size_t i = 0; i < PN_ARRAY_LEN(KERNEL_SETS); i++) {
        const kernel_set *set = KERNEL_SETS[i];
        if (isa && strcmp(isa, set->isa) != 0) continue;
        if (!set->usable()) {
            if (!isa) continue;
            return pn_fail(PN_ERR_ISA, "instruction set \"%s\" cannot run on this machine; available: %s", isa,
                           kernels_available());
        }
        *out = *set;
        fill_in(out);
        return PN_OK;
    }
    return pn_fail(PN_ERR_ISA, "unknown instruction set \"%.32s\"; available: %s", isa ? isa : "", kernels_available());
}

const char *kernels_available(void) {
    static _Thread_local char names[96];
    size_t at = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(KERNEL_SETS) && at < sizeof names; i++)
        if (KERNEL_SETS[i]->usable())
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? " " : "", KERNEL_SETS[i]->isa);
    return names;
}

const char *pn_isa_available(void) {
    return kernels_available();
}

bool pack_group_bytes(pack_kind kind, size_t k, size_t *out) {
    if (kind >= PACK_KINDS) return false;
    if (!pack_is_quantized(kind)) return size_mul(k, GROUP_ROWS * (kind == PACK_F32 ? 4 : 2), out);
    const pack_layout layout = pack_layout_of(kind);
    const size_t super_bytes = layout.head_bytes + layout.n_blocks * layout.block_bytes;
    return size_mul(k / (layout.n_blocks * BLOCK_K), super_bytes, out);
}
