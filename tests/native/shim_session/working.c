#include "scenarios.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#include "session/session_state.h"

static int calls(struct fake *f) {
    (void)f;
    CHECK(session_attach() == 0);
    struct gv_cmd_memory_info c = {0};
    struct gv_reply_memory_info info;
    struct session_reply reply;
    for (uint32_t i = 20; i < 220; i++) {
        CHECK(call_memory_info(i, &c, &info, &reply) == 0 && info.free == i && info.total == 2 * i);
        session_reply_done(&reply);
    }
    CHECK(call_memory_info(13, &c, &info, &reply) == 2 && !strcmp(reply.text, "no memory at all"));
    session_reply_done(&reply);
    CHECK(session_stats.waits >= 201 && session_stats.wait_ns > 0);
    return 0;
}

/* ---- data ---------------------------------------------------------------------------------------------------------- */

void check_rows(const uint8_t *dst, uint64_t src, uint64_t width, uint64_t height, uint64_t pitch) {
    for (uint64_t y = 0; y < height; y++) {
        for (uint64_t x = 0; x < width; x++) CHECK(dst[y * pitch + x] == fake_byte(src, y * width + x));
        for (uint64_t x = width; x < pitch; x++) CHECK(dst[y * pitch + x] == 0xaa); /* between the rows nothing is touched */
    }
}

/* The completion arrives before its payload, which the worker holds back: the wait must not end before the data is there. */
static int out(struct fake *f) {
    static const struct {
        uint64_t width, height, pitch;
    } shapes[] = {
        {16, 1, 16},           {100, 7, 128}, {5000, 1, 5000},  {1000, 300, 1024}, {100000, 20, 120000},
        {1 << 20, 1, 1 << 20}, {3, 3000, 5},  {2048, 64, 2048}, {4096, 1, 9000},
    };
    static struct session_stream s, other;
    set_up(&s, 5);
    set_up(&other, 6);
    f->delay_ms = 5;
    for (unsigned k = 0; k < 3; k++)
        for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint64_t size = shapes[i].pitch * shapes[i].height;
            uint8_t *dst = malloc(size);
            memset(dst, 0xaa, size);
            uint64_t seq = post_out(&s, dst, i * 1000 + k, shapes[i].width, shapes[i].height, shapes[i].pitch);
            /* A later completion of the same stream that names no payload must not overtake it either. */
            if (k == 1) seq = post_marked_fence(&s);
            if (k == 2) CHECK(session_wait_stream(&other, post_marked_fence(&other)) == 0);
            CHECK(session_wait_stream(&s, seq) == 0);
            check_rows(dst, i * 1000 + k, shapes[i].width, shapes[i].height, shapes[i].pitch);
            free(dst);
        }
    session_stream_remove(&other);
    CHECK(f->sent > 0 && session_stats.waits > 0);
    return 0;
}

/* Nobody waits: the data still lands, and the stream's completion shows. */
static int unattended(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    f->delay_ms = 20;
    static uint8_t small[100], large[500000];
    for (int i = 0; i < 5; i++) {
        memset(large, 0, sizeof large);
        post_out(&s, small, 11, sizeof small, 1, sizeof small);
        uint64_t seq = post_out(&s, large, 99, sizeof large, 1, sizeof large);
        session_flush();
        CHECK(SOON(s.completed >= seq));
        check_rows(small, 11, sizeof small, 1, sizeof small);
        check_rows(large, 99, sizeof large, 1, sizeof large);
    }
    return 0;
}

static int in(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    for (uint64_t i = 0; i < 40; i++) CHECK(send_in(&s, i * 7, 1 + i * 50021) != 0);
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    CHECK(SOON(f->payloads_in == 40) && f->bad_payloads == 0);
    return 0;
}

/* Waits for the link sleep at least so long, where a wake-up that is lost is to be seen. Linked in place of the link's. */
static _Atomic int64_t sleep_ns;
void __real_gv_recv_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
void __wrap_gv_recv_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns);
void __wrap_gv_recv_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    __real_gv_recv_wait(link, timeout_ns < sleep_ns ? sleep_ns : timeout_ns, spin_ns);
}

