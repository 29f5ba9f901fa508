/* A copy to the host completes before its bytes are there. The program uses its memory for something else by then, so nothing may be written there:
 * after a success the session is over, after a failure the bytes are thrown away and the session goes on. */
#include <pthread.h>
#include <string.h>

#include "scenarios.h"

static uint8_t dst[900000], other_dst[300000];
static struct session_stream s, other;

static void reuse(uint64_t size) { memset(dst, 0xbb, size); }

static void check_reused(uint64_t size) {
    for (uint64_t i = 0; i < size; i++) CHECK(dst[i] == 0xbb);
}

/* The bytes come while the program has its memory back. */
static int over(struct fake *f) {
    CHECK(session_broken() == 46);
    reuse(sizeof dst);
    f->release = 1;
    usleep(200000);
    check_reused(sizeof dst);
    return lost();
}

static int succeeds(struct fake *f, enum fake_copies how, uint64_t size) {
    set_up(&s, 5);
    f->copies = how;
    CHECK(session_wait_stream(&s, post_out(&s, dst, 1, size, 1, size)) == 46);
    return over(f);
}

static int success_small(struct fake *f) { return succeeds(f, FAKE_LATE, 100); }
static int success_late(struct fake *f) { return succeeds(f, FAKE_LATE, sizeof dst); }
static int success_half(struct fake *f) { return succeeds(f, FAKE_HALF, sizeof dst); }
static int success_during(struct fake *f) { return succeeds(f, FAKE_DURING, sizeof dst); }

/* Rows apart from one another, and nobody waits. */
static int success_unattended(struct fake *f) {
    set_up(&s, 5);
    f->copies = FAKE_HALF;
    post_out(&s, dst, 1, 1000, 700, 1200);
    session_flush();
    CHECK(SOON(session_broken() == 46));
    return over(f);
}

/* The completion is there before the session has been told of the copy's place in the stream. */
static int success_before_posted(struct fake *f) {
    set_up(&s, 5);
    f->copies = FAKE_LATE;
    struct gv_cmd_copy_out c = {.stream = 5, .width = sizeof dst, .height = 1, .depth = 1};
    c.tag = session_expect(dst, sizeof dst, 1, 1, sizeof dst, sizeof dst);
    uint64_t seq = post_copy_out(1, GV_RECORD_MARK, &c);
    session_stream_posted(&s, seq, true, false); /* another thread posted a later command */
    CHECK(session_wait_stream(&s, seq) == 0);
    session_expect_posted(c.tag, &s, seq);
    CHECK(session_wait_stream(&s, seq) == 46);
    return over(f);
}

/* A later completion of the stream covers copies that asked for none. */
static int success_of_a_later_command(struct fake *f) {
    set_up(&s, 5);
    f->copies = FAKE_LATE;
    struct gv_cmd_copy_out c = {.stream = 5, .width = 50000, .height = 1, .depth = 1};
    for (int i = 0; i < 3; i++) {
        c.tag = session_expect(dst + i * 50000, 50000, 1, 1, 50000, 50000);
        session_expect_posted(c.tag, &s, post_copy_out(1, 0, &c));
    }
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 46);
    return over(f);
}

static void never(void *arg) {
    (void)arg;
    CHECK(false);
}

/* A host function may use what was copied before it. */
static int success_in_a_host_function(struct fake *f) {
    set_up(&s, 5);
    f->copies = FAKE_LATE;
    struct gv_cmd_copy_out c = {.stream = 5, .width = sizeof dst, .height = 1, .depth = 1};
    c.tag = session_expect(dst, sizeof dst, 1, 1, sizeof dst, sizeof dst);
    session_expect_posted(c.tag, &s, post_copy_out(1, 0, &c));
    CHECK(session_wait_stream(&s, post_function(&s, session_host_func(never, NULL))) == 46);
    return over(f);
}

/* ---- failed copies ------------------------------------------------------------------------------------------------- */

static void *release_soon(void *arg) {
    struct fake *f = arg;
    usleep(200000);
    f->release = 1;
    return NULL;
}

static int fails(struct fake *f, enum fake_copies how, uint64_t size) {
    set_up(&s, 5);
    set_up(&other, 6);
    f->copies = how;
    f->failure = 700;
    for (uint64_t i = 0; i < 5; i++) {
        pthread_t t;
        f->release = 0;
        uint64_t seq = post_out(&s, dst, 1, size, 1, size);
        /* What is being written cannot be stopped: the copy is over when the payload is. */
        if (how == FAKE_DURING) CHECK(!pthread_create(&t, NULL, release_soon, f));
        CHECK(session_wait_stream(&s, seq) == 700);
        reuse(sizeof dst);
        if (how == FAKE_DURING)
            pthread_join(t, NULL);
        else
            usleep(20000);
        f->release = 1;
        /* Payloads come in order: those that were late have been read once this is here. */
        memset(other_dst, 0xaa, sizeof other_dst);
        CHECK(session_wait_stream(&other, post_out(&other, other_dst, 40 + i, 1000, 250, 1200)) == 0);
        check_rows(other_dst, 40 + i, 1000, 250, 1200);
        check_reused(sizeof dst);
    }
    struct gv_cmd_memory_info c = {0};
    struct gv_reply_memory_info info;
    struct session_reply reply;
    CHECK(call_memory_info(77, &c, &info, &reply) == 0 && info.free == 77);
    session_reply_done(&reply);
    CHECK(session_broken() == 0 && failed_ctx == 1 && failed_status == 700);
    return 0;
}

static int failure_small(struct fake *f) { return fails(f, FAKE_LATE, 100); }
static int failure_late(struct fake *f) { return fails(f, FAKE_LATE, sizeof dst); }
static int failure_half(struct fake *f) { return fails(f, FAKE_HALF, sizeof dst); }
static int failure_during(struct fake *f) { return fails(f, FAKE_DURING, sizeof dst); }

const struct scenario early_scenarios[] = {
    {"early_success_small", FAKE_ATTACH, success_small, no_bye, 3},
    {"early_success_late", FAKE_ATTACH, success_late, no_bye, 3},
    {"early_success_half", FAKE_ATTACH, success_half, no_bye, 3},
    {"early_success_during", FAKE_ATTACH, success_during, no_bye, 3},
    {"early_success_unattended", FAKE_ATTACH, success_unattended, no_bye, 3},
    {"early_success_before_posted", FAKE_ATTACH, success_before_posted, no_bye, 3},
    {"early_success_of_a_later_command", FAKE_ATTACH, success_of_a_later_command, no_bye, 3},
    {"early_success_in_a_host_function", FAKE_ATTACH, success_in_a_host_function, no_bye, 3},
    {"early_failure_small", FAKE_ATTACH, failure_small, NULL, 0},
    {"early_failure_late", FAKE_ATTACH, failure_late, NULL, 0},
    {"early_failure_half", FAKE_ATTACH, failure_half, NULL, 0},
    {"early_failure_during", FAKE_ATTACH, failure_during, NULL, 0},
    {0},
};
