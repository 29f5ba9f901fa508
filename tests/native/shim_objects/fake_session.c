#define _GNU_SOURCE

#include "fake_session.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "wire/module_meta.h"
#include "wire/window.h"

struct fake fake;
struct session_stats session_stats;

#define WINDOW (64ull << 30)

static struct shim_server server;
static uint64_t seq;
static struct session_stream *streams;
static int fault;
/* Copies to the host and host functions whose place in the stream the session has not been told: by this thread. */
static _Thread_local int not_told;

/* One lock for everything: held from begin to end of a record, and taken again inside. */
static pthread_mutex_t send_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static struct {
    uint16_t op, flags;
    uint32_t ctx, size;
    char body[GV_RECORD_MAX];
} record;

/* ---- the server ---------------------------------------------------------------------------------------------------- */

int session_attach(void) {
    if (server.n_devices) return 0;
    void *window = mmap(NULL, WINDOW + (1ull << 32), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) abort();
    server.driver_version = 13000;
    server.addresses = GV_ADDRESSES_FIXED;
    server.window_base = ((uint64_t)(uintptr_t)window + (1ull << 32) - 1) & ~((1ull << 32) - 1);
    server.window_size = WINDOW;
    server.initial = 2 << 20;
    server.n_devices = FAKE_DEVICES;
    for (int d = 0; d < FAKE_DEVICES; d++) {
        struct gv_device_info *info = &server.devices[d];
        snprintf(info->name, sizeof info->name, "Fake %d", d);
        memset(info->uuid, 0x10 * (d + 1), 16);
        info->total_memory = FAKE_DEVICE_MEMORY;
        info->chunk = 2 << 20;
        info->flags = GV_DEVICE_WANTS_PTX | GV_DEVICE_SOFTWARE;
        static const int values[][2] = {{1, 1024},   {2, 1024},  {3, 1024},        {4, 64},     {5, 0x7fffffff}, {6, 65535},  {7, 65535},
                                        {8, 49152},  {10, 32},   {11, 0x7fffffff}, {12, 16384}, {14, 512},       {16, 2},     {33, 1},
                                        {34, 0},     {39, 2048}, {50, 0},          {75, 13},    {76, 0},         {78, 1},     {81, 102400},
                                        {82, 65536}, {95, 1},    {97, 101376},     {102, 1},    {106, 32},       {111, 1024}, {115, 1}};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            info->attributes[values[i][0]] = values[i][1];
            info->has_attribute[values[i][0]] = 1;
        }
        info->attributes[33] = d + 1;
        fake.backed[d] = server.initial;
    }
    return 0;
}

const struct shim_server *session_server(void) { return &server; }

int session_broken(void) { return fake.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : 0; }

