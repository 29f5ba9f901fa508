/* A backend of the tests' own: memory is an array, every stream a thread that runs its queue. It stands under the name of the soft one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../native/wire/module_meta.h"
#include "../check.h"
#include "fake_backend.h"

struct fake_state fake;

GV_BACKEND_DECLARE(fake);

struct gv_backend {
    int dummy;
};
struct gv_context {
    struct gv_stream *legacy;
    uint32_t device;
};
struct gv_event {
    _Atomic int recorded;
};
struct gv_module {
    int dummy;
};

struct job {
    struct job *next;
    enum { COPY_IN, COPY_OUT, FILL, MARK, GATE, LAUNCH } kind;
    uint64_t device;
    void *host;
    const void *source;
    struct gv_shape shape;
    uint32_t elem, value;
    void (*mark)(void *, int);
    void (*gate)(void *);
    void *arg;
};

struct gv_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first, *last;
    bool ending;
};

static struct gv_stream *streams[64];
static int n_streams;

static void rows(uint8_t *dst, uint64_t dst_pitch, const uint8_t *src, uint64_t src_pitch, const struct gv_shape *s) {
    for (uint64_t y = 0; y < s->height; y++) memcpy(dst + y * dst_pitch, src + y * src_pitch, s->width);
}

static void run_job(struct job *j) {
    if (fake.delay_us) usleep((useconds_t)fake.delay_us);
    int status = atomic_load(&fake.sticky);
    switch (j->kind) {
    case COPY_IN:
        if (!status) rows(fake.memory + j->device, j->shape.dst_pitch, j->source, j->shape.src_pitch, &j->shape);
        break;
    case COPY_OUT:
        if (!status) rows(j->host, j->shape.dst_pitch, fake.memory + j->device, j->shape.src_pitch, &j->shape);
        break;
    case FILL:
        memset(fake.memory + j->device, (int)j->value, j->shape.width);
        atomic_fetch_add(&fake.filled, 1);
        break;
    case LAUNCH: atomic_fetch_add(&fake.ran, 1); break;
    case MARK: j->mark(j->arg, status); break;
    case GATE:
        j->gate(j->arg);
        atomic_fetch_sub(&fake.gates, 1);
        break;
    }
}

static void *run_stream(void *arg) {
    struct gv_stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->ending) pthread_cond_wait(&s->changed, &s->lock);
        struct job *j = s->first;
        if (!j) break;
        s->first = j->next;
        if (!s->first) s->last = NULL;
        pthread_mutex_unlock(&s->lock);
        run_job(j);
        free(j);
        atomic_fetch_sub(&fake.queued, 1);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int queue(struct gv_stream *s, struct job job) {
    struct job *j = malloc(sizeof *j);
    *j = job;
    int depth = atomic_fetch_add(&fake.queued, 1) + 1;
    if (depth > atomic_load(&fake.most_queued)) atomic_store(&fake.most_queued, depth); /* the executor alone queues */
    pthread_mutex_lock(&s->lock);
    if (s->last)
        s->last->next = j;
    else
        s->first = j;
    s->last = j;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int fake_stream_create(struct gv_context *c, uint32_t flags, int32_t priority, struct gv_stream **out) {
    (void)c, (void)flags, (void)priority;
    struct gv_stream *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    CHECK(n_streams < 64);
    streams[n_streams++] = s;
    CHECK(pthread_create(&s->thread, NULL, run_stream, s) == 0);
    atomic_fetch_add(&fake.alive, 1);
    return *out = s, 0;
}

void fake_stream_destroy(struct gv_stream *s) { /* ended by close */
    (void)s;
    atomic_fetch_sub(&fake.alive, 1);
}

int fake_open(const struct gv_backend_config *config, struct gv_backend **out, char *err) {
    if (fake.refuse_open) {
        strcpy(err, "the fake backend does not want to");
        return 3;
    }
    CHECK(config->n_devices >= 1);
    n_streams = 0;
    return *out = calloc(1, sizeof **out), 0;
}

void fake_close(struct gv_backend *b) {
    for (int i = 0; i < n_streams; i++) {
        struct gv_stream *s = streams[i];
        pthread_mutex_lock(&s->lock);
        s->ending = true;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        free(s);
    }
    free(b);
}

