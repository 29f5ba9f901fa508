/* The worker is gone, or says nonsense: whoever waits returns soon with CUDA_ERROR_DEVICE_UNAVAILABLE, whatever it waits for. */
#include "scenarios.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "session/session_state.h"

static _Atomic double dead_since;

/* Whether the thread that posts, which is the first, waits for something: it is neither running nor in line for a processor. */
static bool poster_sleeps(void) {
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    FILE *f = fopen(path, "r");
    CHECK(f && fgets(stat, sizeof stat, f));
    fclose(f);
    const char *state = strrchr(stat, ')');
    return state && state[1] == ' ' && state[2] == 'S';
}

/* Once whoever posts has been asleep at fifty looks and has posted nothing in between: a second without a post may be one without a processor. */
static void *kill_when_stuck(void *arg) {
    struct fake *f = arg;
    uint64_t before = 0;
    for (int looks = 0; looks < 50; looks++) {
        usleep(10000);
        uint64_t now = session.posted;
        if (now != before || !poster_sleeps()) looks = 0;
        before = now;
    }
    dead_since = seconds();
    kill(f->pid, SIGKILL);
    return NULL;
}

static void *kill_soon(void *arg) {
    struct fake *f = arg;
    usleep(100000);
    dead_since = seconds();
    kill(f->pid, SIGKILL);
    return NULL;
}

static void killed_soon(struct fake *f) {
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, kill_soon, f) && !pthread_detach(t));
}

int lost(void) {
    CHECK(session_broken() == 46 && session_attach() == 46);
    CHECK(strstr(session_error_text(46), "lost the GPU server tcp://127.0.0.1:"));
    CHECK(!dead_since || seconds() - dead_since < 40);
    struct gv_cmd_fence c = {0};
    struct gv_cmd_memory_info m = {0};
    struct session_reply reply;
    double start = seconds();
    for (int i = 0; i < 1000; i++) {
        CHECK(post_fence(1, 0, &c) == 0);
        CHECK(call_memory_info(1, &m, NULL, &reply) == 46);
        session_reply_done(&reply);
        session_poll();
        session_flush();
    }
    CHECK(seconds() - start < 20);
    return 3; /* and the program's own exit code is kept */
}

static int in_a_call(struct fake *f) {
    CHECK(session_attach() == 0 && post_order(FAKE_STOP, 0, NULL, 0));
    killed_soon(f);
    struct gv_cmd_memory_info c = {0};
    struct session_reply reply;
    CHECK(call_memory_info(1, &c, NULL, &reply) == 46);
    session_reply_done(&reply);
    return lost();
}

static void *wait_for_it(void *arg) {
    struct session_stream *s = arg;
    CHECK(session_wait_stream(s, post_marked_fence(s)) == 46);
    return NULL;
}

static int in_many_waits(struct fake *f) {
    static struct session_stream s[8];
    pthread_t t[8];
    CHECK(session_attach() == 0 && post_order(FAKE_STOP, 0, NULL, 0));
    for (int i = 0; i < 8; i++) set_up(&s[i], 100 + (uint64_t)i);
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], NULL, wait_for_it, &s[i]));
    for (int i = 0; i < 8; i++) CHECK(SOON(s[i].posted)); /* who comes later has nothing to wait for */
    killed_soon(f);
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    return lost();
}

/* Until the link has all its sockets: one that is being made when the server stops is given up before anything is full. */
static void connected(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 4);
    CHECK(send_in(&s, 3, 100000) != 0 && SOON(f->payloads_in == 1));
}

static int on_a_full_ring(struct fake *f) {
    connected(f);
    CHECK(post_order(FAKE_STOP, 0, NULL, 0));
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, kill_when_stuck, f) && !pthread_detach(t));
    char params[4000] = {0};
    struct gv_cmd_launch c = {.stream = 5, .params = params, .params_size = sizeof params};
    uint64_t waited = session_stats.wait_ns;
    for (int posts = 0; post_launch(1, 0, &c); posts++)
        for (double until = posts == 10 ? seconds() + 0.7 : 0; seconds() < until;) continue; /* as without a processor: nothing is full yet */
    CHECK(dead_since != 0 && session_stats.wait_ns - waited > 1000000);
    return lost();
}

