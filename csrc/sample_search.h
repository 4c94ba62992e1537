/* sample_search.h - the place in the tokens' order where a running sum of weights reaches a target.         (rank 9) */
#ifndef PN_SAMPLE_SEARCH_H
#define PN_SAMPLE_SEARCH_H

#include "common.h"

/* Tokens among which a search looks, in ascending order of ids. key: the bits of (max logit - logit), a float that is
 * never negative, so that keys are in order as numbers, the likeliest token's 0 first. token NULL: token i is i. */
typedef struct token_list {
    size_t n;
    uint32_t *key;
    float *weight;
    uint32_t *token;
} token_list;

/* Where a search ended: a token, and the weight of all up to and with it. */
typedef struct place {
    uint32_t key, token;
    double mass;
} place;

enum { SEARCH_PARTS = 4 };

/* A list with the memory that searches in it need. All owned. */
typedef struct sample_search {
    token_list list;
    uint32_t *tokens;                /* [V] list.token where it is not NULL */
    uint32_t *members;               /* [V] positions in the list, of the bucket that is being searched */
    double *mass;                    /* weight of the list's tokens by the first bits of their keys */
    double (*partial)[SEARCH_PARTS]; /* what mass is summed up from */
} sample_search;

/* Room for a vocabulary. False if there is no memory; search_free is right for what was made. */
bool search_init(sample_search *s, size_t n_vocab);
void search_free(sample_search *s);

/* Sum up the list's weights; before the first search in a list that has changed. Returns their total, in the order of
 * the search. */
double search_tally(sample_search *s);
/* The first place of the list at which the weights reach the target; the last one with any weight if they do not. The
 * list has at least one token of weight above 0 and was tallied. */
place search_find(sample_search *s, double target);
bool search_is_behind(uint32_t key, uint32_t token, place last);
/* Drop what lies behind a place. */
void search_cut(sample_search *s, place last);

#endif
