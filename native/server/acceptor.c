/* Accepts the connections of one listening socket, each in its turn, in a thread of its own. */
#define _GNU_SOURCE
#include "acceptor.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "carrier.h"
#include "clock.h"
#include "hello_reader.h"

#define ACCEPTS 64                /* connections accepted before those that are there have their turn */
#define EVENTS 64                 /* looked at in one go */
#define TAKEN_AHEAD 4u            /* hellos that lie ready for the daemon; the others wait in the order of admission */
#define PAUSE_LEAST_NS 50000000LL /* without accepting, after the system had no descriptor or memory for a connection */
#define PAUSE_MOST_NS 1000000000LL
#define NEVER INT64_MAX

struct connection {
    struct admission_place place;
    struct admission *admission; /* that the place is of */
    struct node of_acceptor;
    struct connection *next_over;
    int fd;
    bool begun, over;
    int64_t due; /* when its time is over */
    struct hello_reader hello;
    struct carrier carrier;
    struct watch {
        bool added;
        uint32_t events;
    } client, inner; /* what epoll looks for */
    struct sockaddr_storage peer;
};

struct acceptor {
    struct acceptor_config config;
    char *behind;
    uint8_t *greeting;
    struct admission *pending, *proved;
    int epoll, wake, changed; /* wake: for the thread; changed: for the daemon */
    pthread_t thread;
    atomic_bool closing;

    /* The thread's own. */
    struct node connections;
    struct connection *over;
    int64_t now, next_due; /* next_due: no connection is due before */
    int64_t pause, resume_at;

    pthread_mutex_t lock; /* of what follows */
    struct connection *ready[TAKEN_AHEAD];
    uint32_t n_ready;
    bool more; /* hellos wait behind those */
    uint32_t n_late, n_exhausted;
    int exhausted;
    struct sockaddr_storage late;
};

static void signal_event(int fd) { eventfd_write(fd, 1); }

static void clear_event(int fd) {
    eventfd_t count;
    eventfd_read(fd, &count);
}

static void no_later_than(struct acceptor *a, int64_t due) {
    if (due < a->next_due) a->next_due = due;
}

/* ---- one connection ---------------------------------------------------------------------------------------------------------- */

/* It goes when all that has happened at the same time has been looked at. */
static void end(struct acceptor *a, struct connection *c) {
    if (c->over) return;
    c->over = true;
    admission_leave(c->admission, &c->place);
    close(c->fd);
    hello_free(&c->hello);
    carrier_close(&c->carrier);
    list_remove(&c->of_acceptor);
    c->next_over = a->over;
    a->over = c;
}

static void free_over(struct acceptor *a) {
    while (a->over) {
        struct connection *c = a->over;
        a->over = c->next_over;
        free(c);
    }
}

static void end_place(struct acceptor *a, struct admission_place *place) {
    if (place) end(a, NODE_OF(place, struct connection, place));
}

static bool watch(struct acceptor *a, struct connection *c, struct watch *w, int fd, uint32_t events) {
    if (w->added && events == w->events) return true;
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(a->epoll, w->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event)) return false;
    *w = (struct watch){true, events};
    return true;
}

static void begin(struct acceptor *a, struct connection *c) {
    c->begun = true;
    c->due = a->now + a->config.head_ms * 1000000LL;
    no_later_than(a, c->due);
    bool good = a->behind || hello_greet(&c->hello, c->fd, a->greeting, a->config.greeting_size, a->config.nonce_at);
    if (!good || !watch(a, c, &c->client, c->fd, EPOLLIN)) end(a, c);
}

static void read_hello(struct acceptor *a, struct connection *c) {
    switch (hello_read(&c->hello, c->fd)) {
    case HELLO_MORE: break;
    case HELLO_HEAD:
        c->due = a->now + a->config.rest_ms * 1000000LL;
        no_later_than(a, c->due);
        break;
    case HELLO_CAME:
        c->due = NEVER;
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        admission_wait(a->pending, &c->place);
        break;
    case HELLO_CLOSED: end(a, c);
    }
}

static void proved(struct acceptor *a, struct connection *c) {
    struct admission_address address = admission_address_of(&c->peer);
    admission_leave(c->admission, &c->place);
    c->admission = a->proved;
    c->due = NEVER;
    end_place(a, admission_enter(a->proved, &c->place, address, a->now));
}

static void carry(struct acceptor *a, struct connection *c) {
    /* A connection that says nothing costs nothing behind. */
    if ((c->carrier.inner < 0 && !carrier_connect(&c->carrier, a->behind)) || !carrier_move(&c->carrier, c->fd)) {
        end(a, c);
        return;
    }
    if (c->admission == a->pending && c->carrier.out.carried > a->config.unproved_bytes) proved(a, c);
    if (c->over) return;
    if (!watch(a, c, &c->client, c->fd, carrier_client_events(&c->carrier)) ||
        !watch(a, c, &c->inner, c->carrier.inner, carrier_inner_events(&c->carrier)))
        end(a, c);
}

