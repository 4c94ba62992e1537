/* sniff.c - the first bytes of a file that is not GGUF in, a sentence that says what it is out.         (rank 2)
 *
 * For messages only: nothing is parsed and nothing is decided here but the words of a refusal. A wrong guess would send
 * the user the wrong way, so each test is of bytes that are fixed in the other format. */
#include "sniff.h"

#include <stdio.h>
#include <string.h>

typedef struct signature {
    const char *bytes;
    size_t len;
    const char *meaning;
} signature;

#define SIGNATURE(bytes, meaning) { bytes, sizeof(bytes) - 1, meaning }
#define OLD_GGML(name)            "an old " name " file from before GGUF: convert it, or fetch the model as GGUF"

/* The older formats wrote their magic as a number, so that it stands reversed in little-endian files. */
static const signature SIGNATURES[] = {
    SIGNATURE("FUGG", "a big-endian GGUF file: fetch the little-endian one"),
    SIGNATURE("lmgg", OLD_GGML("GGML")),
    SIGNATURE("ggml", OLD_GGML("GGML")),
    SIGNATURE("fmgg", OLD_GGML("GGMF")),
    SIGNATURE("ggmf", OLD_GGML("GGMF")),
    SIGNATURE("tjgg", OLD_GGML("GGJT")),
    SIGNATURE("ggjt", OLD_GGML("GGJT")),
    SIGNATURE("algg", "an old GGLA adapter (LoRA) file from before GGUF, not a model"),
    SIGNATURE("ggla", "an old GGLA adapter (LoRA) file from before GGUF, not a model"),
    SIGNATURE("version https://git-lfs", "a Git-LFS pointer, not the file it stands for: run git lfs pull"),
    SIGNATURE("PK\x03\x04", "a zip archive (PyTorch checkpoints and wheels are such)"),
    SIGNATURE("PK\x05\x06", "an empty zip archive"),
    SIGNATURE("\x1f\x8b", "compressed with gzip: unpack it first"),
    SIGNATURE("\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    SIGNATURE("\xfd"
              "7zXZ",
              "compressed with xz: unpack it first"),
    SIGNATURE("BZh", "compressed with bzip2: unpack it first"),
    SIGNATURE("7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    SIGNATURE("\x89HDF\r\n", "an HDF5 file (Keras weights?)"),
    SIGNATURE("\x80\x02}", "a Python pickle (an old PyTorch checkpoint?)"),
    SIGNATURE("\x7f"
              "ELF",
              "a program or a library"),
};

/* Does the text at bytes (after a byte-order mark and white space) begin with `lower`, in either case? */
static bool sniff_text_begins(const uint8_t *bytes, size_t size, const char *lower) {
    size_t at = size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && (bytes[at] == ' ' || (bytes[at] >= '\t' && bytes[at] <= '\r'))) at++;
    for (; *lower; lower++, at++) {
        if (at >= size) return false;
        const uint8_t c = bytes[at];
        if ((c >= 'A' && c <= 'Z' ? c + 32 : c) != *lower) return false;
    }
    return true;
}

/* safetensors: u64 length of a JSON object, then the object. */
static bool sniff_is_safetensors(const uint8_t *bytes, size_t size) {
    uint64_t len;
    if (size < 10 || bytes[8] != '{') return false;
    memcpy(&len, bytes, sizeof len);
    return len >= 2 && len <= (uint64_t)100 << 20; /* the format's own limit for its header */
}

static const char *sniff_name(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < PN_ARRAY_LEN(SIGNATURES); i++) {
        const signature *s = &SIGNATURES[i];
        if (size >= s->len && memcmp(bytes, s->bytes, s->len) == 0) return s->meaning;
    }
    if (sniff_is_safetensors(bytes, size)) return "a safetensors file: convert it to GGUF, or fetch the model as GGUF";
    if (sniff_text_begins(bytes, size, "<!doctype") || sniff_text_begins(bytes, size, "<html"))
        return "an HTML page: the download failed, the server sent a web page instead of the file";
    if (sniff_text_begins(bytes, size, "<?xml")) return "an XML text: the download failed, or this is another file";
    if (sniff_text_begins(bytes, size, "{")) return "a JSON text (an error message of a server?)";
    return NULL;
}

int sniff_refuse(const uint8_t *bytes, size_t size) {
    static const char magic[4] = { 'G', 'G', 'U', 'F' };
    if (size < sizeof magic && memcmp(bytes, magic, size) == 0)
        return pn_fail(PN_ERR_TRUNCATED, "truncated: the file has only %zu bytes", size);
    const char *name = sniff_name(bytes, size);
    if (name) return pn_fail(PN_ERR_NOT_GGUF, "not a GGUF file but %s", name);
    char hex[3 * 8 + 1] = "";
    const size_t n = size_min(size, 8);
    for (size_t i = 0; i < n; i++) snprintf(hex + 3 * i, 4, "%02x ", (unsigned)bytes[i]);
    return pn_fail(PN_ERR_NOT_GGUF, "not a GGUF file: it begins with the bytes %.*s, a GGUF file with 47 47 55 46",
                   (int)(3 * n - 1), hex);
}
