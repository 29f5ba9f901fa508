/* Messages to the user: one line on stderr, in one write, without a lock. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "session/quiet_write.h"
#include "session/session.h"

void shim_log(const char *format, ...) {
    char line[1024];
    int saved = errno;
    int n = snprintf(line, sizeof line, "gpuvirt: ");
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (m > 0) n += m;
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    line[n++] = '\n';
    /* A terminal or pipe that takes nothing now loses the line: no call of the program's may hang for it. */
    struct pollfd p = {.fd = 2, .events = POLLOUT};
    if (poll(&p, 1, 200) > 0) quiet_write(2, line, (size_t)n);
    errno = saved;
}
