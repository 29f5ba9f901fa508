/* Verbs links whose rails fail: what was under way goes over those that are left, over the TCP connection where none is, and over the rails again when they are
 * back. Runs on the software libibverbs, two devices, whose faults are words in the fabric's file (SOFTVERBS_FABRIC). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "../../../native/transport/verbs/verbs.h"
#include "devices_fixture.h"
#include "resume/resume_fixture.h"

#define PAYLOAD (3u << 20)

struct traffic {
    struct session *s;
    _Atomic bool stop, all_sent;
    _Atomic uint64_t sent;
    uint64_t received;
    pthread_t threads[4];
    _Atomic uint64_t payloads;
};

static void *send_records(void *arg) {
    struct traffic *t = arg;
    while (!atomic_load(&t->stop)) {
        CHECK(send_numbered(t->s->p.client, (uint32_t)(t->sent * 8 % 1000) & ~7u, t->sent + 1));
        if (++t->sent % 50 == 0) {
            gv_send_flush(t->s->p.client);
            usleep(500);
        }
    }
    gv_send_flush(t->s->p.client);
    atomic_store(&t->all_sent, true);
    return NULL;
}

static void *receive_records(void *arg) {
    struct traffic *t = arg;
    while (!atomic_load(&t->all_sent) || t->received < t->sent) {
        if (!gv_recv_peek(t->s->p.worker)) {
            if (gv_link_dead(t->s->p.worker)) fprintf(stderr, "died: %s\n", gv_link_death(t->s->p.worker));
            CHECK(!gv_link_dead(t->s->p.worker));
            gv_recv_wait(t->s->p.worker, 10000000, 10000);
            continue;
        }
        CHECK(receive_numbered(t->s->p.worker, t->received + 1) >= 0);
        t->received++;
    }
    return NULL;
}

static void *send_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *data = malloc(PAYLOAD);
    for (uint64_t n = 1; !atomic_load(&t->stop); n++) {
        for (uint32_t i = 0; i < PAYLOAD; i += 1000) data[i] = (uint8_t)(n + i / 1000);
        CHECK(gv_bulk_send(t->s->p.client, n, data, PAYLOAD - n % 7) == n);
        atomic_store(&t->payloads, n);
        usleep(2000);
    }
    CHECK(gv_bulk_send(t->s->p.client, UINT64_MAX, data, 1));
    free(data);
    return NULL;
}

static void *receive_payloads(void *arg) {
    struct traffic *t = arg;
    uint8_t *data = malloc(PAYLOAD);
    for (uint64_t n = 1;; n++) {
        struct gv_bulk_header h;
        CHECK(gv_bulk_recv_header(t->s->p.worker, &h) == 0 && gv_bulk_recv(t->s->p.worker, data, h.size) == 0);
        if (h.tag == UINT64_MAX) break;
        CHECK(h.tag == n && h.size == PAYLOAD - n % 7);
        for (uint32_t i = 0; i < h.size; i += 1000) CHECK(data[i] == (uint8_t)(n + i / 1000));
    }
    free(data);
    return NULL;
}

static void start(struct traffic *t, struct session *s) {
    static void *(*const parts[4])(void *) = {send_records, receive_records, send_payloads, receive_payloads};
    memset(t, 0, sizeof *t);
    t->s = s;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t->threads[i], NULL, parts[i], t) == 0);
}

static void finish(struct traffic *t) {
    atomic_store(&t->stop, true);
    for (int i = 0; i < 4; i++) pthread_join(t->threads[i], NULL);
    CHECK(t->received == t->sent && t->sent > 0 && atomic_load(&t->payloads) > 0);
}

/* Something passes. */
static void await_more(struct traffic *t, uint64_t more) {
    uint64_t until = atomic_load(&t->payloads) + more;
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&t->payloads) < until; usleep(1000)) CHECK(gv_now_ns() < end);
}

static uint64_t bytes(uint32_t i) { return atomic_load(&rail(i)->bytes); }

