/* pantheon.h - the public C API of Pantheon: load a GGUF model, feed it tokens, read what it answers.   (rank 0)
 *
 * The mental model
 *   pn_gguf       a parsed file: metadata and tensor directory. Nothing about models.
 *   pn_tokenizer  text to token ids and back, built from the file's metadata alone (no weights are read).
 *   pn_model      the weights, immutable after loading; any number of threads may share it.
 *   pn_state      one conversation: the tokens that were evaluated and their key/value cache. It belongs to one
 *                 caller at a time; a second concurrent call on it fails with PN_ERR_BUSY and changes nothing.
 *   pn_sampler    turns logits into a token: parameters and a random generator. One caller at a time.
 *
 * Conventions
 *   - Fallible functions return PN_OK (0) or a positive pn_status; functions that return a pointer return NULL on
 *     failure; functions that return a count return a negative value on failure (-1, or -status where said).
 *     After a failure pn_last_status() and pn_last_error() tell this thread why.
 *   - Text is bytes with a length: it may hold NUL and invalid UTF-8. Paths are NUL-terminated bytes.
 *   - "owned" pointers are released with the matching _free; "borrowed" pointers live as long as the comment says.
 *   - Nothing here prints, exits, changes signal handlers or touches the network.
 *   - For one model file and one list of token ids the logits are the same to the bit, however the ids were split
 *     into calls, on any number of threads and any instruction set (not when the BLAS path is on).
 *
 * The part between the two marker lines is what the Python binding reads; keep it to plain declarations. */
#ifndef PANTHEON_H
#define PANTHEON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- ffi begin --- */

/* Why a call failed. The numbers are stable. */
typedef enum pn_status {
    PN_OK = 0,
    PN_ERR_ARGUMENT = 1,     /* a value from the caller is out of range (a token id, a length, a parameter)       */
    PN_ERR_IO = 2,           /* the operating system refused: open, read, write, map                              */
    PN_ERR_NOT_GGUF = 3,     /* the file is something else (the message says what it looks like)                  */
    PN_ERR_TRUNCATED = 4,    /* the file ends before what it announces                                            */
    PN_ERR_CORRUPT = 5,      /* the container contradicts itself: offsets, counts, types, names                   */
    PN_ERR_METADATA = 6,     /* a metadata key is missing, of the wrong type, or makes no sense                   */
    PN_ERR_UNSUPPORTED = 7,  /* valid, but not something this build can run (architecture, element type, ...)     */
    PN_ERR_MEMORY = 8,       /* out of memory; the message says how much was wanted                               */
    PN_ERR_BUSY = 9,         /* the state or sampler is in use by another call                                    */
    PN_ERR_CANCELLED = 10,   /* pn_state_cancel() or a callback stopped the call                                  */
    PN_ERR_CONTEXT = 11,     /* more tokens than the model's context length                                       */
    PN_ERR_ISA = 12,         /* the instruction set asked for is unknown or cannot run on this machine            */
    PN_ERR_NUMERIC = 13,     /* the logits are not finite: the weights hold NaN or overflow                       */
    PN_ERR_NOT_STATE = 14,   /* the file is something else than a saved state                                     */
    PN_ERR_DAMAGED = 15,     /* a saved state that was cut short or changed since it was written                  */
    PN_ERR_OTHER_MODEL = 16, /* a saved state of another model, or of one that computes otherwise                 */
} pn_status;

/* The status and message of this thread's last failed call. The message is borrowed until the thread's next call. */
pn_status pn_last_status(void);
const char *pn_last_error(void);
/* "io", "not_gguf", ...: the stable name of a status; "unknown" for other numbers. */
const char *pn_status_name(int status);

/* "0.1.0" */
const char *pn_version(void);
/* True if this build can evaluate prompts through BLAS (built with USE_BLAS=1). */
bool pn_has_blas(void);
/* Names of the instruction sets that this machine can run, best first, space separated: "avx512 avx2 portable". There
 * are avx512 and avx2 on x86-64, neon_dot and neon on AArch64, portable everywhere. Borrowed until this thread's next
 * call. */
