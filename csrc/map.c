/* map.c - a path in, read-only bytes out.                                                          (rank 1)
 *
 * Knows the operating system's calls and nothing about what the bytes mean. A mapping is private and read-only, so
 * nothing here can change a file. It does not lock the file: if another program cuts a mapped file short, touching the
 * lost pages raises SIGBUS. Whoever cannot rule that out asks for use_mmap = false, which copies the bytes once. */
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_SHOWN = 300,         /* bytes of a path in a message: the reason after it must not be cut off   */
    READ_CHUNK_MAX = 1 << 30, /* some systems refuse a read() of 2 GiB or more                           */
};

static int map_fail_errno(const char *path, const char *what, int error) {
    return pn_fail(PN_ERR_IO, "cannot %s %.*s: %s", what, PATH_SHOWN, path, strerror(error));
}

/* One sentence for each thing that a path can be instead of a file with something in it. */
static int map_check_kind(const char *path, const struct stat *info) {
    const char *kind = NULL;
    if (S_ISDIR(info->st_mode))
        kind = "a directory";
    else if (S_ISFIFO(info->st_mode))
        kind = "a named pipe (FIFO)";
    else if (S_ISSOCK(info->st_mode))
        kind = "a socket";
    else if (S_ISCHR(info->st_mode) || S_ISBLK(info->st_mode))
        kind = "a device";
    else if (!S_ISREG(info->st_mode))
        kind = "not a regular file";
    if (kind) return pn_fail(PN_ERR_IO, "%.*s is %s; a file is needed", PATH_SHOWN, path, kind);
    if (info->st_size == 0)
        return pn_fail(PN_ERR_TRUNCATED, "%.*s is empty (0 bytes): a download that failed or has not begun?",
                       PATH_SHOWN, path);
    if ((uint64_t)info->st_size > SIZE_MAX)
        return pn_fail(PN_ERR_IO, "%.*s has %lld bytes, more than this system can address", PATH_SHOWN, path,
                       (long long)info->st_size);
    return PN_OK;
}

static int map_read(const char *path, int fd, size_t size, file_map *out) {
    uint8_t *bytes = malloc(size);
    if (!bytes) return pn_fail(PN_ERR_MEMORY, "no memory for the %zu bytes of %.*s", size, PATH_SHOWN, path);
    size_t done = 0;
    while (done < size) {
        const ssize_t n = read(fd, bytes + done, size_min(size - done, READ_CHUNK_MAX));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int error = errno;
            free(bytes);
            if (n < 0) return map_fail_errno(path, "read", error);
            return pn_fail(PN_ERR_TRUNCATED, "%.*s became shorter while it was read: %zu of %zu bytes", PATH_SHOWN,
                           path, done, size);
        }
        done += (size_t)n;
    }
    *out = (file_map){ .bytes = bytes, .size = size, .mapped = false };
    return PN_OK;
}

static int map_fd(const char *path, int fd, bool use_mmap, file_map *out) {
    struct stat info;
    if (fstat(fd, &info) != 0) return map_fail_errno(path, "examine", errno);
    PN_TRY(map_check_kind(path, &info));
    const size_t size = (size_t)info.st_size;
    if (!use_mmap) return map_read(path, fd, size, out);
    void *at = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    /* Some file systems cannot map at all; reading gives the same bytes. */
    if (at == MAP_FAILED && errno == ENODEV) return map_read(path, fd, size, out);
    if (at == MAP_FAILED && errno == ENOMEM)
        return pn_fail(PN_ERR_MEMORY, "no address space to map the %zu bytes of %.*s", size, PATH_SHOWN, path);
    if (at == MAP_FAILED) return map_fail_errno(path, "map", errno);
    *out = (file_map){ .bytes = at, .size = size, .mapped = true };
    return PN_OK;
}

int map_open(const char *path, bool use_mmap, file_map *out) {
    memset(out, 0, sizeof *out);
    if (!path || !*path) return pn_fail(PN_ERR_ARGUMENT, "the path of a file is empty");
    int fd;
    /* O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever before fstat could tell what it is. */
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return map_fail_errno(path, "open", errno);
    const int status = map_fd(path, fd, use_mmap, out);
    close(fd);
    return status;
}

bool map_is_missing(const char *path) {
    struct stat info;
    return stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* Advice on the whole pages within [at, at + size): a failure costs time or memory for a while and nothing else.
 * Returns 0 or an errno. */
static int advise(uintptr_t at, size_t size, int advice) {
    const long page_or_error = sysconf(_SC_PAGESIZE);
    if (page_or_error <= 0) return EINVAL;
    const size_t page = (size_t)page_or_error, skip = (page - at % page) % page;
    if (size <= skip || size - skip < page) return 0;
    return madvise((void *)(at + skip), (size - skip) / page * page, advice) == 0 ? 0 : errno;
}

void map_drop(const file_map *map, size_t offset, size_t size) {
    if (!map->mapped || offset > map->size || size > map->size - offset) return;
    (void)advise((uintptr_t)map->bytes + offset, size, MADV_DONTNEED);
}

void map_close(file_map *map) {
    if (map->mapped)
        munmap((void *)(uintptr_t)map->bytes, map->size);
    else
        free((void *)(uintptr_t)map->bytes);
    memset(map, 0, sizeof *map);
}

void *memory_new(size_t size) {
    void *memory;
    return posix_memalign(&memory, size >= HUGE_PAGE ? HUGE_PAGE : 64, size ? size : 1) ? NULL : memory;
}

/* Since Linux 5.14 and 6.1, but the headers may be older than the system; one that does not know them says so. */
#if defined(__linux__) && !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif

void memory_populate(void *at, size_t size) {
#ifdef MADV_POPULATE_WRITE
    (void)advise((uintptr_t)at, size, MADV_POPULATE_WRITE);
#else
    (void)at, (void)size;
#endif
}

void memory_join_pages(void *at, size_t size) {
#ifdef MADV_HUGEPAGE
    (void)advise((uintptr_t)at, size, MADV_HUGEPAGE);
#else
    (void)at, (void)size;
#endif
}

int memory_join_pages_now(void *at, size_t size) {
#ifdef MADV_COLLAPSE
    return advise((uintptr_t)at, size, MADV_COLLAPSE);
#else
    (void)at, (void)size;
    return EINVAL;
#endif
}
