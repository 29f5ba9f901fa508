/* Payloads to the server, from the program's buffers: copied while the caller waits, or lent to the link and sent from where they lie. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "session/session_state.h"

/* What may be lent to the link at a time; what is more is sent as pageable memory is. */
#define LOANS_MAX 4096u
#define LENT_MAX (1ull << 30)

/* Memory of the program's, [low, high), that a payload is sent from; position: the payloads' stream behind it. */
struct loan {
    uint64_t low, high, position;
};

static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t sent;

/* ---- loans ---------------------------------------------------------------------------------------------------------- */

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

/* On a thread of the link. Over shm the position that session_loans_wait waits for is reached without a record that would wake it. */
static void part_done(void *arg) {
    (void)arg;
    atomic_fetch_sub(&parts, 1);
    progress_changed();
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

void session_memory_offer(const void *at, uint64_t size) {
    if (session.link && !session_broken()) gv_link_offer_memory(session.link, at, size);
}

void session_memory_take_back(const void *at) {
    if (session.link && !session_in_forked_child()) gv_link_take_back_memory(session.link, at);
}

/* ---- payloads -------------------------------------------------------------------------------------------------------- */

bool session_bulk_reserve(struct session_bulk *b, const void *data, uint64_t size, bool lend) {
    for (;;) {
        if (session_broken()) return false;
        throttle_commands();
        throttle_payload(size);
        pthread_mutex_lock(&out_lock);
        if (!throttle_payload_would_wait(size)) break;
        pthread_mutex_unlock(&out_lock); /* another thread was faster */
    }
    *b = (struct session_bulk){.number = sent + 1, .data = data, .size = size, .lend = lend && may_lend()};
    throttle_exempt_begin();
    return true;
}

uint64_t session_bulk_commit(const struct session_bulk *b, uint64_t seq) {
    throttle_exempt_end();
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

bool session_late_crowded(uint64_t size) { return throttle_payload_would_wait(size); }

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