static void happened(struct acceptor *a, struct connection *c, uint32_t events) {
    if (c->over) return;
    if (!a->behind) {
        read_hello(a, c);
        return;
    }
    carry(a, c);
    /* An end that is gone for good is told again and again. */
    if (events & (EPOLLERR | EPOLLHUP)) end(a, c);
}

/* ---- accepting ----------------------------------------------------------------------------------------------------------------- */

static bool listen_again(struct acceptor *a) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = a};
    return !epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->config.listening, &event);
}

/* No descriptor or no memory. Trying at once again would keep the processor busy; whoever hangs in a handshake gives his descriptor back. */
static void rest(struct acceptor *a, int error) {
    end_place(a, admission_shed(a->pending, a->now));
    epoll_ctl(a->epoll, EPOLL_CTL_DEL, a->config.listening, NULL);
    a->resume_at = a->now + a->pause;
    no_later_than(a, a->resume_at);
    a->pause = a->pause * 2 < PAUSE_MOST_NS ? a->pause * 2 : PAUSE_MOST_NS;
    pthread_mutex_lock(&a->lock);
    a->n_exhausted++;
    a->exhausted = error;
    pthread_mutex_unlock(&a->lock);
    signal_event(a->changed);
}

static void admit(struct acceptor *a, int fd, const struct sockaddr_storage *peer) {
    struct connection *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->fd = fd;
    c->peer = *peer;
    c->admission = a->pending;
    carrier_init(&c->carrier);
    list_append(&a->connections, &c->of_acceptor);
    end_place(a, admission_enter(a->pending, &c->place, admission_address_of(peer), a->now));
    if (c->over) return;
    c->due = c->place.start_at;
    if (c->due > a->now) {
        no_later_than(a, c->due);
    } else {
        begin(a, c);
    }
}

static void accept_some(struct acceptor *a) {
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage peer = {0};
        socklen_t size = sizeof peer;
        int fd = accept4(a->config.listening, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            if (exhausted) rest(a, errno);
            return;
        }
        a->pause = PAUSE_LEAST_NS;
        admit(a, fd, &peer);
    }
}

/* ---- time ------------------------------------------------------------------------------------------------------------------------ */

static void too_late(struct acceptor *a, struct connection *c) {
    pthread_mutex_lock(&a->lock);
    a->n_late++;
    a->late = c->peer;
    pthread_mutex_unlock(&a->lock);
    signal_event(a->changed);
    end(a, c);
}

static void look_at_clock(struct acceptor *a) {
    a->next_due = NEVER;
    if (a->resume_at <= a->now) {
        a->resume_at = NEVER;
        if (!listen_again(a)) a->resume_at = a->now + PAUSE_MOST_NS;
    }
    no_later_than(a, a->resume_at);
    for (struct node *at = a->connections.next, *next; at != &a->connections; at = next) {
        next = at->next;
        struct connection *c = NODE_OF(at, struct connection, of_acceptor);
        if (c->due > a->now) {
            no_later_than(a, c->due);
        } else if (c->begun) {
            too_late(a, c);
        } else {
            begin(a, c);
        }
    }
}

static int milliseconds_left(const struct acceptor *a) {
    if (a->next_due == NEVER) return -1;
    int64_t left = a->next_due - gv_now_ns();
    return left <= 0 ? 0 : (int)((left + 999999) / 1000000);
}

/* ---- the thread ------------------------------------------------------------------------------------------------------------------ */

/* Lays hellos ready for the daemon, a few: who comes now and whose address has none yet is not behind all of the others. */
static void hand_over(struct acceptor *a) {
    bool some = false;
    pthread_mutex_lock(&a->lock);
    a->more = false;
    while (!(a->more = a->n_ready == TAKEN_AHEAD)) {
        struct admission_place *place = admission_take(a->pending);
        if (!place) break;
        struct connection *c = NODE_OF(place, struct connection, place);
        list_remove(&c->of_acceptor);
        a->ready[a->n_ready++] = c;
        some = true;
    }
    pthread_mutex_unlock(&a->lock);
    if (some) signal_event(a->changed);
}