int fake_driver_version(struct gv_backend *b) { return (void)b, 13000; }

int fake_device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    (void)b;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "fake %u", device);
    out->total_memory = sizeof fake.memory;
    return 0;
}

int fake_reserve_window(struct gv_backend *b, uint64_t base, uint64_t size) {
    static int asked;
    (void)b, (void)base, (void)size;
    if (!fake.fixed) return 801;
    return asked++ % 2 ? 0 : 1;
}

int fake_context_create(struct gv_backend *b, uint32_t device, uint32_t flags, int primary, struct gv_context **out, char *err) {
    (void)b, (void)flags, (void)primary, (void)err;
    struct gv_context *c = calloc(1, sizeof *c);
    c->device = device;
    fake_stream_create(c, 0, 0, &c->legacy);
    return *out = c, 0;
}
void fake_context_destroy(struct gv_context *c) { free(c); }
int fake_context_limit(struct gv_context *c, uint32_t limit, uint64_t *value) {
    (void)c;
    *value += 1;
    return limit == 2 ? 0 : 215;
}
int fake_memory_info(struct gv_context *c, uint64_t *f, uint64_t *t) {
    *f = 1000, *t = 2000;
    (void)c;
    return 0;
}
const char *fake_error_text(struct gv_context *c) { return (void)c, atomic_load(&fake.sticky) ? "as the test wishes" : ""; }
int fake_memory_back(struct gv_context *c, uint64_t a, uint64_t s, bool waits) {
    (void)c, (void)a;
    fake.back_waits += waits;
    if (!fake.fixed) return 801;
    if (fake.backed + s > fake.fixed) return 2;
    fake.backed += s;
    return 0;
}
int fake_memory_unback(struct gv_context *c, uint64_t a, uint64_t s) {
    (void)c, (void)a;
    fake.backed -= s;
    return 0;
}
int fake_memory_alloc(struct gv_context *c, uint64_t size, uint64_t *address) {
    (void)c;
    if (fake.used + size > sizeof fake.memory) return 2;
    *address = fake.used;
    fake.used += size;
    return 0;
}
int fake_memory_free(struct gv_context *c, uint64_t address) {
    (void)c;
    while (fake.free_waits && atomic_load(&fake.queued)) usleep(1000);
    if (fake.free_us) usleep((useconds_t)fake.free_us);
    return address < fake.used ? 0 : 1;
}
struct gv_physical {
    uint64_t size;
};
int fake_address_reserve(struct gv_backend *b, uint64_t size, uint64_t alignment, uint64_t *address) {
    (void)b;
    *address = 1ull << 40 | alignment;
    return size ? 0 : 1;
}
int fake_address_free(struct gv_backend *b, uint64_t address, uint64_t size) { return (void)b, (void)size, address >> 40 ? 0 : 1; }
int fake_physical_create(struct gv_context *c, uint64_t size, struct gv_physical **out) {
    (void)c;
    if (fake.used + size > sizeof fake.memory) return 2;
    fake.used += size;
    *out = calloc(1, sizeof **out);
    (*out)->size = size;
    return 0;
}
int fake_physical_destroy(struct gv_physical *p) {
    if (fake.mapped) return 1;
    fake.used -= p->size;
    free(p);
    return 0;
}
int fake_memory_map(struct gv_physical *p, uint64_t address, uint64_t size) {
    if (size > p->size || !address) return 2;
    fake.mapped++;
    return 0;
}
int fake_memory_unmap(struct gv_backend *b, uint64_t address, uint64_t size) {
    (void)b, (void)address, (void)size;
    if (!fake.mapped) return 1;
    fake.mapped--;
    return 0;
}
int fake_memory_access(struct gv_backend *b, uint64_t address, uint64_t size, uint32_t device, uint32_t rights) {
    (void)b, (void)address, (void)size, (void)device;
    return fake.mapped && rights < 4 ? 0 : 1;
}
struct gv_stream *fake_stream_legacy(struct gv_context *c) { return c->legacy; }
int fake_event_create(struct gv_context *c, uint32_t flags, struct gv_event **out) {
    (void)c, (void)flags;
    atomic_fetch_add(&fake.alive, 1);
    return *out = calloc(1, sizeof **out), 0;
}
void fake_event_destroy(struct gv_event *e) {
    atomic_fetch_sub(&fake.alive, 1);
    free(e);
}
int fake_event_record(struct gv_event *e, struct gv_stream *s) {
    (void)s;
    e->recorded = 1;
    return 0;
}
int fake_event_elapsed(struct gv_event *a, struct gv_event *b, float *ms) { return *ms = 1.5f, a->recorded && b->recorded ? 0 : 400; }
int fake_stream_wait_event(struct gv_stream *s, struct gv_event *e) { return (void)s, (void)e, 0; }

