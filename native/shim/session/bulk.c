/* Payloads: out from the program's buffers, in to where the program wants them; and completions that hold until their data is there. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "session/session_state.h"

#define BOUNCE_SIZE (256u * 1024u) /* short rows are received together and spread from here */
#define PARCEL_MAX (1ull << 30)
#define PARCELS_MAX 64
#define DEFERRED_MAX (1u << 20)
/* What may be lent to the link at a time; what is more is sent as pageable memory is. */
#define LOANS_MAX 4096u
#define LENT_MAX (1ull << 30)

/* Memory of the program's, [low, high), that a payload is sent from; position: the payloads' stream behind it. */
struct loan {
    uint64_t low, high, position;
};

/* ---- writing into the program's memory ----------------------------------------------------------------------------- */

/* Threads of ours that are at it now. Once the session is over, a waiter returns and the program may free its buffer: bulk_quiesce waits for
 * the last writer, and nobody starts after `over`. */
static _Atomic int landing;

static bool landing_begin(void) {
    atomic_fetch_add(&landing, 1);
    if (!atomic_load(&session.over)) return true;
    atomic_fetch_sub(&landing, 1);
    return false;
}

static void landing_end(void) { atomic_fetch_sub(&landing, 1); }

void bulk_quiesce(void) {
    int64_t deadline = session_now() + SESSION_GOODBYE_NS;
    while (atomic_load(&landing) && session_now() < deadline) {
        struct timespec t = {0, 50000};
        nanosleep(&t, NULL);
    }
}

/* ---- completions that wait for a payload --------------------------------------------------------------------------- */

struct deferred {
    uint64_t stream, upto, bulk;
    int status;
};
static pthread_mutex_t landing_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t landed; /* payloads 1..landed are in place */
static struct deferred *deferred;
static size_t deferred_room;
static _Atomic size_t n_deferred;

int bulk_inline(uint64_t tag, int status, const void *data, uint32_t size) {
    if (!landing_begin()) return 0;
    pthread_mutex_lock(&landing_lock); /* the other thread that publishes completions must find the copy whole or open */
    int bad = expect_inline(tag, status, data, size);
    pthread_mutex_unlock(&landing_lock);
    landing_end();
    return bad;
}

uint64_t bulk_landed(void) { return atomic_load(&landed); }

int bulk_wait_landed(uint64_t number) { return progress_wait(&landed, number, 0, "a host function"); }

static bool defer(const struct deferred *d) {
    size_t n = atomic_load(&n_deferred);
    /* Successive completions of one stream behind one payload are one. */
    if (n && deferred[n - 1].stream == d->stream && deferred[n - 1].bulk == d->bulk) {
        if (d->upto > deferred[n - 1].upto) deferred[n - 1].upto = d->upto;
        if (d->status) deferred[n - 1].status = d->status;
        return true;
    }
    if (n == deferred_room) {
        size_t room = deferred_room ? deferred_room * 2 : 64;
        struct deferred *more = room <= DEFERRED_MAX ? realloc(deferred, room * sizeof *more) : NULL;
        if (!more) return false;
        deferred = more;
        deferred_room = room;
    }
    deferred[n] = *d;
    atomic_store(&n_deferred, n + 1);
    return true;
}

void bulk_publish(uint64_t stream, uint64_t upto, uint64_t bulk, int status) {
    enum expect_outcome outcome = EXPECT_RECEIVING;
    uint64_t receiving = 0;
    if (bulk <= atomic_load(&landed) && !atomic_load(&n_deferred)) outcome = progress_publish(stream, upto, status, &receiving);
    if (outcome == EXPECT_MISSING) expect_missing();
    if (outcome != EXPECT_RECEIVING) return;
    pthread_mutex_lock(&landing_lock);
    /* A stream's completions keep their order, also when a later one names no payload. */
    for (size_t i = 0; i < atomic_load(&n_deferred); i++)
        if (deferred[i].stream == stream && deferred[i].bulk > bulk) bulk = deferred[i].bulk;
    if (bulk <= atomic_load(&landed)) {
        outcome = progress_publish(stream, upto, status, &receiving);
        if (outcome == EXPECT_RECEIVING) bulk = receiving; /* has not landed: its number is counted with this lock held */
    }
    bool kept = outcome != EXPECT_RECEIVING || defer(&(struct deferred){stream, upto, bulk, status});
    pthread_mutex_unlock(&landing_lock);
    if (outcome == EXPECT_MISSING) expect_missing();
    if (!kept) session_lost("too many completions wait for data that does not come", NULL);
}

static void publish_landed(uint64_t number) {
    bool missing = false;
    pthread_mutex_lock(&landing_lock);
    atomic_store(&landed, number);
    size_t kept = 0;
    for (size_t i = 0; i < atomic_load(&n_deferred); i++) {
        uint64_t receiving; /* nothing: this is the thread that receives */
        if (deferred[i].bulk > number)
            deferred[kept++] = deferred[i];
        else if (progress_publish(deferred[i].stream, deferred[i].upto, deferred[i].status, &receiving) == EXPECT_MISSING)
            missing = true;
    }
    atomic_store(&n_deferred, kept);
    pthread_mutex_unlock(&landing_lock);
    if (missing) expect_missing();
    progress_changed();
}

