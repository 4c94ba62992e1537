/* quantize_mix.c - THE TABLE OF RECIPES: which element type each tensor gets.                             (rank 4)
 *
 * A recipe is a type for all matrices, and rules for those that bear it badly: the output, and of some layers the
 * values of attention and the way down from the feed-forward network. The rules are facts of llama.cpp
 * (src/llama-quant.cpp as of 2026), so that a file named Q4_K_M is what people know by that name. A rule speaks of
 * roles, which a second table reads off the tensors' names; no other code knows a name.
 * Vectors, norms, biases and routers are F32 in every recipe: they are small, and much depends on them.
 * Know first: the first rule that fits wins, and what it chose may still give way to a type of shorter blocks. */
#include "quantize_mix.h"

#include "status.h"

#include <stdio.h>
#include <string.h>

/* ---- roles --------------------------------------------------------------------------------------------------- */

typedef enum tensor_role {
    ROLE_OTHER,
    ROLE_KEPT, /* F32 */
    ROLE_OUTPUT,
    ROLE_EMBEDDING,
    ROLE_VALUE, /* also where values are made together with queries and keys */
    ROLE_KEY,
    ROLE_ATTENTION_OUTPUT,
    ROLE_DOWN,
} tensor_role;

enum name_place { NAME_WHOLE, NAME_PART, NAME_END };

static const struct {
    const char *text;
    enum name_place place;
    tensor_role role;
} ROLES[] = {
    { "_norm.weight", NAME_END, ROLE_KEPT },
    { ".bias", NAME_END, ROLE_KEPT },
    { "ffn_gate_inp", NAME_PART, ROLE_KEPT },
    { "output.weight", NAME_WHOLE, ROLE_OUTPUT },
    { "token_embd.weight", NAME_WHOLE, ROLE_EMBEDDING },
    { "attn_qkv.weight", NAME_PART, ROLE_VALUE },
    { "attn_v.weight", NAME_PART, ROLE_VALUE },
    { "attn_k.weight", NAME_PART, ROLE_KEY },
    { "attn_output.weight", NAME_PART, ROLE_ATTENTION_OUTPUT },
    { "ffn_down", NAME_PART, ROLE_DOWN }, /* ffn_down_exps too, and ffn_down.3 of the older files */
};

static bool name_matches(const pn_tensor_info *info, const char *text, enum name_place place) {
    const size_t len = strlen(text);
    if (info->name_len < len || (place == NAME_WHOLE && info->name_len != len)) return false;
    const size_t last = info->name_len - len;
    for (size_t at = place == NAME_PART ? 0 : last; at <= last; at++)
        if (memcmp(info->name + at, text, len) == 0) return true;
    return false;
}

static tensor_role role_of(const pn_tensor_info *info) {
    for (size_t i = 0; i < PN_ARRAY_LEN(ROLES); i++)
        if (name_matches(info, ROLES[i].text, ROLES[i].place)) return ROLES[i].role;
    return ROLE_OTHER;
}

/* The number N of "blk.N.", or -1. */
static int64_t layer_of(const pn_tensor_info *info) {
    static const char PREFIX[] = "blk.";
    const size_t start = sizeof PREFIX - 1;
    int64_t layer = 0;
    if (info->name_len <= start || memcmp(info->name, PREFIX, start) != 0) return -1;
    for (size_t i = start; i < info->name_len && i < start + 7; i++) {
        const char c = info->name[i];
        if (c == '.' && i > start) return layer;
        if (c < '0' || c > '9') return -1;
        layer = layer * 10 + (c - '0');
    }
    return -1;
}

/* ---- rules --------------------------------------------------------------------------------------------------- */

typedef enum rule_condition {
    WHEN_ALWAYS,
    WHEN_TIED,
    WHEN_EXPOSED_LAYER, /* the first and last eighth of the layers, and every third between: see layer_is_exposed */
    WHEN_EIGHT_EXPERTS, /* then attention is so small a part of the file that it may cost more                     */
    WHEN_VALUES_SHARED,
} rule_condition;

typedef struct quantize_rule {
    tensor_role role;
    rule_condition when;
    int type;
} quantize_rule;