int fake_copy_to_device(struct gv_stream *s, uint64_t dst, const void *src, const struct gv_shape *shape) {
    if (dst >= sizeof fake.memory) return 1;
    return queue(s, (struct job){.kind = COPY_IN, .device = dst, .source = src, .shape = *shape});
}
int fake_copy_to_host(struct gv_stream *s, void *dst, uint64_t src, const struct gv_shape *shape) {
    if (src >= sizeof fake.memory) return 1;
    return queue(s, (struct job){.kind = COPY_OUT, .device = src, .host = dst, .shape = *shape});
}
int fake_copy_device(struct gv_stream *s, uint64_t dst, struct gv_context *dc, uint64_t src, struct gv_context *sc, const struct gv_shape *shape) {
    (void)dc, (void)sc;
    return queue(s, (struct job){.kind = COPY_IN, .device = dst, .source = fake.memory + src, .shape = *shape});
}
int fake_fill(struct gv_stream *s, uint64_t dst, uint64_t pitch, uint32_t elem, uint32_t value, uint64_t width, uint64_t height) {
    while (fake.fill_waits && atomic_load(&fake.queued)) usleep(1000);
    (void)pitch;
    if (elem != 1 || height != 1) return 1;
    return queue(s, (struct job){.kind = FILL, .device = dst, .value = value, .shape = {.width = width}});
}

int fake_module_load(struct gv_context *c, const void *image, size_t size, struct gv_module **out, void **meta, size_t *meta_size, char *err) {
    (void)c;
    if (size < 4 || memcmp(image, "good", 4)) {
        strcpy(err, "that is no image");
        return 200;
    }
    struct {
        struct gv_meta_header header;
        struct gv_meta_kernel kernel;
        char name[8];
    } *m = calloc(1, sizeof *m + fake.meta_padding);
    m->header =
        (struct gv_meta_header){.magic = GV_META_MAGIC, .version = GV_META_VERSION, .n_kernels = 1, .strings_size = 8 + (uint32_t)fake.meta_padding};
    strcpy(m->name, "kernel");
    fake.image_sum = 0;
    for (size_t i = 0; i < size; i++) fake.image_sum += ((const uint8_t *)image)[i];
    atomic_fetch_add(&fake.alive, 1);
    *out = calloc(1, sizeof **out);
    *meta = m;
    *meta_size = sizeof *m + fake.meta_padding;
    return 0;
}
/* The inputs' data one behind the other; an input called "bad" is refused. */
int fake_link(struct gv_context *c, const struct gv_link_job *job, struct gv_link_result *out) {
    (void)c;
    for (uint32_t i = 0; i < job->n_inputs; i++) {
        const struct gv_link_part *p = &job->inputs[i];
        if (!strcmp(p->name, "bad")) return sprintf(out->error, "'%s' of type %u is bad", p->name, p->type), 200;
        out->image = realloc(out->image, out->size + p->size + 1);
        memcpy((char *)out->image + out->size, p->data, p->size);
        out->size += p->size;
    }
    sprintf(out->info, "%u inputs, %u options, the first with %u", job->n_inputs, job->n_options, job->inputs[0].n_options);
    return 0;
}
void fake_module_unload(struct gv_module *m) {
    atomic_fetch_sub(&fake.alive, 1);
    free(m);
}
int fake_module_global(struct gv_module *m, const char *name, uint64_t *address, uint64_t *size) {
    (void)m;
    if (strcmp(name, "known")) return 500;
    return *address = 64, *size = 4, 0;
}
int fake_kernel_set_attribute(struct gv_module *m, uint32_t k, int32_t a, int32_t v) {
    (void)m, (void)k, (void)a;
    return v < 0 ? 1 : 0;
}
int fake_launch(struct gv_stream *s, const struct gv_launch *l) {
    if (l->params_size != 8 || *(const uint64_t *)l->params != 42) return 1;
    return queue(s, (struct job){.kind = LAUNCH});
}
int fake_mark(struct gv_stream *s, void (*fn)(void *, int), void *arg) {
    int status = queue(s, (struct job){.kind = MARK, .mark = fn, .arg = arg});
    while (fake.marks_wait && atomic_load(&fake.queued)) usleep(1000);
    return status;
}
int fake_gate(struct gv_stream *s, void (*fn)(void *), void *arg) {
    if (fake.refuse_gates) return 2;
    atomic_fetch_add(&fake.gates, 1);
    return queue(s, (struct job){.kind = GATE, .gate = fn, .arg = arg});
}

