/* The socket of a shared-memory link. It carries nothing, so nothing is lost when it is cut; but its end of file may also be the peer's. On the worker's end
 * a pidfd of the client tells the two apart: a client that is dead is not waited for, one that lives has the grace period to come back. The client asks
 * the server, who knows whether the session is still there.
 *
 * On a new socket both ends say first what they have received, and which memory they share: a peer that has another is no part of this session. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "../delay/delay.h"
#include "shm.h"

/* After the peer's end, this long to read what it left. */
#ifndef DRAIN_MS /* tests make it long: they may run on a machine that is busy with other things */
#define DRAIN_MS 500
#endif
/* So long for saying to each other what one has. */
#define EXCHANGE_NS 5000000000LL

/* Of the transport's own, the first thing on a socket that takes the place of another, each way. */
struct shm_note {
    struct gv_record record;
    struct gv_memory_id memory;
};

void gv_shm_wake_everybody(struct shm *s) {
    gv_wake_sleeper(&s->rx.control->reader_sleeps);
    gv_wake_sleeper(&s->tx.control->writer_sleeps);
    gv_wake_sleeper(&s->bulk_rx.control->reader_sleeps);
    gv_wake_sleeper(&s->bulk_tx.control->writer_sleeps);
}

void gv_shm_wake_watcher(struct shm *s) {
    uint64_t one = 1;
    if (write(s->wake_fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

/* ---- who the peer is */

struct gv_memory_id gv_shm_memory_id(int memfd) {
    struct stat st;
    if (fstat(memfd, &st) != 0) return (struct gv_memory_id){0};
    return (struct gv_memory_id){.device = st.st_dev, .inode = st.st_ino};
}

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

int gv_shm_peer_process(int fd) {
    int process = -1;
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return -1;
    if (peer.pid == getpid()) return -1; /* the worker's own socket, in the place of that of a client that comes when it has noticed */
    size = sizeof process;
    /* The kernel's own descriptor cannot be another process that got the same number since; older kernels only know the number. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0 && process >= 0) {
        fcntl(process, F_SETFD, FD_CLOEXEC);
        return process;
    }
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

/* ---- the link's own thread */

/* Gives the reader a moment for what the peer left behind, then declares the link dead. */
static void peer_ended(struct shm *s, const char *why) {
    atomic_store(&s->peer_gone, true);
    gv_shm_wake_everybody(s);
    for (int waited = 0; waited < DRAIN_MS && !gv_link_dead(&s->link) && !atomic_load(&s->resume.stop); waited += 10) {
        /* The reader's position as it told the writer: its own is another thread's. */
        if (atomic_load(&s->rx.control->tail) == atomic_load(&s->rx.control->head)) break;
        struct pollfd nothing = {.fd = -1};
        poll(&nothing, 1, 10);
    }
    if (!atomic_load(&s->resume.stop)) gv_link_kill(&s->link, why);
}

/* The socket has something to say. */
static void look_at_socket(struct shm *s) {
    char byte;
    bool final = false;
    pthread_mutex_lock(&s->socket_lock);
    /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): it does not wait */
    ssize_t n = gv_resume_is_up(&s->resume) ? recv(s->fd, &byte, 1, MSG_DONTWAIT) : -1;
    bool ended = n == 0 || (n < 0 && gv_resume_is_up(&s->resume) && errno != EAGAIN && errno != EINTR);
    if (n > 0) {
        gv_link_kill(&s->link, "malformed: bytes on the socket of a shared-memory link");
    } else if (ended) {
        final = gv_resume_final(&s->resume);
        if (!final) gv_resume_cut(&s->resume, "the peer closed the connection", 0);
    }
    pthread_mutex_unlock(&s->socket_lock);
    if (final) peer_ended(s, "the peer closed the connection");
}

static void take_wakes(struct shm *s) {
    uint64_t count;
    if (read(s->wake_fd, &count, sizeof count) < 0) return;
}

/* The worker's end: until there is another socket, the client is dead, or the grace period over. */
static void await_client(struct shm *s) {
    int64_t left = gv_resume_patience(&s->resume);
    if (left <= 0) return;
    struct timespec limit = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    pthread_mutex_lock(&s->socket_lock);
    struct pollfd fds[2] = {{.fd = s->wake_fd, .events = POLLIN}, {.fd = s->peer_process, .events = POLLIN}};
    pthread_mutex_unlock(&s->socket_lock);
    if (ppoll(fds, 2, &limit, NULL) <= 0) return;
    if (fds[0].revents) take_wakes(s);
    if (!fds[1].revents) return;
    /* It closed its files before it was dead: this is only asked while the link is down. And it is asked of the process that is the client now: another
     * connection may have come, and closed the descriptor that was waited for, and been cut. */
    pthread_mutex_lock(&s->socket_lock);
    struct pollfd now = {.fd = s->peer_process, .events = POLLIN};
    /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): it does not wait */
    bool dead = !gv_resume_is_up(&s->resume) && poll(&now, 1, 0) == 1 && now.revents & POLLIN;
    pthread_mutex_unlock(&s->socket_lock);
    if (dead) peer_ended(s, "the client's process has ended");
}

void *gv_shm_watch(void *shm) {
    struct shm *s = shm;
    while (!atomic_load(&s->resume.stop) && !gv_link_dead(&s->link)) {
        if (!gv_resume_is_up(&s->resume)) {
            if (s->link.redial)
                gv_resume_while_down(&s->resume);
            else
                await_client(s);
            continue;
        }
        struct pollfd fds[2] = {{.fd = s->fd, .events = POLLIN | POLLRDHUP}, {.fd = s->wake_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[1].revents) take_wakes(s);
        if (fds[0].revents) look_at_socket(s);
    }
    return NULL;
}

/* ---- another socket takes the place of the one that was cut */

static void disconnect(struct gv_link *link) { shutdown(((struct shm *)link)->fd, SHUT_RDWR); }

static void wake(struct gv_link *link) { gv_shm_wake_watcher((struct shm *)link); }

static int exchange(struct gv_link *link, int fd, uint32_t epoch, struct gv_resume_point *peer) {
    struct shm *s = (struct shm *)link;
    int64_t until = gv_now_ns() + EXCHANGE_NS;
    struct shm_note theirs,
        ours = {.record = {.size = sizeof ours, .op = GV_RECORD_RESUME, .epoch = epoch, .seq = atomic_load(&s->received)}, .memory = s->memory};
    int error = gv_put(fd, &ours, sizeof ours, until);
    if (!error) error = gv_get(fd, &theirs, sizeof theirs, until, NULL);
    if (error) return error;
    if (theirs.record.size != sizeof theirs || theirs.record.op != GV_RECORD_RESUME || theirs.record.epoch != epoch) return EPROTO;
    if (theirs.memory.device != s->memory.device || theirs.memory.inode != s->memory.inode) {
        gv_link_kill(link, "the session cannot be resumed: the peer has another shared memory");
        return ECANCELED;
    }
    *peer = (struct gv_resume_point){.seq = theirs.record.seq};
    return 0;
}

static const char *replace(struct gv_link *link, int fd, const struct gv_resume_point *peer) {
    struct shm *s = (struct shm *)link;
    gv_set_blocking(fd);
    if (s->delayed) gv_delay_shm_again(fd, s->delayed);
    pthread_mutex_lock(&s->socket_lock);
    bool sound = peer->seq >= s->peer_seq && peer->seq <= atomic_load_explicit(&s->sent, memory_order_acquire);
    bool placed = sound && !gv_link_dead(link) && dup3(fd, s->fd, O_CLOEXEC) >= 0;
    if (placed) {
        s->peer_seq = peer->seq;
        if (!link->redial) {
            int process = gv_shm_peer_process(s->fd);
            if (s->peer_process >= 0) close(s->peer_process);
            s->peer_process = process;
        }
        gv_resume_up(&s->resume);
    }
    pthread_mutex_unlock(&s->socket_lock);
    if (!sound) return "malformed: the peer lacks what it had acknowledged, or has what was never sent";
    return placed ? NULL : "the new connection could not be used";
}

const struct gv_resume_ops gv_shm_resume_ops = {disconnect, wake, exchange, replace, wake};
