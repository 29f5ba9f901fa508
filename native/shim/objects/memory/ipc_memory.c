/* Allocations of other processes. One that is opened is physical memory on the server that is mapped at addresses of this session, once however often it is opened in a
 * context. */
#include <stdlib.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/ipc.h"

struct opened {
    struct opened *next;
    struct ipc_name name;
    uint32_t ctx, server_device, count;
    bool of_pool;
    uint64_t handle, at, size; /* the whole mapping */
    CUdeviceptr address;       /* the allocation in it */
};

static struct opened *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and is held while something is opened or closed */

static bool fixed_addresses(void) { return session_server()->addresses == GV_ADDRESSES_FIXED; }

/* ---- addresses, and what is mapped there ---- */

static int reserve(struct opened *o) {
    if (fixed_addresses()) return memory_reserve(o->server_device, o->size, 0, 0, &o->at);
    struct session_reply reply;
    struct gv_reply_address_reserve answer = {0};
    int rc = call_address_reserve(0, &(struct gv_cmd_address_reserve){.size = o->size}, &answer, &reply);
    session_reply_done(&reply);
    o->at = answer.address;
    return rc;
}

static void unreserve(const struct opened *o) {
    if (fixed_addresses())
        memory_unreserve(o->server_device, o->at, o->size);
    else
        post_address_free(0, 0, &(struct gv_cmd_address_free){.address = o->at, .size = o->size});
}

static int allow(const struct opened *o, uint32_t server_device) {
    struct session_reply reply;
    int rc =
        call_memory_access(0, &(struct gv_cmd_memory_access){.address = o->at, .size = o->size, .device = server_device, .rights = 3}, NULL, &reply);
    session_reply_done(&reply);
    return rc;
}

static int map(struct opened *o, const struct shim_context *c) {
    int rc = reserve(o);
    if (rc) return rc;
    post_memory_map(0, 0, &(struct gv_cmd_memory_map){.handle = o->handle, .address = o->at, .size = o->size});
    rc = allow(o, o->server_device);
    if (!rc && c->server_device != o->server_device) rc = allow(o, c->server_device);
    if (!rc) return 0;
    post_memory_unmap(0, 0, &(struct gv_cmd_memory_unmap){.address = o->at, .size = o->size});
    unreserve(o);
    return rc;
}

CUdevice ipc_device(uint32_t server_device, CUdevice other) {
    for (int i = 0; i < device_count(); i++)
        if (device_server_index(i) == server_device) return i;
    return other;
}

/* ---- opening ---- */

static int open_here(struct shim_context *c, const struct ipc_name *name, struct opened *o) {
    struct session_reply reply;
    struct gv_reply_memory_open answer = {0};
    struct gv_cmd_memory_open command = {.handle = object_next_id(), .session = name->session, .name_a = name->a, .name_b = name->b};
    int rc = call_memory_open(c->id, &command, &answer, &reply);
    if (rc && reply.text[0]) shim_log_once("memory of another process could not be opened: %s", reply.text);
    session_reply_done(&reply);
    if (rc) return rc;
    *o = (struct opened){.name = *name, .ctx = c->id, .server_device = answer.device, .count = 1, .handle = command.handle, .size = answer.size};
    bool sane =
        answer.device < session_server()->n_devices && answer.length && answer.offset <= answer.size && answer.length <= answer.size - answer.offset;
    rc = sane ? map(o, c) : (int)CUDA_ERROR_UNKNOWN;
    if (!rc) {
        o->address = o->at + answer.offset;
        struct range r = {.size = answer.length, .kind = RANGE_DEVICE, .ctx = c->id, .context = c, .imported = true};
        r.device = ipc_device(o->server_device, c->device);
        rc = range_add(&r, o->address);
        if (!rc) return 0;
        post_memory_unmap(0, 0, &(struct gv_cmd_memory_unmap){.address = o->at, .size = o->size});
        unreserve(o);
    }
    post_memory_destroy(0, 0, &(struct gv_cmd_memory_destroy){.handle = o->handle});
    return rc;
}

int ipc_open_memory(const struct ipc_name *name, bool of_pool, CUdeviceptr *address) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!device_attribute(c->info, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct opened *o = all;
    while (o && (o->ctx != c->id || o->of_pool != of_pool || o->name.session != name->session || o->name.a != name->a || o->name.b != name->b))
        o = o->next;
    if (o) {
        o->count++;
    } else {
        o = malloc(sizeof *o);
        rc = o ? open_here(c, name, o) : (int)CUDA_ERROR_OUT_OF_MEMORY;
        if (rc) {
            free(o);
        } else {
            ipc_note_sharing();
            o->of_pool = of_pool;
            o->next = all;
            all = o;
        }
    }
    if (!rc) *address = o->address;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- closing ---- */

static struct opened **at_address(CUdeviceptr address) {
    struct opened **at = &all;
    while (*at && (*at)->address != address) at = &(*at)->next;
    return at;
}

/* lock held. */
static void give_back(struct opened **at) {
    struct opened *o = *at;
    *at = o->next;
    post_memory_unmap(0, 0, &(struct gv_cmd_memory_unmap){.address = o->at, .size = o->size});
    post_memory_destroy(0, 0, &(struct gv_cmd_memory_destroy){.handle = o->handle});
    unreserve(o);
    free(o);
}

int ipc_close_memory(CUdeviceptr address, bool of_pool) {
    pthread_mutex_lock(&lock);
    struct opened *o = *at_address(address);
    bool last = o && o->of_pool == of_pool && --o->count == 0;
    int rc = o && o->of_pool == of_pool ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (last) range_remove(address, RANGE_DEVICE, RANGE_DEVICE, NULL);
    pthread_mutex_unlock(&lock);
    if (!last) return rc;
    stream_drain_context(NULL); /* earlier commands may still use it */
    pthread_mutex_lock(&lock);
    struct opened **at = at_address(address);
    if (*at && !(*at)->count) give_back(at); /* else its context has ended meanwhile */
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Its context ends, and nothing runs there any more. */
static void context_ended(CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    struct opened **at = at_address(address);
    if (*at) give_back(at);
    pthread_mutex_unlock(&lock);
}

static int freed(CUdeviceptr address) { return ipc_close_memory(address, true); }

__attribute__((constructor)) static void offer(void) { memory_on_imported(freed, context_ended); }

/* ---- calls --------------------------------------------------------------------------------------------------------- */

CUresult impl_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct range r;
    struct ipc_name name;
    if (!handle || !range_find_device(address, &r)) return CUDA_ERROR_INVALID_VALUE;
    if (r.kind != RANGE_DEVICE || r.managed || r.mapped || r.graph || r.imported) return CUDA_ERROR_INVALID_VALUE; /* not what cuMemAlloc has given */
    rc = ipc_export_memory(r.ctx, range_base(&r), r.size, &name);
    if (rc) return rc;
    range_set_exported(range_base(&r));
    ipc_write_handle(handle, IPC_MEMORY, &name, NULL);
    return CUDA_SUCCESS;
}

CUresult impl_cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct ipc_name name;
    if (!address || flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !ipc_read_handle(&handle, IPC_MEMORY, &name, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return ipc_is_own(&name) ? CUDA_ERROR_INVALID_CONTEXT : (CUresult)ipc_open_memory(&name, false, address);
}

CUresult impl_cuIpcCloseMemHandle(CUdeviceptr address) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    int rc = session_broken();
    return rc ? (CUresult)rc : (CUresult)ipc_close_memory(address, false);
}
