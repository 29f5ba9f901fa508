/* The worker's command handlers (native/worker/do_*.c) on bodies of chance: everything between the decoder and the backend. The link, the payload channel and
 * the backend are here: a backend that looks at every byte it is given, so that a buffer which is too short is the address sanitizer's to see.
 *
 *     handlers RUNS SECONDS SEED    at most RUNS commands and SECONDS seconds; prints how many were carried out
 *     handlers refused              no command whose body is too short or too long, and none that there is not, is carried out
 *     handlers many_inputs          one link command whose count of inputs wraps to zero in 32 bits */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../native/wire/module_meta.h"
#include "../../native/worker/state.h"

static uint64_t state = 88172645463325252u;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state * 0x2545f4914f6cdd1du >> 11) % below : 0;
}

static volatile uint8_t sink;

static void look_at(const void *data, uint64_t size) {
    const uint8_t *p = data;
    if (size && size <= 1 << 20) { /* more is looked at by its ends */
        for (uint64_t i = 0; i < size; i++) sink ^= p[i];
    } else if (size) {
        sink ^= p[0] ^ p[size - 1];
    }
}

/* ---- a link that takes every event -------------------------------------------------------------------------------------- */

static _Alignas(8) uint8_t sent[GV_RECORD_MAX];

struct gv_record *gv_send_begin(struct gv_link *link, uint32_t size, uint64_t *blocked_ns) {
    (void)link, (void)blocked_ns;
    if (size > sizeof sent) abort();
    return (struct gv_record *)sent;
}
uint64_t gv_send_commit(struct gv_link *link) { return (void)link, 1; }
void gv_send_flush(struct gv_link *link) { (void)link; }
bool gv_link_dead(const struct gv_link *link) { return (void)link, false; }
void gv_link_set_rtt(struct gv_link *link, int64_t rtt_ns) { (void)link, (void)rtt_ns; }
void gv_link_offer_memory(struct gv_link *link, const void *at, uint64_t size) { (void)link, (void)at, (void)size; }
bool gv_link_takes_device_memory(const struct gv_link *link) {
    (void)link;
    return false;
}
bool gv_link_offer_device_memory(struct gv_link *link, const void *at, uint64_t size, const struct gv_device_memory *memory) {
    (void)link, (void)at, (void)size, (void)memory;
    return false;
}
void gv_link_take_back_memory(struct gv_link *link, const void *at) { (void)link, (void)at; }

/* ---- payloads: their bytes are of chance, their sizes those of what was sent -------------------------------------------- */

static const void *payload;
static uint64_t payload_size, payload_held; /* as the header says; bytes that there are */
static bool payloads_get_lost;              /* one in sixteen */

void worker_expect(struct worker *w, struct worker_expected *e, uint64_t number, void *data, uint64_t size) {
    (void)w;
    *e = (struct worker_expected){.number = number, .size = size, .data = data};
}

bool worker_wait_payload(struct worker *w, struct worker_expected *e) {
    (void)w;
    bool own = !e->data;
    uint64_t size = own ? payload_size : e->size;
    if (own) e->data = malloc(payload_held ? payload_held : 1);
    if (own && payload_held) memcpy(e->data, payload, payload_held);
    if (!own) memset(e->data, 1, size);
    e->size = size;
    return !payloads_get_lost || chance(16);
}

bool worker_await_payload(struct worker *w, struct worker_expected *e) { return worker_wait_payload(w, e); }

int worker_bytes_take(struct worker *w, uint64_t number, const void *inline_data, uint64_t inline_size, struct worker_bytes *out) {
    *out = (struct worker_bytes){inline_data, inline_size, NULL};
    if (!number) return 0;
    struct worker_expected e;
    worker_expect(w, &e, number, NULL, 0);
    bool good = worker_wait_payload(w, &e);
    *out = (struct worker_bytes){e.data, e.size, e.data};
    if (!good) free(e.data);
    return good ? 0 : -1;
}

struct worker_gate *worker_turn_taken(struct worker *w) { return (void)w, NULL; }
void worker_turn_end(struct worker *w, struct worker_gate *g) { (void)w, (void)g; }
int worker_discard_payload(struct worker *w, uint64_t number) { return (void)w, (void)number, 0; }

