/* Files of memory that sessions of one lease share, of a size that nobody changes. */
#ifndef BACKEND_SHARED_FILE_H
#define BACKEND_SHARED_FILE_H

#include "../worker/backend.h"

/* Who makes them: the daemon, or where there is none (make: NULL) the backend itself. */
struct file_source {
    int (*make)(void *arg, uint64_t size, uint64_t *number);
    void (*over)(void *arg, uint64_t number);
    void *arg;
};

void file_source_open(struct file_source *s, const struct gv_backend_config *config);
/* Its descriptor, -1: there is none to be had. number: that whoever has made it has for it. Executor, no lock held. */
int file_source_new(const struct file_source *s, uint64_t size, uint64_t *number);
/* It is not used here any more. */
void file_source_over(const struct file_source *s, uint64_t number);
/* Whether a file that another session has given cannot shrink, and is so large. */
bool shared_file_is_sound(int fd, uint64_t size);

#endif