const char *pn_isa_available(void);
/* Threads that a model uses when n_threads is 0: the usable cores by affinity, physical cores and cgroup quota.
 * Writes one line on where the number comes from to `why` (cap bytes, always terminated; may be NULL with cap 0). */
int pn_default_threads(char *why, size_t cap);
/* How fast n_threads (1..256) read a buffer of `bytes` (1 MiB..32 GiB, rounded down to 256) together, in bytes per
 * second: the limit of decoding, where each token reads all weights once. The buffer is prepared and shared out in
 * chunks as weights are. Several loops are tried in turn, `runs` times each (1..1000) after a warm-up; *bytes_per_s
 * receives the median of the fastest loop. A run reads the buffer as often as makes 64 MiB. Blocks meanwhile; the
 * buffer is freed at the end. Errors: ARGUMENT, MEMORY, NUMERIC (what was read is not what was written). */
int pn_read_bandwidth(int n_threads, uint64_t bytes, int runs, double *bytes_per_s);

/* The lists of what this build knows. */
typedef enum pn_known_list {
    PN_KNOWN_ARCHITECTURES = 0, /* of models that can be loaded (general.architecture)             */
    PN_KNOWN_TYPES = 1,         /* element types that can be read, "Q8_0"                          */
    PN_KNOWN_MATRIX_TYPES = 2,  /* those of them that the matrices of a model may have             */
    PN_KNOWN_TARGETS = 3,       /* types that pn_quantize() writes                                 */
    PN_KNOWN_TOKENIZERS = 4,    /* kinds of vocabularies (tokenizer.ggml.model)                    */
    PN_KNOWN_PRETOKENIZERS = 5, /* how a byte-level vocabulary cuts text into words (tokenizer.ggml.pre) */
} pn_known_list;
/* Name number `index` of a list, in the order of its table; NULL past the end, and for other lists. Static. */
const char *pn_known(int list, size_t index);

/* ---- GGUF files ------------------------------------------------------------------------------------------- */

typedef struct pn_gguf pn_gguf;

/* Value types as numbered in the GGUF document. */
typedef enum pn_value_type {
    PN_VALUE_U8 = 0,
    PN_VALUE_I8 = 1,
    PN_VALUE_U16 = 2,
    PN_VALUE_I16 = 3,
    PN_VALUE_U32 = 4,
    PN_VALUE_I32 = 5,
    PN_VALUE_F32 = 6,
    PN_VALUE_BOOL = 7,
    PN_VALUE_STRING = 8,
    PN_VALUE_ARRAY = 9,
    PN_VALUE_U64 = 10,
    PN_VALUE_I64 = 11,
    PN_VALUE_F64 = 12,
} pn_value_type;

/* One metadata entry. All pointers are borrowed from the pn_gguf. Integers, booleans and floats are in the field of
 * their kind: u (unsigned, bool), i (signed), f (floats). Strings: str, len. Arrays: type == PN_VALUE_ARRAY with
 * element_type and n; str then points at the encoded elements (little-endian; strings as u64 length + bytes),
 * len is their total size in bytes. Arrays of arrays are refused when the file is opened. */
typedef struct pn_metadata {
    const char *key;
    size_t key_len;
    int type;
    int element_type;
    uint64_t n;
    uint64_t u;
    int64_t i;
    double f;
    const char *str;
    size_t len;
} pn_metadata;

/* One entry of the tensor directory. name is borrowed. dims[0] is the contiguous dimension; unused dims are 1.
 * type is the number in the file; type_name is static. offset is absolute, in bytes from the start of the file; part is
 * the number of that file, from 0, for a model that was split. */
typedef struct pn_tensor_info {
    const char *name;
    size_t name_len;
    int n_dims;
    uint64_t dims[4];
    int type;
    const char *type_name;
    uint64_t offset;
    uint64_t size;
    uint32_t part;
} pn_tensor_info;

