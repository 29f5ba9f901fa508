/* The functions that a preloaded one stands in front of. */
#ifndef COMPAT_LINKED_H
#define COMPAT_LINKED_H

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* The library that this thread's call is meant for, where that is known; else NULL. */
extern __thread void *linked_library __attribute__((visibility("hidden")));
/* The C library's dlsym, which lookup.c stands in front of. */
typedef void *libc_dlsym(void *, const char *);
libc_dlsym *linked_libc_dlsym(void) __attribute__((visibility("hidden")));
/* A function of the library, named like "/libnvrtc.so", that the caller was linked to: a process may have two of them. NULL: there is none. */
void *linked_function(const char *name, const char *library, const void *caller);

#endif
