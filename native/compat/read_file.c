#include "read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

char *read_file(const char *path, size_t *size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    struct stat st;
    char *data = NULL;
    int wrong = fstat(fd, &st) ? errno : st.st_size < 0 || st.st_size > (1ll << 32) ? EFBIG : 0;
    size_t n = 0, all = wrong ? 0 : (size_t)st.st_size;
    if (!wrong && !(data = malloc(all + 1))) wrong = ENOMEM;
    while (!wrong && n < all) {
        ssize_t got = read(fd, data + n, all - n);
        if (got > 0)
            n += (size_t)got;
        else if (!got)
            break;
        else if (errno != EINTR)
            wrong = errno;
    }
    close(fd);
    if (wrong) {
        free(data);
        errno = wrong;
        return NULL;
    }
    data[n] = 0;
    *size = n;
    return data;
}
