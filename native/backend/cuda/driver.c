#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

/* Where distributions, WSL and containers put the driver's library. */
static const char *const places[] = {
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
};

/* A process that already holds a libcuda.so.1 (a shim that was preloaded, say) would be handed that one again for a file of the same name and
 * inode only: an absolute path to another file opens that file. RTLD_LOCAL keeps its names out of everybody else's way. */
static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

int driver_open(struct driver *d, const char *path, char *err, size_t err_size) {
    const char *chosen = path;
    for (size_t i = 0; !chosen && i < sizeof places / sizeof *places; i++) {
        if (access(places[i], R_OK) == 0) chosen = places[i];
    }
    if (!chosen) {
        snprintf(err, err_size, "no NVIDIA driver found; name its library with --driver, or use --backend soft");
        return CUDA_ERROR_NO_DEVICE;
    }
    if (chosen[0] != '/') {
        snprintf(err, err_size, "%s: the driver's library must be named by an absolute path", chosen);
        return CUDA_ERROR_INVALID_VALUE;
    }
    d->library = open_library(chosen);
    if (!d->library) {
        snprintf(err, err_size, "the driver's library could not be opened: %s", dlerror());
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    if (!path && dlsym(d->library, "gpuvirt_shim_marker")) {
        snprintf(err, err_size, "%s is gpuvirt's own shim, not a driver; name the real one with --driver", chosen);
        dlclose(d->library);
        return CUDA_ERROR_NO_DEVICE;
    }
#define DRIVER_FIND(member, symbol, arguments)                                                        \
    *(void **)&d->member = dlsym(d->library, #symbol);                                                \
    if (!d->member) {                                                                                 \
        snprintf(err, err_size, "%s has no " #symbol "; gpuvirt needs driver 12.4 or newer", chosen); \
        dlclose(d->library);                                                                          \
        return CUDA_ERROR_NOT_SUPPORTED;                                                              \
    }
    DRIVER_FUNCTIONS(DRIVER_FIND)
    DRIVER_TEXTURE_FUNCTIONS(DRIVER_FIND)
#undef DRIVER_FIND
    d->has_references = true;
#define DRIVER_MAY_FIND(member, symbol, arguments)     \
    *(void **)&d->member = dlsym(d->library, #symbol); \
    if (!d->member) d->has_references = false;
    DRIVER_REFERENCE_FUNCTIONS(DRIVER_MAY_FIND)
#undef DRIVER_MAY_FIND
    return 0;
}
