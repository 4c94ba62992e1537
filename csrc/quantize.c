/* quantize.c - a GGUF file in, one with its weight matrices in another element type out.                (rank 4)
 *
 * What becomes what: a tensor of one dimension becomes F32; a matrix becomes the wanted type, unless its rows are no
 * whole number of that type's blocks: then it stays as it is (F16, F32, BF16), or becomes F16 if it has another block
 * type. What has its type already is copied byte for byte. All metadata is kept in order and byte for byte, but for
 * general.file_type and general.quantization_version, which are set where they stand or added at the end. The alignment
 * is kept; the version written is 3. It does not choose types by a tensor's name; it uses one thread and a fixed amount
 * of memory.
 * Know first: the new file is written under another name beside the old one and takes its name only when all of it is
 * on the disk, so a reader, a full disk or a crash never meets half a file; and the input may be the output. */
#include "common.h"
#include "dtype.h"
#include "gguf.h"
#include "pantheon.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    QUANTIZE_CHUNK = 1 << 15,  /* elements converted at a time: a multiple of every block length, small enough for L2 */
    QUANTIZE_BUFFER = 1 << 18, /* bytes collected before a write()                                                    */
    QUANTIZE_VERSION = 3,      /* of the container                                                                    */
    QUANTIZE_LAYOUT = 2,       /* general.quantization_version: the block layouts in use since May 2023               */
    QUANTIZE_PATH_SHOWN = 300, /* bytes of a path in a message                                                        */
    QUANTIZE_PATH_MAX = 4096,
};

static const char FILE_TYPE_KEY[] = "general.file_type";
static const char LAYOUT_KEY[] = "general.quantization_version";

/* ---- the file that is being written -------------------------------------------------------------------------- */

typedef struct sink {
    const char *path;             /* the final name             */
    char temp[QUANTIZE_PATH_MAX]; /* the name while it is made  */
    int fd;                       /* -1: not open               */
    uint8_t *buffer;              /* [QUANTIZE_BUFFER]          */
    size_t used;
    uint64_t written; /* bytes given to sink_write so far */
} sink;

static int sink_fail(const sink *s, const char *what, int error) {
    return pn_fail(PN_ERR_IO, "cannot %s %.*s: %s", what, QUANTIZE_PATH_SHOWN, s->path, strerror(error));
}

