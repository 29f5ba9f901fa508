/* Payloads: whole, in order, over any number of channels; what is lent is given back exactly once; nobody waits for ever. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../../../native/transport/tcp/tcp.h"
#include "../check.h"
#include "cutter.h"
#include "mini_server.h"
#include "pair.h"

#ifdef __SANITIZE_THREAD__ /* eight times slower: what it looks for shows in fewer bytes, too */
#define LARGEST (32ull << 20)
#else
#define LARGEST (64ull << 20)
#endif

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    return x;
}

/* ---- links: 0 channels is shared memory */

static struct pair without_channels(bool sealed) {
    int fds[2];
    tcp_sockets(fds);
    struct pair p = {sealed ? sealed_client(fds[0]) : tcp_client(fds[0]), sealed ? adopt_sealed(fds[1]) : adopt_tcp(fds[1])};
    CHECK(p.client && p.worker);
    return p;
}

static struct pair open_pair(uint32_t channels, bool sealed) {
    if (!channels) return make_pair("shm");
    int fds[2];
    struct pair p = without_channels(sealed);
    expect_channels(p.client, channels);
    for (int i = (int)channels - 1; i >= 0; i--) { /* they come as they like */
        tcp_sockets(fds);
        add_channels(&p, i, fds);
    }
    return p;
}

static void await(_Atomic int *word, int value) {
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(word) != value; usleep(200)) CHECK(gv_now_ns() < until);
}

static int wait_acked(void *arg, uint64_t position) {
    struct gv_link *link = arg;
    while (gv_bulk_acked(link) < position) {
        if (gv_link_dead(link)) return -1;
        usleep(100);
    }
    return 0;
}

/* ---- contents */

static uint8_t *pattern; /* LARGEST + 1 MiB bytes that any payload is cut from */

static const uint8_t *content(uint64_t n) { return pattern + mix(n) % (1 << 20); }

static void count(void *arg) { atomic_fetch_add((_Atomic int *)arg, 1); }

enum how { SENT, WAITED, IN_ONE_PART, IN_PARTS, HOWS };

static void send_payload(struct gv_link *link, uint64_t n, uint64_t size, enum how how) {
    static _Atomic int done;
    const uint8_t *data = content(n);
    if (how == SENT || how == WAITED) {
        gv_bulk_set_waiter(link, how == WAITED ? wait_acked : NULL, link);
        uint8_t *lent = malloc(size + 1);
        memcpy(lent, data, size);
        CHECK(gv_bulk_send(link, n, lent, size) == n);
        memset(lent, 0xee, size); /* ours again */
        free(lent);
        return;
    }
    atomic_store(&done, 0);
    int parts = 0;
    CHECK(gv_bulk_open(link, n, size) == n);
    uint64_t position = gv_bulk_position(link), rest = size;
    while (rest) {
        uint64_t part = how == IN_ONE_PART ? rest : mix(n + rest) % (rest < 3000000 ? rest : 3000000) + 1;
        CHECK(gv_bulk_part(link, data, part, count, &done) == 0);
        parts++;
        if (mix(rest) % 4 == 0) {
            CHECK(gv_bulk_part(link, data, 0, count, &done) == 0); /* an empty one has its turn too */
            parts++;
        }
        data += part;
        rest -= part;
    }
    CHECK(gv_bulk_position(link) == position + size);
    CHECK(wait_acked(link, position + size) == 0);
    await(&done, parts);
}

struct payloads {
    struct gv_link *link;
    uint64_t n;
    const uint64_t *sizes;
};

static void *receive_payloads(void *arg) {
    struct payloads *p = arg;
    uint8_t *data = malloc(LARGEST);
    for (uint64_t n = 1; n <= p->n; n++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_recv_header(p->link, &h) == 0 && h.number == n && h.tag == n && h.size == p->sizes[n - 1]);
        uint64_t at = 0;
        while (at < h.size) { /* in other pieces than it was sent */
            uint64_t piece = mix(n * at + 5) % (h.size - at < 2000000 ? h.size - at : 2000000) + 1;
            CHECK(gv_bulk_recv(p->link, data + at, piece) == 0);
            at += piece;
        }
        CHECK(memcmp(data, content(n), h.size) == 0);
    }
    free(data);
    return NULL;
}

