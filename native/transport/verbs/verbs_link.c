/* One end of a verbs link: its row, its memory, its life, and its own thread, which posts what nobody flushes and watches the TCP connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "../link_spec.h"
#include "../redial.h"
#include "../silence.h"
#include "verbs.h"

/* The link's thread naps between two looks at the rings, as tcp's does: shortly while it has something to send. It takes a processor from others whenever it wakes,
 * and locks of those who send and receive. */
#define NAP_MIN_NS 20000
#define NAP_MAX_NS 320000
#define NAPS_BEFORE_SLEEP 20
#define LOOK_NS 1000000ll /* between two looks at the TCP connection, while something is under way */
#ifndef VERBS_SLEEP_NS    /* and looks again after so long at the latest; tests make it long, so that a wake-up that is lost is seen */
#define VERBS_SLEEP_NS 1000000000ll
#endif
#define CONNECT_NS 10000000000ll        /* the worker's end waits so long for the client to connect the queues */
#define COME_AGAIN_NS 10000000000ll     /* and so long once it had begun to */
#define VERBS_COPIES_MOST (32ull << 20) /* bytes of copies that are lent: registered memory is scarce */
#define CLOSE_NS 300000000ll            /* at the end, so long for what was sent to arrive */
#ifndef DRAIN_MS                        /* and so long for the reader to take what the peer left behind; tests make it long */
#define DRAIN_MS 500
#endif

/* ---- the link's own thread */

/* Gives the reader a moment for what the peer left behind, then declares the link dead. */
static void peer_ended(struct verbs *v) {
    gv_verbs_poll_records(v);
    gv_verbs_poll_bulk(v);
    atomic_store(&v->peer_gone, true);
    gv_verbs_wake_all(v);
    for (int waited = 0; waited < DRAIN_MS && !gv_link_dead(&v->link) && !atomic_load(&v->resume.stop); waited += 10) {
        bool read = atomic_load(&v->in_control->tail) == atomic_load(&v->in_control->head);
        if (read && atomic_load(&v->bulk_in_control->tail) == atomic_load(&v->bulk_in_control->head)) break;
        struct pollfd nothing = {.fd = -1};
        poll(&nothing, 1, 10);
    }
    if (!atomic_load(&v->resume.stop)) gv_link_kill(&v->link, "the peer closed the connection");
}

static void look_at_socket(struct verbs *v) {
    char byte;
    ssize_t n = recv(v->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0)
        gv_link_kill(&v->link, "malformed: bytes on the connection of a verbs link");
    else if (n < 0 && (errno == EAGAIN || errno == EINTR || !gv_resume_is_up(&v->resume)))
        return;
    else if (gv_resume_final(&v->resume))
        peer_ended(v);
    else
        gv_resume_cut(&v->resume, "the peer closed the connection", 0);
}

/* The link's thread, while no rail works: carries what comes and goes, and tries the rails again now and then. */
static void carry(struct verbs *v) {
    enum verbs_pushed pushed = gv_verbs_carry_out(v);
    enum verbs_carried carried = gv_verbs_carry_in(v);
    int64_t now = gv_now_ns();
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    char why[GV_DEATH_TEXT];
    if (carried == VERBS_CAME_TO_AN_END) {
        look_at_socket(v);
    } else if (v->client && now > v->rails_again_at) {
        v->rails_again_at = now + VERBS_LEFT_OUT_NS;
        if (gv_verbs_rails(rails, why)) gv_resume_cut(&v->resume, "an RDMA device may work again", 0);
    } else if (carried == VERBS_CAME_NOTHING) {
        struct pollfd fds[2] = {{.fd = v->fd, .events = (short)(POLLIN | POLLRDHUP | (pushed == VERBS_NO_ROOM ? POLLOUT : 0))},
                                {.fd = v->kick_fd, .events = POLLIN}};
        uint64_t count;
        atomic_store(&v->out_control->reader_sleeps, GV_RING_ASLEEP);
        if (poll(fds, 2, 100) > 0 && fds[1].revents && read(v->kick_fd, &count, sizeof count) < 0) count = 0; /* another took it */
        atomic_store(&v->out_control->reader_sleeps, GV_RING_AWAKE);
    }
}

