/* Links with delay: records and payloads, ends, and the memory that a delayed shm link goes through. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "../../../../native/transport/delay/delay_rings.h"
#include "../../../../native/transport/futex.h"
#include "../../../../native/transport/shm/shm_layout.h"
#include "../mini_server.h"
#include "delay_fixture.h"

struct session {
    struct mini_server server;
    struct pair pair;
};

static void open_session(struct session *s, const char *text, const char *transport) {
    struct gv_open_error err;
    mini_start(&s->server, NO_FAULT);
    struct gv_link_options options = mini_options(&s->server, text);
    s->pair.client = gv_link_connect(&options, &err);
    if (!s->pair.client) fprintf(stderr, "%s\n", err.text);
    CHECK(s->pair.client && strcmp(gv_link_transport(s->pair.client), transport) == 0);
    s->pair.worker = mini_worker(&s->server);
    /* The server's threads must be through with the worker's link before it goes. */
    while (strcmp(transport, "tcp") == 0 && (!atomic_load(&s->server.channels) || atomic_load(&s->server.adding))) sleep_ns(MS);
}

static void send_flushed(struct gv_link *link, uint32_t body, uint64_t n) {
    CHECK(send_numbered(link, body, n));
    gv_send_flush(link);
}

struct traffic {
    struct gv_link *link;
    uint64_t records, payloads;
    _Atomic int *under_way; /* threads of both ends that still send or receive payloads */
};

static uint32_t body_of(uint64_t n) { return (uint32_t)(n * 2654435761u % (n % 100 ? 800 : 200000) / 8 * 8); }

static void *send_records(void *arg) {
    struct traffic *t = arg;
    for (uint64_t n = 1; n <= t->records; n++) {
        CHECK(send_numbered(t->link, body_of(n), n));
        if (n % 64 == 0 || n == t->records) gv_send_flush(t->link);
    }
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

static void *receive_records(void *arg) {
    struct traffic *t = arg;
    for (uint64_t n = 1; n <= t->records; n++) CHECK(receive_numbered(t->link, n) == (int64_t)body_of(n));
    /* A link's acknowledgements come to its reader: he reads on as long as somebody may wait for them. */
    while (atomic_load(t->under_way)) {
        CHECK(!gv_recv_peek(t->link) && !gv_link_dead(t->link));
        gv_recv_wait(t->link, 5 * MS, 0);
    }
    return NULL;
}

static uint64_t size_of(uint64_t n) { return n % 3 ? n * 1000003 % 100000 : 3000001; }

static void *send_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *payload = malloc(3000001);
    for (uint64_t n = 1; n <= t->payloads; n++) {
        for (uint64_t i = 0; i < size_of(n); i++) payload[i] = byte_at(n, i);
        CHECK(gv_bulk_send(t->link, n, payload, size_of(n)) == n);
    }
    free(payload);
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

static void *receive_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *payload = malloc(3000001);
    for (uint64_t n = 1; n <= t->payloads; n++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_recv_header(t->link, &h) == 0 && h.tag == n && h.size == size_of(n));
        CHECK(gv_bulk_recv(t->link, payload, h.size) == 0);
        for (uint64_t i = 0; i < h.size; i++) CHECK(payload[i] == byte_at(n, i));
    }
    free(payload);
    atomic_fetch_sub(t->under_way, 1);
    return NULL;
}

/* Records and payloads both ways at once, then a question and its answer. */
static void a_link(const char *text, const char *transport) {
    struct session s;
    open_session(&s, text, transport);
    struct gv_link_spec spec = spec_of(text);
    _Atomic int under_way = 6;
    struct traffic client = {s.pair.client, 3000, 7, &under_way}, worker = {s.pair.worker, 3000, 7, &under_way};
    void *(*const roles[8])(void *) = {send_records,     receive_records, send_payloads,   receive_payloads,
                                       receive_payloads, send_payloads,   receive_records, send_records};
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, roles[i], i % 2 ? &worker : &client) == 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    int64_t begin = gv_now_ns();
    send_flushed(s.pair.client, 8, 3001);
    CHECK(receive_numbered(s.pair.worker, 3001) == 8);
    send_flushed(s.pair.worker, 16, 3001);
    CHECK(receive_numbered(s.pair.client, 3001) == 16);
    CHECK(gv_now_ns() - begin >= spec.rtt_ns);
    close_pair(&s.pair);
    mini_stop(&s.server);
}

static void links_work(void) {
    int before = open_descriptors();
    a_link("delay(rtt=10ms,tcp)", "tcp");
    a_link("delay(rtt=10ms,tcp(plain))", "tcp");
    a_link("delay(rtt=10ms,shm)", "shm");
    a_link("delay(rtt=0ms,shm)", "shm");
    a_link("delay(rtt=5ms,rate=1gbit,auto)", "shm");
    a_link("delay(rtt=5ms,rate=1gbit,tcp)", "tcp");
    CHECK(open_descriptors() == before);
}

