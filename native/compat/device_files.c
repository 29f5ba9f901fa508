/* Reports NVIDIA's device files, for which JAX looks before it loads the driver: stat() and access() find /dev/nvidia0 and its like; open() fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NVIDIA_MAJOR 195 /* as the kernel's documentation lists it */

/* The minor number of a device file that is reported, -1 for any other path. */
static int minor_of(const char *path) {
    if (!path || strncmp(path, "/dev/nvidia", 11) != 0) return -1;
    return !strcmp(path + 11, "0") ? 0 : !strcmp(path + 11, "ctl") ? 255 : -1;
}

/* Whether a failed look-up is to report the file as found. */
static bool pretend(int result, const char *path) { return result && errno == ENOENT && minor_of(path) >= 0; }

/* The C library's own functions; an older library lacks some. */
#define REAL(name, ...)                                   \
    static int (*real)(__VA_ARGS__);                      \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name); \
    if (!real) {                                          \
        errno = ENOSYS;                                   \
        return -1;                                        \
    }

#define FILL(path, out)                                                   \
    do {                                                                  \
        memset(out, 0, sizeof *(out));                                    \
        (out)->st_mode = S_IFCHR | 0666;                                  \
        (out)->st_nlink = 1;                                              \
        (out)->st_rdev = makedev(NVIDIA_MAJOR, (unsigned)minor_of(path)); \
    } while (0)

EXPORT int stat(const char *restrict path, struct stat *restrict out) {
    REAL(stat, const char *, struct stat *)
    int result = real(path, out);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

EXPORT int stat64(const char *restrict path, struct stat64 *restrict out) {
    REAL(stat64, const char *, struct stat64 *)
    int result = real(path, out);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

EXPORT int fstatat(int folder, const char *restrict path, struct stat *restrict out, int flags) {
    REAL(fstatat, int, const char *, struct stat *, int)
    int result = real(folder, path, out, flags);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

EXPORT int fstatat64(int folder, const char *restrict path, struct stat64 *restrict out, int flags) {
    REAL(fstatat64, int, const char *, struct stat64 *, int)
    int result = real(folder, path, out, flags);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

/* Programs that were built with a C library before 2.33 call these. */
EXPORT int __xstat(int version, const char *path, struct stat *out) {
    REAL(__xstat, int, const char *, struct stat *)
    int result = real(version, path, out);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

EXPORT int __xstat64(int version, const char *path, struct stat64 *out) {
    REAL(__xstat64, int, const char *, struct stat64 *)
    int result = real(version, path, out);
    if (!pretend(result, path)) return result;
    FILL(path, out);
    return 0;
}

EXPORT int access(const char *path, int mode) {
    REAL(access, const char *, int)
    int result = real(path, mode);
    return pretend(result, path) && !(mode & X_OK) ? 0 : result;
}

EXPORT int faccessat(int folder, const char *path, int mode, int flags) {
    REAL(faccessat, int, const char *, int, int)
    int result = real(folder, path, mode, flags);
    return pretend(result, path) && !(mode & X_OK) ? 0 : result;
}