static bool unsent(const struct verbs *v) {
    return atomic_load(&v->out_control->tail) != atomic_load(&v->handed_over) ||
           atomic_load(&v->bulk_out_control->tail) != atomic_load(&v->bulk_handed_over) || gv_verbs_owes_loans(v);
}

/* Completions are to come. Nobody waits for the link's thread to take them: a sender that flushes does so itself, and one that does not has something unsent. */
static bool under_way(const struct verbs *v) { return atomic_load_explicit(&v->queue.under_way, memory_order_relaxed); }

/* The client has begun to connect the queues. Where that is broken off it may think that it is done: then it comes again, soon, over another connection. */
static void begin(struct verbs *v) {
    char why[GV_DEATH_TEXT] = "";
    pthread_mutex_lock(&v->resume.one);
    bool good = !atomic_load(&v->connected) && gv_verbs_begin(v, why);
    if (good) {
        atomic_store(&v->connected, true);
        gv_resume_start(&v->resume);
    }
    bool connected = atomic_load(&v->connected); /* by whoever came before us */
    pthread_mutex_unlock(&v->resume.one);
    if (good) {
        gv_verbs_wake_all(v);
    } else if (!connected && gv_resume_final(&v->resume)) {
        gv_link_kill(&v->link, why);
    } else if (!connected) {
        v->broke_off = true;
        v->connect_until = gv_now_ns() + COME_AGAIN_NS;
    }
}

