/* A toy transport, of this file and one row of the table: records and payloads in pipes, no resume. It shows what a new transport has to bring, and passes
 * the transports' tests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "../../../native/transport/part_queue.h"
#include "../../../native/wire/ring.h"
#include "../check.h"
#include "pair.h"

#define CAPACITY (1 << 20) /* bytes of a pipe, the most that a user may have */
#define SLACK 16384        /* pages that are not full */

enum { OUT, IN, BULK_OUT, BULK_IN, PIPES };

struct pipes {
    struct gv_link link;
    int fd, ends[PIPES], wake_fd, dead_fd;
    uint32_t tx_size;
    size_t have; /* bytes of the record that is being received */
    struct gv_part_queue parts;
    _Alignas(8) uint8_t tx[GV_RECORD_MAX];
    _Alignas(8) uint8_t rx[GV_RECORD_MAX];
};

/* Until `events` come on one of the ends, the link dies (false) or the time is over. */
static bool wait_for(struct pipes *p, int end, short events, int timeout_ms) {
    struct pollfd fds[2] = {{.fd = p->ends[end], .events = events}, {.fd = p->dead_fd, .events = POLLIN}};
    return poll(fds, 2, timeout_ms) >= 0 && !fds[1].revents;
}

static bool write_all(struct pipes *p, int end, const void *data, uint64_t size) {
    const uint8_t *at = data;
    while (size) {
        ssize_t n = write(p->ends[end], at, size);
        if (n > 0) {
            at += n;
            size -= (uint64_t)n;
        } else if (errno != EAGAIN && errno != EINTR) {
            gv_link_kill(&p->link, "the peer closed the connection");
        } else {
            wait_for(p, end, POLLOUT, -1);
        }
        if (gv_link_dead(&p->link)) return false;
    }
    return true;
}

static void *pipes_reserve(struct gv_link *link, uint32_t size) {
    struct pipes *p = (struct pipes *)link;
    for (int queued; ioctl(p->ends[OUT], FIONREAD, &queued) == 0 && (uint32_t)queued + size + SLACK > CAPACITY;) {
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        if (gv_link_dead(link)) return NULL;
        usleep(200);
    }
    p->tx_size = size;
    return p->tx;
}

static bool pipes_publish(struct gv_link *link) {
    struct pipes *p = (struct pipes *)link;
    write_all(p, OUT, p->tx, p->tx_size);
    return false;
}

static void pipes_flush(struct gv_link *link) { (void)link; }

static struct gv_record *pipes_next(struct gv_link *link) {
    struct pipes *p = (struct pipes *)link;
    for (;;) {
        size_t wanted = 8;
        if (p->have >= wanted) {
            uint32_t size;
            memcpy(&size, p->rx, sizeof size);
            int verdict = gv_record_check(size, p->have, GV_RECORD_MAX);
            if (verdict == GV_RECORD_WHOLE) return (struct gv_record *)(void *)p->rx;
            if (verdict == GV_RECORD_BAD) {
                gv_link_kill(link, "malformed record: an impossible size");
                return NULL;
            }
            wanted = size;
        }
        ssize_t n = read(p->ends[IN], p->rx + p->have, wanted - p->have);
        if (n == 0) gv_link_kill(link, "the peer closed the connection");
        if (n <= 0) return NULL;
        p->have += (size_t)n;
    }
}

static void pipes_release(struct gv_link *link) { ((struct pipes *)link)->have = 0; }

static void pipes_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct pipes *p = (struct pipes *)link;
    (void)spin_ns;
    struct timespec limit = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    struct pollfd fds[3] = {{.fd = p->ends[IN], .events = POLLIN}, {.fd = p->wake_fd, .events = POLLIN}, {.fd = p->dead_fd, .events = POLLIN}};
    uint64_t count;
    if (ppoll(fds, 3, &limit, NULL) > 0 && fds[1].revents) CHECK(read(p->wake_fd, &count, sizeof count) == sizeof count);
}

static void raise_event(int fd) {
    uint64_t one = 1;
    CHECK(write(fd, &one, sizeof one) == sizeof one);
}

static void pipes_wake(struct gv_link *link) { raise_event(((struct pipes *)link)->wake_fd); }

static bool write_part(struct gv_link *link, const void *data, uint64_t size) { return write_all((struct pipes *)link, BULK_OUT, data, size); }

static bool pipes_bulk_write(struct gv_link *link, const void *data, uint64_t size) {
    return gv_part_queue_write(&((struct pipes *)link)->parts, data, size);
}

