/* Where a client whose connection was cut comes back, where it does not, and how each end learns of it. */
#define _GNU_SOURCE
#include "resume_fixture.h"

/* The server says that the session is parked, then where it is now: the client goes on there, and comes back there ever after. */
static void moved_while_away(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    while (!s.shares && !atomic_load(&s.server.channels)) usleep(1000);
    s.server.waits = 2;
    s.server.state = GV_STATE_PARKED;
    s.server.moves_to = s.server.url;
    atomic_store(&s.server.resume_moves, 1);
    int through_proxy = 0;
    for (uint64_t n = 1; n <= 3; n++) {
        gv_resume_cut(s.p.client->resume, "pulled", 0);
        CHECK(send_numbered(s.p.client, 64, n) && send_numbered(s.p.worker, 64, n));
        gv_send_flush(s.p.worker);
        CHECK(receive_numbered(s.p.worker, n) == 64 && receive_numbered(s.p.client, n) == 64);
        await_resumes(&s, n);
        if (n == 1) through_proxy = atomic_load(&s.cutter.connections);
    }
    CHECK(link_counts(s.p.client).resumes == 3 && atomic_load(&s.server.resumes) >= 4);
    CHECK(atomic_load(&s.cutter.connections) == through_proxy); /* the address it moved to is dialled at once */
    CHECK(atomic_load(&s.notices.n) >= 1);
    CHECK(strcmp(s.p.client->redial->address.url, s.server.url) == 0);
    close_session(&s);
}

/* Silence in the middle: the worker is told of another connection before it knows that the first one is of no use. */
static void worker_notices_last(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    int64_t began = gv_now_ns();
    for (uint64_t n = 1; n <= 20; n++) {
        gv_resume_cut(s.p.client->resume, "pulled", 0); /* our side alone: its end of file takes its time over the proxy */
        CHECK(send_numbered(s.p.client, 64, n) && send_numbered(s.p.worker, 64, n));
        gv_send_flush(s.p.worker);
        CHECK(receive_numbered(s.p.worker, n) == 64 && receive_numbered(s.p.client, n) == 64);
        await_resumes(&s, n);
        for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; link_counts(s.p.worker).resumes < n && gv_now_ns() < until;) usleep(1000);
    }
    CHECK(link_counts(s.p.worker).resumes == 20);
    while (gv_link_down(s.p.client) || gv_link_down(s.p.worker)) usleep(1000);
    for (struct gv_link **end = (struct gv_link *[]){s.p.client, s.p.worker, NULL}; *end; end++) {
        uint64_t down = link_counts(*end).down_ns;
        usleep(2000);
        CHECK(down > 0 && down == link_counts(*end).down_ns && (int64_t)down < gv_now_ns() - began);
    }
    close_session(&s);
}

/* A connection of an earlier life is no use to anybody. */
static void stale_epochs(const char *link) {
    struct session s;
    int fds[2];
    open_with(&s, NO_FAULT, link, GRACE_S);
    cutter_cut_all(&s.cutter);
    CHECK(send_numbered(s.p.client, 8, 1));
    gv_send_flush(s.p.client);
    CHECK(receive_numbered(s.p.worker, 1) == 8);
    await_resumes(&s, 1);
    for (uint32_t epoch = 0; epoch <= 1; epoch++) {
        tcp_sockets(fds);
        CHECK(gv_link_resume(s.p.worker, -1, fds[1], epoch) == -1);
        char byte;
        CHECK(recv(fds[0], &byte, 1, 0) == 0);
        close(fds[0]);
    }
    CHECK(!gv_link_down(s.p.worker) && !gv_link_dead(s.p.worker));
    CHECK(send_numbered(s.p.client, 8, 2));
    gv_send_flush(s.p.client);
    CHECK(receive_numbered(s.p.worker, 2) == 8);
    close_session(&s);
}

static void await_death(struct gv_link *link, int64_t limit_ns, const char *text) {
    int64_t until = gv_now_ns() + limit_ns;
    while (!gv_link_dead(link)) {
        CHECK(gv_now_ns() < until);
        gv_recv_peek(link);
        gv_recv_wait(link, 10000000, 0);
    }
    CHECK_TEXT(gv_link_death(link), text);
    CHECK(gv_send_begin(link, 40, NULL) == NULL);
}

static void unknown_session(const char *link) {
    struct session s;
    open_with(&s, RESUME_REFUSED, link, GRACE_S);
    cutter_cut_all(&s.cutter);
    await_death(s.p.client, TEST_PATIENCE_NS, "no such session");
    close_session(&s);
}

