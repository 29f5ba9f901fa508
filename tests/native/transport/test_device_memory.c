/* Payloads to and from memory that only devices reach, over verbs: the link's devices write and read it in place; what they cannot carry is moved by whoever can. This
 * process must never touch its addresses. Runs on the software libibverbs, four devices, as test_rails.c does. */
#define _GNU_SOURCE
#include <errno.h>

#include "lent_fixture.h"

static uint64_t all_of(uint64_t n) { return n == 8 ? VERBS_LENT_LEAST : SIZE - n * 1001 - n * 77; }

static void in_place(const char *link, bool to_client) {
    struct ends e;
    _Atomic int done = 0;
    uint64_t all = 0;
    open_ends(&e, link, to_client, ON_DEVICE);
    for (uint64_t n = 1; n <= 8; n++) {
        uint64_t at = n * 1001, size = all_of(n);
        fill_numbered(e.written, SIZE, n);
        memset(e.seen, 0, SIZE);
        lend(&e, n, at, size, &done);
        receive(&e, n, at, size);
        await_count(&done, (int)n);
        CHECK(memcmp(e.written + at, e.seen + at, size) == 0 && e.seen[at - 1] == 0 && (at + size == SIZE || e.seen[at + size] == 0));
        all += size;
    }
    CHECK(link_counts(e.to).bulk_in_place == all && atomic_load(&e.device.moved) == 0);
    close_ends(&e);
}

static void received_in_place(void) { in_place("verbs(rails=2)", false); }
static void sent_in_place(void) { in_place("verbs(rails=2)", true); }
static void over_four_rails(void) { in_place("verbs", false); }

/* What is small, or comes from memory that was not offered, or is one loan too many, goes through the ring: moved, and counted. */
static void moved(bool to_client, enum offered offered) {
    struct ends e;
    _Atomic int done = 0;
    const uint64_t sizes[] = {1, 4096, VERBS_LENT_LEAST - 1, offered == NEITHER ? 3u << 20 : 10000};
    uint64_t all = 0;
    open_ends(&e, "verbs(rails=2)", to_client, offered);
    fill_numbered(e.written, SIZE, 3);
    for (uint64_t n = 0; n < 4; n++) {
        memset(e.seen, 0, SIZE);
        lend(&e, n, n * 131, sizes[n], &done);
        receive(&e, n, n * 77, sizes[n]);
        await_count(&done, (int)n + 1);
        CHECK(memcmp(e.seen + n * 77, e.written + n * 131, sizes[n]) == 0 && e.seen[n * 77 + sizes[n]] == 0);
        all += sizes[n];
    }
    CHECK(atomic_load(&e.device.moved) == all && link_counts(e.to).bulk_pulled == 0);
    close_ends(&e);
}

static void small_to_a_device(void) { moved(false, ON_DEVICE); }
static void small_from_a_device(void) { moved(true, ON_DEVICE); }
static void unregistered_to_a_device(void) { moved(false, NEITHER); }

static void many_loans(void) { lend_too_much(true, ON_DEVICE); }

static void to_a_device_while_cut(void) { cut_often(false, ON_DEVICE); }
static void from_a_device_while_cut(void) { cut_often(true, ON_DEVICE); }
static void to_a_device_while_rails_die(void) { rails_die(false, ON_DEVICE); }
static void from_a_device_while_rails_die(void) { rails_die(true, ON_DEVICE); }

/* A link says no where its devices do not take the memory, or where it has none. */
static void refused(void) {
    struct ends e;
    struct device other;
    open_ends(&e, "verbs(rails=2)", false, ON_DEVICE);
    make_device(&other);
    struct gv_device_memory memory = {other.fd, IN_PAGE, move_of_device, &other};
    CHECK(!gv_link_offer_device_memory(e.to, e.target + 4096, VERBS_LENT_LEAST, &memory)); /* it has that already */
    CHECK(!gv_link_offer_device_memory(e.to, other.at, VERBS_LENT_LEAST - 1, &memory));    /* too little to be worth it */
    CHECK(unsetenv("SOFTVERBS_DMABUF") == 0);
    CHECK(!gv_link_offer_device_memory(e.to, other.at, SIZE, &memory));
    CHECK(setenv("SOFTVERBS_DMABUF", "1", 1) == 0);
    memory.fd = -1; /* by its address, which the software library does not find */
    CHECK(!gv_link_offer_device_memory(e.to, other.at, SIZE, &memory));
    CHECK(gv_link_offer_device_memory(e.to, other.view, SIZE, &memory)); /* but this one */
    gv_link_take_back_memory(e.to, other.view);
    CHECK(offer_device(e.to, &other));
    gv_link_take_back_memory(e.to, other.at);
    close_ends(&e);
    open_with(&e.s, NO_FAULT, "tcp(plain)", GRACE_S);
    CHECK(!gv_link_takes_device_memory(e.s.p.worker) && !offer_device(e.s.p.worker, &other));
    close_session(&e.s);
    unmake_device(&other);
}

