/* A client that writes into the worker's memory what no client of ours would: the worker's end dies of it with a reason, and reads nothing that is not there. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "../../../native/transport/verbs/verbs.h"
#include "../check.h"
#include "devices_fixture.h"
#include "pair.h"

static void await_death(struct gv_link *link, const char *why) {
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    while (!gv_link_dead(link) && gv_now_ns() < until) {
        if (gv_recv_peek(link)) gv_recv_consume(link);
        gv_recv_wait(link, 1000000, 0);
    }
    CHECK_TEXT(gv_link_death(link), why);
}

/* A write with these news behind it, over the queue of records or of payloads; not if the client has closed it, because the worker's end is dead. */
static void post(struct gv_link *client, bool payloads, const void *from, uint32_t size, uint64_t to, uint32_t news) {
    struct verbs *v = (struct verbs *)client;
    struct verbs_queue *q = payloads ? &v->bulk[0] : &v->queue;
    CHECK(size <= q->inline_most);
    gv_spin_lock(&q->posting);
    if (q->qp) CHECK(gv_verbs_queue_post(q, &(struct verbs_write){.from = from, .to = to, .size = size, .tells = true, .news = news}, 1, false, 0));
    gv_spin_unlock(&q->posting);
}

static void *read_payloads(void *worker) {
    struct gv_bulk_header h;
    while (gv_bulk_recv_header(worker, &h) == 0) {
    }
    return NULL;
}

static void records_beyond_the_ring(void) {
    struct pair p = make_pair("verbs");
    post(p.client, false, NULL, 0, ((struct verbs *)p.client)->peer_records, verbs_news(VERBS_ARRIVED, (VERBS_RECORD_RING + 8) / 8));
    await_death(p.worker, "malformed record");
    close_pair(&p);
}

static void a_record_of_no_size(void) {
    struct pair p = make_pair("verbs");
    const struct gv_record record = {.size = 4711 * 8};
    post(p.client, false, &record, sizeof record, ((struct verbs *)p.client)->peer_records, verbs_news(VERBS_ARRIVED, sizeof record / 8));
    await_death(p.worker, "malformed record");
    close_pair(&p);
}

/* There is room for one more write at the worker's end. */
static bool room(struct verbs *client) {
    gv_verbs_poll_bulk(client);
    gv_spin_lock(&client->bulk[0].posting);
    bool room = client->bulk[0].qp && gv_verbs_queue_room(&client->bulk[0], 1, 1, false);
    gv_spin_unlock(&client->bulk[0].posting);
    return room;
}

/* Of no bytes; of those that came already; and too many ahead of what is missing. */
static void slices_that_do_not_follow(void) {
    const uint8_t bytes[8] = {1};
    for (int i = 0; i < 3; i++) {
        struct pair p = make_pair("verbs");
        struct verbs *client = (struct verbs *)p.client;
        uint64_t at = client->peer_payloads;
        pthread_t reader;
        CHECK(pthread_create(&reader, NULL, read_payloads, p.worker) == 0);
        for (uint32_t n = 0; n <= VERBS_OUT_OF_ORDER && !gv_link_dead(p.worker) && !gv_link_dead(p.client); n++) {
            while (!room(client) && !gv_link_dead(p.worker)) usleep(100);
            post(p.client, true, bytes, i ? 8 : 0, at, verbs_news(VERBS_ARRIVED, i == 2 ? 100 + 16 * n : 8));
        }
        pthread_join(reader, NULL);
        CHECK_TEXT(gv_link_death(p.worker), "malformed payload: a slice that was not to come");
        close_pair(&p);
    }
}

/* A note that says more was read than was sent: found when the sender needs room. */
static void a_note_of_the_future(void) {
    struct pair p = make_pair("verbs");
    struct verbs *client = (struct verbs *)p.client;
    const uint64_t note[2] = {1ull << 40, 0};
    post(p.client, false, note, sizeof note, client->queue.note_address, verbs_news(VERBS_NOTE, 0));
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    while (send_numbered(p.worker, 60000, 1) && gv_now_ns() < until) gv_verbs_poll_records((struct verbs *)p.worker);
    CHECK_TEXT(gv_link_death(p.worker), "has read what was never sent");
    close_pair(&p);
}

static void bytes_on_the_connection(void) {
    struct pair p = make_pair("verbs");
    CHECK(write(((struct verbs *)p.client)->fd, "x", 1) == 1);
    await_death(p.worker, "bytes on the connection of a verbs link");
    close_pair(&p);
}

/* What a worker's end says to a first word that is none. */
static void strange_hellos(void) {
    for (int i = 0; i < 6; i++) {
        int fds[2];
        tcp_sockets(fds);
        struct gv_link *worker = adopt_verbs(fds[1]);
        struct verbs_hello hello = {.record = {.size = sizeof hello, .op = GV_RECORD_RESUME}, .n = 1};
        if (i == 0) hello.record.size--;
        if (i == 1) hello.n = GV_VERBS_RAILS_MAX + 1;
        if (i == 2) hello.record.epoch = 1;
        if (i == 3) hello.arrived = 8; /* of what we never sent */
        if (i == 4) hello.bulk_read = 1;
        if (i == 5) hello.n = 0; /* over TCP from the beginning */
        CHECK(write(fds[0], &hello, sizeof hello) == sizeof hello);
        if (i == 5) {
            const uint32_t words[2] = {0, 0};
            CHECK(write(fds[0], words, sizeof words) == sizeof words);
        }
        await_death(worker, i == 3 || i == 4 ? "makes no sense"
                            : i == 5         ? "none of this host's RDMA ports meets one of the server's"
                                             : "Protocol error");
        gv_link_close(worker);
        close(fds[0]);
    }
}

