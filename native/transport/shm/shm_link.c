/* Shared memory between two processes of one host: four rings in one memfd (shm_layout.h). Nobody makes a system call while the other side is awake.
 * The unix socket of the handshake stays open and carries nothing: its end of file says that the peer is gone, or that it was cut (shm_resume.c). The
 * rings outlive it: records and payloads pass while the link is down. */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../cpu_affinity.h"
#include "../delay/delay.h"
#include "../delay/delay_rings.h"
#include "../redial.h"

/* Sleeps are cut into slices, so that a peer that died between publishing and waking costs a moment, not the session. */
#ifndef SHM_SLICE_NS /* tests make it long, so that a wake-up that is lost is seen */
#define SHM_SLICE_NS 200000000
#endif
/* The worker's reader naps for a while after the last record before it sleeps for good. A napper looks again by itself, so a sender that does not wait
 * need not wake it: that would cost the sender 10 us, and often 90 us when the kernel lets the woken thread run in its place. Each nap costs some 15 us
 * of the worker's core, hence the end. */
#define NAP_MIN_NS 50000
#define NAP_MAX_NS 100000
#define NAP_FOR_NS 5000000
/* A writer that finds a ring full gives the reader this long before it sleeps. */
#define FULL_SPIN_NS 20000
/* Payloads move in pieces of this size, so that both sides copy at the same time and the piece stays in the cache between them. */
#define BULK_PIECE (256u * 1024u)

/* ---- waiting */

/* Whether a wait of the ring's owner must end whatever the ring says. */
static bool over(struct shm *s) { return gv_link_dead(&s->link) || atomic_load(&s->peer_gone); }

/* Sleeps until `word` was reset or a slice is over. The caller has set it to `how` and looked again. */
static void sleep_on(_Atomic uint32_t *word, uint32_t how, int64_t until) {
    int64_t left = until - gv_now_ns();
    if (left > SHM_SLICE_NS) left = SHM_SLICE_NS;
    if (left > 0) gv_futex_wait(word, how, left);
    atomic_store(word, GV_RING_AWAKE);
}

/* Waits until the ring has room again for what just did not fit. False when the link died. */
static bool wait_room(struct shm *s, struct gv_ring_writer *w) {
    if (w->broken) {
        gv_link_kill(&s->link, "malformed ring: the peer's position is impossible");
        return false;
    }
    uint64_t seen = w->head;
    int64_t now = gv_now_ns(), spin_end = now + FULL_SPIN_NS;
    for (;;) {
        if (atomic_load(&w->control->head) != seen) return true;
        if (over(s)) {
            gv_link_kill(&s->link, "the peer is gone");
            return false;
        }
        if (now < spin_end) {
            for (int i = 0; i < 32; i++) gv_pause();
            now = gv_now_ns();
            continue;
        }
        atomic_store(&w->control->writer_sleeps, GV_RING_ASLEEP);
        if (atomic_load(&w->control->head) == seen && !over(s)) sleep_on(&w->control->writer_sleeps, GV_RING_ASLEEP, INT64_MAX);
        atomic_store(&w->control->writer_sleeps, GV_RING_AWAKE);
    }
}

/* ---- records */

static void *shm_reserve(struct gv_link *link, uint32_t size) {
    struct shm *s = (struct shm *)link;
    for (;;) {
        void *room = gv_ring_reserve(&s->tx, size);
        if (room) return room;
        if (!link->blocked_since) link->blocked_since = gv_now_ns();
        if (!wait_room(s, &s->tx)) return NULL;
    }
}

static bool shm_publish(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    atomic_store_explicit(&s->sent, link->seq_out, memory_order_release); /* before the peer can have it */
    if (gv_ring_publish(&s->tx)) {
        gv_wake_sleeper(&s->tx.control->reader_sleeps);
        atomic_store_explicit(&s->woke, true, memory_order_relaxed);
    }
    return false;
}

