/* Connections that are cut while both ends talk come back: nothing is lost, nothing comes twice, the order stays. */
#define _GNU_SOURCE
#include "../numbered_bytes.h"
#include "resume_fixture.h"

#ifdef __SANITIZE_THREAD__ /* ten times slower: races show in a quarter of it, too */
#define LESS(n) ((n) / 4)
#define CUTS 75
#elif !defined LESS
#define LESS(n) ((n) / 2)
#endif
#ifndef CUTS
#define CUTS 300
#endif

#ifndef STEP_US /* between two looks at whether something is to be cut: a machine that is emulated needs longer to do anything in between */
#define STEP_US 2000
#endif

struct flow {
    struct gv_link *link;
    uint64_t first_record, records, first_payload, payloads, seed; /* from the first up to that many, counted since the session began */
    _Atomic bool *over;                                            /* the other direction is done too: nobody need read on */
    _Atomic int *running;
};

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    return x;
}

static void *send_records(void *arg) {
    struct flow *f = arg;
    for (uint64_t n = f->first_record; n <= f->records; n++) {
        int sent = send_numbered(f->link, (uint32_t)(mix(n + f->seed) % (n % 50 ? 400 : 60000)) & ~7u, n);
        if (!sent) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
        CHECK(sent);
        if (n % 97 == 0) gv_send_flush(f->link);
        if (n % 500 == 0) usleep(1000);
    }
    gv_send_flush(f->link);
    return NULL;
}

static void *receive_records(void *arg) {
    struct flow *f = arg;
    int64_t until = gv_now_ns() + 2 * TEST_PATIENCE_NS;
    for (uint64_t n = f->first_record; n <= f->records;) {
        const struct gv_record *record = gv_recv_peek(f->link);
        if (!record) {
            if (gv_link_dead(f->link)) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
            CHECK(!gv_link_dead(f->link) && gv_now_ns() < until);
            gv_recv_wait(f->link, 50000000, 10000);
            continue;
        }
        CHECK(record->ctx == (uint32_t)n && record->op == n % 1000);
        uint32_t body = record->size - (uint32_t)sizeof *record;
        CHECK(body == ((uint32_t)(mix(n + f->seed) % (n % 50 ? 400 : 60000)) & ~7u));
        const uint64_t *words = (const uint64_t *)(const void *)(record + 1);
        for (uint32_t i = 0; i < body / 8; i++) CHECK(words[i] == n * 0x9e3779b97f4a7c15u + i);
        gv_recv_consume(f->link);
        n++;
    }
    atomic_fetch_sub(f->running, 1);
    /* The other side still wants to hear of what it sends, and we what we have sent. */
    while (!atomic_load(f->over)) {
        CHECK(gv_recv_peek(f->link) == NULL);
        gv_recv_wait(f->link, 10000000, 0);
    }
    return NULL;
}

static uint64_t size_of(uint64_t n, uint64_t seed) { return mix(n * 7 + seed) % (n % 10 ? 30000 : 3000000); }

struct lent {
    _Atomic int done;
    uint8_t *data;
};

static void part_done(void *arg) {
    struct lent *l = arg;
    uint8_t *data = l->data; /* once it is done, *l may be gone */
    CHECK(atomic_fetch_add(&l->done, 1) == 0);
    free(data); /* whoever looks at it afterwards is found out by the sanitizer */
}

