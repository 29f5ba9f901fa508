/* Who goes when there is no room, who may begin when, and who is taken next. */
#define _GNU_SOURCE
#include "../../../native/server/admission.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "../check.h"

#define SECOND 1000000000LL
#define MS 1000000LL

static struct sockaddr_storage peer(const char *text) {
    struct sockaddr_storage s = {0};
    struct sockaddr_in *four = (void *)&s;
    struct sockaddr_in6 *six = (void *)&s;
    if (strchr(text, ':')) {
        s.ss_family = AF_INET6;
        CHECK(inet_pton(AF_INET6, text, &six->sin6_addr) == 1);
    } else {
        s.ss_family = AF_INET;
        CHECK(inet_pton(AF_INET, text, &four->sin_addr) == 1);
    }
    return s;
}

static struct admission_address of(const char *text) {
    struct sockaddr_storage s = peer(text);
    return admission_address_of(&s);
}

#define A of("10.0.0.1")
#define B of("10.0.0.2")
#define C of("10.0.0.3")

static struct admission *port(uint32_t share, uint32_t total, uint32_t rate, uint32_t burst) {
    struct admission *a = admission_new((struct admission_limits){share, total, rate, burst});
    CHECK(a);
    return a;
}

static void over_its_share(void) {
    struct admission *a = port(2, 10, 0, 0);
    struct admission_place honest = {0}, p[4] = {0};
    CHECK(!admission_enter(a, &honest, B, 0));
    CHECK(!admission_enter(a, &p[0], A, 0) && !admission_enter(a, &p[1], A, 0));
    CHECK(admission_enter(a, &p[2], A, 0) == &p[0] && !p[0].group);
    CHECK(admission_enter(a, &p[3], A, 0) == &p[1]);
    CHECK(admission_count(a) == 3 && honest.group);
    admission_leave(a, &p[2]);
    admission_leave(a, &p[2]);
    admission_leave(a, &p[3]);
    admission_leave(a, &honest);
    CHECK(admission_count(a) == 0 && !admission_shed(a, 0));
    admission_free(a);
}

static void when_all_is_full(void) {
    struct admission *a = port(10, 5, 0, 0);
    struct admission_place honest = {0}, c = {0}, p[8] = {0};
    CHECK(!admission_enter(a, &honest, B, 0));
    for (int i = 0; i < 8; i++) CHECK(admission_enter(a, &p[i], A, 0) == (i < 4 ? NULL : &p[i - 4]));
    CHECK(admission_enter(a, &c, C, 0) == &p[4]);
    CHECK(honest.group && c.group);
    for (struct admission_place *gone; (gone = admission_shed(a, 0));) CHECK(!gone->group);
    admission_free(a);
}

static void the_only_one_goes_last(void) {
    struct admission *a = port(10, 3, 0, 0);
    struct admission_place p[4] = {0};
    for (int i = 0; i < 3; i++) {
        char text[32];
        snprintf(text, sizeof text, "10.0.0.%d", i + 1);
        CHECK(!admission_enter(a, &p[i], of(text), 0));
    }
    CHECK(admission_enter(a, &p[3], of("10.0.0.9"), 0) == &p[0]); /* none has two: somebody has to */
    while (admission_shed(a, 0)) continue;
    admission_free(a);
}

static void a_share_of_one(void) {
    struct admission *a = port(1, 1, 0, 0);
    struct admission_place p[2] = {0};
    CHECK(!admission_enter(a, &p[0], A, 0));
    admission_leave(a, &p[0]);
    CHECK(!admission_enter(a, &p[0], A, 0));
    CHECK(admission_enter(a, &p[1], A, 0) == &p[0]);
    admission_leave(a, &p[1]);
    admission_free(a);
}

