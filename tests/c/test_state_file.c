/* test_state_file.c - saved states without a model: a cache of random halves goes to a file and comes back.
 *
 * The oracle of the format is this file's own reading of its description, byte by byte. Damage: every length shorter
 * than the whole, and every byte changed in turn; forged headers carry right checksums. A refused file must leave the
 * state as it was. */
#include "check.h"
#include "digest.h"
#include "pantheon.h"
#include "state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 2, HEADS = 2, HEAD = 5, VOCAB = 11, WINDOW = 400, HEADER = 128 };
enum { POSITION = LAYERS * HEADS * 2 * HEAD * 2 };

static char folder[] = "/tmp/pantheon-state-XXXXXX";
static char path[64];

/* All that saving and loading ask of a model. It is never freed: the first reference is the test's. */
static pn_model *new_model(uint64_t fingerprint) {
    static const arch_spec SPEC = { .name = "test" };
    pn_model *model = calloc(1, sizeof *model);
    if (!model) exit(1);
    atomic_init(&model->references, 1);
    atomic_init(&model->fingerprint, fingerprint);
    model->hp = (hparams){ .spec = &SPEC,
                           .n_layer = LAYERS,
                           .n_head = HEADS,
                           .n_head_kv = HEADS,
                           .head_size = HEAD,
                           .n_vocab = VOCAB,
                           .n_ctx = WINDOW };
    return model;
}

static uint16_t half_at(size_t position, size_t layer, size_t head, size_t value, size_t e) {
    return (uint16_t)((position * 40503 + layer * 977 + head * 131 + value * 7919 + e * 31 + 1) % 31744);
}

static uint16_t *place_of(const pn_state *state, size_t position, size_t layer, size_t head, size_t value, size_t e) {
    const size_t block = position / KV_BLOCK, slot = position % KV_BLOCK;
    return value ? kv_values(&state->kv, layer, head, block) + slot * state->kv.e8 + e
                 : kv_keys(&state->kv, layer, head, block) + e * KV_BLOCK + slot;
}

#define EACH_HALF(position, layer, head, value, e, n)                                                                  \
    for (size_t position = 0; position < (n); position++)                                                              \
        for (size_t layer = 0; layer < LAYERS; layer++)                                                                \
            for (size_t head = 0; head < HEADS; head++)                                                                \
                for (size_t value = 0; value < 2; value++)                                                             \
                    for (size_t e = 0; e < HEAD; e++)

static pn_state *new_state(pn_model *model, size_t window, size_t n, bool has_logits) {
    pn_state *state = pn_state_new_window(model, window);
    if (!state || state_reserve(state, n) != PN_OK) exit(1);
    for (size_t i = 0; i < n; i++) state->tokens[i] = (uint32_t)(i * 7 % VOCAB);
    EACH_HALF(position, layer, head, value, e, n)
    *place_of(state, position, layer, head, value, e) = half_at(position, layer, head, value, e);
    for (size_t i = 0; i < VOCAB; i++) state->logits[i] = (float)i - 3.25f;
    state->n_tokens = n;
    state->has_logits = has_logits;
    return state;
}

static bool holds(const pn_state *state, size_t n, bool has_logits) {
    size_t length;
    const uint32_t *tokens = pn_state_tokens(state, &length);
    const float *logits = pn_state_logits(state);
    bool same = length == n && (logits != NULL) == has_logits;
    for (size_t i = 0; same && i < n; i++) same = tokens[i] == i * 7 % VOCAB;
    for (size_t i = 0; same && logits && i < VOCAB; i++) same = logits[i] == (float)i - 3.25f;
    if (same) EACH_HALF(position, layer, head, value, e, n)
    same = same && *place_of(state, position, layer, head, value, e) == half_at(position, layer, head, value, e);
    return same;
}

/* The padding of values is zeros, and so are the places behind the last position: kernels read them. */
static bool rest_is_zero(const pn_state *state, size_t n) {
    bool zero = true;
    for (size_t position = 0; position < state->kv.n_blocks * KV_BLOCK; position++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t head = 0; head < HEADS; head++)
                for (size_t e = 0; e < state->kv.e8; e++) {
                    if (position >= n && e < HEAD) zero &= *place_of(state, position, layer, head, 0, e) == 0;
                    if (position >= n || e >= HEAD) zero &= *place_of(state, position, layer, head, 1, e) == 0;
                }
    return zero;
}

static size_t read_file(uint8_t *out, size_t most) {
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(out, 1, most, file) : 0;
    if (file) fclose(file);
    return n;
}

