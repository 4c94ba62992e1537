/* quantize.c - a GGUF file in, one with its weight matrices in another element type out.                (rank 4)
 *
 * Which type a tensor gets is the affair of quantize_mix.c. What has its type already is copied byte for byte. All
 * metadata is kept in order and byte for byte, but for general.file_type and general.quantization_version, which are
 * set where they stand or added at the end. The alignment is kept; the version written is 3. A fixed amount of memory,
 * and the bytes do not depend on the number of threads.
 * Know first: the new file takes its name only when all of it is on the disk (sink.h), so the input may be the
 * output. */
#include "common.h"
#include "dtype.h"
#include "gguf.h"
#include "pantheon.h"
#include "quantize_mix.h"
#include "sink.h"
#include "status.h"
#include "threads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUANTIZE_CHUNK = 1 << 15, /* elements converted at a time: a multiple of every block length, small enough for L2 */
    QUANTIZE_PIECES = 16,     /* of a tensor that are converted together, then written                               */
    QUANTIZE_VERSION = 3,     /* of the container                                                                    */
    QUANTIZE_LAYOUT = 2,      /* general.quantization_version: the block layouts in use since May 2023               */
};

static const char FILE_TYPE_KEY[] = "general.file_type";
static const char LAYOUT_KEY[] = "general.quantization_version";

/* ---- what becomes what --------------------------------------------------------------------------------------- */

typedef struct plan {
    const dtype_info *from, *to;
    uint64_t n_elements;
    uint64_t offset, size; /* in the new file; offset from the start of its data */
} plan;

typedef struct job {
    const pn_gguf *gguf;
    quantize_mix mix;
    plan *plans;                                 /* [n_tensors]         */
    uint64_t n_tensors, total_bytes, done_bytes; /* bytes of the input's tensors */
    float *floats;                               /* [QUANTIZE_PIECES][QUANTIZE_CHUNK]     */
    uint8_t *encoded;                            /* [QUANTIZE_PIECES][QUANTIZE_CHUNK * 4] */
    threads *pool;                               /* entered by this thread, or NULL */
    sink out;
    pn_progress_callback progress;
    void *user_data;
} job;

static int quantize_plan_one(job *j, uint64_t index, uint64_t *offset) {
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(j->gguf, index, &info));
    plan *p = &j->plans[index];
    p->from = dtype_any(info.type);
    p->to = quantize_mix_choose(&j->mix, &info);
    if (p->from != p->to && !p->from->dequantize)
        return pn_fail(PN_ERR_UNSUPPORTED, "tensor \"%.*s\" has element type %s, which this version cannot read",
                       (int)info.name_len, info.name, info.type_name);
    /* elements <= bytes * 256, the longest block */
    bool fits = u64_mul(info.size / p->from->block_bytes, p->from->block_len, &p->n_elements) &&
                u64_mul(p->n_elements / p->to->block_len, p->to->block_bytes, &p->size);
    p->offset = *offset;
    fits = fits && u64_add(*offset, p->size, offset) && u64_align_up(*offset, gguf_alignment(j->gguf), offset);
    if (!fits)
        return pn_fail(PN_ERR_UNSUPPORTED, "tensor \"%.*s\" as %s: the file would be too large", (int)info.name_len,
                       info.name, p->to->name);
    j->total_bytes += info.size; /* they do not overlap, so the sum is at most the size of the file */
    return PN_OK;
}

static int quantize_plan(job *j) {
    uint64_t offset = 0;
    j->n_tensors = pn_gguf_n_tensors(j->gguf);
    j->plans = calloc((size_t)j->n_tensors + 1, sizeof *j->plans);
    j->floats = malloc(QUANTIZE_PIECES * QUANTIZE_CHUNK * sizeof *j->floats);
    j->encoded = malloc(QUANTIZE_PIECES * QUANTIZE_CHUNK * sizeof *j->floats);
    if (!j->plans || !j->floats || !j->encoded)
        return pn_fail(PN_ERR_MEMORY, "quantize: no memory for a table of %" PRIu64 " tensors", j->n_tensors);
    for (uint64_t i = 0; i < j->n_tensors; i++) PN_TRY(quantize_plan_one(j, i, &offset));
    return PN_OK;
}

/* ---- the header ---------------------------------------------------------------------------------------------- */

static int quantize_write_u32(job *j, const char *key, uint32_t value) {
    PN_TRY(sink_string(&j->out, key, strlen(key)));
    PN_TRY(sink_u32(&j->out, PN_VALUE_U32));
    return sink_u32(&j->out, value);
}