/* Publishing has woken a sleeper; one that naps is woken for a caller that is about to wait. Whoever was woken may be in line behind us on this very
 * core, and the caller will spin: let him pass. */
static void shm_flush(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    bool woke = atomic_load_explicit(&s->woke, memory_order_relaxed);
    if (woke) atomic_store_explicit(&s->woke, false, memory_order_relaxed);
    if (atomic_load(&s->tx.control->reader_sleeps) != GV_RING_AWAKE) {
        gv_wake_sleeper(&s->tx.control->reader_sleeps);
        woke = true;
    }
    if (woke) sched_yield();
}

static void release(struct gv_ring_reader *r) {
    if (gv_ring_release(r)) gv_wake_sleeper(&r->control->writer_sleeps);
}

static struct gv_record *shm_next(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    bool gone = atomic_load_explicit(&s->peer_gone, memory_order_acquire); /* asked first: what came before the end is still read */
    int64_t got = gv_ring_read(&s->rx, s->record, GV_RECORD_MAX);
    if (got > 0) {
        s->heard = true;
        atomic_store_explicit(&s->received, s->record->seq, memory_order_relaxed);
        /* The copy is ours, so the room goes back at once, but in large pieces: every release costs a cache line's way to the writer and back. */
        if (s->rx.head - s->rx.released > s->rx.size / 8) release(&s->rx);
        return s->record;
    }
    release(&s->rx);
    if (got < 0) {
        gv_link_kill(link, "malformed record: an impossible size or position in the ring");
    } else if (gone) {
        gv_link_kill(link, "the peer closed the connection");
    }
    return NULL;
}

static void shm_release(struct gv_link *link) { (void)link; }

static bool receivable(struct shm *s) { return gv_ring_readable(&s->rx) || over(s) || atomic_exchange(&s->woken, false); }

/* Whether the peer last waited on this very core. Who spins there keeps away the one he waits for. Tells the peer where we are, too. */
static bool shares_core(struct shm *s) {
    uint32_t here = (uint32_t)sched_getcpu() + 1;
    _Atomic uint32_t *ours = &s->rx.control->reader_cpu;
    if (atomic_load_explicit(ours, memory_order_relaxed) != here) atomic_store_explicit(ours, here, memory_order_relaxed);
    return here != 0 && atomic_load_explicit(&s->tx.control->reader_cpu, memory_order_relaxed) == here;
}

static void shm_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    struct shm *s = (struct shm *)link;
    release(&s->rx);
    if (receivable(s)) return;
    int64_t now = gv_now_ns(), until = now + timeout_ns, spin_end = now + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    while (now < spin_end) {
        /* The worker makes way: its core is nobody's but ours to choose. Yielding lets through whoever else is in line here: the peer, or a stream's
         * thread that the worker has just woken. */
        if (shares_core(s) && s->naps) gv_leave_core(sched_getcpu(), &s->moved_at);
        sched_yield();
        for (int i = 0; i < 16; i++) {
            if (gv_ring_readable(&s->rx)) return;
            gv_pause();
        }
        if (receivable(s)) return;
        now = gv_now_ns();
    }
    if (s->heard && s->naps) s->nap_until = now + NAP_FOR_NS;
    s->heard = false;
    _Atomic uint32_t *word = &s->rx.control->reader_sleeps;
    for (int64_t nap = NAP_MIN_NS; now < until; nap = NAP_MAX_NS) {
        bool naps = now < s->nap_until;
        uint32_t how = naps ? GV_RING_NAPS : GV_RING_ASLEEP;
        atomic_store(word, how);
        bool ready = receivable(s);
        if (!ready) sleep_on(word, how, naps && until - now > nap ? now + nap : until);
        atomic_store(word, GV_RING_AWAKE);
        if (ready || receivable(s)) return;
        now = gv_now_ns();
    }
}

static void shm_wake(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    atomic_store(&s->woken, true);
    gv_wake_sleeper(&s->rx.control->reader_sleeps);
}

/* ---- bulk */

