/* The functions that a preloaded one stands in front of. */
#ifndef COMPAT_LINKED_H
#define COMPAT_LINKED_H

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* A function of the library, named like "/libnvrtc.so", that the caller was linked to: a process may have two of them. NULL: there is none. */
void *linked_function(const char *name, const char *library, const void *caller);

#endif