static void of_all_sizes(bool sealed) {
    static const uint64_t sizes[] = {0,       1, 39, TCP_STRIPE - 41, TCP_STRIPE - 40, TCP_STRIPE,     TCP_STRIPE + 1, 0, 0, 3 * TCP_STRIPE,
                                     1000003, 7, 0,  5u << 20,        65537,           TCP_SEALED_MOST};
    enum { N = sizeof sizes / sizeof *sizes };
    for (uint32_t channels = sealed; channels <= 4; channels++) {
        for (enum how how = 0; how < HOWS; how++) {
            struct pair p = open_pair(channels, sealed);
            struct payloads in = {p.worker, N, sizes};
            struct listening l;
            pthread_t receiver;
            listen_start(&l, p.client);
            CHECK(pthread_create(&receiver, NULL, receive_payloads, &in) == 0);
            for (uint64_t n = 1; n <= N; n++) send_payload(p.client, n, sizes[n - 1], how);
            pthread_join(receiver, NULL);
            CHECK(wait_acked(p.client, gv_bulk_position(p.client)) == 0);
            CHECK(gv_bulk_acked(p.client) == gv_bulk_position(p.client)); /* also what ends with an empty payload */
            listen_stop(&l);
            close_pair(&p);
        }
    }
}

static void all_sizes(void) { of_all_sizes(false); }
static void sealed_all_sizes(void) { of_all_sizes(true); }

static void large(void) {
    static const uint64_t sizes[] = {LARGEST, LARGEST - 12345, 1};
    static const uint32_t channels[] = {0, 1, 4, 1, 4};
    for (int i = 0; i < 5; i++) {
        struct pair p = open_pair(channels[i], i > 2);
        struct payloads in = {p.client, 3, sizes};
        struct listening l;
        pthread_t receiver;
        listen_start(&l, p.worker);
        CHECK(pthread_create(&receiver, NULL, receive_payloads, &in) == 0);
        for (uint64_t n = 1; n <= 3; n++) send_payload(p.worker, n, sizes[n - 1], (enum how)(n - 1));
        pthread_join(receiver, NULL);
        listen_stop(&l);
        close_pair(&p);
    }
}

/* ---- limits */

/* Copies stay below their limit while the peer takes nothing; the caller waits, and goes on when it does. */
struct sender {
    struct gv_link *link;
    uint64_t size;
    _Atomic int sent;
    uint64_t result;
};

static void *send_one(void *arg) {
    struct sender *s = arg;
    s->result = gv_bulk_send(s->link, 1, content(1), s->size);
    atomic_store(&s->sent, 1);
    return NULL;
}

static uint64_t copies_of(struct gv_link *link) {
    pthread_mutex_lock(&link->copies.lock);
    uint64_t out = link->copies.out;
    pthread_mutex_unlock(&link->copies.lock);
    return out;
}

static void copies_are_bounded(void) {
    static const uint64_t sizes[] = {LARGEST};
    for (int waits = 0; waits < 2; waits++) {
        struct pair p = open_pair(2, waits);
        struct listening l;
        pthread_t threads[2];
        struct sender s = {.link = p.client, .size = LARGEST};
        struct payloads in = {p.worker, 1, sizes};
        listen_start(&l, p.client);
        if (waits) {
            gv_bulk_set_waiter(p.client, wait_acked, p.client);
            gv_link_set_rtt(p.client, 1000000000); /* so far that it copies all the same */
        }
        CHECK(pthread_create(&threads[0], NULL, send_one, &s) == 0);
        usleep(200000);
        CHECK(copies_of(p.client) <= COPIES_LIMIT);
        CHECK(!atomic_load(&s.sent));
        CHECK(pthread_create(&threads[1], NULL, receive_payloads, &in) == 0);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        CHECK(s.result == 1);
        listen_stop(&l);
        close_pair(&p);
    }
}

