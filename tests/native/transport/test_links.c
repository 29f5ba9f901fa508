/* Every transport of the table, tcp plain and sealed, both ends in this process: what arrives, in what order, and what waiting does. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "../check.h"
#include "pair.h"

#define EACH(transport) \
    for (size_t each_ = 0; pair_transport(each_); each_++) EACH_ONCE_(transport, pair_transport(each_))
#define EACH_ONCE_(transport, name) for (const char *transport = (name), *once_ = transport; once_; once_ = NULL)

/* ---- records */

static void ping_pong(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        for (uint64_t i = 1; i <= 500; i++) {
            CHECK(send_numbered(p.client, 40, i));
            gv_send_flush(p.client);
            CHECK(receive_numbered(p.worker, i) == 40);
            CHECK(send_numbered(p.worker, 16, i));
            gv_send_flush(p.worker);
            CHECK(receive_numbered(p.client, i) == 16);
        }
        CHECK(gv_link_bytes_out(p.client) == 500 * 64 && gv_link_bytes_in(p.worker) == 500 * 64 && gv_link_bytes_in(p.client) == 500 * 40);
        CHECK(!gv_link_dead(p.client) && gv_link_death(p.client)[0] == 0);
        close_pair(&p);
    }
}

struct stream {
    struct gv_link *link;
    uint64_t count;
};

/* Sizes from nothing to the largest, so that records end at every place of the ring. */
static uint32_t body_of(uint64_t n) {
    uint64_t x = n * 0x2545f4914f6cdd1du;
    if (n % 97 == 0) return GV_RECORD_MAX - (uint32_t)sizeof(struct gv_record);
    return (uint32_t)(x >> 40) % (n % 11 == 0 ? 60000 : 400) / 8 * 8;
}

static void *send_stream(void *arg) {
    struct stream *s = arg;
    for (uint64_t i = 1; i <= s->count; i++) CHECK(send_numbered(s->link, body_of(i), i));
    return NULL; /* no flush: it must go out by itself */
}

static void stream_without_flush(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        struct stream s = {p.client, 2000};
        pthread_t sender;
        CHECK(pthread_create(&sender, NULL, send_stream, &s) == 0);
        for (uint64_t i = 1; i <= s.count; i++) CHECK(receive_numbered(p.worker, i) == body_of(i));
        pthread_join(sender, NULL);
        close_pair(&p);
    }
}

#define SENDERS 4
#ifdef __SANITIZE_THREAD__ /* ten times slower: races show in fewer, too */
#define EACH_SENDS 600
#else
#define EACH_SENDS 3000
#endif

struct many {
    struct gv_link *link;
    uint32_t number;
    uint64_t blocked;
};

static void *send_many(void *arg) {
    struct many *m = arg;
    for (uint32_t i = 0; i < EACH_SENDS; i++) {
        uint64_t blocked;
        struct gv_record *r = gv_send_begin(m->link, 32 + 8 * (i % 30), &blocked);
        CHECK(r);
        r->op = (uint16_t)m->number;
        r->flags = 0;
        r->ctx = i;
        memset(r + 1, (int)m->number, 8 + 8 * (i % 30));
        m->blocked += blocked;
        CHECK(gv_send_commit(m->link) > 0);
        if (i % 100 == 0) gv_send_flush(m->link);
    }
    return NULL;
}

static void many_senders(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        struct many senders[SENDERS];
        pthread_t threads[SENDERS];
        uint32_t next[SENDERS] = {0};
        for (uint32_t i = 0; i < SENDERS; i++) {
            senders[i] = (struct many){p.client, i, 0};
            CHECK(pthread_create(&threads[i], NULL, send_many, &senders[i]) == 0);
        }
        for (int left = SENDERS * EACH_SENDS; left > 0;) {
            const struct gv_record *r = gv_recv_peek(p.worker);
            if (!r) {
                CHECK(!gv_link_dead(p.worker));
                gv_recv_wait(p.worker, 1000000000, 0);
                continue;
            }
            CHECK(r->op < SENDERS && r->ctx == next[r->op]++); /* each sender's records in its order */
            const uint8_t *body = (const uint8_t *)(r + 1);
            for (uint32_t i = 0; i < r->size - sizeof *r; i++) CHECK(body[i] == r->op);
            gv_recv_consume(p.worker);
            left--;
        }
        for (int i = 0; i < SENDERS; i++) pthread_join(threads[i], NULL);
        close_pair(&p);
    }
}