/* Bytes of the path up to and including the last slash. */
static size_t sink_dir_len(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Renaming over a device or a directory would be a disaster or fail late: look first. */
static int sink_check_target(const char *path) {
    struct stat info;
    const size_t len = strlen(path);
    if (len == 0) return pn_fail(PN_ERR_ARGUMENT, "the path of the output is empty");
    if (len >= QUANTIZE_PATH_MAX - 64)
        return pn_fail(PN_ERR_ARGUMENT, "the path of the output has %zu bytes; at most %d are possible", len,
                       QUANTIZE_PATH_MAX - 64);
    if (stat(path, &info) != 0) return PN_OK; /* not there; all other trouble shows when the file is created */
    if (S_ISREG(info.st_mode)) return PN_OK;
    return pn_fail(PN_ERR_IO, "cannot write %.*s: it is %s", QUANTIZE_PATH_SHOWN, path,
                   S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
}

/* open() rather than mkstemp(): the mode of the new file is then what the umask says, without asking for the umask. */
static int sink_create(sink *s) {
    const size_t dir_len = sink_dir_len(s->path);
    int error = 0;
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(s->temp, sizeof s->temp, "%.*s.pantheon-%lx-%lx-%u.tmp", (int)dir_len, s->path,
                 (unsigned long)getpid(), (unsigned long)now.tv_nsec, attempt);
        s->fd = open(s->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (s->fd >= 0) return PN_OK;
        error = errno;
        if (error != EEXIST && error != EINTR) break;
    }
    s->temp[0] = 0; /* whatever has that name is not ours to remove */
    return sink_fail(s, "create", error);
}

static int sink_open(sink *s, const char *path) {
    *s = (sink){ .path = path, .fd = -1 };
    PN_TRY(sink_check_target(path));
    s->buffer = malloc(QUANTIZE_BUFFER);
    if (!s->buffer) return pn_fail(PN_ERR_MEMORY, "quantize: no memory for %d bytes", QUANTIZE_BUFFER);
    return sink_create(s);
}

static int sink_put(sink *s, const uint8_t *bytes, size_t len) {
    while (len > 0) {
        const ssize_t n = write(s->fd, bytes, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return sink_fail(s, "write", n < 0 ? errno : ENOSPC);
        bytes += n;
        len -= (size_t)n;
    }
    return PN_OK;
}

static int sink_flush(sink *s) {
    const size_t used = s->used;
    s->used = 0;
    return sink_put(s, s->buffer, used);
}

static int sink_write(sink *s, const void *bytes, size_t len) {
    s->written += len;
    if (len > QUANTIZE_BUFFER - s->used) PN_TRY(sink_flush(s));
    if (len > QUANTIZE_BUFFER) return sink_put(s, bytes, len);
    memcpy(s->buffer + s->used, bytes, len);
    s->used += len;
    return PN_OK;
}

static int sink_u32(sink *s, uint32_t value) {
    return sink_write(s, &value, sizeof value);
}
static int sink_u64(sink *s, uint64_t value) {
    return sink_write(s, &value, sizeof value);
}

static int sink_string(sink *s, const char *text, size_t len) {
    PN_TRY(sink_u64(s, len));
    return sink_write(s, text, len);
}

static int sink_pad(sink *s, uint32_t alignment) {
    static const uint8_t zeros[64];
    while (s->written % alignment) {
        const size_t need = alignment - (size_t)(s->written % alignment);
        PN_TRY(sink_write(s, zeros, size_min(need, sizeof zeros)));
    }
    return PN_OK;
}

/* A rename is on the disk once its directory is. Not every file system can sync one, so errors do not count. */
static void sink_sync_dir(const sink *s) {
    char dir[QUANTIZE_PATH_MAX];
    const size_t len = sink_dir_len(s->path);
    snprintf(dir, sizeof dir, "%.*s", len ? (int)len : 1, len ? s->path : ".");
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

/* Everything on the disk, then the final name. */
static int sink_commit(sink *s) {
    PN_TRY(sink_flush(s));
    if (fsync(s->fd) != 0) return sink_fail(s, "write", errno);
    const int closed = close(s->fd);
    s->fd = -1;
    if (closed != 0) return sink_fail(s, "write", errno);
    if (rename(s->temp, s->path) != 0) return sink_fail(s, "replace", errno);
    s->temp[0] = 0;
    sink_sync_dir(s);
    return PN_OK;
}

/* Also after a failure: what was written goes. */
static void sink_close(sink *s) {
    if (s->fd >= 0) close(s->fd);
    if (s->temp[0]) unlink(s->temp);
    free(s->buffer);
}

/* ---- what becomes what --------------------------------------------------------------------------------------- */

typedef struct plan {
    const dtype_info *from, *to;
    uint64_t n_elements;
    uint64_t offset, size; /* in the new file; offset from the start of its data */
} plan;

typedef struct job {
    const pn_gguf *gguf;
    const dtype_info *type;                      /* wanted for matrices */
    plan *plans;                                 /* [n_tensors]         */
    uint64_t n_tensors, total_bytes, done_bytes; /* bytes of the input's tensors */
    float *floats;                               /* [QUANTIZE_CHUNK]     */
    uint8_t *encoded;                            /* [QUANTIZE_CHUNK * 4] */
    sink out;
    pn_progress_callback progress;
    void *user_data;
} job;

/* Trailing dimensions of 1 do not make a matrix. */
static bool quantize_is_matrix(const pn_tensor_info *info) {
    return info->dims[1] > 1 || info->dims[2] > 1 || info->dims[3] > 1;
}

static const dtype_info *quantize_target(const dtype_info *wanted, const pn_tensor_info *info, const dtype_info *from) {
    if (!quantize_is_matrix(info)) return dtype_find(DTYPE_F32);
    if (info->dims[0] % wanted->block_len == 0) return wanted;
    return from->block_len == 1 ? from : dtype_find(DTYPE_F16);
}

static int quantize_plan_one(job *j, uint64_t index, uint64_t *offset) {
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(j->gguf, index, &info));
    plan *p = &j->plans[index];
    p->from = dtype_any(info.type);
    p->to = quantize_target(j->type, &info, p->from);
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
    j->floats = malloc(QUANTIZE_CHUNK * sizeof *j->floats);
    j->encoded = malloc(QUANTIZE_CHUNK * sizeof *j->floats);
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
    const uint32_t file_type = (uint32_t)j->type->file_type;
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

/* Largest finite magnitude, and whether NaN or infinity is among the values. */
static float quantize_survey(const float *x, size_t n, bool *all_finite) {
    uint32_t max = 0, special = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        const bool finite = bits < 0x7f800000u;
        special |= !finite;
        max = finite && bits > max ? bits : max;
    }
    float magnitude;
    memcpy(&magnitude, &max, sizeof magnitude);
    *all_finite = !special;
    return magnitude;
}

/* One bad value would make a block of 32 unreadable; a value that overflows would silently become infinite. */
static int quantize_check_values(const job *j, uint64_t index, const dtype_info *to, size_t n) {
    bool all_finite;
    const float magnitude = quantize_survey(j->floats, n, &all_finite);
    if (magnitude < to->limit && (all_finite || to->block_len == 1)) return PN_OK;
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(j->gguf, index, &info));
    if (!(magnitude < to->limit))
        return pn_fail(PN_ERR_NUMERIC, "tensor \"%.*s\" holds a value of magnitude %g, which %s cannot hold",
                       (int)info.name_len, info.name, (double)magnitude, to->name);
    return pn_fail(PN_ERR_NUMERIC, "tensor \"%.*s\" holds NaN or infinity, which %s cannot hold", (int)info.name_len,
                   info.name, to->name);
}

static int quantize_progress(job *j, uint64_t bytes) {
    j->done_bytes += bytes;
    if (j->progress && j->progress(j->user_data, (double)j->done_bytes / (double)j->total_bytes))
        return pn_fail(PN_ERR_CANCELLED, "quantize: cancelled by the progress callback");
    return PN_OK;
}

/* Rows are whole blocks in both types, so a tensor is one run of elements. */
static int quantize_write_tensor(job *j, uint64_t index) {
    const plan *p = &j->plans[index];
    const uint8_t *const data = gguf_tensor_data(j->gguf, index), *src = data;
    for (uint64_t done = 0; done < p->n_elements; done += QUANTIZE_CHUNK) {
        const size_t n = (size_t)(p->n_elements - done < QUANTIZE_CHUNK ? p->n_elements - done : QUANTIZE_CHUNK);
        const size_t src_bytes = n / p->from->block_len * p->from->block_bytes;
        if (p->from == p->to)
            PN_TRY(sink_write(&j->out, src, src_bytes));
        else {
            p->from->dequantize(src, j->floats, n);
            PN_TRY(quantize_check_values(j, index, p->to, n));
            p->to->quantize(j->floats, j->encoded, n);
            PN_TRY(sink_write(&j->out, j->encoded, n / p->to->block_len * p->to->block_bytes));
        }
        src += src_bytes;
        PN_TRY(quantize_progress(j, src_bytes));
    }
    gguf_drop(j->gguf, data, (size_t)(src - data));
    return sink_pad(&j->out, gguf_alignment(j->gguf));
}

static int quantize_run(job *j, const char *out_path) {
    PN_TRY(quantize_plan(j));
    PN_TRY(sink_open(&j->out, out_path));
    PN_TRY(quantize_write_header(j));
    for (uint64_t i = 0; i < j->n_tensors; i++) PN_TRY(quantize_write_tensor(j, i));
    return sink_commit(&j->out);
}

/* ---- the public function ------------------------------------------------------------------------------------- */

static int quantize_find_type(const char *name, const dtype_info **out) {
    char known[128] = "";
    size_t n, used = 0;
    *out = name ? dtype_find_name(name) : NULL;
    if (*out && (*out)->quantize) return PN_OK;
    const dtype_info *types = dtype_table(&n);
    for (size_t i = 0; i < n && used < sizeof known; i++)
        if (types[i].quantize)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", types[i].name);
    return pn_fail(PN_ERR_ARGUMENT, "cannot write the element type %.40s; known are %s", name ? name : "(none)", known);
}

int pn_quantize(const char *in_path, const char *out_path, const char *type, pn_progress_callback progress,
                void *user_data) {
    const dtype_info *wanted;
    pn_gguf *gguf;
    PN_TRY(quantize_find_type(type, &wanted));
    if (!out_path) return pn_fail(PN_ERR_ARGUMENT, "the path of the output is missing");
    PN_TRY(gguf_open(in_path, true, &gguf));
    job *j = calloc(1, sizeof *j); /* it holds the name of the temporary file: too large for a thread's stack */
    int status;
    if (!j)
        status = pn_fail(PN_ERR_MEMORY, "quantize: no memory for %zu bytes", sizeof *j);
    else {
        j->gguf = gguf;
        j->type = wanted;
        j->progress = progress;
        j->user_data = user_data;
        j->out.fd = -1;
        status = quantize_run(j, out_path);
        sink_close(&j->out);
        free(j->plans);
        free(j->floats);
        free(j->encoded);
        free(j);
    }
    pn_gguf_free(gguf);
    return status;
}