/* A transport whose peer has all bytes but the last and says so at once; the copies are let go of later, by another thread. */
#define KEPT_MAX 64
struct late_transport {
    struct gv_link link;
    _Atomic uint64_t acked;
    _Atomic int n_kept;
    void (*done[KEPT_MAX])(void *arg);
    void *arg[KEPT_MAX];
    _Atomic bool over;
};

static int late_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    (void)data;
    struct late_transport *l = (struct late_transport *)link;
    if (done) {
        int n = atomic_load(&l->n_kept);
        CHECK(n < KEPT_MAX);
        l->done[n] = done;
        l->arg[n] = arg;
        atomic_store(&l->n_kept, n + 1);
        atomic_store(&l->acked, link->bulk_position - 1);
    }
    (void)size;
    return 0;
}

static uint64_t late_acked(const struct gv_link *link) { return atomic_load(&((const struct late_transport *)link)->acked); }

static int never_wait_for_more(void *arg, uint64_t position) {
    struct late_transport *l = arg;
    CHECK(position <= atomic_load(&l->acked)); /* more the peer does not say before it gets more */
    return 0;
}

static void *let_go_late(void *arg) {
    struct late_transport *l = arg;
    for (int next = 0; !atomic_load(&l->over) || next < atomic_load(&l->n_kept);) {
        usleep(3000);
        if (next < atomic_load(&l->n_kept)) {
            l->done[next](l->arg[next]);
            next++;
        }
    }
    return NULL;
}

/* At the limit a sender waits for copies to be let go of, not for bytes that the peer acknowledges only once it has got more than there may be. */
static void no_wait_for_what_is_not_said(void) {
    static const struct gv_transport row = {.name = "late", .bulk_part = late_part, .bulk_acked = late_acked};
    static struct late_transport l;
    pthread_t thread;
    gv_link_init(&l.link, &row);
    gv_link_set_rtt(&l.link, 1000000000); /* so far that it copies */
    gv_bulk_set_waiter(&l.link, never_wait_for_more, &l);
    CHECK(pthread_create(&thread, NULL, let_go_late, &l) == 0);
    CHECK(gv_bulk_send(&l.link, 1, pattern, 3 * COPIES_LIMIT) == 1);
    CHECK(atomic_load(&l.n_kept) == 3 * (COPIES_LIMIT >> 20) && copies_of(&l.link) <= COPIES_LIMIT);
    atomic_store(&l.over, true);
    pthread_join(thread, NULL);
    CHECK(copies_of(&l.link) == 0);
    gv_link_fini(&l.link);
}

/* By reference nothing waits: not for room, not for the peer, not for a channel that is still to come. */
static void parts_do_not_wait(void) {
    for (int kind = 0; kind <= 4; kind++) { /* memory; one channel, plain and sealed; none yet */
        _Atomic int done = 0;
        struct pair p = kind < 3 ? open_pair(kind > 0, kind == 2) : without_channels(kind == 4);
        int64_t start = gv_now_ns();
        for (uint64_t n = 1; n <= 20; n++) {
            CHECK(gv_bulk_open(p.client, n, LARGEST) == n && gv_bulk_part(p.client, pattern, LARGEST, count, &done) == 0);
        }
        CHECK(gv_now_ns() - start < TEST_PATIENCE_NS && atomic_load(&done) < 20);
        gv_link_close(p.client);
        CHECK(atomic_load(&done) == 20);
        gv_link_close(p.worker);
    }
}

/* ---- death */

static void *kill_soon(void *arg) {
    usleep(30000);
    gv_link_kill(arg, "the test says so");
    return NULL;
}

static void *wait_header(void *arg) {
    struct gv_bulk_header h;
    CHECK(gv_bulk_recv_header(arg, &h) == -1);
    return NULL;
}

