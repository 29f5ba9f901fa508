#include "view.h"

#include <string.h>
#include <unistd.h>

#include "state.h"

#define DEVICE_LEAST (256u << 10) /* bytes; to register less costs more than to stage it */

static bool move(void *arg, uint64_t at, void *host, uint64_t size, bool to_device) {
    struct worker *w = arg;
    return w->ops->device_move(w->backend, at, host, size, to_device) == 0;
}

static bool open_on_device(struct worker *w, struct worker_view *v) {
    struct gv_device_memory memory = {.fd = -1, .move = move, .arg = w};
    if (v->size < DEVICE_LEAST || !w->ops->device_view || !gv_link_takes_device_memory(w->link)) return false;
    if (w->ops->device_view(w->backend, v->address, v->size, &memory.fd, &memory.offset)) return false;
    /* The device's addresses are none of this process's, and none of its own are theirs. */
    v->at = (char *)(uintptr_t)v->address; /* NOLINT(performance-no-int-to-ptr) */
    v->of_device = gv_link_offer_device_memory(w->link, v->at, v->size, &memory);
    if (memory.fd >= 0) close(memory.fd);
    if (v->of_device) return true;
    v->at = NULL;
    w->ops->device_view_end(w->backend, v->address, v->size, false);
    return false;
}

bool worker_view_open(struct worker *w, struct worker_view *v, uint64_t address, uint64_t size) {
    *v = (struct worker_view){.address = address, .size = size};
    v->at = w->ops->host_view ? w->ops->host_view(w->backend, address, size) : NULL;
    return v->at || open_on_device(w, v);
}

void worker_view_offer(struct worker *w, const struct worker_view *v) {
    if (!v->of_device) gv_link_offer_memory(w->link, v->at, v->size);
}

bool worker_view_write(struct worker *w, const struct worker_view *v, uint64_t at, const void *from, uint64_t size) {
    if (v->of_device) return w->ops->device_move(w->backend, v->address + at, (void *)(uintptr_t)from, size, true) == 0;
    memcpy(v->at + at, from, size);
    return true;
}

void worker_view_close(struct worker *w, struct worker_view *v, bool written) {
    gv_link_take_back_memory(w->link, v->at);
    if (v->of_device)
        w->ops->device_view_end(w->backend, v->address, v->size, written);
    else
        w->ops->host_view_end(w->backend, v->address, v->size);
    v->at = NULL;
}