static void *send_payloads(void *arg) {
    struct flow *f = arg;
    struct lent *lent = calloc(f->payloads + 1, sizeof *lent);
    for (uint64_t n = f->first_payload; n <= f->payloads; n++) {
        uint64_t size = size_of(n, f->seed);
        uint8_t *data = malloc(size + 1);
        fill_numbered(data, size, n);
        if (n % 3) {
            uint64_t number = gv_bulk_send(f->link, n, data, size);
            if (number != n) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
            CHECK(number == n);
            memset(data, 0xee, size); /* ours again */
            free(data);
        } else {
            lent[n].data = data;
            CHECK(gv_bulk_open(f->link, n, size) == n);
            CHECK(gv_bulk_part(f->link, data, size, part_done, &lent[n]) == 0);
        }
    }
    int64_t until = gv_now_ns() + 2 * TEST_PATIENCE_NS;
    for (uint64_t n = f->first_payload; n <= f->payloads; n++)
        while (n % 3 == 0 && !atomic_load(&lent[n].done)) {
            CHECK(!gv_link_dead(f->link) && gv_now_ns() < until);
            usleep(1000);
        }
    free(lent);
    atomic_fetch_sub(f->running, 1);
    return NULL;
}

static void *receive_payloads(void *arg) {
    struct flow *f = arg;
    uint8_t *data = malloc(3000000);
    for (uint64_t n = f->first_payload; n <= f->payloads; n++) {
        struct gv_bulk_header h;
        int ended = gv_bulk_recv_header(f->link, &h);
        if (ended) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
        CHECK(!ended);
        CHECK(h.number == n && h.tag == n && h.size == size_of(n, f->seed));
        int failed = gv_bulk_recv(f->link, data, h.size);
        if (failed) fprintf(stderr, "died: %s\n", gv_link_death(f->link));
        CHECK(!failed);
        CHECK(is_numbered(data, h.size, n));
    }
    free(data);
    atomic_fetch_sub(f->running, 1);
    return NULL;
}

/* By each end, since the session began. */
struct sent {
    uint64_t records, payloads;
};

/* When a session that shares memory, or has a network of its own, is cut next: soon, but not before something has passed since the last time, and only so often
 * before it is back. A machine that is busy with other things would do nothing else than to come back. */
struct cuts {
    uint64_t passed, at, away;
};

static bool cut_now(struct cuts *c, const struct session *s, uint64_t n) {
    bool down = gv_link_down(s->p.client);
    uint64_t passed = gv_link_bytes_in(s->p.client) + gv_link_bytes_in(s->p.worker);
    if (!down) c->away = 0;
    if (down ? n % 100 || c->away >= 3 : n % 5 || (passed == c->passed && n - c->at < 200)) return false;
    c->away += down;
    c->passed = passed;
    c->at = n;
    return true;
}

/* So many more records and payloads both ways; `every`: bytes between two cuts, on average, 0: none. */
static void more_traffic(struct session *s, struct sent *sent, uint64_t records, uint64_t payloads, int64_t every, uint64_t seed) {
    _Atomic bool over = false;
    _Atomic int running = 0;
    struct sent before = *sent;
    *sent = (struct sent){before.records + records, before.payloads + payloads};
    struct flow flows[2] = {{s->p.client, before.records + 1, sent->records, before.payloads + 1, sent->payloads, seed, &over, &running},
                            {s->p.worker, before.records + 1, sent->records, before.payloads + 1, sent->payloads, seed, &over, &running}};
    static void *(*const parts[])(void *) = {send_records, receive_records, send_payloads, receive_payloads};
    pthread_t threads[8];
    atomic_store(&running, payloads ? 6 : 2);
    for (int i = 0; i < 8; i++)
        if (i < 4 || payloads) CHECK(pthread_create(&threads[i], NULL, parts[i / 2], &flows[i % 2]) == 0);
    struct cuts cuts = {0};
    for (uint64_t n = 1; atomic_load(&running); n++) {
        if (every && s->shares && cut_now(&cuts, s, n)) {
            atomic_store(&s->cutter.cut_in, n % 10 ? 0 : 1 + (int64_t)(mix(seed ^ n) % 1500)); /* within the handshakes that follow */
            cutter_cut_all(&s->cutter);
        } else if (every && !s->shares && atomic_load(&s->cutter.cut_in) == 0) {
            atomic_store(&s->cutter.reset, mix(seed + n) & 1);
            atomic_store(&s->cutter.cut_in, 1 + (int64_t)(mix(seed ^ (n << 20)) % (uint64_t)(2 * every)));
        }
        usleep(STEP_US);
    }
    atomic_store(&s->cutter.cut_in, 0);
    atomic_store(&over, true);
    for (int i = 0; i < 8; i++)
        if (i < 4 || payloads) pthread_join(threads[i], NULL);
}

