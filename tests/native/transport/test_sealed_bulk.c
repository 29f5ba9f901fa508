/* Sealed bulk channels and somebody in between: whatever is done to a frame is noticed, cuts the channel, and never gives a wrong byte. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "../../../native/transport/resume.h"
#include "../check.h"
#include "hostile_relay.h"
#include "mini_server.h"
#include "numbered_bytes.h"
#include "pair.h"

#define GRACE_S 100
#define AGAIN "altered on their way, again and again"

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    return x;
}

/* ---- a worker's end, and its peer by hand: one channel, which comes again and again */

#define FRAME_TEST_MOST 256

struct raw {
    struct gv_link *link;
    int main_fd, fd;
    uint32_t epoch;            /* the next */
    uint64_t number, position; /* of the next payload */
    struct gv_seal *out, *in;
    uint64_t next_out;
    _Atomic uint64_t payloads;
    pthread_t reader;
};

#define BODY 24

/* Payloads come whole and in order, whatever else has come before them. */
static void *read_payloads(void *arg) {
    struct raw *raw = arg;
    struct gv_bulk_header h;
    uint8_t body[BODY];
    while (gv_bulk_recv_header(raw->link, &h) == 0) {
        uint64_t n = atomic_load(&raw->payloads) + 1;
        CHECK(h.number == n && h.tag == ~n && h.size == BODY);
        if (gv_bulk_recv(raw->link, body, BODY)) break;
        for (int i = 0; i < BODY; i++) CHECK(body[i] == (uint8_t)(n * 7 + (uint64_t)i));
        atomic_store(&raw->payloads, n);
    }
    return NULL;
}

static void open_raw(struct raw *raw) {
    int fds[2];
    memset(raw, 0, sizeof *raw);
    tcp_sockets(fds);
    raw->main_fd = fds[0];
    raw->fd = -1;
    raw->link = adopt_sealed(fds[1]);
    CHECK(raw->link);
    gv_link_set_grace(raw->link, (int64_t)GRACE_S * 1000000000);
    CHECK(pthread_create(&raw->reader, NULL, read_payloads, raw) == 0);
}

static void leave_channel(struct raw *raw) {
    gv_seal_free(raw->out);
    gv_seal_free(raw->in);
    raw->out = raw->in = NULL;
    if (raw->fd >= 0) close(raw->fd);
    raw->fd = -1;
}

static void close_raw(struct raw *raw) {
    gv_link_kill(raw->link, "the test is over");
    pthread_join(raw->reader, NULL);
    leave_channel(raw);
    gv_link_close(raw->link);
    close(raw->main_fd);
}

static struct tcp_channel *channel_of(struct raw *raw) { return &((struct tcp *)raw->link)->bulk.channels[0]; }

/* Seals as the client's end does; the frame's size. */
static size_t seal(struct raw *raw, struct tcp_frame head, const void *body, void *to) {
    uint8_t *p = to;
    memcpy(p, &head, sizeof head);
    struct iovec piece = {(void *)(uintptr_t)body, body ? head.size : 0};
    p += sizeof head;
    CHECK(gv_seal_seal(raw->out, raw->next_out++, &head, sizeof head, &piece, 1, p, p + piece.iov_len));
    return sizeof head + piece.iov_len + GV_SEAL_TAG;
}

static size_t greeting(struct raw *raw, void *to) { return seal(raw, (struct tcp_frame){TCP_CHANNEL_MAGIC, 1, 0}, NULL, to); }

/* The next payload, in a frame. */
static size_t payload(struct raw *raw, void *to) {
    struct {
        struct gv_bulk_header header;
        uint8_t body[BODY];
    } p = {.header = {.magic = GV_BULK_MAGIC, .number = raw->number + 1, .tag = ~(raw->number + 1), .size = BODY}};
    for (int i = 0; i < BODY; i++) p.body[i] = (uint8_t)((raw->number + 1) * 7 + (uint64_t)i);
    return seal(raw, (struct tcp_frame){TCP_FRAME_MAGIC, sizeof p, raw->position}, &p, to);
}

