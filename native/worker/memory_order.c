/* Order that only device memory shows: a kernel, or a stream memory operation, of one stream waits for a word that another stream writes behind a copy to
 * the host. The client cannot know of it, and the device does not tell. So whoever waits for a stream that may have looked at memory waits for every copy
 * of the session that the device has finished by then, if work that may have written memory was queued behind the copy: on its own stream or on one that
 * is ordered after it. A copy that nothing follows orders nobody, and is not waited for; nor is one that the device has not finished.
 *
 * Copies have indexes, in the order of their commands. For each stream and event the executor keeps the newest copy that comes before it, which stands for
 * all earlier ones, and whether what it comes after may have looked at memory. */
#include "state.h"

#define NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */

static uint64_t newest(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- what is ordered after which copies; executor ---------------------------------------------------------------------- */

static void join(struct worker_order *to, const struct worker_order *from) {
    to->after = newest(to->after, from->after);
    if (from->looks) to->looks = true;
}

static struct worker_event *event_of(struct worker *w, const struct gv_record *record) {
    uint32_t size = record->size - (uint32_t)sizeof *record;
    struct gv_cmd_event_record r;
    struct gv_cmd_event_wait e;
    if (record->op == GV_OP_EVENT_RECORD) return gv_cmd_event_record_decode(&r, record + 1, size) ? NULL : handles_get(&w->objects.events, r.event);
    return gv_cmd_event_wait_decode(&e, record + 1, size) ? NULL : handles_get(&w->objects.events, e.event);
}

void worker_order_stream_created(struct worker *w, const struct gv_record *record) {
    struct gv_cmd_stream_create c;
    if (gv_cmd_stream_create_decode(&c, record + 1, record->size - (uint32_t)sizeof *record)) return;
    struct worker_stream *s = handles_get(&w->streams, c.stream);
    if (s) worker_order_stream_made(s, c.flags, c.priority);
}

void worker_order_stream_made(struct worker_stream *s, uint32_t flags, int32_t priority) {
    s->flags = flags;
    s->priority = priority;
    s->blocking = !(flags & NON_BLOCKING);
}

void worker_order_command(struct worker *w, const struct gv_record *record, struct worker_stream *s) {
    struct worker_context *c = s->context;
    struct worker_event *event;
    if (s == c->legacy)
        join(&s->order, &c->blocking);
    else if (s->blocking && c->legacy)
        join(&s->order, &c->legacy->order);
    switch (record->op) {
    case GV_OP_COPY_OUT: s->order.after = ++w->copies.n; break;
    case GV_OP_EVENT_RECORD:
        if ((event = event_of(w, record))) event->after = s->order.after, event->looks = s->order.looks;
        break;
    case GV_OP_EVENT_WAIT:
        if ((event = event_of(w, record))) join(&s->order, &(struct worker_order){.after = event->after, .looks = event->looks});
        break;
    case GV_OP_LAUNCH:
    case GV_OP_MEMORY_OPERATIONS: s->order.looks = true; /* fall through */
    case GV_OP_COPY_IN:
    case GV_OP_COPY_DEVICE:
    case GV_OP_COPY_ARRAY:
    case GV_OP_FILL: atomic_store(&w->copies.followed, newest(atomic_load(&w->copies.followed), s->order.after)); break;
    default: break;
    }
    if (s->blocking) join(&c->blocking, &s->order);
}

/* ---- copies under way ---------------------------------------------------------------------------------------------------- */

void worker_copies_add(struct worker *w, struct worker_copy_out *o) {
    struct worker_copies *all = &w->copies;
    pthread_mutex_lock(&all->lock);
    o->index = all->n;
    o->next = NULL;
    o->previous = all->last;
    *(o->previous ? &o->previous->next : &all->first) = o;
    all->last = o;
    pthread_mutex_unlock(&all->lock);
}

/* Those that nothing follows yet are remembered, the oldest of them no longer when there are many: it counts as followed then. lock held. */
static void remember(struct worker_copies *all, uint64_t index, uint64_t number) {
    if (index <= atomic_load(&all->followed)) {
        all->number = newest(all->number, number);
        return;
    }
    all->number = newest(all->number, all->sent[all->n_sent % WORKER_COPIES_KEPT].number);
    all->sent[all->n_sent++ % WORKER_COPIES_KEPT] = (struct worker_sent_copy){index, number};
}

void worker_copies_remove(struct worker *w, struct worker_copy_out *o) {
    struct worker_copies *all = &w->copies;
    pthread_mutex_lock(&all->lock);
    *(o->previous ? &o->previous->next : &all->first) = o->next;
    *(o->next ? &o->next->previous : &all->last) = o->previous;
    if (o->number) remember(all, o->index, o->number);
    pthread_mutex_unlock(&all->lock);
}

void worker_order_cover(struct worker *w, struct worker_stream *s) {
    struct worker_copies *all = &w->copies;
    uint64_t followed = atomic_load(&all->followed), number = 0;
    if (!s->order.looks || !followed) return;
    pthread_mutex_lock(&all->lock);
    for (struct worker_copy_out *o = all->first; o && o->index <= followed; o = o->next) {
        o->send_finished(o);
        number = newest(number, o->number);
    }
    for (unsigned i = 0; i < WORKER_COPIES_KEPT; i++) {
        if (all->sent[i].index > followed) continue;
        all->number = newest(all->number, all->sent[i].number);
        all->sent[i] = (struct worker_sent_copy){0};
    }
    number = newest(number, all->number);
    pthread_mutex_unlock(&all->lock);
    s->last_bulk = newest(s->last_bulk, number);
}
