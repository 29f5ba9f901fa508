/* Sealed links and somebody in between: whatever is done to a frame is noticed, cuts the connection, and never gives a wrong record. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "../../../native/transport/resume.h"
#include "../check.h"
#include "hostile_relay.h"
#include "mini_server.h"
#include "pair.h"
#include "sealed_peer.h"

#define GRACE_S 100
#define ALTERED "a frame was altered on its way"

/* ---- a worker's end, and its peer by hand */

struct raw {
    struct gv_link *link;
    int fd;
    struct sealed_peer peer;
};

static struct raw open_raw(void) {
    int fds[2], bulk[2];
    tcp_sockets(fds);
    tcp_sockets(bulk);
    struct timeval patience = {.tv_sec = TEST_PATIENCE_NS / 1000000000};
    CHECK(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    struct raw raw = {adopt_sealed(fds[1]), fds[0], sealed_peer(0)};
    close(bulk[0]);
    close(bulk[1]);
    CHECK(raw.link);
    return raw;
}

static void close_raw(struct raw *raw) {
    gv_link_close(raw->link);
    close(raw->fd);
    sealed_peer_free(&raw->peer);
}

static void say(struct raw *raw, const void *bytes, size_t size) { CHECK(send(raw->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size); }

struct numbered {
    struct gv_record record;
    uint64_t body[2];
};

static struct numbered numbered(uint64_t seq) {
    return (struct numbered){.record = {.size = sizeof(struct numbered), .op = (uint16_t)seq, .ctx = 7, .seq = seq}, .body = {seq, ~seq}};
}

/* A frame with the records from `first` to `last`. */
static size_t frame_of(struct sealed_peer *peer, uint64_t first, uint64_t last, void *frame) {
    static struct numbered records[64];
    for (uint64_t n = first; n <= last; n++) records[n - first] = numbered(n);
    return seal_records(peer, first, records, (last - first + 1) * sizeof *records, frame);
}

static struct tcp_note note(uint16_t op, uint32_t epoch, uint64_t seq) {
    return (struct tcp_note){.record = {.size = sizeof(struct tcp_note), .op = op, .epoch = epoch, .seq = seq}};
}

/* The next record is this one. */
static void expect(struct raw *raw, uint64_t seq) {
    const struct gv_record *got;
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    struct numbered right = numbered(seq);
    while (!(got = gv_recv_peek(raw->link))) {
        if (gv_link_dead(raw->link)) fprintf(stderr, "died: %s\n", gv_link_death(raw->link));
        CHECK(!gv_link_dead(raw->link) && gv_now_ns() < until);
        gv_recv_wait(raw->link, 10000000, 0);
    }
    CHECK(got->size == sizeof right && memcmp(got, &right, sizeof right) == 0);
    gv_recv_consume(raw->link);
}

/* Nothing comes out of the link but its end, or a cut. */
static void expect_cut(struct raw *raw, bool dies) {
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    while (dies ? !gv_link_dead(raw->link) : !gv_link_down(raw->link)) {
        CHECK(gv_recv_peek(raw->link) == NULL);
        CHECK(gv_now_ns() < until && (dies || !gv_link_dead(raw->link)));
        gv_recv_wait(raw->link, 1000000, 0);
    }
    CHECK(gv_recv_peek(raw->link) == NULL);
    struct gv_link_counts counts;
    gv_link_get_counts(raw->link, &counts);
    CHECK(counts.altered > 0);
    CHECK_TEXT(dies ? gv_link_death(raw->link) : raw->link->resume->cut_why, ALTERED);
}

/* Another connection, on which the peer says this as its RESUME. */
static int come_back(struct raw *raw, const void *said, size_t size, uint32_t epoch) {
    int fds[2];
    tcp_sockets(fds);
    struct timeval patience = {.tv_sec = TEST_PATIENCE_NS / 1000000000};
    CHECK(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    close(raw->fd);
    raw->fd = fds[0];
    say(raw, said, size);
    return gv_link_resume(raw->link, -1, fds[1], epoch);
}

/* The link says on its new connection that it has records up to `seq`. */
static void come_back_well(struct raw *raw, uint32_t epoch, uint64_t seq) {
    uint8_t frame[FRAME_BUFFER];
    sealed_peer_free(&raw->peer);
    raw->peer = sealed_peer(epoch);
    CHECK(come_back(raw, frame, seal_note(&raw->peer, 0, note(GV_RECORD_RESUME, epoch, 0), frame), epoch) == 0);
    struct gv_sealed_head head = hear_frame(&raw->peer, raw->fd, frame);
    struct tcp_note said;
    memcpy(&said, frame + sizeof head, sizeof said);
    CHECK(head.kind == GV_SEAL_NOTES && head.counter == 0 && said.record.op == GV_RECORD_RESUME && said.record.seq == seq);
}

/* ---- every bit */

/* What the worker's end reads with, by itself. */
static struct gv_framing_in worker_reads(void) {
    char why[GV_DEATH_TEXT];
    return (struct gv_framing_in){.records = gv_seal_new(&test_secret, false, false, GV_SEAL_RECORDS, 0, 0, why),
                                  .notes = gv_seal_new(&test_secret, false, false, GV_SEAL_NOTES, 0, 0, why),
                                  .next_note = 1,
                                  .next_seq = 1};
}

/* Frames behind each other, in a buffer that holds the longest that one may claim to be: with any bit of the first one flipped nothing comes of them, as
 * they are the first is taken. */
static void flip_each_bit(struct sealed_peer *peer, bool of_note) {
    struct gv_framing_in in = worker_reads();
    uint8_t *buffer = calloc(2, FRAME_MOST), frame[512];
    size_t size = of_note ? seal_note(peer, 1, note(GV_RECORD_ACK, 0, 0), frame) : frame_of(peer, 1, 5, frame);
    for (size_t bit = 0; bit <= 8 * size; bit++) {
        struct gv_framing_in fresh = in;
        size_t at = 0;
        char why[GV_DEATH_TEXT];
        memcpy(buffer, frame, size);
        seal_note(peer, 2, note(GV_RECORD_ACK, 0, 0), buffer + size);
        if (bit < 8 * size) buffer[bit / 8] ^= (uint8_t)(1u << bit % 8);
        enum gv_framed framed = gv_framing_look(&fresh, buffer, &at, 2 * FRAME_MOST, why);
        CHECK(framed == (bit < 8 * size ? GV_FRAMED_ALTERED : GV_FRAMED_RECORD));
        if (bit < 8 * size) CHECK(at == 0 && fresh.opened == 0 && fresh.next_seq == 1 && fresh.next_note == 1);
    }
    gv_seal_free(in.records);
    gv_seal_free(in.notes);
    free(buffer);
}

static void every_bit(void) {
    struct sealed_peer peer = sealed_peer(0);
    flip_each_bit(&peer, false);
    flip_each_bit(&peer, true);
    /* The first thing on a connection. */
    struct gv_framing_in in = worker_reads();
    uint8_t frame[NOTE_ROOM];
    struct tcp_note got;
    CHECK(seal_note(&peer, 0, note(GV_RECORD_RESUME, 0, 9), frame) == NOTE_ROOM);
    for (size_t bit = 0; bit < 8 * sizeof frame; bit++) {
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        in.next_note = 0;
        CHECK(!gv_framing_open_note(&in, frame, &got));
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    in.next_note = 0;
    CHECK(gv_framing_open_note(&in, frame, &got) && got.record.seq == 9);
    gv_seal_free(in.records);
    gv_seal_free(in.notes);
    sealed_peer_free(&peer);
}

/* What a link does about it: here and there a bit. */
static void some_bits(void) {
    for (size_t bit = 3; bit < 8 * (FRAME_ROOM + 2 * sizeof(struct numbered)); bit += bit < 160 ? 13 : 101) {
        struct raw raw = open_raw();
        static uint8_t frame[FRAME_BUFFER];
        size_t size = frame_of(&raw.peer, 1, 2, frame);
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        say(&raw, frame, size);
        uint32_t claimed;
        memcpy(&claimed, frame, sizeof claimed);
        if (claimed > size && claimed <= FRAME_MOST) { /* it waits for more: what follows is no part of it */
            static const uint8_t more[FRAME_BUFFER];
            (void)!send(raw.fd, more, sizeof more, MSG_NOSIGNAL);
        }
        expect_cut(&raw, true);
        close_raw(&raw);
    }
}

/* Such a connection is none of the session's; the next one may be. */
static void some_bits_of_a_resume(void) {
    struct raw raw = open_raw();
    uint32_t epoch = 1;
    gv_link_set_grace(raw.link, (int64_t)GRACE_S * 1000000000);
    for (size_t bit = 7; bit < 8 * NOTE_ROOM; bit += 79, epoch++) {
        uint8_t frame[NOTE_ROOM];
        sealed_peer_free(&raw.peer);
        raw.peer = sealed_peer(epoch);
        CHECK(seal_note(&raw.peer, 0, note(GV_RECORD_RESUME, epoch, 0), frame) == NOTE_ROOM);
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(come_back(&raw, frame, sizeof frame, epoch) == -1);
        CHECK(gv_link_down(raw.link) && !gv_link_dead(raw.link));
        struct gv_link_counts counts;
        gv_link_get_counts(raw.link, &counts);
        CHECK(counts.altered == epoch && counts.resumes == 0);
    }
    CHECK(epoch == 8); /* one more would have been the end */
    come_back_well(&raw, epoch, 0);
    close_raw(&raw);
}

/* ---- which frames are taken */

/* Frames that are what they say, but not the next. */
static void not_the_next(void) {
    for (int i = 0; i < 8; i++) {
        struct raw raw = open_raw();
        struct sealed_peer later = sealed_peer(1);
        uint8_t frame[512];
        size_t size = frame_of(&raw.peer, 1, 2, frame);
        say(&raw, frame, size);
        expect(&raw, 1);
        expect(&raw, 2);
        if (i == 0) size = size; /* again */
        if (i == 1) size = frame_of(&raw.peer, 2, 3, frame);
        if (i == 2) size = frame_of(&raw.peer, 4, 5, frame);
        if (i == 3) size = seal_note(&raw.peer, 0, note(GV_RECORD_ACK, 0, 0), frame);
        if (i == 4) size = seal_note(&raw.peer, 2, note(GV_RECORD_ACK, 0, 0), frame);
        if (i == 5) size = seal_note(&later, 1, note(GV_RECORD_ACK, 0, 0), frame); /* another connection's */
        if (i == 6) {                                                              /* the link's own words */
            CHECK(send_numbered(raw.link, 8, 1));
            gv_send_flush(raw.link);
            CHECK(recv(raw.fd, frame, FRAME_ROOM + 32, MSG_WAITALL) == (ssize_t)(FRAME_ROOM + 32));
            size = FRAME_ROOM + 32;
        }
        if (i == 7) { /* in the clear */
            struct numbered plain = numbered(3);
            memcpy(frame, &plain, sizeof plain);
            size = sizeof plain;
        }
        say(&raw, frame, size);
        expect_cut(&raw, true);
        close_raw(&raw);
        sealed_peer_free(&later);
    }
}

/* After a cut a frame comes again that was handed out in part: what follows is handed out once. What the link had looked at stays as it was. */
static void a_frame_comes_again(void) {
    for (uint64_t had = 1; had <= 5; had++) {
        for (int holding = 0; holding < 2; holding++) {
            struct raw raw = open_raw();
            uint8_t frame[512], next[512];
            size_t size = frame_of(&raw.peer, 1, 5, frame), next_size = frame_of(&raw.peer, 6, 6, next);
            gv_link_set_grace(raw.link, (int64_t)GRACE_S * 1000000000);
            say(&raw, frame, size);
            for (uint64_t n = 1; n < had + !holding; n++) expect(&raw, n);
            const struct gv_record *held = holding ? gv_recv_peek(raw.link) : NULL;
            for (int i = 0; holding && !held && i < 10000; i++) gv_recv_wait(raw.link, 10000000, 0), held = gv_recv_peek(raw.link);
            come_back_well(&raw, 1, had);
            if (holding) {
                struct numbered right = numbered(had);
                CHECK(held && gv_recv_peek(raw.link) == held && memcmp(held, &right, sizeof right) == 0);
                gv_recv_consume(raw.link);
            }
            if (had < 5) say(&raw, frame, size);
            for (uint64_t n = had + 1; n <= 5; n++) expect(&raw, n);
            say(&raw, next, next_size);
            expect(&raw, 6);
            CHECK(gv_recv_peek(raw.link) == NULL && !gv_link_down(raw.link));
            close_raw(&raw);
        }
    }
}

/* The first frame on another connection is the one with the next record, or it is cut again. */
static void another_frame_comes_first(void) {
    struct raw raw = open_raw();
    uint8_t frame[512];
    gv_link_set_grace(raw.link, (int64_t)GRACE_S * 1000000000);
    say(&raw, frame, frame_of(&raw.peer, 1, 5, frame));
    for (uint64_t n = 1; n <= 3; n++) expect(&raw, n);
    static const uint64_t wrong[][2] = {{1, 3}, {5, 5}, {6, 7}};
    for (uint32_t i = 0; i < 3; i++) {
        come_back_well(&raw, i + 1, 3);
        say(&raw, frame, frame_of(&raw.peer, wrong[i][0], wrong[i][1], frame));
        expect_cut(&raw, false);
    }
    come_back_well(&raw, 4, 3);
    say(&raw, frame, frame_of(&raw.peer, 4, 4, frame));
    expect(&raw, 4);
    close_raw(&raw);
}

/* What is said twice does not look the same, and a counter comes once. */
static void no_nonce_twice(void) {
    struct raw raw = open_raw();
    uint8_t frames[4][FRAME_ROOM + 64];
    for (uint64_t n = 0; n < 2; n++) {
        struct gv_record *record = gv_send_begin(raw.link, 64, NULL);
        CHECK(record);
        record->op = 1, record->flags = 0, record->ctx = 0;
        memset(record + 1, 0, 40);
        gv_send_commit(raw.link);
        gv_send_flush(raw.link);
        CHECK(recv(raw.fd, frames[n], FRAME_ROOM + 64, MSG_WAITALL) == (ssize_t)(FRAME_ROOM + 64));
        gv_tcp_ack_now((struct tcp *)raw.link);
        CHECK(recv(raw.fd, frames[2 + n], NOTE_ROOM, MSG_WAITALL) == (ssize_t)NOTE_ROOM);
    }
    for (int i = 0; i < 4; i += 2) {
        struct gv_sealed_head heads[2];
        for (int k = 0; k < 2; k++) memcpy(&heads[k], frames[i + k], sizeof *heads);
        CHECK(heads[0].kind == heads[1].kind && heads[1].counter == heads[0].counter + 1);
        /* Apart from its seq the second says what the first said. */
        CHECK(memcmp(frames[i] + sizeof *heads, frames[i + 1] + sizeof *heads, 8) != 0);
        if (i == 0) CHECK(memcmp(frames[i] + sizeof *heads + 24, frames[i + 1] + sizeof *heads + 24, 40) != 0);
    }
    close_raw(&raw);
}

/* A frame that went out and goes out again is the same, to the last bit. */
static void again_is_the_same(void) {
    struct raw raw = open_raw();
    uint8_t first[FRAME_ROOM + 32], again[sizeof first];
    gv_link_set_grace(raw.link, (int64_t)GRACE_S * 1000000000);
    CHECK(send_numbered(raw.link, 8, 1));
    gv_send_flush(raw.link);
    CHECK(recv(raw.fd, first, sizeof first, MSG_WAITALL) == (ssize_t)sizeof first);
    for (uint32_t epoch = 1; epoch < 4; epoch++) {
        come_back_well(&raw, epoch, 0);
        CHECK(recv(raw.fd, again, sizeof again, MSG_WAITALL) == (ssize_t)sizeof again && memcmp(first, again, sizeof again) == 0);
    }
    close_raw(&raw);
}

/* The peer has some records of a frame when the connection is cut: the frame comes again, and the link lives. */
static void cut_within_a_frame(void) {
    struct raw raw = open_raw();
    uint8_t *frame = malloc(FRAME_BUFFER);
    gv_link_set_grace(raw.link, (int64_t)GRACE_S * 1000000000);
    gv_spin_lock(&((struct tcp *)raw.link)->pushing); /* as somebody who sends */
    for (uint64_t n = 1; n <= 5; n++) CHECK(send_numbered(raw.link, 40, n));
    gv_spin_unlock(&((struct tcp *)raw.link)->pushing);
    gv_send_flush(raw.link);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        if (epoch) {
            sealed_peer_free(&raw.peer);
            raw.peer = sealed_peer(epoch);
            CHECK(come_back(&raw, frame, seal_note(&raw.peer, 0, note(GV_RECORD_RESUME, epoch, 3), frame), epoch) == 0);
            CHECK(hear_frame(&raw.peer, raw.fd, frame).kind == GV_SEAL_NOTES);
        }
        struct gv_sealed_head head = hear_frame(&raw.peer, raw.fd, frame);
        CHECK(head.kind == GV_SEAL_RECORDS && head.counter == 1 && head.size == FRAME_ROOM + 5 * 64 && !gv_link_dead(raw.link));
    }
    free(frame);
    close_raw(&raw);
}

/* Who has sent is ready to send more, and who has looked in vain to be sent more: the next frame is the one that was prepared for. */
static void the_next_is_prepared_for(void) {
    struct raw raw = open_raw();
    struct tcp *t = (struct tcp *)raw.link;
    uint8_t frame[FRAME_ROOM + 2 * sizeof(struct numbered)];
    for (uint64_t n = 1; n <= 9; n += 2) {
        struct gv_sealed_head next = {0, GV_SEAL_RECORDS, n};
        gv_recv_wait(raw.link, 0, 0);
        CHECK(gv_recv_peek(raw.link) == NULL && gv_seal_is_prepared(t->framing_in.records, n, &next, sizeof next));
        say(&raw, frame, frame_of(&raw.peer, n, n + 1, frame));
        expect(&raw, n);
        CHECK(!gv_seal_is_prepared(t->framing_in.records, n, &next, sizeof next)); /* it has been used */
        expect(&raw, n + 1);
        next.counter = n + 2;
        for (int i = 0; i < 2; i++) {
            CHECK(send_numbered(raw.link, 8, n + (uint64_t)i));
            gv_send_flush(raw.link);
            struct gv_sealed_head head = hear_frame(&raw.peer, raw.fd, frame);
            CHECK(head.kind == GV_SEAL_RECORDS && head.counter == n + (uint64_t)i);
        }
        gv_spin_lock(&t->pushing); /* our own thread may have been the one who sent */
        CHECK(gv_seal_is_prepared(t->framing_out.records, n + 2, &next, sizeof next));
        gv_spin_unlock(&t->pushing);
    }
    close_raw(&raw);
}

/* The two ends do not agree on the secret, or that there is one. */
static void secrets_differ(void) {
    for (int i = 0; i < 3; i++) {
        struct gv_link_secret other = test_secret;
        int fds[2];
        char why[GV_DEATH_TEXT];
        other.key[31] ^= i == 0;
        tcp_sockets(fds);
        struct pair p = {gv_tcp_new(&(struct gv_endpoint){.fd = fds[0], .seal = i == 1 ? NULL : &other}, true, why),
                         i == 2 ? adopt_tcp(fds[1]) : adopt_sealed(fds[1])};
        CHECK(p.client && p.worker);
        for (uint64_t n = 1; n <= 20; n++) send_numbered(p.client, 600, n);
        gv_send_flush(p.client);
        CHECK(receive_numbered(p.worker, 1) == -1);
        CHECK_TEXT(gv_link_death(p.worker), i == 2 ? "malformed record" : ALTERED);
        close_pair(&p);
    }
}

/* ---- frames of many records */

/* A burst goes out in few frames, each of whole records. */
static void a_burst_is_few_frames(void) {
    struct raw raw = open_raw();
    uint8_t *frame = malloc(FRAME_BUFFER);
    uint64_t seq = 1, frames = 0;
    gv_spin_lock(&((struct tcp *)raw.link)->pushing); /* as somebody who sends */
    for (uint64_t n = 1; n <= 4000; n++) CHECK(send_numbered(raw.link, 40, n));
    gv_spin_unlock(&((struct tcp *)raw.link)->pushing);
    gv_send_flush(raw.link);
    for (; seq <= 4000; frames++) {
        struct gv_sealed_head head = hear_frame(&raw.peer, raw.fd, frame);
        CHECK(head.kind == GV_SEAL_RECORDS && head.counter == seq && head.size <= FRAME_ROOM + (64 << 10) && (head.size - FRAME_ROOM) % 64 == 0);
        seq += (head.size - FRAME_ROOM) / 64;
    }
    CHECK(seq == 4001 && frames == 4); /* 250 KiB */
    free(frame);
    close_raw(&raw);
}

/* ---- somebody in between */

#define RECORDS 5000

struct session {
    struct relayed r;
    _Atomic bool over;
};

static void open_session(struct session *s, enum mischief mischief, int after) {
    relayed_open(&s->r, "sealed", mischief, after, false);
    atomic_store(&s->over, false);
}

struct flow {
    struct session *s;
    struct gv_link *link;
    uint64_t records;
    _Atomic int *receiving;
};

static uint32_t body_of(uint64_t n) { return (uint32_t)(n * 2654435761u >> 7) % (n % 50 ? 400 : 60000) & ~7u; }

static void *send_all(void *arg) {
    struct flow *f = arg;
    for (uint64_t n = 1; n <= f->records; n++) {
        CHECK(send_numbered(f->link, body_of(n), n));
        if (n % 7 == 0) gv_send_flush(f->link);
        if (n % 64 == 0) usleep(200);
    }
    gv_send_flush(f->link);
    return NULL;
}

static void *receive_all(void *arg) {
    struct flow *f = arg;
    for (uint64_t n = 1; n <= f->records; n++) {
        int64_t body = receive_numbered(f->link, n);
        if (body < 0) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
        CHECK(body == body_of(n));
    }
    atomic_fetch_sub(f->receiving, 1);
    while (!atomic_load(&f->s->over)) { /* the other side still sends, and wants to hear what we have */
        CHECK(gv_recv_peek(f->link) == NULL && !gv_link_dead(f->link));
        gv_recv_wait(f->link, 10000000, 0);
    }
    return NULL;
}

/* Records both ways: they come, in order, as they were sent, and each mischief has been noticed. Counts those, and the resumes. */
static void session_with(enum mischief mischief, int after, int *done, uint64_t *resumes) {
    struct session s;
    open_session(&s, mischief, after);
    _Atomic int receiving = 2;
    struct flow flows[2] = {{&s, s.r.p.client, RECORDS, &receiving}, {&s, s.r.p.worker, RECORDS, &receiving}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i / 2 ? receive_all : send_all, &flows[i % 2]) == 0);
    while (atomic_load(&s.r.relay.passed) < 50) usleep(100);
    if (mischief == REPLAYS) gv_resume_cut(s.r.p.client->resume, "pulled", 0); /* for there to be an earlier connection */
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    while (atomic_load(&receiving)) usleep(1000);
    atomic_store(&s.r.relay.mischief, LEAVES_ALONE);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !relayed_noticed_all(&s.r) && gv_now_ns() < until;) usleep(1000);
    atomic_store(&s.over, true);
    for (int i = 2; i < 4; i++) pthread_join(threads[i], NULL);
    fprintf(stderr, "  %d times, noticed %llu, %llu resumes, %d connections\n", atomic_load(&s.r.relay.done),
            (unsigned long long)relayed_noticed(&s.r), (unsigned long long)link_counts(s.r.p.client).resumes, atomic_load(&s.r.relay.connections));
    CHECK(relayed_noticed_all(&s.r));
    *done += atomic_load(&s.r.relay.done);
    *resumes += link_counts(s.r.p.client).resumes;
    relayed_close(&s.r);
}

/* On a busy machine a session has few frames, each of many records, and with them few chances; several mischiefs may be one connection's. */
static void with_mischief(enum mischief mischief, int after) {
    int done = 0;
    uint64_t resumes = 0;
    for (int sessions = 0; done < 5 || resumes < 5; sessions++) {
        CHECK(sessions < 20);
        session_with(mischief, after, &done, &resumes);
    }
}

static void altered(void) { with_mischief(ALTERS, 40); }
static void dropped(void) { with_mischief(DROPS, 40); }
static void repeated(void) { with_mischief(REPEATS, 40); }
static void swapped(void) { with_mischief(SWAPS, 40); }
static void replayed(void) { with_mischief(REPLAYS, 40); }
static void replayed_first(void) { with_mischief(REPLAYS, 10); }
static void reflected(void) { with_mischief(REFLECTS, 40); }

/* Where every connection is altered the link ends, and says so. */
static void again_and_again(enum mischief mischief) {
    struct session s;
    open_session(&s, mischief, 0);
    for (uint64_t n = 1; n <= 10; n++) CHECK(send_numbered(s.r.p.worker, 80, n));
    gv_send_flush(s.r.p.worker);
    if (mischief == ALTERS_EVERY_RESUME) gv_resume_cut(s.r.p.client->resume, "pulled", 0);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !gv_link_dead(s.r.p.client) && gv_now_ns() < until;) {
        const struct gv_record *got = gv_recv_peek(s.r.p.client);
        if (mischief == ALTERS_EVERY_RECORD) CHECK(!got);
        if (got) gv_recv_consume(s.r.p.client);
        gv_recv_wait(s.r.p.client, 10000000, 0);
    }
    CHECK_TEXT(gv_link_death(s.r.p.client), "altered on their way, again and again");
    /* The records may be several frames of a connection, all altered: the first is noticed, what follows it is nothing to go by. */
    CHECK(link_counts(s.r.p.client).altered == GV_ALTERED_MOST && atomic_load(&s.r.relay.done) >= GV_ALTERED_MOST);
    relayed_close(&s.r);
}

static void every_record_altered(void) { again_and_again(ALTERS_EVERY_RECORD); }
static void every_resume_altered(void) { again_and_again(ALTERS_EVERY_RESUME); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"every_bit", every_bit},
        {"some_bits", some_bits},
        {"some_bits_of_a_resume", some_bits_of_a_resume},
        {"not_the_next", not_the_next},
        {"a_frame_comes_again", a_frame_comes_again},
        {"another_frame_comes_first", another_frame_comes_first},
        {"no_nonce_twice", no_nonce_twice},
        {"again_is_the_same", again_is_the_same},
        {"cut_within_a_frame", cut_within_a_frame},
        {"the_next_is_prepared_for", the_next_is_prepared_for},
        {"secrets_differ", secrets_differ},
        {"a_burst_is_few_frames", a_burst_is_few_frames},
        {"altered", altered},
        {"dropped", dropped},
        {"repeated", repeated},
        {"swapped", swapped},
        {"replayed", replayed},
        {"replayed_first", replayed_first},
        {"reflected", reflected},
        {"every_record_altered", every_record_altered},
        {"every_resume_altered", every_resume_altered},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
