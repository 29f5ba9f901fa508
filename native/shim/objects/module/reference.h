/* References to textures and surfaces: what a program has set (texture_reference.c), and how it gets to the worker before a launch (reference.c). */
#ifndef SHIM_REFERENCE_H
#define SHIM_REFERENCE_H

#include "objects/objects.h"

enum reference_kind { REFERENCE_UNBOUND, REFERENCE_LINEAR, REFERENCE_ROWS, REFERENCE_ARRAY, REFERENCE_LEVELS };

struct shim_reference {
    struct object object;
    struct shim_module *module; /* NULL: cuTexRefCreate made it, and no kernel reads by it */
    char *name;
    struct shim_reference *next; /* of the module's */
    bool surface;
    bool changed; /* since the worker was told; this and what follows under reference_lock */
    enum reference_kind kind;
    CUarray array; /* what it is bound to: the one that the kind says */
    CUmipmappedArray levels;
    CUdeviceptr address;
    size_t width, height, pitch; /* linear: width is in bytes */
    CUarray_format format;
    unsigned channels, flags, anisotropy;
    CUaddress_mode modes[3];
    CUfilter_mode filter, mip_filter;
    float bias, least, most; /* of the level of detail */
    float border[4];
};

extern pthread_mutex_t reference_lock;

/* The live reference behind a handle, of a context that works: 0, or the call's error. */
int reference_find(const void *handle, bool surface, struct shim_reference **out);
/* One of no module. NULL: out of memory. */
struct shim_reference *reference_new(void);
/* Tells the worker what has changed, before a launch of a kernel of the module. 0 or the launch's error. */
int reference_send(struct shim_module *m);
/* Ends all of a module that is unloaded. */
void reference_module_gone(struct shim_module *m);

#endif
