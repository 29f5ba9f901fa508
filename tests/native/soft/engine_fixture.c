#include "engine_fixture.h"

struct soft_engine *engine;
struct soft_heap *heap;
char err[512], printed[1 << 20];
size_t printed_used;

static void console(void *arg, const char *text, size_t size) {
    (void)arg;
    CHECK(printed_used + size < sizeof printed);
    memcpy(printed + printed_used, text, size);
    printed_used += size;
    printed[printed_used] = 0;
}

int run(void (*entry)(struct soft_warp *), uint32_t blocks, uint32_t threads, uint32_t barrier, uint32_t cooperative, uint32_t shared, uint32_t local,
        const void *params, uint32_t size) {
    struct soft_code code = {
        .entry = entry, .static_shared = 64, .dynamic_offset = 64, .local_bytes = local, .uses_barrier = barrier, .param_bytes = size};
    struct soft_launch l = {.code = &code,
                            .kernel = "testing",
                            .grid = {blocks, 1, 1},
                            .block = {threads, 1, 1},
                            .dynamic_shared = shared,
                            .cooperative = cooperative,
                            .params = params,
                            .params_size = size,
                            .heap = heap,
                            .console = console};
    err[0] = 0;
    return soft_engine_run(engine, &l, err, sizeof err);
}
