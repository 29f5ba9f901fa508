/* Tensor maps. Textures are between the record and the backend (gv_dispatch.c). */
#include <string.h>

#include "state.h"

/* An array that the record carries, of at most five numbers. */
static int take(void *to, const void *data, uint32_t size, uint32_t count, uint32_t each) {
    if (count > 5 || size != count * each) return -1;
    memcpy(to, data, size);
    return 0;
}

static int answer(struct worker *w, const struct gv_record *record, const struct gv_tensor_map *wanted, struct worker_context *context) {
    uint8_t map[128] __attribute__((aligned(64))) = {0}, body[160];
    int status = w->ops->tensor_map(context->context, wanted, map);
    struct gv_reply_tensor_map reply = {.map = map, .map_size = sizeof map};
    gv_reply_tensor_map_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_tensor_map_size(&reply));
}

int worker_do_tensor_map(struct worker *w, const struct gv_record *record, const struct gv_cmd_tensor_map *c, struct worker_context *context) {
    struct gv_tensor_map wanted = {.type = c->type,
                                   .rank = c->rank,
                                   .interleave = c->interleave,
                                   .swizzle = c->swizzle,
                                   .promotion = c->promotion,
                                   .fill = c->fill,
                                   .address = c->address};
    uint32_t n = c->rank;
    if (!n || take(wanted.dims, c->dims, c->dims_size, n, 8) || take(wanted.strides, c->strides, c->strides_size, n - 1, 8) ||
        take(wanted.box, c->box, c->box_size, n, 4) || take(wanted.steps, c->steps, c->steps_size, n, 4))
        return -1;
    return answer(w, record, &wanted, context);
}

int worker_do_tensor_map_im2col(struct worker *w, const struct gv_record *record, const struct gv_cmd_tensor_map_im2col *c,
                                struct worker_context *context) {
    struct gv_tensor_map wanted = {.type = c->type,
                                   .rank = c->rank,
                                   .interleave = c->interleave,
                                   .swizzle = c->swizzle,
                                   .promotion = c->promotion,
                                   .fill = c->fill,
                                   .address = c->address,
                                   .channels = c->channels,
                                   .pixels = c->pixels};
    uint32_t n = c->rank;
    if (n < 3 || !c->channels || take(wanted.dims, c->dims, c->dims_size, n, 8) || take(wanted.strides, c->strides, c->strides_size, n - 1, 8) ||
        take(wanted.steps, c->steps, c->steps_size, n, 4) || take(wanted.lower, c->lower, c->lower_size, n - 2, 4) ||
        take(wanted.upper, c->upper, c->upper_size, n - 2, 4))
        return -1;
    return answer(w, record, &wanted, context);
}

int worker_do_tensor_map_address(struct worker *w, const struct gv_record *record, const struct gv_cmd_tensor_map_address *c,
                                 struct worker_context *context) {
    uint8_t map[128] __attribute__((aligned(64))), body[160];
    if (c->map_size != sizeof map) return -1;
    memcpy(map, c->map, sizeof map);
    int status = w->ops->tensor_map_address(context->context, map, c->address);
    struct gv_reply_tensor_map_address reply = {.map = map, .map_size = sizeof map};
    gv_reply_tensor_map_address_encode(&reply, body);
    return worker_reply(w, record, status, NULL, body, (uint32_t)gv_reply_tensor_map_address_size(&reply));
}