static void write_file(const uint8_t *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) exit(1);
}

static void test_save_then_load_gives_the_same_state_for_every_length(void) {
    static const size_t LENGTHS[] = { 0, 1, 127, 128, 129, 300, WINDOW };
    pn_model *model = new_model(7);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
        for (int has_logits = 0; has_logits <= (LENGTHS[i] > 0); has_logits++) {
            const size_t n = LENGTHS[i];
            pn_state *from = new_state(model, 0, n, has_logits), *to = new_state(model, 0, 5, !has_logits);
            CHECK(pn_state_save(from, path) == PN_OK);
            CHECK(holds(from, n, has_logits));
            const uint64_t changes = to->changes;
            CHECK(pn_state_load(to, path) == PN_OK);
            CHECK(holds(to, n, has_logits) && rest_is_zero(to, n));
            CHECK(to->changes != changes); /* guesses that were made before are void */
            CHECK(state_reserve(to, n + 300) == PN_OK && holds(to, n, has_logits));
            pn_state_free(from);
            pn_state_free(to);
        }
    free(model);
}

static void test_save_writes_what_the_format_says(void) {
    enum { N = 130, SIZE = HEADER + 8 + N * 4 + 8 + N * POSITION + 8 + VOCAB * 4 + 8 };
    static uint8_t bytes[SIZE + 1], expected[SIZE];
    pn_model *model = new_model(0x0123456789abcdefu);
    pn_state *state = new_state(model, 200, N, true);
    CHECK(pn_state_save(state, path) == PN_OK);
    CHECK(read_file(bytes, sizeof bytes) == SIZE);
    memcpy(expected, "PNSTATE\n\1\0\0\0\1\0\0\0\xef\xcd\xab\x89\x67\x45\x23\x01\x82\0\0\0\0\0\0\0\xc8\0\0\0\0\0\0\0",
           40);
    const uint64_t size = SIZE;
    memcpy(expected + 40, &size, 8);
    memcpy(expected + 48, "test", 4);
    size_t at = HEADER + 8;
    for (size_t i = 0; i < N; i++, at += 4) expected[at] = (uint8_t)(i * 7 % VOCAB);
    at += 8;
    EACH_HALF(position, layer, head, value, e, N) {
        const uint16_t half = half_at(position, layer, head, value, e);
        memcpy(expected + at, &half, 2);
        at += 2;
    }
    at += 8;
    for (size_t i = 0; i < VOCAB; i++, at += 4) memcpy(expected + at, &(float){ (float)i - 3.25f }, 4);
    const size_t ends[] = { HEADER, HEADER + 8 + N * 4, HEADER + 16 + N * 4 + N * POSITION, SIZE - 8 };
    digest sum;
    digest_init(&sum);
    for (size_t i = 0, begin = 0; i < 4; begin = ends[i] + 8, i++) {
        digest_add(&sum, expected + begin, ends[i] - begin);
        const uint64_t value = digest_value(&sum);
        memcpy(expected + ends[i], &value, 8);
    }
    CHECK(memcmp(bytes, expected, SIZE) == 0);
    struct stat info;
    CHECK(stat(path, &info) == 0 && (info.st_mode & 07777) == 0600);
    pn_state_free(state);
    free(model);
}

/* The file, and a state that refused ones must leave alone. */
enum { SMALL = 3, SMALL_SIZE = HEADER + 8 + SMALL * 4 + 8 + SMALL * POSITION + 8 + VOCAB * 4 + 8 };

static pn_state *small_file(pn_model *model, uint8_t *bytes) {
    pn_state *state = new_state(model, 0, SMALL, true);
    CHECK(pn_state_save(state, path) == PN_OK);
    CHECK(read_file(bytes, SMALL_SIZE) == SMALL_SIZE);
    pn_state_free(state);
    return new_state(model, 0, 9, true);
}

static void test_load_of_a_file_cut_short_anywhere_or_longer_is_refused(void) {
    uint8_t bytes[SMALL_SIZE + 1] = { 0 };
    pn_model *model = new_model(7);
    pn_state *state = small_file(model, bytes);
    for (size_t n = 0; n <= SMALL_SIZE + 1; n++) {
        if (n == SMALL_SIZE) continue;
        write_file(bytes, n);
        CHECK(pn_state_load(state, path) == PN_ERR_DAMAGED);
        CHECK(strstr(pn_last_error(), path) != NULL);
        CHECK(holds(state, 9, true));
    }
    pn_state_free(state);
    free(model);
}

