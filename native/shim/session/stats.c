/* GPUVIRT_STATS: one line of JSON about the session, when the process that attached ends. FILE, or "-" for stderr; "%p" in FILE becomes the
 * process id, and without it the last process to end is the one whose figures stay. A process that never attached writes nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/quiet_write.h"
#include "session/session_state.h"

/* text as a JSON string without its quotes. */
static const char *escaped(const char *text, char *out, size_t room) {
    size_t n = 0;
    for (; *text && n + 7 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            n += (size_t)snprintf(out + n, room - n, "\\%c", c);
        else if (c < 0x20)
            n += (size_t)snprintf(out + n, room - n, "\\u%04x", c);
        else
            out[n++] = (char)c;
    }
    out[n] = 0;
    return out;
}

/* Each %p in `pattern` replaced. False when it does not fit. */
static bool expand(const char *pattern, char *out, size_t room) {
    size_t n = 0;
    for (; *pattern; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            n += (size_t)snprintf(out + n, room - n, "%d", (int)getpid());
            pattern++;
        } else {
            out[n++] = *pattern;
        }
        if (n + 16 > room) return false;
    }
    out[n] = 0;
    return true;
}

/* The figures so far, for a program that wants to know what one step of its own cost: {calls, waits, nanoseconds waited}. No part of CUDA: a program looks
 * it up in libcuda.so.1, and finds nothing on a machine's own driver. */
__attribute__((visibility("default"))) void gpuvirt_figures(uint64_t figures[3]) {
    figures[0] = atomic_load(&session_stats.calls);
    figures[1] = atomic_load(&session_stats.waits);
    figures[2] = atomic_load(&session_stats.wait_ns);
}

void stats_write(int64_t launches) {
    const char *target = shim_setting("STATS", NULL);
    if (!target) return;
    char known[32] = "null", server[600], backend[64], reason[2 * GV_DEATH_TEXT], line[1800];
    struct gv_link_counts counts;
    gv_link_get_counts(session.link, &counts);
    if (launches >= 0) snprintf(known, sizeof known, "%lld", (long long)launches);
    int n = snprintf(
        line, sizeof line,
        "{\"calls\": %llu, \"waits\": %llu, \"wait_s\": %.6f, \"launches\": %s, \"bytes_out\": %llu, \"bytes_in\": %llu, "
        "\"bytes_lent\": %llu, \"bytes_in_place\": %llu, \"transport\": \"%s\", \"link_reason\": \"%s\", \"backend\": \"%s\", \"server\": \"%s\"}\n",
        (unsigned long long)atomic_load(&session_stats.calls), (unsigned long long)atomic_load(&session_stats.waits),
        (double)atomic_load(&session_stats.wait_ns) / 1e9, known, (unsigned long long)gv_link_bytes_out(session.link),
        (unsigned long long)gv_link_bytes_in(session.link), (unsigned long long)counts.bulk_lent, (unsigned long long)counts.bulk_in_place,
        gv_link_transport(session.link), escaped(gv_link_reason(session.link), reason, sizeof reason),
        escaped(session.server.backend, backend, sizeof backend), escaped(session.pool, server, sizeof server));
    if (!strcmp(target, "-")) {
        shim_log("%.*s", n - 1, line);
        return;
    }
    char path[1024], temporary[1100];
    if (!expand(target, path, sizeof path)) {
        shim_log("GPUVIRT_STATS: the file's name is too long");
        return;
    }
    /* Whole or not at all; but what is no file (a pipe, a terminal) is written to, not replaced. */
    struct stat st;
    bool plain = stat(path, &st) || S_ISREG(st.st_mode);
    snprintf(temporary, sizeof temporary, "%s.%d.tmp", path, (int)getpid());
    /* In a folder that others write to, too, a link may wait under that name: the file is a new one, or there is none. */
    if (plain) unlink(temporary);
    int fd = open(plain ? temporary : path, O_WRONLY | O_CLOEXEC | O_NOCTTY | (plain ? O_CREAT | O_EXCL : 0), 0666);
    bool good = fd >= 0 && !quiet_write(fd, line, (size_t)n);
    if (fd >= 0) good = !close(fd) && good;
    if (good && plain) good = !rename(temporary, path);
    if (good) return;
    if (plain) unlink(temporary);
    shim_log("GPUVIRT_STATS: %s could not be written", path);
}
