/* Copies to the host on one stream, waited for by way of another that is ordered after it: the server completes the other stream at once, and the bytes
 * of the copy come when they are released. */
#include <pthread.h>
#include <string.h>

#include "scenarios.h"
#include "session/session_state.h"

#define SMALL 100u
#define LARGE 900000u

static uint8_t dst[LARGE];
static struct session_stream s, other, third;

/* The deliberate fault, for a program that is linked with --wrap=order_open: no stream is ordered after another. */
bool __wrap_order_open(struct session_stream *stream, uint64_t upto, uint64_t *last);
bool __wrap_order_open(struct session_stream *stream, uint64_t upto, uint64_t *last) {
    (void)stream, (void)upto, (void)last;
    return false;
}

/* For a program that is linked with --wrap=memcpy: the copy of a small copy's bytes takes long. */
static _Atomic bool copying;
void *__real_memcpy(void *to, const void *from, size_t size) __attribute__((weak));
void *__wrap_memcpy(void *to, const void *from, size_t size);
void *__wrap_memcpy(void *to, const void *from, size_t size) {
    if (to == dst) {
        copying = true;
        usleep(300000);
    }
    return __real_memcpy(to, from, size);
}

static void start(struct fake *f, enum session_stream_order of_s, enum session_stream_order of_other) {
    set_up(&s, 5);
    set_up(&other, 6);
    set_up(&third, 7);
    s.order = of_s;
    other.order = of_other;
    f->copies = FAKE_HELD;
    memset(dst, 0xaa, sizeof dst);
}

static uint64_t copied;

static uint64_t copy(uint64_t size) { return copied = post_out(&s, dst, 3, size, 1, size); }

/* A command that is more than a mark, and asks for a completion. */
static uint64_t post_command(struct session_stream *to) {
    uint64_t seq = post_fence(to->ctx, GV_RECORD_MARK, &(struct gv_cmd_fence){.stream = to->id});
    session_stream_posted(to, seq, true, false);
    return seq;
}

/* The same, for which the server has no reason to complete it. */
static uint64_t post_unmarked(struct session_stream *to) {
    uint64_t seq = post_fence(to->ctx, 0, &(struct gv_cmd_fence){.stream = to->id});
    session_stream_posted(to, seq, true, false);
    return seq;
}

/* The stream `to` waits for what `from` has come to with command `upto`. */
static void post_wait(struct session_stream *to, const struct session_stream *from, uint64_t upto) {
    uint64_t seq = post_fence(to->ctx, 0, &(struct gv_cmd_fence){.stream = to->id});
    session_stream_waits(to, seq, from->id, upto);
    session_stream_posted(to, seq, false, false);
}

static _Atomic bool returned;

static void *release_soon(void *arg) {
    struct fake *f = arg;
    usleep(200000);
    CHECK(!returned);
    f->release = 1;
    return NULL;
}

/* The wait ends when the copy has its bytes, and not before. */
static int covered(struct fake *f, struct session_stream *waited, uint64_t seq, uint64_t size) {
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, release_soon, f));
    CHECK(session_wait_stream(waited, seq) == 0);
    returned = true;
    check_rows(dst, 3, size, 1, size);
    pthread_join(t, NULL);
    return 0;
}

/* The wait ends although nothing has been released. */
static int not_covered(struct fake *f, struct session_stream *waited, uint64_t seq) {
    CHECK(session_wait_stream(waited, seq) == 0 && !f->release);
    f->release = 1;
    CHECK(session_wait_stream(&s, copied) == 0);
    check_rows(dst, 3, LARGE, 1, LARGE);
    return 0;
}

static int event(struct fake *f, uint64_t size) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(size));
    return covered(f, &other, post_marked_fence(&other), size);
}

/* The process forks while a completion is held: the child has none, and nobody to wake. */
static int order_fork(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(LARGE));
    uint64_t seq = post_marked_fence(&other);
    for (int i = 0; i < 20; i++) { /* until the completion has come, or the test proves less */
        usleep(10000);
        session_poll();
    }
    pid_t child = fork();
    if (!child) {
        alarm(100);
        CHECK(session_broken() == 3 && post_command(&s) == 0);
        _exit(5);
    }
    int status = exit_of(child);
    if (status != 5) fprintf(stderr, "the child ended with %d\n", status);
    CHECK(status == 5);
    return covered(f, &other, seq, LARGE);
}

static int order_event(struct fake *f) { return event(f, LARGE); }
static int order_event_small(struct fake *f) { return event(f, SMALL); }

static int order_chain(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(LARGE));
    post_wait(&third, &other, post_command(&other));
    return covered(f, &third, post_marked_fence(&third), LARGE);
}

