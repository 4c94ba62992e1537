/* forward.c - a ragged batch of tokens in, logits out: pn_eval.                                           (rank 10)
 *
 * The transformer of the llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, residual stream.
 * Reads properties of the model, never names. Every value depends on its own token and the tokens before it in its
 * state only, computed in one fixed order: batches, threads and instruction sets change no bit. */
#include "forward.h"

#include "attention.h"
#include "mathf.h"
#include "pantheon.h"
#include "status.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum {
    PROGRESS_NS = 50000000,
    BATCH_MIN = 16, /* below it a prompt reads the weights too often */
    /* Half of all that rounding activations to 8 bits costs (Kullback-Leibler divergence from a float64 evaluation)
     * comes from the inputs of queries, keys and values, a sixth of the products: those get 16 bits, as two planes of
     * 8. */
    QKV_PLANES = 2,
    ROW_CHUNKS = 64, /* steps that go token by token are shared out in so many parts at most */
    SPLIT_JOBS = 32, /* with so few attention jobs, threads share the spans of each */
};

/* One token of a batch. */
typedef struct row {
    pn_state *state;
    uint32_t token;
    size_t position;
    float *logits; /* where its logits go, or NULL */
} row;

/* Consecutive tokens of one state: rows [row, row + n). */
typedef struct tile {
    size_t row, n;
} tile;

typedef struct watch watch;

typedef struct batch {
    pn_model *model;
    scratch *s;
    threads *pool; /* entered, or NULL */
    row rows[BATCH_MAX];
    size_t n;
    tile tiles[BATCH_MAX]; /* for attention */
    size_t n_tiles;
    size_t n_parts, part_heads; /* the query heads of a key head are handled in parts of so many */
    size_t n_spans;             /* of the longest cache */
    size_t partial_floats;      /* of one job's results over all spans, at most */
    size_t layer;
    bool wants_logits;
    bool quantize; /* the next product wants its activations in 8 bits */
    watch *watch;
} batch;

/* What the caller sees of a running evaluation. */
struct watch {
    const pn_slice *slices;
    size_t n_slices;
    pn_progress_callback progress;
    void *user_data;
    size_t done, total; /* tokens */
    struct timespec last;
};

/* ---- cancellation and progress ------------------------------------------------------------------------------ */

static int watch_check(watch *w, double in_batch) {
    for (size_t i = 0; i < w->n_slices; i++)
        if (state_take_cancel(w->slices[i].state)) return pn_fail(PN_ERR_CANCELLED, "eval: cancelled");
    if (!w->progress) return PN_OK;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - w->last.tv_sec) * 1000000000 + (now.tv_nsec - w->last.tv_nsec) < PROGRESS_NS) return PN_OK;
    w->last = now;
    if (w->progress(w->user_data, ((double)w->done + in_batch) / (double)w->total))
        return pn_fail(PN_ERR_CANCELLED, "eval: cancelled by the progress callback");
    return PN_OK;
}

/* ---- the steps of a layer that go token by token ------------------------------------------------------------- */

typedef void (*row_fn)(const batch *b, size_t row);

typedef struct rows_work {
    const batch *b;
    row_fn fn;
    size_t per_chunk;
} rows_work;

static void rows_chunk(void *context, size_t chunk) {
    const rows_work *work = context;
    const size_t first = chunk * work->per_chunk, end = size_min(first + work->per_chunk, work->b->n);
    for (size_t t = first; t < end; t++) work->fn(work->b, t);
}

static void run_rows(const batch *b, row_fn fn) {
    rows_work work = { b, fn, (b->n + ROW_CHUNKS - 1) / ROW_CHUNKS };
    threads_run(b->pool, rows_chunk, &work, (b->n + work.per_chunk - 1) / work.per_chunk);
}