static void traffic(struct session *s, uint64_t records, uint64_t payloads, int64_t every, uint64_t seed) {
    more_traffic(s, &(struct sent){0}, records, payloads, every, seed);
}

static void uncut(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    traffic(&s, 5000, 100, 0, 1);
    CHECK(link_counts(s.p.client).cuts == 0 && link_counts(s.p.worker).cuts == 0 && s.notices.n == 0);
    CHECK(link_counts(s.p.client).unacked_peak < 4 << 20);
    close_session(&s);
}

static uint64_t records_again(const struct session *s) { return link_counts(s->p.client).records_resent + link_counts(s->p.worker).records_resent; }

static bool records_cut_enough(const struct session *s) {
    return link_counts(s->p.client).resumes >= 5 && link_counts(s->p.worker).resumes >= 5 && records_again(s) > 0;
}

/* As of payloads_cut, how often it is cut is the machine's doing. */
static void records_cut(const char *link) {
    struct session s;
    struct sent sent = {0};
    open_with(&s, NO_FAULT, link, GRACE_S);
    for (uint64_t round = 0; round < 20 && !records_cut_enough(&s); round++) more_traffic(&s, &sent, LESS(20000), 0, 300000, 2 + 100 * round);
    fprintf(stderr, "  %d cuts, %llu of records' connections, %llu records again\n", s.cutter.cuts,
            (unsigned long long)link_counts(s.p.client).resumes, (unsigned long long)records_again(&s));
    CHECK(records_cut_enough(&s));
    /* One end may be up again when the other one's half of the exchange is cut: then they have counted differently, but never a connection that the
     * server did not welcome. */
    CHECK(link_counts(s.p.client).resumes <= (uint64_t)s.server.resumes && link_counts(s.p.worker).resumes <= (uint64_t)s.server.resumes);
    CHECK(atomic_load(&s.notices.n) > 0);
    CHECK_TEXT(s.notices.last, "was lost (");
    close_session(&s);
}

/* So often that records are lost or doubled if they can be: each end sends until the connection has come back 300 times. */
static void sealed_three_hundred_cuts(void) {
    struct session s;
    struct sent sent = {0};
    uint64_t times = CUTS;
    open_with(&s, NO_FAULT, "sealed", GRACE_S);
    for (uint64_t round = 1; link_counts(s.p.client).resumes < times; round++) more_traffic(&s, &sent, 2000, 0, 100000, round);
    fprintf(stderr, "  %d cuts, %llu resumes, %llu records each way, %llu again\n", s.cutter.cuts,
            (unsigned long long)link_counts(s.p.client).resumes, (unsigned long long)sent.records,
            (unsigned long long)(link_counts(s.p.client).records_resent + link_counts(s.p.worker).records_resent));
    CHECK(link_counts(s.p.client).resumes <= (uint64_t)s.server.resumes && link_counts(s.p.client).altered == 0 &&
          link_counts(s.p.worker).altered == 0);
    close_session(&s);
}

static uint64_t payloads_again(const struct session *s) { return link_counts(s->p.client).bulk_resent + link_counts(s->p.worker).bulk_resent; }