/* The worker's end: the client connects the queues when it has been welcomed. One that was made for a session that moves has a connection that ends instead. */
static void await_client(struct verbs *v) {
    struct pollfd fds[2] = {{.fd = v->kick_fd, .events = POLLIN}, {.fd = v->fd, .events = POLLIN}};
    char byte;
    uint64_t count;
    int n = poll(fds, v->broke_off ? 1 : 2, 100);
    if (n > 0 && fds[0].revents && read(v->kick_fd, &count, sizeof count) < 0) return; /* another took it */
    bool ended = !v->broke_off && fds[1].revents && recv(v->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
    if (!v->broke_off && fds[1].revents && !ended)
        begin(v);
    else if (ended && !gv_resume_final(&v->resume))
        atomic_store(&v->connected, true); /* it was, in another process */
    else if (gv_now_ns() > v->connect_until)
        gv_link_kill(&v->link, "the client did not connect its queues");
    else if (ended)
        poll(NULL, 0, 10); /* whether a cut is the end is not known yet */
}

static void sleep_until_kicked(struct verbs *v) {
    atomic_store(&v->out_control->reader_sleeps, GV_RING_ASLEEP);
    if (!unsent(v) && !under_way(v) && !atomic_load(&v->resume.stop) && gv_resume_is_up(&v->resume) && !gv_link_dead(&v->link)) {
        struct pollfd fds[2] = {{.fd = v->fd, .events = POLLIN | POLLRDHUP}, {.fd = v->kick_fd, .events = POLLIN}};
        struct timespec limit = {.tv_sec = VERBS_SLEEP_NS / 1000000000};
        uint64_t count;
        if (ppoll(fds, 2, &limit, NULL) > 0 && fds[1].revents && read(v->kick_fd, &count, sizeof count) < 0) fds[1].revents = 0; /* another took it */
        if (fds[0].revents) look_at_socket(v);
    }
    atomic_store(&v->out_control->reader_sleeps, GV_RING_AWAKE);
}

/* What was lent is the lenders' again, once neither device nor connection reads it. */
static void let_go(struct verbs *v) {
    gv_verbs_close_queues(v);
    gv_verbs_loans_end(v);
}

static void *run(void *arg) {
    struct verbs *v = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    int64_t nap = NAP_MIN_NS;
    int in_vain = 0;
    int64_t look_at = 0;
    struct gv_silence silence = {0};
    while (!atomic_load(&v->resume.stop) && !gv_link_dead(&v->link)) {
        if (!atomic_load(&v->connected)) {
            await_client(v);
            continue;
        }
        if (!gv_resume_is_up(&v->resume)) {
            gv_resume_while_down(&v->resume);
            silence = (struct gv_silence){0};
            continue;
        }
        if (gv_host_silent(&silence, v->fd)) {
            gv_resume_cut(&v->resume, "", ETIMEDOUT);
            continue;
        }
        if (atomic_load(&v->over_tcp)) {
            carry(v);
            continue;
        }
        bool some = unsent(v), awaited = some || under_way(v);
        if (awaited) {
            gv_verbs_push(v);
            gv_verbs_push_bulk(v);
            gv_verbs_tell(v);
            /* It stays under way where the peer has stopped its queues: the device says so after half a second at the earliest. */
            if (gv_now_ns() >= look_at) {
                look_at_socket(v);
                look_at = gv_now_ns() + LOOK_NS;
            }
        }
        nap = some ? NAP_MIN_NS : nap * 2 < NAP_MAX_NS ? nap * 2 : NAP_MAX_NS;
        in_vain = awaited ? 0 : in_vain + 1;
        if (in_vain < NAPS_BEFORE_SLEEP) {
            struct timespec pause = {.tv_nsec = nap};
            nanosleep(&pause, NULL);
            continue;
        }
        sleep_until_kicked(v);
        in_vain = 0;
        nap = NAP_MIN_NS;
    }
    if (gv_link_dead(&v->link)) let_go(v);
    return NULL;
}

/* ---- memory and rails */

static void *map(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    madvise(at, size, MADV_DONTFORK); /* a child's first write would take away the pages that devices use */
    return at;
}

/* The memory that both ways of a link need in this process alone. */
static bool make_rings(struct verbs *v) {
    struct gv_ring_control *c = NULL;
    if (posix_memalign((void **)&c, GV_RING_LINE, 4 * sizeof *c)) return false;
    memset(c, 0, 4 * sizeof *c);
    v->out_control = c;
    v->in_control = c + 1;
    v->bulk_out_control = c + 2;
    v->bulk_in_control = c + 3;
    v->in = map(sizeof *v->in);
    v->out = map(sizeof *v->out);
    v->record = malloc(GV_RECORD_MAX);
    if (!v->in || !v->out || !v->record) return false;
    gv_ring_writer_init(&v->tx, v->out_control, v->out->records, VERBS_RECORD_RING);
    gv_ring_reader_init(&v->rx, v->in_control, v->in->records, VERBS_RECORD_RING);
    gv_ring_writer_init(&v->bulk_tx, v->bulk_out_control, v->out->payloads, VERBS_BULK_RING);
    gv_ring_reader_init(&v->bulk_rx, v->bulk_in_control, v->in->payloads, VERBS_BULK_RING);
    return true;
}

static struct ibv_comp_channel *make_channel(const struct verbs *v, uint32_t rail) {
    struct ibv_comp_channel *channel = v->library->create_comp_channel(v->rails[rail].context);
    if (channel) fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    return channel;
}

/* What each rail needs for as long as the link lives. False with `why`. */
static bool use_rail(struct verbs *v, uint32_t i, char why[GV_DEATH_TEXT]) {
    const struct verbs_library *l = v->library;
    const char *what = "a protection domain";
    v->pd[i] = l->alloc_pd(v->rails[i].context);
    if (v->pd[i]) {
        what = "to register memory (is ulimit -l large enough?)";
        v->in_mr[i] = l->reg_mr(v->pd[i], v->in, sizeof *v->in, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        v->out_mr[i] = l->reg_mr(v->pd[i], v->out, sizeof *v->out, IBV_ACCESS_LOCAL_WRITE);
    }
    if (v->in_mr[i] && v->out_mr[i]) {
        what = "completion channels";
        v->channel[i] = make_channel(v, i);
        v->bulk_channel[i] = make_channel(v, i);
    }
    if (v->channel[i] && v->bulk_channel[i]) return true;
    snprintf(why, GV_DEATH_TEXT, "the RDMA device %.60s does not allow %s: %s", v->rails[i].name, what, strerror(errno));
    return false;
}

static void leave_rails(struct verbs *v) {
    const struct verbs_library *l = v->library;
    gv_verbs_memory_end(&v->memory);
    for (uint32_t i = 0; i < v->n_rails; i++) {
        if (v->channel[i]) l->destroy_comp_channel(v->channel[i]);
        if (v->bulk_channel[i]) l->destroy_comp_channel(v->bulk_channel[i]);
        if (v->in_mr[i]) l->dereg_mr(v->in_mr[i]);
        if (v->out_mr[i]) l->dereg_mr(v->out_mr[i]);
        if (v->pd[i]) l->dealloc_pd(v->pd[i]);
    }
}

/* ---- life and death */

static void verbs_died(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    shutdown(v->fd, SHUT_RDWR);
    gv_verbs_wake_all(v);
    gv_part_queue_died(&v->parts);
    gv_resume_died(&v->resume);
}

static void verbs_abandon(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    close(v->fd);
    close(v->wake_fd);
    close(v->bulk_wake_fd);
    close(v->kick_fd);
    for (uint32_t i = 0; i < v->n_rails; i++) {
        close(v->channel[i]->fd);
        close(v->bulk_channel[i]->fd);
    }
}

static void free_memory(struct verbs *v) {
    if (v->in) munmap(v->in, sizeof *v->in);
    if (v->out) munmap(v->out, sizeof *v->out);
    free(v->record);
    free(v->out_control);
    free(v->loans.list);
    free(v->carrier.lent_piece);
    pthread_mutex_destroy(&v->loans.lock);
    free(v);
}

/* Everything that was sent has been carried out: it lies in the peer's memory. */
static bool arrived(struct verbs *v) {
    bool idle = true;
    if (!gv_resume_is_up(&v->resume)) return true;
    gv_verbs_push(v);
    gv_verbs_push_bulk(v);
    gv_spin_lock(&v->queue.posting);
    idle = gv_verbs_queue_idle(&v->queue) && atomic_load(&v->out_control->tail) == atomic_load(&v->handed_over);
    gv_spin_unlock(&v->queue.posting);
    for (uint32_t i = 0; i < v->n_queues; i++) {
        gv_spin_lock(&v->bulk[i].posting);
        idle = gv_verbs_queue_idle(&v->bulk[i]) && idle;
        gv_spin_unlock(&v->bulk[i].posting);
    }
    return idle && gv_verbs_carrier_idle(v) && !gv_verbs_loans_out(v) && atomic_load(&v->bulk_out_control->tail) == atomic_load(&v->bulk_handed_over);
}

static void linger(struct verbs *v) {
    for (int64_t until = gv_now_ns() + CLOSE_NS; !gv_link_dead(&v->link) && gv_now_ns() < until && !arrived(v);) {
        gv_verbs_poll_records(v);
        gv_verbs_poll_bulk(v);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static void verbs_close(struct gv_link *link) {
    struct verbs *v = (struct verbs *)link;
    gv_resume_last(link);
    if (!gv_link_dead(link)) linger(v);
    gv_resume_stop(&v->resume);
    gv_link_kill(link, "closed");
    gv_verbs_wake_all(v);
    pthread_join(v->thread, NULL);
    gv_part_queue_end(&v->parts);
    let_go(v);
    gv_link_fini(link); /* its copies are registered */
    leave_rails(v);
    gv_resume_fini(&v->resume);
    close(v->fd);
    close(v->wake_fd);
    close(v->bulk_wake_fd);
    close(v->kick_fd);
    free_memory(v);
}

static void verbs_counts(const struct gv_link *link, struct gv_link_counts *counts) {
    const struct verbs *v = (const struct verbs *)link;
    uint64_t unread = atomic_load(&v->out_control->tail) - atomic_load(&v->out_control->head);
    *counts = (struct gv_link_counts){.cuts = atomic_load(&v->resume.cuts),
                                      .resumes = atomic_load(&v->resume.resumes),
                                      .down_ns = (uint64_t)gv_resume_down_ns(link->resume),
                                      .records_resent = atomic_load(&v->records_resent),
                                      .unacked_bytes = unread,
                                      .bulk_resent = atomic_load(&v->bulk_resent),
                                      .bulk_lent = atomic_load(&v->bytes_lent),
                                      .bulk_pulled = atomic_load(&v->bytes_pulled),
                                      .bulk_in_place = atomic_load(&v->bytes_in_place)};
}

static void verbs_bulk_poll(struct gv_link *link) { gv_verbs_poll_bulk((struct verbs *)link); }

static void verbs_offer(struct gv_link *link, const void *at, uint64_t size) {
    if (size >= VERBS_LENT_LEAST) gv_verbs_memory_offer(&((struct verbs *)link)->memory, at, size);
}

static bool verbs_offer_device(struct gv_link *link, const void *at, uint64_t size, const struct gv_device_memory *memory) {
    struct verbs *v = (struct verbs *)link;
    return size >= VERBS_LENT_LEAST && v->n_rails && gv_verbs_memory_offer_device(&v->memory, at, size, memory);
}

static void verbs_take_back(struct gv_link *link, const void *at) { gv_verbs_memory_take_back(&((struct verbs *)link)->memory, at); }

static int verbs_add_channel(struct gv_link *link, int channel, int fd) {
    (void)link, (void)channel, (void)fd;
    return -1; /* payloads have rails */
}

static int verbs_resume(struct gv_link *link, int channel, int fd, uint32_t epoch) {
    if (channel < 0) return gv_resume_take(link, fd, epoch);
    close(fd);
    return -1;
}

static bool verbs_probe(char why[GV_DEATH_TEXT]) {
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    return gv_verbs_rails(rails, why) != 0;
}

static struct gv_link *verbs_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);
static struct gv_link *verbs_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]);

const struct gv_transport gv_verbs_transport = {
    .name = "verbs",
    .needs = GV_NEEDS_NETWORK,
    .lends_from = VERBS_LENT_LEAST,
    .undelayed = true,
    .probe = verbs_probe,
    .prepare = gv_verbs_prepare,
    .connect = verbs_connect,
    .adopt = verbs_adopt,
    .redial = gv_redial,
    .reserve = gv_verbs_reserve,
    .publish = gv_verbs_publish,
    .flush = gv_verbs_flush,
    .next = gv_verbs_next,
    .release = gv_verbs_release,
    .wait = gv_verbs_wait,
    .wake = gv_verbs_wake,
    .bulk_part = gv_verbs_payload_part,
    .bulk_acked = gv_verbs_payload_acked,
    .bulk_poll = verbs_bulk_poll,
    .bulk_read = gv_verbs_payload_read,
    .bulk_write = gv_verbs_payload_write,
    .offer_memory = verbs_offer,
    .offer_device_memory = verbs_offer_device,
    .take_back_memory = verbs_take_back,
    .add_channel = verbs_add_channel,
    .resume = verbs_resume,
    .set_grace = gv_resume_set_grace,
    .last = gv_resume_last,
    .client_gone = gv_resume_client_gone,
    .down = gv_resume_down,
    .counts = verbs_counts,
    .pause = gv_verbs_pause,
    .cut = gv_verbs_cut,
    .save = gv_verbs_save,
    .restore = gv_verbs_restore,
    .died = verbs_died,
    .abandon = verbs_abandon,
    .close = verbs_close,
};

/* Everything but the thread. False with `why`. */
static bool set_up(struct verbs *v, char why[GV_DEATH_TEXT]) {
    v->library = gv_verbs_library(why);
    v->n_rails = v->library ? gv_verbs_rails(v->rails, why) : 0;
    if (!v->n_rails) return false;
    if (v->client && !v->rails_wanted)
        while (v->rails[v->n_rails - 1].slow) v->n_rails--; /* the fastest one is not */
    if (v->rails_wanted && v->rails_wanted < v->n_rails) v->n_rails = v->rails_wanted;
    gv_verbs_memory_init(&v->memory, v->library, v->pd, v->n_rails);
    v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->bulk_wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool lends = gv_verbs_loans_init(&v->loans);
    v->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (v->wake_fd < 0 || v->bulk_wake_fd < 0 || v->kick_fd < 0 || !lends || !make_rings(v)) {
        snprintf(why, GV_DEATH_TEXT, "no memory for the link, or no descriptors: %s", strerror(errno));
        return false;
    }
    for (uint32_t i = 0; i < v->n_rails; i++)
        if (!use_rail(v, i, why)) return false;
    return true;
}

static void undo(struct verbs *v) {
    int fds[] = {v->wake_fd, v->bulk_wake_fd, v->kick_fd};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0) close(fds[i]);
    if (v->library && v->in) gv_verbs_close_queues(v);
    gv_link_fini(&v->link);
    if (v->library) leave_rails(v);
    gv_part_queue_end(&v->parts);
    gv_resume_fini(&v->resume);
    free_memory(v);
}