/* Each rail has carried as much as a payload since then; which slice takes which rail depends on when their threads run. */
static void await_both(const uint64_t before[2]) {
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; bytes(0) - before[0] <= PAYLOAD || bytes(1) - before[1] <= PAYLOAD; usleep(1000))
        CHECK(gv_now_ns() < end);
}

/* One of two dies in the middle of payloads. */
static void dead_rail(uint32_t dies) {
    struct session s;
    struct traffic t;
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    uint64_t before[2] = {bytes(0), bytes(1)};
    start(&t, &s);
    await_more(&t, 5);
    await_both(before);
    atomic_store(&rail(dies)->drop, 1);
    await_resumes(&s, 1);
    await_more(&t, 5);
    uint64_t then = bytes(dies);
    await_more(&t, 5);
    CHECK(bytes(dies) - then < PAYLOAD); /* nothing any more but what tries to find out */
    CHECK(link_counts(s.p.client).resumes >= 1 && !atomic_load(&((struct verbs *)s.p.client)->over_tcp));
    finish(&t);
    atomic_store(&rail(dies)->drop, 0);
    close_session(&s);
}

static void first_rail_dies(void) { dead_rail(0); }
static void second_rail_dies(void) { dead_rail(1); }

static bool over_tcp(struct gv_link *link) { return atomic_load(&((struct verbs *)link)->over_tcp); }

/* All die, and come back. */
static void no_rail_is_left(void) {
    struct session s;
    struct traffic t;
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    start(&t, &s);
    await_more(&t, 3);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 1);
    await_resumes(&s, 1);
    /* The first way back may still be by the rail that died last. */
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; !over_tcp(s.p.client) || !over_tcp(s.p.worker); usleep(1000)) CHECK(gv_now_ns() < until);
    uint64_t then[2] = {bytes(0), bytes(1)};
    await_more(&t, 10);
    CHECK(bytes(0) == then[0] && bytes(1) == then[1]);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 0);
    int64_t end = gv_now_ns() + TEST_PATIENCE_NS;
    while (atomic_load(&((struct verbs *)s.p.client)->over_tcp) || gv_link_down(s.p.client)) {
        CHECK(gv_now_ns() < end);
        usleep(10000);
    }
    await_both(then);
    finish(&t);
    close_session(&s);
}

/* Ports that go down are noticed, and used again by the next connection. */
static void port_down_and_up(void) {
    struct session s;
    struct traffic t;
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    start(&t, &s);
    await_more(&t, 3);
    atomic_store(&rail(1)->port_down, 1);
    await_resumes(&s, 1);
    await_more(&t, 3);
    atomic_store(&rail(1)->port_down, 0);
    finish(&t);
    close_session(&s);
}

/* With two rails of which one never worked a session begins on the other. */
static void begins_on_what_works(void) {
    struct session s;
    struct traffic t;
    atomic_store(&rail(0)->drop, 1);
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    start(&t, &s);
    await_more(&t, 5);
    CHECK(((struct verbs *)s.p.client)->n_queues == 1);
    finish(&t);
    atomic_store(&rail(0)->drop, 0);
    close_session(&s);
}

/* Where none works there is no verbs link, and it is said why. */
static void nothing_works(void) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, NO_FAULT);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 1);
    struct gv_link_options options = mini_options(&server, "verbs(rails=2)");
    CHECK(!gv_link_connect(&options, &err));
    CHECK_TEXT(err.text, "no verbs link with the server at");
    CHECK_TEXT(err.text, "RDMA device softverbs");
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 0);
    gv_link_close(mini_worker(&server));
    mini_stop(&server);
}

/* Requests that find no receive posted, and completions that come late and in another order than they were made, change nothing but the time. */
static void held_up(void) {
    struct session s;
    struct traffic t;
    for (uint32_t i = 0; i < 2; i++) {
        atomic_store(&rail(i)->rnr_every, 50);
        atomic_store(&rail(i)->completion_delay_ns, 200000);
        atomic_store(&rail(i)->completion_reorder, 1);
    }
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    start(&t, &s);
    await_more(&t, 20);
    finish(&t);
    CHECK(link_counts(s.p.client).cuts == 0 && atomic_load(&rail(0)->rnr_naks) > 0);
    for (uint32_t i = 0; i < 2; i++) {
        atomic_store(&rail(i)->rnr_every, 0);
        atomic_store(&rail(i)->completion_delay_ns, 0);
        atomic_store(&rail(i)->completion_reorder, 0);
    }
    close_session(&s);
}