static void embed_row(const batch *b, size_t t) {
    scratch *s = b->s;
    const matrix *embd = &b->model->token_embd;
    const pn_model *model = b->model;
    matrix_read_row(embd, b->rows[t].token, s->x + t * s->ld_d);
    const size_t half = model->hp.n_rot / 2;
    for (size_t i = 0; i < half; i++) {
        double sine, cosine;
        sincos_f64((double)b->rows[t].position * model->rope_freqs[i], &sine, &cosine);
        s->sine[t * half + i] = (float)sine;
        s->cosine[t * half + i] = (float)cosine;
    }
}

/* A row of activations is complete: whoever wrote it quantizes it, too, while it is in the cache. */
static void finish_row(const batch *b, size_t t) {
    if (b->quantize) act_quantize(&b->s->activations, t, &b->model->kernels);
}

static void norm_row(const batch *b, size_t t, const float *weights) {
    const pn_model *m = b->model;
    m->kernels.rms_norm(b->s->x + t * b->s->ld_d, weights, b->s->h + t * b->s->ld_d, m->hp.n_embd, m->hp.rms_eps);
    finish_row(b, t);
}

static void norm_attn_row(const batch *b, size_t t) {
    norm_row(b, t, b->model->layers[b->layer].attn_norm);
}

/* What a block computed joins the residual stream. */
static void add_row(const batch *b, size_t t) {
    float *x = b->s->x + t * b->s->ld_d;
    const float *h = b->s->h + t * b->s->ld_d;
    for (size_t i = 0; i < b->model->hp.n_embd; i++) x[i] = x[i] + h[i];
}

static void add_norm_ffn_row(const batch *b, size_t t) {
    add_row(b, t);
    norm_row(b, t, b->model->layers[b->layer].ffn_norm);
}

static void swiglu_row(const batch *b, size_t t) {
    const scratch *s = b->s;
    b->model->kernels.swiglu(s->gate + t * s->ld_f, s->up + t * s->ld_f, s->gate + t * s->ld_f, b->model->hp.n_ff);
    finish_row(b, t);
}

/* Rotate each head's pairs in place: (a, b) -> (a cos - b sin, a sin + b cos). */
static void rotate(float *x, size_t n_heads, const hparams *hp, const float *cosine, const float *sine) {
    const size_t half = hp->n_rot / 2;
    const bool interleaved = hp->spec->rope == ROPE_INTERLEAVED;
    for (size_t h = 0; h < n_heads; h++, x += hp->head_size)
        for (size_t i = 0; i < half; i++) {
            float *first = interleaved ? x + 2 * i : x + i, *second = interleaved ? first + 1 : first + half;
            const float a = *first, b = *second;
            *first = a * cosine[i] - b * sine[i];
            *second = a * sine[i] + b * cosine[i];
        }
}

/* Of the two planes of a product [2, n, ld] the first becomes the sum, row by row. */
static void add_planes(const batch *b, const matrix *w, float *out, size_t ld, size_t t) {
    if (matmul_planes(w, &b->s->activations) == 1) return;
    float *first = out + t * ld;
    const float *second = out + (b->n + t) * ld;
    for (size_t i = 0; i < w->rows; i++) first[i] = first[i] + second[i];
}

