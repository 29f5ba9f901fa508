/* Which multiprocessors of a device belong together, as cuBLASLt asks for it by a private table. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "objects/objects.h"
#include "wire/device_info.h"

#define LEAST_SIZE 256u /* bytes of an array that a caller gets: what it reads beyond the pairs that there are is 0 */

/* What the server said of each device; it is asked once. */
static struct known {
    bool asked;
    int status;
    uint32_t n;
    uint8_t order[GV_PROCESSOR_GROUPS_MAX], groups[GV_PROCESSOR_GROUPS_MAX];
} devices[GV_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void ask(struct shim_context *c, struct known *k) {
    struct session_reply reply;
    struct gv_reply_processor_groups answer = {0};
    k->status = call_processor_groups(c->id, &(struct gv_cmd_processor_groups){0}, &answer, &reply);
    if (!k->status && (answer.order_size > GV_PROCESSOR_GROUPS_MAX || answer.groups_size != answer.order_size)) k->status = CUDA_ERROR_NOT_SUPPORTED;
    if (!k->status) {
        k->n = answer.order_size;
        memcpy(k->order, answer.order, k->n);
        memcpy(k->groups, answer.groups, k->n);
    }
    session_reply_done(&reply);
    k->asked = !k->status || k->status == CUDA_ERROR_NOT_SUPPORTED; /* other errors are of the session or the context */
}

static uint8_t *copy(const uint8_t *from, uint32_t n) {
    uint8_t *out = calloc(n > LEAST_SIZE ? n : LEAST_SIZE, 1);
    if (out) memcpy(out, from, n);
    return out;
}

int processor_groups(uint8_t **order, uint8_t **groups) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (c->info->flags & GV_DEVICE_SOFTWARE) return CUDA_ERROR_NOT_SUPPORTED;
    struct known *k = &devices[c->device];
    pthread_mutex_lock(&lock);
    if (!k->asked) ask(c, k);
    rc = k->status;
    if (!rc) {
        *order = copy(k->order, k->n);
        *groups = copy(k->groups, k->n);
        if (!*order || !*groups) {
            free(*order);
            free(*groups);
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    if (rc) *order = *groups = NULL;
    return rc;
}
