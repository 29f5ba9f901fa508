#include "own_process.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "sha256.h"

static bool read_text(const char *path, char *text, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, room - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* The 22nd field of /proc/self/stat: when the process started, in clock ticks since the boot. The 2nd, the program's name, may hold anything. */
static const char *start_time(char *stat) {
    char *at = strrchr(stat, ')');
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    if (at) at[strcspn(at, " ")] = 0;
    return at;
}

/* Hashes, so that neither what they are made of nor the kernel's random bytes (of which the stack's guard is made) leave the process. */
void gv_name_own_process(struct gv_hello *hello) {
    char boot[64], stat[1024], namespace[64], text[256];
    uint8_t digest[GV_SHA256_SIZE];
    ssize_t n = readlink("/proc/self/ns/pid", namespace, sizeof namespace - 1);
    const char *start = read_text("/proc/self/stat", stat, sizeof stat) ? start_time(stat) : NULL;
    const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes, new for each exec */
    if (!start || n <= 0 || !random || !read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) return;
    namespace[n] = 0;
    int length = snprintf(text, sizeof text, "gpuvirt process|%s|%s|%ld|%s", boot, namespace, (long)getpid(), start);
    if (length < 0 || (size_t)length >= sizeof text) return;
    gv_sha256(text, (size_t)length, digest);
    memcpy(hello->process, digest, sizeof hello->process);
    length = snprintf(text, sizeof text, "gpuvirt exec|");
    memcpy(text + length, random, 16);
    gv_sha256(text, (size_t)length + 16, digest);
    memcpy(hello->exec_id, digest, sizeof hello->exec_id);
}
