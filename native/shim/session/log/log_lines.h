/* The newest lines of the log, for programs that ask for them (cuLogs*). */
#ifndef SHIM_LOG_LINES_H
#define SHIM_LOG_LINES_H

#include <stddef.h>

#define LOG_LINES_SIZE 25600u /* bytes of text, as NVIDIA's driver keeps */

/* Keeps a line that ends with \n, in the place of the oldest ones. Never blocks for long: a line that cannot be kept is lost. */
void log_lines_keep(const char *line, size_t size);
/* The number that the next line will get. */
unsigned log_lines_next(void);
/* Copies the lines from number `from` on, or as many of the newest as there is room for, and a NUL. A first line says so when some are missing.
 * Returns the bytes without the NUL, and in *next the number after the last; -1: there is no room for any line, or no line has got that number yet. */
long log_lines_copy(unsigned from, char *to, size_t room, unsigned *next);

#endif
