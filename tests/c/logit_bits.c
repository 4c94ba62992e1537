/* logit_bits.c - what a machine computes, in a few numbers: digests of the logits' bits and of the ids drawn from them.
 *
 *     logit_bits                  the instruction sets that run here, best first
 *     logit_bits ISA MODEL...     one line per model, with that instruction set
 *
 * A model whose file name begins with "long" gets a longer prompt, of which the last row of logits alone counts.
 *
 * tests/emulated.py compares the lines of one model from several machines, where they must be the same. */
#include "pantheon.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The prompt needs more than one block of the cache; LONG, with steps behind it, more than one of attention's spans. */
enum { PROMPT = 150, LONG = 530, STEPS = 4, DRAWS = 16 };

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pn_last_error());
    exit(1);
}

/* FNV-1a over bytes, carried on from `digest`. */
static uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) digest = (digest ^ p[i]) * 0x100000001b3u;
    return digest;
}

#define DIGEST_START 0xcbf29ce484222325u

static void prompt_ids(uint32_t *ids, uint32_t n, uint32_t n_vocab) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (i * i * 7 + i * 31 + 5) % n_vocab;
}

/* The logits after each of PROMPT ids, evaluated in one call. */
static uint64_t digest_of_prompt(pn_model *model, pn_state *state, uint32_t n_vocab) {
    uint32_t ids[PROMPT];
    prompt_ids(ids, PROMPT, n_vocab);
    float *logits = malloc(sizeof *logits * PROMPT * n_vocab);
    if (!logits) fail("memory");
    const pn_slice slice = { state, ids, PROMPT, logits };
    if (pn_eval(model, &slice, 1, NULL, NULL)) fail("prompt");
    const uint64_t digest = digest_bytes(DIGEST_START, logits, sizeof *logits * PROMPT * n_vocab);
    free(logits);
    return digest;
}

/* The logits after the last of LONG ids. */
static uint64_t digest_of_long(pn_model *model, pn_state *state, uint32_t n_vocab) {
    uint32_t ids[LONG];
    prompt_ids(ids, LONG, n_vocab);
    const pn_slice slice = { state, ids, LONG, NULL };
    if (pn_eval(model, &slice, 1, NULL, NULL)) fail("long prompt");
    return digest_bytes(DIGEST_START, pn_state_logits(state), sizeof(float) * n_vocab);
}

/* The logits after each of some more ids, evaluated one by one. */
static uint64_t digest_of_steps(pn_model *model, pn_state *state, uint32_t n_vocab) {
    uint64_t digest = DIGEST_START;
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t id = (i * 101 + 17) % n_vocab;
        const pn_slice slice = { state, &id, 1, NULL };
        if (pn_eval(model, &slice, 1, NULL, NULL)) fail("step");
        digest = digest_bytes(digest, pn_state_logits(state), sizeof(float) * n_vocab);
    }
    return digest;
}

/* Ids drawn from the last logits, which the sampler's own exp and sums decide. */
static uint64_t digest_of_draws(pn_state *state, uint32_t n_vocab) {
    pn_sampling_params params = pn_sampling_defaults();
    params.temperature = 0.9f;
    params.top_p = 0.95f;
    params.seed = 7;
    pn_sampler *sampler = pn_sampler_new(n_vocab, &params);
    if (!sampler) fail("sampler");
    uint64_t digest = DIGEST_START;
    for (int i = 0; i < DRAWS; i++) {
        uint32_t id;
        if (pn_sample_state(sampler, state, &id)) fail("sample");
        digest = digest_bytes(digest, &id, sizeof id);
    }
    pn_sampler_free(sampler);
    return digest;
}

static bool is_long(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, "long", 4) == 0;
}

static void describe(const char *isa, const char *path) {
    pn_load_params params = pn_load_defaults();
    params.isa = isa;
    params.n_threads = 2;
    pn_model *model = pn_load_with(path, &params);
    if (!model) fail(path);
    pn_state *state = pn_state_new(model);
    if (!state) fail("state");
    pn_model_info info;
    pn_model_describe(model, &info);
    const uint64_t prompt = (is_long(path) ? digest_of_long : digest_of_prompt)(model, state, info.n_vocab);
    const uint64_t steps = digest_of_steps(model, state, info.n_vocab);
    const uint64_t draws = digest_of_draws(state, info.n_vocab);
    printf("prompt %016llx steps %016llx draws %016llx\n", (unsigned long long)prompt, (unsigned long long)steps,
           (unsigned long long)draws);
    pn_state_free(state);
    pn_free(model);
}

int main(int argc, char **argv) {
    if (argc == 1) printf("%s\n", pn_isa_available());
    for (int i = 2; i < argc; i++) describe(argv[1], argv[i]);
    return 0;
}
