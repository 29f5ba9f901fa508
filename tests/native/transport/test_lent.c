/* Payloads in registered memory over verbs: lent by the one end, read by the other's devices; also while connections are cut, rails fail and links die. Runs on the
 * software libibverbs, four devices, as test_rails.c does. */
#define _GNU_SOURCE
#include <errno.h>

#include "lent_fixture.h"

#define LATE_MS 1000u /* what is read comes so late that the link has died by then, on a busy machine, too */

static void whole(const char *link, uint32_t rails, bool to_client, enum offered offered) {
    struct ends e;
    _Atomic int done = 0;
    open_ends(&e, link, to_client, offered);
    uint64_t before[4], passed = 0;
    for (uint32_t i = 0; i < 4; i++) before[i] = atomic_load(&rail(i)->bytes);
    for (uint64_t n = 1; n <= 8; n++) {
        uint64_t at = n * 1001, size = n == 8 ? VERBS_LENT_LEAST : SIZE - at - n * 77;
        fill_numbered(e.source, SIZE, n);
        memset(e.target, 0, SIZE);
        lend(&e, n, at, size, &done);
        usleep(20000);
        CHECK(atomic_load(&done) == (int)n - 1 && gv_bulk_acked(e.from) < gv_bulk_position(e.from)); /* nobody has it */
        receive(&e, n, at, size);
        CHECK(memcmp(e.source + at, e.target + at, size) == 0 && is_numbered(e.source + at, 1, n) == is_numbered(e.target + at, 1, n));
        CHECK(e.target[at - 1] == 0 && (at + size == SIZE || e.target[at + size] == 0));
        await_count(&done, (int)n);
        CHECK(gv_bulk_acked(e.from) == gv_bulk_position(e.from));
    }
    uint64_t all = 0;
    for (uint64_t n = 1; n <= 8; n++) all += n == 8 ? VERBS_LENT_LEAST : SIZE - n * 1001 - n * 77;
    CHECK(link_counts(e.to).bulk_pulled == all && link_counts(e.to).bulk_in_place == (offered == BOTH ? all : 0));
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t here = atomic_load(&rail(i)->bytes) - before[i];
        CHECK(i < rails ? here > all / rails / 2 : here < 1000); /* over all of them, */
        passed += here;
    }
    CHECK(passed < all + all / 20); /* once */
    CHECK(atomic_load(&((struct verbs *)e.to)->bulk_rx.head) < 8192);
    close_ends(&e);
}

static void to_the_worker(void) { whole("verbs(rails=2)", 2, false, BOTH); }
static void to_the_client(void) { whole("verbs(rails=2)", 2, true, BOTH); }
static void by_the_bounce_buffer(void) { whole("verbs(rails=2)", 2, false, SOURCE); }
static void over_one_rail(void) { whole("verbs(rails=1)", 1, false, BOTH); }
static void over_three_rails(void) { whole("verbs(rails=3)", 3, true, BOTH); }
static void over_four_rails(void) { whole("verbs", 4, false, BOTH); }

/* What was not offered, or is small, is copied: it is the caller's again before anybody has it. */
static void copied(void) {
    struct ends e;
    _Atomic int done = 0;
    open_ends(&e, "verbs(rails=1)", false, BOTH);
    uint8_t *other = malloc(SIZE);
    fill_numbered(other, SIZE, 1);
    fill_numbered(e.source, SIZE, 2);
    lend(&e, 1, 100, VERBS_LENT_LEAST - 1, &done);
    CHECK(gv_bulk_open(e.from, 2, 1 << 20) && gv_bulk_part(e.from, other, 1 << 20, count, &done) == 0);
    await_count(&done, 2);
    gv_link_take_back_memory(e.from, e.source);
    lend(&e, 3, 0, 1 << 20, &done); /* not any more */
    await_count(&done, 3);
    receive(&e, 1, 0, VERBS_LENT_LEAST - 1);
    CHECK(is_numbered(e.target, 1, 2) == is_numbered(e.source + 100, 1, 2) && memcmp(e.target, e.source + 100, VERBS_LENT_LEAST - 1) == 0);
    receive(&e, 2, 0, 1 << 20);
    CHECK(is_numbered(e.target, 1 << 20, 1));
    receive(&e, 3, 0, 1 << 20);
    CHECK(is_numbered(e.target, 1 << 20, 2) && link_counts(e.to).bulk_pulled == 0);
    free(other);
    close_ends(&e);
}

