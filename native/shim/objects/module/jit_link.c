/* The JIT linker's calls. Inputs are kept here until cuLinkComplete, which sends all of them and receives the image. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/link_inputs.h"
#include "gv_client.h"
#include "gv_impl.h"
#include "objects/objects.h"

#define MOST_INPUTS (256ull << 20) /* bytes; the server takes no larger payload for an image either */

struct shim_link {
    struct object object;
    struct shim_context *context;
    uint32_t ctx;
    pthread_mutex_t lock; /* guards what follows */
    struct jit_options jit;
    struct gv_link_option options[GV_LINK_MAX_OPTIONS];
    uint32_t n_options, n_inputs;
    char *inputs; /* as they will travel */
    uint64_t size, room;
    void *image; /* what cuLinkComplete gave; the program's until cuLinkDestroy */
};

_Static_assert(sizeof(struct shim_link) <= 2048, "a link fits its slot");

/* ---- options ------------------------------------------------------------------------------------------------------- */

static int read_options(unsigned n, const CUjit_option *options, void *const *values, struct gv_link_option *out, uint32_t *n_out) {
    *n_out = 0;
    if (n && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
    if (n > GV_LINK_MAX_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        if ((unsigned)options[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
        if ((options[i] == CU_JIT_GLOBAL_SYMBOL_NAMES || options[i] == CU_JIT_GLOBAL_SYMBOL_ADDRESSES) && values[i]) {
            shim_log_once("cuLinkCreate: symbols at addresses of the host (CU_JIT_GLOBAL_SYMBOL_ADDRESSES) cannot be linked to a remote GPU");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (gv_link_option_travels((uint32_t)options[i]))
            out[(*n_out)++] = (struct gv_link_option){.option = (uint32_t)options[i], .value = (uint64_t)(uintptr_t)values[i]};
    }
    return 0;
}

CUresult impl_cuLinkCreate(unsigned int n, CUjit_option *options, void **values, CUlinkState *out) {
    struct shim_context *c;
    int rc = context_require(&c);
    if (rc) return rc;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct shim_link *l = object_new(OBJECT_LINK);
    if (!l) return CUDA_ERROR_OUT_OF_MEMORY;
    rc = read_options(n, options, values, l->options, &l->n_options);
    if (!rc) rc = jit_options_read(n, options, values, &l->jit);
    if (rc) {
        object_free(l);
        return rc;
    }
    l->context = c;
    l->ctx = c->id;
    pthread_mutex_init(&l->lock, NULL);
    object_publish(l);
    *out = (CUlinkState)l;
    return CUDA_SUCCESS;
}

/* ---- inputs -------------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {"a cubin", "PTX", "a fatbin", "a host object", "a host library", "NVVM or LTO code"};

/* Writes the reason for a refused input to the program's log buffer. */
static int refuse(struct shim_link *l, int rc, const char *name, const char *why) {
    char text[1024];
    snprintf(text, sizeof text, "error   : input '%s' cannot be linked: %s\n", name, why);
    jit_write_logs(&l->jit, rc, "", text);
    return rc;
}

/* The part of an input that is sent: of a fatbin the one entry for this device. For a device that runs PTX only, machine code is refused in this call. */
static int choose(struct shim_link *l, CUjitInputType type, const char *name, const void *data, size_t size, struct image_choice *out) {
    *out = (struct image_choice){.data = data, .size = size};
    bool wants_ptx = l->context->info->flags & GV_DEVICE_WANTS_PTX;
    struct image_target target = {.capability = device_capability(l->context->info), .wants_ptx = wants_ptx};
    struct image image;
    char why[700], listed[512];
    if (type == CU_JIT_INPUT_FATBINARY || (wants_ptx && type == CU_JIT_INPUT_CUBIN)) {
        int rc = image_open(data, size, &image);
        if (rc) return refuse(l, rc, name, type == CU_JIT_INPUT_FATBINARY ? "this is no fatbin" : "this is neither a cubin nor PTX");
        if (!wants_ptx) return 0; /* the driver takes what it wants, relocatable code included */
        rc = image_choose(&image, &target, out, listed, sizeof listed);
        if (rc != CUDA_ERROR_NO_BINARY_FOR_GPU) return rc;
        snprintf(why, sizeof why, "it is %s without PTX that a device of compute capability %d.%d could take, and a software GPU runs PTX only: %s",
                 kinds[type], target.capability / 10, target.capability % 10, listed);
        return refuse(l, rc, name, why);
    }
    if (wants_ptx && type == CU_JIT_INPUT_NVVM)
        return refuse(l, CUDA_ERROR_NO_BINARY_FOR_GPU, name, "it is NVVM or LTO code, and a software GPU links PTX only");
    return 0;
}

static int append(struct shim_link *l, const struct gv_link_part *part) {
    uint64_t need = gv_link_part_size(part);
    if (need > MOST_INPUTS || l->size + need > MOST_INPUTS) return CUDA_ERROR_OUT_OF_MEMORY;
    if (l->size + need > l->room) {
        uint64_t room = (l->size + need) * 3 / 2;
        char *more = realloc(l->inputs, room);
        if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
        l->inputs = more;
        l->room = room;
    }
    gv_link_part_put(l->inputs + l->size, part);
    l->size += need;
    l->n_inputs++;
    return 0;
}

static int find(CUlinkState state, struct shim_link **out) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *out = object_get(OBJECT_LINK, state);
    if (!*out) return CUDA_ERROR_INVALID_HANDLE;
    return session_broken();
}

CUresult impl_cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int n, CUjit_option *options,
                            void **values) {
    struct shim_link *l;
    struct gv_link_option own[GV_LINK_MAX_OPTIONS];
    uint32_t n_own;
    int rc = find(state, &l);
    if (rc) return rc;
    if (!data || !size || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
    rc = read_options(n, options, values, own, &n_own);
    if (rc) return rc;
    char made_up[32];
    pthread_mutex_lock(&l->lock);
    if (!name || !name[0]) {
        snprintf(made_up, sizeof made_up, "input %u", l->n_inputs + 1);
        name = made_up;
    }
    struct image_choice choice;
    rc = l->image ? CUDA_ERROR_INVALID_VALUE : choose(l, type, name, data, size, &choice);
    if (!rc) {
        struct gv_link_part part = {
            .type = (uint32_t)type, .n_options = n_own, .name = name, .options = own, .data = choice.data, .size = choice.size};
        rc = append(l, &part);
        image_choice_free(&choice);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

CUresult impl_cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int n, CUjit_option *options, void **values) {
    struct shim_link *l;
    void *data;
    size_t size;
    int rc = find(state, &l);
    if (rc) return rc;
    pthread_mutex_lock(&l->lock);
    bool complete = l->image;
    pthread_mutex_unlock(&l->lock);
    if (!path || complete) return CUDA_ERROR_INVALID_VALUE;
    rc = image_read_file(path, &data, &size);
    if (rc) return rc;
    rc = size ? (int)impl_cuLinkAddData(state, type, data, size, path, n, options, values) : CUDA_ERROR_INVALID_IMAGE;
    free(data);
    return rc;
}

/* ---- the link ------------------------------------------------------------------------------------------------------ */

static int link_remote(struct shim_link *l, struct gv_reply_link *answer, struct session_reply *reply) {
    struct gv_cmd_link command = {.n_inputs = l->n_inputs, .options = l->options, .options_size = l->n_options * (uint32_t)sizeof l->options[0]};
    if (l->size > GV_INLINE_MAX) return call_link_bulk(l->ctx, &command, l->inputs, l->size, answer, reply);
    command.inputs = l->inputs;
    command.inputs_size = (uint32_t)l->size;
    return call_link(l->ctx, &command, answer, reply);
}

/* Takes the image from a successful answer and appends a NUL: the image may be text. */
static int take_image(const struct gv_reply_link *answer, void **image, size_t *size) {
    uint64_t bytes = answer->image_tag ? answer->image_bulk_size : answer->image_size;
    if (!bytes || bytes > UINT32_MAX) return CUDA_ERROR_UNKNOWN;
    char *copy = malloc(bytes + 1);
    int rc = copy ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    if (copy) {
        copy[bytes] = 0;
        if (answer->image_tag)
            rc = session_take_payload(answer->image_tag, copy, bytes);
        else
            memcpy(copy, answer->image, bytes);
    }
    if (rc) {
        free(copy);
        return rc;
    }
    *image = copy;
    *size = bytes;
    return 0;
}

CUresult impl_cuLinkComplete(CUlinkState state, void **image, size_t *size) {
    struct shim_link *l;
    int rc = find(state, &l);
    if (rc) return rc;
    rc = context_status(l->context);
    if (rc) return rc;
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&l->lock);
    struct session_reply reply = {0};
    struct gv_reply_link answer = {0};
    size_t bytes = 0;
    if (l->image) {
        rc = CUDA_ERROR_INVALID_VALUE; /* it is complete already */
    } else if (!l->n_inputs) {
        rc = CUDA_ERROR_INVALID_IMAGE;
        jit_write_logs(&l->jit, rc, "", "error   : there is nothing to link\n");
    } else {
        rc = link_remote(l, &answer, &reply);
        bool answered = !rc;
        if (!rc) rc = answer.result;
        if (!rc) rc = take_image(&answer, &l->image, &bytes);
        if (answered)
            jit_write_logs(&l->jit, rc, answer.info, answer.error);
        else
            jit_write_logs(&l->jit, rc, "", reply.text);
        if (rc && answered && !l->jit.error_size) shim_log("linking failed: %s", answer.error[0] ? answer.error : "no reason was given");
    }
    session_reply_done(&reply);
    if (!rc) {
        *image = l->image;
        if (size) *size = bytes;
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}

/* ---- programs that were compiled in pieces --------------------------------------------------------------------------- */

/* What an image that is one of several parts has for the target. */
static int choose_part(const struct image *image, unsigned number, const struct image_target *target, struct image_choice *out) {
    struct image one = {.parts = {image->parts[number]}, .n = 1};
    char why[512];
    return image_choose(&one, target, out, why, sizeof why);
}

int link_image(struct shim_context *c, const struct image *image, const struct image_target *target, struct image_choice *out, char *why,
               size_t why_size) {
    struct shim_link l = {.context = c, .ctx = c->id};
    unsigned first = 0;
    int rc;
    if (image->linked) {
        rc = choose_part(image, 0, target, out);
        if (rc != CUDA_ERROR_NO_BINARY_FOR_GPU) return rc;
        first = 1;
    }
    for (unsigned i = first; i < image->n; i++) {
        struct image_choice choice;
        rc = choose_part(image, i, target, &choice);
        if (rc == CUDA_ERROR_NO_BINARY_FOR_GPU) continue; /* whoever needs it is told the name that is missing */
        char name[32];
        snprintf(name, sizeof name, "part %u", i + 1 - first);
        if (!rc) rc = append(&l, &(struct gv_link_part){.type = CU_JIT_INPUT_FATBINARY, .name = name, .data = choice.data, .size = choice.size});
        image_choice_free(&choice);
        if (rc) {
            free(l.inputs);
            return rc;
        }
    }
    if (!l.n_inputs) return image_choose(image, target, out, why, why_size);
    struct session_reply reply = {0};
    struct gv_reply_link answer = {0};
    void *text = NULL;
    size_t size = 0;
    rc = link_remote(&l, &answer, &reply);
    bool answered = !rc;
    if (!rc) rc = answer.result;
    if (!rc) rc = take_image(&answer, &text, &size);
    if (rc) {
        snprintf(why, why_size, "%s", answered && answer.error[0] ? answer.error : reply.text[0] ? reply.text : "no reason was given");
        if (!session_broken()) shim_log_once("a program that was compiled in %u pieces cannot be linked: %s", l.n_inputs, why);
    }
    session_reply_done(&reply);
    free(l.inputs);
    if (!rc) *out = (struct image_choice){.data = text, .size = size, .is_ptx = true, .owned = true};
    return rc;
}

CUresult impl_cuLinkDestroy(CUlinkState state) {
    if (!shim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    struct shim_link *l = object_get(OBJECT_LINK, state);
    if (!l || !object_retire(l)) return CUDA_ERROR_INVALID_HANDLE;
    free(l->inputs);
    free(l->image);
    pthread_mutex_destroy(&l->lock);
    object_free(l);
    return CUDA_SUCCESS;
}