static void rotate_and_store_row(const batch *b, size_t t) {
    const scratch *s = b->s;
    const hparams *hp = &b->model->hp;
    const size_t half = hp->n_rot / 2;
    const layer_weights *w = &b->model->layers[b->layer];
    add_planes(b, &w->q, s->q, s->ld_q, t);
    add_planes(b, &w->k, s->k, s->ld_k, t);
    add_planes(b, &w->v, s->v, s->ld_k, t);
    rotate(s->q + t * s->ld_q, hp->n_head, hp, s->cosine + t * half, s->sine + t * half);
    rotate(s->k + t * s->ld_k, hp->n_head_kv, hp, s->cosine + t * half, s->sine + t * half);
    kv_store(&b->model->kernels, &b->rows[t].state->kv, b->layer, b->rows[t].position, s->k + t * s->ld_k,
             s->v + t * s->ld_k);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* Job `index` of n_head_kv * n_parts * n_tiles. All tiles of a head come in a row, for they read the same keys and
 * values. Late tokens have the most keys: they come first, so that the last jobs are short ones. */
static attend_job attention_job(const batch *b, size_t index) {
    const scratch *s = b->s;
    const hparams *hp = &b->model->hp;
    const size_t part = index / b->n_tiles % b->n_parts, head = index / b->n_tiles / b->n_parts;
    const tile *t = &b->tiles[b->n_tiles - 1 - index % b->n_tiles];
    const size_t heads = hp->n_head / hp->n_head_kv, first = part * b->part_heads;
    const size_t at = t->row * s->ld_q + (head * heads + first) * hp->head_size;
    return (attend_job){
        .kernels = &b->model->kernels,
        .kv = &b->rows[t->row].state->kv,
        .layer = b->layer,
        .head = head,
        .position = b->rows[t->row].position,
        .n_tokens = t->n,
        .n_q = size_min(b->part_heads, heads - first),
        .q = s->q + at,
        .out = s->o + at,
        .ld_q = s->ld_q,
        .ld_out = s->ld_q,
    };
}

static void attend_job_chunk(void *context, size_t chunk) {
    const attend_job job = attention_job(context, chunk);
    attention_run(&job);
}

/* The results of a job's spans, in memory for the largest job with the most spans. */
static float *partials_of(const batch *b, size_t index) {
    return b->s->partials + index * b->partial_floats;
}

static void attend_span_chunk(void *context, size_t chunk) {
    const batch *b = context;
    const size_t index = chunk / b->n_spans, span = chunk % b->n_spans;
    const attend_job job = attention_job(b, index);
    if (span < attention_spans(&job))
        attention_span(&job, span, partials_of(b, index) + span * attention_partial_floats(&job));
}

static void attend_finish_chunk(void *context, size_t chunk) {
    const attend_job job = attention_job(context, chunk);
    attention_finish(&job, partials_of(context, chunk));
}

static void attend(batch *b) {
    const size_t n_jobs = b->n_tiles * b->model->hp.n_head_kv * b->n_parts;
    const bool split = b->pool && n_jobs <= SPLIT_JOBS && b->n_spans > 1 && n_jobs * b->n_spans < THREADS_CHUNKS_MAX;
    if (split && scratch_reserve_partials(b->s, n_jobs * b->partial_floats)) {
        threads_run(b->pool, attend_span_chunk, b, n_jobs * b->n_spans);
        threads_run(b->pool, attend_finish_chunk, b, n_jobs);
    } else {
        threads_run(b->pool, attend_job_chunk, b, n_jobs);
    }
}

/* ---- products ------------------------------------------------------------------------------------------------ */

/* Tokens whose largest product takes about a tenth of a second on one core: between products a cancel is seen. */
static size_t tokens_at_a_time(size_t macs_per_token, size_t most) {
    const size_t budget = (size_t)4 << 30;
    return size_max(1, size_min(most, budget / size_max(macs_per_token, 1)));
}

/* The next products read x[n_tokens, ld] with K = k values, and up to 4 matrices share them. */
static void attach(batch *b, const float *x, size_t ld, size_t n_tokens, size_t k, size_t planes,
                   const matmul_job *jobs, size_t n_jobs) {
    const bool blas = matmul_uses_blas(n_tokens, b->model->use_blas); /* which reads x itself */
    b->quantize = false;
    for (size_t j = 0; j < n_jobs; j++) b->quantize |= pack_is_quantized(jobs[j].w->kind);
    act_attach(&b->s->activations, x, ld, n_tokens, k, blas ? 1 : planes);
}

/* Run them. Ends with PN_ERR_CANCELLED instead if that is wanted. */
static int multiply(batch *b, size_t n_tokens, const matmul_job *jobs, size_t n_jobs) {
    const pn_model *m = b->model;
    PN_TRY(watch_check(b->watch, (double)b->n * (double)b->layer / m->hp.n_layer));
    matmul_run(jobs, n_jobs, &b->s->activations, n_tokens, &m->kernels, b->pool, m->use_blas);
    return PN_OK;
}

static int block_attention(batch *b) {
    const pn_model *m = b->model;
    const layer_weights *w = &m->layers[b->layer];
    scratch *s = b->s;
    const matmul_job qkv[] = { { &w->q, s->q, s->ld_q }, { &w->k, s->k, s->ld_k }, { &w->v, s->v, s->ld_k } };
    const matmul_job out = { &w->out, s->h, s->ld_d };
    attach(b, s->h, s->ld_d, b->n, m->hp.n_embd, QKV_PLANES, qkv, 3);
    run_rows(b, norm_attn_row);
    PN_TRY(multiply(b, b->n, qkv, 3));
    run_rows(b, rotate_and_store_row);
    attend(b);
    attach(b, s->o, s->ld_q, b->n, (size_t)m->hp.n_head * m->hp.head_size, 1, &out, 1);
    if (b->quantize) run_rows(b, finish_row);
    return multiply(b, b->n, &out, 1);
}

static int block_ffn(batch *b) {
    const pn_model *m = b->model;
    const layer_weights *w = &m->layers[b->layer];
    scratch *s = b->s;
    const matmul_job gate_up[] = { { &w->gate, s->gate, s->ld_f }, { &w->up, s->up, s->ld_f } };
    const matmul_job down = { &w->down, s->h, s->ld_d };
    attach(b, s->h, s->ld_d, b->n, m->hp.n_embd, 1, gate_up, 2);
    run_rows(b, add_norm_ffn_row);
    PN_TRY(multiply(b, b->n, gate_up, 2));
    attach(b, s->gate, s->ld_f, b->n, m->hp.n_ff, 1, &down, 1);
    run_rows(b, swiglu_row);
    PN_TRY(multiply(b, b->n, &down, 1));
    run_rows(b, add_row);
    return PN_OK;
}

/* Logits of the rows that want them, a few at a time. */
static int head_logits(batch *b) {
    const pn_model *m = b->model;
    scratch *s = b->s;
    const matmul_job job = { m->output.data ? &m->output : &m->token_embd, s->logits, s->ld_v };
    const size_t most = tokens_at_a_time((size_t)m->hp.n_vocab * m->hp.n_embd, s->n_logits);
    for (size_t t = 0; t < b->n;) {
        float *targets[LOGIT_ROWS];
        size_t n = 0;
        attach(b, s->h, s->ld_d, most, m->hp.n_embd, 1, &job, 1);
        for (; t < b->n && n < most; t++) {
            if (!b->rows[t].logits) continue;
            m->kernels.rms_norm(s->x + t * s->ld_d, m->output_norm, s->h + n * s->ld_d, m->hp.n_embd, m->hp.rms_eps);
            finish_row(b, n);
            targets[n++] = b->rows[t].logits;
        }
        if (!n) break;
        PN_TRY(multiply(b, n, &job, 1));
        for (size_t i = 0; i < n; i++) memcpy(targets[i], s->logits + i * s->ld_v, m->hp.n_vocab * sizeof(float));
    }
    return PN_OK;
}

static int batch_run(batch *b) {
    run_rows(b, embed_row);
    for (b->layer = 0; b->layer < b->model->hp.n_layer; b->layer++) {
        PN_TRY(block_attention(b));
        PN_TRY(block_ffn(b));
    }
    return b->wants_logits ? head_logits(b) : PN_OK;
}

/* ---- slices to batches ---------------------------------------------------------------------------------------- */

/* Where in the slices the next token comes from. */
typedef struct cursor {
    size_t slice, token;
} cursor;

static int fail_token(size_t at, uint32_t token, uint32_t n_vocab) {
    return pn_fail(PN_ERR_ARGUMENT, "eval: token %zu is %u; the vocabulary has %u", at, token, n_vocab);
}

/* Cut the rows into tiles for attention. */
static void batch_tile(batch *b) {
    const hparams *hp = &b->model->hp;
    const size_t most = attention_rows(&b->rows[0].state->kv), heads = hp->n_head / hp->n_head_kv;
    b->part_heads = size_min(heads, most);
    b->n_parts = (heads + b->part_heads - 1) / b->part_heads;
    size_t longest = 1;
    b->n_tiles = b->n_spans = 0;
    for (size_t i = 0; i < b->n; i++) {
        tile *last = b->n_tiles ? &b->tiles[b->n_tiles - 1] : NULL;
        if (last && b->rows[last->row].state == b->rows[i].state && (last->n + 1) * b->part_heads <= most)
            longest = size_max(longest, ++last->n);
        else
            b->tiles[b->n_tiles++] = (tile){ i, 1 };
        b->n_spans = size_max(b->n_spans, b->rows[i].position / SPAN_KEYS + 1);
    }
    b->partial_floats = b->n_spans * longest * b->part_heads * (b->rows[0].state->kv.e8 + 2);
}

/* Take up to `most` tokens; each state's room is reserved. The caller's ids are read once and checked as read: another
 * thread of a careless caller may write to them. */
static int batch_fill(batch *b, const watch *w, cursor *at, size_t most) {
    const uint32_t n_vocab = b->model->hp.n_vocab;
    b->n = 0;
    b->wants_logits = false;
    while (b->n < most && at->slice < w->n_slices) {
        const pn_slice *slice = &w->slices[at->slice];
        const size_t n = size_min(slice->n - at->token, most - b->n);
        PN_TRY(state_reserve(slice->state, slice->state->n_tokens + n));
        for (size_t i = 0; i < n; i++, at->token++) {
            float *logits = at->token + 1 == slice->n ? slice->state->logits : NULL;
            if (slice->all_logits) logits = slice->all_logits + at->token * n_vocab;
            row *r = &b->rows[b->n++];
            *r = (row){ slice->state, slice->tokens[at->token], slice->state->n_tokens + i, logits };
            if (r->token >= n_vocab) return fail_token(at->token, r->token, n_vocab);
            b->wants_logits |= logits != NULL;
        }
        if (at->token == slice->n) *at = (cursor){ at->slice + 1, 0 };
    }
    batch_tile(b);
    return PN_OK;
}

/* The tokens of a finished batch now belong to their states. */
static void batch_commit(batch *b) {
    for (size_t t = 0; t < b->n; t++) {
        pn_state *state = b->rows[t].state;
        state->tokens[state->n_tokens++] = b->rows[t].token;
    }
}

/* Every row that the caller gets; only when all are finite does any state have logits. */
static int check_logits(const watch *w, uint32_t n_vocab) {
    for (size_t i = 0; i < w->n_slices; i++) {
        const pn_slice *slice = &w->slices[i];
        const float *rows = slice->all_logits ? slice->all_logits : slice->state->logits;
        const size_t n_rows = slice->all_logits ? slice->n : 1;
        for (size_t v = 0; v < n_rows * n_vocab; v++)
            if (!isfinite(rows[v]))
                return pn_fail(PN_ERR_NUMERIC,
                               "eval: the logit of token %zu is not finite: the weights overflow or hold NaN",
                               v % n_vocab);
    }
    for (size_t i = 0; i < w->n_slices; i++) {
        const pn_slice *slice = &w->slices[i];
        if (slice->all_logits)
            memcpy(slice->state->logits, slice->all_logits + (slice->n - 1) * n_vocab, n_vocab * sizeof(float));
        slice->state->has_logits = true;
    }
    return PN_OK;
}

static int eval_all(pn_model *model, watch *w) {
    const hparams *hp = &model->hp;
    const scratch_shape shape = {
        hp->n_embd, (size_t)hp->n_head * hp->head_size, (size_t)hp->n_head_kv * hp->head_size, hp->n_ff, hp->n_rot,
        hp->n_vocab
    };
    size_t n_logits = w->n_slices;
    for (size_t i = 0; i < w->n_slices; i++) n_logits += w->slices[i].all_logits ? w->slices[i].n : 0;
    /* The widest product of a layer: queries, keys and values, or gate and up. */
    const size_t widest = size_max(QKV_PLANES * (shape.q + 2 * shape.k), 2 * shape.f) * shape.d;
    const size_t most = size_max(BATCH_MIN, tokens_at_a_time(widest, BATCH_MAX));
    batch b = { .model = model, .watch = w };
    PN_TRY(scratch_take(&model->scratch, &shape, size_min(w->total, most), size_min(n_logits, LOGIT_ROWS), &b.s));
    const fp_env saved = fp_enter();
    b.pool = threads_enter(model->pool) ? model->pool : NULL;
    cursor at = { 0, 0 };
    int status = PN_OK;
    while (status == PN_OK && w->done < w->total) {
        if ((status = batch_fill(&b, w, &at, most)) != PN_OK || (status = batch_run(&b)) != PN_OK) break;
        batch_commit(&b);
        w->done += b.n;
    }
    if (b.pool) threads_leave(b.pool);
    fp_leave(saved);
    scratch_give(&model->scratch, b.s);
    return status == PN_OK ? check_logits(w, hp->n_vocab) : status;
}

static int check_slice(const pn_model *model, const pn_slice *slice, size_t index) {
    const pn_state *state = slice->state;
    if (!slice->tokens || !slice->n) return pn_fail(PN_ERR_ARGUMENT, "eval: slice %zu has no tokens", index);
    if (slice->n > model->hp.n_ctx || state->n_tokens > model->hp.n_ctx - slice->n)
        return pn_fail(PN_ERR_CONTEXT, "eval: %zu tokens held and %zu new ones exceed the context of %u",
                       state->n_tokens, slice->n, model->hp.n_ctx);
    for (size_t i = 0; i < slice->n; i++)
        if (slice->tokens[i] >= model->hp.n_vocab) return fail_token(i, slice->tokens[i], model->hp.n_vocab);
    return PN_OK;
}

/* All states are entered. */
static int eval_entered(pn_model *model, watch *w) {
    clock_gettime(CLOCK_MONOTONIC, &w->last);
    for (size_t i = 0; i < w->n_slices; i++) {
        PN_TRY(check_slice(model, &w->slices[i], i));
        w->total += w->slices[i].n;
    }
    for (size_t i = 0; i < w->n_slices; i++) w->slices[i].state->has_logits = false;
    return eval_all(model, w);
}

int forward_eval(pn_state *state, const uint32_t *tokens, size_t n, float *all_logits, pn_progress_callback progress,
                 void *user_data) {
    const pn_slice slice = { .state = state, .tokens = tokens, .n = n, .all_logits = all_logits };
    watch w = { .slices = &slice, .n_slices = 1, .progress = progress, .user_data = user_data };
    return eval_entered(state->model, &w);
}

int pn_eval(pn_model *model, const pn_slice *slices, size_t n_slices, pn_progress_callback progress, void *user_data) {
    if (!model || !slices || !n_slices) return pn_fail(PN_ERR_ARGUMENT, "eval: no model or no slices");
    watch w = { .slices = slices, .n_slices = n_slices, .progress = progress, .user_data = user_data };
    int status = PN_OK;
    size_t entered = 0;
    for (; status == PN_OK && entered < n_slices; entered++) {
        pn_state *state = slices[entered].state;
        if (!state || state->model != model)
            status = pn_fail(PN_ERR_ARGUMENT, "eval: the state of slice %zu does not belong to this model", entered);
        else if (!state_enter(state))
            status = pn_fail(PN_ERR_BUSY, "eval: the state of slice %zu is in use by another call or slice", entered);
        if (status != PN_OK) break;
    }
    if (status == PN_OK) status = eval_entered(model, &w);
    for (size_t i = 0; i < entered; i++) state_leave(slices[i].state);
    return status;
}