static int in_a_payload_out(struct fake *f) {
    static struct session_stream s;
    connected(f);
    set_up(&s, 5);
    CHECK(post_order(FAKE_STOP, 0, NULL, 0));
    killed_soon(f);
    while (send_in(&s, 0, 20 << 20)) {
    }
    CHECK(dead_since != 0);
    return lost();
}

/* In the middle of data that is being written into the program's buffer, which the program frees as soon as the wait returns. */
static int in_a_payload_in(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    killed_soon(f);
    for (;;) {
        uint8_t *dst = malloc(8 << 20);
        uint64_t seq = post_out(&s, dst, 1, 8 << 20, 1, 8 << 20);
        int status = seq ? session_wait_stream(&s, seq) : session_broken();
        free(dst);
        if (!status) continue;
        CHECK(status == 46);
        return lost();
    }
}

static int while_idle(struct fake *f) {
    CHECK(session_attach() == 0);
    killed_soon(f);
    usleep(150000);
    CHECK(SOON(session_broken() == 46));
    return lost();
}

static int before_a_call(struct fake *f) {
    CHECK(session_attach() == 0);
    kill(f->pid, SIGKILL);
    dead_since = seconds();
    struct gv_cmd_memory_info c = {0};
    struct session_reply reply;
    CHECK(call_memory_info(1, &c, NULL, &reply) == 46);
    session_reply_done(&reply);
    return lost();
}

static void never(void *arg) {
    (void)arg;
    CHECK(false);
}

static int for_a_host_function(struct fake *f) {
    static struct session_stream s;
    static uint8_t data[100000];
    set_up(&s, 5);
    f->delay_ms = 200000; /* the payload does not come */
    post_out(&s, data, 1, sizeof data, 1, sizeof data);
    uint64_t seq = post_function(&s, session_host_func(never, NULL));
    killed_soon(f);
    CHECK(session_wait_stream(&s, seq) == 46);
    return lost();
}

static int for_a_parcel(struct fake *f) {
    CHECK(session_attach() == 0);
    char byte;
    killed_soon(f);
    CHECK(session_take_payload(GV_BULK_WORKER_TAG | 1, &byte, 1) == 46);
    return lost();
}

/* ---- nonsense ------------------------------------------------------------------------------------------------------ */

static int nonsense(enum fake_order order, uint64_t argument) {
    static struct session_stream s;
    set_up(&s, 5);
    CHECK(post_order(order, argument, NULL, 0) != 0);
    dead_since = seconds();
    usleep(order == FAKE_STRAY_DATA ? 100000 : 0); /* payloads come on their own channel */
    CHECK(session_wait_stream(&s, post_marked_fence(&s) + 1000) == 46);
    return lost();
}

static int malformed(struct fake *f) {
    (void)f;
    return nonsense(FAKE_MALFORMED, 0);
}
static int unknown(struct fake *f) {
    (void)f;
    return nonsense(FAKE_UNKNOWN, 0);
}
static int stray_reply(struct fake *f) {
    (void)f;
    return nonsense(FAKE_STRAY_REPLY, 0);
}
static int stray_data(struct fake *f) {
    (void)f;
    return nonsense(FAKE_STRAY_DATA, 123456789);
}
static int stray_payload(struct fake *f) {
    (void)f;
    return nonsense(FAKE_STRAY_DATA, GV_BULK_WORKER_TAG | 5);
}

/* Two answers name the same payload, and both calls wait for it. */
static void *load_the_same(void *arg) {
    static _Atomic int loading;
    struct gv_cmd_module_load c = {.module = 7};
    struct gv_reply_module_load answer;
    struct session_reply reply;
    CHECK(call_module_load(1, &c, &answer, &reply) == 0);
    loading++;
    CHECK(SOON(loading == 2)); /* neither has taken it */
    CHECK(session_take_payload(answer.meta_tag, arg, answer.meta_bulk_size) == 46);
    session_reply_done(&reply);
    return NULL;
}

static int one_payload_for_two(struct fake *f) {
    static uint8_t data[2][300000];
    pthread_t other;
    CHECK(session_attach() == 0);
    f->delay_ms = 300;
    CHECK(pthread_create(&other, NULL, load_the_same, data[1]) == 0);
    load_the_same(data[0]);
    CHECK(pthread_join(other, NULL) == 0);
    dead_since = seconds();
    return lost();
}

