/* Tensor maps: how a kernel's bulk copies see an array in memory. Their 128 bytes are the driver's own form, which it computes from the arguments and nothing else. Libraries encode one
 * for each launch, of the same few buffers; so an answer is kept, and the worker is asked once. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

#ifndef TENSOR_MAPS_KEPT
#define TENSOR_MAPS_KEPT 4096u /* of 320 bytes; one that has another's place takes it */
#endif
#define RANK_MAX 5
#define MAP_BYTES sizeof(CUtensorMap)

/* All that an answer depends on; without gaps, as it is compared as bytes. */
struct question {
    uint32_t device, type, rank, interleave, swizzle, promotion, fill, replaces;
    uint64_t address, dims[RANK_MAX], strides[RANK_MAX - 1];
    uint32_t box[RANK_MAX], steps[RANK_MAX];
    uint32_t channels, pixels; /* channels: 0: a tiled one */
    int32_t lower[RANK_MAX - 2], upper[RANK_MAX - 2];
    unsigned char map[MAP_BYTES]; /* replaces: the one that gets another address */
};
_Static_assert(sizeof(struct question) == 8 * 4 + 10 * 8 + 10 * 4 + 8 * 4 + MAP_BYTES, "bytes of no field would be compared");

struct answer {
    struct question to;
    bool known;
    unsigned char map[MAP_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct answer *answers; /* made when first needed */

/* Where an answer would be; NULL: there is no memory for them. Lock held. */
static struct answer *place(const struct question *q) {
    if (!answers) answers = calloc(TENSOR_MAPS_KEPT, sizeof *answers);
    const unsigned char *bytes = (const unsigned char *)q;
    uint64_t mixed = 0xcbf29ce484222325ull; /* FNV-1a, of words */
    for (size_t i = 0; i < sizeof *q; i += sizeof mixed) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        mixed = (mixed ^ word) * 0x100000001b3ull;
        mixed ^= mixed >> 29u;
    }
    return answers ? &answers[mixed % TENSOR_MAPS_KEPT] : NULL;
}

static bool recall(const struct question *q, void *map) {
    pthread_mutex_lock(&lock);
    const struct answer *a = place(q);
    bool known = a && a->known && !memcmp(&a->to, q, sizeof *q);
    if (known) memcpy(map, a->map, MAP_BYTES);
    pthread_mutex_unlock(&lock);
    return known;
}

static void keep(const struct question *q, const void *map) {
    pthread_mutex_lock(&lock);
    struct answer *a = place(q);
    if (a) {
        a->to = *q;
        a->known = true;
        memcpy(a->map, map, MAP_BYTES);
    }
    pthread_mutex_unlock(&lock);
}

static int take(const void *map, uint32_t size, void *out) {
    if (size != MAP_BYTES) return CUDA_ERROR_UNKNOWN;
    memcpy(out, map, MAP_BYTES);
    return 0;
}

static int encode(const struct shim_context *c, const struct question *q, void *out) {
    struct gv_cmd_tensor_map command = {.type = q->type,
                                        .rank = q->rank,
                                        .interleave = q->interleave,
                                        .swizzle = q->swizzle,
                                        .promotion = q->promotion,
                                        .fill = q->fill,
                                        .address = q->address,
                                        .dims = q->dims,
                                        .dims_size = q->rank * 8,
                                        .strides = q->strides,
                                        .strides_size = (q->rank - 1) * 8,
                                        .box = q->box,
                                        .box_size = q->rank * 4,
                                        .steps = q->steps,
                                        .steps_size = q->rank * 4};
    struct session_reply reply;
    struct gv_reply_tensor_map answer;
    int rc = call_tensor_map(c->id, &command, &answer, &reply);
    if (!rc) rc = take(answer.map, answer.map_size, out);
    session_reply_done(&reply);
    return rc;
}

static int encode_im2col(const struct shim_context *c, const struct question *q, void *out) {
    const struct gv_cmd_tensor_map_im2col command = {.type = q->type,
                                                     .rank = q->rank,
                                                     .interleave = q->interleave,
                                                     .swizzle = q->swizzle,
                                                     .promotion = q->promotion,
                                                     .fill = q->fill,
                                                     .address = q->address,
                                                     .dims = q->dims,
                                                     .dims_size = q->rank * 8,
                                                     .strides = q->strides,
                                                     .strides_size = (q->rank - 1) * 8,
                                                     .lower = q->lower,
                                                     .lower_size = (q->rank - 2) * 4,
                                                     .upper = q->upper,
                                                     .upper_size = (q->rank - 2) * 4,
                                                     .channels = q->channels,
                                                     .pixels = q->pixels,
                                                     .steps = q->steps,
                                                     .steps_size = q->rank * 4};
    struct session_reply reply;
    struct gv_reply_tensor_map_im2col answer;
    int rc = call_tensor_map_im2col(c->id, &command, &answer, &reply);
    if (!rc) rc = take(answer.map, answer.map_size, out);
    session_reply_done(&reply);
    return rc;
}

static int replace_address(const struct shim_context *c, const struct question *q, void *out) {
    const struct gv_cmd_tensor_map_address command = {.map = q->map, .map_size = MAP_BYTES, .address = q->address};
    struct session_reply reply;
    struct gv_reply_tensor_map_address answer;
    int rc = call_tensor_map_address(c->id, &command, &answer, &reply);
    if (!rc) rc = take(answer.map, answer.map_size, out);
    session_reply_done(&reply);
    return rc;
}

static int ask(const struct shim_context *c, struct question *q, CUtensorMap *out) {
    unsigned char found[MAP_BYTES];
    q->device = (uint32_t)c->device;
    if (recall(q, out)) return 0;
    int rc = q->replaces ? replace_address(c, q, found) : q->channels ? encode_im2col(c, q, found) : encode(c, q, found);
    if (rc) return rc;
    keep(q, found);
    memcpy(out, found, MAP_BYTES);
    return 0;
}

CUresult impl_cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                     const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct shim_context *c;
    int rc = context_any(&c);
    if (rc) return rc;
    if (!out || !address || !rank || rank > RANK_MAX || !dims || (rank > 1 && !strides) || !box || !steps) return CUDA_ERROR_INVALID_VALUE;
    struct question q;
    memset(&q, 0, sizeof q);
    q.type = type, q.rank = rank, q.interleave = interleave, q.swizzle = swizzle, q.promotion = promotion, q.fill = fill;
    q.address = (uint64_t)(uintptr_t)address;
    for (unsigned i = 0; i < rank; i++) {
        q.dims[i] = dims[i], q.box[i] = box[i], q.steps[i] = steps[i];
        if (i) q.strides[i - 1] = strides[i - 1];
    }
    return ask(c, &q, out);
}