/* A worker's end that a client comes back to, on a thread of its own. */
struct coming_back {
    struct gv_link *link;
    int fd, outcome;
};

static void *resume(void *arg) {
    struct coming_back *r = arg;
    r->outcome = gv_link_resume(r->link, -1, r->fd, 1);
    return NULL;
}

/* A client that comes back and says that a part of a record has come: the worker's end counts what goes out again, and comes to an end with that. */
static void a_part_of_a_record_came(void) {
    struct pair p = make_pair("verbs");
    struct verbs *worker = (struct verbs *)p.worker;
    struct coming_back r = {p.worker, -1, -1};
    int fds[2];
    pthread_t thread;
    gv_link_set_grace(p.worker, TEST_PATIENCE_NS);
    CHECK(send_numbered(p.worker, 64, 0)); /* its second word is zero: no size */
    gv_send_flush(p.worker);
    while (atomic_load(&worker->handed_over) != atomic_load(&worker->out_control->tail)) usleep(100);
    tcp_sockets(fds);
    r.fd = fds[1];
    CHECK(pthread_create(&thread, NULL, resume, &r) == 0);
    struct verbs_hello hello = {.record = {.size = sizeof hello, .op = GV_RECORD_RESUME, .epoch = 1}, .arrived = 8};
    const uint32_t words[2] = {0, 0};
    CHECK(write(fds[0], &hello, sizeof hello) == sizeof hello && write(fds[0], words, sizeof words) == sizeof words);
    pthread_join(thread, NULL);
    CHECK(r.outcome == 0);
    close(fds[0]);
    gv_link_last(p.worker);
    close_pair(&p);
}

static void delay_completions(uint64_t ns) {
    for (uint32_t i = 0; i < GV_VERBS_RAILS_MAX; i++) atomic_store(&rail(i)->completion_delay_ns, ns);
}

/* The worker's end dies while a client comes back: its own thread closes the queues, which the thread that meets the client is just about to use. That they were
 * stopped does not show, for their completions are late. */
static void dies_between_two_words(void) {
    struct pair p = make_pair("verbs");
    struct verbs *worker = (struct verbs *)p.worker;
    struct coming_back r = {p.worker, -1, -1};
    int fds[2];
    pthread_t thread;
    gv_link_set_grace(p.worker, TEST_PATIENCE_NS);
    tcp_sockets(fds);
    r.fd = fds[1];
    struct verbs_hello theirs, hello = {.record = {.size = sizeof hello, .op = GV_RECORD_RESUME, .epoch = 1}, .n = 1};
    hello.rails[0].mtu = worker->rails[0].mtu;
    hello.rails[0].link_layer = worker->rails[0].link_layer;
    memcpy(hello.rails[0].gids[0], worker->rails[0].gids[0].gid.raw, sizeof hello.rails[0].gids[0]);
    CHECK(pthread_create(&thread, NULL, resume, &r) == 0);
    CHECK(write(fds[0], &hello, sizeof hello) == sizeof hello);
    CHECK(recv(fds[0], &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs && theirs.n == 1);
    uint32_t word;
    CHECK(recv(fds[0], &word, sizeof word, MSG_WAITALL) == sizeof word && word == 1); /* its queues take what comes */
    delay_completions(1000000000000);
    gv_spin_lock(&worker->bulk_posting);
    gv_link_kill(p.worker, "by the test");
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&worker->queue.posting); usleep(1000)) CHECK(gv_now_ns() < end);
    CHECK(write(fds[0], &word, sizeof word) == sizeof word);
    usleep(100000); /* now one of them has half of the locks, and the other waits for the first */
    gv_spin_unlock(&worker->bulk_posting);
    CHECK(recv(fds[0], &word, sizeof word, MSG_WAITALL) == sizeof word && word == 0); /* no rail works */
    close(fds[0]);
    pthread_join(thread, NULL);
    delay_completions(0);
    CHECK(r.outcome != 0 && !worker->queue.qp);
    close_pair(&p);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"records_beyond_the_ring", records_beyond_the_ring},     {"a_record_of_no_size", a_record_of_no_size},
        {"slices_that_do_not_follow", slices_that_do_not_follow}, {"a_note_of_the_future", a_note_of_the_future},
        {"bytes_on_the_connection", bytes_on_the_connection},     {"a_part_of_a_record_came", a_part_of_a_record_came},
        {"dies_between_two_words", dies_between_two_words},       {"strange_hellos", strange_hellos},
    };
    signal(SIGPIPE, SIG_IGN);
    open_fabric();
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