/* Open and check a GGUF v2 or v3 file: every size, count, offset and type is validated before this returns.
 * A model that was split over several files (NAME-00001-of-00003.gguf, ...) opens from any of them: all must lie in one
 * folder, or stand there as links. It reads like one file; the keys split.* are left out.
 * Owned. Errors: IO, NOT_GGUF, TRUNCATED, CORRUPT, UNSUPPORTED (version, element type), MEMORY. */
pn_gguf *pn_gguf_open(const char *path);
void pn_gguf_free(pn_gguf *gguf); /* NULL is fine */
uint32_t pn_gguf_version(const pn_gguf *gguf);
uint64_t pn_gguf_n_metadata(const pn_gguf *gguf);
uint64_t pn_gguf_n_tensors(const pn_gguf *gguf);
/* Of how many files the model consists (1, or more for one that was split), and how many bytes they have together. */
uint32_t pn_gguf_n_parts(const pn_gguf *gguf);
uint64_t pn_gguf_size(const pn_gguf *gguf);
/* Entry `index` (< the count) in file order. */
int pn_gguf_metadata(const pn_gguf *gguf, uint64_t index, pn_metadata *out);
int pn_gguf_tensor(const pn_gguf *gguf, uint64_t index, pn_tensor_info *out);
/* Dequantize rows [row, row + n_rows) of a tensor to out[n_rows][dims[0]]; a row is one run of dims[0] elements and
 * the higher dimensions are counted through. */
int pn_gguf_read_rows(const pn_gguf *gguf, uint64_t tensor, uint64_t row, uint64_t n_rows, float *out);

typedef int (*pn_progress_callback)(void *user_data, double fraction);

/* Rewrite a file with its weight matrices in another element type: "f32", "f16", "bf16", "q8_0", "q6_k", "q5_1",
 * "q5_0", "q4_1", "q4_0", or a mixture: "q5_k" or "q4_k" (also "q5_k_m", "q4_k_m"), where the output, and in some
 * layers the values of attention and the way down from the feed-forward network, get more bits. A matrix whose rows are
 * no multiple of 256 becomes q8_0 instead of q6_k, q5_1 instead of q5_k, q5_0 instead of q4_k; with rows that are no
 * multiple of 32 it becomes f16 (bf16 stays). Tensors of one dimension, norms, biases and routers become f32
 * (PN_ERR_UNSUPPORTED for one of integers); metadata and tokenizer are kept, general.file_type is set.
 * The new file appears whole or not at all (written beside `out_path`, synced, renamed); both paths may be the same.
 * PN_ERR_NUMERIC if a finite value is too large for the new type, or if NaN or infinity would go into a type of
 * blocks. Runs on pn_default_threads() threads; the bytes do not depend on how many these are. progress may be NULL,
 * is called by the caller's thread alone, and non-zero from it stops with PN_ERR_CANCELLED. */
int pn_quantize(const char *in_path, const char *out_path, const char *type, pn_progress_callback progress,
                void *user_data);

/* ---- Tokenizer -------------------------------------------------------------------------------------------- */

typedef struct pn_tokenizer pn_tokenizer;

/* Build from a file's metadata; keeps nothing of `gguf`. Owned. Immutable and thread-safe afterwards.
 * Errors: METADATA, UNSUPPORTED (tokenizer.ggml.model or .pre that this build does not know), MEMORY. */
pn_tokenizer *pn_tokenizer_new(const pn_gguf *gguf);
void pn_tokenizer_free(pn_tokenizer *tokenizer);

enum {
    PN_ENCODE_SPECIAL = 1, /* control and user-defined tokens spelled in the text become their ids */
    PN_ENCODE_BOS = 2,     /* put the file's BOS in front if the file asks for one                 */
    PN_ENCODE_EOS = 4,     /* put the file's EOS at the end if the file asks for one               */
};

