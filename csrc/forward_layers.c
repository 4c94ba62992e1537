/* forward_layers.c - the transformer: a batch of tokens in, logits out.                                   (rank 10)
 *
 * RMSNorm, rotary positions, grouped-query attention, a gated feed-forward block, residual stream; with biases, norms
 * of heads and norms behind a block where the model has them. Reads properties of the model, never names. Every value
 * depends on its own token and the tokens before it in its state only, computed in one fixed order: batches, threads
 * and instruction sets change no bit. */
#include "forward_layers.h"

#include "attention.h"
#include "experts.h"
#include "mathf.h"
#include "status.h"

#include <string.h>

enum {
    PROGRESS_NS = 50000000,
    ROW_CHUNKS = 64, /* steps that go token by token are shared out in so many parts at most */
    SPLIT_JOBS = 32, /* with so few attention jobs, threads share the spans of each */
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
    size_t n, per_chunk;
} rows_work;

static void rows_chunk(void *context, size_t chunk) {
    const rows_work *work = context;
    const size_t first = chunk * work->per_chunk, end = size_min(first + work->per_chunk, work->n);
    for (size_t t = first; t < end; t++) work->fn(work->b, t);
}

static void run_n_rows(const batch *b, row_fn fn, size_t n) {
    rows_work work = { b, fn, n, (n + ROW_CHUNKS - 1) / ROW_CHUNKS };
    threads_run(b->pool, rows_chunk, &work, (n + work.per_chunk - 1) / work.per_chunk);
}

static void run_rows(const batch *b, row_fn fn) {
    run_n_rows(b, fn, b->n);
}

static const layer_weights *layer_of(const batch *b) {
    return &b->model->layers[b->layer];
}

static void embed_row(const batch *b, size_t t) {
    scratch *s = b->s;
    const pn_model *model = b->model;
    const size_t n_angles = model->rope.n_layers * model->rope.n_pairs;
    const float scale = model->hp.embd_scale;
    float *x = s->x + t * s->ld_d;
    matrix_read_row(&model->token_embd, b->rows[t].token, x);
    for (size_t i = 0; scale != 1.0f && i < model->hp.n_embd; i++) x[i] = x[i] * scale;
    rope_angles(&model->rope, b->rows[t].state->long_rope, b->rows[t].position, s->cosine + t * n_angles,
                s->sine + t * n_angles);
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
    norm_row(b, t, layer_of(b)->attn_norm);
}

static void add(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] + y[i];
}

/* What a block computed joins the residual stream, with its bias and through its norm where there are such. */
static void add_row(const batch *b, size_t t, const float *bias, const float *norm) {
    const pn_model *m = b->model;
    float *h = b->s->h + t * b->s->ld_d;
    if (bias) add(h, bias, m->hp.n_embd);
    if (norm) m->kernels.rms_norm(h, norm, h, m->hp.n_embd, m->hp.rms_eps);
    add(b->s->x + t * b->s->ld_d, h, m->hp.n_embd);
}

static void add_norm_ffn_row(const batch *b, size_t t) {
    const layer_weights *w = layer_of(b);
    add_row(b, t, w->out_bias, w->attn_post_norm);
    norm_row(b, t, w->ffn_norm);
}

static void add_ffn_row(const batch *b, size_t t) {
    add_row(b, t, layer_of(b)->down_bias, layer_of(b)->ffn_post_norm);
}

/* gate = gelu(gate) * up in GELU's tanh form (arXiv:1606.08415): x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)) with u =
 * sqrt(2 / pi) * (x + 0.044715 x^3), where 2u is kept within [-87, 87]. The same operations for every instruction set,
 * without a branch, so that compilers make vectors of it. */
static void geglu(float *restrict gate, const float *restrict up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float x = gate[i], minus_2u = (x + 0.044715f * (x * x * x)) * -1.59576912f;
        const uint32_t bits = f32_bits(minus_2u), size = bits & 0x7fffffffu, most = 0x42ae0000u; /* 87 */
        const float exponent = f32_from_bits((bits ^ size) | (size < most ? size : most));
        gate[i] = (x / (1.0f + exp_f32_in_range(exponent))) * up[i];
    }
}