static int quantize_write_metadata(job *j) {
    const uint64_t n = pn_gguf_n_metadata(j->gguf);
    const int64_t file_type_at = gguf_find_metadata(j->gguf, FILE_TYPE_KEY);
    const int64_t layout_at = gguf_find_metadata(j->gguf, LAYOUT_KEY);
    const uint32_t file_type = quantize_mix_file_type(&j->mix);
    PN_TRY(sink_u64(&j->out, n + (file_type_at < 0) + (layout_at < 0)));
    for (uint64_t i = 0; i < n; i++) {
        size_t len;
        const uint8_t *bytes = gguf_metadata_bytes(j->gguf, i, &len);
        if ((int64_t)i == file_type_at)
            PN_TRY(quantize_write_u32(j, FILE_TYPE_KEY, file_type));
        else if ((int64_t)i == layout_at)
            PN_TRY(quantize_write_u32(j, LAYOUT_KEY, QUANTIZE_LAYOUT));
        else
            PN_TRY(sink_write(&j->out, bytes, len));
    }
    if (file_type_at < 0) PN_TRY(quantize_write_u32(j, FILE_TYPE_KEY, file_type));
    if (layout_at < 0) PN_TRY(quantize_write_u32(j, LAYOUT_KEY, QUANTIZE_LAYOUT));
    return PN_OK;
}

static int quantize_write_directory(job *j) {
    for (uint64_t i = 0; i < j->n_tensors; i++) {
        pn_tensor_info info;
        PN_TRY(pn_gguf_tensor(j->gguf, i, &info));
        PN_TRY(sink_string(&j->out, info.name, info.name_len));
        PN_TRY(sink_u32(&j->out, (uint32_t)info.n_dims));
        for (int d = 0; d < info.n_dims; d++) PN_TRY(sink_u64(&j->out, info.dims[d]));
        PN_TRY(sink_u32(&j->out, (uint32_t)j->plans[i].to->id));
        PN_TRY(sink_u64(&j->out, j->plans[i].offset));
    }
    return sink_pad(&j->out, gguf_alignment(j->gguf));
}

static int quantize_write_header(job *j) {
    PN_TRY(sink_write(&j->out, "GGUF", 4));
    PN_TRY(sink_u32(&j->out, QUANTIZE_VERSION));
    PN_TRY(sink_u64(&j->out, j->n_tensors));
    PN_TRY(quantize_write_metadata(j));
    return quantize_write_directory(j);
}

/* ---- the data ------------------------------------------------------------------------------------------------ */

/* One piece of a tensor on its way, by whichever thread. */
typedef struct piece {
    const plan *plan;
    const uint8_t *src;
    size_t n, src_bytes;
    float *floats;    /* [QUANTIZE_CHUNK]     */
    uint8_t *encoded; /* [QUANTIZE_CHUNK * 4] */
    float magnitude;  /* the largest finite one */
    bool all_finite;
} piece;

/* Largest finite magnitude, and whether NaN or infinity is among the values. */
static float quantize_survey(const float *x, size_t n, bool *all_finite) {
    uint32_t max = 0, special = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = f32_bits(x[i]) & 0x7fffffffu;
        const bool finite = bits < 0x7f800000u;
        special |= !finite;
        max = finite && bits > max ? bits : max;
    }
    *all_finite = !special;
    return f32_from_bits(max);
}

static void quantize_piece(void *context, size_t index) {
    piece *p = (piece *)context + index;
    if (p->plan->from == p->plan->to) return;
    p->plan->from->dequantize(p->src, p->floats, p->n);
    p->magnitude = quantize_survey(p->floats, p->n, &p->all_finite);
    p->plan->to->quantize(p->floats, p->encoded, p->n);
}

/* One bad value would make a block unreadable; a value that overflows would silently become infinite. */
static int quantize_check_piece(const job *j, const piece *p) {
    const dtype_info *to = p->plan->to;
    if (p->magnitude < to->limit && (p->all_finite || to->block_len == 1)) return PN_OK;
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(j->gguf, (uint64_t)(p->plan - j->plans), &info));
    if (!(p->magnitude < to->limit))
        return pn_fail(PN_ERR_NUMERIC, "tensor \"%.*s\" holds a value of magnitude %g, which %s cannot hold",
                       (int)info.name_len, info.name, (double)p->magnitude, to->name);
    return pn_fail(PN_ERR_NUMERIC, "tensor \"%.*s\" holds NaN or infinity, which %s cannot hold; f32, f16 and bf16 can",
                   (int)info.name_len, info.name, to->name);
}