/* Text bytes [0, len) to ids. Returns the number of ids that the text has and writes the first `cap` of them; call
 * with cap 0 to count. `ids` may be NULL if cap is 0. Seldom more than len + 2 ids, but normalization makes some texts
 * longer. With PN_ENCODE_SPECIAL a text that begins with the spelled BOS (ends with the spelled EOS) gets no second
 * one. Returns -status on failure. */
int64_t pn_tokenize(const pn_tokenizer *tokenizer, const char *text, size_t len, int flags, uint32_t *ids, size_t cap);
/* The same for text that follows the token `previous`; -1: it begins. Vocabularies of SentencePiece put a space in
 * front of a text, some behind control tokens too, and some of those swallow the white space that follows them.
 * PN_ENCODE_BOS goes with -1 only. */
int64_t pn_tokenize_after(const pn_tokenizer *tokenizer, int64_t previous, const char *text, size_t len, int flags,
                          uint32_t *ids, size_t cap);
/* Does a text that follows `previous` (-1: begins) get such a space? The text of its tokens is then without their first
 * byte, if that is a space. */
bool pn_tokenizer_adds_space(const pn_tokenizer *tokenizer, int64_t previous);
/* The bytes of a token: for ordinary tokens the bytes that it stands for, for control tokens their spelling.
 * Borrowed from the tokenizer. NULL (PN_ERR_ARGUMENT) if id >= n_vocab. *len may be 0. */
const char *pn_token_piece(const pn_tokenizer *tokenizer, uint32_t id, size_t *len);
/* The bytes of ids[0, n) that follow the token `previous` (-1: they begin a text). Returns how many bytes they have and
 * writes the first `cap`; call with cap 0 to count. Control tokens are left out unless spell_out. Where a text
 * that follows `previous` gets a space in front, that space is taken off the first token that is no control token.
 * Returns -status on failure: ARGUMENT (an id >= n_vocab, or NULL with a length). */
int64_t pn_detokenize(const pn_tokenizer *tokenizer, int64_t previous, const uint32_t *ids, size_t n, bool spell_out,
                      char *bytes, size_t cap);
/* The id of the control or user-defined token with exactly this text, else -1 (not an error). */
int64_t pn_token_id(const pn_tokenizer *tokenizer, const char *text, size_t len);
/* GGUF token type: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. 0 if id >= n_vocab. As it is used
 * here: what the file names as its bos, eos, eot or eom is a control token also where the file has another type. */
int pn_token_type(const pn_tokenizer *tokenizer, uint32_t id);
uint32_t pn_tokenizer_n_vocab(const pn_tokenizer *tokenizer);
/* -1 where the file names none. */
int64_t pn_tokenizer_bos(const pn_tokenizer *tokenizer);
int64_t pn_tokenizer_eos(const pn_tokenizer *tokenizer);
/* What the file asks for; where it does not say, what the reference tokenizer of its kind does. */
bool pn_tokenizer_add_bos(const pn_tokenizer *tokenizer);
bool pn_tokenizer_add_eos(const pn_tokenizer *tokenizer);
/* The ids that end a reply (eos, eot and eom of the file, ascending, unique). Returns how many there are and writes
 * the first `cap`. */
int pn_tokenizer_stop_ids(const pn_tokenizer *tokenizer, uint32_t *ids, int cap);

/* ---- Model ------------------------------------------------------------------------------------------------ */

typedef struct pn_model pn_model;

typedef struct pn_load_params {
    int n_threads;                 /* 0: pn_default_threads(); else 1..256                                           */
    const char *isa;               /* NULL: the best usable; else one of pn_isa_available(): that, or an error       */
    bool use_mmap;                 /* true: read through a mapping; false: read() into memory first                  */
    bool use_blas;                 /* true: prompts go through BLAS where the build has it; equal bits are given up  */
    pn_progress_callback progress; /* may be NULL; called from the loading thread; non-zero cancels    */
    void *progress_data;
} pn_load_params;

