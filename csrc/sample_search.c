/* sample_search.c - radix selection by weight: linear in time, whatever the logits are.                       (rank 9)
 *
 * Counts the weights by the leading bits of the keys, goes into the bucket where the target is reached, and there looks
 * at the next bits. Knows keys and weights, not what a filter or a draw is. Nothing is sorted, nothing allocated. */
#include "sample_search.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* A key has 31 bits: the upper 11 (exponent and three bits of mantissa), then twice 10. */
    SHIFT_FIRST = 20,
    SHIFT_STEP = 10,
    N_BUCKETS = 2048,
    N_FINE_BUCKETS = 1 << SHIFT_STEP,
    BLOCK = 32, /* keys that are looked through at once */
};

bool search_init(sample_search *s, size_t n_vocab) {
    memset(s, 0, sizeof *s);
    s->list.key = malloc(n_vocab * sizeof *s->list.key);
    s->list.weight = malloc(n_vocab * sizeof *s->list.weight);
    s->tokens = malloc(n_vocab * sizeof *s->tokens);
    s->members = malloc(n_vocab * sizeof *s->members);
    s->mass = malloc(N_BUCKETS * sizeof *s->mass);
    s->partial = malloc(N_BUCKETS * sizeof *s->partial);
    return s->list.key && s->list.weight && s->tokens && s->members && s->mass && s->partial;
}

void search_free(sample_search *s) {
    free(s->list.key);
    free(s->list.weight);
    free(s->tokens);
    free(s->members);
    free(s->mass);
    free(s->partial);
}

static uint32_t list_token(const token_list *list, size_t at) {
    return list->token ? list->token[at] : (uint32_t)at;
}

/* Sum up the list's weights by the first bits of the keys; before every search in a list that has changed. Returns the
 * weight of them all, in the order of the search. Neighbours go to different sums: most tokens share a few buckets, and
 * each addition to one sum waits for the one before. */
double search_tally(sample_search *s) {
    const token_list *list = &s->list;
    memset(s->partial, 0, N_BUCKETS * sizeof *s->partial);
    for (size_t i = 0; i < list->n; i++)
        s->partial[list->key[i] >> SHIFT_FIRST][i % SEARCH_PARTS] += (double)list->weight[i];
    double total = 0;
    for (size_t b = 0; b < N_BUCKETS; b++) {
        const double *part = s->partial[b];
        s->mass[b] = (part[0] + part[2]) + (part[1] + part[3]);
        total += s->mass[b];
    }
    return total;
}

/* The bucket in which `before` plus the masses so far reach the target, or the last one that has any mass (sums of
 * another grouping may differ by a rounding). Moves *before to where that bucket begins. */
static uint32_t find_bucket(const double *mass, uint32_t n, double target, double *before) {
    double sum = *before;
    uint32_t found = 0;
    for (uint32_t b = 0; b < n; b++) {
        if (!(mass[b] > 0)) continue;
        found = b;
        *before = sum;
        sum += mass[b];
        if (sum >= target) break;
    }
    return found;
}

/* Positions of the list's tokens that are in a first bucket. Most blocks have none. */
static size_t gather_members(sample_search *s, uint32_t bucket) {
    const uint32_t *key = s->list.key;
    size_t n = 0, i = 0;
    for (; i + BLOCK <= s->list.n; i += BLOCK) {
        uint32_t any = 0;
        for (size_t j = 0; j < BLOCK; j++) any |= (key[i + j] >> SHIFT_FIRST) == bucket;
        for (size_t j = 0; any && j < BLOCK; j++) {
            s->members[n] = (uint32_t)(i + j);
            n += key[i + j] >> SHIFT_FIRST == bucket;
        }
    }
    for (; i < s->list.n; i++)
        if (key[i] >> SHIFT_FIRST == bucket) s->members[n++] = (uint32_t)i;
    return n;
}

/* Of the first n members keep those in the bucket, among the ten bits above `shift`, where the target is reached. */
static size_t refine_members(sample_search *s, size_t n, uint32_t shift, double target, double *before) {
    const token_list *list = &s->list;
    double mass[N_FINE_BUCKETS] = { 0 };
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = s->members[i];
        mass[(list->key[at] >> shift) % N_FINE_BUCKETS] += (double)list->weight[at];
    }
    const uint32_t bucket = find_bucket(mass, N_FINE_BUCKETS, target, before);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = s->members[i];
        s->members[kept] = at;
        kept += (list->key[at] >> shift) % N_FINE_BUCKETS == bucket;
    }
    return kept;
}

/* The first place of the list at which the weights reach the target; the last one with any weight if they do not. */
place search_find(sample_search *s, double target) {
    double sum = 0;
    size_t n = gather_members(s, find_bucket(s->mass, N_BUCKETS, target, &sum));
    for (uint32_t shift = SHIFT_FIRST; n > 1 && shift > 0;) {
        shift -= SHIFT_STEP;
        n = refine_members(s, n, shift, target, &sum);
    }
    size_t i = 0; /* equal keys: in the order of ids */
    for (;; i++) {
        sum += (double)s->list.weight[s->members[i]];
        if (sum >= target || i + 1 == n) break;
    }
    const uint32_t at = s->members[i];
    return (place){ .key = s->list.key[at], .token = list_token(&s->list, at), .mass = sum };
}

bool search_is_behind(uint32_t key, uint32_t token, place last) {
    return key > last.key || (key == last.key && token > last.token);
}

/* Drop what lies behind a place. */
void search_cut(sample_search *s, place last) {
    token_list *list = &s->list;
    size_t kept = 0;
    for (size_t i = 0; i < list->n; i++) {
        const uint32_t token = list_token(list, i);
        if (search_is_behind(list->key[i], token, last)) continue;
        list->key[kept] = list->key[i];
        list->weight[kept] = list->weight[i];
        s->tokens[kept++] = token;
    }
    list->n = kept;
    list->token = s->tokens;
}