static bool put_all(struct shm *s, const void *from, uint64_t size) {
    const uint8_t *p = from;
    while (size) {
        bool wake;
        uint64_t n = gv_ring_put(&s->bulk_tx, p, size < BULK_PIECE ? size : BULK_PIECE, &wake);
        if (wake) gv_wake_sleeper(&s->bulk_tx.control->reader_sleeps);
        if (gv_link_dead(&s->link) || (n == 0 && !wait_room(s, &s->bulk_tx))) return false;
        p += n;
        size -= n;
    }
    return true;
}

static bool write_part(struct gv_link *link, const void *data, uint64_t size) { return put_all((struct shm *)link, data, size); }

static bool shm_bulk_write(struct gv_link *link, const void *data, uint64_t size) {
    return gv_part_queue_write(&((struct shm *)link)->parts, data, size);
}

static int shm_bulk_part(struct gv_link *link, const void *data, uint64_t size, void (*done)(void *arg), void *arg) {
    struct shm *s = (struct shm *)link;
    /* A payload's header, into a ring that has room for it: what follows in the caller's own thread needs no other one then. */
    if (!done && gv_part_queue_idle(&s->parts) && gv_ring_room(&s->bulk_tx) >= size) return gv_part_queue_write(&s->parts, data, size) ? 0 : -1;
    return gv_part_queue_add(&s->parts, data, size, done, arg);
}

static uint64_t shm_bulk_acked(const struct gv_link *link) { return atomic_load(&((const struct shm *)link)->parts.written); }

static bool spin_readable(const struct gv_ring_reader *r) {
    for (int64_t end = gv_now_ns() + FULL_SPIN_NS; gv_now_ns() < end;) {
        for (int i = 0; i < 32; i++) gv_pause();
        if (gv_ring_readable(r)) return true;
    }
    return false;
}

static bool shm_bulk_read(struct gv_link *link, void *data, uint64_t size) {
    struct shm *s = (struct shm *)link;
    struct gv_ring_reader *r = &s->bulk_rx;
    uint8_t *p = data;
    /* Within a large payload the next piece is being copied already; in front of one there may be nothing for hours. */
    bool spins = size >= BULK_PIECE;
    while (size) {
        if (p == data && gv_paused_between(link)) return false;
        bool wake, gone = over(s);
        int64_t n = gv_ring_take(r, p, size < BULK_PIECE ? size : BULK_PIECE, &wake);
        if (wake) gv_wake_sleeper(&r->control->writer_sleeps);
        if (n < 0) gv_link_kill(link, "malformed ring: the peer's position is impossible");
        if (n == 0 && gone) gv_link_kill(link, "the peer closed the connection");
        if (gv_link_dead(link)) return false;
        if (n == 0) {
            if (spins && spin_readable(r)) continue;
            atomic_store(&r->control->reader_sleeps, GV_RING_ASLEEP);
            if (!gv_ring_readable(r) && !over(s) && !gv_paused_between(link)) sleep_on(&r->control->reader_sleeps, GV_RING_ASLEEP, INT64_MAX);
            atomic_store(&r->control->reader_sleeps, GV_RING_AWAKE);
        }
        if (p) p += n;
        size -= (uint64_t)n;
    }
    return true;
}

static int shm_add_channel(struct gv_link *link, int channel, int fd) {
    (void)link, (void)channel, (void)fd;
    return -1; /* payloads have rings */
}

static int shm_resume(struct gv_link *link, int channel, int fd, uint32_t epoch) {
    if (channel < 0) return gv_resume_take(link, fd, epoch);
    close(fd);
    return -1;
}

static void shm_counts(const struct gv_link *link, struct gv_link_counts *counts) {
    const struct shm *s = (const struct shm *)link;
    *counts = (struct gv_link_counts){
        .cuts = atomic_load(&s->resume.cuts), .resumes = atomic_load(&s->resume.resumes), .down_ns = (uint64_t)gv_resume_down_ns(link->resume)};
}