void shim_log(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

bool session_in_forked_child(void) { return false; }

/* No cache but the test's own. */
const char *shim_setting(const char *name, const char *fallback) { return strcmp(name, "CACHE") ? fallback : fake.cache ? fake.cache : "/dev/null"; }

const char *shim_folder_setting(const char *variable) {
    (void)variable;
    return NULL;
}

void session_on_context_failure(void (*call)(uint32_t ctx, int status)) { (void)call; }
void session_on_illegal_address(const char *(*call)(uint64_t address)) { (void)call; }

/* ---- completions --------------------------------------------------------------------------------------------------- */

void session_stream_add(struct session_stream *s) {
    pthread_mutex_lock(&send_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&send_lock);
}

void session_stream_remove(struct session_stream *s) {
    pthread_mutex_lock(&send_lock);
    for (struct session_stream **at = &streams; *at; at = &(*at)->next) {
        if (*at == s) {
            *at = s->next;
            break;
        }
    }
    pthread_mutex_unlock(&send_lock);
}

static void raise_to(_Atomic uint64_t *value, uint64_t to) {
    if (atomic_load(value) < to) atomic_store(value, to);
}

void session_stream_posted(struct session_stream *s, uint64_t at, bool marked, bool fence) {
    (void)fence;
    if (!s->id || !at) abort();
    pthread_mutex_lock(&send_lock);
    raise_to(&s->posted, at);
    if (marked) raise_to(&s->marked, at);
    pthread_mutex_unlock(&send_lock);
}

void session_stream_waits(struct session_stream *s, uint64_t at, uint64_t source, uint64_t upto) {
    if (!s->id || !source || upto >= at) abort();
}

static void complete(struct session_stream *s, uint64_t upto) {
    if (fault) atomic_store(&s->status, fault);
    if (atomic_load(&s->completed) < upto) atomic_store(&s->completed, upto);
}

void fake_complete(void) {
    pthread_mutex_lock(&send_lock);
    for (struct session_stream *s = streams; s; s = s->next) complete(s, atomic_load(&s->marked));
    pthread_mutex_unlock(&send_lock);
}

void fake_fault(int status) { fault = status; }

void fake_reset(void) {
    memset(fake.count, 0, sizeof fake.count);
    fake.waits = 0;
}

bool session_stream_passes(const struct session_stream *s, uint64_t upto, int64_t ns) {
    (void)ns;
    return atomic_load(&s->completed) >= upto;
}

int session_wait_stream(struct session_stream *s, uint64_t upto) {
    if (fake.lost) return session_broken();
    if (not_told) abort();
    pthread_mutex_lock(&send_lock);
    if (atomic_load(&s->completed) < upto) {
        fake.waits++;
        if (upto > seq) abort(); /* a wait for what was never sent */
        complete(s, upto);
    }
    pthread_mutex_unlock(&send_lock);
    return atomic_load(&s->status);
}

void session_poll(void) {
    if (!fake.hold) fake_complete();
}

void session_flush(void) {}
const char *session_error_text(int code) { return code ? "lost" : NULL; }
void throttle_exempt_begin(void) {}
void throttle_exempt_end(void) {}
bool session_host_function_pending(void) { return false; }
int session_thread(const char *name, void *(*fn)(void *), void *arg, size_t stack) {
    pthread_t thread;
    (void)name, (void)stack;
    return pthread_create(&thread, NULL, fn, arg) || pthread_detach(thread) ? -1 : 0;
}

/* ---- commands ------------------------------------------------------------------------------------------------------ */

static uint32_t device_of_context[1024];

static struct {
    uint64_t dst, width, height, pitch;
} awaiting_bulk;

static struct {
    uint64_t tag;
    char *dst;
    uint64_t width, height, pitch;
} expected[64];
static uint64_t last_tag, last_bulk;

/* Sent by a host function, which is called at once here; its copy's command follows. */
static struct {
    uint64_t tag, size;
    char *data;
} late[16];

static struct {
    uint64_t handle, size;
    uint32_t device;
} physicals[64];

static int device_of(uint64_t address) { return (int)((address - server.window_base) / (WINDOW / FAKE_DEVICES)); }

static void copy_rows(char *dst, uint64_t dst_pitch, const char *src, uint64_t src_pitch, uint64_t width, uint64_t height) {
    for (uint64_t y = 0; y < height; y++) memmove(dst + y * dst_pitch, src + y * src_pitch, width);
}

static void carry_out(void) {
    fake.count[record.op]++;
    if (record.op == GV_OP_COPY_OUT || record.op == GV_OP_HOST_FUNC) not_told++;
    switch (record.op) {
    case GV_OP_CONTEXT_CREATE: {
        struct gv_cmd_context_create c;
        if (gv_cmd_context_create_decode(&c, record.body, record.size) || record.ctx >= 1024) abort();
        device_of_context[record.ctx] = c.device;
        break;
    }
    case GV_OP_COPY_IN: {
        struct gv_cmd_copy_in c;
        if (gv_cmd_copy_in_decode(&c, record.body, record.size) || c.depth != 1) abort();
        if (c.bulk & GV_BULK_LATE) {
            int i = 0;
            while (i < 16 && late[i].tag != c.bulk) i++;
            if (i == 16 || late[i].size != c.width * c.height) abort();
            copy_rows((char *)(uintptr_t)c.dst, c.pitch, late[i].data, c.width, c.width, c.height);
            free(late[i].data);
            late[i].tag = 0;
        } else if (c.bulk) {
            if (c.bulk != last_bulk + 1) abort();
            awaiting_bulk.dst = c.dst, awaiting_bulk.width = c.width, awaiting_bulk.height = c.height, awaiting_bulk.pitch = c.pitch;
        } else {
            if (c.data_size != c.width * c.height) abort();
            copy_rows((char *)(uintptr_t)c.dst, c.pitch, c.data, c.width, c.width, c.height);
        }
        break;
    }
    case GV_OP_COPY_OUT: {
        struct gv_cmd_copy_out c;
        if (gv_cmd_copy_out_decode(&c, record.body, record.size) || c.depth != 1) abort();
        for (int i = 0; i < 64; i++) {
            if (expected[i].tag != c.tag) continue;
            if (expected[i].width != c.width || expected[i].height != c.height) abort();
            copy_rows(expected[i].dst, expected[i].pitch, (const char *)(uintptr_t)c.src, c.pitch, c.width, c.height);
            expected[i].tag = 0;
        }
        break;
    }
    case GV_OP_COPY_DEVICE: {
        struct gv_cmd_copy_device c;
        if (gv_cmd_copy_device_decode(&c, record.body, record.size)) abort();
        for (uint64_t z = 0; z < c.depth; z++) {
            copy_rows((char *)(uintptr_t)c.dst + z * c.dst_slice, c.dst_pitch, (const char *)(uintptr_t)c.src + z * c.src_slice, c.src_pitch, c.width,
                      c.height);
        }
        break;
    }
    case GV_OP_FILL: {
        struct gv_cmd_fill c;
        if (gv_cmd_fill_decode(&c, record.body, record.size)) abort();
        for (uint64_t y = 0; y < c.height; y++) {
            for (uint64_t x = 0; x < c.width; x++) memcpy((char *)(uintptr_t)c.dst + y * c.pitch + x * c.elem, &c.value, c.elem);
        }
        break;
    }
    case GV_OP_LAUNCH: {
        if (gv_cmd_launch_decode(&fake.launch, record.body, record.size)) abort();
        memcpy(fake.params, fake.launch.params, fake.launch.params_size);
        fake.launch.params = fake.params;
        fake.launch_ctx = record.ctx;
        break;
    }
    case GV_OP_MEMORY_SHRINK: {
        struct gv_cmd_memory_shrink c;
        if (gv_cmd_memory_shrink_decode(&c, record.body, record.size)) abort();
        fake.backed[device_of(c.address)] -= c.size;
        break;
    }
    case GV_OP_MEMORY_DESTROY: {
        struct gv_cmd_memory_destroy c;
        if (gv_cmd_memory_destroy_decode(&c, record.body, record.size)) abort();
        int i = 0;
        while (i < 64 && physicals[i].handle != c.handle) i++;
        if (i == 64) abort();
        fake.backed[physicals[i].device] -= physicals[i].size;
        physicals[i].handle = 0;
        break;
    }
    case GV_OP_MEMORY_MAP: {
        struct gv_cmd_memory_map c;
        if (gv_cmd_memory_map_decode(&c, record.body, record.size) || device_of(c.address) >= FAKE_DEVICES) abort();
        fake.mapped += c.size;
        break;
    }
    case GV_OP_MEMORY_UNMAP: {
        struct gv_cmd_memory_unmap c;
        if (gv_cmd_memory_unmap_decode(&c, record.body, record.size) || c.size > fake.mapped) abort();
        fake.mapped -= c.size;
        break;
    }
    case GV_OP_KERNEL_ATTRIBUTE: {
        struct gv_cmd_kernel_attribute c;
        if (gv_cmd_kernel_attribute_decode(&c, record.body, record.size)) abort();
        fake.kernel_attribute_value = (uint64_t)c.value;
        break;
    }
    default: break;
    }
}

void *session_begin(uint16_t op, uint16_t flags, uint32_t ctx, uint32_t body) {
    if (fake.lost) return NULL;
    pthread_mutex_lock(&send_lock);
    record.op = op;
    record.flags = flags;
    record.ctx = ctx;
    record.size = body;
    return record.body;
}

uint64_t session_end(void) {
    carry_out();
    uint64_t number = ++seq;
    pthread_mutex_unlock(&send_lock);
    return number;
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static uint32_t make_meta(char *out) {
    struct gv_meta_header h = {
        .magic = GV_META_MAGIC, .version = GV_META_VERSION, .flags = GV_META_GLOBALS_COMPLETE, .n_kernels = 4, .n_params = 3, .n_globals = 1};
    static const char strings[] = "add\0empty\0exact\0table\0clustered";
    struct gv_meta_kernel k[4] = {
        {.name = 0,
         .n_params = 3,
         .param_bytes = 24,
         .max_threads = 512,
         .static_shared = 1024,
         .num_regs = 32,
         .ptx_version = 80,
         .binary_version = 130},
        {.name = 4, .first_param = 3, .max_threads = 1024, .num_regs = 8},
        {.name = 10, .first_param = 3, .max_threads = 64, .required_threads = {64, 1, 1}},
        {.name = 22, .first_param = 3, .max_threads = 1024, .cluster = 2 | 1 << 10 | 1 << 20, .flags = GV_META_KERNEL_NEEDS_CLUSTER},
    };
    struct gv_meta_param p[3] = {{0, 8}, {8, 4}, {16, 8}};
    struct gv_meta_global g = {.name = 16, .align = 8, .size = 256, .address = server.window_base + WINDOW / FAKE_DEVICES - (1 << 20)};
    h.strings_size = sizeof strings;
    char *at = out;
    at = mempcpy(at, &h, sizeof h);
    at = mempcpy(at, k, sizeof k);
    at = mempcpy(at, p, sizeof p);
    at = mempcpy(at, &g, sizeof g);
    at = mempcpy(at, strings, sizeof strings);
    return (uint32_t)(at - out);
}

static void answer(struct session_reply *reply) {
    static _Thread_local char meta[1024], body[2048];
    reply->body = body;
    reply->body_size = 0;
    reply->status = 0;
    switch (record.op) {
    case GV_OP_MEMORY_GROW: {
        struct gv_cmd_memory_grow c;
        if (gv_cmd_memory_grow_decode(&c, record.body, record.size)) abort();
        int device = device_of(c.address);
        struct gv_reply_memory_grow r = {.size = fake.backed[device] + c.size > FAKE_DEVICE_MEMORY ? c.needed : c.size};
        if (!r.size || fake.backed[device] + r.size > FAKE_DEVICE_MEMORY) {
            reply->status = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        fake.backed[device] += r.size;
        gv_reply_memory_grow_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_memory_grow_size(&r);
        break;
    }
    case GV_OP_MEMORY_CREATE: {
        struct gv_cmd_memory_create c;
        if (gv_cmd_memory_create_decode(&c, record.body, record.size) || !c.handle || c.device >= FAKE_DEVICES) abort();
        int i = 0;
        while (i < 64 && physicals[i].handle) i++;
        if (i == 64) abort();
        reply->status = fake.backed[c.device] + c.size > FAKE_DEVICE_MEMORY ? CUDA_ERROR_OUT_OF_MEMORY : 0;
        if (reply->status) break;
        fake.backed[c.device] += c.size;
        physicals[i].handle = c.handle, physicals[i].size = c.size, physicals[i].device = c.device;
        break;
    }
    case GV_OP_MEMORY_ACCESS: {
        struct gv_cmd_memory_access c;
        if (gv_cmd_memory_access_decode(&c, record.body, record.size) || c.device >= FAKE_DEVICES) abort();
        reply->status = fake.access_status;
        break;
    }
    /* A map is what it was asked for, so that others differ. */
    case GV_OP_TENSOR_MAP:
    case GV_OP_TENSOR_MAP_IM2COL:
    case GV_OP_TENSOR_MAP_ADDRESS: {
        static _Thread_local unsigned char map[128];
        memset(map, 0, sizeof map);
        for (uint32_t i = 0; i < record.size; i++)
            map[i % sizeof map] = (unsigned char)(31 * map[i % sizeof map] + ((const unsigned char *)record.body)[i] + i);
        struct gv_reply_tensor_map r = {.map = map, .map_size = sizeof map}; /* the others' have the same form */
        reply->status = fake.map_status;
        gv_reply_tensor_map_encode(&r, body);
        reply->body_size = (uint32_t)gv_reply_tensor_map_size(&r);
        break;
    }
    case GV_OP_CONTEXT_LIMIT: {
        struct gv_cmd_context_limit c;
        if (gv_cmd_context_limit_decode(&c, record.body, record.size)) abort();
        struct gv_reply_context_limit r = {.value = c.value};
        gv_reply_context_limit_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_context_limit_size(&r);
        break;
    }
    case GV_OP_MEMORY_INFO: {
        struct gv_reply_memory_info r = {.free = FAKE_DEVICE_MEMORY - fake.backed[device_of_context[record.ctx]], .total = FAKE_DEVICE_MEMORY};
        gv_reply_memory_info_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_memory_info_size(&r);
        break;
    }
    case GV_OP_EVENT_ELAPSED: {
        struct gv_reply_event_elapsed r = {.milliseconds = 1.5f};
        gv_reply_event_elapsed_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_event_elapsed_size(&r);
        break;
    }
    case GV_OP_MODULE_LOAD: {
        struct gv_cmd_module_load c;
        if (gv_cmd_module_load_decode(&c, record.body, record.size)) abort();
        if (!c.bulk) fake.load_size = c.image_size;
        struct gv_reply_module_load r = {.meta = meta, .meta_size = make_meta(meta), .log = "all is well"};
        reply->status = fake.load_status;
        if (reply->status) {
            snprintf(reply->text, sizeof reply->text, "line 3: no such thing");
            break;
        }
        gv_reply_module_load_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_module_load_size(&r);
        break;
    }
    case GV_OP_PROCESSOR_GROUPS: {
        static uint8_t order[600], groups[600];
        for (int i = 0; i < 600; i++) order[i] = (uint8_t)(i * 3), groups[i] = (uint8_t)i;
        struct gv_reply_processor_groups r = {.order = order, .order_size = fake.groups, .groups = groups, .groups_size = fake.groups};
        reply->status = fake.groups_status;
        gv_reply_processor_groups_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_processor_groups_size(&r);
        break;
    }
    case GV_OP_CLUSTER_COUNT: {
        if (gv_cmd_cluster_count_decode(&fake.query, record.body, record.size)) abort();
        struct gv_reply_cluster_count r = {.count = fake.clusters};
        reply->status = fake.cluster_status;
        gv_reply_cluster_count_encode(&r, body);
        reply->body = body, reply->body_size = (uint32_t)gv_reply_cluster_count_size(&r);
        break;
    }
    default: break;
    }
}

void *session_begin_call(uint16_t op, uint32_t ctx, uint32_t body, struct session_reply *reply) {
    memset(reply, 0, sizeof *reply);
    return session_begin(op, GV_RECORD_SYNC, ctx, body);
}

uint64_t session_send_call(struct session_reply *reply) {
    answer(reply);
    atomic_store(&reply->answered, 1);
    return session_end();
}

int session_wait_call(struct session_reply *reply) {
    pthread_mutex_lock(&send_lock);
    fake.waits++;
    pthread_mutex_unlock(&send_lock);
    return reply->status;
}

int session_end_call(struct session_reply *reply) {
    session_send_call(reply);
    return session_wait_call(reply);
}

void session_reply_done(struct session_reply *reply) { (void)reply; }

int session_take_payload(uint64_t tag, void *dst, uint64_t size) {
    (void)tag, (void)dst, (void)size;
    abort();
}

/* ---- data ---------------------------------------------------------------------------------------------------------- */

bool session_bulk_reserve(struct session_bulk *b, const void *data, uint64_t size, bool lend) {
    pthread_mutex_lock(&send_lock); /* until the commit */
    if (lend) fake.lent++;
    memset(&awaiting_bulk, 0, sizeof awaiting_bulk);
    *b = (struct session_bulk){.number = last_bulk + 1, .data = data, .size = size, .lend = lend};
    return true;
}

uint64_t session_bulk_commit(const struct session_bulk *b, uint64_t posted) {
    if (posted) {
        last_bulk++;
        if (awaiting_bulk.dst) {
            if (b->size != awaiting_bulk.width * awaiting_bulk.height) abort();
            copy_rows((char *)(uintptr_t)awaiting_bulk.dst, awaiting_bulk.pitch, b->data, awaiting_bulk.width, awaiting_bulk.width,
                      awaiting_bulk.height);
        } else {
            fake.load_size = b->size;
        }
    }
    pthread_mutex_unlock(&send_lock);
    return posted;
}

static _Atomic uint64_t last_late;

uint64_t session_late_tags(uint64_t n) { return GV_BULK_LATE | (atomic_fetch_add(&last_late, n) + 1); }

int session_bulk_late(uint64_t tag, const void *data, uint64_t size) {
    pthread_mutex_lock(&send_lock);
    int i = 0;
    while (i < 16 && late[i].tag) i++;
    if (i == 16) abort();
    late[i].tag = tag;
    late[i].size = size;
    late[i].data = malloc(size);
    memcpy(late[i].data, data, size);
    pthread_mutex_unlock(&send_lock);
    return 0;
}

void session_memory_offer(const void *at, uint64_t size) {
    if (!at || !size) abort();
    fake.offers++;
}

void session_memory_take_back(const void *at) { fake.taken_back = at; }

void session_loans_wait(uint64_t low, uint64_t high) {
    fake.loans_low = low;
    fake.loans_high = high;
}

uint64_t session_expect(void *dst, uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    (void)slice;
    if (depth != 1) abort();
    pthread_mutex_lock(&send_lock);
    int i = 0;
    while (i < 64 && expected[i].tag) i++;
    if (i == 64) abort();
    uint64_t tag = expected[i].tag = ++last_tag;
    expected[i].dst = dst, expected[i].width = width, expected[i].height = height, expected[i].pitch = pitch;
    pthread_mutex_unlock(&send_lock);
    return tag;
}

void session_expect_cancel(uint64_t tag) {
    pthread_mutex_lock(&send_lock);
    for (int i = 0; i < 64; i++) {
        if (expected[i].tag == tag) expected[i].tag = 0;
    }
    pthread_mutex_unlock(&send_lock);
}

void session_expect_posted(uint64_t tag, struct session_stream *s, uint64_t at) {
    (void)tag;
    if (!s->id || !at) abort();
    not_told--;
}

void session_host_func_posted(uint64_t tag, struct session_stream *s, uint64_t at) {
    (void)tag;
    if (!s->id || !at) abort();
    not_told--;
}

static _Atomic uint64_t last_host_tag;

uint64_t session_host_func(void (*fn)(void *data), void *data) {
    fn(data);
    return atomic_fetch_add(&last_host_tag, 1) + 1;
}

uint64_t session_stream_callback(void (*fn)(void *stream, int status, void *data), void *stream, void *data) {
    fn(stream, 0, data);
    return atomic_fetch_add(&last_host_tag, 1) + 1;
}

uint64_t session_late_func(void (*fn)(void *stream, int status, void *data), void *data) { return session_stream_callback(fn, NULL, data); }

bool session_late_crowded(uint64_t size) { return size > UINT64_MAX / 2; }
