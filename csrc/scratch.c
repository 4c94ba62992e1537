/* scratch.c - a small stack of reusable working memory, so that a decode step allocates nothing.            (rank 6)
 *
 * Knows sizes only. Floats start at 64 bytes; all sizes are products of checked dimensions far below 2^64. */
#include "scratch.h"

#include "status.h"

#include <stdlib.h>
#include <string.h>

void scratch_list_init(scratch_list *list) {
    pthread_mutex_init(&list->mutex, NULL);
    list->first = NULL;
}

static void scratch_free(scratch *s) {
    if (!s) return;
    act_free(&s->activations);
    free(s->memory);
    free(s->logit_memory);
    free(s->partials);
    free(s);
}

void scratch_list_free(scratch_list *list) {
    while (list->first) {
        scratch *s = list->first;
        list->first = s->next;
        scratch_free(s);
    }
    pthread_mutex_destroy(&list->mutex);
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static float *floats_alloc(size_t n) {
    return aligned_alloc(64, round_up(n * sizeof(float), 64));
}

static int reserve_tokens(scratch *s, const scratch_shape *shape, size_t n_tokens) {
    s->ld_d = round_up(shape->d, GROUP_ROWS);
    s->ld_q = round_up(shape->q, GROUP_ROWS);
    s->ld_k = round_up(shape->k, GROUP_ROWS);
    s->ld_f = round_up(shape->f, GROUP_ROWS);
    s->ld_x = round_up(shape->x, GROUP_ROWS);
    if (n_tokens <= s->n_tokens) return PN_OK;
    const size_t expert_d = shape->x ? s->ld_d : 0;
    struct {
        float **row;
        size_t width;
    } rows[] = {
        { &s->x, s->ld_d },
        { &s->h, s->ld_d },
        { &s->q, QKV_PLANES * s->ld_q },
        { &s->k, QKV_PLANES * s->ld_k },
        { &s->v, QKV_PLANES * s->ld_k },
        { &s->o, s->ld_q },
        { &s->gate, s->ld_f },
        { &s->up, s->ld_f },
        { &s->cosine, shape->r / 2 },
        { &s->sine, shape->r / 2 },
        { &s->member, expert_d },
        { &s->sum, expert_d },
        { &s->shares, s->ld_x },
    };
    size_t total = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(rows); i++) total += round_up(rows[i].width * n_tokens, 16);
    float *memory = floats_alloc(total);
    if (!memory) return pn_fail(PN_ERR_MEMORY, "eval: no memory for %zu bytes of working space", total * sizeof(float));
    free(s->memory);
    s->memory = memory;
    for (size_t i = 0; i < PN_ARRAY_LEN(rows); i++) {
        *rows[i].row = memory;
        memory += round_up(rows[i].width * n_tokens, 16);
    }
    s->n_tokens = n_tokens;
    return PN_OK;
}

static int reserve_logits(scratch *s, const scratch_shape *shape, size_t n_logits) {
    s->ld_v = round_up(shape->v, GROUP_ROWS);
    if (n_logits <= s->n_logits) return PN_OK;
    float *memory = floats_alloc(s->ld_v * n_logits);
    if (!memory) return pn_fail(PN_ERR_MEMORY, "eval: no memory for %zu rows of logits", n_logits);
    free(s->logit_memory);
    s->logit_memory = s->logits = memory;
    s->n_logits = n_logits;
    return PN_OK;
}

bool scratch_reserve_partials(scratch *s, size_t n) {
    if (n <= s->n_partials) return true;
    free(s->partials);
    s->partials = floats_alloc(n);
    s->n_partials = s->partials ? n : 0;
    return s->partials != NULL;
}

static int scratch_reserve(scratch *s, const scratch_shape *shape, size_t n_tokens, size_t n_logits) {
    const size_t widest = size_max(size_max(QKV_PLANES * shape->d, shape->q), shape->f);
    PN_TRY(reserve_tokens(s, shape, n_tokens));
    PN_TRY(reserve_logits(s, shape, n_logits));
    return act_reserve(&s->activations, size_max(s->n_tokens, s->n_logits), widest);
}

int scratch_take(scratch_list *list, const scratch_shape *shape, size_t n_tokens, size_t n_logits, scratch **out) {
    *out = NULL;
    pthread_mutex_lock(&list->mutex);
    scratch *s = list->first;
    if (s) list->first = s->next;
    pthread_mutex_unlock(&list->mutex);
    if (!s && !(s = calloc(1, sizeof *s))) return pn_fail(PN_ERR_MEMORY, "eval: no memory for working space");
    const int status = scratch_reserve(s, shape, n_tokens, n_logits);
    if (status != PN_OK) {
        scratch_free(s);
        return status;
    }
    *out = s;
    return PN_OK;
}

void scratch_give(scratch_list *list, scratch *s) {
    if (!s) return;
    pthread_mutex_lock(&list->mutex);
    s->next = list->first;
    list->first = s;
    pthread_mutex_unlock(&list->mutex);
}
