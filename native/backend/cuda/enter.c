/* Entering a context, and its asynchronous error. */
#include <stdio.h>

#include "backend_cuda.h"

/* The current context is not cached: another thread may have destroyed it, and its handle may name a new one. */
int cuda_enter(struct gv_context *c) { return c->b->driver.context_set(c->context); }

void cuda_note_error(struct gv_context *c, int status) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&c->error, &none, -1)) return;
    const char *text = NULL;
    if (c->b->driver.error_string((CUresult)status, &text) || !text) text = "unknown error";
    snprintf(c->error_text, sizeof c->error_text, "%s", text);
    atomic_store(&c->error, status);
}

const char *cuda_error_text(struct gv_context *c) { return atomic_load(&c->error) > 0 ? c->error_text : ""; }