static int pipes_bulk_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    return gv_part_queue_add(&((struct pipes *)link)->parts, data, size, done, arg);
}

static uint64_t pipes_bulk_acked(const struct gv_link *link) { return atomic_load(&((const struct pipes *)link)->parts.written); }

static bool pipes_bulk_read(struct gv_link *link, void *data, uint64_t size) {
    struct pipes *p = (struct pipes *)link;
    uint8_t *at = data, thrown[4096];
    while (size && !gv_link_dead(link)) {
        ssize_t n = read(p->ends[BULK_IN], at ? at : thrown, at || size < sizeof thrown ? size : sizeof thrown);
        if (n > 0) {
            if (at) at += n;
            size -= (uint64_t)n;
        } else if (n == 0) {
            gv_link_kill(link, "the peer closed the connection");
        } else {
            wait_for(p, BULK_IN, POLLIN, -1);
        }
    }
    return size == 0;
}

static int pipes_add_channel(struct gv_link *link, int channel, int fd) {
    (void)link, (void)channel, (void)fd;
    return -1;
}

static void pipes_died(struct gv_link *link) {
    struct pipes *p = (struct pipes *)link;
    raise_event(p->dead_fd);
    gv_part_queue_died(&p->parts);
}

static void pipes_abandon(struct gv_link *link) {
    struct pipes *p = (struct pipes *)link;
    for (int i = 0; i < PIPES; i++) close(p->ends[i]);
    close(p->fd);
    close(p->wake_fd);
    close(p->dead_fd);
}

static void pipes_close(struct gv_link *link) {
    gv_link_kill(link, "closed");
    gv_part_queue_end(&((struct pipes *)link)->parts);
    pipes_abandon(link);
    gv_link_fini(link);
    free(link);
}

static struct gv_link *pipes_open(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);

const struct gv_transport gv_pipes_transport = {
    .name = "pipes",
    .needs = GV_NEEDS_SAME_HOST | GV_NEEDS_DESCRIPTORS,
    .descriptors = PIPES,
    .connect = pipes_open,
    .adopt = pipes_open,
    .reserve = pipes_reserve,
    .publish = pipes_publish,
    .flush = pipes_flush,
    .next = pipes_next,
    .release = pipes_release,
    .wait = pipes_wait,
    .wake = pipes_wake,
    .bulk_part = pipes_bulk_part,
    .bulk_acked = pipes_bulk_acked,
    .bulk_write = pipes_bulk_write,
    .bulk_read = pipes_bulk_read,
    .add_channel = pipes_add_channel,
    .died = pipes_died,
    .abandon = pipes_abandon,
    .close = pipes_close,
};

static struct gv_link *pipes_open(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    struct pipes *p = NULL;
    if (posix_memalign((void **)&p, 64, sizeof *p) != 0) {
        snprintf(why, GV_DEATH_TEXT, "out of memory");
        return NULL;
    }
    memset(p, 0, sizeof *p);
    gv_link_init(&p->link, &gv_pipes_transport);
    gv_part_queue_init(&p->parts, &p->link, write_part);
    p->fd = endpoint->fd;
    p->link.redial = endpoint->redial;
    memcpy(p->ends, endpoint->passed.fd, sizeof p->ends);
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->dead_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int i = 0; i < PIPES; i++) CHECK(fcntl(p->ends[i], F_SETFL, O_NONBLOCK) == 0);
    signal(SIGPIPE, SIG_IGN);
    return &p->link;
}

/* What the daemon would make: four pipes, each end of a session gets its end of each. */
struct pair make_other_pair(const char *transport) {
    struct gv_endpoint client = {.passed.n = PIPES}, worker = {.passed.n = PIPES};
    char why[GV_DEATH_TEXT];
    int fds[2], pipe[2];
    CHECK(strcmp(transport, gv_pipes_transport.name) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    for (int i = 0; i < PIPES; i++) {
        CHECK(pipe2(pipe, O_CLOEXEC) == 0 && fcntl(pipe[1], F_SETPIPE_SZ, CAPACITY) == CAPACITY);
        int *at = i % 2 == OUT ? client.passed.fd : worker.passed.fd, *to = i % 2 == OUT ? worker.passed.fd : client.passed.fd;
        at[i & ~1] = pipe[1];       /* OUT, BULK_OUT of the one that writes */
        to[(i & ~1) + 1] = pipe[0]; /* IN, BULK_IN of the other */
    }
    client.fd = fds[0], worker.fd = fds[1];
    return (struct pair){gv_transport_named(transport)->connect(&client, why), gv_link_adopt(transport, &worker, why)};
}