static void new_keys(struct raw *raw) {
    char why[GV_DEATH_TEXT];
    leave_channel(raw);
    raw->out = gv_seal_new(&test_secret, true, true, GV_SEAL_BULK, 0, raw->epoch, why);
    raw->in = gv_seal_new(&test_secret, true, false, GV_SEAL_BULK, 0, raw->epoch, why);
    raw->next_out = 0;
    CHECK(raw->out && raw->in);
}

/* Another connection for the channel, on which the peer says this first. */
static int attach(struct raw *raw, const void *said, size_t size, uint32_t epoch) {
    int fds[2];
    tcp_sockets(fds);
    struct timeval patience = {.tv_sec = TEST_PATIENCE_NS / 1000000000};
    CHECK(setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    raw->fd = fds[0];
    CHECK(send(fds[0], said, size, MSG_NOSIGNAL) == (ssize_t)size);
    if (epoch) return gv_link_resume(raw->link, 0, fds[1], epoch);
    int outcome = gv_link_add_channel(raw->link, 0, fds[1]);
    if (outcome) close(fds[1]);
    return outcome;
}

/* The same with a greeting as it should be; the link says which byte it wants. */
static void attach_well(struct raw *raw) {
    uint8_t said[FRAME_TEST_MOST];
    struct {
        struct tcp_frame frame;
        uint8_t tag[GV_SEAL_TAG];
    } heard;
    new_keys(raw);
    CHECK(attach(raw, said, greeting(raw, said), raw->epoch++) == 0);
    CHECK(recv(raw->fd, &heard, sizeof heard, MSG_WAITALL) == sizeof heard);
    CHECK(gv_seal_open(raw->in, 0, &heard.frame, sizeof heard.frame, heard.tag, 0, heard.tag, heard.tag));
    CHECK(heard.frame.magic == TCP_CHANNEL_MAGIC && heard.frame.position == raw->position);
}

static void say(struct raw *raw, const void *bytes, size_t size) { (void)!send(raw->fd, bytes, size, MSG_NOSIGNAL); /* it may have heard enough */ }

/* The next payload as it should be, which is taken. */
static void pay(struct raw *raw) {
    uint8_t frame[FRAME_TEST_MOST];
    say(raw, frame, payload(raw, frame));
    raw->number++;
    raw->position += sizeof(struct gv_bulk_header) + BODY;
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&raw->payloads) < raw->number;) {
        CHECK(!gv_link_dead(raw->link) && gv_now_ns() < until);
        usleep(20);
    }
}

static void await_cut(struct raw *raw) {
    struct tcp_bulk *b = &((struct tcp *)raw->link)->bulk;
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS;;) {
        pthread_mutex_lock(&b->lock);
        bool up = channel_of(raw)->up;
        pthread_mutex_unlock(&b->lock);
        CHECK(!gv_link_dead(raw->link) && gv_now_ns() < until);
        if (!up) return;
        usleep(20);
    }
}

static void await_death(struct raw *raw, const char *text) {
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !gv_link_dead(raw->link);) {
        CHECK(gv_now_ns() < until);
        usleep(100);
    }
    CHECK_TEXT(gv_link_death(raw->link), text);
}

/* A frame of which one bit is another one cuts the channel and is counted; the bytes come with the next connection. */
static void every_bit_of_a_frame(void) {
    static const uint8_t zeros[TCP_SEALED_MOST + 64];
    struct raw raw;
    uint8_t frame[FRAME_TEST_MOST];
    size_t size = sizeof(struct tcp_frame) + sizeof(struct gv_bulk_header) + BODY + GV_SEAL_TAG;
    open_raw(&raw);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        struct tcp_frame claimed;
        attach_well(&raw);
        CHECK(payload(&raw, frame) == size);
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        memcpy(&claimed, frame, sizeof claimed);
        say(&raw, frame, size);
        if (claimed.size <= TCP_SEALED_MOST) say(&raw, zeros, claimed.size); /* what it may wait for */
        await_cut(&raw);
        CHECK(link_counts(raw.link).altered == bit + 1 && atomic_load(&raw.payloads) == raw.number);
        attach_well(&raw);
        pay(&raw);
    }
    close_raw(&raw);
}

