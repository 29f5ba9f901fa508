/* A peer that lies: what it sends is written by hand, past our own encoder. Every lie ends the link with a reason and nothing else. */
#define _GNU_SOURCE
#include <pthread.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../../../native/transport/shm/shm_layout.h"
#include "../../../native/transport/tcp/tcp.h"
#include "../check.h"
#include "pair.h"
#include "sealed_peer.h"

static const uint64_t rings[4] = {1 << 19, 1 << 19, 1 << 19, 1 << 19};

/* In this order: the tests of tcp begin with the second. */
enum kind { SHM, TCP, SEALED, KINDS };

/* A worker's end and the peer's raw side of it. */
struct raw {
    struct gv_link *link;
    int fd, bulk; /* tcp: the sockets; shm: fd keeps the link alive */
    void *map;    /* shm */
    enum kind kind;
    struct sealed_peer peer; /* sealed */
    uint64_t fed, noted;     /* records in frames so far, and notes */
};

static struct raw open_raw(enum kind kind) {
    struct raw raw = {.kind = kind, .fed = 0, .noted = 0};
    int fds[2], bulk[2];
    if (kind != SHM) {
        tcp_sockets(fds);
        tcp_sockets(bulk);
        raw.link = kind == SEALED ? adopt_sealed(fds[1]) : adopt_tcp(fds[1]);
        if (kind == SEALED) raw.peer = sealed_peer(0);
        CHECK(raw.link);
        if (kind == SEALED) { /* what its channels take and refuse is test_sealed_bulk.c's */
            close(bulk[0]);
            close(bulk[1]);
        } else {
            greet_channel(bulk[0]);
            CHECK(gv_link_add_channel(raw.link, 0, bulk[1]) == 0);
            raw.bulk = bulk[0];
        }
    } else {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        int memfd = make_memfd(rings);
        raw.map = mmap(NULL, gv_shm_size(rings), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        CHECK(raw.map != MAP_FAILED);
        raw.link = adopt_shm(fds[1], memfd, rings);
        CHECK(raw.link);
    }
    raw.fd = fds[0];
    return raw;
}

static void close_raw(struct raw *raw) {
    gv_link_close(raw->link);
    close(raw->fd);
    if (raw->map) munmap(raw->map, gv_shm_size(rings));
    if (raw->bulk) close(raw->bulk);
    sealed_peer_free(&raw->peer);
}

/* Lets the link read these bytes as its next ones. */
static void feed(struct raw *raw, const void *bytes, size_t size) {
    if (raw->map) {
        struct gv_ring_control *c = gv_shm_control(raw->map, GV_SHM_COMMAND);
        uint64_t tail = atomic_load(&c->tail);
        memcpy(gv_shm_data(raw->map, rings, GV_SHM_COMMAND) + tail % rings[0], bytes, size);
        atomic_store(&c->tail, tail + size);
    } else {
        static uint8_t frame[FRAME_BUFFER];
        if (raw->kind == SEALED) { /* whatever they are, in a frame of their own */
            size = seal_records(&raw->peer, ++raw->fed, bytes, size, frame);
            bytes = frame;
        }
        CHECK(send(raw->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
    }
}

static void expect_death(struct raw *raw, const char *why) {
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !gv_link_dead(raw->link) && gv_now_ns() < until;) {
        CHECK(gv_recv_peek(raw->link) == NULL);
        gv_recv_wait(raw->link, 10000000, 0);
    }
    CHECK(gv_link_dead(raw->link));
    CHECK_TEXT(gv_link_death(raw->link), why);
    close_raw(raw);
}

static void lying_sizes(void) {
    static const uint32_t sizes[] = {0, 8, 16, 20, 25, 26, GV_RECORD_MAX + 8, 0x7ffffff8, 0x80000000, 0xfffffff8, 0xffffffff};
    for (enum kind kind = SHM; kind < KINDS; kind++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct raw raw = open_raw(kind);
            struct gv_record r = {.size = sizes[i], .op = 1, .seq = 1};
            feed(&raw, &r, sizeof r);
            expect_death(&raw, kind == SEALED ? "malformed record: a frame of impossible ones" : "malformed record: an impossible size");
        }
    }
}

static void numbers(void) {
    for (enum kind kind = SHM; kind < KINDS; kind++) {
        struct gv_record r = {.size = sizeof r, .op = 1, .seq = 2};
        struct raw raw = open_raw(kind);
        feed(&raw, &r, sizeof r);
        expect_death(&raw, kind == SEALED ? "a frame of impossible ones" : "malformed record: seq 2, expected 1");
        raw = open_raw(kind);
        r.seq = 0;
        feed(&raw, &r, sizeof r);
        expect_death(&raw, kind == SEALED ? "a frame of impossible ones" : "malformed record: seq 0, expected 1");
        raw = open_raw(kind);
        r.seq = 1, r.epoch = 1;
        feed(&raw, &r, sizeof r);
        expect_death(&raw, "malformed record: epoch 1, expected 0");
    }
}

/* A record that came already is dropped, and the session goes on. In a frame that begins another connection only: test_sealed.c. */
static void repeated(void) {
    for (enum kind kind = SHM; kind <= TCP; kind++) {
        struct raw raw = open_raw(kind);
        struct gv_record r[4] = {
            {.size = 24, .op = 1, .seq = 1}, {.size = 24, .op = 2, .seq = 2}, {.size = 24, .op = 3, .seq = 1}, {.size = 24, .op = 4, .seq = 3}};
        feed(&raw, r, sizeof r);
        uint16_t expected[] = {1, 2, 4};
        for (int i = 0; i < 3; i++) {
            const struct gv_record *got;
            while (!(got = gv_recv_peek(raw.link))) gv_recv_wait(raw.link, 10000000, 0);
            CHECK(got->op == expected[i]);
            gv_recv_consume(raw.link);
        }
        close_raw(&raw);
    }
}

/* A record that comes byte by byte is whole when its last byte is there. */
static void comes_in_pieces(enum kind kind) {
    struct raw raw = open_raw(kind);
    uint8_t bytes[48], frame[48 + FRAME_ROOM];
    struct gv_record *r = (struct gv_record *)(void *)bytes;
    memset(bytes, 0, sizeof bytes);
    r->size = sizeof bytes;
    r->op = 5;
    r->seq = 1;
    memcpy(frame, bytes, sizeof bytes);
    size_t size = kind == SEALED ? seal_records(&raw.peer, 1, bytes, sizeof bytes, frame) : sizeof bytes;
    for (size_t i = 0; i < size; i++) {
        CHECK(gv_recv_peek(raw.link) == NULL && !gv_link_dead(raw.link));
        CHECK(send(raw.fd, frame + i, 1, MSG_NOSIGNAL) == 1);
        gv_recv_wait(raw.link, 1000000000, 0);
    }
    const struct gv_record *got = gv_recv_peek(raw.link);
    CHECK(got && got->op == 5 && got->size == sizeof bytes);
    gv_recv_consume(raw.link);
    r->seq = 2;
    memcpy(frame, bytes, sizeof bytes);
    if (kind == SEALED) seal_records(&raw.peer, 2, bytes, sizeof bytes, frame);
    CHECK(send(raw.fd, frame, 40, MSG_NOSIGNAL) == 40);
    shutdown(raw.fd, SHUT_WR);
    expect_death(&raw, "closed the connection within a record");
}

static void in_pieces(void) {
    comes_in_pieces(TCP);
    comes_in_pieces(SEALED);
}

/* ---- shared memory only */

static void tail_lies(void) {
    static const uint64_t tails[] = {(1 << 19) + 8, 4, 25, UINT64_MAX, UINT64_MAX - 7, 1ull << 63};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        struct raw raw = open_raw(SHM);
        atomic_store(&gv_shm_control(raw.map, GV_SHM_COMMAND)->tail, tails[i]);
        expect_death(&raw, "malformed record: an impossible size or position");
    }
}

