/* status.h - error codes in, this thread's last message out.                                       (rank 0)
 *
 * Every fallible internal function returns int (a pn_status). The function that finds the fault calls
 * pn_fail(code, "what, where, value", ...) and returns its result; callers pass it on with PN_TRY. */
#ifndef PN_STATUS_H
#define PN_STATUS_H

#include "pantheon.h"

/* Record code and printf-style message for this thread; returns code. Messages are cut at 1023 bytes; file-supplied
 * text must be passed through %.*s with a bounded length and is made printable (control bytes become '?'). */
int pn_fail(pn_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put "prefix: " in front of this thread's last message, unless it names it already, as messages name paths. */
void status_prefix(const char *prefix);

#define PN_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const int pn_try_status_ = (call);                                                                             \
        if (pn_try_status_ != PN_OK) return pn_try_status_;                                                            \
    } while (0)

#endif