/* ---- payloads whose tag the worker chose --------------------------------------------------------------------------- */

struct parcel {
    uint64_t tag, size;
    void *data;
    _Atomic uint64_t ready; /* 0: somebody waits for it, 1: it is here */
    struct parcel *next;
};
static pthread_mutex_t parcels_lock = PTHREAD_MUTEX_INITIALIZER;
static struct parcel *parcels;
static int n_parcels;

static struct parcel **parcel_find(uint64_t tag) {
    struct parcel **at = &parcels;
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    return at;
}

/* NULL when there are too many, or no memory. */
static struct parcel *parcel_new(uint64_t tag) {
    struct parcel *p = n_parcels < PARCELS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->tag = tag;
    p->next = parcels;
    parcels = p;
    n_parcels++;
    return p;
}

static const char *receive_parcel(const struct gv_bulk_header *header) {
    void *data = header->size <= PARCEL_MAX ? malloc(header->size ? header->size : 1) : NULL;
    if (!data) return "a payload too large to keep";
    if (gv_bulk_recv(session.link, data, header->size)) {
        free(data);
        return "";
    }
    const char *why = NULL;
    pthread_mutex_lock(&parcels_lock);
    struct parcel *p = *parcel_find(header->tag);
    if (!p) p = parcel_new(header->tag);
    if (!p || p->data) {
        free(data);
        why = p ? "a payload's tag came twice" : "too many payloads that nobody takes";
    } else {
        p->data = data;
        p->size = header->size;
        atomic_store(&p->ready, 1);
    }
    pthread_mutex_unlock(&parcels_lock);
    return why;
}

int session_take_payload(uint64_t tag, void *dst, uint64_t size) {
    pthread_mutex_lock(&parcels_lock);
    struct parcel *p = *parcel_find(tag);
    if (!p) p = parcel_new(tag);
    pthread_mutex_unlock(&parcels_lock);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    int outcome = progress_wait(&p->ready, 1, 0, "the load of a module");
    if (outcome) return outcome;
    pthread_mutex_lock(&parcels_lock);
    *parcel_find(tag) = p->next;
    n_parcels--;
    pthread_mutex_unlock(&parcels_lock);
    bool right = p->data && p->size == size;
    if (right) memcpy(dst, p->data, size);
    free(p->data);
    free(p);
    if (right) return 0;
    session_lost("a payload has not the size its reply named", "the load of a module");
    return session_broken();
}

/* ---- the reader ---------------------------------------------------------------------------------------------------- */

static char *bounce; /* BOUNCE_SIZE bytes of the reader's */

/* Receives the area's next `size` bytes, which begin at its byte `at`. Whole short rows come together, by way of the bounce buffer. False: the link is
 * dead. */
static bool receive_rows(const struct host_area *a, uint64_t at, uint64_t size) {
    while (size) {
        uint64_t row = at / a->width, x = at % a->width, n = a->width - x < size ? a->width - x : size;
        char *dst = a->dst + row / a->height * a->slice + row % a->height * a->pitch + x;
        if (x || n < a->width || a->width >= BOUNCE_SIZE / 4) {
            if (gv_bulk_recv(session.link, dst, n)) return false;
        } else {
            uint64_t rows = (size < BOUNCE_SIZE ? size : BOUNCE_SIZE) / a->width;
            n = rows * a->width;
            if (gv_bulk_recv(session.link, bounce, n)) return false;
            for (uint64_t i = 0; i < rows; i++, row++)
                memcpy(a->dst + row / a->height * a->slice + row % a->height * a->pitch, bounce + i * a->width, a->width);
        }
        at += n;
        size -= n;
    }
    return true;
}

/* A payload brings what was asked for, or the next part of it. NULL: done. "": the link is dead. Else what is wrong. */
static const char *receive(const struct gv_bulk_header *header) {
    struct host_area area;
    uint64_t at;
    if (header->number != bulk_landed() + 1) return "a payload is out of order";
    if (header->tag & GV_BULK_WORKER_TAG) return receive_parcel(header);
    if (!landing_begin()) return "";
    const char *why = expect_receive(header->tag, header->number, header->size, &area, &at);
    bool good = why || !header->size || (area.dst ? receive_rows(&area, at, header->size) : !gv_bulk_recv(session.link, NULL, header->size));
    if (good && !why) expect_received(header->tag, header->size);
    landing_end();
    return why ? why : good ? NULL : "";
}

static void *reader(void *arg) {
    (void)arg;
    struct gv_bulk_header header;
    while (!atomic_load(&session.over)) {
        const char *why = gv_bulk_recv_header(session.link, &header) ? "" : receive(&header);
        if (why) {
            session_lost(*why ? why : NULL, NULL);
            break;
        }
        publish_landed(header.number);
    }
    return NULL;
}