int worker_bulk_copy_in(struct worker *w, const struct gv_record *record, struct worker_stream *s, uint64_t number, uint64_t dst, uint64_t size) {
    return (void)w, (void)record, (void)s, (void)number, (void)dst, (void)size, 0;
}

uint64_t worker_send_payload(struct worker *w, uint64_t tag, void *data, uint64_t size, bool staged) {
    look_at(data, size);
    if (staged)
        staging_give(&w->staging, data, size);
    else
        free(data);
    return tag ? 1 : 2;
}

uint64_t worker_send_in_place(struct worker *w, uint64_t tag, void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    (void)w;
    look_at(data, size);
    done(arg);
    return tag ? 1 : 2;
}

/* ---- a backend that does at once what it is asked ----------------------------------------------------------------------- */

GV_BACKEND_DECLARE(fuzz);

static char object[64];
static int answer(void) { return chance(8) ? 0 : (int)chance(4) ? 1 : 2; }

#define MAKE(type, out) (*(out) = (type *)(void *)object, answer())

int fuzz_driver_version(struct gv_backend *b) { return (void)b, 13000; }
int fuzz_device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    (void)b;
    memset(out, 0, sizeof *out);
    out->total_memory = 1ull << 30;
    return device < 2 ? 0 : 1;
}
int fuzz_reserve_window(struct gv_backend *b, uint64_t base, uint64_t size) { return (void)b, base && size ? 0 : 1; }
int fuzz_context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    (void)b, (void)device, (void)flags, (void)primary, (void)err;
    *out = (struct gv_context *)(void *)object;
    return 0;
}
void fuzz_context_destroy(struct gv_context *c) { (void)c; }
int fuzz_context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) { return (void)c, *value += limit, answer(); }
int fuzz_memory_info(struct gv_context *c, uint64_t *f, uint64_t *t) { return (void)c, *f = *t = 1, answer(); }
const char *fuzz_error_text(struct gv_context *c) { return (void)c, "an error"; }
int fuzz_memory_back(struct gv_context *c, uint64_t a, uint64_t s, bool w) { return (void)c, (void)a, (void)s, (void)w, answer(); }
int fuzz_memory_unback(struct gv_context *c, uint64_t a, uint64_t s) { return (void)c, (void)a, (void)s, answer(); }
int fuzz_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) { return (void)c, *address = size | 1, answer(); }
int fuzz_memory_free(struct gv_context *c, uint64_t address) { return (void)c, (void)address, answer(); }
int fuzz_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) {
    return (void)b, *address = size | alignment, answer();
}
int fuzz_address_free(struct gv_backend *b, uint64_t address, uint64_t size) { return (void)b, (void)address, (void)size, answer(); }
int fuzz_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) { return (void)c, (void)size, MAKE(struct gv_physical, out); }
int fuzz_physical_destroy(struct gv_physical *p) { return (void)p, answer(); }
int fuzz_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) { return (void)p, (void)address, (void)size, answer(); }
int fuzz_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) { return (void)b, (void)address, (void)size, answer(); }
int fuzz_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    if (device >= 2) abort();
    return (void)b, (void)address, (void)size, (void)rights, answer();
}
int fuzz_stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out) {
    return (void)c, (void)flags, (void)priority, MAKE(struct gv_stream, out);
}
void fuzz_stream_destroy(struct gv_stream *s) { (void)s; }
struct gv_stream *fuzz_stream_legacy(struct gv_context *c) { return (void)c, (struct gv_stream *)(void *)object; }
int fuzz_event_create(struct gv_context *c, uint32_t flags, struct gv_event **out) { return (void)c, (void)flags, MAKE(struct gv_event, out); }
void fuzz_event_destroy(struct gv_event *e) { (void)e; }
int fuzz_event_record(struct gv_event *e, struct gv_stream *s) { return (void)e, (void)s, answer(); }
int fuzz_event_elapsed(struct gv_event *a, struct gv_event *b, float *ms) { return (void)a, (void)b, *ms = 1, answer(); }
int fuzz_stream_wait_event(struct gv_stream *s, struct gv_event *e) { return (void)s, (void)e, answer(); }
int fuzz_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape) {
    (void)s, (void)dst;
    look_at(src, shape->width * shape->height * shape->depth);
    return answer();
}
int fuzz_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape) {
    (void)s, (void)src;
    memset(dst, 1, shape->width * shape->height * shape->depth);
    return answer();
}
int fuzz_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dc, uint64_t src, struct gv_context *sc, const struct gv_shape *shape) {
    return (void)s, (void)dst, (void)dc, (void)src, (void)sc, (void)shape, answer();
}
int fuzz_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height) {
    return (void)s, (void)dst, (void)pitch, (void)elem, (void)value, (void)width, (void)height, answer();
}
int fuzz_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err) {
    (void)c, (void)err;
    look_at(image, size);
    struct gv_meta_header *m = calloc(1, sizeof *m);
    *m = (struct gv_meta_header){.magic = GV_META_MAGIC, .version = GV_META_VERSION};
    *meta = m;
    *meta_size = sizeof *m;
    *out = (struct gv_module *)(void *)object;
    return 0;
}
void fuzz_module_unload(struct gv_module *m) { (void)m; }
int fuzz_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size) {
    return (void)m, *address = 1, *size = strlen(name), answer();
}
int fuzz_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out) {
    (void)c;
    for (uint32_t i = 0; i < job->n_inputs; i++) {
        look_at(job->inputs[i].name, strlen(job->inputs[i].name));
        look_at(job->inputs[i].options, job->inputs[i].n_options * sizeof(struct gv_link_option));
        look_at(job->inputs[i].data, job->inputs[i].size);
    }
    look_at(job->options, job->n_options * sizeof *job->options);
    out->size = chance(1 << 20);
    out->image = calloc(1, out->size + 1);
    return answer();
}
int fuzz_kernel_set_attribute(struct gv_module *m, uint32_t k, int32_t a, int32_t v) { return (void)m, (void)k, (void)a, (void)v, answer(); }
int fuzz_launch(struct gv_stream *s, const struct gv_launch *l) { return (void)s, look_at(l->params, l->params_size), answer(); }
int fuzz_texture_create(struct gv_context *c, const struct gv_texture *t, uint64_t *out) { return (void)c, (void)t, *out = 1, answer(); }
int fuzz_texture_destroy(struct gv_context *c, uint64_t texture) { return (void)c, (void)texture, answer(); }
int fuzz_array_create(struct gv_context *c, const struct gv_array_shape *shape, struct gv_array **out) {
    (void)c, (void)shape;
    *out = (struct gv_array *)&sink;
    return answer();
}
int fuzz_processor_groups(struct gv_context *c, uint8_t *order, uint8_t *groups, uint32_t *n) {
    return (void)c, *order = *groups = 1, *n = 1, answer();
}
int fuzz_cluster_count(struct gv_module *m, const struct gv_cluster_query *query, int32_t *count) {
    return (void)m, look_at(query, sizeof *query), *count = 1, answer();
}
int fuzz_array_level(struct gv_array *array, uint32_t level, struct gv_array **out) { return (void)level, *out = array, answer(); }
int fuzz_array_destroy(struct gv_array *array) { return (void)array, 0; }
int fuzz_copy_array(struct gv_stream *s, const struct gv_array_side *dst, const struct gv_array_side *src, const struct gv_shape *shape) {
    if (!dst->array && !src->array) abort();
    return (void)s, look_at(shape, sizeof *shape), answer();
}
int fuzz_array_texture(struct gv_context *c, struct gv_array *array, const struct gv_texture *t, uint64_t *out) {
    return (void)c, (void)array, look_at(t, sizeof *t), *out = 1, answer();
}
int fuzz_surface_create(struct gv_context *c, struct gv_array *array, uint64_t *out) { return (void)c, (void)array, *out = 1, answer(); }
int fuzz_surface_destroy(struct gv_context *c, uint64_t surface) { return (void)c, (void)surface, answer(); }
int fuzz_reference_find(struct gv_module *m, const char *name, uint32_t surface) {
    return (void)m, (void)surface, look_at(name, strlen(name)), answer();
}
int fuzz_reference_memory(struct gv_module *m, const char *name, const struct gv_texture *t) {
    return (void)m, look_at(name, strlen(name)), look_at(t, sizeof *t), answer();
}
int fuzz_reference_array(struct gv_module *m, const char *name, struct gv_array *array, const struct gv_texture *t) {
    return (void)m, (void)array, look_at(name, strlen(name)), look_at(t, sizeof *t), answer();
}
int fuzz_reference_surface(struct gv_module *m, const char *name, struct gv_array *array) {
    return (void)m, (void)array, look_at(name, strlen(name)), answer();
}
int fuzz_tensor_map(struct gv_context *c, const struct gv_tensor_map *wanted, void *map) {
    if (!wanted->rank || wanted->rank > 5 || (wanted->channels && wanted->rank < 3)) abort();
    return (void)c, memset(map, 1, 128), answer();
}
int fuzz_tensor_map_address(struct gv_context *c, void *map, uint64_t address) { return (void)c, memcpy(map, &address, 8), answer(); }
int fuzz_mark(struct gv_stream *s, void (*fn)(void *arg, int status), void *arg) { return (void)s, fn(arg, answer()), 0; }
int fuzz_gate(struct gv_stream *s, void (*fn)(void *arg), void *arg) { return (void)s, fn(arg), 0; }