/* Whoever sends or receives returns when the link dies: with channels and before there are any. */
static void death_ends_all_waiting(void) {
    for (uint32_t channels = 0; channels <= 4; channels++) {
        for (int waits = 0; waits < 2; waits++) {
            struct pair p = channels == 4 ? without_channels(waits) : open_pair(channels == 3 ? 2 : channels, channels == 3);
            pthread_t threads[3];
            struct sender s = {.link = p.client, .size = LARGEST};
            _Atomic int done = 0;
            if (waits) gv_bulk_set_waiter(p.client, wait_acked, p.client);
            CHECK(gv_bulk_open(p.client, 7, 3) == 1 && gv_bulk_part(p.client, "abc", 3, count, &done) == 0);
            int64_t start = gv_now_ns();
            CHECK(pthread_create(&threads[0], NULL, send_one, &s) == 0 && pthread_create(&threads[1], NULL, wait_header, p.client) == 0);
            CHECK(pthread_create(&threads[2], NULL, kill_soon, p.client) == 0);
            for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
            CHECK(gv_now_ns() - start < TEST_PATIENCE_NS && s.result == 0);
            await(&done, 1);
            /* And afterwards. */
            CHECK(gv_bulk_open(p.client, 8, 1) == 0 && gv_bulk_send(p.client, 8, "x", 1) == 0);
            CHECK(gv_bulk_part(p.client, "x", 1, count, &done) == -1 && atomic_load(&done) == 2);
            close_pair(&p);
            CHECK(atomic_load(&done) == 2);
        }
    }
}

struct lender {
    struct gv_link *link;
    _Atomic int lent, done;
};

static void *lend_on(void *arg) {
    struct lender *l = arg;
    for (;;) {
        if (!gv_bulk_open(l->link, 0, 100000)) return NULL;
        l->lent++;
        if (gv_bulk_part(l->link, pattern, 100000, count, &l->done)) return NULL;
        if (l->lent % 64 == 0) usleep(100);
    }
}

/* Whenever it dies: each part that was lent is given back, once. */
static void death_at_any_time(void) {
    for (uint32_t channels = 0; channels <= 3; channels++) {
        for (int round = 0; round < 40; round++) {
            struct pair p = open_pair(channels == 3 ? 2 : channels, channels == 3);
            struct lender l = {.link = p.client};
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, lend_on, &l) == 0);
            usleep((useconds_t)(mix((uint64_t)round) % 3000));
            gv_link_kill(p.client, "now");
            pthread_join(thread, NULL);
            close_pair(&p);
            CHECK(l.lent == atomic_load(&l.done));
        }
    }
}

#define UNMAPPED (16ull << 20)

