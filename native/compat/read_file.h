/* Reading a whole file. */
#ifndef COMPAT_READ_FILE_H
#define COMPAT_READ_FILE_H

#include <stddef.h>

/* The file's bytes with a NUL behind them, the caller's to free; NULL, and errno says why. */
char *read_file(const char *path, size_t *size);

#endif