static _Atomic uint64_t sent;

/* Begins when nothing more has been sent for a while: the sender is blocked then. */
static void *receive_late(void *arg) {
    struct stream *s = arg;
    uint64_t before;
    do {
        before = atomic_load(&sent);
        usleep(50000);
    } while (!before || atomic_load(&sent) != before);
    for (uint64_t i = 1; i <= s->count; i++) CHECK(receive_numbered(s->link, i) == 60000);
    return NULL;
}

/* Sends 400 large records to somebody who begins late; how long the sender says that it was blocked. */
static uint64_t send_into_a_full_ring(const char *transport) {
    struct pair p = make_pair(transport);
    struct stream s = {p.worker, 400};
    pthread_t receiver;
    uint64_t blocked_total = 0;
    CHECK(pthread_create(&receiver, NULL, receive_late, &s) == 0);
    for (uint64_t i = 1; i <= s.count; i++) {
        uint64_t blocked;
        struct gv_record *r = gv_send_begin(p.client, sizeof *r + 60000, &blocked);
        CHECK(r);
        blocked_total += blocked;
        r->op = (uint16_t)(i % 1000);
        r->flags = 0;
        r->ctx = (uint32_t)i;
        uint64_t *words = (uint64_t *)(void *)(r + 1);
        for (uint32_t k = 0; k < 60000 / 8; k++) words[k] = i * 0x9e3779b97f4a7c15u + k;
        gv_send_commit(p.client);
        atomic_store(&sent, i);
    }
    gv_send_flush(p.client);
    pthread_join(receiver, NULL);
    atomic_store(&sent, 0);
    close_pair(&p);
    return blocked_total;
}

/* A full ring blocks the sender, says for how long, and loses nothing. A sender that was merely kept from its core looks blocked to the receiver, and is not:
 * then once more. */
static void full_ring(void) {
    EACH(transport) {
        int tries = 0;
        while (send_into_a_full_ring(transport) <= 20000000) CHECK(++tries < 10);
    }
}

/* A record that is not consumed stays the same one. */
static void peek_twice(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        CHECK(gv_recv_peek(p.worker) == NULL);
        gv_recv_consume(p.worker); /* of nothing: harmless */
        CHECK(send_numbered(p.client, 8, 1) && send_numbered(p.client, 8, 2));
        gv_send_flush(p.client);
        CHECK(receive_numbered(p.worker, 1) == 8);
        const struct gv_record *first;
        while (!(first = gv_recv_peek(p.worker))) gv_recv_wait(p.worker, 1000000, 0);
        gv_recv_wait(p.worker, 10000000000, 0); /* returns at once */
        CHECK(gv_recv_peek(p.worker) == first && first->seq == 2);
        gv_recv_consume(p.worker);
        CHECK(gv_recv_peek(p.worker) == NULL);
        close_pair(&p);
    }
}

static void *wake_later(void *arg) {
    usleep(50000);
    gv_recv_wake(arg);
    return NULL;
}