static void *send_and_unmap(void *arg) {
    void *data = mmap(NULL, UNMAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    gv_bulk_send(arg, 1, data, UNMAPPED);
    munmap(data, UNMAPPED);
    return NULL;
}

static void *receive_on(void *arg) {
    struct gv_bulk_header h;
    while (!gv_bulk_recv_header(arg, &h) && !gv_bulk_recv(arg, NULL, h.size)) continue;
    return NULL;
}

/* Whenever it dies: what gv_bulk_send was given is its caller's again when it returns, who may unmap it. */
static void nothing_is_read_after_death(void) {
    for (int round = 0; round < 60; round++) {
        struct pair p = open_pair(2, true);
        pthread_t threads[2];
        gv_bulk_set_waiter(p.client, wait_acked, p.client);
        CHECK(pthread_create(&threads[0], NULL, send_and_unmap, p.client) == 0 && pthread_create(&threads[1], NULL, receive_on, p.worker) == 0);
        usleep((useconds_t)(mix((uint64_t)round) % 4000));
        gv_link_kill(p.client, "now");
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        close_pair(&p);
    }
}

/* ---- greetings that lie */

static void greetings(void) {
    static const struct {
        struct tcp_frame greeting;
        uint32_t channel;
        const char *death; /* NULL: only this connection is refused */
    } lies[] = {
        {{1, 1, 0}, 0, NULL},
        {{TCP_CHANNEL_MAGIC, TCP_CHANNELS_MAX + 1, 0}, 0, NULL},
        {{TCP_CHANNEL_MAGIC, 0, 0}, 0, "count their bulk channels differently"},
        {{TCP_CHANNEL_MAGIC, 2, 0}, 2, "count their bulk channels differently"},
        {{TCP_CHANNEL_MAGIC, 1, 1}, 0, "wants payloads that were never sent"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        int fds[2], bulk[2];
        tcp_sockets(fds);
        tcp_sockets(bulk);
        struct gv_link *link = adopt_tcp(fds[1]);
        gv_link_set_grace(link, 10000000000);
        CHECK(link && send(bulk[0], &lies[i].greeting, sizeof lies[i].greeting, 0) == sizeof lies[i].greeting);
        CHECK(gv_link_add_channel(link, (int)lies[i].channel, bulk[1]) == -1);
        CHECK(close(bulk[1]) == 0); /* ours still */
        if (lies[i].death) {
            CHECK_TEXT(gv_link_death(link), lies[i].death);
        } else {
            CHECK(!gv_link_dead(link));
        }
        close(bulk[0]);
        close(fds[0]);
        gv_link_close(link);
    }
}

/* ---- cuts */

struct session {
    struct mini_server server;
    struct cutter cutter;
    struct pair p;
};

static void open_session(struct session *s, const char *link) {
    memset(s, 0, sizeof *s);
    mini_start(&s->server, NO_FAULT);
    s->server.grace_s = 100;
    cutter_start(&s->cutter, s->server.url, NULL);
    struct gv_link_options options = mini_options(&s->server, link);
    options.pool = s->cutter.url;
    s->p = mini_connect(&s->server, &options);
}

static void close_session(struct session *s) {
    gv_link_last(s->p.client);
    gv_link_last(s->p.worker);
    mini_close(&s->server, &s->p);
    cutter_stop(&s->cutter);
    mini_stop(&s->server);
}

struct direction {
    struct gv_link *link;
    struct payloads in;
    _Atomic int *running;
};

#define CUT_SIZES 40
static uint64_t cut_sizes[CUT_SIZES];

static void *send_all(void *arg) {
    struct direction *d = arg;
    for (uint64_t n = 1; n <= CUT_SIZES; n++) {
        gv_bulk_set_waiter(d->link, n % 2 ? wait_acked : NULL, d->link);
        uint8_t *lent = malloc(cut_sizes[n - 1] + 1);
        memcpy(lent, content(n), cut_sizes[n - 1]);
        CHECK(gv_bulk_send(d->link, n, lent, cut_sizes[n - 1]) == n);
        memset(lent, 0xee, cut_sizes[n - 1]);
        free(lent);
    }
    atomic_fetch_sub(d->running, 1);
    return NULL;
}

static void *receive_all(void *arg) {
    struct direction *d = arg;
    receive_payloads(&d->in);
    atomic_fetch_sub(d->running, 1);
    return NULL;
}

/* Pulls the plug of one connection of the two ends', picked by chance; channel -1 is the main one. */
static void pull(struct session *s, uint64_t chance) {
    struct tcp *t = (struct tcp *)(chance & 1 ? s->p.client : s->p.worker);
    uint32_t n = ((struct tcp *)s->p.client)->bulk.n, which = (uint32_t)(chance >> 8) % (n + 1);
    pthread_mutex_lock(&t->bulk.lock);
    int fd = which == n ? t->fd : t->bulk.channels[which].fd;
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&t->bulk.lock);
}

/* Payloads both ways over connections that are cut. False: on a quiet machine they may be over before enough was cut to have shown anything. */
static bool cut_enough(const char *link, uint64_t seed) {
    struct session s;
    _Atomic int running = 4;
    open_session(&s, link);
    for (uint64_t n = 0; n < CUT_SIZES; n++) cut_sizes[n] = n % 9 == 4 ? 0 : mix(n + seed) % (n % 5 ? 200000 : 4000000);
    struct listening listeners[2];
    struct direction d[2] = {{s.p.client, {s.p.client, CUT_SIZES, cut_sizes}, &running}, {s.p.worker, {s.p.worker, CUT_SIZES, cut_sizes}, &running}};
    pthread_t threads[4];
    listen_start(&listeners[0], s.p.client);
    listen_start(&listeners[1], s.p.worker);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i < 2 ? send_all : receive_all, &d[i % 2]) == 0);
    int pulled = 0;
    for (uint64_t n = 1; atomic_load(&running); n++) {
        usleep(15000 + mix(seed * n) % 20000);
        if (n % 3 == 0) {
            pull(&s, mix(seed + n));
            pulled++;
        } else if (atomic_load(&s.cutter.cut_in) == 0) {
            atomic_store(&s.cutter.reset, mix(seed + n) & 1);
            atomic_store(&s.cutter.cut_in, 1 + (int64_t)(mix(seed ^ (n << 20)) % 1000000));
        }
    }
    atomic_store(&s.cutter.cut_in, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) listen_stop(&listeners[i]);
    struct gv_link_counts counts[2];
    gv_link_get_counts(s.p.client, &counts[0]);
    gv_link_get_counts(s.p.worker, &counts[1]);
    fprintf(stderr, "  %s: %d cuts, %d pulled, %llu bytes again\n", link, atomic_load(&s.cutter.cuts), pulled,
            (unsigned long long)(counts[0].bulk_resent + counts[1].bulk_resent));
    bool enough = atomic_load(&s.cutter.cuts) + pulled > 3 && counts[0].bulk_resent + counts[1].bulk_resent > 0;
    for (int i = 0; i < 2; i++) CHECK(copies_of(d[i].link) <= COPIES_LIMIT);
    close_session(&s);
    return enough;
}

