/* state_file.c - a conversation to a file and back.                                                       (rank 10)
 *
 * The format, version 1; all numbers little-endian, nothing is aligned:
 *   header   128 bytes, see the enum below
 *   u64      digest of all bytes before it
 *   ids      u32[n]
 *   u64      digest of all bytes before it but digests; so are the others
 *   cache    f16[n][L][G][2][E]: of each position, layer and head first the key, then the value, without padding
 *   u64      digest
 *   logits   f32[V], if the header says so
 *   u64      digest
 * STATE_VERSION changes with the layout, with digest.c and fingerprint.c, and when a version of this library computes
 * other bits than the last one did from the same ids: a cache of then must not be continued now.
 * Loading reads from front to back into memory of its own and allocates nothing that the size of the file has not
 * proved; the state changes when all is there. The file is read, not mapped: whoever cuts it short does no harm. */
#include "digest.h"
#include "pantheon.h"
#include "sink.h"
#include "state.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STATE_VERSION = 1,
    /* offsets in the header */
    AT_MAGIC = 0,         /* 8 bytes */
    AT_VERSION = 8,       /* u32 */
    AT_FLAGS = 12,        /* u32 */
    AT_FINGERPRINT = 16,  /* u64 */
    AT_N_TOKENS = 24,     /* u64 */
    AT_WINDOW = 32,       /* u64, of the state that was saved: for people, not checked */
    AT_SIZE = 40,         /* u64, of the whole file */
    AT_ARCHITECTURE = 48, /* 32 bytes, filled up with zeros; for messages */
    AT_RESERVED = 80,     /* 48 bytes of zeros */
    HEADER_BYTES = 128,
    DIGEST_BYTES = 8,
    N_DIGESTS = 4,
    /* flags */
    FLAG_LOGITS = 1,
    FLAG_BLAS = 2,      /* evaluated through BLAS: other bits */
    FLAG_LONG_ROPE = 4, /* with the rotary factors for long windows */
    FLAGS_KNOWN = 7,
    CHUNK_BYTES = 1 << 20, /* of the cache, read or written at a time */
    PATH_SHOWN = 300,
};

static const uint8_t MAGIC[8] = { 'P', 'N', 'S', 'T', 'A', 'T', 'E', '\n' };

/* What the size of the file must be, and of its parts. */
typedef struct layout {
    uint64_t position_bytes, n_tokens, total;
    size_t positions_per_chunk;
    bool has_logits;
} layout;

static bool make_layout(const pn_model *model, uint64_t n_tokens, bool has_logits, layout *out) {
    const hparams *hp = &model->hp;
    const uint64_t head_bytes = 2 * (uint64_t)hp->head_size * sizeof(uint16_t);
    uint64_t cache, ids;
    *out = (layout){ .n_tokens = n_tokens, .has_logits = has_logits };
    const bool fits = u64_mul((uint64_t)hp->n_layer * hp->n_head_kv, head_bytes, &out->position_bytes) &&
                      u64_mul(out->position_bytes, n_tokens, &cache) && u64_mul(n_tokens, sizeof(uint32_t), &ids) &&
                      u64_add(HEADER_BYTES + N_DIGESTS * DIGEST_BYTES, ids, &out->total) &&
                      u64_add(out->total, cache, &out->total) &&
                      u64_add(out->total, has_logits ? (uint64_t)hp->n_vocab * sizeof(float) : 0, &out->total);
    if (!fits || out->total > SIZE_MAX) return false;
    out->positions_per_chunk = (size_t)(CHUNK_BYTES / out->position_bytes);
    if (out->positions_per_chunk == 0) out->positions_per_chunk = 1;
    return true;
}

/* Which of the flags a state of this model has, its logits apart. */
static uint32_t flags_of(const pn_state *state) {
    return (state->model->use_blas ? FLAG_BLAS : 0) | (state->long_rope ? FLAG_LONG_ROPE : 0);
}