int bulk_start(void) {
    bounce = malloc(BOUNCE_SIZE);
    return bounce ? session_thread("gpuvirt-data", reader, NULL, 256 * 1024) : -1;
}

/* ---- out ----------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sent;

static bool may_lend(void);
static uint64_t send_lent(const struct session_bulk *b);

bool session_bulk_reserve(struct session_bulk *b, const void *data, uint64_t size, bool lend) {
    for (;;) {
        if (session_broken()) return false;
        host_func_throttle();
        host_func_await_late(size);
        pthread_mutex_lock(&out_lock);
        if (!host_func_late_crowded(size)) break;
        pthread_mutex_unlock(&out_lock); /* another thread was faster */
    }
    *b = (struct session_bulk){.number = sent + 1, .data = data, .size = size, .lend = lend && may_lend()};
    host_func_hold();
    return true;
}

uint64_t session_bulk_commit(const struct session_bulk *b, uint64_t seq) {
    host_func_let_go();
    if (seq) {
        atomic_fetch_add(&session.sent, b->size);
        gv_send_flush(session.link); /* the worker should know what the payload is for before it is all there */
        uint64_t number = b->lend ? send_lent(b) : gv_bulk_send(session.link, 0, b->data, b->size);
        if (number == b->number) {
            sent = number;
        } else {
            session_lost(number ? "payload numbers do not agree" : NULL, "a copy to the device");
            seq = 0;
        }
    }
    pthread_mutex_unlock(&out_lock);
    return seq;
}

bool session_late_crowded(uint64_t size) { return host_func_late_crowded(size); }

uint64_t session_late_tags(uint64_t n) {
    static _Atomic uint64_t given;
    return GV_BULK_LATE | (atomic_fetch_add(&given, n) + 1);
}

int session_bulk_late(uint64_t tag, const void *data, uint64_t size) {
    if (session_broken()) return -1;
    pthread_mutex_lock(&out_lock);
    uint64_t number = gv_bulk_send(session.link, tag, data, size);
    if (number) sent = number;
    pthread_mutex_unlock(&out_lock);
    if (!number) session_lost(NULL, "a copy to the device");
    return number ? 0 : -1;
}

int bulk_acked(void *arg, uint64_t position) {
    (void)arg;
    int64_t start = session_now();
    int outcome = progress_wait(&session.bulk_acked, position, 0, "a copy to the device");
    session_waited(start);
    return outcome ? -1 : 0;
}

/* ---- lent: memory that is sent from where it lies -------------------------------------------------------------------- */

static pthread_mutex_t loans_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loan loans[LOANS_MAX]; /* a queue, in the order of the payloads */
static size_t first_loan, n_loans;
static uint64_t lent;        /* bytes */
static _Atomic size_t parts; /* that the link has not let go of */

/* Forgets what has come; loans_lock held. */
static void settle(void) {
    uint64_t acked = gv_bulk_acked(session.link);
    while (n_loans && loans[first_loan].position <= acked) {
        lent -= loans[first_loan].high - loans[first_loan].low;
        first_loan = (first_loan + 1) % LOANS_MAX;
        n_loans--;
    }
}

static void part_done(void *arg) {
    (void)arg;
    atomic_fetch_sub(&parts, 1);
}

static uint64_t send_lent(const struct session_bulk *b) {
    uint64_t number = gv_bulk_open(session.link, 0, b->size), low = (uint64_t)(uintptr_t)b->data;
    if (!number) return 0;
    atomic_fetch_add(&parts, 1);
    if (gv_bulk_part(session.link, b->data, b->size, part_done, NULL)) return 0;
    pthread_mutex_lock(&loans_lock);
    loans[(first_loan + n_loans++) % LOANS_MAX] = (struct loan){low, low + b->size, gv_bulk_position(session.link)};
    lent += b->size;
    pthread_mutex_unlock(&loans_lock);
    return number;
}

/* out_lock held: one loan at a time. */
static bool may_lend(void) {
    pthread_mutex_lock(&loans_lock);
    settle();
    bool room = n_loans < LOANS_MAX && lent < LENT_MAX;
    pthread_mutex_unlock(&loans_lock);
    return room;
}

void session_loans_wait(uint64_t low, uint64_t high) {
    while (!session_broken()) {
        uint64_t position = 0;
        pthread_mutex_lock(&loans_lock);
        settle();
        for (size_t i = 0; i < n_loans; i++) {
            const struct loan *l = &loans[(first_loan + i) % LOANS_MAX];
            if (l->low < high && low < l->high) position = l->position; /* the last one comes last */
        }
        pthread_mutex_unlock(&loans_lock);
        if (!position) return;
        bulk_acked(NULL, position);
    }
    if (session_in_forked_child()) return; /* it has memory of its own */
    int64_t deadline = session_now() + SESSION_GOODBYE_NS;
    while (atomic_load(&parts) && session_now() < deadline) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}