static void *receive_in_vain(void *arg) {
    struct ends *e = arg;
    struct gv_bulk_header h;
    CHECK(gv_bulk_recv_header(e->to, &h) || gv_bulk_recv(e->to, e->target, h.size));
    return NULL;
}

/* A device whose memory cannot be carried to or from is the end of the session, and says so. */
static void broken(bool to_client) {
    struct ends e;
    pthread_t thread;
    _Atomic int done = 0;
    open_ends(&e, "verbs(rails=2)", to_client, ON_DEVICE);
    atomic_store(&e.device.broken, true);
    CHECK(pthread_create(&thread, NULL, receive_in_vain, &e) == 0);
    lend(&e, 1, 0, 4096, &done);
    await_death(e.s.p.worker, "could not be carried to or from the device's memory");
    gv_link_kill(e.s.p.client, "its server would say so");
    pthread_join(thread, NULL);
    await_count(&done, 1);
    close_ends(&e);
}

static void broken_target(void) { broken(false); }
static void broken_source(void) { broken(true); }

struct until_dead {
    struct ends e;
    _Atomic int done; /* the link may count here until it is closed */
};

static void *lend_until_dead(void *arg) {
    struct until_dead *u = arg;
    struct gv_link *from = u->e.from;
    for (int n = 1; !gv_link_dead(from); n++) {
        if (gv_bulk_open(from, 1, SIZE)) gv_bulk_part(from, u->e.source, SIZE, count, &u->done);
        for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; atomic_load(&u->done) < n && !gv_link_dead(from); usleep(100)) CHECK(gv_now_ns() < end);
    }
    gv_link_take_back_memory(from, u->e.source); /* nothing of it is lent any more */
    return NULL;
}

static void *receive_until_dead(void *arg) {
    struct ends *e = &((struct until_dead *)arg)->e;
    struct gv_bulk_header h;
    while (gv_bulk_recv_header(e->to, &h) == 0 && gv_bulk_recv(e->to, e->target, h.size) == 0) continue;
    return NULL;
}

/* The same while no rail works. */
static void broken_over_tcp(bool to_client) {
    struct until_dead u = {0};
    struct ends *e = &u.e;
    pthread_t threads[2];
    open_ends(e, "verbs(rails=2)", to_client, ON_DEVICE);
    CHECK(pthread_create(&threads[0], NULL, lend_until_dead, &u) == 0 && pthread_create(&threads[1], NULL, receive_until_dead, &u) == 0);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 1);
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&e->device.moved); usleep(1000)) CHECK(gv_now_ns() < end);
    atomic_store(&e->device.broken, true);
    await_death(e->s.p.worker, "could not be carried to or from the device's memory");
    gv_link_kill(e->s.p.client, "its server would say so");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 0);
    close_ends(e);
}

static void broken_target_over_tcp(void) { broken_over_tcp(false); }
static void broken_source_over_tcp(void) { broken_over_tcp(true); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"received_in_place", received_in_place},
        {"sent_in_place", sent_in_place},
        {"over_four_rails", over_four_rails},
        {"small_to_a_device", small_to_a_device},
        {"small_from_a_device", small_from_a_device},
        {"unregistered_to_a_device", unregistered_to_a_device},
        {"many_loans", many_loans},
        {"to_a_device_while_cut", to_a_device_while_cut},
        {"from_a_device_while_cut", from_a_device_while_cut},
        {"to_a_device_while_rails_die", to_a_device_while_rails_die},
        {"from_a_device_while_rails_die", from_a_device_while_rails_die},
        {"refused", refused},
        {"broken_target", broken_target},
        {"broken_source", broken_source},
        {"broken_target_over_tcp", broken_target_over_tcp},
        {"broken_source_over_tcp", broken_source_over_tcp},
    };
    signal(SIGPIPE, SIG_IGN);
    setenv("SOFTVERBS_DMABUF", "1", 1);
    open_fabric();
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