/* Sent from where it lies: the call returns, what follows goes its way, and the memory may go once the session says so, of which whoever waits is told. */
static int lent(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    sleep_ns = 60000000000;
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t size = 1 + i * 250021;
        uint8_t *data = lend_in(&s, i * 7, size);
        CHECK(data);
        if (i % 3 == 0) CHECK(send_in(&s, i * 11, 70000) != 0);
        int64_t start = session_now();
        session_loans_wait((uint64_t)(uintptr_t)data, (uint64_t)(uintptr_t)data + size);
        CHECK(session_now() - start < sleep_ns / 2);
        memset(data, 0xee, size);
        free(data);
    }
    sleep_ns = 0;
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    CHECK(SOON(f->payloads_in == 54) && f->bad_payloads == 0);
    return 0;
}

static int parcel(struct fake *f) {
    CHECK(session_attach() == 0);
    static uint8_t data[300000];
    for (uint64_t i = 1; i < 6; i++) {
        f->delay_ms = i % 2 ? 10 : 0;
        struct gv_cmd_module_load c = {.module = i};
        struct gv_reply_module_load answer;
        struct session_reply reply;
        CHECK(call_module_load(1, &c, &answer, &reply) == 0);
        if (i == 4) usleep(50000); /* it is here before it is asked for */
        CHECK(session_take_payload(answer.meta_tag, data, answer.meta_bulk_size) == 0);
        session_reply_done(&reply);
        for (uint64_t k = 0; k < sizeof data; k++) CHECK(data[k] == fake_byte(i, k));
    }
    return 0;
}

/* ---- many threads -------------------------------------------------------------------------------------------------- */

#define THREADS 32

static void *crowd_member(void *arg) {
    uint32_t me = (uint32_t)(uintptr_t)arg;
    struct session_stream s;
    set_up(&s, 1000 + me);
    uint8_t *dst = malloc(20000);
    for (uint32_t i = 0; i < 30; i++) {
        for (int k = 0; k < 20; k++) CHECK(post_order(FAKE_NOTHING, 0, NULL, 0) != 0);
        struct gv_cmd_memory_info c = {0};
        struct gv_reply_memory_info info;
        struct session_reply reply;
        CHECK(call_memory_info(100 + me, &c, &info, &reply) == 0 && info.free == 100 + me);
        session_reply_done(&reply);
        CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
        if (i % 10 == 0) {
            CHECK(send_in(&s, me, 10000) != 0);
            CHECK(session_wait_stream(&s, post_out(&s, dst, me, 20000, 1, 20000)) == 0);
            check_rows(dst, me, 20000, 1, 20000);
        }
        session_poll();
    }
    free(dst);
    session_stream_remove(&s);
    return NULL;
}

static int crowd(struct fake *f) {
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&t[i], NULL, crowd_member, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    CHECK(SOON(f->launches == THREADS * 30 * 20) && SOON(f->payloads_in == THREADS * 3) && f->bad_payloads == 0);
    return 0;
}

/* ---- host functions ------------------------------------------------------------------------------------------------ */

static uint8_t seen_by_host[200000];
static _Atomic int called;

static void look(void *arg) {
    check_rows(seen_by_host, *(uint64_t *)arg, sizeof seen_by_host, 1, sizeof seen_by_host);
    called++;
}

static void callback(void *stream, int status, void *data) {
    CHECK(stream == &called && data == &seen_by_host);
    called += status;
}

static bool answered(const struct fake *f, int n) {
    double until = seconds() + 20;
    while (f->host_done < n && seconds() < until) usleep(1000);
    return f->host_done == n;
}

