/* Messages to the user: one line on stderr, in one write, without a lock. Whatever text they contain, the server's included, what reaches the terminal is
 * printable. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "session/log/log_lines.h"
#include "session/quiet_write.h"
#include "session/session.h"

/* The bytes of the character at `c`, 0 when it is none that is printed as it is: controls (C0, DEL, C1) and what is no UTF-8. */
static int printable(const unsigned char *c) {
    if (c[0] < 0x80) return c[0] >= 0x20 && c[0] != 0x7f;
    int size = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
    if (c[0] < 0xc2 || c[0] > 0xf4 || (c[0] == 0xc2 && c[1] < 0xa0)) return 0;
    for (int i = 1; i < size; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0;
    }
    return size;
}

/* Copies a text, with what is not printable as \n or \xNN. Returns its length. */
static size_t put_printable(char *to, size_t room, const char *text) {
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 4 < room;) {
        int size = printable(c);
        if (size) {
            memcpy(to + n, c, (size_t)size);
            n += (size_t)size;
            c += size;
        } else {
            n += (size_t)(*c == '\n' ? snprintf(to + n, room - n, "\\n") : snprintf(to + n, room - n, "\\x%02x", *c));
            c++;
        }
    }
    return n;
}

void shim_log(const char *format, ...) {
    char text[1024], line[1536] = "gpuvirt: ";
    int saved = errno;
    va_list args;
    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0) *text = 0;
    va_end(args);
    size_t n = strlen(line);
    n += put_printable(line + n, sizeof line - n - 1, text);
    line[n++] = '\n';
    log_lines_keep(line, n);
    /* A terminal or pipe that takes nothing now loses the line: no call of the program's may hang for it. */
    struct pollfd p = {.fd = 2, .events = POLLOUT};
    if (poll(&p, 1, 200) > 0) quiet_write(2, line, n);
    errno = saved;
}