static uint16_t *chunk_new(const layout *l) {
    uint16_t *chunk = malloc((size_t)l->position_bytes * l->positions_per_chunk);
    if (!chunk) pn_fail(PN_ERR_MEMORY, "state: no memory for a position of %" PRIu64 " bytes", l->position_bytes);
    return chunk;
}

static int fail_busy(void) {
    return pn_fail(PN_ERR_BUSY, "state: it is in use by another call");
}

/* ---- saving -------------------------------------------------------------------------------------------------- */

typedef struct writer {
    sink out;
    digest sum;
} writer;

static int put(writer *w, const void *bytes, size_t n) {
    digest_add(&w->sum, bytes, n);
    return sink_write(&w->out, bytes, n);
}

static int put_digest(writer *w) {
    return sink_u64(&w->out, digest_value(&w->sum));
}

static void set_u32(uint8_t *at, uint32_t value) {
    memcpy(at, &value, sizeof value);
}
static void set_u64(uint8_t *at, uint64_t value) {
    memcpy(at, &value, sizeof value);
}

static int put_header(writer *w, const pn_state *state, uint64_t fingerprint, const layout *l) {
    uint8_t header[HEADER_BYTES] = { 0 };
    const char *architecture = state->model->hp.spec->name;
    memcpy(header + AT_MAGIC, MAGIC, sizeof MAGIC);
    set_u32(header + AT_VERSION, STATE_VERSION);
    set_u32(header + AT_FLAGS, flags_of(state) | (l->has_logits ? FLAG_LOGITS : 0));
    set_u64(header + AT_FINGERPRINT, fingerprint);
    set_u64(header + AT_N_TOKENS, l->n_tokens);
    set_u64(header + AT_WINDOW, state->window);
    set_u64(header + AT_SIZE, l->total);
    memcpy(header + AT_ARCHITECTURE, architecture, size_min(strlen(architecture), AT_RESERVED - AT_ARCHITECTURE));
    PN_TRY(put(w, header, sizeof header));
    return put_digest(w);
}

/* Key and value of each layer and head at one position, out of their places in the blocks. */
static void gather(const kv_cache *kv, size_t position, uint16_t *out) {
    const size_t block = position / KV_BLOCK, slot = position % KV_BLOCK, n = kv->head_size;
    for (size_t layer = 0; layer < kv->n_layer; layer++)
        for (size_t head = 0; head < kv->n_head_kv; head++) {
            const uint16_t *keys = kv_keys(kv, layer, head, block) + slot;
            for (size_t e = 0; e < n; e++) *out++ = keys[e * KV_BLOCK];
            memcpy(out, kv_values(kv, layer, head, block) + slot * kv->e8, n * sizeof *out);
            out += n;
        }
}

static int put_cache(writer *w, const kv_cache *kv, const layout *l, uint16_t *chunk) {
    const size_t halves = (size_t)l->position_bytes / sizeof *chunk;
    for (size_t at = 0; at < l->n_tokens; at += l->positions_per_chunk) {
        const size_t n = size_min(l->positions_per_chunk, (size_t)l->n_tokens - at);
        for (size_t i = 0; i < n; i++) gather(kv, at + i, chunk + i * halves);
        PN_TRY(put(w, chunk, n * (size_t)l->position_bytes));
    }
    return put_digest(w);
}

static int save_parts(writer *w, const pn_state *state, uint64_t fingerprint, const layout *l, uint16_t *chunk) {
    PN_TRY(put_header(w, state, fingerprint, l));
    if (l->n_tokens) PN_TRY(put(w, state->tokens, state->n_tokens * sizeof *state->tokens));
    PN_TRY(put_digest(w));
    PN_TRY(put_cache(w, &state->kv, l, chunk));
    if (l->has_logits) PN_TRY(put(w, state->logits, state->model->hp.n_vocab * sizeof *state->logits));
    PN_TRY(put_digest(w));
    return sink_commit(&w->out);
}

