/* Reference counts of a context, and its asynchronous error. */
#include <stdio.h>
#include <stdlib.h>

#include "soft.h"

void soft_context_hold(struct gv_context *c) { atomic_fetch_add(&c->refs, 1); }

void soft_context_drop(struct gv_context *c) {
    if (atomic_fetch_sub(&c->refs, 1) > 1) return;
    struct gv_backend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    if (c->next) c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        b->contexts = c->next;
    pthread_mutex_unlock(&b->lock);
    soft_heap_destroy(c->heap);
    if (c->textures.end) c->textures.end(c);
    free(c);
}

void soft_context_fail(struct gv_context *c, int error, const char *text) {
    pthread_mutex_lock(&c->backend->lock);
    if (!atomic_load(&c->error)) {
        snprintf(c->error_text, sizeof c->error_text, "%s", text && *text ? text : "error without a message");
        atomic_store(&c->error, error); /* stored after the text, which readers of the error may read */
    }
    pthread_mutex_unlock(&c->backend->lock);
}

const char *soft_error_text(struct gv_context *c) { return atomic_load(&c->error) ? c->error_text : ""; }