/* A key that the peer's device does not know, and a completion queue that runs over, are cuts. */
static void wrong_key(void) {
    struct session s;
    struct traffic t;
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    start(&t, &s);
    await_more(&t, 3);
    atomic_store(&rail(0)->bad_rkey_at, 40);
    await_resumes(&s, 1);
    await_more(&t, 3);
    atomic_store(&rail(1)->cq_overrun_at, 40);
    await_resumes(&s, 2);
    await_more(&t, 3);
    finish(&t);
    close_session(&s);
}

/* The TCP connection ends while something is under way of which the device says neither that it arrived nor that it did not, as Soft-RoCE with a peer that has
 * stopped its queues: both ends see it all the same. */
static void cut_under_way(void) {
    struct session s;
    open_with(&s, NO_FAULT, "verbs(rails=1)", GRACE_S);
    atomic_store(&rail(0)->completion_delay_ns, 1000000000000);
    for (int i = 0; i < 2; i++) {
        CHECK(send_numbered(i ? s.p.worker : s.p.client, 64, 1));
        gv_send_flush(i ? s.p.worker : s.p.client);
    }
    int64_t end = gv_now_ns() + TEST_PATIENCE_NS; /* the worker's end may not have been up when it was to send */
    const struct verbs *ends[2] = {(struct verbs *)s.p.client, (struct verbs *)s.p.worker};
    for (; !atomic_load(&ends[0]->queue.under_way) || !atomic_load(&ends[1]->queue.under_way); usleep(1000)) CHECK(gv_now_ns() < end);
    cutter_cut_all(&s.cutter);
    for (; link_counts(s.p.client).cuts < 1 || link_counts(s.p.worker).cuts < 1; usleep(1000)) CHECK(gv_now_ns() < end);
    atomic_store(&rail(0)->completion_delay_ns, 0);
    await_resumes(&s, 1);
    close_session(&s);
}

/* Which of the server's ports one of the client's meets. */
static void networks(void) {
    char why[GV_DEATH_TEXT] = "";
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    atomic_store(&rail(1)->network, 5);
    atomic_store(&rail(3)->network, 5);
    CHECK(gv_verbs_rails(rails, why) == 4);
    for (int i = 0; i < 4; i++) CHECK(rails[i].name[strlen("softverbs")] == '0' + i && !rails[i].slow && rails[i].rate == 103124);
    uint8_t near[GV_VERBS_GIDS][16] = {{0}}, global[GV_VERBS_GIDS][16] = {{0}};
    memcpy(near[0], rails[0].gids[0].gid.raw, 16);
    memcpy(global[0], rails[3].gids[0].gid.raw, 16);
    CHECK(gv_verbs_rail_for(rails, 4, 0, IBV_LINK_LAYER_ETHERNET, near) == 0);
    CHECK(gv_verbs_rail_for(rails, 4, 1, IBV_LINK_LAYER_ETHERNET, near) == 2);
    CHECK(gv_verbs_rail_for(rails, 4, 0, IBV_LINK_LAYER_ETHERNET, global) == 1);
    CHECK(gv_verbs_rail_for(rails, 4, 2, IBV_LINK_LAYER_ETHERNET, global) == 3);
    CHECK(gv_verbs_rail_for(rails, 4, 2 + 8, IBV_LINK_LAYER_ETHERNET, global) == GV_VERBS_RAILS_MAX);
    CHECK(gv_verbs_rail_for(rails, 4, 0, IBV_LINK_LAYER_INFINIBAND, near) == GV_VERBS_RAILS_MAX);
    rails[2].link_layer = IBV_LINK_LAYER_INFINIBAND; /* there the subnet's prefix counts */
    rails[2].gids[0].gid.raw[7] = 9;
    CHECK(gv_verbs_rail_for(rails, 4, 0, IBV_LINK_LAYER_INFINIBAND, near) == GV_VERBS_RAILS_MAX);
    near[0][7] = 9;
    CHECK(gv_verbs_rail_for(rails, 4, 0, IBV_LINK_LAYER_INFINIBAND, near) == 2);
    atomic_store(&rail(1)->network, 0);
    atomic_store(&rail(3)->network, 0);
}

