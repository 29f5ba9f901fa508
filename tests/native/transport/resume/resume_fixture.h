/* A session through a cutter, and what the tests of cut connections share. */
#ifndef RESUME_FIXTURE_H
#define RESUME_FIXTURE_H

#include <sys/socket.h>

#include "../../../../native/transport/redial.h"
#include "../../../../native/transport/resume.h"
#include "../../check.h"
#include "../cutter.h"
#include "../mini_server.h"
#include "../pair.h"

#define GRACE_S 100

struct session {
    bool shares; /* memory, or a network of its own: nothing of the session's passes through the cutter but handshakes */
    struct mini_server server;
    struct cutter cutter;
    struct pair p;
    struct notices notices;
};

static inline void open_with(struct session *s, enum fault fault, const char *link, uint32_t grace_s) {
    memset(s, 0, sizeof *s);
    mini_start(&s->server, fault);
    s->server.grace_s = grace_s;
    cutter_start(&s->cutter, s->server.url, s->server.unix_path);
    struct gv_link_options options = mini_options(&s->server, link);
    options.pool = s->cutter.url;
    options.notice = take_notice;
    options.notice_arg = &s->notices;
    s->p = mini_connect(&s->server, &options);
    while (gv_link_down(s->p.worker)) usleep(100); /* over verbs the client may be done before the worker */
    atomic_store(&s->notices.n, 0);                /* a plain link has said that it is one */
    s->shares = strcmp(gv_link_transport(s->p.client), "tcp") != 0 && strcmp(gv_link_transport(s->p.client), "sealed") != 0;
}

/* Until the client has come back so often, and both ends are up. Where handshakes are cut the two count differently. */
static inline void await_resumes(struct session *s, uint64_t n) {
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    while (link_counts(s->p.client).resumes < n || gv_link_down(s->p.client) || gv_link_down(s->p.worker)) {
        if (gv_link_dead(s->p.client)) fprintf(stderr, "died: %s\n", gv_link_death(s->p.client));
        CHECK(!gv_link_dead(s->p.client) && !gv_link_dead(s->p.worker) && gv_now_ns() < until);
        usleep(1000);
    }
}

static inline void close_session(struct session *s) {
    gv_link_last(s->p.client);
    gv_link_last(s->p.worker);
    gv_link_close(s->p.client);
    cutter_stop(&s->cutter);
    mini_stop(&s->server); /* before the worker's link: a connection that comes late is given to it */
    gv_link_close(s->p.worker);
}

/* A case on each link that resumes, on both kinds of tcp. */
#define ON_EACH(name)                                    \
    static void tcp_##name(void) { name("tcp(plain)"); } \
    static void sealed_##name(void) { name("sealed"); }  \
    static void shm_##name(void) { name("shm"); }        \
    static void verbs_##name(void) { name("verbs"); }
#define ON_TCP(name)                                     \
    static void tcp_##name(void) { name("tcp(plain)"); } \
    static void sealed_##name(void) { name("sealed"); }

#endif