static void *serve(void *arg) {
    struct acceptor *a = arg;
    struct epoll_event events[EVENTS];
    while (!atomic_load(&a->closing)) {
        int n = epoll_wait(a->epoll, events, EVENTS, milliseconds_left(a));
        a->now = gv_now_ns();
        bool connections = false;
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == a) {
                connections = true;
            } else if (events[i].data.ptr == &a->wake) {
                clear_event(a->wake);
            } else {
                happened(a, events[i].data.ptr, events[i].events);
            }
        }
        if (connections) accept_some(a);
        if (a->now >= a->next_due) look_at_clock(a);
        hand_over(a);
        free_over(a);
    }
    return NULL;
}

/* ---- the daemon's side ----------------------------------------------------------------------------------------------------------- */

static bool start(struct acceptor *a) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &a->wake};
    if (a->epoll < 0 || a->wake < 0 || a->changed < 0 || epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->wake, &event) || !listen_again(a)) return false;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the interpreter's threads */
    int error = pthread_create(&a->thread, NULL, serve, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        errno = error;
    else
        pthread_setname_np(a->thread, "gpuvirt-accept");
    return !error;
}

static void dispose(struct acceptor *a) {
    int error = errno;
    if (a->epoll >= 0) close(a->epoll);
    if (a->wake >= 0) close(a->wake);
    if (a->changed >= 0) close(a->changed);
    admission_free(a->pending);
    admission_free(a->proved);
    pthread_mutex_destroy(&a->lock);
    free(a->behind);
    free(a->greeting);
    free(a);
    errno = error;
}

struct acceptor *acceptor_open(const struct acceptor_config *config) {
    bool greets = !config->behind;
    if (config->struct_size != sizeof *config || (greets && (uint64_t)config->nonce_at + GV_NONCE_SIZE > config->greeting_size)) {
        errno = EINVAL;
        return NULL;
    }
    struct acceptor *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->config = *config;
    pthread_mutex_init(&a->lock, NULL);
    list_init(&a->connections);
    a->next_due = a->resume_at = NEVER;
    a->pause = PAUSE_LEAST_NS;
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->pending = admission_new(config->pending);
    a->proved = admission_new(config->proved);
    a->behind = greets ? NULL : strdup(config->behind);
    a->greeting = greets ? malloc(config->greeting_size) : NULL;
    if (!a->pending || !a->proved || (greets ? !a->greeting : !a->behind)) {
        dispose(a);
        return NULL;
    }
    if (greets) memcpy(a->greeting, config->greeting, config->greeting_size);
    if (start(a)) return a;
    dispose(a);
    return NULL;
}

int acceptor_descriptor(const struct acceptor *a) { return a->changed; }

static void peer_text(const struct sockaddr_storage *peer, char *text, size_t size) {
    char host[64], port[16];
    if (peer->ss_family != AF_UNIX &&
        !getnameinfo((const struct sockaddr *)peer, sizeof *peer, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV)) {
        snprintf(text, size, "%s:%s", host, port);
    } else {
        snprintf(text, size, "this host");
    }
}

int acceptor_take(struct acceptor *a, struct acceptor_event *event) {
    struct connection *c = NULL;
    struct sockaddr_storage peer = {0};
    event->kind = 0;
    pthread_mutex_lock(&a->lock);
    bool more = a->more;
    if (a->n_ready) {
        c = a->ready[0];
        memmove(a->ready, a->ready + 1, --a->n_ready * sizeof *a->ready);
    } else if (a->n_late) {
        event->kind = ACCEPTOR_LATE;
        event->count = a->n_late;
        peer = a->late;
        a->n_late = 0;
    } else if (a->n_exhausted) {
        event->kind = ACCEPTOR_EXHAUSTED;
        event->count = a->n_exhausted;
        event->error = a->exhausted;
        a->n_exhausted = 0;
    } else {
        clear_event(a->changed); /* under the lock: whatever is laid ready after this is told again */
    }
    pthread_mutex_unlock(&a->lock);
    if (c) {
        if (more) signal_event(a->wake);
        event->kind = ACCEPTOR_HELLO;
        event->fd = c->fd;
        event->size = c->hello.size;
        memcpy(event->nonce, c->hello.nonce, sizeof event->nonce);
        memcpy(event->hello, c->hello.hello, c->hello.size);
        peer = c->peer;
        hello_free(&c->hello);
        free(c);
    }
    if (event->kind) peer_text(&peer, event->peer, sizeof event->peer);
    return event->kind != 0;
}

void acceptor_close(struct acceptor *a) {
    atomic_store(&a->closing, true);
    signal_event(a->wake);
    pthread_join(a->thread, NULL);
    for (uint32_t i = 0; i < a->n_ready; i++) list_append(&a->connections, &a->ready[i]->of_acceptor);
    while (!list_empty(&a->connections)) end(a, NODE_OF(a->connections.next, struct connection, of_acceptor));
    free_over(a);
    close(a->config.listening);
    dispose(a);
}