static void gate_row(const batch *b, size_t t) {
    const scratch *s = b->s;
    const layer_weights *w = layer_of(b);
    const size_t n = b->model->hp.n_ff;
    float *gate = s->gate + t * s->ld_f, *up = s->up + t * s->ld_f;
    if (w->gate_bias) add(gate, w->gate_bias, n);
    if (w->up_bias) add(up, w->up_bias, n);
    if (b->model->hp.spec->gate == GATE_SILU)
        b->model->kernels.swiglu(gate, up, gate, n);
    else
        geglu(gate, up, n);
    finish_row(b, t);
}

/* Of the two planes of a product [2, n, ld] the first becomes the sum, row by row; then the bias is added. */
static void add_planes(const batch *b, const matrix *w, const float *bias, float *out, size_t ld, size_t t) {
    float *first = out + t * ld;
    if (matmul_planes(w, &b->s->activations) != 1) add(first, out + (b->n + t) * ld, w->rows);
    if (bias) add(first, bias, w->rows);
}

/* Each head of x[n_heads, E]: its norm, then its rotation, where the layer has them. */
static void finish_heads(const batch *b, size_t t, float *x, size_t n_heads, const float *norm) {
    const pn_model *m = b->model;
    const size_t size = m->hp.head_size, n_pairs = m->rope.n_pairs;
    const arch_layer kind = layer_of(b)->kind;
    const size_t at =
        (t * m->rope.n_layers + (kind.local && m->rope.n_layers > 1 ? ROPE_LOCAL : ROPE_GLOBAL)) * n_pairs;
    for (size_t h = 0; norm && h < n_heads; h++)
        m->kernels.rms_norm(x + h * size, norm, x + h * size, size, m->hp.rms_eps);
    if (kind.rotated) rope_rotate(&m->rope, x, n_heads, size, b->s->cosine + at, b->s->sine + at);
}