static void waiting(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        int64_t start = gv_now_ns();
        gv_recv_wait(p.worker, 30000000, 1000000);
        int64_t took = gv_now_ns() - start;
        CHECK(took >= 30000000);

        gv_recv_wake(p.worker); /* before the wait: it returns at once */
        start = gv_now_ns();
        gv_recv_wait(p.worker, 2 * TEST_PATIENCE_NS, 0);
        CHECK(gv_now_ns() - start < TEST_PATIENCE_NS);

        pthread_t waker;
        start = gv_now_ns(); /* before the waker: this thread may be kept from its core behind it */
        CHECK(pthread_create(&waker, NULL, wake_later, p.worker) == 0);
        gv_recv_wait(p.worker, 2 * TEST_PATIENCE_NS, 0);
        took = gv_now_ns() - start;
        CHECK(took > 30000000 && took < TEST_PATIENCE_NS);
        pthread_join(waker, NULL);

        gv_recv_wait(p.worker, 20000000, 0); /* a wake does not last for two waits */
        CHECK(gv_recv_peek(p.worker) == NULL && !gv_link_dead(p.worker));
        close_pair(&p);
    }
}

/* ---- bulk */

#define PAYLOADS 5
static const uint64_t payload_sizes[PAYLOADS] = {0, 1, 65537, 7u << 20, 4096};

static uint8_t payload_byte(uint64_t payload, uint64_t at) { return (uint8_t)((at * 31 + payload * 7) >> 2); }

static void *send_payloads(void *arg) {
    for (uint64_t i = 0; i < PAYLOADS; i++) {
        uint8_t *data = malloc(payload_sizes[i] + 1);
        for (uint64_t k = 0; k < payload_sizes[i]; k++) data[k] = payload_byte(i, k);
        CHECK(gv_bulk_send(arg, 100 + i, data, payload_sizes[i]) == i + 1);
        free(data);
    }
    return NULL;
}

static void receive_payloads(struct gv_link *link) {
    for (uint64_t i = 0; i < PAYLOADS; i++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_recv_header(link, &h) == 0);
        CHECK(h.number == i + 1 && h.tag == 100 + i && h.size == payload_sizes[i]);
        uint8_t *data = malloc(h.size + 1);
        uint64_t half = h.size / 2;
        bool skip = i == 2;
        CHECK(gv_bulk_recv(link, skip ? NULL : data, half) == 0);
        CHECK(gv_bulk_recv(link, data + half, h.size - half) == 0);
        for (uint64_t k = skip ? half : 0; k < h.size; k++) CHECK(data[k] == payload_byte(i, k));
        free(data);
    }
}

static void bulk_both_ways(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        struct listening listening[2];
        pthread_t out, in;
        listen_start(&listening[0], p.client);
        listen_start(&listening[1], p.worker);
        CHECK(pthread_create(&out, NULL, send_payloads, p.client) == 0 && pthread_create(&in, NULL, send_payloads, p.worker) == 0);
        receive_payloads(p.worker);
        receive_payloads(p.client);
        pthread_join(out, NULL);
        pthread_join(in, NULL);
        listen_stop(&listening[0]);
        listen_stop(&listening[1]);
        close_pair(&p);
    }
}

/* ---- without a flush, and without anything */

#define LATE_COUNT 60

/* Waits as the worker does and notes when each record came. */
static void *note_arrivals(void *arg) {
    struct stream *s = arg;
    for (uint64_t i = 0; i < LATE_COUNT; i++) {
        int64_t sent;
        const struct gv_record *r;
        while (!(r = gv_recv_peek(s->link))) gv_recv_wait(s->link, TEST_PATIENCE_NS, 20000);
        memcpy(&sent, r + 1, sizeof sent);
        sent = gv_now_ns() - sent;
        gv_recv_consume(s->link);
        s->count += sent > TEST_PATIENCE_NS / 10;
    }
    return NULL;
}

/* A record that nobody flushes reaches a receiver that spins, naps or sleeps. Were a sleeper not woken, it would be late by what SHM_SLICE_NS and TCP_SLEEP_NS are
 * in this test. */
static void arrives_soon(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        struct stream s = {p.worker, 0};
        pthread_t receiver;
        CHECK(pthread_create(&receiver, NULL, note_arrivals, &s) == 0);
        for (unsigned i = 0; i < LATE_COUNT; i++) {
            usleep(i % 4 == 3 ? 8000 : i % 4 * 400 + i * 5);
            struct gv_record *r = gv_send_begin(p.client, sizeof *r + 8, NULL);
            CHECK(r);
            r->op = 1;
            r->flags = 0;
            r->ctx = 0;
            int64_t now = gv_now_ns();
            memcpy(r + 1, &now, sizeof now);
            gv_send_commit(p.client);
        }
        pthread_join(receiver, NULL);
        CHECK(s.count == 0);
        close_pair(&p);
    }
}

