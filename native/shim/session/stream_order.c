/* Which streams' copies to the host a stream is ordered after: whoever has waited for the stream finds their bytes.
 *
 * The server's device keeps the order. Here it is known again, because a completion of one stream may come before the bytes that another stream sent
 * earlier. An edge of a stream says: its commands from `from` on come after the copies of `source` up to `seq`. Edges name copies, not streams: what a
 * source is itself ordered after is added when the edge is made. Only copies whose bytes are missing count, so no edge is made, and no lock taken, while
 * there are none; and edges on one source have rising seqs, so there are at most as many as copies.
 *
 * Everything is under the stream table's lock (streams.c). */
#include <stdlib.h>

#include "session/session_state.h"

struct order_edge {
    struct session_stream *source;
    uint64_t seq, from;
};

static struct session_stream *all;

void order_stream_added(struct session_stream *s) {
    s->order_previous = NULL;
    s->order_next = all;
    if (all) all->order_previous = s;
    all = s;
}

static void remove_edge(struct session_stream *s, size_t i) { s->edges[i] = s->edges[--s->n_edges]; }

void order_stream_gone(struct session_stream *s) {
    if (s->order_previous)
        s->order_previous->order_next = s->order_next;
    else
        all = s->order_next;
    if (s->order_next) s->order_next->order_previous = s->order_previous;
    free(s->edges);
    s->edges = NULL;
    s->n_edges = s->edges_capacity = 0;
    for (struct session_stream *o = all; o; o = o->order_next)
        for (size_t i = o->n_edges; i--;)
            if (o->edges[i].source == s) remove_edge(o, i);
}

/* ---- making edges -------------------------------------------------------------------------------------------------- */

static bool add(struct session_stream *s, struct order_edge edge) {
    if (edge.source == s) return true;
    for (size_t i = 0; i < s->n_edges; i++)
        if (s->edges[i].source == edge.source && s->edges[i].seq >= edge.seq && s->edges[i].from <= edge.from) return true;
    if (s->n_edges == s->edges_capacity) {
        size_t capacity = s->edges_capacity ? 2 * s->edges_capacity : 8;
        struct order_edge *more = realloc(s->edges, capacity * sizeof *more);
        if (!more) return false;
        s->edges = more;
        s->edges_capacity = capacity;
    }
    s->edges[s->n_edges++] = edge;
    return true;
}

bool order_after(struct session_stream *s, uint64_t from, struct session_stream *source, uint64_t upto) {
    uint64_t seq = expect_newest_open(source, upto);
    bool enough = !seq || add(s, (struct order_edge){source, seq, from});
    for (size_t i = 0; i < source->n_edges && enough; i++) {
        struct order_edge e = source->edges[i];
        if (e.from <= upto && (seq = expect_newest_open(e.source, e.seq))) enough = add(s, (struct order_edge){e.source, seq, from});
    }
    return enough;
}

bool order_posted(struct session_stream *s, uint64_t seq) {
    bool enough = true;
    for (struct session_stream *o = s->order == SESSION_UNORDERED ? NULL : all; o && enough; o = o->order_next) {
        bool ordered = o->ctx == s->ctx && (s->order == SESSION_LEGACY ? o->order == SESSION_BLOCKING : o->order == SESSION_LEGACY);
        if (ordered) enough = order_after(s, seq, o, seq - 1);
    }
    return enough;
}

/* ---- using them ---------------------------------------------------------------------------------------------------- */

bool order_open(struct session_stream *s, uint64_t upto, uint64_t *last) {
    *last = 0;
    for (size_t i = s->n_edges; i--;) {
        const struct order_edge *e = &s->edges[i];
        if (!expect_newest_open(e->source, e->seq))
            remove_edge(s, i);
        else if (e->from <= upto && e->from > *last)
            *last = e->from;
    }
    return *last != 0;
}

enum expect_outcome order_drop(struct session_stream *s, uint64_t upto, uint64_t *receiving) {
    enum expect_outcome outcome = EXPECT_ENDED;
    for (size_t i = s->n_edges; i-- && outcome == EXPECT_ENDED;) {
        const struct order_edge *e = &s->edges[i];
        if (e->from > upto) continue;
        if (e->source->ctx == s->ctx || atomic_load(&e->source->status)) outcome = expect_drop(e->source, e->seq, receiving);
        if (outcome == EXPECT_ENDED) remove_edge(s, i);
    }
    return outcome;
}