/* A tag that is no payload's of its kind: nothing will ever come for it. */
static int payload_of_a_copy(struct fake *f) {
    char byte;
    (void)f;
    CHECK(session_attach() == 0);
    CHECK(session_take_payload(5, &byte, 1) == 46);
    dead_since = seconds();
    return lost();
}
static int stray_inline(struct fake *f) {
    (void)f;
    return nonsense(FAKE_WRONG_INLINE, 9999);
}
static int wrong_inline(struct fake *f) {
    static char eight[8];
    (void)f;
    CHECK(session_attach() == 0);
    return nonsense(FAKE_WRONG_INLINE, session_expect(eight, 8, 1, 1, 8, 8));
}

/* Events of every kind with bodies of chance: each is either taken or refused, and nothing else happens. */
static int random_events(struct fake *f) {
    (void)f;
    static struct session_stream s;
    set_up(&s, 1);
    CHECK(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
    _Alignas(8) static unsigned char room[GV_RECORD_MAX];
    uint32_t state = 12345;
    int taken = 0, refused = 0;
    for (int i = 0; i < 60000; i++) {
        uint32_t words = 0;
#define NEXT() (state = state * 1664525u + 1013904223u, state >> 8)
        words = NEXT() % 12;
        struct gv_record *r = (struct gv_record *)room;
        *r = (struct gv_record){.size = (uint32_t)sizeof *r + 8 * words, .op = (uint16_t)(99 + NEXT() % 10), .ctx = NEXT() % 3, .seq = 1};
        uint32_t *body = (uint32_t *)(r + 1);
        /* Small numbers and sizes that nearly fit are what decoders stumble over. */
        for (uint32_t k = 0; k < 2 * words; k++) body[k] = NEXT() % 4 ? NEXT() % 48 : NEXT() % 2 ? 0 : NEXT() * 40503u;
        const char *why = NULL;
        int outcome = incoming_handle(r, &why);
        CHECK(outcome == 0 || why != NULL);
        outcome ? refused++ : taken++;
    }
    return taken > 1000 && refused > 1000 ? 0 : 1;
}

void no_bye(struct fake *f) { CHECK(f->byes == 0); }

const struct scenario loss_scenarios[] = {
    {"lost_in_a_call", FAKE_ATTACH, in_a_call, no_bye, 3},
    {"lost_in_many_waits", FAKE_ATTACH, in_many_waits, no_bye, 3},
    {"lost_on_a_full_ring", FAKE_ATTACH, on_a_full_ring, no_bye, 3},
    {"lost_in_a_payload_out", FAKE_ATTACH, in_a_payload_out, no_bye, 3},
    {"lost_in_a_payload_in", FAKE_ATTACH, in_a_payload_in, no_bye, 3},
    {"lost_while_idle", FAKE_ATTACH, while_idle, no_bye, 3},
    {"lost_before_a_call", FAKE_ATTACH, before_a_call, no_bye, 3},
    {"lost_for_a_host_function", FAKE_ATTACH, for_a_host_function, no_bye, 3},
    {"lost_for_a_parcel", FAKE_ATTACH, for_a_parcel, no_bye, 3},
    {"nonsense_malformed", FAKE_ATTACH, malformed, no_bye, 3},
    {"nonsense_unknown", FAKE_ATTACH, unknown, no_bye, 3},
    {"nonsense_stray_reply", FAKE_ATTACH, stray_reply, no_bye, 3},
    {"nonsense_stray_data", FAKE_ATTACH, stray_data, no_bye, 3},
    {"nonsense_stray_payload", FAKE_ATTACH, stray_payload, no_bye, 3},
    {"nonsense_one_payload_for_two", FAKE_ATTACH, one_payload_for_two, no_bye, 3},
    {"nonsense_payload_of_a_copy", FAKE_ATTACH, payload_of_a_copy, no_bye, 3},
    {"nonsense_stray_inline", FAKE_ATTACH, stray_inline, no_bye, 3},
    {"nonsense_wrong_inline", FAKE_ATTACH, wrong_inline, no_bye, 3},
    {"random_events", FAKE_ATTACH, random_events, NULL, 0},
    {0},
};