/* Lent and copied payloads behind one another come in their order; what is acknowledged never goes past one that is out. */
static void in_order(void) {
    struct ends e;
    _Atomic int done = 0;
    struct gv_bulk_header h;
    open_ends(&e, "verbs(rails=2)", false, BOTH);
    fill_numbered(e.source, SIZE, 3);
    for (uint64_t round = 0; round < 20; round++) {
        uint64_t before = gv_bulk_position(e.from);
        atomic_store(&done, 0);
        for (uint64_t n = 0; n < 60; n++) lend(&e, n, n * 64, n % 3 ? 100 + n : 70000 + n, &done);
        for (int64_t until = gv_now_ns() + TEST_PATIENCE_NS; gv_bulk_acked(e.from) != before + sizeof h && gv_now_ns() < until;) usleep(1000);
        CHECK(gv_bulk_acked(e.from) == before + sizeof h && atomic_load(&done) < 60);
        for (uint64_t n = 0; n < 60; n++) {
            receive(&e, n, 0, n % 3 ? 100 + n : 70000 + n);
            CHECK(memcmp(e.target, e.source + n * 64, n % 3 ? 100 + n : 70000 + n) == 0);
        }
        await_count(&done, 60);
    }
    /* Thrown away, by halves. */
    lend(&e, 1, 0, 1 << 20, &done);
    CHECK(gv_bulk_recv_header(e.to, &h) == 0 && gv_bulk_recv(e.to, NULL, 1 << 19) == 0 && gv_bulk_recv(e.to, e.target, 1 << 19) == 0);
    CHECK(memcmp(e.target, e.source + (1 << 19), 1 << 19) == 0);
    close_ends(&e);
}

static void many_loans(void) { lend_too_much(false, BOTH); }

static void *take_back(void *arg) {
    struct ends *e = arg;
    gv_link_take_back_memory(e->from, e->source);
    return NULL;
}

/* Whoever takes memory back waits until the peer needs it no more. */
static void taken_back(void) {
    struct ends e;
    _Atomic int done = 0;
    pthread_t thread;
    open_ends(&e, "verbs(rails=1)", false, BOTH);
    fill_numbered(e.source, SIZE, 5);
    lend(&e, 1, 0, SIZE, &done);
    CHECK(pthread_create(&thread, NULL, take_back, &e) == 0);
    usleep(100000);
    CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY && atomic_load(&done) == 0);
    receive(&e, 1, 0, SIZE);
    pthread_join(thread, NULL);
    await_count(&done, 1);
    CHECK(is_numbered(e.target, SIZE, 5));
    close_ends(&e);
}

/* ---- cuts */

static void cut(void) { cut_often(false, BOTH); }
static void rails_die_in_place(void) { rails_die(false, BOTH); }
static void rails_die_by_the_bounce_buffer(void) { rails_die(false, SOURCE); }

/* ---- ends */

static void *receive_once(void *arg) {
    struct ends *e = arg;
    struct gv_bulk_header h;
    if (gv_bulk_recv_header(e->to, &h) == 0) CHECK(gv_bulk_recv(e->to, e->target, h.size));
    CHECK(gv_link_dead(e->to));
    memset(e->target, 7, SIZE); /* it is ours again */
    return NULL;
}

