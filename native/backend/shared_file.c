#define _GNU_SOURCE
#include "shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

void file_source_open(struct file_source *s, const struct gv_backend_config *config) {
    *s = (struct file_source){config->memory_file_arg ? config->new_memory_file : NULL, config->memory_file_over, config->memory_file_arg};
}

int file_source_new(const struct file_source *s, uint64_t size, uint64_t *number) {
    if (s->make) return s->make(s->arg, size, number);
    *number = 0;
    int fd = memfd_create("gpuvirt-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && !ftruncate(fd, (off_t)size) && !fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

void file_source_over(const struct file_source *s, uint64_t number) {
    if (s->make) s->over(s->arg, number);
}

bool shared_file_is_sound(int fd, uint64_t size) {
    struct stat is;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &is) && S_ISREG(is.st_mode) && (uint64_t)is.st_size >= size;
}
