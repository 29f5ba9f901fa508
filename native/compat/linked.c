#define _GNU_SOURCE
#include "linked.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

__thread void *linked_library;

__attribute__((visibility("hidden"), used)) libc_dlsym *_Atomic compat_libc_dlsym; /* lookup.c jumps to it */

libc_dlsym *linked_libc_dlsym(void) {
    libc_dlsym *libc = atomic_load_explicit(&compat_libc_dlsym, memory_order_relaxed);
    if (!libc) {
        *(void **)&libc = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        atomic_store_explicit(&compat_libc_dlsym, libc, memory_order_relaxed);
    }
    return libc;
}

struct search {
    const char *name;
    void *library;
};

static int open_loaded(struct dl_phdr_info *info, size_t size, void *arg) {
    struct search *s = arg;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (slash && !strncmp(slash, s->name, strlen(s->name))) s->library = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    return s->library != NULL;
}

void *linked_function(const char *name, const char *library, const void *caller) {
    libc_dlsym *look_up = linked_libc_dlsym();
    if (linked_library) return look_up(linked_library, name);
    Dl_info info, found;
    void *own = NULL, *function = NULL;
    if (dladdr(caller, &info) && info.dli_fname) own = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (own) function = look_up(own, name);
    /* The program itself is searched as everything is: it finds this library first. */
    if (function && dladdr(function, &found) && dladdr((const void *)&linked_function, &info) && found.dli_fbase == info.dli_fbase) function = NULL;
    if (own) dlclose(own);
    if (!function) function = look_up(RTLD_NEXT, name);
    if (!function) {
        struct search s = {.name = library};
        dl_iterate_phdr(open_loaded, &s);
        if (s.library) function = look_up(s.library, name);
        if (s.library) dlclose(s.library); /* loaded as before */
    }
    return function;
}
