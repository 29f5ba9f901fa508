/* A connection that was cut, and its end: the client makes it again, the worker is given a new one. What is the same for every transport that resumes;
 * the transport itself brings what the two ends tell each other on a new connection, and how it takes the place of the old one. */
#ifndef GV_RESUME_H
#define GV_RESUME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "link.h"

/* What the peer says that it has, first on a new connection. */
struct gv_resume_point {
    uint64_t seq;  /* of the last record that came whole */
    uint64_t bulk; /* bytes of the stream of payloads */
};

struct gv_resume_ops {
    /* The connection is of no use any more: ends what is under way on it. Under `lock`. */
    void (*disconnect)(struct gv_link *link);
    /* The link is down: wakes the link's own thread, which is to call gv_resume_while_down. */
    void (*went_down)(struct gv_link *link);
    /* Says what we have and hears what the peer has, on a connection that nobody else uses yet. 0; an errno; -1: the link was killed. */
    int (*exchange)(struct gv_link *link, int fd, uint32_t epoch, struct gv_resume_point *theirs);
    /* Puts the new connection in the place of the old one, with gv_resume_up under whatever the old one is used under. NULL, or what is wrong: the link is
     * to die of it. Does not own fd. */
    const char *(*replace)(struct gv_link *link, int fd, const struct gv_resume_point *theirs);
    /* The link is up again. */
    void (*came_up)(struct gv_link *link);
};

/* A link has one at link->resume. `state` is written under `lock` and read without. */
struct gv_resume {
    struct gv_link *link;
    const struct gv_resume_ops *ops;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_mutex_t one; /* one at a time brings the connection back */
    _Atomic bool down, last, client_gone, stop;
    int64_t cut_at;
    char cut_why[GV_DEATH_TEXT];
    _Atomic int64_t grace_ns;
    _Atomic uint64_t cuts, resumes;
    int64_t down_ns; /* for so long it was down, until the last time that it came up */
};

/* The link is down from the beginning: gv_resume_start brings it up for the first time, which is no cut that was made good. */
void gv_resume_begin_down(struct gv_resume *r);
void gv_resume_start(struct gv_resume *r);
/* With the link's redial target, if it has one: it is the client's end then. */
void gv_resume_init(struct gv_resume *r, struct gv_link *link, const struct gv_resume_ops *ops);
void gv_resume_fini(struct gv_resume *r);

/* Whether a cut is the end. */
bool gv_resume_final(const struct gv_resume *r);
/* For so long the link was down in all, up to now; ns. */
int64_t gv_resume_down_ns(struct gv_resume *r);
static inline bool gv_resume_is_up(const struct gv_resume *r) { return !atomic_load(&r->down); }
/* The connection broke: the link is down, or dead where a cut is the end. The caller holds what keeps another connection from taking its place, or has
 * seen for himself that the one which broke is the present one. */
void gv_resume_cut(struct gv_resume *r, const char *what, int error);
/* For `replace`: the link is up from here on. */
void gv_resume_up(struct gv_resume *r);
/* The link's own thread, while the link is down: makes the connection again (client), or sees to it that this does not take for ever (worker; returns
 * after a second at the latest). */
void gv_resume_while_down(struct gv_resume *r);
/* For a worker's end that waits by itself: how long it may before it asks again, a second at most. 0, and the link is dead, when it was down for too long. */
int64_t gv_resume_patience(struct gv_resume *r);
/* The grace period is over: the link is dead of it, or of one of its connections, of which `why` tells. */
void gv_resume_too_long(struct gv_resume *r, const char *why);
/* The link is being closed: nobody waits for a connection any longer. */
void gv_resume_stop(struct gv_resume *r);
/* The link died: whoever waits looks again. */
void gv_resume_died(struct gv_resume *r);

/* For a transport's row, as transport.h says; the link's `resume` is theirs. */
int gv_resume_take(struct gv_link *link, int fd, uint32_t epoch);
void gv_resume_set_grace(struct gv_link *link, int64_t grace_ns);
void gv_resume_last(struct gv_link *link);
void gv_resume_client_gone(struct gv_link *link);
bool gv_resume_down(const struct gv_link *link);

#endif
