#include "backend_fixture.h"

const char *driver;
const struct gv_backend_ops *const ops = &gv_backend_cuda;
struct gv_backend *backend;
struct gv_context *context;
struct gv_stream *stream;

static void begin_over(uint64_t memory, bool rdma) {
    uint32_t devices[] = {1};
    char err[GV_ERR_SIZE];
    struct gv_backend_config config = {.devices = devices, .n_devices = 1, .memory = memory, .driver = driver, .memory_usage_fd = -1};
    config.rdma = rdma;
    fake_driver_break(0);
    fake_driver_hold(false);
    fake_driver_words = !getenv("WITHOUT_WORDS");
    CHECK(ops->open(&config, &backend, err) == 0);
    CHECK(ops->context_create(backend, 0, 0, 1, &context, err) == 0);
    CHECK(ops->stream_create(context, 1, 0, &stream) == 0);
}

void begin(uint64_t memory) { begin_over(memory, false); }
void begin_with_rdma(uint64_t memory) { begin_over(memory, true); }

void end(void) { ops->close(backend); }
