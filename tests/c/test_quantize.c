/* pn_quantize where the file system does not help. This program's own open() stands before that of the C library. */
#include "check.h"
#include "pantheon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool names_taken; /* someone else always was faster: every temporary name exists by then */
static int names_tried;
static char stranger[4096]; /* the last of them */

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (names_taken && flags & O_EXCL) {
        if (stranger[0]) unlink(stranger);
        snprintf(stranger, sizeof stranger, "%s", path);
        close((int)syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 0600));
        names_tried++;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void test_quantize_where_all_temporary_names_are_taken_fails_and_removes_no_file_of_others(void) {
    static const char HEADER[24] = "GGUF\3"; /* no tensors, no metadata */
    char folder[] = "/tmp/pantheon-quantize-XXXXXX", in[64], out[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(in, sizeof in, "%s/in.gguf", folder);
    snprintf(out, sizeof out, "%s/out.gguf", folder);
    FILE *file = fopen(in, "wb");
    CHECK(file && fwrite(HEADER, sizeof HEADER, 1, file) == 1 && fclose(file) == 0);
    names_taken = true;
    CHECK(pn_quantize(in, out, "q8_0", NULL, NULL) == PN_ERR_IO);
    names_taken = false;
    CHECK(strstr(pn_last_error(), strerror(EEXIST)) != NULL);
    CHECK(names_tried >= 2);
    CHECK(access(stranger, F_OK) == 0);
    CHECK(access(out, F_OK) != 0);
    CHECK(pn_quantize(in, out, "q8_0", NULL, NULL) == PN_OK);
    CHECK(access(out, F_OK) == 0);
    CHECK(unlink(stranger) == 0 && unlink(in) == 0 && unlink(out) == 0 && rmdir(folder) == 0);
}

int main(void) {
    RUN(test_quantize_where_all_temporary_names_are_taken_fails_and_removes_no_file_of_others);
    return check_report();
}