static const struct gv_backend_ops ops = {.name = "fuzz", GV_BACKEND_ENTRIES(fuzz)};

/* ---- commands ----------------------------------------------------------------------------------------------------------- */

/* The fixed part of each command's body, and where the lengths of its blobs stand in it. */
struct shape {
    uint16_t op;
    uint32_t fixed, n_blobs;
    struct {
        uint32_t at;
        bool text;
    } blobs[6];
};
static const struct shape shapes[] = {
#include "shapes.inc"
};

static struct worker *new_worker(void) {
    struct worker *w = calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    pthread_cond_init(&w->room, NULL);
    staging_init(&w->staging);
    w->ops = &ops;
    w->n_devices = 2;
    w->device_contexts[0] = w->device_contexts[1] = (struct gv_context *)(void *)object;
    atomic_store(&w->stopping, true); /* host functions are told, and not waited for */
    return w;
}

static uint64_t number(void) {
    static const uint64_t odd[] = {2, 3, 7, 8, 64, 4096, 1 << 20, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 46, 1ull << 63, UINT64_MAX};
    return chance(3) ? chance(3) : odd[chance(sizeof odd / sizeof *odd)];
}

/* An input of a link, sound or nearly so. */
static uint32_t put_input(uint8_t *to) {
    struct gv_link_option option = {.option = 7, .value = 3};
    struct gv_link_part part = {.type = 1, .n_options = (uint32_t)chance(2), .name = "kernel.ptx", .options = &option, .data = "text", .size = 4};
    gv_link_part_put(to, &part);
    if (chance(4) == 0) to[chance(gv_link_part_size(&part))] ^= (uint8_t)(1u << chance(8));
    return (uint32_t)gv_link_part_size(&part);
}