/* Two copies, of which the wait covers one: the second comes later. */
static int order_earlier_copy(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(SMALL));
    uint64_t seq = post_marked_fence(&other);
    static uint8_t more[LARGE];
    post_out(&s, more, 9, LARGE, 1, LARGE);
    return covered(f, &other, seq, SMALL);
}

static int order_legacy(struct fake *f) {
    start(f, SESSION_BLOCKING, SESSION_LEGACY);
    copy(LARGE);
    return covered(f, &other, post_marked_fence(&other), LARGE);
}

static int order_blocking(struct fake *f) {
    start(f, SESSION_LEGACY, SESSION_BLOCKING);
    copy(LARGE);
    return covered(f, &other, post_command(&other), LARGE);
}

/* Blocking stream, legacy stream, blocking stream. */
static int order_across_legacy(struct fake *f) {
    start(f, SESSION_BLOCKING, SESSION_LEGACY);
    third.order = SESSION_BLOCKING;
    copy(LARGE);
    post_command(&other);
    return covered(f, &third, post_command(&third), LARGE);
}

static void look(void *arg) {
    (void)arg;
    check_rows(dst, 3, LARGE, 1, LARGE);
    returned = true;
}

static int order_host_function(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(LARGE));
    uint64_t seq = post_function(&other, session_host_func(look, NULL));
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, release_soon, f));
    CHECK(session_wait_stream(&other, seq) == 0 && returned);
    pthread_join(t, NULL);
    return 0;
}

static void look_small(void *arg) {
    (void)arg;
    check_rows(dst, 3, SMALL, 1, SMALL);
    returned = true;
}

/* The host function asks whether it may run while the small copy's bytes are being copied to their place: when that takes long, that is. */
static int order_during_small_copy(struct fake *f) {
    bool slow = __real_memcpy;
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(SMALL));
    struct gv_cmd_host_func c = {.stream = other.id, .tag = session_host_func(look_small, NULL)};
    uint64_t sent = f->sent, seq = post_host_func(other.ctx, 0, &c);
    session_stream_posted(&other, seq, true, false);
    session_flush();
    CHECK(SOON(f->sent > sent));
    CHECK(session_wait_stream(&third, post_marked_fence(&third)) == 0); /* the function is due, and its thread waits to hear where it stands */
    f->release = 1;
    CHECK(!slow || SOON(copying));
    session_host_func_posted(c.tag, &other, seq);
    CHECK(session_wait_stream(&other, seq) == 0 && returned);
    return 0;
}

/* The completion is there before the session has been told of the command. */
static int order_before_posted(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    copy(LARGE);
    uint64_t sent = f->sent;
    uint64_t seq = post_fence(other.ctx, GV_RECORD_MARK, &(struct gv_cmd_fence){.stream = other.id});
    session_flush();
    CHECK(SOON(f->sent > sent));
    CHECK(session_wait_stream(&third, post_marked_fence(&third)) == 0 && other.completed < seq); /* it has been read */
    session_stream_waits(&other, seq, s.id, copied);
    session_stream_posted(&other, seq, true, false);
    return covered(f, &other, seq, LARGE);
}

/* The other stream's context has failed: nothing is written any more for what it came after in that context. */
static int order_failed(struct fake *f) {
    static struct session_stream bad;
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    set_up(&bad, 66);
    post_wait(&bad, &s, copy(LARGE));
    CHECK(session_wait_stream(&bad, post_marked_fence(&bad)) == 700);
    memset(dst, 0xbb, sizeof dst);
    f->release = 1;
    static uint8_t more[LARGE];
    memset(more, 0xaa, sizeof more);
    f->copies = FAKE_SOUND; /* payloads come in order */
    CHECK(session_wait_stream(&other, post_out(&other, more, 4, LARGE, 1, LARGE)) == 0);
    check_rows(more, 4, LARGE, 1, LARGE);
    for (uint64_t i = 0; i < LARGE; i++) CHECK(dst[i] == 0xbb);
    return 0;
}

/* The copy's stream goes, and with it the copy. */
static int order_source_removed(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    post_wait(&other, &s, copy(LARGE));
    uint64_t seq = post_marked_fence(&other);
    session_stream_remove(&s);
    CHECK(session_wait_stream(&other, seq) == 0 && !f->release);
    f->release = 1;
    CHECK(session_wait_stream(&third, post_out(&third, dst, 4, LARGE, 1, LARGE)) == 0);
    check_rows(dst, 4, LARGE, 1, LARGE);
    return 0;
}

