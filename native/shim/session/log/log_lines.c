/* The newest lines of the log, one behind the other in one piece of memory. A line may come from a signal's handler, so that nothing waits for the lock for ever. */
#include "session/log/log_lines.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static const char MISSING[] = "gpuvirt: earlier messages are missing here\n";

static atomic_flag busy = ATOMIC_FLAG_INIT;
static char text[LOG_LINES_SIZE];
static size_t used;
static unsigned first, next; /* numbers: of the oldest line, of the next one */

static bool enter(void) {
    for (int i = 0; i < 10000; i++) {
        if (!atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) return true;
        sched_yield();
    }
    return false;
}

static void leave(void) { atomic_flag_clear_explicit(&busy, memory_order_release); }

static size_t line_size(size_t at) { return (size_t)((const char *)memchr(text + at, '\n', used - at) - (text + at)) + 1; }

void log_lines_keep(const char *line, size_t size) {
    if (!size || size > sizeof text || line[size - 1] != '\n' || !enter()) return;
    size_t dropped = 0;
    for (; used - dropped + size > sizeof text; first++) dropped += line_size(dropped);
    memmove(text, text + dropped, used - dropped);
    used -= dropped;
    memcpy(text + used, line, size);
    used += size;
    next++;
    leave();
}

unsigned log_lines_next(void) {
    if (!enter()) return 0;
    unsigned number = next;
    leave();
    return number;
}

long log_lines_copy(unsigned from, char *to, size_t room, unsigned *after) {
    if (!enter()) return -1;
    long copied = -1;
    size_t at = 0;
    unsigned number = first;
    for (; at < used && (int)(from - number) > 0; number++) at += line_size(at);
    bool all = (int)(number - from) <= 0;
    /* Room for the rest, or for the note and what comes after some more lines. */
    while (at < used && used - at + (all ? 0 : sizeof MISSING - 1) + 1 > room) {
        at += line_size(at);
        all = false;
    }
    bool wanted = (int)(next - from) > 0, known = (int)(next - from) >= 0;
    if (known && room && (at < used || !wanted)) {
        copied = 0;
        if (!all) {
            memcpy(to, MISSING, sizeof MISSING - 1);
            copied = sizeof MISSING - 1;
        }
        memcpy(to + copied, text + at, used - at);
        copied += (long)(used - at);
        to[copied] = 0;
        *after = next;
    }
    leave();
    return copied;
}
