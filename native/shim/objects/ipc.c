#define _GNU_SOURCE
#include "objects/ipc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gv_client.h"

#define MAGIC 0x3143504976750067ull /* "g\0uvIPC1" */

/* 64 bytes, as they travel between programs. */
struct handle {
    uint64_t magic, kind;
    struct ipc_name name;
    uint64_t more[2];
    uint64_t unused;
};
_Static_assert(sizeof(struct handle) == IPC_HANDLE_SIZE, "as CUipcMemHandle");

struct exported {
    struct exported *next;
    uint64_t key; /* an allocation's base, or an object's id */
    struct ipc_name name;
};

static struct exported *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static _Atomic uint64_t own_session;                     /* 0: it has exported nothing */
static _Atomic bool shared;

bool ipc_is_own(const struct ipc_name *name) { return name->session == atomic_load(&own_session); }

bool ipc_memory_is_shared(void) { return atomic_load_explicit(&shared, memory_order_relaxed); }

void ipc_note_sharing(void) { atomic_store(&shared, true); }

/* ---- handles ---- */

static struct handle filled(enum ipc_kind kind, const struct ipc_name *name, const uint64_t *more) {
    struct handle h = {.magic = MAGIC, .kind = (uint64_t)kind, .name = *name};
    if (more) memcpy(h.more, more, sizeof h.more);
    return h;
}

void ipc_write_handle(void *handle, enum ipc_kind kind, const struct ipc_name *name, const uint64_t *more) {
    struct handle h = filled(kind, name, more);
    memcpy(handle, &h, sizeof h);
}

static bool is_handle(const struct handle *h, enum ipc_kind kind) { return h->magic == MAGIC && h->kind == (uint64_t)kind && h->name.session; }

bool ipc_read_handle(const void *handle, enum ipc_kind kind, struct ipc_name *name, uint64_t *more) {
    struct handle h;
    memcpy(&h, handle, sizeof h);
    *name = h.name;
    if (more) memcpy(more, h.more, sizeof h.more);
    return is_handle(&h, kind);
}

int ipc_new_descriptor(enum ipc_kind kind, const struct ipc_name *name, const uint64_t *more) {
    struct handle h = filled(kind, name, more);
    int fd = (int)syscall(SYS_memfd_create, "gpuvirt-handle", 3u /* MFD_CLOEXEC | MFD_ALLOW_SEALING */);
    if (fd >= 0 && write(fd, &h, sizeof h) == sizeof h && !fcntl(fd, 1033 /* F_ADD_SEALS */, 0xf)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool ipc_read_descriptor(int fd, enum ipc_kind kind, struct ipc_name *name, uint64_t *more) {
    struct handle h;
    return fd >= 0 && pread(fd, &h, sizeof h, 0) == sizeof h && ipc_read_handle(&h, kind, name, more);
}

/* ---- exports ---- */

static struct exported **find(uint64_t key) {
    struct exported **at = &all;
    while (*at && (*at)->key != key) at = &(*at)->next;
    return at;
}

static bool known(uint64_t key, struct ipc_name *name) {
    pthread_mutex_lock(&lock);
    const struct exported *e = *find(key);
    if (e) *name = e->name;
    pthread_mutex_unlock(&lock);
    return e != NULL;
}

static void end(const struct ipc_name *name) {
    struct session_reply reply;
    call_export_end(0, &(struct gv_cmd_export_end){.name_a = name->a, .name_b = name->b}, NULL, &reply);
    session_reply_done(&reply);
}

static int keep(uint64_t key, const struct ipc_name *name) {
    struct exported *e = malloc(sizeof *e);
    if (!e) {
        end(name);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *e = (struct exported){.key = key, .name = *name};
    atomic_store(&own_session, name->session);
    pthread_mutex_lock(&lock);
    e->next = all;
    all = e;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Two threads that export the same at the same time get two names, of which the older one is given up at the end, too. */
void ipc_forget(uint64_t base_or_id) {
    for (bool more = true; more;) {
        pthread_mutex_lock(&lock);
        struct exported **at = find(base_or_id), *e = *at;
        if (e) *at = e->next;
        pthread_mutex_unlock(&lock);
        if (e) end(&e->name);
        more = e != NULL;
        free(e);
    }
}

static void explain(const char *what, const struct session_reply *reply) {
    if (reply->text[0]) shim_log_once("%s: %s", what, reply->text);
}

static int export_memory(uint32_t ctx, const struct gv_cmd_memory_export *c, uint64_t key, struct ipc_name *name) {
    if (known(key, name)) return 0;
    struct session_reply reply;
    struct gv_reply_memory_export answer = {0};
    int rc = call_memory_export(ctx, c, &answer, &reply);
    if (rc) explain("memory could not be exported to other processes", &reply);
    session_reply_done(&reply);
    if (rc) return rc;
    *name = (struct ipc_name){answer.session, answer.name_a, answer.name_b};
    ipc_note_sharing();
    return keep(key, name);
}

int ipc_export_memory(uint32_t ctx, uint64_t base, uint64_t size, struct ipc_name *name) {
    return export_memory(ctx, &(struct gv_cmd_memory_export){.address = base, .size = size}, base, name);
}

int ipc_export_physical(uint64_t id, struct ipc_name *name) { return export_memory(0, &(struct gv_cmd_memory_export){.handle = id}, id, name); }

int ipc_export_event(uint32_t ctx, uint64_t id, struct ipc_name *name) {
    if (known(id, name)) return 0;
    struct session_reply reply;
    struct gv_reply_event_export answer = {0};
    int rc = call_event_export(ctx, &(struct gv_cmd_event_export){.event = id}, &answer, &reply);
    if (rc) explain("an event could not be exported to other processes", &reply);
    session_reply_done(&reply);
    if (rc) return rc;
    *name = (struct ipc_name){answer.session, answer.name_a, answer.name_b};
    return keep(id, name);
}