/* The link dies while something is lent, and while it is read: both ends' memory is theirs again, and nobody writes there later. */
static void death(void) {
    struct ends e;
    pthread_t thread;
    for (int i = 0; i < 4; i++) {
        _Atomic int done = 0;
        open_ends(&e, "verbs(rails=2)", false, BOTH);
        fill_numbered(e.source, SIZE, 6);
        for (uint32_t r = 0; r < 2; r++) atomic_store(&rail(r)->read_delay_ns, LATE_MS * 1000000ull);
        lend(&e, 1, 0, SIZE, &done);
        CHECK(pthread_create(&thread, NULL, receive_once, &e) == 0);
        usleep(10000);
        gv_link_last(e.from);
        gv_link_last(e.to);
        gv_link_kill(i % 2 ? e.to : e.from, "killed");
        pthread_join(thread, NULL);
        await_count(&done, 1);
        usleep(LATE_MS * 1500);
        for (uint32_t k = 0; k < SIZE; k++) CHECK(e.target[k] == 7);
        for (uint32_t r = 0; r < 2; r++) atomic_store(&rail(r)->read_delay_ns, 0);
        close_ends(&e);
    }
}

/* ---- peers that lie */

/* A part that says it is lent where nothing is, or that is none. */
static void lies_of_parts(void) {
    for (int i = 0; i < 5; i++) {
        struct ends e;
        pthread_t thread;
        open_ends(&e, "verbs(rails=1)", false, BOTH);
        struct {
            struct verbs_part part;
            struct verbs_lent lent;
        } lie = {{sizeof lie.lent, 1}, {.at = (uintptr_t)e.source, .size = SIZE, .keys = {4711}}};
        if (i == 1) lie.part.lent = 2;
        if (i == 2) lie.part.size--;
        if (i == 3) lie.lent.size = 0;
        if (i == 4) lie.part = (struct verbs_part){0, 0};
        CHECK(gv_bulk_open(e.from, 1, SIZE) && gv_verbs_bulk_put((struct verbs *)e.from, &lie, sizeof lie, true));
        CHECK(pthread_create(&thread, NULL, receive_once, &e) == 0);
        await_death(e.to, i ? "a part of an impossible kind or size" : "that the peer has lent cannot be read");
        pthread_join(thread, NULL);
        close_ends(&e);
    }
}

/* A borrower that gives back what it was not lent. */
static void lies_of_notes(void) {
    struct ends e;
    _Atomic int done = 0;
    open_ends(&e, "verbs(rails=1)", false, BOTH);
    lend(&e, 1, 0, SIZE, &done);
    atomic_store(&((struct verbs *)e.to)->pulled, 5);
    gv_verbs_tell((struct verbs *)e.to);
    await_death(e.from, "the peer gives back what was never lent");
    await_count(&done, 1);
    close_ends(&e);
}

/* Over TCP: one that asks for more than it was lent. */
static void lies_of_questions(void) {
    struct ends e;
    _Atomic int done = 0;
    open_ends(&e, "verbs(rails=2)", false, BOTH);
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 1);
    lend(&e, 1, 0, SIZE, &done);
    for (int64_t end = gv_now_ns() + TEST_PATIENCE_NS; !atomic_load(&((struct verbs *)e.to)->over_tcp) || gv_link_down(e.to); usleep(1000))
        CHECK(gv_now_ns() < end);
    gv_verbs_carrier_ask((struct verbs *)e.to, atomic_load(&((struct verbs *)e.to)->queue_generation), (uintptr_t)e.source + 1, e.target, SIZE);
    gv_verbs_carry_out((struct verbs *)e.to);
    await_death(e.from, "asks for what it was not lent");
    for (uint32_t i = 0; i < 2; i++) atomic_store(&rail(i)->drop, 0);
    close_ends(&e);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"to_the_worker", to_the_worker},
        {"to_the_client", to_the_client},
        {"by_the_bounce_buffer", by_the_bounce_buffer},
        {"over_one_rail", over_one_rail},
        {"over_three_rails", over_three_rails},
        {"over_four_rails", over_four_rails},
        {"copied", copied},
        {"in_order", in_order},
        {"many_loans", many_loans},
        {"taken_back", taken_back},
        {"cut", cut},
        {"rails_die_in_place", rails_die_in_place},
        {"rails_die_by_the_bounce_buffer", rails_die_by_the_bounce_buffer},
        {"death", death},
        {"lies_of_parts", lies_of_parts},
        {"lies_of_notes", lies_of_notes},
        {"lies_of_questions", lies_of_questions},
    };
    signal(SIGPIPE, SIG_IGN);
    open_fabric();
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
