/* weights.c - matrices of a file in, all of them packed in one block of memory out.                       (rank 6)
 *
 * Does not know what the matrices mean, nor how they are packed (matmul_pack.c). The block is cut into spans that stay
 * in a core's cache, and threads take span after span: each has the pages of its span made, and fills them. */
#include "weights.h"

#include "map.h"
#include "status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    SPAN = 256 * 1024,
    SPANS_MAX = 1 << 19, /* the pool counts no further than 2^20 */
    ALIGNMENT = 64,
    PROGRESS_BYTES = 4 * 1024 * 1024, /* of the file, between two reports: a callback may have to wait for Python */
};

struct weight_item {
    matrix *m;
    uint64_t tensor;    /* of which it is rows */
    const uint8_t *src; /* as it stands in the file */
    size_t at;          /* of its first group in the block */
};

int weight_list_init(weight_list *list, const pn_gguf *gguf, size_t cap) {
    *list = (weight_list){ .gguf = gguf, .cap = cap, .items = calloc(cap ? cap : 1, sizeof *list->items) };
    if (!list->items) return pn_fail(PN_ERR_MEMORY, "load: no memory for a list of %zu matrices", cap);
    return PN_OK;
}

void weight_list_free(weight_list *list) {
    free(list->items);
    *list = (weight_list){ 0 };
}

int weight_list_add(weight_list *list, uint64_t tensor, uint64_t row, uint64_t n_rows, matrix *m) {
    pn_tensor_info info;
    PN_TRY(pn_gguf_tensor(list->gguf, tensor, &info));
    const uint64_t total = info.dims[1] * info.dims[2] * info.dims[3]; /* the file holds them: no overflow */
    if (row > total || n_rows > total - row)
        return pn_fail(PN_ERR_ARGUMENT, "load: tensor %.*s has no rows %llu to %llu", (int)size_min(info.name_len, 64),
                       info.name, (unsigned long long)row, (unsigned long long)(row + n_rows));
    PN_TRY(matrix_plan(info.type, (size_t)n_rows, (size_t)info.dims[0], m));
    if (list->n == list->cap) return pn_fail(PN_ERR_ARGUMENT, "load: more than %zu matrices", list->cap);
    weight_item *item = &list->items[list->n++];
    item->m = m;
    item->tensor = tensor;
    item->src = gguf_tensor_data(list->gguf, tensor) + row * matrix_row_bytes(m);
    return PN_OK;
}

/* ---- the block --------------------------------------------------------------------------------------------- */

static int by_place_in_file(const void *a, const void *b) {
    const weight_item *x = a, *y = b;
    return (x->src > y->src) - (x->src < y->src);
}

/* Give every matrix its place, in the order of the file: the whole job reads and writes from front to back. */
static int lay_out(weight_list *list, size_t *bytes) {
    qsort(list->items, list->n, sizeof *list->items, by_place_in_file);
    size_t end = 0;
    for (size_t i = 0; i < list->n; i++) {
        weight_item *item = &list->items[i];
        const size_t size = matrix_bytes(item->m);
        if (size > SIZE_MAX - end || end + size > SIZE_MAX - HUGE_PAGE)
            return pn_fail(PN_ERR_MEMORY, "load: the weights do not fit the address space");
        item->at = end;
        end = (end + size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    }
    *bytes = end;
    return PN_OK;
}

/* ---- packing ----------------------------------------------------------------------------------------------- */

typedef struct pack_run {
    weight_list *list;
    uint8_t *block;
    size_t bytes; /* of the block */
    size_t span;
    weights_progress progress;
    void *context;
    pthread_t caller;
    _Atomic uint64_t done; /* bytes of the file */
    atomic_bool stop;
    uint64_t told; /* the caller's alone: what progress heard last, and what it answered */
    int status;
} pack_run;

static void tell(pack_run *run, uint64_t done) {
    run->told = done;
    run->status = run->progress(run->context, done);
    if (run->status != PN_OK) atomic_store_explicit(&run->stop, true, memory_order_relaxed);
}

/* The last item that begins at or before `at`. */
static size_t find_item(const weight_list *list, size_t at) {
    size_t low = 0, high = list->n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (list->items[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* How many groups of an item begin before `end`. */
static size_t groups_before(const weight_item *item, size_t end) {
    if (end <= item->at) return 0;
    const size_t n = (end - item->at - 1) / item->m->group_bytes + 1;
    return size_min(n, item->m->n_groups);
}

/* Pack the groups of an item that begin within [begin, end); returns the bytes of the file that they took. */
static size_t pack_item(const weight_list *list, const weight_item *item, size_t begin, size_t end) {
    const matrix *m = item->m;
    const size_t first = groups_before(item, begin), last = groups_before(item, end);
    if (first == last) return 0;
    matrix_pack(m, item->src, first, last - first);
    const size_t group_rows_bytes = GROUP_ROWS * matrix_row_bytes(m);
    const size_t from = first * group_rows_bytes, total = m->rows * matrix_row_bytes(m);
    const size_t size = size_min(last * group_rows_bytes, total) - from;
    gguf_drop(list->gguf, item->tensor, item->src + from, size);
    return size;
}

/* The pool's function. Progress is told by the caller's own thread, between its spans: its callback may be a Python
 * function, and whoever stops the load is waiting there. */
static void pack_span(void *context, size_t span) {
    pack_run *run = context;
    if (atomic_load_explicit(&run->stop, memory_order_relaxed)) return;
    const size_t begin = span * run->span, end = begin + size_min(run->span, run->bytes - begin);
    memory_populate(run->block + begin, end - begin);
    uint64_t size = 0;
    for (size_t i = find_item(run->list, begin); i < run->list->n && run->list->items[i].at < end; i++)
        size += pack_item(run->list, &run->list->items[i], begin, end);
    const uint64_t done = atomic_fetch_add_explicit(&run->done, size, memory_order_relaxed) + size;
    if (pthread_equal(pthread_self(), run->caller) && done - run->told >= PROGRESS_BYTES) tell(run, done);
}

int weight_list_pack(weight_list *list, threads *pool, weights_progress progress, void *context, uint8_t **block,
                     size_t *bytes) {
    pack_run run = { .list = list, .span = SPAN, .progress = progress, .context = context, .caller = pthread_self() };
    *block = NULL;
    *bytes = 0;
    PN_TRY(lay_out(list, &run.bytes));
    run.block = memory_new(run.bytes);
    if (!run.block) return pn_fail(PN_ERR_MEMORY, "load: no memory for %zu bytes of weights", run.bytes);
    for (size_t i = 0; i < list->n; i++) list->items[i].m->data = run.block + list->items[i].at;
    while (run.bytes / run.span >= SPANS_MAX) run.span *= 2;
    threads_run(pool, pack_span, &run, run.bytes / run.span + (run.bytes % run.span != 0));
    const uint64_t done = atomic_load(&run.done);
    if (run.status == PN_OK && run.told != done) tell(&run, done); /* the end, if nothing else */
    if (run.status == PN_OK) {
        /* Not before all is there: see settle.c. */
        if (run.bytes >= HUGE_PAGE) memory_join_pages(run.block, run.bytes);
        *block = run.block;
        *bytes = run.bytes;
        return PN_OK;
    }
    for (size_t i = 0; i < list->n; i++) list->items[i].m->data = NULL;
    free(run.block);
    return run.status;
}