struct idle_cost {
    struct gv_link *link;
    int64_t cpu_ns, passed_ns;
    long waits;
};

static void *wait_idly(void *arg) {
    struct idle_cost *cost = arg;
    struct rusage before, after;
    struct timespec cpu_before, cpu_after;
    CHECK(receive_numbered(cost->link, 1) >= 0);
    CHECK(getrusage(RUSAGE_SELF, &before) == 0 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before) == 0);
    int64_t begin = gv_now_ns();
    gv_recv_wait(cost->link, 1000000000, 20000);
    cost->passed_ns = gv_now_ns() - begin; /* on a busy machine more than was asked for */
    CHECK(getrusage(RUSAGE_SELF, &after) == 0 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_after) == 0);
    cost->cpu_ns = (int64_t)(cpu_after.tv_sec - cpu_before.tv_sec) * 1000000000 + cpu_after.tv_nsec - cpu_before.tv_nsec;
    cost->waits = after.ru_nvcsw - before.ru_nvcsw;
    return NULL;
}

/* In a second of silence both ends together wake at most 400 times (250 of them the pretended RDMA devices), and none spins: a spinning end takes the second whole.
 * What a wake-up costs is the sanitizer's and the machine's, so time has ten times the room that it needs. */
static void idle_is_cheap(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        struct idle_cost cost = {.link = p.worker};
        pthread_t receiver;
        CHECK(send_numbered(p.client, 8, 1));
        CHECK(pthread_create(&receiver, NULL, wait_idly, &cost) == 0);
        pthread_join(receiver, NULL);
        CHECK(cost.waits < 400 * cost.passed_ns / 1000000000);
        CHECK(cost.cpu_ns < 150000000);
        close_pair(&p);
    }
}

/* How often the links' own threads of this process have gone to sleep. */
static long links_slept(void) {
    DIR *tasks = opendir("/proc/self/task");
    long sum = 0;
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[100];
        long slept = 0;
        bool ours = false;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            ours = ours || strcmp(line, "Name:\tgpuvirt-link\n") == 0;
            sscanf(line, "voluntary_ctxt_switches: %ld", &slept);
        }
        if (status) fclose(status);
        if (ours) sum += slept;
    }
    closedir(tasks);
    return sum;
}

/* Senders that flush leave a link's thread nothing to do. Its longest nap makes 3,100 looks a second; it naps shorter after a look between a record and its flush, for
 * which there is room up to 10,000. */
static void senders_do_the_work(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        long before = links_slept();
        int64_t begin = gv_now_ns(), now = begin;
        for (uint64_t i = 1; (now = gv_now_ns()) - begin < 300000000; i++) {
            CHECK(send_numbered(p.client, 40, i));
            gv_send_flush(p.client);
            CHECK(receive_numbered(p.worker, i) == 40);
        }
        CHECK(links_slept() - before < 2 * ((now - begin) / 100000) + 200); /* two ends */
        close_pair(&p);
    }
}

/* The worker may ask for a payload before the channel was handed to it. */
static void late_channel(void) {
    int fds[2], bulk[2];
    tcp_sockets(fds);
    tcp_sockets(bulk);
    struct gv_link *client = tcp_client(fds[0]), *worker = adopt_tcp(fds[1]);
    CHECK(client && worker);
    struct pair p = {client, worker};
    struct listening listening;
    pthread_t out;
    listen_start(&listening, client);
    CHECK(pthread_create(&out, NULL, send_payloads, client) == 0);
    usleep(20000);
    add_channels(&p, 0, bulk);
    CHECK(gv_link_add_channel(client, 0, bulk[0]) == -1 && gv_link_add_channel(client, 1, bulk[0]) == -1);
    receive_payloads(worker);
    pthread_join(out, NULL);
    listen_stop(&listening);
    close_pair(&p);
    p = make_pair("shm");
    CHECK(gv_link_add_channel(p.client, 0, 0) == -1); /* payloads have rings there */
    close_pair(&p);
}

