/* Events. The generated dispatch (gv_dispatch.c) calls the backend for all but these commands. */
#include <stdlib.h>

#include "state.h"

int worker_do_event_create(struct worker *w, const struct gv_record *record, const struct gv_cmd_event_create *c, struct worker_context *context) {
    struct worker_event *e = calloc(1, sizeof *e);
    int status = !e ? CUDA_ERROR_OUT_OF_MEMORY : w->ops->event_create(context->context, c->flags, &e->event);
    if (!status && handles_put(&w->events, c->event, e)) {
        w->ops->event_destroy(e->event);
        status = CUDA_ERROR_INVALID_VALUE;
    }
    if (status) {
        free(e);
        worker_failed(w, record, status, "the event could not be made");
        return 0;
    }
    e->ctx = record->ctx;
    return 0;
}
