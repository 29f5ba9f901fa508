/* Values that runtime libraries keep with a context, by a key of their own. They look one up in nearly every call of theirs. */
#ifndef SHIM_CONTEXT_STORAGE_H
#define SHIM_CONTEXT_STORAGE_H

#include "objects/shim.h"

/* Called when the context dies. */
typedef void (*storage_destructor)(CUcontext ctx, void *key, void *value);

/* 0, or CUDA_ERROR_OUT_OF_MEMORY. A key that is there already gets the new value; the old one's destructor is not called. */
int storage_put(CUcontext ctx, void *key, void *value, storage_destructor destructor);
/* 0, or CUDA_ERROR_INVALID_HANDLE when there is none. The destructor is not called. */
int storage_delete(CUcontext ctx, void *key);
int storage_get(CUcontext ctx, void *key, void **value);
/* Forgets everything of a context and calls the destructors. */
void storage_drop(CUcontext ctx);

#endif