/* How many bytes pass between two cuts is the machine's doing: there is more to send until there have been enough of them. */
static void payloads_cut(const char *link, uint64_t seed) {
    struct session s;
    struct sent sent = {0};
    open_with(&s, NO_FAULT, link, GRACE_S);
    for (uint64_t round = 0; round < 20 && (s.cutter.cuts <= 10 || payloads_again(&s) == 0); round++)
        more_traffic(&s, &sent, LESS(3000), LESS(150), 600000, seed + 100 * round);
    fprintf(stderr, "  %s: %d cuts, %llu bytes of payloads again\n", link, s.cutter.cuts, (unsigned long long)payloads_again(&s));
    CHECK(s.cutter.cuts > 10 && payloads_again(&s) > 0);
    close_session(&s);
}

/* Nothing passes over the socket, and nothing waits for it: what is to be seen is that the session is the same after each cut. */
static void memory_cut(const char *link, uint64_t seed) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    traffic(&s, LESS(60000), LESS(500), 1, seed);
    uint64_t within = link_counts(s.p.client).resumes;
    cutter_cut_all(&s.cutter);
    await_resumes(&s, within + 1);
    fprintf(stderr, "  %s: %d cuts, %llu resumes\n", link, s.cutter.cuts, (unsigned long long)link_counts(s.p.client).resumes);
    CHECK(link_counts(s.p.client).resumes <= (uint64_t)s.server.resumes && link_counts(s.p.worker).resumes <= (uint64_t)s.server.resumes);
    CHECK(atomic_load(&s.notices.n) > 0);
    close_session(&s);
}

static void shm_cut(void) { memory_cut("shm", 6); }
static void delayed_shm_cut(void) { memory_cut("delay(rtt=4ms,shm)", 7); }
static void one_channel_cut(void) { payloads_cut("tcp(plain)", 3); }
static void four_channels_cut(void) { payloads_cut("tcp(channels=4,plain)", 4); }
static void delayed_cut(void) { payloads_cut("delay(rtt=4ms,tcp(plain))", 5); }
static void sealed_one_channel_cut(void) { payloads_cut("sealed", 3); }
static void sealed_four_channels_cut(void) { payloads_cut("sealed(channels=4)", 4); }
static void sealed_delayed_cut(void) { payloads_cut("delay(rtt=4ms,sealed)", 5); }

/* What was under way is lost with the queues, and goes out again. */
static void verbs_cut(void) { memory_cut("verbs", 8); }
static void two_rails_cut(void) { memory_cut("verbs(rails=2)", 9); }

#ifdef MANY_CUTS /* this takes minutes */
/* Queues that are made anew again and again. */
static void verbs_many_cuts(void) {
    struct session s;
    struct sent sent = {0};
    open_with(&s, NO_FAULT, "verbs(rails=2)", GRACE_S);
    for (uint64_t round = 1; link_counts(s.p.client).resumes < MANY_CUTS; round++) more_traffic(&s, &sent, 2000, 0, 1, round);
    struct gv_link_counts client = link_counts(s.p.client), worker = link_counts(s.p.worker);
    fprintf(stderr, "  %d cuts, %llu resumes, %llu records each way, %llu again\n", s.cutter.cuts, (unsigned long long)client.resumes,
            (unsigned long long)sent.records, (unsigned long long)(client.records_resent + worker.records_resent));
    CHECK(client.resumes <= (uint64_t)s.server.resumes && client.records_resent + worker.records_resent > 0);
    close_session(&s);
}
#endif

/* A cut within what makes up for a cut: the handshake, the first records. */
static void cut_while_coming_back(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    uint64_t n = 0;
    int64_t all = s.shares ? 1320 : 760;
    /* Some come too late for a connection, and are none: then with further offsets. */
    for (int64_t at = 0; at < all || (s.cutter.cuts <= 60 && at < 10 * all); at += 24) {
        uint64_t before = link_counts(s.p.client).resumes;
        cutter_cut_all(&s.cutter);
        atomic_store(&s.cutter.cut_in, 1 + at % all); /* 320 of greeting (twice with shm), some 200 of hello, some 80 of welcome, 40 each way */
        n++;
        bool sent = send_numbered(s.p.client, 64, n) && send_numbered(s.p.worker, 64, n);
        gv_send_flush(s.p.client);
        gv_send_flush(s.p.worker);
        bool came = sent && receive_numbered(s.p.client, n) == 64 && receive_numbered(s.p.worker, n) == 64;
        if (!came) fprintf(stderr, "died: %s; %s\n", gv_link_death(s.p.client), gv_link_death(s.p.worker));
        CHECK(came);
        if (s.shares) await_resumes(&s, before + 1); /* the records did not wait for it */
    }
    CHECK(s.cutter.cuts > 60);
    close_session(&s);
}