static int save_entered(const pn_state *state, uint64_t fingerprint, const char *path) {
    layout l;
    if (!make_layout(state->model, state->n_tokens, state->has_logits, &l))
        return pn_fail(PN_ERR_MEMORY, "state: %zu tokens are too many for a file", state->n_tokens);
    writer *w = malloc(sizeof *w); /* it holds the name of the temporary file: too large for a thread's stack */
    uint16_t *chunk = chunk_new(&l);
    int status = PN_ERR_MEMORY;
    if (!w) pn_fail(PN_ERR_MEMORY, "state: no memory for %zu bytes", sizeof *w);
    if (w && chunk) {
        digest_init(&w->sum);
        status = sink_open(&w->out, path, 0600);
        if (status == PN_OK) status = save_parts(w, state, fingerprint, &l, chunk);
        sink_close(&w->out);
    }
    free(chunk);
    free(w);
    return status;
}

int pn_state_save(pn_state *state, const char *path) {
    uint64_t fingerprint;
    if (!state || !path) return pn_fail(PN_ERR_ARGUMENT, "save: %s is NULL", state ? "the path" : "the state");
    PN_TRY(pn_model_fingerprint(state->model, &fingerprint));
    if (!state_enter(state)) return fail_busy();
    const int status = save_entered(state, fingerprint, path);
    state_leave(state);
    return status;
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    int fd;
    uint64_t size;
    digest sum;
} reader;

static int fail_damaged(const reader *r, const char *what) {
    return pn_fail(PN_ERR_DAMAGED,
                   "%.*s: %s; the file was damaged after it was saved, and nothing of it was loaded: remove it and "
                   "evaluate the ids again",
                   PATH_SHOWN, r->path, what);
}

