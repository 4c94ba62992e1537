/* sniff.h - the first bytes of a file that is not GGUF in, a sentence that says what it is out.       (rank 2) */
#ifndef PN_SNIFF_H
#define PN_SNIFF_H

#include "common.h"
#include "status.h"

/* Fail with what bytes[size] look like. Call it only for bytes that do not begin with "GGUF"; always returns an error:
 * NOT_GGUF, or TRUNCATED if the file is shorter than the magic and agrees with it so far. */
int sniff_refuse(const uint8_t *bytes, size_t size);

#endif
