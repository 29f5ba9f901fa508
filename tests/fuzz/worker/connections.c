#define _GNU_SOURCE
#include "connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../native/check.h"
#include "../../native/transport/pair.h"
#include "../../native/transport/sealed_peer.h"
#include "state.h"

/* ---- what comes later --------------------------------------------------------------------------------------------------- */

struct arrival {
    struct worker *worker;
    int fd, channel;
    uint32_t epoch;
    bool resumes;
};

static void *arrive(void *arg) {
    struct arrival *a = arg;
    if (a->resumes)
        worker_resume(a->worker, a->channel, a->fd, a->epoch);
    else
        worker_add_channel(a->worker, a->channel, a->fd);
    free(a);
    return NULL;
}

/* Somebody connects and says `said`; the worker is told. The socket stays open for some time. */
static void connect_with(struct connections *c, struct arrival arrival, const void *said, size_t size) {
    int fds[2];
    if (c->n_strangers == STRANGERS) return;
    if (c->transport == OVER_SHM)
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    else
        tcp_sockets(fds);
    pthread_t thread;
    struct arrival *a = malloc(sizeof *a);
    *a = arrival;
    a->worker = c->worker;
    a->fd = fds[1];
    if (send(fds[0], said, size, MSG_NOSIGNAL) < 0) perror("send");
    shutdown(fds[0], SHUT_WR); /* who waits for more learns that nothing comes */
    CHECK(pthread_create(&thread, NULL, arrive, a) == 0);
    pthread_join(thread, NULL);
    c->strangers[c->n_strangers++] = fds[0];
}

void connections_resume(struct connections *c, const struct step *s) {
    struct {
        struct gv_record record;
        uint64_t body[2];
    } note = {.record = {
                  .size = sizeof note, .op = GV_RECORD_RESUME, .epoch = (uint32_t)step_get(s, "epoch"), .seq = c->link->seq_in + step_get(s, "seq")}};
    bool shm = c->transport == OVER_SHM;
    struct gv_memory_id memory = shm ? gv_shm_memory_id(c->memfd) : (struct gv_memory_id){0};
    note.body[0] = shm ? memory.device + step_get(s, "bulk") : step_get(s, "bulk");
    note.body[1] = memory.inode + step_get(s, "other");
    struct arrival a = {.channel = -1, .epoch = (uint32_t)step_get(s, "epoch"), .resumes = true};
    if (c->transport == OVER_SEALED && !step_get(s, "other")) { /* by the client, who has the key; else by somebody who has not */
        uint8_t frame[NOTE_ROOM];
        struct tcp_note lie = {.record = note.record, .received = {note.body[0]}};
        lie.record.size = sizeof lie;
        struct sealed_peer peer = sealed_peer(a.epoch);
        connect_with(c, a, frame, seal_note(&peer, 0, lie, frame));
        sealed_peer_free(&peer);
        return;
    }
    connect_with(c, a, &note, sizeof note - (shm ? 0 : 8));
}

void connections_channel(struct connections *c, int channel, const void *said, size_t size) {
    connect_with(c, (struct arrival){.channel = channel}, said, size);
}

void connections_cut(struct connections *c) { shutdown(c->main_fd, SHUT_RDWR); }

/* ---- what comes first --------------------------------------------------------------------------------------------------- */

/* A machine that is busy with other things is given time: no connection of the session ends because one side does not read for some seconds. */
static void be_patient(int fd) {
    unsigned never = 0;
    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never)) perror("TCP_USER_TIMEOUT");
}

struct adding {
    struct gv_link *link;
    int fd;
};

static void *add_bulk(void *arg) {
    struct adding *a = arg;
    CHECK(gv_link_add_channel(a->link, 0, a->fd) == 0);
    return NULL;
}

/* The two ends of a channel greet each other. */
static void add_channel(struct connections *c, const int bulk[2]) {
    pthread_t thread;
    struct adding a = {c->link, bulk[0]};
    CHECK(pthread_create(&thread, NULL, add_bulk, &a) == 0);
    CHECK(worker_add_channel(c->worker, 0, bulk[1]) == 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) be_patient(bulk[i]);
}

void connections_open(struct connections *c, const struct step *s, const struct surroundings *where) {
    static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};
    static const char *const backends[] = {"soft", "cuda", "soft"};
    uint64_t backend = where->cuda_alone ? 1 : step_get(s, "backend") % 3;
    int fds[2], bulk[2], memfd = -1;
    uint32_t devices[] = {0, 1};
    char why[GV_DEATH_TEXT], reason[GV_ERR_SIZE];
    uint8_t seal[sizeof test_secret.key + 1];
    memcpy(seal, test_secret.key, sizeof test_secret.key);
    seal[sizeof test_secret.key] = test_secret.cipher;
    *c = (struct connections){.transport = (enum session_transport)(step_get(s, "transport") % 3), .memfd = -1};
    bool shm = c->transport == OVER_SHM;
    if (shm) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        memfd = where->rings && step_get(s, "sound") ? dup(*where->rings) : make_memfd(rings);
        c->memfd = dup(memfd);
        c->link = gv_shm_new(fds[0], dup(memfd), rings, true, why);
    } else {
        tcp_sockets(fds);
        tcp_sockets(bulk);
        c->link = c->transport == OVER_SEALED ? sealed_client(fds[0]) : tcp_client(fds[0]);
    }
    CHECK(c->link);
    c->main_fd = dup(fds[1]);
    struct worker_config config = {.struct_size = sizeof config,
                                   .n_devices = step_get(s, "devices") == 2 ? 2 : 1,
                                   .backend = backends[backend],
                                   .driver = where->driver,
                                   .devices = devices,
                                   .memory = step_get(s, "memory") << 20,
                                   .device_memory = 64 << 20,
                                   .strict = backend == 2,
                                   .grace = (uint32_t)step_get(s, "grace") % 3,
                                   .memory_usage_fd = -1,
                                   .fd = fds[1],
                                   .transport = shm ? "shm" : "tcp",
                                   .descriptors = &memfd,
                                   .n_descriptors = shm,
                                   .blob = (const uint8_t *)rings,
                                   .blob_size = sizeof rings,
                                   .session = 7,
                                   .compiler = soft_modules(),
                                   .server_name = "fuzz",
                                   .seal = c->transport == OVER_SEALED ? seal : NULL};
    c->worker = worker_open(&config, reason);
    if (!c->worker && strstr(reason, "overloaded")) _exit(EXIT_BUSY);
    if (!c->worker) client_wrong("no worker: %s", reason);
    if (shm) return;
    for (int i = 0; i < 2; i++) be_patient(fds[i]);
    add_channel(c, bulk);
}

/* ---- the end ------------------------------------------------------------------------------------------------------------ */

void connections_leave(struct connections *c) {
    for (unsigned i = 0; i < c->n_strangers; i++) close(c->strangers[i]);
    c->n_strangers = 0;
}

void connections_close(struct connections *c) {
    gv_link_close(c->link);
    close(c->main_fd);
    if (c->memfd >= 0) close(c->memfd);
}
