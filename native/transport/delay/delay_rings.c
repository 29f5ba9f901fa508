#define _GNU_SOURCE
#include "delay_rings.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "../link.h"
#include "../shm/shm_layout.h"

/* Sleeps are cut into slices, as in shm_link.c: a peer may die between publishing and waking. */
#define SLICE_NS 200000000LL
/* A full ring is looked at so often, and what comes in behind it as well. */
#define FULL_NS 1000000LL

struct ring_path {
    struct gv_delay_rings *rings;
    struct gv_ring_control *from, *to; /* we are from's reader and to's writer */
    const uint8_t *from_data;
    uint8_t *to_data;
    uint64_t size;
    bool records; /* they are handed over whole, as the writer published them */
    uint64_t read, written, seen_head;
    struct gv_line line;
    pthread_t thread;
};

struct gv_delay_rings {
    void *near, *far;
    uint64_t size;
    pthread_mutex_t lock;
    int inner; /* of the link's present socket, -1: it has none; under lock */
    int users; /* under lock */
    int started;
    _Atomic bool stop;
    struct ring_path paths[GV_SHM_RINGS];
};

static bool outward(int ring) { return ring == GV_SHM_COMMAND || ring == GV_SHM_BULK_OUT; }

/* Takes in what was published, as far as the line has room. `idle`: that was all; else *again is when to go on by the clock. False when the writer's
 * position is impossible: the reader is told of it. */
static bool take_in(struct ring_path *p, int64_t now, bool *idle, int64_t *again) {
    uint64_t tail = atomic_load(&p->from->tail), n = tail - p->read;
    *again = INT64_MAX;
    *idle = n == 0;
    if (n == 0) return true;
    if (n > p->size) {
        atomic_store(&p->to->tail, tail);
        gv_wake_sleeper(&p->to->reader_sleeps);
        return false;
    }
    uint64_t portion = gv_line_portion(&p->line);
    if (!p->records && n > portion) n = portion;
    if (!gv_line_open(&p->line, n, now, again)) return true;
    for (uint64_t left = n, room; left > 0; left -= room) {
        uint64_t offset = p->read & (p->size - 1);
        uint8_t *at = gv_line_at(&p->line, &room);
        if (room > left) room = left;
        if (room > p->size - offset) room = p->size - offset;
        memcpy(at, p->from_data + offset, room);
        gv_line_put(&p->line, room);
        p->read += room;
    }
    *again = now;
    gv_line_stamp(&p->line, gv_now_ns(), -1, p->records);
    atomic_store(&p->from->head, p->read);
    if (atomic_load(&p->from->writer_sleeps) == GV_RING_ASLEEP) gv_wake_sleeper(&p->from->writer_sleeps);
    return true;
}

/* Hands over what is due; *full when the reader must make room first. False when its position is impossible. */
static bool deliver(struct ring_path *p, int64_t now, bool *full) {
    int fd;
    uint64_t due;
    *full = false;
    while ((due = gv_line_due(&p->line, now, p->records, &fd)) > 0) {
        uint64_t head = atomic_load(&p->to->head);
        if (head - p->seen_head > p->written - p->seen_head) return false;
        p->seen_head = head;
        uint64_t room = p->size - (p->written - head);
        if (room < (p->records ? due : 1)) {
            *full = true;
            return true;
        }
        for (uint64_t left = due < room ? due : room, n; left > 0; left -= n) {
            const uint8_t *at;
            uint64_t offset = p->written & (p->size - 1);
            n = gv_line_piece(&p->line, left, &at);
            if (n > p->size - offset) n = p->size - offset;
            memcpy(p->to_data + offset, at, n);
            p->written += n;
            gv_line_take(&p->line, n);
        }
        atomic_store(&p->to->tail, p->written);
        if (atomic_load(&p->to->reader_sleeps) != GV_RING_AWAKE) gv_wake_sleeper(&p->to->reader_sleeps);
    }
    return true;
}

static void *carry(void *arg) {
    struct ring_path *p = arg;
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    while (!atomic_load(&p->rings->stop)) {
        int64_t now = gv_now_ns(), again;
        bool full, idle;
        if (!deliver(p, now, &full) || !take_in(p, now, &idle, &again)) {
            pthread_mutex_lock(&p->rings->lock);
            if (p->rings->inner >= 0) shutdown(p->rings->inner, SHUT_RDWR);
            pthread_mutex_unlock(&p->rings->lock);
            break;
        }
        now = gv_now_ns();
        int64_t next = full ? now + FULL_NS : gv_line_next(&p->line);
        if (next > again) next = again;
        if (next <= now) continue;
        int64_t left = next - now < SLICE_NS ? next - now : SLICE_NS;
        /* Whoever goes to sleep says so and looks again: one of the two sees the other. */
        _Atomic uint32_t *word = full ? &p->to->writer_sleeps : &p->from->reader_sleeps;
        atomic_store(word, GV_RING_ASLEEP);
        bool news = full ? atomic_load(&p->to->head) != p->seen_head : idle && atomic_load(&p->from->tail) != p->read;
        if (!news && !atomic_load(&p->rings->stop)) gv_futex_wait(word, GV_RING_ASLEEP, left);
        atomic_store(word, GV_RING_AWAKE);
    }
    return NULL;
}