static void denied_session(const char *link) {
    struct session s;
    open_with(&s, RESUME_DENIED, link, GRACE_S);
    cutter_cut_all(&s.cutter);
    await_death(s.p.client, TEST_PATIENCE_NS, "the key of this session is another one");
    CHECK(s.server.resumes == 1 && link_counts(s.p.client).resumes == 0); /* asked once: the answer will be no other */
    close_session(&s);
}

static void server_gone(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    cutter_close(&s.cutter);
    await_death(s.p.client, TEST_PATIENCE_NS, "no gpuvirt server answers");
    close_session(&s);
}

static void unreachable_for_longer(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, 2);
    while (!s.shares && !atomic_load(&s.server.channels)) usleep(1000); /* its channels are dialled through the proxy, too */
    int64_t start = gv_now_ns();
    atomic_store(&s.cutter.refuse, true);
    cutter_cut_all(&s.cutter);
    await_death(s.p.client, TEST_PATIENCE_NS, "within the grace period of 2 s");
    CHECK(gv_now_ns() - start > 1900000000);
    CHECK_TEXT(s.notices.last, "trying again for up to 2 s");
    await_death(s.p.worker, TEST_PATIENCE_NS, "within the grace period of 2 s");
    close_session(&s);
}

static void unreachable_for_a_while(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    atomic_store(&s.cutter.refuse, true);
    cutter_cut_all(&s.cutter);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&s.notices.n) && gv_now_ns() < until;) { /* told after a second */
        CHECK(gv_recv_peek(s.p.client) == NULL);
        gv_recv_wait(s.p.client, 10000000, 0);
    }
    CHECK(gv_link_down(s.p.client) && !gv_link_dead(s.p.client));
    for (uint64_t n = 1; n <= 1000; n++) CHECK(send_numbered(s.p.client, 800, n));
    atomic_store(&s.cutter.refuse, false);
    for (uint64_t n = 1; n <= 1000; n++) CHECK(receive_numbered(s.p.worker, n) == 800);
    CHECK(atomic_load(&s.notices.n) == 1);
    CHECK_TEXT(s.notices.last, "trying again for up to 100 s");
    close_session(&s);
}

static void no_grace(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, 0);
    cutter_cut_all(&s.cutter);
    await_death(s.p.client, TEST_PATIENCE_NS, "");
    await_death(s.p.worker, TEST_PATIENCE_NS / 2, "");
    close_session(&s);
}

/* The launcher says that its program has ended: before the cut, and after it. */
static void client_gone(const char *link) {
    for (int before = 0; before < 2; before++) {
        struct session s;
        open_with(&s, NO_FAULT, link, GRACE_S);
        atomic_store(&s.cutter.refuse, true);
        if (before) gv_link_client_gone(s.p.worker);
        CHECK(!gv_link_dead(s.p.worker));
        cutter_cut_all(&s.cutter);
        for (int i = 0; i < 10000 && !gv_link_down(s.p.worker) && !gv_link_dead(s.p.worker); i++) {
            gv_recv_peek(s.p.worker);
            gv_recv_wait(s.p.worker, 10000000, 0);
        }
        if (!before) {
            CHECK(!gv_link_dead(s.p.worker));
            gv_link_client_gone(s.p.worker);
        }
        await_death(s.p.worker, TEST_PATIENCE_NS / 2, "");
        close_session(&s);
    }
}

/* And it is noticed when nobody reads, as where the worker's reader waits for something that cannot come any more. */
static void client_gone_unread(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    atomic_store(&s.cutter.refuse, true);
    gv_link_client_gone(s.p.worker);
    cutter_cut_all(&s.cutter);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS / 2; !gv_link_dead(s.p.worker) && gv_now_ns() < until;) usleep(10000);
    CHECK_TEXT(gv_link_death(s.p.worker), "closed the connection");
    close_session(&s);
}

/* ---- what a peer may not say on a new socket of shared memory */

struct note {
    struct gv_record record;
    struct gv_memory_id memory;
};

/* The worker is given a socket on which the client says this. */
static int resume_with(struct gv_link *worker, struct note note, uint32_t epoch) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    note.record.size = sizeof note;
    note.record.op = GV_RECORD_RESUME;
    CHECK(write(fds[0], &note, sizeof note) == sizeof note);
    int outcome = gv_link_resume(worker, -1, fds[1], epoch);
    close(fds[0]);
    return outcome;
}

