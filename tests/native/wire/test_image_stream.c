/* The stream of a session's image: what was put comes out, whatever the pieces; what is damaged, cut off or impossible is told and reads as zeros. */
#define _GNU_SOURCE
#include "../check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../../../native/wire/clock.h"
#include "../../../native/wire/image_stream.h"

#define SECOND 1000000000ll
#define LARGE (3u * GV_IMAGE_BUFFER + 40)

static uint8_t large[LARGE], back[LARGE];

static void put_all(int fd) {
    struct gv_image_out out;
    for (size_t i = 0; i < sizeof large; i++) large[i] = (uint8_t)(i * 7 + i / 251);
    CHECK(gv_image_out_open(&out, fd, gv_now_ns() + 60 * SECOND));
    gv_image_put(&out, 42);
    gv_image_put_bytes(&out, "hello", 5);
    gv_image_put_bytes(&out, large, sizeof large);
    gv_image_put_bytes(&out, NULL, 0);
    gv_image_put(&out, UINT64_MAX);
    CHECK(gv_image_out_close(&out));
}

/* Reads it; NULL: it was right, else what was wrong. */
static const char *get_all(int fd) {
    static char why[GV_IMAGE_WHY];
    struct gv_image_in in;
    char word[6] = "";
    CHECK(gv_image_in_open(&in, fd, gv_now_ns() + 60 * SECOND));
    uint64_t first = gv_image_get(&in, 42);
    gv_image_get_bytes(&in, word, 5);
    gv_image_get_bytes(&in, back, sizeof back);
    gv_image_get_bytes(&in, back, 0);
    uint64_t last = gv_image_get(&in, UINT64_MAX);
    if (!in.failed) CHECK(first <= 42);
    bool good = gv_image_in_close(&in);
    if (good) CHECK(first == 42 && last == UINT64_MAX && !strcmp(word, "hello") && !memcmp(back, large, sizeof large));
    memcpy(why, in.why, sizeof why);
    return good ? NULL : why;
}

static int written(void) {
    int fd = memfd_create("image", MFD_CLOEXEC);
    CHECK(fd >= 0);
    put_all(fd);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void round_trip(void) {
    int fd = written();
    CHECK(get_all(fd) == NULL);
    close(fd);
}

static void *put_on(void *fd) {
    put_all(*(int *)fd);
    return NULL;
}

static void over_a_socket(void) {
    int ends[2], small = 4096;
    pthread_t writer;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    CHECK(pthread_create(&writer, NULL, put_on, &ends[0]) == 0);
    CHECK(get_all(ends[1]) == NULL);
    pthread_join(writer, NULL);
    close(ends[0]);
    close(ends[1]);
}

/* Each word with a bit turned, and each place at which it may break off: a sample of them. */
static void damaged(void) {
    int fd = written();
    off_t size = lseek(fd, 0, SEEK_END);
    CHECK(size % 8 == 0);
    for (off_t at = 0; at < size; at += at < 64 || at > size - 64 ? 1 : 9973) {
        uint8_t byte;
        CHECK(pread(fd, &byte, 1, at) == 1);
        byte ^= 0x10;
        CHECK(pwrite(fd, &byte, 1, at) == 1);
        lseek(fd, 0, SEEK_SET);
        CHECK(get_all(fd) != NULL);
        byte ^= 0x10;
        CHECK(pwrite(fd, &byte, 1, at) == 1);
    }
    lseek(fd, 0, SEEK_SET);
    CHECK(get_all(fd) == NULL);
    for (off_t left = size - 1; left > 0; left -= left > size - 32 || left < 64 ? 1 : 19997) {
        CHECK(ftruncate(fd, left) == 0);
        lseek(fd, 0, SEEK_SET);
        CHECK_TEXT(get_all(fd), "broke off");
    }
    close(fd);
}

static void bounds(void) {
    int fd = written();
    struct gv_image_in in;
    uint64_t after = 7;
    CHECK(gv_image_in_open(&in, fd, gv_now_ns() + 60 * SECOND));
    CHECK(gv_image_get(&in, 41) == 0 && in.failed);
    CHECK(gv_image_get(&in, UINT64_MAX) == 0 && !gv_image_get_bytes(&in, &after, sizeof after) && after == 0);
    gv_image_in_fail(&in, "later");
    CHECK(!gv_image_in_close(&in));
    CHECK_TEXT(in.why, "larger than it can be");
    close(fd);
}

static void too_slow(void) {
    int ends[2];
    struct gv_image_in in;
    struct gv_image_out out;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(gv_image_in_open(&in, ends[0], gv_now_ns() + SECOND / 20));
    CHECK(gv_image_get(&in, 1) == 0 && !gv_image_in_close(&in));
    CHECK_TEXT(in.why, "took too long");
    CHECK(gv_image_out_open(&out, ends[0], gv_now_ns() + SECOND / 20));
    for (int i = 0; i < 64; i++) gv_image_put_bytes(&out, large, sizeof large);
    CHECK(!gv_image_out_close(&out));
    CHECK_TEXT(out.why, "took too long");
    close(ends[1]);
    signal(SIGPIPE, SIG_IGN);
    CHECK(gv_image_out_open(&out, ends[0], gv_now_ns() + SECOND));
    gv_image_put(&out, 1);
    CHECK(!gv_image_out_close(&out));
    CHECK_TEXT(out.why, "could not be written");
    close(ends[0]);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"round_trip", round_trip}, {"over_a_socket", over_a_socket}, {"damaged", damaged}, {"bounds", bounds}, {"too_slow", too_slow},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 300);
}