void *fake_host_alloc(struct gv_backend *b, size_t size) {
    (void)b;
    atomic_fetch_add(&fake.pinned, 1);
    return malloc(size);
}
void fake_host_free(struct gv_backend *b, void *memory) {
    (void)b;
    while (fake.frees_wait && atomic_load(&fake.gates)) usleep(1000);
    free(memory);
    atomic_fetch_sub(&fake.pinned, 1);
}

void *fake_host_view(struct gv_backend *b, uint64_t address, uint64_t size) {
    (void)b;
    if (!fake.views || address > sizeof fake.memory || size > sizeof fake.memory - address) return NULL;
    for (; atomic_load(&fake.hold_views); usleep(1000)) atomic_store(&fake.held_views, true);
    atomic_fetch_add(&fake.viewed, 1);
    atomic_fetch_add(&fake.views_given, 1);
    return fake.memory + address;
}
void fake_host_view_end(struct gv_backend *b, uint64_t address, uint64_t size) {
    (void)b, (void)address, (void)size;
    atomic_fetch_sub(&fake.viewed, 1);
}
static int memory_file = -1;

void fake_memory_in_a_file(void) {
    memory_file = memfd_create("device memory", MFD_CLOEXEC);
    CHECK(memory_file >= 0 && ftruncate(memory_file, sizeof fake.memory) == 0);
    CHECK(mmap(fake.memory, sizeof fake.memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file, 0) == fake.memory);
}

int fake_device_view(struct gv_backend *b, uint64_t address, uint64_t size, int *fd, uint64_t *offset) {
    (void)b, (void)size;
    if (!fake.device_views || fake.refuse_views || (*fd = dup(memory_file)) < 0) return 801;
    *offset = address;
    atomic_fetch_add(&fake.viewed, 1);
    atomic_fetch_add(&fake.views_given, 1);
    return 0;
}
void fake_device_view_end(struct gv_backend *b, uint64_t address, uint64_t size, int written) {
    (void)b, (void)address, (void)size;
    atomic_fetch_sub(&fake.viewed, 1);
    if (written) atomic_fetch_add(&fake.written, 1);
}
int fake_device_move(struct gv_backend *b, uint64_t address, void *host, uint64_t size, int to_device) {
    (void)b;
    if (atomic_load(&fake.refuse_moves)) return 999;
    if (to_device)
        memcpy(fake.memory + address, host, size);
    else
        memcpy(host, fake.memory + address, size);
    atomic_fetch_add(&fake.moved, size);
    return 0;
}
int fake_mark_follows(struct gv_stream *s) {
    pthread_mutex_lock(&s->lock);
    int follows = fake.tells_marks && s->first && s->first->kind == MARK;
    pthread_mutex_unlock(&s->lock);
    return follows;
}

/* There is something that may wait in any command. */
void fake_command_begin(struct gv_backend *b) { (void)b; }
void fake_command_end(struct gv_backend *b) { (void)b; }

const struct gv_backend_ops gv_backend_soft = {.name = "soft", GV_BACKEND_ENTRIES(fake)};
const struct gv_backend_ops gv_backend_cuda = {.name = "cuda", GV_BACKEND_ENTRIES(fake)};
