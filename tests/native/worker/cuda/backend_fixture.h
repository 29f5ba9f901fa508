/* A backend on the tests' own driver, with one context and one stream. */
#ifndef BACKEND_FIXTURE_H
#define BACKEND_FIXTURE_H

#include "../../../../native/worker/backend.h"
#include "../../check.h"
#include "fake_driver.h"

extern const char *driver; /* its path */
extern const struct gv_backend_ops *const ops;
extern struct gv_backend *backend;
extern struct gv_context *context;
extern struct gv_stream *stream;

/* memory: bytes that the session may have; 0: no limit. */
void begin(uint64_t memory);
/* The same over a link with RDMA devices. */
void begin_with_rdma(uint64_t memory);
void end(void);

#endif