static void test_load_of_a_file_with_any_byte_changed_is_refused(void) {
    static const uint8_t CHANGES[] = { 1, 0x80, 0xff };
    uint8_t bytes[SMALL_SIZE];
    pn_model *model = new_model(7);
    pn_state *state = small_file(model, bytes);
    for (size_t at = 0; at < SMALL_SIZE; at++)
        for (size_t i = 0; i < sizeof CHANGES; i++) {
            bytes[at] ^= CHANGES[i];
            write_file(bytes, SMALL_SIZE);
            const int status = pn_state_load(state, path);
            CHECK(status == (at < 8 ? PN_ERR_NOT_STATE : at < 12 ? PN_ERR_UNSUPPORTED : PN_ERR_DAMAGED));
            CHECK(holds(state, 9, true));
            bytes[at] ^= CHANGES[i];
        }
    write_file(bytes, SMALL_SIZE);
    CHECK(pn_state_load(state, path) == PN_OK && holds(state, SMALL, true));
    pn_state_free(state);
    free(model);
}

/* The same file with one number of the header replaced, and checksums that fit. */
static int load_forged(pn_state *state, const uint8_t *bytes, size_t at, size_t width, uint64_t value) {
    uint8_t forged[SMALL_SIZE];
    memcpy(forged, bytes, SMALL_SIZE);
    memcpy(forged + at, &value, width);
    const uint64_t sum = digest_of(forged, HEADER);
    memcpy(forged + HEADER, &sum, 8);
    write_file(forged, SMALL_SIZE);
    return pn_state_load(state, path);
}

static void test_load_of_forged_headers_is_refused_before_any_memory_is_asked_for(void) {
    uint8_t bytes[SMALL_SIZE];
    pn_model *model = new_model(7);
    pn_state *state = small_file(model, bytes);
    static const uint64_t COUNTS[] = { 0, 1, 4, WINDOW, 1ull << 32, 1ull << 60, UINT64_MAX / 4, UINT64_MAX };
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        const int status = load_forged(state, bytes, 24, 8, COUNTS[i]);
        CHECK(status == (COUNTS[i] > WINDOW ? PN_ERR_CONTEXT : PN_ERR_DAMAGED));
        if (COUNTS[i] != SMALL_SIZE) CHECK(load_forged(state, bytes, 40, 8, COUNTS[i]) == PN_ERR_DAMAGED);
    }
    CHECK(load_forged(state, bytes, 12, 4, 8) == PN_ERR_DAMAGED);     /* an unknown flag */
    CHECK(load_forged(state, bytes, 12, 4, 0) == PN_ERR_DAMAGED);     /* no logits, yet they are there */
    CHECK(load_forged(state, bytes, 12, 4, 3) == PN_ERR_OTHER_MODEL); /* BLAS */
    CHECK(load_forged(state, bytes, 12, 4, 5) == PN_ERR_CONTEXT);     /* long rotary factors */
    CHECK(load_forged(state, bytes, 16, 8, 8) == PN_ERR_OTHER_MODEL);
    CHECK(load_forged(state, bytes, 8, 4, 2) == PN_ERR_UNSUPPORTED);
    CHECK(load_forged(state, bytes, 8, 4, 0) == PN_ERR_UNSUPPORTED);
    CHECK(holds(state, 9, true));
    pn_state_free(state);
    free(model);
}

static void test_load_of_more_tokens_than_the_window_is_refused(void) {
    pn_model *model = new_model(7);
    pn_state *from = new_state(model, 0, 130, true), *to = new_state(model, 129, 9, true);
    CHECK(pn_state_save(from, path) == PN_OK);
    CHECK(pn_state_load(to, path) == PN_ERR_CONTEXT && holds(to, 9, true));
    pn_state_free(to);
    to = new_state(model, 130, 9, true);
    CHECK(pn_state_load(to, path) == PN_OK && holds(to, 130, true) && pn_state_window(to) == 130);
    pn_state_free(from);
    pn_state_free(to);
    free(model);
}

