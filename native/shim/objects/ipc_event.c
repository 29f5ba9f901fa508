/* Events of other processes. They are events of this session in all, but that others record them and wait for them too: so what is asked of one waits for the worker, which
 * alone knows the latest record. */
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/ipc.h"

CUresult impl_cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    struct shim_event *e;
    int rc = event_find(event, &e);
    if (rc) return rc;
    struct ipc_name name;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!(e->flags & CU_EVENT_INTERPROCESS) || e->imported) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&e->lock); /* what is recorded from here on is recorded as shared */
    rc = ipc_export_event(e->ctx, e->object.id, &name);
    if (!rc) e->shared = true;
    pthread_mutex_unlock(&e->lock);
    if (rc) return rc;
    ipc_write_handle(handle, IPC_EVENT, &name, NULL);
    return CUDA_SUCCESS;
}

CUresult impl_cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    struct ipc_name name;
    if (!event || !ipc_read_handle(&handle, IPC_EVENT, &name, NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (ipc_is_own(&name)) return CUDA_ERROR_INVALID_CONTEXT;
    struct shim_event *e = object_new(OBJECT_EVENT);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&e->lock, NULL);
    e->context = c;
    e->ctx = c->id;
    e->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    e->shared = e->imported = true;
    struct session_reply reply;
    struct gv_cmd_event_open command = {.event = e->object.id, .session = name.session, .name_a = name.a, .name_b = name.b};
    rc = call_event_open(c->id, &command, NULL, &reply);
    if (rc && reply.text[0]) shim_log_once("cuIpcOpenEventHandle: %s", reply.text);
    session_reply_done(&reply);
    if (rc) {
        object_free(e);
        return rc;
    }
    object_publish(e);
    *event = (CUevent)e;
    return CUDA_SUCCESS;
}
