/* Who is woken, and why, by whichever part of a verbs link. */
#include <unistd.h>

#include "verbs.h"

static void wake(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) return; /* its count is full: it wakes all the same */
}

void gv_verbs_wake_all(struct verbs *v) {
    wake(v->wake_fd);
    wake(v->bulk_wake_fd);
    wake(v->kick_fd);
    gv_wake_sleeper(&v->out_control->writer_sleeps);
    gv_wake_sleeper(&v->bulk_out_control->writer_sleeps);
}

void gv_verbs_kick(struct verbs *v) {
    if (!atomic_load(&v->out_control->reader_sleeps)) return;
    atomic_store(&v->out_control->reader_sleeps, GV_RING_AWAKE);
    wake(v->kick_fd);
}

void gv_verbs_peer_has_read(struct gv_ring_control *c, uint64_t read) {
    if (read <= atomic_load(&c->head)) return; /* it may have told more since */
    atomic_store(&c->head, read);
    if (atomic_load(&c->writer_sleeps) == GV_RING_ASLEEP) gv_wake_sleeper(&c->writer_sleeps);
}

void gv_verbs_wake_reader(const _Atomic uint32_t *sleeps, int fd) {
    if (atomic_load(sleeps)) wake(fd);
}

void gv_verbs_broke(struct verbs *v, const struct verbs_queue *q) {
    if (gv_resume_is_up(&v->resume)) gv_resume_cut(&v->resume, q->why, 0);
}