/* A greeting of which one bit is another one is nobody's: the channel stays down, and the next connection may be the one. */
static void every_bit_of_a_greeting(void) {
    struct raw raw;
    uint8_t said[FRAME_TEST_MOST];
    size_t size = sizeof(struct tcp_frame) + GV_SEAL_TAG;
    open_raw(&raw);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        new_keys(&raw);
        CHECK(greeting(&raw, said) == size);
        said[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(attach(&raw, said, size, raw.epoch++) == -1);
        CHECK(!gv_link_dead(raw.link) && link_counts(raw.link).altered == bit + 1);
        attach_well(&raw);
        pay(&raw);
    }
    close_raw(&raw);
}

/* What was said under an epoch's key is said once, also when the connection came to nothing. */
static void an_epoch_once(void) {
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        struct raw raw;
        uint8_t said[FRAME_TEST_MOST], byte;
        open_raw(&raw);
        raw.epoch = epoch;
        new_keys(&raw);
        size_t size = greeting(&raw, said);
        said[20] ^= 1;
        CHECK(attach(&raw, said, size, epoch) == -1);
        new_keys(&raw);
        CHECK(attach(&raw, said, greeting(&raw, said), epoch) == -1);
        CHECK(recv(raw.fd, &byte, 1, 0) <= 0); /* not a word */
        raw.epoch++;
        attach_well(&raw);
        pay(&raw);
        close_raw(&raw);
    }
}

/* Frames with a right tag that are not the next. */
static void not_the_next(void) {
    for (int i = 0; i < 7; i++) {
        struct raw raw;
        uint8_t frame[FRAME_TEST_MOST], before[FRAME_TEST_MOST];
        open_raw(&raw);
        attach_well(&raw);
        size_t size = payload(&raw, before);
        raw.next_out--;
        pay(&raw);
        if (i == 0) memcpy(frame, before, size);          /* again */
        if (i == 1) raw.next_out++, payload(&raw, frame); /* one lacks */
        if (i == 2) {                                     /* in the clear */
            memset(frame, 0, sizeof frame);
            memcpy(frame, &(struct tcp_frame){TCP_FRAME_MAGIC, (uint32_t)(size - FRAME_ROOM), raw.position}, sizeof(struct tcp_frame));
        }
        if (i == 3) raw.next_out = 0, payload(&raw, frame); /* with the greeting's nonce */
        if (i == 4) {                                       /* another channel's */
            char why[GV_DEATH_TEXT];
            gv_seal_free(raw.out);
            raw.out = gv_seal_new(&test_secret, true, true, GV_SEAL_BULK, 1, raw.epoch - 1, why);
            payload(&raw, frame);
        }
        if (i == 5) { /* the epoch before */
            uint64_t next = raw.next_out;
            attach_well(&raw);
            char why[GV_DEATH_TEXT];
            gv_seal_free(raw.out);
            raw.out = gv_seal_new(&test_secret, true, true, GV_SEAL_BULK, 0, raw.epoch - 2, why);
            raw.next_out = next;
            payload(&raw, frame);
        }
        if (i == 6) { /* the link's own words */
            struct gv_bulk_header h;
            struct tcp_frame head;
            CHECK(gv_bulk_send(raw.link, 1, before, BODY) == 1);
            CHECK(recv(raw.fd, frame, FRAME_ROOM + sizeof h, MSG_WAITALL | MSG_PEEK) >= (ssize_t)(FRAME_ROOM + sizeof h));
            memcpy(&head, frame, sizeof head);
            size = FRAME_ROOM + head.size;
            CHECK(recv(raw.fd, frame, size, MSG_WAITALL) == (ssize_t)size);
        }
        say(&raw, frame, size);
        await_cut(&raw);
        CHECK(link_counts(raw.link).altered == 1);
        attach_well(&raw);
        pay(&raw);
        close_raw(&raw);
    }
}