static int host_functions(struct fake *f) {
    static struct session_stream s, bad;
    set_up(&s, 5);
    set_up(&bad, 66);
    f->delay_ms = 10;
    for (uint64_t i = 0; i < 4; i++) {
        static uint64_t src;
        src = 50 + i;
        memset(seen_by_host, 0, sizeof seen_by_host);
        post_out(&s, seen_by_host, src, sizeof seen_by_host, 1, sizeof seen_by_host);
        CHECK(session_wait_stream(&s, post_function(&s, session_host_func(look, &src))) == 0);
        CHECK(called == (int)i + 1 && answered(f, (int)i + 1));
    }
    /* A failed stream: the callback learns of it, a host function is not called. */
    CHECK(session_wait_stream(&bad, post_function(&bad, session_stream_callback(callback, &called, &seen_by_host))) == 700 && called == 704);
    CHECK(session_wait_stream(&bad, post_function(&bad, session_host_func(look, NULL))) == 700 && called == 704 && answered(f, 6));
    return 0;
}

#define NEARLY_ALL (SESSION_BEHIND_HOST - GV_RECORD_MAX)
static _Atomic uint64_t before_it, behind_it;

static void dawdle(void *arg) {
    (void)arg;
    double until = seconds() + 200;
    while (session.posted - before_it < NEARLY_ALL && seconds() < until) usleep(1000);
    sleep(1); /* for more, if nothing stopped it */
    behind_it = session.posted - before_it;
}

/* What is posted behind a host function that takes its time is bounded: the worker keeps it until the function's answer comes, which takes the same
 * way. */
static int behind_a_host_function(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    uint64_t tag = session_host_func(dawdle, NULL);
    before_it = session.posted;
    CHECK(post_function(&s, tag) != 0);
    char params[4000] = {0};
    struct gv_cmd_launch launch = {.stream = 5, .params = params, .params_size = sizeof params};
    uint64_t waits = session_stats.waits;
    for (int i = 0; i < 30000; i++) CHECK(post_launch(1, 0, &launch) != 0);
    CHECK(session_stats.waits > waits);
    CHECK(behind_it <= SESSION_BEHIND_HOST + GV_RECORD_MAX && behind_it > NEARLY_ALL);
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0 && f->launches == 30000);
    return 0;
}

static _Atomic bool wait_on, late_ran;
static uint8_t late_data[4 << 20];

static void wait_for_late(void *arg) {
    (void)arg;
    while (!late_ran) usleep(1000);
}

/* The stream is told to go on first, or the worker would have to keep what is sent here until it is. */
static void send_late(void *stream, int status, void *arg) {
    struct fake *f = arg;
    (void)stream, (void)status;
    CHECK(SOON(f->host_done == 1));
    while (wait_on) usleep(1000);
    CHECK(session_bulk_late(session_late_tags(1), late_data, sizeof late_data) == 0);
    late_ran = true;
}

static void *stop_waiting(void *arg) {
    (void)arg;
    usleep(100000);
    wait_on = false;
    return NULL;
}

/* Late functions are not held up by the program's, and payloads stay within a bound behind them. */
static int late_functions(struct fake *f) {
    static struct session_stream s, other;
    set_up(&s, 5);
    set_up(&other, 6);
    wait_on = true;
    uint64_t programs = post_function(&other, session_host_func(wait_for_late, NULL));
    CHECK(programs && post_function(&s, session_late_func(send_late, f)));
    CHECK(!session_late_crowded(SESSION_BEHIND_LATE) && session_late_crowded(SESSION_BEHIND_LATE + 1));
    CHECK(send_in(&s, 1, SESSION_BEHIND_LATE * 2 / 3) && !late_ran); /* nobody had to wait */
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, stop_waiting, NULL));
    CHECK(send_in(&s, 2, SESSION_BEHIND_LATE * 2 / 3) && late_ran);
    CHECK(session_wait_stream(&other, programs) == 0 && !session_late_crowded(SESSION_BEHIND_LATE + 1));
    pthread_join(t, NULL);
    return 0;
}

/* ---- errors, output ------------------------------------------------------------------------------ */

/* Whoever waits for a stream may return before the thread that reads the link has told of its context. */
static bool told_of(uint32_t ctx) {
    double end = seconds() + 100;
    while (failed_ctx != ctx && seconds() < end) usleep(1000);
    return failed_ctx == ctx && failed_status == 700;
}