typedef struct pn_model_info {
    char architecture[32];
    char isa[16];
    uint32_t n_vocab, n_context, n_embed, n_layer, n_head, n_head_kv, head_size, n_ff;
    int n_threads;
    bool blas;             /* prompts go through BLAS: results may differ in the last bits between calls */
    uint64_t n_params;     /* elements of all tensors                                                    */
    uint64_t weight_bytes; /* resident bytes of the weights as this process holds them                   */
    uint64_t kv_bytes_per_token;
} pn_model_info;

pn_load_params pn_load_defaults(void);
/* Load a model with default parameters. Owned; release with pn_free. */
pn_model *pn_load(const char *path);
/* The same with parameters (NULL: defaults). Nothing of the file is needed after this returns. */
pn_model *pn_load_with(const char *path, const pn_load_params *params);
/* Give up the caller's hold. Memory goes when the last state made from the model is freed too, in any order. */
void pn_free(pn_model *model);
void pn_model_describe(const pn_model *model, pn_model_info *out);
/* Borrowed until pn_free. */
const pn_tokenizer *pn_model_tokenizer(const pn_model *model);
const pn_gguf *pn_model_gguf(const pn_model *model);
/* Which model this is: a number that two models share if they compute the same, on any machine and with any parameters.
 * It covers the architecture and its metadata, name, type and shape of all tensors, all vectors, and of each matrix
 * some rows that are spread over it; not the vocabulary, the chat template, names, nor single other rows. Read once,
 * from memory, in milliseconds. Never 0. Errors: ARGUMENT, MEMORY. */
int pn_model_fingerprint(pn_model *model, uint64_t *out);

/* ---- State: one conversation ------------------------------------------------------------------------------ */

typedef struct pn_state pn_state;

/* An empty conversation. Memory grows with the tokens it holds. Owned; keeps the model alive. */
pn_state *pn_state_new(pn_model *model);
/* The same for at most `window` tokens (0: the model's whole context, as pn_state_new() has it). Evaluation beyond it
 * is PN_ERR_CONTEXT. Models that were stretched to a longer context with two sets of rotary factors (Phi-3) take those
 * of the shorter context if the window fits into it: there, the window is part of what the logits depend on; else it
 * changes no bit. Errors: ARGUMENT, MEMORY. */
pn_state *pn_state_new_window(pn_model *model, size_t window);
/* The most tokens that the state may hold. */
size_t pn_state_window(const pn_state *state);
void pn_state_free(pn_state *state);
/* Forget everything. PN_ERR_BUSY during a call. */
int pn_state_reset(pn_state *state);
/* Keep the first n tokens (n <= the length). After it there are no logits until the next evaluation. */
int pn_state_rewind(pn_state *state, size_t n);
/* The ids that were evaluated, in order. Borrowed until the next call that changes the state: neither this nor
 * pn_state_logits() while another thread's call runs on the state, for they do not wait and cannot fail. */
const uint32_t *pn_state_tokens(const pn_state *state, size_t *n);
/* logits[n_vocab] after the last evaluated token, or NULL if there are none. Borrowed likewise. */
const float *pn_state_logits(const pn_state *state);
/* Bytes that the state holds: cache, logits and ids; with pn_state_speculate() on also the guesses, their rows of
 * logits and the index of the ids. */
uint64_t pn_state_bytes(const pn_state *state);
/* Ask the evaluation or stream that is running on this state to stop; it returns PN_ERR_CANCELLED within one layer of
 * work. Any thread, any time. The request stays until a call takes it or pn_state_clear_cancel() withdraws it. */
void pn_state_cancel(pn_state *state);
void pn_state_clear_cancel(pn_state *state);