/* A record that claims to reach beyond what was published, or beyond the ring's end; a pad that does not end there. */
static void beyond(void) {
    struct raw raw = open_raw(SHM);
    struct gv_record r = {.size = 64, .op = 1, .seq = 1};
    feed(&raw, &r, sizeof r);
    expect_death(&raw, "malformed record");

    raw = open_raw(SHM);
    uint32_t pad[2] = {24, GV_RING_PAD};
    feed(&raw, pad, sizeof pad);
    expect_death(&raw, "malformed record");

    raw = open_raw(SHM);
    pad[0] = 1 << 19; /* reaches to the end, but only 8 bytes are published */
    feed(&raw, pad, sizeof pad);
    expect_death(&raw, "malformed record");

    raw = open_raw(SHM);
    static uint8_t filler[GV_RECORD_MAX];
    uint64_t seq = 1;
    for (uint32_t left = (1 << 19) - 16; left;) {
        uint32_t size = left > GV_RECORD_MAX ? GV_RECORD_MAX : left;
        if (left - size && left - size < 24) size -= 24;
        r = (struct gv_record){.size = size, .op = 1, .seq = seq++};
        memcpy(filler, &r, sizeof r);
        feed(&raw, filler, size);
        left -= size;
        while (gv_recv_peek(raw.link)) gv_recv_consume(raw.link);
    }
    CHECK(!gv_link_dead(raw.link));
    r = (struct gv_record){.size = 24, .op = 1, .seq = seq}; /* 16 bytes are left before the end */
    memcpy(gv_shm_data(raw.map, rings, GV_SHM_COMMAND) + (1 << 19) - 16, &r, 16);
    atomic_fetch_add(&gv_shm_control(raw.map, GV_SHM_COMMAND)->tail, 24);
    expect_death(&raw, "malformed record");
}

