/* What processes share: exports of this session, and the handles by which programs hand them on. A handle is 64 bytes, or a descriptor from which they can be read: which
 * session has exported something, and under which name. It holds no address and no size: those say the server's workers to each other. */
#ifndef SHIM_IPC_H
#define SHIM_IPC_H

#include <stdbool.h>
#include <stdint.h>

#include "objects/objects.h"

#define IPC_HANDLE_SIZE 64u

enum ipc_kind { IPC_MEMORY = 1, IPC_EVENT, IPC_PHYSICAL, IPC_POOL, IPC_POOL_MEMORY };

struct ipc_name {
    uint64_t session, a, b;
};

/* ---- ipc.c ---- */

/* more: two words besides, NULL: none. */
void ipc_write_handle(void *handle, enum ipc_kind kind, const struct ipc_name *name, const uint64_t *more);
/* False: these 64 bytes are no handle of that kind. */
bool ipc_read_handle(const void *handle, enum ipc_kind kind, struct ipc_name *name, uint64_t *more);
/* A descriptor from which any process that has it can read a handle; -1: there is none to be had. ipc_read_descriptor: false when it is none. */
int ipc_new_descriptor(enum ipc_kind kind, const struct ipc_name *name, const uint64_t *more);
bool ipc_read_descriptor(int fd, enum ipc_kind kind, struct ipc_name *name, uint64_t *more);
/* Whether this process has exported it. */
bool ipc_is_own(const struct ipc_name *name);
/* Whether this process has ever exported memory, or opened some: other processes may look at what it has just written. */
bool ipc_memory_is_shared(void);
void ipc_note_sharing(void);

/* An allocation (base, size) in a context; or physical memory, by its id; or an event. 0, or a CUresult; what was exported before has the name that it had. */
int ipc_export_memory(uint32_t ctx, uint64_t base, uint64_t size, struct ipc_name *name);
int ipc_export_physical(uint64_t id, struct ipc_name *name);
int ipc_export_event(uint32_t ctx, uint64_t id, struct ipc_name *name);
/* It is given up: nobody opens it from now on. An allocation by its base, all else by its id; does nothing when it was not exported. */
void ipc_forget(uint64_t base_or_id);

/* ---- memory/ipc_memory.c ---- */

/* What the program calls a device of the server's; `other` when it does not see it. */
CUdevice ipc_device(uint32_t server_device, CUdevice other);
/* Opens an allocation in the current context, or counts that it is opened once more. */
int ipc_open_memory(const struct ipc_name *name, bool of_pool, CUdeviceptr *address);
/* Closes it once. CUDA_ERROR_INVALID_VALUE: nothing that was opened so lies there. */
int ipc_close_memory(CUdeviceptr address, bool of_pool);

#endif