/* ---- life and death */

static void shm_died(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    shutdown(s->fd, SHUT_RDWR); /* tells the peer, and our own watcher */
    gv_shm_wake_watcher(s);
    gv_resume_died(&s->resume);
    gv_shm_wake_everybody(s);
    gv_part_queue_died(&s->parts);
}

static void shm_abandon(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    close(s->fd);
    close(s->memfd);
    close(s->wake_fd);
    if (s->peer_process >= 0) close(s->peer_process);
    if (s->inherited) munmap(s->map, s->map_size);
}

static void shm_close(struct gv_link *link) {
    struct shm *s = (struct shm *)link;
    gv_resume_stop(&s->resume);
    gv_shm_wake_watcher(s);
    pthread_join(s->watcher, NULL);
    gv_link_kill(link, "closed");
    gv_part_queue_end(&s->parts);
    gv_resume_fini(&s->resume);
    gv_link_fini(link);
    close(s->fd);
    close(s->memfd);
    close(s->wake_fd);
    if (s->peer_process >= 0) close(s->peer_process);
    if (s->delayed) gv_delay_rings_leave(s->delayed, -1);
    pthread_mutex_destroy(&s->socket_lock);
    munmap(s->map, s->map_size);
    free(s->record);
    free(s);
}

static struct gv_link *shm_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
static struct gv_link *shm_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);

const struct gv_transport gv_shm_transport = {
    .name = "shm",
    .needs = GV_NEEDS_SAME_HOST | GV_NEEDS_DESCRIPTORS,
    .descriptors = 1,
    .connect = shm_connect,
    .adopt = shm_adopt,
    .redial = gv_redial,
    .reserve = shm_reserve,
    .publish = shm_publish,
    .flush = shm_flush,
    .next = shm_next,
    .release = shm_release,
    .wait = shm_wait,
    .wake = shm_wake,
    .bulk_part = shm_bulk_part,
    .bulk_acked = shm_bulk_acked,
    .bulk_write = shm_bulk_write,
    .bulk_read = shm_bulk_read,
    .add_channel = shm_add_channel,
    .resume = shm_resume,
    .set_grace = gv_resume_set_grace,
    .last = gv_resume_last,
    .client_gone = gv_resume_client_gone,
    .down = gv_resume_down,
    .counts = shm_counts,
    .pause = gv_shm_pause,
    .cut = gv_shm_cut,
    .save = gv_shm_save,
    .restore = gv_shm_restore,
    .died = shm_died,
    .abandon = shm_abandon,
    .close = shm_close,
};