/* Ids and logits that no model gives, with checksums that fit. */
static void test_load_of_forged_values_is_refused(void) {
    static const float NOT_FINITE[] = { 1e38f * 1e38f, -1e38f * 1e38f, 0.0f };
    uint8_t bytes[SMALL_SIZE];
    pn_model *model = new_model(7);
    pn_state *state = small_file(model, bytes);
    for (int i = 0; i < 4; i++) {
        uint8_t forged[SMALL_SIZE];
        memcpy(forged, bytes, SMALL_SIZE);
        if (i == 3)
            forged[HEADER + 8] = VOCAB;
        else
            memcpy(forged + SMALL_SIZE - 12, &(float){ i == 2 ? NOT_FINITE[0] - NOT_FINITE[0] : NOT_FINITE[i] }, 4);
        const size_t ends[] = { HEADER, HEADER + 8 + SMALL * 4, SMALL_SIZE - 16 - VOCAB * 4, SMALL_SIZE - 8 };
        digest sum;
        digest_init(&sum);
        for (size_t part = 0, begin = 0; part < 4; begin = ends[part] + 8, part++) {
            digest_add(&sum, forged + begin, ends[part] - begin);
            const uint64_t value = digest_value(&sum);
            memcpy(forged + ends[part], &value, 8);
        }
        write_file(forged, SMALL_SIZE);
        CHECK(pn_state_load(state, path) == PN_ERR_DAMAGED);
        CHECK(holds(state, 9, true));
    }
    pn_state_free(state);
    free(model);
}

static void test_load_of_things_that_are_no_files_is_refused(void) {
    char fifo[80];
    pn_model *model = new_model(7);
    pn_state *state = new_state(model, 0, 9, true);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    CHECK(mkfifo(fifo, 0600) == 0);
    CHECK(pn_state_load(state, fifo) == PN_ERR_IO);
    CHECK(pn_state_load(state, folder) == PN_ERR_IO);
    CHECK(pn_state_load(state, "/dev/null") == PN_ERR_IO);
    CHECK(pn_state_load(state, "/nowhere/at/all") == PN_ERR_IO);
    CHECK(pn_state_load(state, "") == PN_ERR_ARGUMENT);
    CHECK(pn_state_load(state, NULL) == PN_ERR_ARGUMENT && pn_state_load(NULL, path) == PN_ERR_ARGUMENT);
    CHECK(pn_state_save(state, fifo) == PN_ERR_IO && pn_state_save(state, "") == PN_ERR_ARGUMENT);
    CHECK(pn_state_save(state, NULL) == PN_ERR_ARGUMENT && pn_state_save(NULL, path) == PN_ERR_ARGUMENT);
    CHECK(holds(state, 9, true));
    CHECK(unlink(fifo) == 0);
    pn_state_free(state);
    free(model);
}

static void test_a_busy_state_is_neither_saved_nor_loaded(void) {
    pn_model *model = new_model(7);
    pn_state *state = new_state(model, 0, 9, true);
    CHECK(pn_state_save(state, path) == PN_OK);
    CHECK(state_enter(state));
    CHECK(pn_state_save(state, path) == PN_ERR_BUSY && pn_state_load(state, path) == PN_ERR_BUSY);
    state_leave(state);
    CHECK(pn_state_load(state, path) == PN_OK && holds(state, 9, true));
    pn_state_free(state);
    free(model);
}

static void test_a_save_that_fails_leaves_the_old_file_and_no_other(void) {
    uint8_t bytes[SMALL_SIZE], after[SMALL_SIZE + 1];
    pn_model *model = new_model(7);
    pn_state *large = new_state(model, 0, WINDOW, true), *state = small_file(model, bytes);
    const struct rlimit none = { 4096, RLIM_INFINITY };
    struct rlimit before;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0 && setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK(pn_state_save(large, path) == PN_ERR_IO);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(read_file(after, sizeof after) == SMALL_SIZE && memcmp(after, bytes, SMALL_SIZE) == 0);
    CHECK(holds(large, WINDOW, true));
    pn_state_free(large);
    pn_state_free(state);
    free(model);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/state", folder);
    RUN(test_save_then_load_gives_the_same_state_for_every_length);
    RUN(test_save_writes_what_the_format_says);
    RUN(test_load_of_a_file_cut_short_anywhere_or_longer_is_refused);
    RUN(test_load_of_a_file_with_any_byte_changed_is_refused);
    RUN(test_load_of_forged_headers_is_refused_before_any_memory_is_asked_for);
    RUN(test_load_of_more_tokens_than_the_window_is_refused);
    RUN(test_load_of_forged_values_is_refused);
    RUN(test_load_of_things_that_are_no_files_is_refused);
    RUN(test_a_busy_state_is_neither_saved_nor_loaded);
    RUN(test_a_save_that_fails_leaves_the_old_file_and_no_other);
    unlink(path);
    CHECK(rmdir(folder) == 0); /* nothing else was left */
    return check_report();
}