static int get_raw(reader *r, void *out, size_t n) {
    uint8_t *at = out;
    while (n > 0) {
        const ssize_t done = read(r->fd, at, size_min(n, 1u << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return pn_fail(PN_ERR_IO, "cannot read %.*s: %s", PATH_SHOWN, r->path, strerror(errno));
        if (done == 0) return fail_damaged(r, "it became shorter while it was read");
        at += done;
        n -= (size_t)done;
    }
    return PN_OK;
}

static int get(reader *r, void *out, size_t n) {
    PN_TRY(get_raw(r, out, n));
    digest_add(&r->sum, out, n);
    return PN_OK;
}

static int check_digest(reader *r, const char *what) {
    uint64_t stated;
    PN_TRY(get_raw(r, &stated, sizeof stated));
    return stated == digest_value(&r->sum) ? PN_OK : fail_damaged(r, what);
}

static uint32_t u32_at(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}
static uint64_t u64_at(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int reader_open(reader *r, const char *path) {
    struct stat info;
    *r = (reader){ .path = path, .fd = -1 };
    digest_init(&r->sum);
    if (!*path) return pn_fail(PN_ERR_ARGUMENT, "load: the path is empty");
    do { /* O_NONBLOCK: a FIFO that nobody writes to would wait for ever */
        r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (r->fd < 0 && errno == EINTR);
    if (r->fd < 0 || fstat(r->fd, &info) != 0)
        return pn_fail(PN_ERR_IO, "cannot open %.*s: %s", PATH_SHOWN, path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return pn_fail(PN_ERR_IO, "%.*s is %s; a file is needed", PATH_SHOWN, path,
                       S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
    r->size = (uint64_t)info.st_size;
    return PN_OK;
}

static int get_header(reader *r, uint8_t *header) {
    const size_t n = (size_t)(r->size < HEADER_BYTES ? r->size : HEADER_BYTES);
    PN_TRY(get(r, header, n));
    if (memcmp(header, MAGIC, size_min(n, sizeof MAGIC)) != 0)
        return pn_fail(PN_ERR_NOT_STATE, "%.*s is not a saved state: it does not begin as one", PATH_SHOWN, r->path);
    if (n < HEADER_BYTES) return fail_damaged(r, "it ends within its header");
    const uint32_t version = u32_at(header + AT_VERSION);
    if (version != STATE_VERSION)
        return pn_fail(PN_ERR_UNSUPPORTED,
                       "%.*s has version %u of the format of saved states, this build reads version %d: load it with "
                       "the build that saved it, or evaluate the ids again",
                       PATH_SHOWN, r->path, version, STATE_VERSION);
    return check_digest(r, "the checksum of its header is wrong");
}

static int check_model(const reader *r, const uint8_t *header, const pn_state *state, uint64_t fingerprint) {
    const uint64_t stated = u64_at(header + AT_FINGERPRINT);
    if (stated != fingerprint)
        return pn_fail(PN_ERR_OTHER_MODEL,
                       "%.*s was saved with another model: architecture %.*s, fingerprint %016" PRIx64
                       "; this one is %s, %016" PRIx64 ": load it into the model that it was made with",
                       PATH_SHOWN, r->path, AT_RESERVED - AT_ARCHITECTURE, (const char *)header + AT_ARCHITECTURE,
                       stated, state->model->hp.spec->name, fingerprint);
    if (u32_at(header + AT_FLAGS) & ~flags_of(state) & FLAG_BLAS)
        return pn_fail(PN_ERR_OTHER_MODEL,
                       "%.*s was evaluated through BLAS, which gives other bits than this model: load the model with "
                       "BLAS, or evaluate the ids again",
                       PATH_SHOWN, r->path);
    return PN_OK;
}

static int check_window(const reader *r, const uint8_t *header, const pn_state *state) {
    const uint64_t n = u64_at(header + AT_N_TOKENS);
    if (n > state->window)
        return pn_fail(PN_ERR_CONTEXT,
                       "%.*s holds %" PRIu64 " tokens, and this state's window is %zu: make one with a larger window",
                       PATH_SHOWN, r->path, n, state->window);
    const bool is_long = u32_at(header + AT_FLAGS) & FLAG_LONG_ROPE;
    if (is_long != state->long_rope)
        return pn_fail(PN_ERR_CONTEXT,
                       "%.*s was evaluated with the rotary factors of a window of %" PRIu64
                       "; the window of %zu has others: make the state with that window",
                       PATH_SHOWN, r->path, u64_at(header + AT_WINDOW), state->window);
    return PN_OK;
}

/* All that can be known before the first allocation. */
static int check_header(const reader *r, const uint8_t *header, const pn_state *state, uint64_t fingerprint,
                        layout *l) {
    const uint32_t flags = u32_at(header + AT_FLAGS);
    const uint64_t n = u64_at(header + AT_N_TOKENS);
    if (flags & ~(uint32_t)FLAGS_KNOWN) return fail_damaged(r, "its header has unknown flags");
    PN_TRY(check_model(r, header, state, fingerprint));
    PN_TRY(check_window(r, header, state));
    if (n == 0 && flags & FLAG_LOGITS) return fail_damaged(r, "it has logits and no tokens");
    if (!make_layout(state->model, n, flags & FLAG_LOGITS, l) || l->total != u64_at(header + AT_SIZE))
        return fail_damaged(r, "its header contradicts itself");
    if (r->size != l->total)
        return pn_fail(PN_ERR_DAMAGED,
                       "%.*s has %" PRIu64 " bytes instead of %" PRIu64
                       ": it was cut short or added to, and nothing of it was loaded; remove it and evaluate the ids "
                       "again",
                       PATH_SHOWN, r->path, r->size, l->total);
    return PN_OK;
}

/* What was read so far. */
typedef struct loaded {
    uint32_t *tokens; /* [n, at least 1] */
    uint16_t *chunk;
    float *logits; /* [V] or NULL */
    kv_cache kv;
} loaded;

static int get_ids(reader *r, const layout *l, uint32_t n_vocab, loaded *out) {
    const size_t n = (size_t)l->n_tokens;
    out->tokens = malloc(size_max(n, 1) * sizeof *out->tokens);
    if (!out->tokens) return pn_fail(PN_ERR_MEMORY, "state: no memory for %zu token ids", n);
    PN_TRY(get(r, out->tokens, n * sizeof *out->tokens));
    PN_TRY(check_digest(r, "the checksum of its token ids is wrong"));
    for (size_t i = 0; i < n; i++)
        if (out->tokens[i] >= n_vocab) return fail_damaged(r, "it holds a token id beyond the vocabulary");
    return PN_OK;
}

static void scatter(const kv_cache *kv, size_t position, const uint16_t *in) {
    const size_t block = position / KV_BLOCK, slot = position % KV_BLOCK, n = kv->head_size;
    for (size_t layer = 0; layer < kv->n_layer; layer++)
        for (size_t head = 0; head < kv->n_head_kv; head++) {
            uint16_t *keys = kv_keys(kv, layer, head, block) + slot;
            for (size_t e = 0; e < n; e++) keys[e * KV_BLOCK] = *in++;
            memcpy(kv_values(kv, layer, head, block) + slot * kv->e8, in, n * sizeof *in);
            in += n;
        }
}

static int get_cache(reader *r, const layout *l, loaded *out) {
    const size_t halves = (size_t)l->position_bytes / sizeof *out->chunk;
    PN_TRY(kv_reserve(&out->kv, (size_t)l->n_tokens));
    for (size_t at = 0; at < l->n_tokens; at += l->positions_per_chunk) {
        const size_t n = size_min(l->positions_per_chunk, (size_t)l->n_tokens - at);
        PN_TRY(get(r, out->chunk, n * (size_t)l->position_bytes));
        for (size_t i = 0; i < n; i++) scatter(&out->kv, at + i, out->chunk + i * halves);
    }
    return check_digest(r, "the checksum of its cache is wrong");
}

static int get_logits(reader *r, const layout *l, size_t n_vocab, loaded *out) {
    if (l->has_logits) {
        out->logits = malloc(n_vocab * sizeof *out->logits);
        if (!out->logits) return pn_fail(PN_ERR_MEMORY, "state: no memory for the logits of %zu tokens", n_vocab);
        PN_TRY(get(r, out->logits, n_vocab * sizeof *out->logits));
    }
    PN_TRY(check_digest(r, "the checksum of its logits is wrong"));
    for (size_t i = 0; l->has_logits && i < n_vocab; i++)
        if (!isfinite(out->logits[i])) return fail_damaged(r, "it holds logits that are not finite");
    return PN_OK;
}

static int get_parts(reader *r, const pn_state *state, uint64_t fingerprint, layout *l, loaded *out) {
    uint8_t header[HEADER_BYTES] = { 0 };
    const hparams *hp = &state->model->hp;
    PN_TRY(get_header(r, header));
    PN_TRY(check_header(r, header, state, fingerprint, l));
    out->chunk = chunk_new(l);
    if (!out->chunk) return PN_ERR_MEMORY;
    PN_TRY(get_ids(r, l, hp->n_vocab, out));
    PN_TRY(get_cache(r, l, out));
    return get_logits(r, l, hp->n_vocab, out);
}

static int load_entered(pn_state *state, uint64_t fingerprint, const char *path) {
    const hparams *hp = &state->model->hp;
    reader r;
    layout l = { 0 };
    loaded in = { 0 };
    kv_init(&in.kv, hp->n_layer, hp->n_head_kv, hp->head_size);
    int status = reader_open(&r, path);
    if (status == PN_OK) status = get_parts(&r, state, fingerprint, &l, &in);
    if (r.fd >= 0) close(r.fd);
    free(in.chunk);
    if (status == PN_OK) {
        state_adopt(state, in.tokens, (size_t)l.n_tokens, size_max((size_t)l.n_tokens, 1), &in.kv, in.logits);
        return PN_OK;
    }
    kv_clear(&in.kv);
    free(in.tokens);
    free(in.logits);
    return status;
}

int pn_state_load(pn_state *state, const char *path) {
    uint64_t fingerprint;
    if (!state || !path) return pn_fail(PN_ERR_ARGUMENT, "load: %s is NULL", state ? "the path" : "the state");
    PN_TRY(pn_model_fingerprint(state->model, &fingerprint));
    if (!state_enter(state)) return fail_busy();
    const int status = load_entered(state, fingerprint, path);
    state_leave(state);
    return status;
}
