/* A host function from its command until the client has run it (do_host_func.c), and the gate behind it (host_gate.c). */
#ifndef WORKER_HOST_CALL_H
#define WORKER_HOST_CALL_H

#include "state.h"

struct host_call {
    struct worker *w;
    struct worker_stream *stream; /* until its mark has been called */
    uint64_t tag, seq;
    bool done;            /* the client has run it; under the worker's lock */
    _Atomic unsigned use; /* by its mark, by the client's answer, by the stream until its gate is queued, by the gate */
};

void host_call_release(struct host_call *h);

#endif