bool gv_delay_rings_arrived(const struct gv_delay_rings *rings) {
    for (int i = 0; i < GV_SHM_RINGS; i++) {
        const struct ring_path *p = &rings->paths[i];
        if (!outward(i) && atomic_load(&p->from->tail) != atomic_load(&p->to->tail)) return false;
    }
    return true;
}

void gv_delay_rings_finish(const struct gv_delay_rings *rings, int64_t until) {
    static const struct timespec pause = {.tv_nsec = 200000};
    for (bool left = true; left && gv_now_ns() < until;) {
        left = false;
        for (int i = 0; i < GV_SHM_RINGS; i++) {
            const struct ring_path *p = &rings->paths[i];
            if (outward(i) && atomic_load(&p->from->tail) != atomic_load(&p->to->tail)) left = true;
        }
        if (left) nanosleep(&pause, NULL);
    }
}

static void end_rings(struct gv_delay_rings *rings) {
    atomic_store(&rings->stop, true);
    for (int i = 0; i < rings->started; i++) {
        struct ring_path *p = &rings->paths[i];
        gv_wake_sleeper(&p->from->reader_sleeps);
        gv_wake_sleeper(&p->to->writer_sleeps);
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; i < GV_SHM_RINGS; i++) gv_line_free(&rings->paths[i].line);
    if (rings->near != MAP_FAILED) munmap(rings->near, rings->size);
    if (rings->far != MAP_FAILED) munmap(rings->far, rings->size);
    pthread_mutex_destroy(&rings->lock);
    free(rings);
}

void gv_delay_rings_join(struct gv_delay_rings *rings, int inner) {
    pthread_mutex_lock(&rings->lock);
    rings->inner = inner;
    rings->users++;
    pthread_mutex_unlock(&rings->lock);
}

void gv_delay_rings_leave(struct gv_delay_rings *rings, int inner) {
    pthread_mutex_lock(&rings->lock);
    if (inner >= 0 && rings->inner == inner) rings->inner = -1;
    bool last = --rings->users == 0;
    pthread_mutex_unlock(&rings->lock);
    if (last) end_rings(rings);
}

/* Memory like the daemon's: gv_shm_sound asks the same of it. */
static int make_memory(uint64_t size) {
    int fd = memfd_create("gpuvirt-delay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void *map_memory(int fd, uint64_t size) {
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) madvise(map, size, MADV_DONTFORK);
    return map;
}

static int start_path(struct gv_delay_rings *r, int ring, const uint64_t sizes[4], const struct gv_link_spec *spec, struct gv_wire *wires) {
    struct ring_path *p = &r->paths[ring];
    bool out = outward(ring);
    p->rings = r;
    p->from = gv_shm_control(out ? r->near : r->far, (enum gv_shm_ring)ring);
    p->to = gv_shm_control(out ? r->far : r->near, (enum gv_shm_ring)ring);
    p->from_data = gv_shm_data(out ? r->near : r->far, sizes, (enum gv_shm_ring)ring);
    p->to_data = gv_shm_data(out ? r->far : r->near, sizes, (enum gv_shm_ring)ring);
    p->size = sizes[ring];
    p->records = ring == GV_SHM_COMMAND || ring == GV_SHM_REPLY;
    if (!gv_line_init(&p->line, spec, &wires[out ? 0 : 1], p->size)) return ENOMEM;
    int error = gv_thread_start(&p->thread, carry, p, "gpuvirt-delay");
    if (!error) r->started++;
    return error;
}

struct gv_delay_rings *gv_delay_rings_start(int memfd, const uint64_t sizes[4], const struct gv_link_spec *spec, struct gv_wire *wires,
                                            int *near_memfd) {
    uint64_t size = gv_shm_size(sizes);
    char why[GV_DEATH_TEXT];
    if (!gv_shm_sound(memfd, sizes, why, sizeof why)) {
        errno = EINVAL;
        return NULL;
    }
    struct gv_delay_rings *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *near_memfd = make_memory(size);
    r->near = *near_memfd >= 0 ? map_memory(*near_memfd, size) : MAP_FAILED;
    r->far = *near_memfd >= 0 ? map_memory(memfd, size) : MAP_FAILED;
    r->size = size;
    pthread_mutex_init(&r->lock, NULL);
    r->inner = -1;
    r->users = 1;
    int error = r->near == MAP_FAILED || r->far == MAP_FAILED ? errno : 0;
    for (int ring = 0; ring < GV_SHM_RINGS && !error; ring++) error = start_path(r, ring, sizes, spec, wires);
    if (!error) return r;
    end_rings(r);
    if (*near_memfd >= 0) close(*near_memfd);
    errno = error;
    return NULL;
}