static struct gv_link *new_end(int fd, int memfd, const uint64_t rings[GV_SHM_RINGS], bool client, struct gv_redial_target *redial,
                               struct gv_memory_id memory, struct gv_delay_rings *delayed, char why[GV_DEATH_TEXT]) {
    if (!gv_shm_sound(memfd, rings, why, GV_DEATH_TEXT)) return NULL;
    uint64_t size = gv_shm_size(rings);
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    struct shm *s = NULL;
    if (map == MAP_FAILED || posix_memalign((void **)&s, 128, sizeof *s) != 0) {
        snprintf(why, GV_DEATH_TEXT, "no memory for the link: %s", strerror(errno ? errno : ENOMEM));
        if (map != MAP_FAILED) munmap(map, size);
        return NULL;
    }
    memset(s, 0, sizeof *s);
    gv_link_init(&s->link, &gv_shm_transport);
    s->link.redial = redial;
    gv_resume_init(&s->resume, &s->link, &gv_shm_resume_ops);
    gv_part_queue_init(&s->parts, &s->link, write_part);
    pthread_mutex_init(&s->socket_lock, NULL);
    s->fd = fd;
    s->memfd = memfd;
    s->memory = memory;
    s->delayed = delayed;
    s->map = map;
    s->map_size = size;
    s->naps = !client;
    s->peer_process = client ? -1 : gv_shm_peer_process(fd);
    if (redial) {
        s->link.session = redial->session;
        snprintf(s->link.server, sizeof s->link.server, "%s", redial->address.url);
    }
    s->inherited = madvise(map, size, MADV_DONTFORK) != 0;
    enum gv_shm_ring out = client ? GV_SHM_COMMAND : GV_SHM_REPLY, in = client ? GV_SHM_REPLY : GV_SHM_COMMAND;
    enum gv_shm_ring bulk_out = client ? GV_SHM_BULK_OUT : GV_SHM_BULK_IN, bulk_in = client ? GV_SHM_BULK_IN : GV_SHM_BULK_OUT;
    gv_ring_writer_init(&s->tx, gv_shm_control(map, out), gv_shm_data(map, rings, out), rings[out]);
    gv_ring_reader_init(&s->rx, gv_shm_control(map, in), gv_shm_data(map, rings, in), rings[in]);
    gv_ring_writer_init(&s->bulk_tx, gv_shm_control(map, bulk_out), gv_shm_data(map, rings, bulk_out), rings[bulk_out]);
    gv_ring_reader_init(&s->bulk_rx, gv_shm_control(map, bulk_in), gv_shm_data(map, rings, bulk_in), rings[bulk_in]);
    s->record = malloc(GV_RECORD_MAX);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int error = !s->record || s->wake_fd < 0 ? (errno ? errno : ENOMEM) : 0;
    if (!error) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(memfd, F_SETFD, FD_CLOEXEC);
        error = gv_thread_start(&s->watcher, gv_shm_watch, s, "gpuvirt-link");
    }
    if (!error) return &s->link;
    snprintf(why, GV_DEATH_TEXT, "the link could not be set up: %s", strerror(error));
    if (s->wake_fd >= 0) close(s->wake_fd);
    if (s->peer_process >= 0) close(s->peer_process);
    munmap(map, size);
    gv_part_queue_end(&s->parts);
    gv_resume_fini(&s->resume);
    gv_link_fini(&s->link);
    pthread_mutex_destroy(&s->socket_lock);
    free(s->record);
    free(s);
    return NULL;
}

struct gv_link *gv_shm_new(int fd, int memfd, const uint64_t rings[GV_SHM_RINGS], bool client, char why[GV_DEATH_TEXT]) {
    return new_end(fd, memfd, rings, client, NULL, gv_shm_memory_id(memfd), NULL, why);
}

static bool read_rings(const struct gv_endpoint *endpoint, uint64_t rings[GV_SHM_RINGS], char why[GV_DEATH_TEXT]) {
    if (endpoint->blob_size == GV_SHM_BLOB) {
        memcpy(rings, endpoint->blob, GV_SHM_BLOB);
        return true;
    }
    snprintf(why, GV_DEATH_TEXT, "the sizes of the rings are missing");
    return false;
}

static struct gv_link *shm_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    uint64_t rings[GV_SHM_RINGS];
    if (!read_rings(endpoint, rings, why)) return NULL;
    struct gv_memory_id memory = gv_shm_memory_id(endpoint->passed.fd[0]);
    struct gv_delay_rings *delayed = NULL;
    int memfd = gv_delay_shm(endpoint->fd, endpoint->passed.fd[0], rings, endpoint->spec, &delayed);
    if (memfd < 0) {
        snprintf(why, GV_DEATH_TEXT, "it cannot be delayed: %s", strerror(errno));
        return NULL;
    }
    endpoint->passed.fd[0] = memfd;
    struct gv_link *link = new_end(endpoint->fd, memfd, rings, true, endpoint->redial, memory, delayed, why);
    if (!link && delayed) gv_delay_rings_leave(delayed, -1);
    return link;
}

static struct gv_link *shm_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    uint64_t rings[GV_SHM_RINGS];
    return read_rings(endpoint, rings, why) ? gv_shm_new(endpoint->fd, endpoint->passed.fd[0], rings, false, why) : NULL;
}