/* The reader's position, which the peer writes, would let us overwrite what is unread or wait for ever. */
static void head_lies(void) {
    static const uint64_t heads[] = {1ull << 40, UINT64_MAX, 1};
    for (size_t i = 0; i < 2; i++) {
        struct raw raw = open_raw(SHM);
        atomic_store(&gv_shm_control(raw.map, GV_SHM_REPLY)->head, heads[i]);
        for (uint64_t n = 1; send_numbered(raw.link, 30000, n); n++) CHECK(n < 100);
        CHECK_TEXT(gv_link_death(raw.link), "malformed ring");
        close_raw(&raw);
        raw = open_raw(SHM);
        atomic_store(&gv_shm_control(raw.map, GV_SHM_BULK_IN)->head, heads[i]);
        static uint8_t data[1 << 20];
        CHECK(gv_bulk_send(raw.link, 0, data, sizeof data) == 0);
        CHECK_TEXT(gv_link_death(raw.link), "malformed ring");
        close_raw(&raw);
    }
}

static void bulk_tail_lies(void) {
    struct raw raw = open_raw(SHM);
    struct gv_bulk_header h;
    atomic_store(&gv_shm_control(raw.map, GV_SHM_BULK_OUT)->tail, (1 << 19) + 1);
    CHECK(gv_bulk_recv_header(raw.link, &h) == -1);
    CHECK_TEXT(gv_link_death(raw.link), "malformed ring");
    close_raw(&raw);
}

static _Atomic int rewriting;

static void *rewrite(void *arg) {
    struct raw *raw = arg;
    _Atomic uint32_t *size = (_Atomic uint32_t *)(void *)gv_shm_data(raw->map, rings, GV_SHM_COMMAND);
    while (atomic_load(&rewriting)) {
        atomic_store_explicit(size, 0xfffffff8, memory_order_relaxed);
        atomic_store_explicit(size, 64, memory_order_relaxed);
    }
    return NULL;
}

/* The size changes while it is read: what comes out is one record of 64 bytes or a dead link, never anything between. */
static void changing_record(void) {
    for (int round = 0; round < 20; round++) {
        struct raw raw = open_raw(SHM);
        uint8_t bytes[64] = {0};
        struct gv_record r = {.size = 64, .op = 1, .seq = 1};
        memcpy(bytes, &r, sizeof r);
        memcpy(gv_shm_data(raw.map, rings, GV_SHM_COMMAND), bytes, sizeof bytes);
        atomic_store(&rewriting, 1);
        pthread_t writer;
        CHECK(pthread_create(&writer, NULL, rewrite, &raw) == 0);
        atomic_store(&gv_shm_control(raw.map, GV_SHM_COMMAND)->tail, 64);
        const struct gv_record *got;
        while (!(got = gv_recv_peek(raw.link)) && !gv_link_dead(raw.link)) {
        }
        for (int i = 0; i < 1000 && got; i++) CHECK(*(const volatile uint32_t *)&got->size == 64);
        atomic_store(&rewriting, 0);
        pthread_join(writer, NULL);
        close_raw(&raw);
    }
}

