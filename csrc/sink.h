/* sink.h - a new file that appears under its name whole, or not at all.                                    (rank 2)
 *
 * It is written under another name beside the old one and takes its name only when all of it is on the disk, so a
 * reader, a full disk or a crash never meets half a file. All that can fail is PN_ERR_IO naming the path, or
 * PN_ERR_MEMORY. */
#ifndef PN_SINK_H
#define PN_SINK_H

#include "common.h"

enum {
    SINK_BUFFER = 1 << 18, /* bytes collected before a write() */
    SINK_PATH_SHOWN = 300, /* bytes of a path in a message     */
    SINK_PATH_MAX = 4096,
};

typedef struct sink {
    const char *path;         /* the final name             */
    char temp[SINK_PATH_MAX]; /* the name while it is made  */
    int fd;                   /* -1: not open               */
    uint8_t *buffer;          /* [SINK_BUFFER]          */
    size_t used;
    uint64_t written; /* bytes given to sink_write so far */
} sink;

/* Check the target (PN_ERR_ARGUMENT for a path that cannot be one) and create the temporary file, with permissions
 * `mode` less the umask. `path` is borrowed. sink_close is due after this, also when it fails. */
int sink_open(sink *s, const char *path, unsigned mode);
int sink_write(sink *s, const void *bytes, size_t len);
int sink_u32(sink *s, uint32_t value);
int sink_u64(sink *s, uint64_t value);
/* A string as the format holds it: u64 length, then the bytes. */
int sink_string(sink *s, const char *text, size_t len);
/* Zeros up to a multiple of `alignment`. */
int sink_pad(sink *s, uint32_t alignment);
/* Everything on the disk, then the final name. */
int sink_commit(sink *s);
/* Also after a failure: what was written and not committed goes. Harmless for a sink that only has fd = -1. */
void sink_close(sink *s);

#endif