static void cuts(const char *link, uint64_t seed) {
    int tries = 1;
    while (!cut_enough(link, seed + 10 * (uint64_t)tries)) CHECK(tries++ < 30);
}

static void cut_1(void) { cuts("tcp", 1); }
static void cut_2(void) { cuts("tcp(channels=2)", 2); }
static void cut_3(void) { cuts("tcp(channels=3)", 3); }
static void cut_4(void) { cuts("tcp(channels=4)", 4); }
static void sealed_cut_1(void) { cuts("sealed", 5); }
static void sealed_cut_4(void) { cuts("sealed(channels=4)", 6); }

/* The link ends while a channel is down and everybody waits for it. */
static void death_while_down(void) {
    for (int side = 0; side < 2; side++) {
        struct session s;
        open_session(&s, "tcp(channels=2)");
        struct gv_bulk_header h;
        CHECK(gv_bulk_send(s.p.client, 1, "x", 1) == 1 && gv_bulk_recv_header(s.p.worker, &h) == 0 && gv_bulk_recv(s.p.worker, NULL, 1) == 0);
        atomic_store(&s.cutter.refuse, true);
        cutter_cut_all(&s.cutter);
        struct gv_link *link = side ? s.p.client : s.p.worker;
        struct lender l = {.link = link};
        pthread_t threads[3];
        CHECK(pthread_create(&threads[0], NULL, wait_header, link) == 0 && pthread_create(&threads[1], NULL, lend_on, &l) == 0);
        for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&l.lent); usleep(1000)) CHECK(gv_now_ns() < until);
        int64_t start = gv_now_ns();
        CHECK(pthread_create(&threads[2], NULL, kill_soon, link) == 0);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        CHECK(gv_now_ns() - start < TEST_PATIENCE_NS);
        close_session(&s);
        CHECK(l.lent == atomic_load(&l.done) && l.lent > 0);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"all_sizes", all_sizes},
        {"sealed_all_sizes", sealed_all_sizes},
        {"large", large},
        {"copies_are_bounded", copies_are_bounded},
        {"no_wait_for_what_is_not_said", no_wait_for_what_is_not_said},
        {"parts_do_not_wait", parts_do_not_wait},
        {"death_ends_all_waiting", death_ends_all_waiting},
        {"death_at_any_time", death_at_any_time},
        {"nothing_is_read_after_death", nothing_is_read_after_death},
        {"greetings", greetings},
        {"cut_1", cut_1},
        {"cut_2", cut_2},
        {"cut_3", cut_3},
        {"cut_4", cut_4},
        {"sealed_cut_1", sealed_cut_1},
        {"sealed_cut_4", sealed_cut_4},
        {"death_while_down", death_while_down},
    };
    signal(SIGPIPE, SIG_IGN);
    pattern = malloc(LARGEST + (1 << 20));
    for (uint64_t i = 0; i < (LARGEST + (1 << 20)) / 8; i++) ((uint64_t *)(void *)pattern)[i] = i * 0x9e3779b97f4a7c15u;
    int failed = run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
    free(pattern);
    return failed;
}