static int quantize_progress(job *j, uint64_t bytes) {
    j->done_bytes += bytes;
    if (j->progress && j->progress(j->user_data, (double)j->done_bytes / (double)j->total_bytes))
        return pn_fail(PN_ERR_CANCELLED, "quantize: cancelled by the progress callback");
    return PN_OK;
}

static int quantize_write_piece(job *j, const piece *p) {
    const dtype_info *to = p->plan->to;
    if (p->plan->from == to)
        PN_TRY(sink_write(&j->out, p->src, p->src_bytes));
    else {
        PN_TRY(quantize_check_piece(j, p));
        PN_TRY(sink_write(&j->out, p->encoded, p->n / to->block_len * to->block_bytes));
    }
    return quantize_progress(j, p->src_bytes);
}

/* Rows are whole blocks in both types, so a tensor is one run of elements. */
static int quantize_write_tensor(job *j, uint64_t index) {
    const plan *p = &j->plans[index];
    const uint8_t *const data = gguf_tensor_data(j->gguf, index), *src = data;
    for (uint64_t done = 0; done < p->n_elements;) {
        piece pieces[QUANTIZE_PIECES];
        size_t n_pieces = 0;
        for (; n_pieces < QUANTIZE_PIECES && done < p->n_elements; n_pieces++) {
            const size_t n = (size_t)(p->n_elements - done < QUANTIZE_CHUNK ? p->n_elements - done : QUANTIZE_CHUNK);
            const size_t at = n_pieces * QUANTIZE_CHUNK, src_bytes = n / p->from->block_len * p->from->block_bytes;
            pieces[n_pieces] = (piece){ .plan = p,
                                        .src = src,
                                        .n = n,
                                        .src_bytes = src_bytes,
                                        .floats = j->floats + at,
                                        .encoded = j->encoded + at * sizeof(float) };
            src += src_bytes;
            done += n;
        }
        threads_run(j->pool, quantize_piece, pieces, n_pieces);
        for (size_t i = 0; i < n_pieces; i++) PN_TRY(quantize_write_piece(j, &pieces[i]));
    }
    gguf_drop(j->gguf, index, data, (size_t)(src - data));
    return sink_pad(&j->out, gguf_alignment(j->gguf));
}

static int quantize_run(job *j, const char *out_path) {
    PN_TRY(quantize_plan(j));
    PN_TRY(sink_open(&j->out, out_path, 0666));
    PN_TRY(quantize_write_header(j));
    for (uint64_t i = 0; i < j->n_tensors; i++) PN_TRY(quantize_write_tensor(j, i));
    return sink_commit(&j->out);
}

/* With a pool of threads and the floating-point environment in which the bytes are defined; workers inherit that. */
static int quantize_run_on_threads(job *j, const char *out_path) {
    const fp_env env = fp_enter();
    threads *pool;
    int status = threads_new(pn_default_threads(NULL, 0), &pool);
    if (status == PN_OK) {
        j->pool = threads_enter(pool) ? pool : NULL;
        status = quantize_run(j, out_path);
        if (j->pool) threads_leave(pool);
        threads_free(pool);
    }
    fp_leave(env);
    return status;
}

/* ---- the public function ------------------------------------------------------------------------------------- */

int pn_quantize(const char *in_path, const char *out_path, const char *type, pn_progress_callback progress,
                void *user_data) {
    const quantize_recipe *recipe;
    pn_gguf *gguf;
    PN_TRY(quantize_mix_find(type, &recipe));
    if (!out_path) return pn_fail(PN_ERR_ARGUMENT, "the path of the output is missing");
    PN_TRY(gguf_open(in_path, true, &gguf));
    job *j = calloc(1, sizeof *j); /* it holds the name of the temporary file: too large for a thread's stack */
    int status;
    if (!j)
        status = pn_fail(PN_ERR_MEMORY, "quantize: no memory for %zu bytes", sizeof *j);
    else {
        j->gguf = gguf;
        j->progress = progress;
        j->user_data = user_data;
        j->out.fd = -1;
        status = quantize_mix_init(&j->mix, recipe, gguf);
        if (status == PN_OK) status = quantize_run_on_threads(j, out_path);
        sink_close(&j->out);
        free(j->plans);
        free(j->floats);
        free(j->encoded);
        free(j);
    }
    pn_gguf_free(gguf);
    return status;
}
