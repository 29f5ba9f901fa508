#define _GNU_SOURCE
#include "client.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../native/check.h"
#include "clock.h"
#include "connections.h"
#include "state.h"
#include "window.h"

#define PENDING 1024u
#define EXPECTED 64u
#define STREAMS 128u
#define SOON_NS 300000000LL   /* a sequence that is wrong is not waited for longer than this */
#define STUCK_NS 2000000000LL /* and a client that cannot send gives up */

struct pending {
    uint64_t seq, size;
    uint16_t op;
    uint8_t into;
};
struct expected {
    uint64_t tag, size, at;
    uint8_t *data;
    bool due; /* its copy has been asked for */
};
struct completed {
    uint64_t stream, marked, upto;
};

struct client {
    const struct sequence *q;
    struct gv_link *link;
    struct worker *worker;
    struct connections connections;
    bool sound, answers;
    pthread_t runs, reads, receives;
    char reason[GV_ERR_SIZE];
    int outcome;
    _Atomic bool over, ended;      /* the client is done; the worker is */
    _Atomic int64_t sending_since; /* 0: no step is under way */
    const char *doing;             /* which step's name */
    struct step_world world;
    uint64_t alloc_sizes[SLOTS], used, posted, launches;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pending pending[PENDING]; /* answers that are due, in order */
    uint64_t asked, answered, marked;
    uint64_t malformed; /* the first record that must end the session; 0: there was none */
    struct completed completed[STREAMS];
    unsigned n_streams;
    struct expected expected[EXPECTED];
    unsigned n_expected;
    uint64_t host_calls[64];
    unsigned n_host_calls;
};

void client_wrong(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "wrong: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    _exit(3);
}

/* ---- what comes back ------------------------------------------------------------------------------------------------------ */

static void note_address(struct client *c, enum base base, uint8_t slot, uint64_t address) { c->world.slots[base][slot % SLOTS] = address; }

static void note_attached(struct client *c, const struct gv_evt_reply *r) {
    struct gv_reply_attach a;
    if (gv_reply_attach_decode(&a, r->body, r->body_size)) client_wrong("the answer to attach cannot be read");
    uint32_t n = a.devices_size / (uint32_t)sizeof(struct gv_device_info);
    if (a.addresses != GV_ADDRESSES_FIXED) return;
    for (uint32_t i = 0; i < SLOTS; i++) {
        /* Slots 0 to 3 and 4 to 7: 4 MiB each of what is backed from the beginning, on the first and the second device; beyond: nothing is there yet. */
        struct gv_window_part part = gv_window_part(a.window_base, a.window_size, n, n > 1 && i >= 4 && i < 8 ? 1 : 0);
        note_address(c, BASE_ADDRESS, (uint8_t)i, part.base + (n > 1 && i >= 4 && i < 8 ? i - 4 : i) * (4ull << 20));
        note_address(c, BASE_RESERVED, (uint8_t)i, part.base + part.client_size - (i + 1) * (4ull << 20));
    }
    c->used += a.initial * n;
}