CUresult impl_cuTensorMapEncodeIm2col(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                                      const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                      const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct shim_context *c;
    int rc = context_any(&c);
    if (rc) return rc;
    if (!out || !address || rank < 3 || rank > RANK_MAX || !dims || !strides || !lower || !upper || !channels || !pixels || !steps)
        return CUDA_ERROR_INVALID_VALUE;
    struct question q;
    memset(&q, 0, sizeof q);
    q.type = type, q.rank = rank, q.interleave = interleave, q.swizzle = swizzle, q.promotion = promotion, q.fill = fill;
    q.address = (uint64_t)(uintptr_t)address, q.channels = channels, q.pixels = pixels;
    for (unsigned i = 0; i < rank; i++) {
        q.dims[i] = dims[i], q.steps[i] = steps[i];
        if (i) q.strides[i - 1] = strides[i - 1];
        if (i < rank - 2) q.lower[i] = lower[i], q.upper[i] = upper[i];
    }
    return ask(c, &q, out);
}

CUresult impl_cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
    struct shim_context *c;
    int rc = context_any(&c);
    if (rc) return rc;
    if (!map || !address) return CUDA_ERROR_INVALID_VALUE;
    struct question q;
    memset(&q, 0, sizeof q);
    q.replaces = 1, q.address = (uint64_t)(uintptr_t)address;
    memcpy(q.map, map, MAP_BYTES);
    return ask(c, &q, map);
}