static void as_fast_as_its_rate(void) {
    struct admission *a = port(100, 100, 10, 3);
    struct admission_place p[8] = {0};
    static const int64_t wait[6] = {0, 0, 0, 0, 100, 200};
    for (int i = 0; i < 6; i++) {
        CHECK(!admission_enter(a, &p[i], A, 100 * SECOND));
        CHECK(p[i].start_at == 100 * SECOND + wait[i] * MS);
    }
    CHECK(!admission_enter(a, &p[6], B, 100 * SECOND) && p[6].start_at == 100 * SECOND);
    CHECK(!admission_enter(a, &p[7], A, 105 * SECOND) && p[7].start_at == 105 * SECOND);
    for (int i = 0; i < 8; i++) admission_leave(a, &p[i]);
    admission_free(a);
}

/* Thousands a second of one address, nearly all dropped before their turn: the next one waits for those that are left, not for all. */
static void what_never_began_uses_up_no_rate(void) {
    struct admission *a = port(4, 100, 10, 1);
    struct admission_place p[5] = {0};
    for (int i = 0; i < 5000; i++) {
        struct admission_place *place = &p[i % 5];
        CHECK(!place->group);
        admission_enter(a, place, A, i * MS);
        CHECK(place->start_at - i * MS < SECOND);
    }
    while (admission_shed(a, 0)) continue;
    admission_free(a);
}

static void addresses(void) {
    static const struct {
        const char *one, *other;
        bool same;
    } pairs[] = {
        {"127.0.0.1", "127.0.0.2", false},         {"10.0.0.1", "10.0.0.1", true},
        {"::ffff:10.0.0.1", "10.0.0.1", true},     {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
        {"2001:db8::1", "2001:db8::ffff:2", true}, {"2001:db8:0:1::1", "2001:db8:0:2::1", false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct admission_address one = of(pairs[i].one), other = of(pairs[i].other);
        CHECK((one.high == other.high && one.low == other.low) == pairs[i].same);
    }
}

/* One address has many hellos waiting: another one's is second. Who goes meanwhile does not wait any more. */
static void taken_in_turn(void) {
    struct admission *a = port(100, 100, 0, 0);
    struct admission_place p[20] = {0}, other = {0}, third = {0};
    CHECK(!admission_take(a));
    for (int i = 0; i < 20; i++) {
        admission_enter(a, &p[i], A, 0);
        admission_wait(a, &p[i]);
    }
    admission_enter(a, &other, B, 0);
    admission_wait(a, &other);
    admission_enter(a, &third, C, 0);
    admission_wait(a, &third);
    admission_leave(a, &third);
    admission_leave(a, &p[1]);
    CHECK(admission_take(a) == &p[0] && !p[0].group);
    CHECK(admission_take(a) == &other);
    for (int i = 2; i < 20; i++) CHECK(admission_take(a) == &p[i]);
    CHECK(!admission_take(a) && admission_count(a) == 0);
    admission_free(a);
}

/* A connection each from more addresses than are remembered: none is left behind, and one that keeps to its rate begins at once. */
static void many_addresses(void) {
    struct admission *a = port(128, 1024, 100, 256);
    struct admission_place *p = calloc(2000, sizeof *p);
    CHECK(p);
    int64_t now = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        struct admission_place *place = &p[i % 2000];
        CHECK(!place->group);
        admission_enter(a, place, (struct admission_address){i, i * 77}, now += 50000);
        CHECK(place->start_at == now && admission_count(a) <= 1024);
    }
    while (admission_shed(a, now)) continue;
    free(p);
    admission_free(a);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"over_its_share", over_its_share},
        {"when_all_is_full", when_all_is_full},
        {"the_only_one_goes_last", the_only_one_goes_last},
        {"a_share_of_one", a_share_of_one},
        {"as_fast_as_its_rate", as_fast_as_its_rate},
        {"what_never_began_uses_up_no_rate", what_never_began_uses_up_no_rate},
        {"addresses", addresses},
        {"taken_in_turn", taken_in_turn},
        {"many_addresses", many_addresses},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