/* Completions that are all held back cost as much as they are many. The payloads that they name never come. */
#define FLOOD 3000u
static _Atomic uint64_t steps, first_of_two, second_of_two;
static _Atomic bool out_of_order;
void count_completion_step(void) {
    steps++;
    if (second_of_two && third.completed >= second_of_two && other.completed < first_of_two) out_of_order = true;
}

static int order_flood_held(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    f->copies = FAKE_SOUND;
    session_wait_stream(&third, post_marked_fence(&third));
    uint64_t flood = FLOOD, before = f->sent;
    post_order(FAKE_FLOOD_HELD, flood, NULL, 0);
    CHECK(SOON(f->sent >= before + flood));
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0); /* all have been read */
    for (int i = 0; i < 200; i++) post_marked_fence(&s);
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
    fprintf(stderr, "%llu steps for %u completions\n", (unsigned long long)steps, FLOOD);
    CHECK(steps >= FLOOD && steps < 4ull * FLOOD);
    return 0;
}

/* Which streams have come how far is seen in the order in which the server said it, also where both were held back for the same payload. */
static int order_as_said(struct fake *f) {
    static struct session_stream fourth;
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    set_up(&fourth, 8);
    copy(LARGE);
    uint64_t seq = post_unmarked(&other), next = post_unmarked(&third);
    CHECK(next == seq + 1);
    first_of_two = seq;
    second_of_two = next;
    post_order(FAKE_HOLD_TWO, seq, NULL, 0);
    CHECK(session_wait_stream(&fourth, post_marked_fence(&fourth)) == 0 && other.completed < seq && third.completed < next);
    f->release = 1;
    CHECK(session_wait_stream(&third, next) == 0 && session_wait_stream(&other, seq) == 0 && !out_of_order);
    return 0;
}

/* ---- streams that are not ordered after the copy -------------------------------------------------------------------- */

static int order_none(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_LEGACY);
    copy(LARGE);
    return not_covered(f, &other, post_command(&other));
}

static int order_none_by_a_mark(struct fake *f) {
    start(f, SESSION_LEGACY, SESSION_BLOCKING);
    copy(LARGE);
    return not_covered(f, &other, post_marked_fence(&other));
}

static int order_none_across_contexts(struct fake *f) {
    start(f, SESSION_BLOCKING, SESSION_LEGACY);
    other.ctx = 2;
    copy(LARGE);
    return not_covered(f, &other, post_command(&other));
}

static int order_none_before(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    uint64_t earlier = post_marked_fence(&s);
    copy(LARGE);
    post_wait(&other, &s, earlier);
    return not_covered(f, &other, post_marked_fence(&other));
}

/* The wait comes after what is waited for. */
static int order_none_yet(struct fake *f) {
    start(f, SESSION_UNORDERED, SESSION_UNORDERED);
    copy(LARGE);
    uint64_t seq = post_marked_fence(&other);
    post_wait(&other, &s, copied);
    return not_covered(f, &other, seq);
}

const struct scenario order_scenarios[] = {
    {"order_event", FAKE_ATTACH, order_event, NULL, 0},
    {"order_event_small", FAKE_ATTACH, order_event_small, NULL, 0},
    {"order_fork", FAKE_ATTACH, order_fork, NULL, 0},
    {"order_chain", FAKE_ATTACH, order_chain, NULL, 0},
    {"order_earlier_copy", FAKE_ATTACH, order_earlier_copy, NULL, 0},
    {"order_legacy", FAKE_ATTACH, order_legacy, NULL, 0},
    {"order_blocking", FAKE_ATTACH, order_blocking, NULL, 0},
    {"order_across_legacy", FAKE_ATTACH, order_across_legacy, NULL, 0},
    {"order_host_function", FAKE_ATTACH, order_host_function, NULL, 0},
    {"order_during_small_copy", FAKE_ATTACH, order_during_small_copy, NULL, 0},
    {"order_before_posted", FAKE_ATTACH, order_before_posted, NULL, 0},
    {"order_failed", FAKE_ATTACH, order_failed, NULL, 0},
    {"order_source_removed", FAKE_ATTACH, order_source_removed, NULL, 0},
    {"order_flood_held", FAKE_ATTACH, order_flood_held, NULL, 0},
    {"order_as_said", FAKE_ATTACH, order_as_said, NULL, 0},
    {"order_none", FAKE_ATTACH, order_none, NULL, 0},
    {"order_none_by_a_mark", FAKE_ATTACH, order_none_by_a_mark, NULL, 0},
    {"order_none_across_contexts", FAKE_ATTACH, order_none_across_contexts, NULL, 0},
    {"order_none_before", FAKE_ATTACH, order_none_before, NULL, 0},
    {"order_none_yet", FAKE_ATTACH, order_none_yet, NULL, 0},
    {0},
};