/* What the peer itself seals and is nonsense is the end. */
static void nonsense_well_sealed(void) {
    static const uint8_t bytes[TCP_SEALED_MOST];
    static const struct tcp_frame lies[] = {
        {TCP_FRAME_MAGIC, 40, 1}, {TCP_FRAME_MAGIC, 0, 0}, {TCP_CHANNEL_MAGIC, 40, 0}, {TCP_FRAME_MAGIC, 40, UINT64_MAX}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct raw raw;
        uint8_t frame[FRAME_TEST_MOST];
        open_raw(&raw);
        attach_well(&raw);
        say(&raw, frame, seal(&raw, lies[i], bytes, frame));
        await_death(&raw, "malformed payload on the bulk channel");
        CHECK(link_counts(raw.link).altered == 0);
        close_raw(&raw);
    }
    /* Past the end of its stripe. */
    struct raw raw;
    uint8_t *frame = malloc(FRAME_ROOM + TCP_SEALED_MOST);
    open_raw(&raw);
    attach_well(&raw);
    atomic_store(&((struct tcp *)raw.link)->bulk.received, TCP_STRIPE - 100);
    say(&raw, frame, seal(&raw, (struct tcp_frame){TCP_FRAME_MAGIC, 101, TCP_STRIPE - 100}, bytes, frame));
    await_death(&raw, "malformed payload on the bulk channel");
    close_raw(&raw);
    free(frame);
}

/* ---- somebody in between */

#define PAYLOADS 150

struct session {
    struct relayed r;
    _Atomic int receiving;
};

static void open_session(struct session *s, const char *link, enum mischief mischief, int after) {
    relayed_open(&s->r, link, mischief, after, true);
    atomic_store(&s->receiving, 0);
}

struct flow {
    struct session *s;
    struct gv_link *link;
    uint64_t payloads;
};

static uint64_t size_of(uint64_t n) { return mix(n) % (n % 4 ? 20000 : 700000); }

static void given_back(void *arg) { free(arg); }

static void *send_all(void *arg) {
    struct flow *f = arg;
    for (uint64_t n = 1; n <= f->payloads; n++) {
        uint8_t *data = malloc(size_of(n) + 1);
        fill_numbered(data, size_of(n), n);
        CHECK(gv_bulk_open(f->link, n, size_of(n)) == n && gv_bulk_part(f->link, data, size_of(n), given_back, data) == 0);
        if (n % 8 == 0) usleep(1000);
    }
    return NULL;
}

static void *receive_all(void *arg) {
    struct flow *f = arg;
    uint8_t *data = malloc(700000), *right = malloc(700000);
    for (uint64_t n = 1; n <= f->payloads; n++) {
        struct gv_bulk_header h;
        int ended = gv_bulk_recv_header(f->link, &h);
        if (ended) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
        CHECK(!ended && h.number == n && h.tag == n && h.size == size_of(n));
        CHECK(gv_bulk_recv(f->link, data, h.size) == 0);
        fill_numbered(right, h.size, n);
        CHECK(memcmp(data, right, h.size) == 0);
    }
    free(data);
    free(right);
    atomic_fetch_sub(&f->s->receiving, 1);
    return NULL;
}

/* Pulls the plug of one of the client's channels. */
static void pull(struct session *s, uint64_t chance) {
    struct tcp_bulk *b = &((struct tcp *)s->r.p.client)->bulk;
    pthread_mutex_lock(&b->lock);
    int fd = b->channels[chance % b->n].fd;
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&b->lock);
}

/* All payloads once. Returns how often the relay did its mischief; *noticed: how often the ends have counted it. */
static int one_session(enum mischief mischief, int after, const char *link, uint64_t *noticed) {
    struct session s;
    struct listening listeners[2];
    open_session(&s, link, mischief, after);
    struct flow flows[2] = {{&s, s.r.p.client, PAYLOADS}, {&s, s.r.p.worker, PAYLOADS}};
    pthread_t threads[4];
    atomic_store(&s.receiving, 2);
    listen_start(&listeners[0], s.r.p.client);
    listen_start(&listeners[1], s.r.p.worker);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i / 2 ? receive_all : send_all, &flows[i % 2]) == 0);
    for (uint64_t n = 0; mischief == REPLAYS && atomic_load(&s.receiving); n++) { /* somebody has to make it the connection before */
        usleep(20000);
        if (!atomic_load(&s.r.relay.done)) pull(&s, n);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    *noticed = relayed_noticed(&s.r); /* first: the relay goes on */
    int done = atomic_load(&s.r.relay.done);
    fprintf(stderr, "  %s: %d times, noticed %llu\n", link, done, (unsigned long long)*noticed);
    /* What was done behind the last payload, or to a connection that had just been cut, nobody looks at. */
    CHECK(*noticed <= (uint64_t)done);
    for (int i = 0; i < 2; i++) listen_stop(&listeners[i]);
    relayed_close(&s.r);
    return done;
}