static void bytes_on_the_socket(void) {
    struct raw raw = open_raw(SHM);
    CHECK(send(raw.fd, "x", 1, 0) == 1);
    expect_death(&raw, "bytes on the socket");
}

/* Nonsense in the sleeping flags costs wake-ups, not the session. */
static void odd_flags(void) {
    struct raw raw = open_raw(SHM);
    struct gv_ring_control *c = gv_shm_control(raw.map, GV_SHM_REPLY);
    atomic_store(&c->reader_sleeps, 0xdeadbeef);
    for (uint64_t n = 1; n < 10; n++) CHECK(send_numbered(raw.link, 8, n));
    CHECK(!gv_link_dead(raw.link));
    close_raw(&raw);
}

/* ---- bulk headers */

static void send_frame(int fd, uint32_t size) {
    struct tcp_frame frame = {TCP_FRAME_MAGIC, size, 0};
    CHECK(send(fd, &frame, sizeof frame, 0) == sizeof frame);
}

static void bulk_frames(void) {
    static const struct tcp_frame lies[] = {{1, 40, 0}, {TCP_FRAME_MAGIC, 0, 0}, {TCP_FRAME_MAGIC, TCP_STRIPE + 1, 0}, {TCP_FRAME_MAGIC, 40, 8}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct raw raw = open_raw(TCP);
        struct gv_bulk_header got;
        CHECK(send(raw.bulk, &lies[i], sizeof lies[i], 0) == sizeof lies[i]);
        CHECK(gv_bulk_recv_header(raw.link, &got) == -1);
        CHECK_TEXT(gv_link_death(raw.link), "malformed payload");
        close_raw(&raw);
    }
}

static struct tcp_note note(uint16_t op, uint32_t epoch, uint64_t seq, uint64_t bulk) {
    return (struct tcp_note){.record = {.size = sizeof(struct tcp_note), .op = op, .epoch = epoch, .seq = seq}, .received = {bulk}};
}