/* ---- ends */

/* What was sent before the end arrives, then the end. */
static void close_delivers(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        CHECK(send_numbered(p.worker, 64, 1)); /* never read: must not cost the other direction its last records */
        gv_send_flush(p.worker);
        usleep(20000);
        for (uint64_t i = 1; i <= 20; i++) CHECK(send_numbered(p.client, 1000, i));
        gv_link_close(p.client);
        for (uint64_t i = 1; i <= 20; i++) CHECK(receive_numbered(p.worker, i) == 1000);
        CHECK(receive_numbered(p.worker, 21) == -1);
        CHECK_TEXT(gv_link_death(p.worker), "the peer closed the connection");
        CHECK(!gv_send_begin(p.worker, 24, NULL));
        CHECK(gv_bulk_send(p.worker, 0, "x", 1) == 0);
        gv_link_close(p.worker);
    }
}

static void *kill_later(void *arg) {
    usleep(50000);
    gv_link_kill(arg, "the test says so");
    return NULL;
}

static void *read_bulk(void *arg) {
    struct gv_bulk_header h;
    CHECK(gv_bulk_recv_header(arg, &h) == -1);
    return NULL;
}

static void *fill_up(void *arg) {
    while (send_numbered(arg, 60000, 1)) {
    }
    return NULL;
}

static void *fill_bulk(void *arg) {
    static uint8_t data[1 << 20];
    while (gv_bulk_send(arg, 0, data, sizeof data)) {
    }
    return NULL;
}

/* gv_link_kill from another thread ends every kind of waiting. */
static void kill_wakes_all(void) {
    EACH(transport) {
        struct pair p = make_pair(transport);
        pthread_t threads[5];
        CHECK(pthread_create(&threads[0], NULL, read_bulk, p.client) == 0);
        CHECK(pthread_create(&threads[1], NULL, fill_up, p.client) == 0);
        CHECK(pthread_create(&threads[2], NULL, fill_up, p.client) == 0);
        CHECK(pthread_create(&threads[3], NULL, fill_bulk, p.client) == 0);
        CHECK(pthread_create(&threads[4], NULL, kill_later, p.client) == 0);
        int64_t start = gv_now_ns();
        while (!gv_link_dead(p.client)) gv_recv_wait(p.client, 2 * TEST_PATIENCE_NS, 0);
        for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
        CHECK(gv_now_ns() - start < TEST_PATIENCE_NS / 10); /* less than any sleep */
        CHECK(strcmp(gv_link_death(p.client), "the test says so") == 0);
        gv_link_kill(p.client, "a later reason");
        CHECK(strcmp(gv_link_death(p.client), "the test says so") == 0);
        close_pair(&p);
    }
}

static void impossible_sizes(void) {
    static const uint32_t sizes[] = {0, 16, 25, GV_RECORD_MAX + 8, UINT32_MAX};
    EACH(transport) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct pair p = make_pair(transport);
            CHECK(!gv_send_begin(p.client, sizes[i], NULL));
            CHECK_TEXT(gv_link_death(p.client), "impossible size");
            close_pair(&p);
        }
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"ping_pong", ping_pong},           {"stream_without_flush", stream_without_flush},
        {"many_senders", many_senders},     {"full_ring", full_ring},
        {"peek_twice", peek_twice},         {"waiting", waiting},
        {"bulk_both_ways", bulk_both_ways}, {"arrives_soon", arrives_soon},
        {"idle_is_cheap", idle_is_cheap},   {"senders_do_the_work", senders_do_the_work},
        {"late_channel", late_channel},     {"close_delivers", close_delivers},
        {"kill_wakes_all", kill_wakes_all}, {"impossible_sizes", impossible_sizes},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
