/* settle.h - a block of memory in, the same bytes in huge pages out, in the background.                   (rank 2) */
#ifndef PN_SETTLE_H
#define PN_SETTLE_H

#include "common.h"

typedef struct settle settle;

/* Start a thread that moves the huge pages' worth within block[0, bytes) into huge pages, one after the other. No byte
 * changes, and the block may be read and written meanwhile. It must live until settle_stop. NULL if there is nothing to
 * gain (bytes < 8 MiB), nothing to be done (not Linux) or no thread to be had: none of them is an error. */
settle *settle_start(void *block, size_t bytes);
/* Stop after the page that is under way, which takes some ms, and free. NULL is fine. Call it in the process of
 * settle_start, or in a forked child, which has no such thread and waits for none. */
void settle_stop(settle *settling);

#endif
