/* What the shim's files share. Every driver function F is a generated stub (same prologue for all: forked child? torn down? count, trace) that calls
 * impl_F in the file of its CUDA object. Naming of implementations:
 *
 *   impl_<base name>            when all versions of a function take the same arguments (impl_cuMemAlloc serves cuMemAlloc, cuMemAlloc_v2)
 *   impl_<exported symbol>      for each version that differs from the others   (impl_cuCtxSynchronize and impl_cuCtxSynchronize_v2)
 *
 * The spec (native/api) lists which exist; the generated gv_impl.h declares them, so a missing or mistyped one does not build.
 * _ptsz/_ptds variants call the same implementation; their stub turns stream 0 into CU_STREAM_PER_THREAD and, where there is no stream argument,
 * sets shim_default_stream for the duration of the call. */
#ifndef SHIM_H
#define SHIM_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "session/session.h"

/* The stream that copies and fills without a stream argument work on: CU_STREAM_LEGACY, or CU_STREAM_PER_THREAD inside a _ptds stub. */
extern _Thread_local CUstream shim_default_stream;

/* Whether cuInit has succeeded. */
bool shim_initialized(void);

/* Why the calling thread's call fails, for GPUVIRT_TRACE=errors: the last one counts. NULL: nothing is known. */
__attribute__((format(printf, 1, 2))) void call_because(const char *format, ...);
const char *call_reason(void);

/* ---- contexts (context*.c) ----------------------------------------------------------------------------------------- */

struct shim_context; /* CUcontext points to one */
/* The calling thread's current context; NULL when there is none. */
struct shim_context *context_current(void);
/* The object behind a handle, NULL when the handle is not a live context. The other objects are checked alike: a stale or foreign handle is never dereferenced. */
struct shim_context *context_get(CUcontext handle);
uint32_t context_id(const struct shim_context *c);
CUdevice context_device(const struct shim_context *c);        /* the ordinal the program sees */
uint32_t context_server_device(const struct shim_context *c); /* index in shim_server.devices */
/* Primary context of a device, without retaining it; NULL for a bad ordinal. For the runtime's private tables. */
struct shim_context *context_primary(CUdevice device);
/* How the multiprocessors of the current context's device are grouped (wire/device_info.h), in two arrays for the caller to free. 0 or a CUresult;
 * CUDA_ERROR_NOT_SUPPORTED where the device's backend, or its driver, does not tell. */
int processor_groups(uint8_t **order, uint8_t **groups);
/* Sticky error of a context (a faulted kernel), 0. */
int context_status(const struct shim_context *c);
/* The worker reported a sticky error for context `id`: every later call in that context returns it. */
void context_failed(uint32_t id, int status);
/* Registers the one function that is called with the id of a context that has faulted, context_lock held. To be set at start. */
void context_on_failure(void (*call)(uint32_t ctx));
/* Registers the one function that is called for each context before it ends. To be set at start. */
void context_on_end(void (*call)(CUcontext context));
/* Device table after CUDA_VISIBLE_DEVICES (device.c). */
int device_count(void);
const struct gv_device_info *device_info(CUdevice device);

/* ---- streams (stream.c) -------------------------------------------------------------------------------------------- */

struct shim_stream;
/* Resolves a handle in the current context: 0/CU_STREAM_LEGACY, CU_STREAM_PER_THREAD (created on first use per thread and context) or a created stream. Returns 0 and
 * *out, or CUDA_ERROR_INVALID_CONTEXT / INVALID_HANDLE. */
int stream_resolve(CUstream handle, struct shim_stream **out);
struct session_stream *stream_session(struct shim_stream *s);
uint64_t stream_id(const struct shim_stream *s); /* as it travels in records */
uint32_t stream_ctx(const struct shim_stream *s);
/* Posts a fence if the last command was not marked, and waits for the stream to drain. Returns its status. */
int stream_drain(struct shim_stream *s);

/* ---- modules (module.c) -------------------------------------------------------------------------------------------- */

/* Loads what image points to (fatbin wrapper, fatbin, ELF, PTX) into a context; for the runtime's private tables too. */
int module_load_image(struct shim_context *c, const void *image, CUmodule *out);
/* Every kernel of a module: calls visit for each, returns their number. */
int module_each_function(CUmodule module, void (*visit)(void *arg, CUfunction function), void *arg);

#endif
