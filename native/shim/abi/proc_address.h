/* The generated tables behind cuGetProcAddress. */
#ifndef SHIM_PROC_ADDRESS_H
#define SHIM_PROC_ADDRESS_H

#include "objects/shim.h"

/* A form of a function: which CUDA version brought it, whether its default stream is the thread's own, and its stub. */
struct proc_version {
    int version;
    int per_thread;
    void *function;
};

/* A base name and its rows in proc_versions: by version, of two with the same the per-thread one last. */
struct proc_name {
    const char *name;
    unsigned first, count;
};

extern const struct proc_version proc_versions[];
extern const struct proc_name proc_names[]; /* by name */
extern const unsigned proc_names_count;
extern const int proc_newest_version; /* of the headers this was built with */

#endif