/* Copies of what the program may change are lent as well. */
static void heard_of_copy(void *arg, void *data, bool made) {
    struct verbs *v = arg;
    if (made)
        gv_verbs_memory_offer(&v->memory, data, GV_COPY_PIECE);
    else
        gv_verbs_memory_take_back(&v->memory, data);
}

static struct gv_link *new_end(const struct gv_endpoint *endpoint, bool client, char why[GV_DEATH_TEXT]) {
    struct gv_redial_target *redial = endpoint->redial;
    struct verbs *v = NULL;
    if (posix_memalign((void **)&v, 128, sizeof *v) != 0) {
        snprintf(why, GV_DEATH_TEXT, "out of memory");
        return NULL;
    }
    memset(v, 0, sizeof *v);
    gv_link_init(&v->link, &gv_verbs_transport);
    v->fd = endpoint->fd;
    v->client = client;
    v->wake_fd = v->bulk_wake_fd = v->kick_fd = -1;
    v->rails_wanted = endpoint->spec ? endpoint->spec->rails : 0;
    v->connect_until = gv_now_ns() + CONNECT_NS;
    v->link.redial = redial;
    gv_part_queue_init(&v->parts, &v->link, gv_verbs_payload_put);
    v->parts.lend = gv_verbs_payload_lend;
    v->link.copies.limit = VERBS_COPIES_MOST;
    v->link.copies.heard = heard_of_copy;
    v->link.copies.arg = v;
    gv_resume_init(&v->resume, &v->link, &gv_verbs_resume_ops);
    if (redial) {
        atomic_store(&v->link.rtt_ns, redial->rtt_ns);
        v->link.session = redial->session;
        snprintf(v->link.server, sizeof v->link.server, "%s", redial->address.url);
    }
    bool good = set_up(v, why);
    if (good) {
        gv_tcp_tune(v->fd);
        gv_resume_begin_down(&v->resume);
        if (client && (good = gv_verbs_begin(v, why))) {
            atomic_store(&v->connected, true);
            gv_resume_start(&v->resume);
        }
    }
    int error = good ? gv_thread_start(&v->thread, run, v, "gpuvirt-link") : 0;
    if (good && !error) return &v->link;
    if (error) snprintf(why, GV_DEATH_TEXT, "no thread for the link: %s", strerror(error));
    undo(v);
    return NULL;
}

static struct gv_link *verbs_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) { return new_end(endpoint, true, why); }

static struct gv_link *verbs_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) { return new_end(endpoint, false, why); }