/* A peer that takes nothing holds senders back, however much they have to send; not the thread that reads. */
static void held_back(const char *link) {
    struct session s;
    open_with(&s, NO_FAULT, link, GRACE_S);
    atomic_store(&s.cutter.hole, true);
    uint64_t n = 0;
    pthread_t sender;
    struct flow f = {.link = s.p.client, .first_record = 1, .records = 20000, .seed = 9};
    gv_recv_wait(s.p.client, 0, 0); /* this thread is the reader */
    CHECK(pthread_create(&sender, NULL, send_records, &f) == 0);
    for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; link_counts(s.p.client).unacked_bytes < UNACKED_LIMIT && gv_now_ns() < until;) usleep(10000);
    usleep(200000); /* for more, if nothing stopped it */
    struct gv_link_counts c = link_counts(s.p.client);
    CHECK(c.unacked_bytes >= UNACKED_LIMIT && c.unacked_bytes < UNACKED_LIMIT + (2 << 20));
    for (; n < 10; n++) CHECK(send_numbered(s.p.client, 8, 1));
    atomic_store(&s.cutter.hole, false);
    uint64_t got = 0;
    while (got < f.records + n) {
        if (gv_recv_peek(s.p.worker)) {
            gv_recv_consume(s.p.worker);
            got++;
        } else {
            CHECK(!gv_link_dead(s.p.worker));
            gv_recv_wait(s.p.worker, 1000000, 0);
        }
        if (got % 64 == 0) CHECK(gv_recv_peek(s.p.client) == NULL); /* the acknowledgements */
    }
    pthread_join(sender, NULL);
    close_session(&s);
}

ON_TCP(records_cut)
ON_TCP(held_back)
ON_EACH(uncut)
ON_EACH(cut_while_coming_back)

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"uncut", tcp_uncut},
        {"sealed_uncut", sealed_uncut},
        {"shm_uncut", shm_uncut},
        {"records_cut", tcp_records_cut},
        {"sealed_records_cut", sealed_records_cut},
        {"sealed_three_hundred_cuts", sealed_three_hundred_cuts},
        {"one_channel_cut", one_channel_cut},
        {"four_channels_cut", four_channels_cut},
        {"delayed_cut", delayed_cut},
        {"sealed_one_channel_cut", sealed_one_channel_cut},
        {"sealed_four_channels_cut", sealed_four_channels_cut},
        {"sealed_delayed_cut", sealed_delayed_cut},
        {"cut_while_coming_back", tcp_cut_while_coming_back},
        {"sealed_cut_while_coming_back", sealed_cut_while_coming_back},
        {"shm_cut_while_coming_back", shm_cut_while_coming_back},
        {"held_back", tcp_held_back},
        {"sealed_held_back", sealed_held_back},
        {"shm_cut", shm_cut},
        {"delayed_shm_cut", delayed_shm_cut},
        {"verbs_uncut", verbs_uncut},
        {"verbs_cut", verbs_cut},
        {"two_rails_cut", two_rails_cut},
#ifdef MANY_CUTS
        {"verbs_many_cuts", verbs_many_cuts},
#endif
        {"verbs_cut_while_coming_back", verbs_cut_while_coming_back},
    };
    signal(SIGPIPE, SIG_IGN);
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
