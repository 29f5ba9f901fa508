#include "staging.h"

#include <stdlib.h>
#include <stdbool.h>
#include <string.h>

void staging_init(struct staging *s) {
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
}

void staging_set_link(struct staging *s, struct gv_link *link) { s->link = link; }

void staging_set_backend(struct staging *s, const struct gv_backend_ops *ops, struct gv_backend *backend) {
    if (!ops->host_alloc) return;
    s->ops = ops;
    s->backend = backend;
}

/* The exponent of the piece's size for `size` bytes; above STAGING_LARGEST the piece is allocated for them alone. */
static unsigned class_of(uint64_t size) {
    unsigned class = STAGING_SMALLEST;
    while (class <= STAGING_LARGEST && size > 1ull << class) class++;
    return class;
}

static void *make(struct staging *s, uint64_t size) {
    void *data = s->ops ? s->ops->host_alloc(s->backend, size) : malloc(size);
    if (data && s->link) gv_link_offer_memory(s->link, data, size);
    return data;
}

/* Not under the lock: the link may wait for a payload that is to give a piece back. */
static void unmake(struct staging *s, void *data) {
    if (s->link) gv_link_take_back_memory(s->link, data);
    if (s->ops)
        s->ops->host_free(s->backend, data);
    else
        free(data);
}

static void *take_kept(struct staging *s, unsigned class) {
    if (class > STAGING_LARGEST) return NULL;
    void *data = NULL;
    pthread_mutex_lock(&s->lock);
    struct staging_kept *kept = &s->kept[class - STAGING_SMALLEST];
    if (kept->n) {
        data = kept->pieces[--kept->n];
        s->kept_bytes -= 1ull << class;
    }
    pthread_mutex_unlock(&s->lock);
    return data;
}

void *staging_take(struct staging *s, uint64_t size) {
    unsigned class = class_of(size);
    void *data = take_kept(s, class);
    if (!data) data = make(s, class <= STAGING_LARGEST ? 1ull << class : size);
    if (data) atomic_fetch_add(&s->in_use, size);
    return data;
}

void *staging_take_at_hand(struct staging *s, uint64_t size, bool *heap) {
    *heap = false;
    if (!s->ops) return staging_take(s, size);
    void *data = take_kept(s, class_of(size));
    *heap = !data;
    if (*heap) data = malloc(size);
    if (data) atomic_fetch_add(&s->in_use, size);
    return data;
}

/* False: out of memory. */
static bool list(struct staging_kept *kept, void *data) {
    if (kept->n == kept->size) {
        size_t size = kept->size ? 2 * kept->size : 16;
        void **pieces = realloc(kept->pieces, size * sizeof *pieces);
        if (!pieces) return false;
        kept->pieces = pieces;
        kept->size = size;
    }
    kept->pieces[kept->n++] = data;
    return true;
}

void staging_give(struct staging *s, void *data, uint64_t size) {
    unsigned class = class_of(size);
    atomic_fetch_sub(&s->in_use, size);
    pthread_mutex_lock(&s->lock);
    bool ended = s->ended;
    bool keep = class <= STAGING_LARGEST && s->kept_bytes + (1ull << class) <= (s->ops ? STAGING_KEPT_PINNED : STAGING_KEPT) && !ended;
    if (keep) keep = list(&s->kept[class - STAGING_SMALLEST], data);
    if (keep) s->kept_bytes += 1ull << class;
    if (!keep && !ended && s->ops && list(&s->spare, data)) atomic_fetch_add(&s->spare_bytes, size); /* without memory for the list it is lost */
    pthread_mutex_unlock(&s->lock);
    if (!keep && !ended && !s->ops) unmake(s, data);
}

void staging_give_either(struct staging *s, void *data, uint64_t size, bool heap) {
    if (!heap) {
        staging_give(s, data, size);
        return;
    }
    atomic_fetch_sub(&s->in_use, size);
    free(data);
}

void staging_free_spare(struct staging *s) {
    pthread_mutex_lock(&s->lock);
    struct staging_kept spare = s->spare;
    s->spare = (struct staging_kept){0};
    atomic_store(&s->spare_bytes, 0);
    pthread_mutex_unlock(&s->lock);
    while (spare.n) unmake(s, spare.pieces[--spare.n]);
    free(spare.pieces);
}

void staging_end(struct staging *s) {
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < sizeof s->kept / sizeof *s->kept; i++) {
        struct staging_kept *kept = &s->kept[i];
        while (kept->n && !s->ops) unmake(s, kept->pieces[--kept->n]);
        free(kept->pieces);
        *kept = (struct staging_kept){0};
    }
    free(s->spare.pieces);
    s->spare = (struct staging_kept){0};
    s->kept_bytes = 0;
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
}
