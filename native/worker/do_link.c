/* Linking: the inputs of one cuLinkComplete, and the linked image. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define IMAGE_INLINE_MAX (GV_RECORD_MAX - 32768) /* beside the logs */

static int reply(struct worker *w, const struct gv_record *record, int result, struct gv_link_result *r) {
    struct gv_reply_link answer = {.result = result, .info = r->info, .error = r->error};
    void *bulk = NULL;
    if (result) r->size = 0; /* a failed link has no image */
    if (r->size <= IMAGE_INLINE_MAX) {
        answer.image = r->image;
        answer.image_size = (uint32_t)r->size;
    } else {
        bulk = r->image;
        answer.image_tag = GV_BULK_WORKER_TAG | ++w->worker_tags;
        answer.image_bulk_size = r->size;
    }
    uint64_t size = gv_reply_link_size(&answer);
    void *body = malloc(size);
    if (body) gv_reply_link_encode(&answer, body);
    int sent = body ? worker_reply(w, record, 0, NULL, body, (uint32_t)size)
                    : worker_reply(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server is out of memory", NULL, 0);
    free(body);
    if (body && bulk)
        worker_send_payload(w, answer.image_tag, bulk, r->size, false);
    else
        free(r->image);
    return sent;
}

int worker_do_link(struct worker *w, const struct gv_record *record, const struct gv_cmd_link *c, struct worker_bytes *bytes,
                   struct worker_context *context) {
    /* No more inputs than the payload has room for: the array is never larger than a small multiple of what the client has sent. */
    bool sound =
        c->n_inputs <= bytes->size / GV_LINK_INPUT_LEAST && c->n_inputs <= GV_LINK_MAX_INPUTS && c->options_size % sizeof(struct gv_link_option) == 0;
    struct gv_link_part *parts = sound ? calloc((size_t)c->n_inputs + 1, sizeof *parts) : NULL;
    struct gv_link_result *result = calloc(1, sizeof *result);
    uint64_t at = 0;
    for (uint32_t i = 0; parts && sound && i < c->n_inputs; i++) sound = gv_link_part_take(bytes->data, bytes->size, &at, &parts[i]) == 0;
    int rc = -1;
    if (sound && parts && result) {
        struct gv_link_job job = {
            .inputs = parts, .n_inputs = c->n_inputs, .options = c->options, .n_options = c->options_size / sizeof(struct gv_link_option)};
        rc = reply(w, record, w->ops->link(context->context, &job, result), result);
    } else if (sound) {
        rc = worker_reply(w, record, CUDA_ERROR_OUT_OF_MEMORY, "the server is out of memory", NULL, 0);
    }
    free(result);
    free(parts);
    return rc;
}
