/* tokenizer_rules.h - what files leave open about their tokens, filled in by model and by spelling.       (rank 5)
 *
 * A GGUF file does not say after which control tokens the model's own tokenizer puts a space, which of them swallow the
 * white space behind them, or which user-defined tokens are ordinary text; and some call a control token an ordinary
 * one. Here it is decided, in tables. */
#ifndef PN_TOKENIZER_RULES_H
#define PN_TOKENIZER_RULES_H

#include <stdbool.h>

#include "gguf.h"
#include "vocab.h"

/* How one model family treats spaces. In byte-level vocabularies no space is put anywhere, and only `keeping` counts.
 */
typedef struct tokenizer_rule {
    const char *architecture;   /* general.architecture; NULL: any                                             */
    const char *token;          /* a control or user-defined token that the vocabulary has; NULL: whatever     */
    bool space_first;           /* a text gets a space in front, where the file does not say                   */
    bool space_after_special;   /* so does the text behind each control token                                  */
    const char *const *keeping; /* NULL: white space stays; else special tokens swallow it, but these, to NULL */
} tokenizer_rule;

/* The rule for a file; there always is one. Errors: METADATA (the architecture is no string). */
int tokenizer_rule_find(const pn_gguf *gguf, const vocab *v, const tokenizer_rule **out);
/* Make control tokens of those that are known to have been written as ordinary ones: by architecture and exact text,
 * and only where the file's chat template writes them. Errors: METADATA (architecture or template is no string). */
int tokenizer_rule_repair(const pn_gguf *gguf, vocab *v);
/* Set VOCAB_SWALLOWS in v->marks as the rule says. */
void tokenizer_rule_mark_swallowing(const tokenizer_rule *rule, vocab *v);
/* Set VOCAB_IS_TEXT in v->marks for the user-defined tokens that ordinary text becomes: all that are not framed by
 * brackets as markers are (<...>, [...]), and elements of HTML in a vocabulary that has <table> among them. */
void tokenizer_rule_mark_text(vocab *v);

#endif
