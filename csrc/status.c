/* status.c - where the thread's last failure is kept.                                              (rank 0)
 *
 * Thread-local, so that concurrent callers never read each other's message. Knows nothing of who fails or why. */
#include "status.h"

#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
    pn_status status;
    char message[1024];
} last = { PN_OK, "no error" };

static void make_printable(void) {
    /* Names in a message can come from a hostile file: keep terminals and logs safe. UTF-8 bytes pass. */
    for (unsigned char *c = (unsigned char *)last.message; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
}

int pn_fail(pn_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last.message, sizeof last.message, format, args);
    va_end(args);
    make_printable();
    last.status = code;
    return code;
}

/* Does the message name it already, as messages name paths ("PATH: why", "cannot open PATH: why")? They show 200 bytes
 * of a longer one, or more. */
static bool message_names(const char *path) {
    char named[208];
    snprintf(named, sizeof named, strlen(path) < 200 ? "%.200s: " : "%.200s", path);
    for (const char *at = last.message; (at = strstr(at, named)); at++)
        if (at == last.message || at[-1] == ' ') return true;
    return false;
}

void status_prefix(const char *prefix) {
    if (message_names(prefix)) return;
    char message[sizeof last.message + 304]; /* the longest prefix, then all of the message */
    snprintf(message, sizeof message, "%.300s: %s", prefix, last.message);
    message[sizeof last.message - 1] = 0;
    memcpy(last.message, message, sizeof last.message);
    make_printable();
}

pn_status pn_last_status(void) {
    return last.status;
}

const char *pn_last_error(void) {
    return last.message;
}

const char *pn_status_name(int status) {
    static const char *const names[] = {
        [PN_OK] = "ok",
        [PN_ERR_ARGUMENT] = "argument",
        [PN_ERR_IO] = "io",
        [PN_ERR_NOT_GGUF] = "not_gguf",
        [PN_ERR_TRUNCATED] = "truncated",
        [PN_ERR_CORRUPT] = "corrupt",
        [PN_ERR_METADATA] = "metadata",
        [PN_ERR_UNSUPPORTED] = "unsupported",
        [PN_ERR_MEMORY] = "memory",
        [PN_ERR_BUSY] = "busy",
        [PN_ERR_CANCELLED] = "cancelled",
        [PN_ERR_CONTEXT] = "context",
        [PN_ERR_ISA] = "isa",
        [PN_ERR_NUMERIC] = "numeric",
        [PN_ERR_NOT_STATE] = "not_state",
        [PN_ERR_DAMAGED] = "damaged",
        [PN_ERR_OTHER_MODEL] = "other_model",
    };
    return status >= 0 && (size_t)status < PN_ARRAY_LEN(names) ? names[status] : "unknown";
}