/* What is said last is heard, and the end comes behind it. */
static void a_goodbye_arrives(const char *text, const char *transport) {
    int before = open_descriptors();
    struct session s;
    open_session(&s, text, transport);
    send_flushed(s.pair.client, 200000, 1);
    send_flushed(s.pair.client, 8, 2);
    int64_t begin = gv_now_ns();
    gv_link_close(s.pair.client);
    CHECK(gv_now_ns() - begin >= 30 * MS);
    CHECK(receive_numbered(s.pair.worker, 1) == 200000 && receive_numbered(s.pair.worker, 2) == 8);
    CHECK(receive_numbered(s.pair.worker, 3) == -1);
    gv_link_close(s.pair.worker);
    mini_stop(&s.server);
    CHECK(open_descriptors() == before);
}

static void goodbyes_arrive(void) {
    a_goodbye_arrives("delay(rtt=60ms,tcp)", "tcp");
    a_goodbye_arrives("delay(rtt=60ms,tcp(plain))", "tcp");
    a_goodbye_arrives("delay(rtt=60ms,shm)", "shm");
}

/* The worker's last words come before its end, both late. */
static void a_worker_ends(const char *text, const char *transport) {
    struct session s;
    open_session(&s, text, transport);
    send_flushed(s.pair.worker, 8, 1);
    int64_t begin = gv_now_ns();
    gv_link_close(s.pair.worker);
    CHECK(receive_numbered(s.pair.client, 1) == 8);
    CHECK(receive_numbered(s.pair.client, 2) == -1 && gv_now_ns() - begin >= 30 * MS);
    gv_link_close(s.pair.client);
    mini_stop(&s.server);
}

static void workers_end(void) { a_worker_ends("delay(rtt=60ms,shm)", "shm"); }

struct memories {
    void *near, *far;
    struct gv_delay_rings *rings;
    int sockets[2];
};

static const uint64_t sizes[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

static struct memories make_memories(const char *text) {
    static struct gv_wire wires[2];
    struct gv_link_spec spec = spec_of(text);
    struct memories m;
    int memfd = make_memfd(sizes), near;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, m.sockets) == 0);
    m.rings = gv_delay_rings_start(memfd, sizes, &spec, wires, &near);
    CHECK(m.rings);
    gv_delay_rings_join(m.rings, m.sockets[0]);
    m.near = mmap(NULL, gv_shm_size(sizes), PROT_READ | PROT_WRITE, MAP_SHARED, near, 0);
    m.far = mmap(NULL, gv_shm_size(sizes), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    CHECK(m.near != MAP_FAILED && m.far != MAP_FAILED);
    close(memfd);
    close(near);
    return m;
}

static void end_memories(struct memories *m) {
    gv_delay_rings_leave(m->rings, m->sockets[0]);
    gv_delay_rings_leave(m->rings, -1);
    munmap(m->near, gv_shm_size(sizes));
    munmap(m->far, gv_shm_size(sizes));
    close(m->sockets[0]);
    close(m->sockets[1]);
}

/* A worker whose positions are impossible: the session ends, nothing else happens. */
static void lying_peers_end_the_session(void) {
    struct memories m = make_memories("delay(rtt=1ms,shm)");
    atomic_store(&gv_shm_control(m.far, GV_SHM_REPLY)->tail, 3u << 20);
    CHECK(at_end(m.sockets[1]));
    CHECK(atomic_load(&gv_shm_control(m.near, GV_SHM_REPLY)->tail) == 3u << 20); /* whoever reads it will say so */
    end_memories(&m);
    m = make_memories("delay(rtt=1ms,shm)");
    atomic_store(&gv_shm_control(m.far, GV_SHM_BULK_OUT)->head, 8);
    atomic_store(&gv_shm_control(m.near, GV_SHM_BULK_OUT)->tail, 4);
    gv_wake_sleeper(&gv_shm_control(m.near, GV_SHM_BULK_OUT)->reader_sleeps);
    CHECK(at_end(m.sockets[1]));
    end_memories(&m);
}

static void unsound_memory_is_refused(void) {
    struct gv_wire wires[2];
    struct gv_link_spec spec = spec_of("delay(rtt=1ms,shm)");
    uint64_t smaller[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
    int near, memfd = make_memfd(smaller), before = open_descriptors();
    CHECK(gv_delay_rings_start(memfd, sizes, &spec, wires, &near) == NULL && errno == EINVAL);
    close(memfd);
    memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(memfd, (off_t)gv_shm_size(sizes)) == 0);
    CHECK(gv_delay_rings_start(memfd, sizes, &spec, wires, &near) == NULL && errno == EINVAL);
    CHECK(open_descriptors() == before);
    close(memfd);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"links_work", links_work},
        {"goodbyes_arrive", goodbyes_arrive},
        {"workers_end", workers_end},
        {"lying_peers_end_the_session", lying_peers_end_the_session},
        {"unsound_memory_is_refused", unsound_memory_is_refused},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
