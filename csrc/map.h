/* map.h - a path in, read-only bytes out. The only room that knows the OS's mapping calls.          (rank 1) */
#ifndef PN_MAP_H
#define PN_MAP_H

#include "common.h"
#include "status.h"

typedef struct file_map {
    const uint8_t *bytes; /* [size]                          */
    size_t size;
    bool mapped; /* else: owned heap memory                  */
} file_map;

/* Regular files only; a directory, FIFO, device or empty file is refused in one sentence that says what it is.
 * use_mmap false: read() into memory, immune to later changes of the file. On failure *out is zeroed. */
int map_open(const char *path, bool use_mmap, file_map *out);
/* Nothing lies at this path, or a link that leads nowhere. False also if that cannot be found out. */
bool map_is_missing(const char *path);
/* The bytes [offset, offset + size) will not be needed soon: their pages may go. Whole pages inside only. */
void map_drop(const file_map *map, size_t offset, size_t size);
void map_close(file_map *map); /* idempotent */

enum { HUGE_PAGE = 2 * 1024 * 1024 };

/* Memory [size] to be free()d: on a huge page's boundary if it is as large as one, else on one of 64 bytes. NULL: none
 * is left. */
void *memory_new(size_t size);

/* Advice on memory of the caller's own, which changes no byte of it: */
/* [at, at + size) will be written now: make its pages in one go instead of one fault for each. */
void memory_populate(void *at, size_t size);
/* It will be read again and again: make its pages huge, those that are there already when the system has time. */
void memory_join_pages(void *at, size_t size);
/* Join those that are there now, before returning; other threads may read and write them meanwhile. 0, or an errno:
 * EINVAL if the system cannot (Linux before 6.1, any other), else it may work for other pages or later. */
int memory_join_pages_now(void *at, size_t size);

#endif