/* Write what the state holds to a file: ids, cache, and the logits if there are any, with the model's fingerprint and
 * checksums; kv_bytes_per_token bytes for each id and little more. The file appears whole or not at all (written beside
 * `path`, synced, renamed), over one that was there, and only its owner may read it. The state is unchanged.
 * Errors: ARGUMENT, BUSY, IO, MEMORY. */
int pn_state_save(pn_state *state, const char *path);
/* Become what the saved state was: the same ids, the same logits, and the same bits from there on, on any machine,
 * instruction set and number of threads. All of the file is checked first; after a failure the state is as it was. It
 * holds both caches meanwhile. The window stays the state's own.
 * Errors: IO, NOT_STATE, UNSUPPORTED (another version of the format), DAMAGED, OTHER_MODEL (another fingerprint, or it
 * went through BLAS and this model does not), CONTEXT (more ids than the window, or rotary factors for another
 * window, see pn_state_new_window()), ARGUMENT, BUSY, MEMORY. Checksums find damage, not forgery: of a file that
 * someone made to deceive, the logits may be anything, but nothing is read or written out of bounds. */
int pn_state_load(pn_state *state, const char *path);

/* One part of a ragged batch: `n` tokens to append to `state`. n >= 1. If all_logits is not NULL it receives
 * [n, n_vocab] floats: the logits after each of the tokens. */
typedef struct pn_slice {
    pn_state *state;
    const uint32_t *tokens;
    size_t n;
    float *all_logits;
} pn_slice;

/* Append tokens to one or several states of one model (each state at most once): a prompt, one decode step and ten
 * conversations decoding together are the same call. Afterwards each state has the logits of its last token.
 * progress (may be NULL) is called from this thread at most every 50 ms; non-zero from it cancels.
 * Cancelling the evaluation of one of the states ends the whole call with PN_ERR_CANCELLED.
 * ARGUMENT, BUSY and CONTEXT come before any work: all states keep their tokens and logits. After a failure of work
 * that had begun each state holds what it held before plus whole internal batches that were finished (pn_state_tokens
 * tells), and no logits.
 * Errors: ARGUMENT (id >= n_vocab), BUSY, CONTEXT, MEMORY, CANCELLED, NUMERIC. */
int pn_eval(pn_model *model, const pn_slice *slices, size_t n_slices, pn_progress_callback progress, void *user_data);

/* ---- Speculation: several tokens of a reply in one pass, without a second model ----------------------------- */

enum { PN_GUESSES_MAX = 30 };

/* Let pn_advance() and the streams guess on this state, up to `most` (1..PN_GUESSES_MAX; 8 is a good value) tokens at a
 * time: the continuation of an earlier place that ends like the conversation does. 0: stop, and free the memory, which
 * is most + 1 rows of logits and some 30 bytes for each token. Off at first. Results are the same to the bit with it
 * and without. It pays where a reply repeats its source (summaries, edits, code); elsewhere it leaves off guessing, by
 * how often guesses came true and what they cost. always: try each guess nevertheless (for tests and measurements). The
 * counts of pn_state_speculation() begin anew; what was learned stays, after pn_state_reset() too.
 * Errors: ARGUMENT, BUSY, MEMORY (then it is off). */
int pn_state_speculate(pn_state *state, int most, bool always);
/* Guesses that were evaluated, and those of them that came true. Both 0 if it is off. Not during a call, as with
 * pn_state_tokens(). */
void pn_state_speculation(const pn_state *state, uint64_t *proposed, uint64_t *accepted);
/* Append one token, as pn_eval() would with a slice of it alone: the same tokens, logits and errors afterwards. If
 * guesses are on, it may evaluate some along with the token, in one pass, and keep their logits; while the calls that
 * follow bring the very tokens that were guessed, they return at once. n_left: how many tokens the caller will still
 * sample, the one from these logits counted: at most n_left - 1 are guessed, none for 0 or 1. progress: as in
 * pn_eval(), may be NULL; it is not called where a guess is taken over, for that is no work. */
int pn_advance(pn_state *state, uint32_t token, size_t n_left, pn_progress_callback progress, void *user_data);