static const quantize_rule RULES_Q4_K_M[] = {
    { ROLE_OUTPUT, WHEN_ALWAYS, DTYPE_Q6_K },
    { ROLE_EMBEDDING, WHEN_TIED, DTYPE_Q6_K },
    { ROLE_VALUE, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 },
    { ROLE_VALUE, WHEN_EXPOSED_LAYER, DTYPE_Q6_K },
    { ROLE_VALUE, WHEN_VALUES_SHARED, DTYPE_Q5_K },
    { ROLE_KEY, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 },
    { ROLE_ATTENTION_OUTPUT, WHEN_EIGHT_EXPERTS, DTYPE_Q5_K },
    { ROLE_DOWN, WHEN_EXPOSED_LAYER, DTYPE_Q6_K },
};
static const quantize_rule RULES_Q5_K_M[] = {
    { ROLE_OUTPUT, WHEN_ALWAYS, DTYPE_Q6_K },       { ROLE_EMBEDDING, WHEN_TIED, DTYPE_Q6_K },
    { ROLE_VALUE, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 }, { ROLE_VALUE, WHEN_EXPOSED_LAYER, DTYPE_Q6_K },
    { ROLE_KEY, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 },   { ROLE_DOWN, WHEN_EXPOSED_LAYER, DTYPE_Q6_K },
};
static const quantize_rule RULES_Q6_K[] = {
    { ROLE_VALUE, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 },
    { ROLE_KEY, WHEN_EIGHT_EXPERTS, DTYPE_Q8_0 },
};

struct quantize_recipe {
    const char *name, *alias; /* alias: another name, or NULL */
    int type, file_type;
    const quantize_rule *rules; /* [n_rules] */
    size_t n_rules;
};

static const quantize_recipe RECIPES[] = {
#define PLAIN(name, file_type)              { #name, NULL, DTYPE_##name, file_type, NULL, 0 }
#define MIXED(name, alias, type, file_type) { #name, alias, type, file_type, RULES_##name, PN_ARRAY_LEN(RULES_##name) }
    PLAIN(F32, 0),
    PLAIN(F16, 1),
    PLAIN(BF16, 32),
    PLAIN(Q8_0, 7),
    PLAIN(Q4_0, 2),
    PLAIN(Q4_1, 3),
    PLAIN(Q5_0, 8),
    PLAIN(Q5_1, 9),
    MIXED(Q4_K_M, "Q4_K", DTYPE_Q4_K, 15),
    MIXED(Q5_K_M, "Q5_K", DTYPE_Q5_K, 17),
    MIXED(Q6_K, NULL, DTYPE_Q6_K, 18),
#undef PLAIN
#undef MIXED
};

/* Where rows are no whole super-blocks: the type of blocks of 32 that holds as much. */
static const struct {
    int type, instead;
} SHORTER[] = {
    { DTYPE_Q4_K, DTYPE_Q5_0 },
    { DTYPE_Q5_K, DTYPE_Q5_1 },
    { DTYPE_Q6_K, DTYPE_Q8_0 },
};

