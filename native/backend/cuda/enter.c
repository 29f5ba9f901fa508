/* What every call needs of a context: to enter it, and its asynchronous error. */
#include <stdio.h>

#include "backend_cuda.h"

/* Not remembered on our side: a context that was destroyed by another thread could have given its handle to a new one. */
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