/* Where the machine is busy a session may give the relay few chances: then there is another one. */
static void with_mischief(enum mischief mischief, int after, const char *link) {
    int done = 0;
    uint64_t seen = 0, noticed;
    for (int sessions = 0; sessions < 5 && done < 10; sessions++) {
        done += one_session(mischief, after, link, &noticed);
        seen += noticed;
    }
    CHECK(done >= 10 && seen >= 5);
}

static void with_each_number_of_channels(enum mischief mischief, int after) {
    if (mischief != DIVERTS) with_mischief(mischief, after, "sealed");
    with_mischief(mischief, after, "sealed(channels=4)");
}

static void altered(void) { with_each_number_of_channels(ALTERS, 10); }
static void dropped(void) { with_each_number_of_channels(DROPS, 10); }
static void repeated(void) { with_each_number_of_channels(REPEATS, 10); }
static void swapped(void) { with_each_number_of_channels(SWAPS, 10); }
static void replayed(void) { with_each_number_of_channels(REPLAYS, 10); }
static void reflected(void) { with_each_number_of_channels(REFLECTS, 10); }
static void diverted(void) { with_each_number_of_channels(DIVERTS, 10); }

/* Where every connection is altered the link ends, and says so. */
static void again_and_again(enum mischief mischief) {
    struct session s;
    struct gv_bulk_header h;
    open_session(&s, "sealed", mischief, 0);
    struct listening listening;
    static uint8_t bytes[100];
    CHECK(gv_bulk_open(s.r.p.worker, 1, sizeof bytes) == 1 && gv_bulk_part(s.r.p.worker, bytes, sizeof bytes, NULL, NULL) == 0);
    listen_start(&listening, s.r.p.client);
    if (mischief == ALTERS_EVERY_RECORD) {
        CHECK(gv_bulk_recv_header(s.r.p.client, &h) == -1);
    } else {
        for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !gv_link_dead(s.r.p.client) && gv_now_ns() < until;) usleep(1000);
    }
    CHECK_TEXT(gv_link_death(s.r.p.client), AGAIN);
    CHECK(link_counts(s.r.p.client).altered == GV_ALTERED_MOST && atomic_load(&s.r.relay.done) >= GV_ALTERED_MOST);
    listen_stop(&listening);
    relayed_close(&s.r);
}

static void every_payload_altered(void) { again_and_again(ALTERS_EVERY_RECORD); }
static void every_greeting_altered(void) { again_and_again(ALTERS_EVERY_RESUME); }

/* ---- what goes over the wire */

#define SEEN_MOST 100000
#define SEEN_AT 64 /* behind a payload's header, where the frame begins with one */

struct seen {
    uint8_t (*bytes)[16];
    _Atomic int n;
};

static void look(void *arg, const uint8_t *bytes, size_t size) {
    struct seen *s = arg;
    struct tcp_frame head;
    memcpy(&head, bytes, sizeof head);
    if (head.magic != TCP_FRAME_MAGIC || size < sizeof head + SEEN_AT + 16 + GV_SEAL_TAG) return;
    int n = atomic_load(&s->n);
    CHECK(n < SEEN_MOST);
    memcpy(s->bytes[n], bytes + sizeof head + SEEN_AT, 16);
    atomic_store(&s->n, n + 1);
}

static int compare(const void *a, const void *b) { return memcmp(a, b, 16); }

struct restless {
    uint8_t *data;
    uint64_t size;
    _Atomic bool over;
};

/* Writes to what is being sent. */
static void *write_on(void *arg) {
    struct restless *r = arg;
    for (uint8_t value = 1; !atomic_load(&r->over); value ^= 3) {
        memset(r->data, value, r->size);
        usleep(100);
    }
    return NULL;
}