/* Says it on the main connection; in a sealed one as the next note. */
static void say(struct raw *raw, struct tcp_note said) {
    uint8_t bytes[NOTE_ROOM];
    size_t size = sizeof said;
    memcpy(bytes, &said, sizeof said);
    if (raw->kind == SEALED) size = seal_note(&raw->peer, ++raw->noted, said, bytes);
    CHECK(send(raw->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
}

/* Who has what was never sent is no peer to go on with. */
static void acknowledged_before_sent(void) {
    for (int i = 0; i < 4; i++) {
        struct raw raw = open_raw(i / 2 ? SEALED : TCP);
        say(&raw, note(GV_RECORD_ACK, 0, i % 2 == 0, i % 2));
        for (int n = 0; n < 200 && !gv_link_dead(raw.link); n++) {
            gv_recv_peek(raw.link);
            gv_recv_wait(raw.link, 10000000, 0);
            gv_send_flush(raw.link);
        }
        CHECK_TEXT(gv_link_death(raw.link), "acknowledge");
        close_raw(&raw);
    }
}

/* ---- a session that is taken up again */

#define SENT 3

/* What the link sends next; a frame's records must be one. */
static void hear(struct raw *raw, void *record, size_t size) {
    static uint8_t frame[FRAME_BUFFER];
    if (raw->kind == SEALED) {
        CHECK(hear_frame(&raw->peer, raw->fd, frame).size == FRAME_ROOM + size);
        memcpy(record, frame + sizeof(struct gv_sealed_head), size);
    } else {
        CHECK(recv(raw->fd, record, size, MSG_WAITALL) == (ssize_t)size);
    }
}

struct numbered {
    struct gv_record record;
    uint64_t body;
};

/* A link that sent some records, which have come. */
static struct raw open_sent(enum kind kind) {
    struct raw raw = open_raw(kind);
    struct timeval patience = {.tv_sec = 2};
    struct numbered got;
    gv_link_set_grace(raw.link, 20000000000);
    CHECK(setsockopt(raw.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    for (uint64_t n = 1; n <= SENT; n++) {
        CHECK(send_numbered(raw.link, 8, n));
        gv_send_flush(raw.link);
        hear(&raw, &got, sizeof got);
    }
    return raw;
}

/* Another connection, on which the peer says this. */
static int come_back(struct raw *raw, struct tcp_note said, uint32_t epoch) {
    int fds[2];
    struct timeval patience = {.tv_sec = 2};
    tcp_sockets(fds);
    CHECK(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    close(raw->fd);
    raw->fd = fds[0];
    if (raw->kind == SEALED) {
        sealed_peer_free(&raw->peer);
        raw->peer = sealed_peer(epoch);
        raw->noted = UINT64_MAX; /* the first note is number 0 */
    }
    say(raw, said);
    return gv_link_resume(raw->link, -1, fds[1], epoch);
}

static void comes_back_with_lies(enum kind kind) {
    static const uint64_t seqs[] = {SENT + 1, UINT64_MAX, 0, 0}, bulks[] = {0, 0, 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
        struct raw raw = open_sent(kind);
        CHECK(come_back(&raw, note(GV_RECORD_RESUME, 1, seqs[i], bulks[i]), 1) == -1);
        CHECK(gv_link_dead(raw.link));
        CHECK_TEXT(gv_link_death(raw.link), "has what was never sent");
        close_raw(&raw);
    }
    /* What it said it had it cannot lack afterwards: it is not there any more. */
    struct raw raw = open_sent(kind);
    struct gv_link_counts counts = {.unacked_bytes = 1};
    say(&raw, note(GV_RECORD_ACK, 0, SENT, 0));
    for (int i = 0; i < 200 && counts.unacked_bytes; i++) {
        CHECK(gv_recv_peek(raw.link) == NULL);
        gv_recv_wait(raw.link, 10000000, 0);
        gv_send_flush(raw.link);
        gv_link_get_counts(raw.link, &counts);
    }
    CHECK(counts.unacked_bytes == 0 && !gv_link_dead(raw.link));
    CHECK(come_back(&raw, note(GV_RECORD_RESUME, 1, SENT - 1, 0), 1) == -1);
    CHECK_TEXT(gv_link_death(raw.link), "lacks what it had acknowledged");
    close_raw(&raw);
}

static void taken_up_with_lies(void) {
    comes_back_with_lies(TCP);
    comes_back_with_lies(SEALED);
}

/* It was no connection of the session's, and another one may come still; what the peer has is not sent again, what it lacks is. */
static void comes_back_with_garbage(enum kind kind) {
    struct raw raw = open_sent(kind);
    struct tcp_note wrong[] = {note(GV_RECORD_ACK, 1, SENT, 0), note(GV_RECORD_RESUME, 3, SENT, 0), note(GV_RECORD_RESUME, 3, SENT, 0)};
    wrong[2].record.size = 24;
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(come_back(&raw, wrong[i], i + 1) == -1);
        CHECK(gv_link_down(raw.link) && !gv_link_dead(raw.link));
    }
    for (uint64_t has = 0; has <= SENT; has++) {
        CHECK(come_back(&raw, note(GV_RECORD_RESUME, 4 + (uint32_t)has, has, 0), 4 + (uint32_t)has) == 0);
        struct tcp_note said;
        hear(&raw, &said, sizeof said);
        CHECK(said.record.op == GV_RECORD_RESUME && said.record.seq == 0 && said.record.epoch == 4 + has);
        for (uint64_t n = has + 1; n <= SENT; n++) {
            struct numbered got;
            hear(&raw, &got, sizeof got);
            CHECK(got.record.seq == n && got.record.epoch == 0 && got.record.ctx == n); /* the epoch it was first sent in */
        }
    }
    CHECK(!gv_link_down(raw.link) && !gv_link_dead(raw.link));
    close_raw(&raw);
}

static void taken_up_with_garbage(void) {
    comes_back_with_garbage(TCP);
    comes_back_with_garbage(SEALED);
}

/* Only a new connection begins like that. */
static void taken_up_in_the_middle(void) {
    for (enum kind kind = TCP; kind < KINDS; kind++) {
        struct raw raw = open_sent(kind);
        say(&raw, note(GV_RECORD_RESUME, 0, SENT, 0));
        expect_death(&raw, "an acknowledgement that makes no sense");
    }
}

static void bulk_headers(void) {
    for (int lie = 0; lie < 3; lie++) {
        struct raw raw = open_raw(TCP);
        struct gv_bulk_header h = {.number = lie == 0 ? 2 : 1, .epoch = lie == 1, .magic = lie == 2 ? 1 : GV_BULK_MAGIC}, got;
        send_frame(raw.bulk, sizeof h);
        CHECK(send(raw.bulk, &h, sizeof h, 0) == sizeof h);
        CHECK(gv_bulk_recv_header(raw.link, &got) == -1);
        CHECK_TEXT(gv_link_death(raw.link), "malformed payload");
        close_raw(&raw);
    }
    struct raw raw = open_raw(TCP);
    struct gv_bulk_header h = {.number = 1, .size = 100, .magic = GV_BULK_MAGIC};
    char data[100];
    send_frame(raw.bulk, sizeof h + 100);
    CHECK(send(raw.bulk, &h, sizeof h, 0) == sizeof h && send(raw.bulk, data, 50, 0) == 50);
    CHECK(gv_bulk_recv_header(raw.link, &h) == 0);
    shutdown(raw.bulk, SHUT_WR);
    CHECK(gv_bulk_recv(raw.link, data, 100) == -1);
    CHECK_TEXT(gv_link_death(raw.link), "closed the bulk channel");
    close_raw(&raw);
}

/* ---- memory that is no set of rings */

static void wrong_memory(void) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    char why[GV_DEATH_TEXT];
    static const uint64_t wrong[][4] = {{0, 1 << 20, 1 << 20, 1 << 20},
                                        {1 << 18, 1 << 20, 1 << 20, 1 << 20},
                                        {1 << 20, 3 << 20, 1 << 20, 1 << 20},
                                        {1 << 20, 1 << 20, 1ull << 31, 1 << 20},
                                        {1 << 20, 1 << 20, 1 << 20, UINT64_MAX}};
    int memfd = make_memfd(rings);
    for (size_t i = 0; i < 5; i++) {
        CHECK(gv_shm_size(wrong[i]) == 0);
        CHECK(!gv_shm_new(fds[0], memfd, wrong[i], true, why));
        CHECK_TEXT(why, "powers of two");
    }
    CHECK(gv_shm_size(rings) == 4096 + (4 << 19));
    CHECK(!gv_shm_new(fds[0], fds[1], rings, true, why)); /* not even a memfd */
    CHECK_TEXT(why, "not as large");
    CHECK(!adopt_shm(fds[0], memfd, (const uint64_t[4]){1, 2, 3, 4})); /* closes both */
    CHECK(fcntl(fds[0], F_GETFD) < 0 && fcntl(memfd, F_GETFD) < 0);
    close(fds[1]);
}

/* What a worker that takes a link over is told of frames that the client may lack; of none, when all is acknowledged. */
static void units_of_a_link_that_moves(void) {
    struct gv_unacked k;
    gv_unacked_init_frames(&k, 8);
    CHECK(gv_unacked_restore(&k, "", 0) && gv_unacked_bytes(&k) == 0);
    uint32_t units[12] = {24, 0, 1, 0, 0, 0, 24};
    for (uint32_t size = 1; size < sizeof units; size++) CHECK(gv_unacked_restore(&k, units, size) == (size == 24));
    gv_unacked_free(&k);
    gv_unacked_init_frames(&k, 8);
    CHECK(gv_unacked_restore(&k, units, sizeof units) && gv_unacked_bytes(&k) == sizeof units);
    for (uint32_t lie = 0; lie < 64; lie += lie == 24 ? 9 : 1) {
        units[6] = lie == 24 ? 32 : lie;
        CHECK(units[6] == 24 || !gv_unacked_restore(&k, units, sizeof units));
    }
    gv_unacked_free(&k);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"lying_sizes", lying_sizes},
        {"numbers", numbers},
        {"repeated", repeated},
        {"in_pieces", in_pieces},
        {"tail_lies", tail_lies},
        {"beyond", beyond},
        {"head_lies", head_lies},
        {"bulk_tail_lies", bulk_tail_lies},
        {"changing_record", changing_record},
        {"bytes_on_the_socket", bytes_on_the_socket},
        {"odd_flags", odd_flags},
        {"bulk_headers", bulk_headers},
        {"bulk_frames", bulk_frames},
        {"acknowledged_before_sent", acknowledged_before_sent},
        {"taken_up_with_lies", taken_up_with_lies},
        {"taken_up_with_garbage", taken_up_with_garbage},
        {"taken_up_in_the_middle", taken_up_in_the_middle},
        {"wrong_memory", wrong_memory},
        {"units_of_a_link_that_moves", units_of_a_link_that_moves},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