/* A blob: link inputs, numbers or nothing; its size. */
static uint32_t put_blob(uint8_t *to, bool text) {
    uint32_t size = 0, n = (uint32_t)chance(6);
    if (text) {
        memcpy(to, "known", 6);
        return n < 5 ? n : 5;
    }
    bool inputs = chance(2);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = number();
        if (!inputs) memcpy(to + size, &value, 8);
        size += inputs ? put_input(to + size) : 8;
    }
    return chance(8) ? size : size / 2;
}

static int command(struct worker *w, const struct shape *shape) {
    static _Alignas(8) uint8_t record_of[16384], bulk[4096];
    struct gv_record *record = (struct gv_record *)record_of;
    uint8_t *body = record_of + sizeof *record;
    memset(record_of, 0, sizeof record_of);
    for (uint32_t at = 0; at + 4 <= shape->fixed; at += 4) {
        uint64_t value = number();
        memcpy(body + at, &value, chance(2) && at % 8 == 0 && at + 8 <= shape->fixed ? 8 : 4);
    }
    uint32_t size = shape->fixed;
    for (uint32_t i = 0; i < shape->n_blobs; i++) {
        uint32_t length = put_blob(body + size, shape->blobs[i].text);
        memcpy(body + shape->blobs[i].at, &length, 4);
        if (shape->blobs[i].text) body[size + length] = 0;
        size += (length + (uint32_t)shape->blobs[i].text + 7) / 8 * 8;
    }
    /* On the heap and of its own size: the command's blobs end where the record does. */
    struct gv_record *exact = malloc(sizeof *record + size);
    memcpy(exact, record, sizeof *record + size);
    *exact = (struct gv_record){.size = (uint32_t)(sizeof *record + size),
                                .op = shape->op,
                                .seq = 1,
                                .ctx = (uint32_t)chance(3),
                                .flags = (uint16_t)(chance(2) * GV_RECORD_MARK)};
    payload = bulk;
    payload_size = payload_held = put_blob(bulk, false);
    w->current = NULL;
    int bad = gv_dispatch(w, exact);
    if (!bad && w->current && exact->flags & GV_RECORD_MARK) bad = worker_mark(w, w->current, exact);
    free(exact);
    return bad;
}