/* ---- Sampling --------------------------------------------------------------------------------------------- */

typedef struct pn_logit_bias {
    uint32_t token;
    float bias; /* added to the logit; -INFINITY forbids the token */
} pn_logit_bias;

/* Order of application: logit bias, penalties, temperature, top_k, top_p, min_p, draw. Neutral values are neutral. */
typedef struct pn_sampling_params {
    float temperature;       /* >= 0; 0 takes the highest logit, the lowest id on ties                           */
    int top_k;               /* 0: off                                                                           */
    float top_p;             /* (0, 1]; 1: off                                                                   */
    float min_p;             /* [0, 1]; 0: off. Keep tokens with p >= min_p * p of the likeliest                 */
    float repeat_penalty;    /* > 0; 1: off. Positive logits of seen tokens are divided by it, others multiplied */
    float presence_penalty;  /* [-2, 2]; 0: off. Subtracted once for each seen token                             */
    float frequency_penalty; /* [-2, 2]; 0: off. Subtracted for each time that a token was seen                  */
    int penalty_window;      /* how many of the state's last tokens count as seen; -1: all                       */
    uint64_t seed;
    const pn_logit_bias *logit_bias; /* n_logit_bias entries, read during pn_sampler_new only; may be NULL       */
    size_t n_logit_bias;
} pn_sampling_params;

typedef struct pn_sampler pn_sampler;

/* Greedy (temperature 0), every filter off, penalty_window 64, seed 0. */
pn_sampling_params pn_sampling_defaults(void);
/* Owned. PN_ERR_ARGUMENT names the parameter that is out of range. */
pn_sampler *pn_sampler_new(uint32_t n_vocab, const pn_sampling_params *params);
void pn_sampler_free(pn_sampler *sampler);
/* Draw the next token from logits[n_vocab] (unchanged); seen[n_seen] are the tokens so far (penalties look at the
 * last penalty_window of them). Equal seeds give equal draws for equal inputs, independent of threads and history.
 * Errors: NUMERIC (no finite logit), BUSY. */
int pn_sample(pn_sampler *sampler, const float *logits, const uint32_t *seen, size_t n_seen, uint32_t *token);
/* The same on the logits and tokens of a state. PN_ERR_ARGUMENT if it has no logits or if its model's vocabulary is not
 * the sampler's, PN_ERR_BUSY while another call has it. */
int pn_sample_state(pn_sampler *sampler, pn_state *state, uint32_t *token);

/* ---- Streaming: evaluate, sample, call back, repeat -------------------------------------------------------- */

/* One generated token: its id and its bytes (not terminated; may be a part of a character). Non-zero stops the reply
 * after this token. Called from the thread that streams. */
typedef int (*pn_token_callback)(void *user_data, uint32_t token, const char *bytes, size_t len);

/* Append `tokens` to the state and generate up to max_tokens tokens, calling back for each. No BOS is added: the
 * caller controls tokenization. After pn_state_speculate() several tokens may come from one pass. The reply ends at a
 * stop token, at max_tokens, when the context is full, or when the callback says so. A sampled stop token is neither
 * passed to the callback nor evaluated nor counted. The last generated token is sampled but not evaluated
 * (pn_state_tokens tells what is). params NULL: defaults.
 * Returns the number of tokens generated (those the callback saw), or -1 with pn_last_error(). */
int pn_stream_tokens(pn_model *model, pn_state *state, const uint32_t *tokens, int n_tokens, int max_tokens,
                     pn_sampling_params *params, pn_token_callback callback, void *user_data);
/* The same from text (NUL-terminated): encoded without control tokens, with BOS if the file asks for it and the
 * state is empty. */
int pn_stream(pn_model *model, pn_state *state, const char *prompt, int max_tokens, pn_sampling_params *params,
              pn_token_callback callback, void *user_data);

/* --- ffi end --- */

#ifdef __cplusplus
}
#endif
#endif
