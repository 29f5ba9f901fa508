/* GPUVIRT_LAUNCH_RECORD: a file in which the processes of one `gpuvirt run` say that they have had GPUs, and how many kernels they launched on them
 * (gpuvirt/client/launch_record.py). The launcher makes it and removes it at the program's end: a process that lives longer finds no file. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "session/quiet_write.h"
#include "session/session_state.h"

static void append(const char *line, size_t size) {
    const char *path = shim_setting("LAUNCH_RECORD", NULL);
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY) : -1;
    if (fd < 0) return;
    quiet_write(fd, line, size);
    close(fd);
}

void launch_record_attached(void) { append("attached\n", sizeof "attached\n" - 1); }

void launch_record_left(uint64_t launches) {
    char line[32];
    int n = snprintf(line, sizeof line, "left %llu\n", (unsigned long long)launches);
    append(line, (size_t)n);
}