static void finish_qkv_row(const batch *b, size_t t) {
    const scratch *s = b->s;
    const hparams *hp = &b->model->hp;
    const layer_weights *w = layer_of(b);
    float *k = s->k + t * s->ld_k, *v = s->v + t * s->ld_k;
    add_planes(b, &w->q, w->q_bias, s->q, s->ld_q, t);
    add_planes(b, &w->k, w->k_bias, s->k, s->ld_k, t);
    add_planes(b, &w->v, w->v_bias, s->v, s->ld_k, t);
    finish_heads(b, t, s->q + t * s->ld_q, hp->n_head, w->q_norm);
    finish_heads(b, t, k, hp->n_head_kv, w->k_norm);
    kv_store(&b->model->kernels, &b->rows[t].state->kv, b->layer, b->rows[t].position, k, v);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

void batch_tile(batch *b) {
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
        .window = b->model->layers[b->layer].kind.local ? hp->window : 0,
        .scale = hp->attn_scale,
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
    if (span >= attention_first_span(&job) && span < attention_spans(&job))
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

size_t tokens_at_a_time(size_t macs_per_token, size_t most) {
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
    const layer_weights *w = layer_of(b);
    scratch *s = b->s;
    const matmul_job qkv[] = { { &w->q, s->q, s->ld_q }, { &w->k, s->k, s->ld_k }, { &w->v, s->v, s->ld_k } };
    const matmul_job out = { &w->out, s->h, s->ld_d };
    attach(b, s->h, s->ld_d, b->n, m->hp.n_embd, QKV_PLANES, qkv, 3);
    run_rows(b, norm_attn_row);
    PN_TRY(multiply(b, b->n, qkv, 3));
    run_rows(b, finish_qkv_row);
    attend(b);
    attach(b, s->o, s->ld_q, b->n, (size_t)m->hp.n_head * m->hp.head_size, 1, &out, 1);
    if (b->quantize) run_rows(b, finish_row);
    return multiply(b, b->n, &out, 1);
}

static int block_dense(batch *b) {
    const pn_model *m = b->model;
    const layer_weights *w = layer_of(b);
    scratch *s = b->s;
    const matmul_job gate_up[] = { { &w->gate, s->gate, s->ld_f }, { &w->up, s->up, s->ld_f } };
    const matmul_job down = { &w->down, s->h, s->ld_d };
    attach(b, s->h, s->ld_d, b->n, m->hp.n_embd, 1, gate_up, 2);
    run_rows(b, add_norm_ffn_row);
    PN_TRY(multiply(b, b->n, gate_up, 2));
    attach(b, s->gate, s->ld_f, b->n, m->hp.n_ff, 1, &down, 1);
    run_rows(b, gate_row);
    return multiply(b, b->n, &down, 1);
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

static void choose_row(const batch *b, size_t t) {
    scratch *s = b->s;
    experts_choose(s->shares + t * s->ld_x, b->model->hp.n_expert, b->model->hp.n_expert_used);
    memset(s->sum + t * s->ld_d, 0, b->model->hp.n_embd * sizeof *s->sum);
}

/* Member i of the expert whose turn it is: its input, its product, and what becomes of that. */
static void gather_member(const batch *b, size_t i) {
    const scratch *s = b->s;
    memcpy(s->member + i * s->ld_d, s->h + b->members[i] * s->ld_d, b->model->hp.n_embd * sizeof *s->h);
    finish_row(b, i);
}

static void add_member(const batch *b, size_t i) {
    const scratch *s = b->s;
    const size_t t = b->members[i];
    const float share = s->shares[t * s->ld_x + b->expert], *out = s->member + i * s->ld_d;
    float *sum = s->sum + t * s->ld_d;
    for (size_t d = 0; d < b->model->hp.n_embd; d++) sum[d] = sum[d] + out[d] * share;
}

/* One expert for those that chose it, as if it were the whole block. */
static int run_expert(batch *b) {
    const pn_model *m = b->model;
    const expert_weights *w = &layer_of(b)->experts[b->expert];
    scratch *s = b->s;
    const matmul_job gate_up[] = { { &w->gate, s->gate, s->ld_f }, { &w->up, s->up, s->ld_f } };
    const matmul_job down = { &w->down, s->member, s->ld_d };
    attach(b, s->member, s->ld_d, b->n_members, m->hp.n_embd, 1, gate_up, 2);
    run_n_rows(b, gather_member, b->n_members);
    PN_TRY(multiply(b, b->n_members, gate_up, 2));
    attach(b, s->gate, s->ld_f, b->n_members, m->hp.n_ff, 1, &down, 1);
    run_n_rows(b, gate_row, b->n_members);
    PN_TRY(multiply(b, b->n_members, &down, 1));
    run_n_rows(b, add_member, b->n_members);
    return PN_OK;
}

/* Results are added in the order of the experts' numbers, whoever else is in the batch. Experts that nobody chose are
 * not read. */
static int block_experts(batch *b) {
    const pn_model *m = b->model;
    scratch *s = b->s;
    const matmul_job router = { &layer_of(b)->router, s->shares, s->ld_x };
    attach(b, s->h, s->ld_d, b->n, m->hp.n_embd, 1, &router, 1);
    run_rows(b, add_norm_ffn_row);
    PN_TRY(multiply(b, b->n, &router, 1));
    run_rows(b, choose_row);
    for (b->expert = 0; b->expert < m->hp.n_expert; b->expert++) {
        b->n_members = experts_members(s->shares, s->ld_x, b->n, b->expert, b->members);
        if (b->n_members) PN_TRY(run_expert(b));
    }
    float *const inputs = s->h;
    s->h = s->sum; /* where the layer looks for what the block computed */
    s->sum = inputs;
    return PN_OK;
}

/* ---- all layers ------------------------------------------------------------------------------------------------ */

static int block_ffn(batch *b) {
    PN_TRY(layer_of(b)->experts ? block_experts(b) : block_dense(b));
    run_rows(b, add_ffn_row);
    return PN_OK;
}

/* x = cap * tanh(x / cap), if there is a cap; tanh(y) = (1 - e) / (1 + e) with e = exp(-2y). */
static void cap_logits(float *x, size_t n, float cap) {
    for (size_t i = 0; cap > 0 && i < n; i++) {
        const float e = exp_f32(x[i] / cap * -2.0f);
        x[i] = (1.0f - e) / (1.0f + e) * cap;
    }
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
        for (size_t i = 0; i < n; i++) {
            cap_logits(s->logits + i * s->ld_v, m->hp.n_vocab, m->hp.logit_cap);
            memcpy(targets[i], s->logits + i * s->ld_v, m->hp.n_vocab * sizeof(float));
        }
    }
    return PN_OK;
}

int batch_run(batch *b) {
    run_rows(b, embed_row);
    for (b->layer = 0; b->layer < b->model->hp.n_layer; b->layer++) {
        PN_TRY(block_attention(b));
        PN_TRY(block_ffn(b));
    }
    return b->wants_logits ? head_logits(b) : PN_OK;
}
