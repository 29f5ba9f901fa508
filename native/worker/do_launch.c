/* Launches. */
#include "state.h"

int worker_do_launch(struct worker *w, const struct gv_record *record, const struct gv_cmd_launch *c, struct worker_stream *stream,
                     struct worker_module *module) {
    struct gv_launch launch = {.module = module->module,
                               .kernel = c->kernel,
                               .grid = {c->grid[0], c->grid[1], c->grid[2]},
                               .block = {c->block[0], c->block[1], c->block[2]},
                               .shared = c->shared,
                               .cooperative = c->cooperative,
                               .params = c->params,
                               .params_size = c->params_size};
    int status = c->params_size > GV_PARAMS_MAX ? CUDA_ERROR_INVALID_VALUE : w->ops->launch(stream->stream, &launch);
    if (status)
        worker_failed(w, record, status, "the launch was refused by the device");
    else
        atomic_fetch_add_explicit(&w->launches, 1, memory_order_relaxed);
    return 0;
}