static bool layer_is_exposed(int64_t layer, int64_t n_layers) {
    const int64_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

static bool rule_applies(const quantize_mix *mix, rule_condition when, int64_t layer) {
    switch (when) {
    case WHEN_ALWAYS:
        return true;
    case WHEN_TIED:
        return mix->is_tied;
    case WHEN_EXPOSED_LAYER:
        return layer >= 0 && layer_is_exposed(layer, mix->n_layers);
    case WHEN_EIGHT_EXPERTS:
        return mix->n_experts == 8;
    case WHEN_VALUES_SHARED:
        return mix->shares_values;
    }
    return false;
}

/* Trailing dimensions of 1 do not make a matrix. */
static bool info_is_matrix(const pn_tensor_info *info) {
    return info->dims[1] > 1 || info->dims[2] > 1 || info->dims[3] > 1;
}

static int mix_shorter(int type) {
    for (size_t i = 0; i < PN_ARRAY_LEN(SHORTER); i++)
        if (SHORTER[i].type == type) return SHORTER[i].instead;
    return type;
}

const dtype_info *quantize_mix_choose(const quantize_mix *mix, const pn_tensor_info *info) {
    const tensor_role role = role_of(info);
    if (!info_is_matrix(info) || role == ROLE_KEPT) return dtype_find(DTYPE_F32);
    int type = mix->recipe->type;
    for (size_t i = 0; i < mix->recipe->n_rules; i++) {
        const quantize_rule *rule = &mix->recipe->rules[i];
        if (rule->role != role || !rule_applies(mix, rule->when, layer_of(info))) continue;
        type = rule->type;
        break;
    }
    if (info->dims[0] % dtype_find(type)->block_len != 0) type = mix_shorter(type);
    if (info->dims[0] % dtype_find(type)->block_len == 0) return dtype_find(type);
    return dtype_find(info->type == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F16);
}

/* ---- the recipe and the file --------------------------------------------------------------------------------- */

const char *quantize_mix_name(size_t index) {
    return index < PN_ARRAY_LEN(RECIPES) ? RECIPES[index].name : NULL;
}

int quantize_mix_find(const char *name, const quantize_recipe **out) {
    char known[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < PN_ARRAY_LEN(RECIPES); i++) {
        *out = &RECIPES[i];
        if (name && dtype_name_equal(RECIPES[i].name, name)) return PN_OK;
        if (name && RECIPES[i].alias && dtype_name_equal(RECIPES[i].alias, name)) return PN_OK;
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", RECIPES[i].name);
    }
    *out = NULL;
    return pn_fail(PN_ERR_ARGUMENT, "cannot write the element type %.40s; known are %s", name ? name : "(none)", known);
}

/* The models that llama.cpp calls 70B. */
static const struct {
    const char *architecture;
    uint32_t n_layers;
    bool when_shared; /* only if there are fewer value heads than query heads */
} LARGE_MODELS[] = {
    { "llama", 80, true },
    { "qwen2", 80, false },
};

/* The number at `architecture`.`key` if there is one that fits, else 0: an odd file is for its loader to refuse. */
static uint32_t mix_number(const pn_gguf *gguf, const char *architecture, const char *key) {
    char name[128];
    uint32_t value = 0;
    bool present;
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    return gguf_get_u32(gguf, name, &value, &present) == PN_OK && present ? value : 0;
}

static bool mix_shares_values(const pn_gguf *gguf, const char *architecture, uint32_t n_layers) {
    const uint32_t n_heads = mix_number(gguf, architecture, "attention.head_count");
    const uint32_t n_values = mix_number(gguf, architecture, "attention.head_count_kv");
    for (size_t i = 0; i < PN_ARRAY_LEN(LARGE_MODELS); i++)
        if (strcmp(LARGE_MODELS[i].architecture, architecture) == 0 && LARGE_MODELS[i].n_layers == n_layers)
            return !LARGE_MODELS[i].when_shared || (n_values && n_values != n_heads);
    return false;
}

int quantize_mix_init(quantize_mix *mix, const quantize_recipe *recipe, const pn_gguf *gguf) {
    char architecture[64] = "";
    const char *text;
    size_t len;
    bool present;
    *mix = (quantize_mix){ .recipe = recipe };
    if (recipe->n_rules == 0) return PN_OK;
    PN_TRY(gguf_get_str(gguf, "general.architecture", &text, &len, &present));
    if (present) snprintf(architecture, sizeof architecture, "%.*s", (int)size_min(len, sizeof architecture - 1), text);
    for (uint64_t i = 0; i < pn_gguf_n_tensors(gguf); i++) {
        pn_tensor_info info;
        PN_TRY(pn_gguf_tensor(gguf, i, &info));
        const int64_t layer = layer_of(&info);
        if (layer >= mix->n_layers) mix->n_layers = (uint32_t)layer + 1;
    }
    mix->n_experts = mix_number(gguf, architecture, "expert_count");
    mix->is_tied = gguf_find_tensor(gguf, "output.weight") < 0;
    mix->shares_values = mix_shares_values(gguf, architecture, mix->n_layers);
    return PN_OK;
}

uint32_t quantize_mix_file_type(const quantize_mix *mix) {
    return (uint32_t)mix->recipe->file_type;
}