static void on_reply(struct client *c, const struct gv_record *record) {
    struct gv_evt_reply r;
    if (gv_evt_reply_decode(&r, record + 1, record->size - (uint32_t)sizeof *record)) client_wrong("an answer cannot be read");
    pthread_mutex_lock(&c->lock);
    if (c->answered == c->asked) client_wrong("record %llu was answered, and nobody had asked", (unsigned long long)r.answers);
    struct pending p = c->pending[c->answered++ % PENDING];
    if (p.seq != r.answers) client_wrong("record %llu was answered before %llu", (unsigned long long)r.answers, (unsigned long long)p.seq);
    if (c->malformed && p.seq > c->malformed)
        client_wrong("%s was answered behind record %llu, which is malformed", gv_op_name(p.op), (unsigned long long)c->malformed);
    if (c->sound && r.status) client_wrong("%s was answered with %d (%s)", gv_op_name(p.op), r.status, r.text);
    uint64_t numbers[2] = {0, 0};
    if (!r.status && r.body_size >= 8) memcpy(numbers, r.body, r.body_size < 16 ? 8 : 16);
    if (!r.status) {
        switch (p.op) {
        case GV_OP_ATTACH: note_attached(c, &r); break;
        case GV_OP_MEMORY_ALLOC: note_address(c, BASE_ADDRESS, p.into, numbers[0]), c->alloc_sizes[p.into % SLOTS] = p.size; /* fall through */
        case GV_OP_MEMORY_GROW:
        case GV_OP_MEMORY_CREATE: c->used += p.size; break;
        case GV_OP_ADDRESS_RESERVE: note_address(c, BASE_RESERVED, p.into, numbers[0]); break;
        case GV_OP_MODULE_GLOBAL: note_address(c, BASE_GLOBAL, p.into, numbers[0]); break;
        case GV_OP_ARRAY_TEXTURE:
        case GV_OP_SURFACE_CREATE:
        case GV_OP_TEXTURE_CREATE: note_address(c, BASE_TEXTURE, p.into, numbers[0]); break;
        case GV_OP_BYE:
            if (c->sound && (numbers[0] != c->launches || numbers[1] != c->posted - 1))
                client_wrong("the worker counts %llu launches and %llu commands, not %llu and %llu", (unsigned long long)numbers[0],
                             (unsigned long long)numbers[1], (unsigned long long)c->launches, (unsigned long long)c->posted - 1);
            break;
        default: break;
        }
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static struct completed *stream_of(struct client *c, uint64_t stream) {
    for (unsigned i = 0; i < c->n_streams; i++)
        if (c->completed[i].stream == stream) return &c->completed[i];
    if (c->n_streams == STREAMS) return &c->completed[0];
    c->completed[c->n_streams] = (struct completed){.stream = stream};
    return &c->completed[c->n_streams++];
}

static void on_completed(struct client *c, const struct gv_record *record) {
    struct gv_evt_completed e;
    if (gv_evt_completed_decode(&e, record + 1, record->size - (uint32_t)sizeof *record)) client_wrong("a completion cannot be read");
    pthread_mutex_lock(&c->lock);
    struct completed *s = stream_of(c, e.stream);
    if (e.upto > (c->sound ? s->marked : c->marked))
        client_wrong("stream %llx has completed what was not asked of it: %llu", (unsigned long long)e.stream, (unsigned long long)e.upto);
    if (c->sound && e.status) client_wrong("stream %llx has failed with %d", (unsigned long long)e.stream, e.status);
    if (c->sound && e.upto <= s->upto) client_wrong("stream %llx goes back to %llu", (unsigned long long)e.stream, (unsigned long long)e.upto);
    if (e.upto > s->upto) s->upto = e.upto;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* The next bytes of the copy with that tag. lock held. */
static void on_bytes(struct client *c, uint64_t tag, const void *data, uint64_t size) {
    for (unsigned i = 0; i < c->n_expected; i++) {
        struct expected *e = &c->expected[i];
        if (e->tag != tag || e->at == e->size) continue;
        uint64_t n = size < e->size - e->at ? size : e->size - e->at;
        if (c->sound && (n != size || memcmp(e->data + e->at, data, n) != 0))
            client_wrong("the bytes of copy %llu from %llu on are not those that were there", (unsigned long long)tag, (unsigned long long)e->at);
        e->at += n;
        pthread_cond_broadcast(&c->changed);
        return;
    }
}

static void answer(struct client *c, uint64_t tag) {
    struct gv_cmd_host_done done = {.tag = tag};
    struct gv_record *r = gv_send_begin(c->link, (uint32_t)(sizeof *r + gv_cmd_host_done_size(&done)), NULL);
    if (!r) return;
    r->op = GV_OP_HOST_DONE;
    r->flags = 0;
    r->ctx = 0;
    gv_cmd_host_done_encode(&done, r + 1);
    pthread_mutex_lock(&c->lock);
    c->posted++;
    gv_send_commit(c->link);
    pthread_mutex_unlock(&c->lock);
    gv_send_flush(c->link);
}

static void on_record(struct client *c, const struct gv_record *r) {
    uint32_t size = r->size - (uint32_t)sizeof *r;
    struct gv_evt_data_inline data;
    struct gv_evt_call_host call;
    struct gv_evt_failed failed;
    switch (r->op) {
    case GV_OP_REPLY: on_reply(c, r); break;
    case GV_OP_COMPLETED: on_completed(c, r); break;
    case GV_OP_DATA_INLINE:
        if (gv_evt_data_inline_decode(&data, r + 1, size)) client_wrong("inline data cannot be read");
        if (c->sound && data.status) client_wrong("the copy %llu has failed with %d", (unsigned long long)data.tag, data.status);
        pthread_mutex_lock(&c->lock);
        on_bytes(c, data.tag, data.data, data.data_size);
        pthread_mutex_unlock(&c->lock);
        break;
    case GV_OP_CALL_HOST:
        if (gv_evt_call_host_decode(&call, r + 1, size)) client_wrong("a call of a host function cannot be read");
        if (c->answers) answer(c, call.tag);
        break;
    case GV_OP_FAILED:
        if (gv_evt_failed_decode(&failed, r + 1, size)) client_wrong("a failure cannot be read");
        if (c->sound)
            client_wrong("record %llu, %s, has failed with %d (%s)", (unsigned long long)failed.failed_seq, gv_op_name((uint16_t)failed.op),
                         failed.status, failed.text);
        break;
    case GV_OP_CONSOLE:
    case GV_OP_NOTICE: break;
    default: client_wrong("the worker sends a record of kind %u", r->op);
    }
}

static void *read_records(void *arg) {
    struct client *c = arg;
    while (!gv_link_dead(c->link)) {
        const struct gv_record *r = gv_recv_peek(c->link);
        int64_t since = atomic_load(&c->sending_since);
        if (r) {
            on_record(c, r);
            gv_recv_consume(c->link);
        } else {
            gv_recv_wait(c->link, 20000000, 0);
        }
        if (!c->sound && since && gv_now_ns() - since > STUCK_NS) gv_link_kill(c->link, "the client cannot send");
    }
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void *receive_payloads(void *arg) {
    struct client *c = arg;
    static uint8_t piece[1 << 16];
    struct gv_bulk_header header;
    while (gv_bulk_recv_header(c->link, &header) == 0) {
        for (uint64_t at = 0, n; at < header.size; at += n) {
            n = header.size - at < sizeof piece ? header.size - at : sizeof piece;
            if (gv_bulk_recv(c->link, piece, n)) return NULL;
            pthread_mutex_lock(&c->lock);
            on_bytes(c, header.tag, piece, n);
            pthread_mutex_unlock(&c->lock);
        }
    }
    return NULL;
}

/* ---- what the client does --------------------------------------------------------------------------------------------------- */

/* Waits, lock held, for the worker at most so long; a sound sequence waits as long as it takes. */
static bool wait_more(struct client *c, int64_t until) {
    if (gv_link_dead(c->link) || atomic_load(&c->ended) || (!c->sound && gv_now_ns() > until)) return false;
    struct timespec at = gv_deadline(CLOCK_REALTIME, 20000000);
    pthread_cond_timedwait(&c->changed, &c->lock, &at);
    return true;
}

static void await_answer(struct client *c, uint64_t asked) {
    int64_t until = gv_now_ns() + SOON_NS;
    pthread_mutex_lock(&c->lock);
    while (c->answered < asked && wait_more(c, until)) continue;
    pthread_mutex_unlock(&c->lock);
}

/* Counts what a sound sequence does to the memory in use. */
static void account(struct client *c, const struct step *s) {
    struct value *v = step_value((struct step *)(uintptr_t)s, "address");
    switch (shape_of(s)->op) {
    case GV_OP_MEMORY_SHRINK: c->used -= step_get(s, "size"); break;
    case GV_OP_MEMORY_FREE: c->used -= c->alloc_sizes[v->slot]; break;
    case GV_OP_MEMORY_DESTROY: c->used -= step_get(s, "handle") % 16 << 21; break; /* as generate.c sizes them */
    case GV_OP_LAUNCH: c->launches++; break;
    default: break;
    }
}

/* A copy whose record has other bytes than it says. */
static bool is_malformed(uint16_t op, const void *body, uint32_t size) {
    struct gv_cmd_copy_in in;
    uint64_t plane, all;
    if (op != GV_OP_COPY_IN || gv_cmd_copy_in_decode(&in, body, size) || in.bulk) return false;
    return __builtin_mul_overflow(in.width, in.height, &plane) || __builtin_mul_overflow(plane, in.depth, &all) || all != in.data_size;
}

static bool post(struct client *c, const struct step *s) {
    static _Alignas(8) uint8_t body[STEP_BODY_MAX];
    const struct shape *shape = shape_of(s);
    uint32_t size = step_encode(&c->world, s, body);
    int64_t whole = (int64_t)size + s->resize / 8 * 8;
    whole = whole < 0 ? 0 : whole > STEP_BODY_MAX ? STEP_BODY_MAX : whole;
    if (whole > size) memset(body + size, 0, (size_t)whole - size);
    if (s->flip && whole) body[s->flip_at % whole] ^= (uint8_t)s->flip;
    struct gv_record *r = gv_send_begin(c->link, (uint32_t)(sizeof *r + (size_t)whole), NULL);
    if (!r) return false;
    r->op = shape->op;
    r->flags = (uint16_t)((shape->awaited ? GV_RECORD_SYNC : 0) | (s->mark ? GV_RECORD_MARK : 0));
    r->ctx = s->context;
    memcpy(r + 1, body, (size_t)whole);
    pthread_mutex_lock(&c->lock);
    if (c->sound) account(c, s);
    c->posted++;
    uint64_t seq = gv_send_commit(c->link), asked = 0;
    if (!c->malformed && is_malformed(shape->op, body, (uint32_t)whole)) c->malformed = seq;
    if (shape->awaited) {
        struct pending p = {.seq = seq, .op = shape->op, .into = s->into, .size = step_get(s, "size")};
        c->pending[c->asked % PENDING] = p;
        asked = ++c->asked;
    }
    if (s->mark) { /* in a session that is not sound this may be another stream's */
        uint64_t stream = step_get(s, "stream");
        stream_of(c, stream <= 1 ? GV_LEGACY_STREAM(s->context) : stream)->marked = seq;
        c->marked = seq;
    }
    pthread_mutex_unlock(&c->lock);
    gv_send_flush(c->link);
    if (asked && !s->loose) await_answer(c, asked);
    return true;
}

static void send_payload(struct client *c, const struct step *s) {
    uint32_t room = s->blobs[0].kind == BLOB_IMAGE || s->blobs[0].size < (1u << 16) ? 1u << 17 : s->blobs[0].size + 64;
    uint8_t *data = malloc(room);
    uint32_t size = blob_put(&c->world, &s->blobs[0], data, room);
    if (gv_bulk_open(c->link, step_get(s, "tag"), size + step_get(s, "lie")))
        gv_bulk_part(c->link, data, size, free, data);
    else
        free(data);
}

static void await_all(struct client *c) {
    int64_t until = gv_now_ns() + SOON_NS;
    pthread_mutex_lock(&c->lock);
    for (bool all = false; !all;) {
        all = c->answered == c->asked;
        for (unsigned i = 0; i < c->n_streams; i++) all = all && c->completed[i].upto >= c->completed[i].marked;
        for (unsigned i = 0; c->sound && i < c->n_expected; i++) all = all && (!c->expected[i].due || c->expected[i].at == c->expected[i].size);
        if (!all && !wait_more(c, until)) break;
    }
    pthread_mutex_unlock(&c->lock);
}

/* Nothing is left in a worker that has carried out everything. */
static void await_rest(struct client *c) {
    struct worker *w = c->worker;
    for (int64_t until = gv_now_ns() + 20000000000LL;; usleep(1000)) {
        struct worker_figures figures;
        worker_get_figures(w, &figures);
        pthread_mutex_lock(&w->lock);
        bool rest = figures.commands == c->posted && figures.memory_used == c->used && !atomic_load(&w->pending) &&
                    !atomic_load(&w->staging.in_use) && !atomic_load(&w->early_bytes) && !w->early_first && !w->expected_first && !w->late &&
                    !w->n_outgoing && !w->n_host_calls && !w->n_in_place;
        pthread_mutex_unlock(&w->lock);
        if (rest) return;
        if (gv_now_ns() < until) continue;
        if (figures.memory_used != c->used)
            client_wrong("at rest the worker counts %llu bytes of memory in use, not %llu", (unsigned long long)figures.memory_used,
                         (unsigned long long)c->used);
        client_wrong(
            "at rest the worker has %llu commands under way, %llu bytes of staging, %llu payloads to send, %llu host functions, %llu copies in "
            "place, and has carried out %llu commands of %llu",
            (unsigned long long)w->pending, (unsigned long long)w->staging.in_use, (unsigned long long)w->n_outgoing,
            (unsigned long long)w->n_host_calls, (unsigned long long)w->n_in_place, (unsigned long long)figures.commands,
            (unsigned long long)c->posted);
    }
}

static void carry_out(struct client *c, const struct step *s) {
    uint8_t said[256];
    switch (shape_of(s)->op) {
    case DO_SESSION: break;
    case DO_EXPECT:
        pthread_mutex_lock(&c->lock);
        for (unsigned i = 0; i < c->n_expected; i++)
            if (c->expected[i].tag == step_get(s, "tag")) c->expected[i].due = true;
        pthread_mutex_unlock(&c->lock);
        break;
    case DO_PAYLOAD: send_payload(c, s); break;
    case DO_WAIT:
        await_all(c);
        if (c->sound) await_rest(c);
        break;
    case DO_SLEEP: usleep((useconds_t)(step_get(s, "us") % 20000)); break;
    case DO_CUT: connections_cut(&c->connections); break;
    case DO_RESUME: connections_resume(&c->connections, s); break;
    case DO_CHANNEL:
        connections_channel(&c->connections, (int)step_get(s, "channel"), said, blob_put(&c->world, &s->blobs[0], said, sizeof said));
        break;
    case DO_END: atomic_store(&c->over, true); break;
    default: post(c, s);
    }
}

/* ---- its life ----------------------------------------------------------------------------------------------------------------- */

static void *run_worker(void *arg) {
    struct client *c = arg;
    c->outcome = worker_run(c->worker, c->reason);
    atomic_store(&c->ended, true);
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void expect(struct client *c, const struct step *s) {
    if (c->n_expected == EXPECTED) return;
    struct expected *e = &c->expected[c->n_expected++];
    uint32_t room = s->blobs[0].size + 64;
    e->tag = step_get(s, "tag");
    e->data = malloc(room);
    e->size = blob_put(&c->world, &s->blobs[0], e->data, room);
}

static void end_session(struct client *c) {
    c->doing = "at its end";
    gv_link_kill(c->link, "the client is done");
    connections_cut(&c->connections);
    connections_leave(&c->connections);
    worker_client_gone(c->worker);
    pthread_join(c->runs, NULL);
    pthread_join(c->reads, NULL);
    pthread_join(c->receives, NULL);
    struct worker_figures figures;
    worker_get_figures(c->worker, &figures);
    if (figures.memory_used >> 50) client_wrong("the worker counts %llu bytes of memory in use", (unsigned long long)figures.memory_used);
    if (c->sound && c->outcome) client_wrong("a sound session has ended with %d: %s", c->outcome, c->reason);
    if (atomic_load(&c->worker->staging.in_use) >> 50 || atomic_load(&c->worker->pending) >> 50 || atomic_load(&c->worker->early_bytes) >> 50 ||
        c->worker->n_host_calls >> 50 || c->worker->n_in_place >> 50)
        client_wrong("the worker counts %lld bytes of staging, %lld commands, %lld early bytes, %lld host functions, %lld copies in place",
                     (long long)c->worker->staging.in_use, (long long)c->worker->pending, (long long)c->worker->early_bytes,
                     (long long)c->worker->n_host_calls, (long long)c->worker->n_in_place);
    c->doing = "closing";
    worker_close(c->worker);
    c->worker = NULL;
    connections_close(&c->connections);
    for (unsigned i = 0; i < c->n_expected; i++) free(c->expected[i].data);
}

static struct client all;

static void run(const struct sequence *q, const struct surroundings *where, struct module_cache *cache) {
    struct client *c = &all;
    memset(c, 0, sizeof *c);
    c->q = q;
    const struct step *s = &q->steps[0];
    c->sound = step_get(s, "sound");
    c->answers = step_get(s, "answers");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    for (uint32_t i = 0; i < q->n; i++)
        if (shape_of(&q->steps[i])->op == DO_EXPECT) expect(c, &q->steps[i]);
    world_number(&c->world, q);
    connections_open(&c->connections, s, where);
    c->link = c->connections.link;
    c->worker = c->connections.worker;
    worker_use_cache(c->worker, cache, "fuzz");
    CHECK(pthread_create(&c->runs, NULL, run_worker, c) == 0);
    CHECK(pthread_create(&c->reads, NULL, read_records, c) == 0);
    CHECK(pthread_create(&c->receives, NULL, receive_payloads, c) == 0);
    for (uint32_t i = 0; i < q->n && !atomic_load(&c->over) && !atomic_load(&c->ended) && !gv_link_dead(c->link); i++) {
        atomic_store(&c->sending_since, gv_now_ns());
        c->doing = shape_of(&q->steps[i])->name;
        carry_out(c, &q->steps[i]);
        atomic_store(&c->sending_since, 0);
    }
    if (c->sound && gv_link_dead(c->link)) client_wrong("the link of a sound session has died: %s", gv_link_death(c->link));
    if (c->sound && where->at_end) return where->at_end(c->worker);
    end_session(c);
}

/* Says what the session waits for. */
static void hangs(int signal) {
    const struct client *c = &all;
    const struct worker *w = c->worker;
    char text[900];
    int n = snprintf(text, sizeof text, "wrong: the session does not end, %s; ", c->doing);
    n += snprintf(text + n, sizeof text - (size_t)n, "answers %llu of %llu", (unsigned long long)c->answered, (unsigned long long)c->asked);
    for (unsigned i = 0; i < c->n_streams && n < 700; i++)
        if (c->completed[i].upto < c->completed[i].marked)
            n += snprintf(text + n, sizeof text - (size_t)n, ", stream %llx at %llu of %llu", (unsigned long long)c->completed[i].stream,
                          (unsigned long long)c->completed[i].upto, (unsigned long long)c->completed[i].marked);
    for (unsigned i = 0; i < c->n_expected && n < 700; i++)
        if (c->expected[i].due && c->expected[i].at < c->expected[i].size)
            n += snprintf(text + n, sizeof text - (size_t)n, ", copy %llu at %llu of %llu", (unsigned long long)c->expected[i].tag,
                          (unsigned long long)c->expected[i].at, (unsigned long long)c->expected[i].size);
    n += snprintf(text + n, sizeof text - (size_t)n, "; the worker: %llu commands, %llu under way, %llu host functions (signal %d)\n",
                  w ? (unsigned long long)w->commands : 0, w ? (unsigned long long)w->pending : 0, w ? (unsigned long long)w->n_host_calls : 0,
                  signal);
    (void)!write(2, text, (size_t)n);
    _exit(3);
}

/* A session before this one has left two images on disk. */
static const char before[] =
    "session backend=%u answers=1\nattach windows=windows:0:1:0\ncontext_create @1\n"
    "module_load @1 module=1 hash=hash:32:0:0 image=image:0:0:0\nmodule_load @1 module=2 hash=hash:32:1:0 image=image:0:1:0\nbye\n";

void client_run(const struct sequence *q, const struct surroundings *where) {
    char folder[300], text[sizeof before + 32];
    uint64_t kept = step_get(&q->steps[0], "cache");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, hangs);
    alarm(where->patience);
    snprintf(folder, sizeof folder, "%s/cache-%d", where->folder, (int)getpid());
    if (kept > 1) {
        static struct sequence first;
        snprintf(text, sizeof text, before, (unsigned)step_get(&q->steps[0], "backend"));
        CHECK(sequence_read(&first, text));
        run(&first, where, worker_open_cache(folder));
    }
    run(q, where, kept ? worker_open_cache(folder) : NULL);
}