static void shm_says_nonsense(void) {
    for (int i = 0; i < 4; i++) {
        struct pair p = make_pair("shm");
        struct note note = {.record = {.epoch = 1}, .memory = ((struct shm *)p.worker)->memory};
        gv_link_set_grace(p.worker, (int64_t)GRACE_S * 1000000000);
        CHECK(send_numbered(p.worker, 8, 1));
        note.record.seq = 1;
        if (i == 0) CHECK(resume_with(p.worker, note, 1) == 0 && !gv_link_dead(p.worker));
        if (i == 1) note.memory.inode++;
        if (i == 2) note.record.seq = 2;
        if (i == 3) note.record.epoch = 2;
        if (i) CHECK(resume_with(p.worker, note, 1) == -1);
        CHECK(gv_link_dead(p.worker) == (i == 1 || i == 2));
        if (i == 1) CHECK_TEXT(gv_link_death(p.worker), "another shared memory");
        if (i == 2) CHECK_TEXT(gv_link_death(p.worker), "what was never sent");
        if (i == 3) { /* that connection is of no use; the next one may be */
            CHECK(gv_link_down(p.worker) && resume_with(p.worker, note, 2) == 0);
        }
        if (!gv_link_dead(p.worker)) { /* it may not have less than it once had either */
            note.record.epoch = 3;
            note.record.seq = 0;
            CHECK(resume_with(p.worker, note, 3) == -1);
            CHECK_TEXT(gv_link_death(p.worker), "lacks what it had acknowledged");
        }
        close_pair(&p);
    }
}

ON_EACH(worker_notices_last)
ON_EACH(stale_epochs)
ON_EACH(unknown_session)
ON_EACH(denied_session)
ON_EACH(server_gone)
ON_EACH(unreachable_for_longer)
ON_EACH(unreachable_for_a_while)
ON_EACH(no_grace)
ON_EACH(client_gone)
ON_EACH(client_gone_unread)
ON_EACH(moved_while_away)

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"worker_notices_last", tcp_worker_notices_last},
        {"sealed_worker_notices_last", sealed_worker_notices_last},
        {"shm_worker_notices_last", shm_worker_notices_last},
        {"verbs_worker_notices_last", verbs_worker_notices_last},
        {"stale_epochs", tcp_stale_epochs},
        {"sealed_stale_epochs", sealed_stale_epochs},
        {"shm_stale_epochs", shm_stale_epochs},
        {"verbs_stale_epochs", verbs_stale_epochs},
        {"unknown_session", tcp_unknown_session},
        {"sealed_unknown_session", sealed_unknown_session},
        {"shm_unknown_session", shm_unknown_session},
        {"verbs_unknown_session", verbs_unknown_session},
        {"denied_session", tcp_denied_session},
        {"sealed_denied_session", sealed_denied_session},
        {"shm_denied_session", shm_denied_session},
        {"verbs_denied_session", verbs_denied_session},
        {"server_gone", tcp_server_gone},
        {"sealed_server_gone", sealed_server_gone},
        {"shm_server_gone", shm_server_gone},
        {"verbs_server_gone", verbs_server_gone},
        {"unreachable_for_longer", tcp_unreachable_for_longer},
        {"sealed_unreachable_for_longer", sealed_unreachable_for_longer},
        {"shm_unreachable_for_longer", shm_unreachable_for_longer},
        {"verbs_unreachable_for_longer", verbs_unreachable_for_longer},
        {"unreachable_for_a_while", tcp_unreachable_for_a_while},
        {"sealed_unreachable_for_a_while", sealed_unreachable_for_a_while},
        {"shm_unreachable_for_a_while", shm_unreachable_for_a_while},
        {"verbs_unreachable_for_a_while", verbs_unreachable_for_a_while},
        {"no_grace", tcp_no_grace},
        {"sealed_no_grace", sealed_no_grace},
        {"shm_no_grace", shm_no_grace},
        {"verbs_no_grace", verbs_no_grace},
        {"client_gone", tcp_client_gone},
        {"sealed_client_gone", sealed_client_gone},
        {"shm_client_gone", shm_client_gone},
        {"verbs_client_gone", verbs_client_gone},
        {"client_gone_unread", tcp_client_gone_unread},
        {"sealed_client_gone_unread", sealed_client_gone_unread},
        {"shm_client_gone_unread", shm_client_gone_unread},
        {"verbs_client_gone_unread", verbs_client_gone_unread},
        {"moved_while_away", tcp_moved_while_away},
        {"sealed_moved_while_away", sealed_moved_while_away},
        {"shm_moved_while_away", shm_moved_while_away},
        {"verbs_moved_while_away", verbs_moved_while_away},
        {"shm_says_nonsense", shm_says_nonsense},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