/* A port with GIDs of two families, and one with the second of these only, meet by that one, whichever is the client's. */
static void families(void) {
    char why[GV_DEATH_TEXT] = "";
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    uint8_t offered[GV_VERBS_GIDS][16] = {{0}};
    atomic_store(&rail(0)->ipv4, 1);
    CHECK(gv_verbs_rails(rails, why) == 4 && rails[0].n_gids == 2 && rails[1].n_gids == 1);
    const struct verbs_gid *both = rails[0].gids;
    CHECK(both[0].index == 1 && both[0].gid.raw[12] == 10 && both[1].index == 0 && both[1].gid.raw[0] == 0xfe);
    for (int i = 0; i < 2; i++) memcpy(offered[i], both[i].gid.raw, 16);
    CHECK(gv_verbs_rail_meets(&rails[0], IBV_LINK_LAYER_ETHERNET, offered) == 0 && rails[0].gid == 0);
    CHECK(gv_verbs_rail_meets(&rails[1], IBV_LINK_LAYER_ETHERNET, offered) == 1 && rails[1].gid == 0);
    memset(offered, 0, sizeof offered);
    memcpy(offered[0], rails[1].gids[0].gid.raw, 16);
    CHECK(gv_verbs_rail_meets(&rails[0], IBV_LINK_LAYER_ETHERNET, offered) == 0 && rails[0].gid == 1);
    memset(offered, 0, sizeof offered);
    CHECK(gv_verbs_rail_meets(&rails[0], IBV_LINK_LAYER_ETHERNET, offered) == GV_VERBS_GIDS);
    setenv("GPUVIRT_GID_INDEX", "0", 1); /* that one and no other */
    CHECK(gv_verbs_rails(rails, why) == 4 && rails[0].n_gids == 1 && rails[0].gids[0].index == 0);
    setenv("GPUVIRT_GID_INDEX", "7", 1);
    CHECK(gv_verbs_rails(rails, why) == 0);
    CHECK_TEXT(why, "GPUVIRT_GID_INDEX");
    unsetenv("GPUVIRT_GID_INDEX");
    atomic_store(&rail(0)->ipv4, 0);
}

/* A port that is less than half as fast comes last, and carries nothing unless as many rails are asked for. */
static void slow_port(void) {
    struct session s;
    char why[GV_DEATH_TEXT] = "";
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    atomic_store(&rail(0)->slow_port, 1);
    CHECK(gv_verbs_rails(rails, why) == 4);
    for (int i = 0; i < 4; i++) CHECK(rails[i].name[strlen("softverbs")] == "1230"[i] && rails[i].slow == (i == 3));
    for (int all = 0; all < 2; all++) {
        open_with(&s, NO_FAULT, all ? "verbs(rails=4)" : "verbs", GRACE_S);
        CHECK(((struct verbs *)s.p.client)->n_queues == 3u + all);
        close_session(&s);
    }
    atomic_store(&rail(0)->slow_port, 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"first_rail_dies", first_rail_dies},
        {"second_rail_dies", second_rail_dies},
        {"no_rail_is_left", no_rail_is_left},
        {"port_down_and_up", port_down_and_up},
        {"begins_on_what_works", begins_on_what_works},
        {"nothing_works", nothing_works},
        {"held_up", held_up},
        {"wrong_key", wrong_key},
        {"cut_under_way", cut_under_way},
        {"networks", networks},
        {"families", families},
        {"slow_port", slow_port},
    };
    signal(SIGPIPE, SIG_IGN);
    open_fabric();
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
