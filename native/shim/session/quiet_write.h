/* write(2) of everything, without ever raising SIGPIPE in the program. */
#ifndef SHIM_QUIET_WRITE_H
#define SHIM_QUIET_WRITE_H

#include <stddef.h>

/* 0, or -1 when not all of it could be written. */
int quiet_write(int fd, const void *data, size_t size);

#endif