/* A payload of 4 GiB can say that it holds 2^32 - 1 inputs. Only its beginning is here: whoever believes it reads and writes past the end. */
static int many_inputs(void) {
    struct worker *w = new_worker();
    w->attached = true;
    struct gv_link_part part = {.type = 1, .name = "one"};
    static _Alignas(8) uint8_t one[64];
    gv_link_part_put(one, &part);
    payload = one;
    payload_held = gv_link_part_size(&part);
    payload_size = 1ull << 32;
    struct gv_record record = {.op = GV_OP_LINK, .seq = 1};
    struct gv_cmd_link c = {.bulk = 1, .n_inputs = 0xffffffff};
    struct worker_bytes bytes;
    struct worker_context context = {0};
    if (worker_bytes_take(w, c.bulk, c.inputs, c.inputs_size, &bytes)) return 1;
    int rc = worker_do_link(w, &record, &c, &bytes, &context);
    puts(rc ? "refused" : "taken");
    return rc ? 0 : 1;
}

/* Bodies of zeroes; a str among the blobs takes eight bytes for its NUL. */
static int refused(void) {
    struct {
        struct gv_record record;
        uint64_t body[64];
    } x;
    struct worker *w = new_worker();
    int wrong = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        uint32_t size = shapes[i].fixed;
        for (uint32_t j = 0; j < shapes[i].n_blobs; j++) size += shapes[i].blobs[j].text ? 8 : 0;
        uint32_t sizes[] = {size + 8, size ? size - 8 : size + 16};
        for (int j = 0; j < 2; j++) {
            memset(&x, 0, sizeof x);
            x.record = (struct gv_record){.op = shapes[i].op, .size = (uint32_t)sizeof x.record + sizes[j]};
            if (gv_dispatch(w, &x.record) == -1) continue;
            fprintf(stderr, "%s is carried out with %u bytes for %u\n", gv_op_name(shapes[i].op), sizes[j], size);
            wrong = 1;
        }
    }
    x.record = (struct gv_record){.op = 999, .size = sizeof x.record};
    if (gv_dispatch(w, &x.record) != -1) wrong = 1;
    x.record = (struct gv_record){.op = GV_OP_BYE, .size = 8};
    if (gv_dispatch(w, &x.record) != -1 || w->said_bye) wrong = 1;
    if (!wrong) puts("refused");
    return wrong;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "refused")) return refused();
    if (argc == 2 && !strcmp(argv[1], "many_inputs")) return many_inputs();
    if (argc != 4) return 2;
    uint64_t runs = strtoull(argv[1], NULL, 10), done = 0, carried_out = 0;
    time_t end = time(NULL) + strtol(argv[2], NULL, 10);
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252u;
    payloads_get_lost = true;
    struct worker *w = new_worker();
    uint8_t seen[256] = {0};
    for (; done < runs && (done % 256 || time(NULL) < end); done++) {
        const struct shape *shape = &shapes[chance(sizeof shapes / sizeof *shapes)];
        if (command(w, shape)) continue;
        carried_out++;
        seen[shape->op % 256] = 1;
        if (shape->op == GV_OP_ATTACH) w->attached = false;
    }
    unsigned kinds = 0;
    for (unsigned i = 0; i < 256; i++) kinds += seen[i];
    printf("%llu commands, %llu carried out, of %u of %zu kinds\n", (unsigned long long)done, (unsigned long long)carried_out, kinds,
           sizeof shapes / sizeof *shapes);
    return 0;
}
