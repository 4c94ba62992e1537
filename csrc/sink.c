/* sink.c - temporary file, buffer, sync, rename. It knows the operating system and not what is written.
 *                                                                                                       (rank 2) */
#include "sink.h"

#include "pantheon.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int sink_fail(const sink *s, const char *what, int error) {
    return pn_fail(PN_ERR_IO, "cannot %s %.*s: %s", what, SINK_PATH_SHOWN, s->path, strerror(error));
}

/* Bytes of the path up to and including the last slash. */
static size_t sink_dir_len(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Renaming over a device or a directory would be a disaster or fail late: look first. */
static int sink_check_target(const char *path) {
    struct stat info;
    const size_t len = strlen(path);
    if (len == 0) return pn_fail(PN_ERR_ARGUMENT, "the path of the output is empty");
    if (len >= SINK_PATH_MAX - 64)
        return pn_fail(PN_ERR_ARGUMENT, "the path of the output has %zu bytes; at most %d are possible", len,
                       SINK_PATH_MAX - 64);
    if (stat(path, &info) != 0) return PN_OK; /* not there; all other trouble shows when the file is created */
    if (S_ISREG(info.st_mode)) return PN_OK;
    return pn_fail(PN_ERR_IO, "cannot write %.*s: it is %s", SINK_PATH_SHOWN, path,
                   S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
}

/* open() rather than mkstemp(): the mode of the new file is then what the umask says, without asking for the umask. */
static int sink_create(sink *s, unsigned mode) {
    const size_t dir_len = sink_dir_len(s->path);
    int error = 0;
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(s->temp, sizeof s->temp, "%.*s.pantheon-%lx-%lx-%u.tmp", (int)dir_len, s->path,
                 (unsigned long)getpid(), (unsigned long)now.tv_nsec, attempt);
        s->fd = open(s->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
        if (s->fd >= 0) return PN_OK;
        error = errno;
        if (error != EEXIST && error != EINTR) break;
    }
    s->temp[0] = 0; /* whatever has that name is not ours to remove */
    return sink_fail(s, "create", error);
}

int sink_open(sink *s, const char *path, unsigned mode) {
    *s = (sink){ .path = path, .fd = -1 };
    PN_TRY(sink_check_target(path));
    s->buffer = malloc(SINK_BUFFER);
    if (!s->buffer) return pn_fail(PN_ERR_MEMORY, "no memory for %d bytes to write with", SINK_BUFFER);
    return sink_create(s, mode);
}

static int sink_put(sink *s, const uint8_t *bytes, size_t len) {
    while (len > 0) {
        const ssize_t n = write(s->fd, bytes, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return sink_fail(s, "write", n < 0 ? errno : ENOSPC);
        bytes += n;
        len -= (size_t)n;
    }
    return PN_OK;
}

static int sink_flush(sink *s) {
    const size_t used = s->used;
    s->used = 0;
    return sink_put(s, s->buffer, used);
}

int sink_write(sink *s, const void *bytes, size_t len) {
    s->written += len;
    if (len > SINK_BUFFER - s->used) PN_TRY(sink_flush(s));
    if (len > SINK_BUFFER) return sink_put(s, bytes, len);
    memcpy(s->buffer + s->used, bytes, len);
    s->used += len;
    return PN_OK;
}

int sink_u32(sink *s, uint32_t value) {
    return sink_write(s, &value, sizeof value);
}
int sink_u64(sink *s, uint64_t value) {
    return sink_write(s, &value, sizeof value);
}

int sink_string(sink *s, const char *text, size_t len) {
    PN_TRY(sink_u64(s, len));
    return sink_write(s, text, len);
}

int sink_pad(sink *s, uint32_t alignment) {
    static const uint8_t zeros[64];
    while (s->written % alignment) {
        const size_t need = alignment - (size_t)(s->written % alignment);
        PN_TRY(sink_write(s, zeros, size_min(need, sizeof zeros)));
    }
    return PN_OK;
}

/* A rename is on the disk once its directory is. Not every file system can sync one, so errors do not count. */
static void sink_sync_dir(const sink *s) {
    char dir[SINK_PATH_MAX];
    const size_t len = sink_dir_len(s->path);
    snprintf(dir, sizeof dir, "%.*s", len ? (int)len : 1, len ? s->path : ".");
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

int sink_commit(sink *s) {
    PN_TRY(sink_flush(s));
    if (fsync(s->fd) != 0) return sink_fail(s, "write", errno);
    const int closed = close(s->fd);
    s->fd = -1;
    if (closed != 0) return sink_fail(s, "write", errno);
    if (rename(s->temp, s->path) != 0) return sink_fail(s, "replace", errno);
    s->temp[0] = 0;
    sink_sync_dir(s);
    return PN_OK;
}

void sink_close(sink *s) {
    if (s->fd >= 0) close(s->fd);
    if (s->temp[0]) unlink(s->temp);
    free(s->buffer);
}