static int failures(struct fake *f) {
    (void)f;
    static struct session_stream s, bad;
    set_up(&s, 5);
    set_up(&bad, 66);
    CHECK(post_order(FAKE_SOFT_FAIL, 0, NULL, 0) && session_wait_stream(&s, post_marked_fence(&s)) == 0 && failed_ctx == 0);
    CHECK(session_wait_stream(&bad, post_marked_fence(&bad)) == 700 && bad.status == 700 && told_of(1));
    failed_ctx = 0;
    for (int i = 0; i < 100; i++) CHECK(post_order(FAKE_FAIL, 0, NULL, 0) != 0);
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 700 && told_of(1));
    CHECK(session_broken() == 0); /* the context is lost, the session is not */
    return 0;
}

static int prints(struct fake *f) {
    (void)f;
    static struct session_stream s;
    set_up(&s, 5);
    for (int i = 0; i < 50; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "line %d\n", i);
        CHECK(post_order(FAKE_PRINT, 0, line, (uint32_t)n) != 0);
    }
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    CHECK(write(1, "after\n", 6) == 6);
    return 0;
}

/* On stderr, in one printable line each. */
static int notices(struct fake *f) {
    (void)f;
    static struct session_stream s;
    set_up(&s, 5);
    CHECK(post_order(FAKE_NOTICE, 0, "the first", sizeof "the first") && post_order(FAKE_NOTICE, 0, "\x1b[2J\n", sizeof "\x1b[2J\n"));
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    return 0;
}

/* Standard output is a pipe that nobody reads any more: no signal, no end of the session. */
static int prints_into_nothing(struct fake *f) {
    (void)f;
    static struct session_stream s;
    int ends[2];
    CHECK(!pipe(ends));
    close(ends[0]);
    dup2(ends[1], 1);
    set_up(&s, 5);
    CHECK(post_order(FAKE_PRINT, 0, "lost\n", 5) && session_wait_stream(&s, post_marked_fence(&s)) == 0 && session_broken() == 0);
    return 0;
}

/* More events than the reply ring holds, while nobody waits: somebody drains it. */
static int floods(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    enum { EVENTS = GV_REPLY_RING / (sizeof(struct gv_record) + 16) }; /* each has a body of more than that */
    CHECK(post_order(FAKE_FLOOD, EVENTS, NULL, 0) != 0);
    CHECK(SOON(f->sent > EVENTS));
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    return 0;
}

/* Far more commands than the command ring holds. */
static int many_posts(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    char params[1000] = {0};
    struct gv_cmd_launch c = {.stream = 5, .params = params, .params_size = sizeof params};
    for (int i = 0; i < 20000; i++) CHECK(post_launch(1, 0, &c) != 0);
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0 && f->launches == 20000);
    return 0;
}

const struct scenario work_scenarios[] = {
    {"calls", FAKE_ATTACH, calls, NULL, 0},
    {"copies_out", FAKE_ATTACH, out, NULL, 0},
    {"copies_out_unattended", FAKE_ATTACH, unattended, NULL, 0},
    {"copies_in", FAKE_ATTACH, in, NULL, 0},
    {"lent", FAKE_ATTACH, lent, NULL, 0},
    {"worker_named_payloads", FAKE_ATTACH, parcel, NULL, 0},
    {"thirty_two_threads", FAKE_ATTACH, crowd, NULL, 0},
    {"host_functions", FAKE_ATTACH, host_functions, NULL, 0},
    {"behind_a_host_function", FAKE_ATTACH, behind_a_host_function, NULL, 0},
    {"late_functions", FAKE_ATTACH, late_functions, NULL, 0},
    {"failures", FAKE_ATTACH, failures, NULL, 0},
    {"prints", FAKE_ATTACH, prints, NULL, 0},
    {"notices", FAKE_ATTACH, notices, NULL, 0},
    {"prints_into_nothing", FAKE_ATTACH, prints_into_nothing, NULL, 0},
    {"floods", FAKE_ATTACH, floods, NULL, 0},
    {"many_posts", FAKE_ATTACH, many_posts, NULL, 0},
    {0},
};