/* Zeros, sealed, are what they are sealed with: that never comes twice, over whichever channel, each way, before and after cuts. */
static void no_nonce_twice(void) {
    static uint8_t zeros[3 << 20];
    struct session s;
    struct seen seen = {malloc(16 * SEEN_MOST), 0};
    open_session(&s, "sealed(channels=2)", ALTERS, 10);
    pthread_mutex_lock(&s.r.relay.lock);
    s.r.relay.look = look;
    s.r.relay.look_arg = &seen;
    pthread_mutex_unlock(&s.r.relay.lock);
    struct listening listeners[2];
    listen_start(&listeners[0], s.r.p.client);
    listen_start(&listeners[1], s.r.p.worker);
    for (uint64_t n = 1; n <= 6; n++) {
        struct gv_link *ends[2] = {s.r.p.client, s.r.p.worker};
        for (int i = 0; i < 2; i++) CHECK(gv_bulk_open(ends[i], n, sizeof zeros) == n && gv_bulk_part(ends[i], zeros, sizeof zeros, NULL, NULL) == 0);
        for (int i = 0; i < 2; i++) {
            struct gv_bulk_header h;
            CHECK(gv_bulk_recv_header(ends[i], &h) == 0 && h.number == n && gv_bulk_recv(ends[i], NULL, h.size) == 0);
        }
    }
    int n = atomic_load(&seen.n);
    uint64_t again = link_counts(s.r.p.client).bulk_resent + link_counts(s.r.p.worker).bulk_resent;
    fprintf(stderr, "  %d frames, %llu bytes again\n", n, (unsigned long long)again);
    CHECK(n > 200 && again > 0);
    qsort(seen.bytes, (size_t)n, 16, compare);
    for (int i = 1; i < n; i++) CHECK(compare(seen.bytes[i - 1], seen.bytes[i]) != 0);
    for (int i = 0; i < 2; i++) listen_stop(&listeners[i]);
    relayed_close(&s.r);
    free(seen.bytes);
}

/* Memory that is written while it is sent arrives as it was at some time, byte by byte, and no frame is taken for an altered one. */
static void sources_that_change(void) {
    struct session s;
    struct restless r = {.data = malloc(2 << 20), .size = 2 << 20};
    uint8_t *got = malloc(r.size);
    pthread_t writer;
    struct listening listening;
    memset(r.data, 1, r.size);
    open_session(&s, "sealed(channels=2)", LEAVES_ALONE, 0);
    listen_start(&listening, s.r.p.client);
    CHECK(pthread_create(&writer, NULL, write_on, &r) == 0);
    for (uint64_t n = 1; n <= 10; n++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_open(s.r.p.client, n, r.size) == n && gv_bulk_part(s.r.p.client, r.data, r.size, NULL, NULL) == 0);
        CHECK(gv_bulk_recv_header(s.r.p.worker, &h) == 0 && h.size == r.size && gv_bulk_recv(s.r.p.worker, got, r.size) == 0);
        for (uint64_t i = 0; i < r.size; i++) CHECK(got[i] == 1 || got[i] == 2);
    }
    CHECK(relayed_noticed(&s.r) == 0);
    atomic_store(&r.over, true);
    pthread_join(writer, NULL);
    listen_stop(&listening);
    relayed_close(&s.r);
    free(r.data);
    free(got);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"every_bit_of_a_frame", every_bit_of_a_frame},
        {"every_bit_of_a_greeting", every_bit_of_a_greeting},
        {"an_epoch_once", an_epoch_once},
        {"not_the_next", not_the_next},
        {"nonsense_well_sealed", nonsense_well_sealed},
        {"altered", altered},
        {"dropped", dropped},
        {"repeated", repeated},
        {"swapped", swapped},
        {"replayed", replayed},
        {"reflected", reflected},
        {"diverted", diverted},
        {"every_payload_altered", every_payload_altered},
        {"every_greeting_altered", every_greeting_altered},
        {"no_nonce_twice", no_nonce_twice},
        {"sources_that_change", sources_that_change},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
