#define _GNU_SOURCE
#include "pair.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../../../native/transport/seal/crypto_library.h"
#include "../check.h"

static const uint64_t default_rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};

const struct gv_link_secret test_secret = {.key = {1, 2, 3, 4, 5}, .cipher = GV_CIPHER_AES};

const char *pair_transport(size_t i) {
#ifdef ONLY_TRANSPORT /* where another one's cases say nothing new */
    return i ? NULL : ONLY_TRANSPORT;
#endif
    char why[GV_DEATH_TEXT];
    for (size_t row = 0; gv_transports[row]; row++)
        if ((!gv_transports[row]->probe || gv_transports[row]->probe(why)) && i-- == 0) return gv_transports[row]->name; /* of this host */
    return i == 0 ? "sealed" : NULL;
}

int make_memfd(const uint64_t rings[4]) {
    int fd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)gv_shm_size(rings)) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

void tcp_sockets(int fds[2]) {
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    CHECK(listening >= 0 && bind(listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(listening, 1) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&at, &size) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fds[0] >= 0 && connect(fds[0], (struct sockaddr *)&at, sizeof at) == 0);
    fds[1] = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fds[1] >= 0);
    close(listening);
}

void expect_channels(struct gv_link *link, uint32_t n) {
    struct tcp_bulk *b = &((struct tcp *)link)->bulk;
    pthread_mutex_lock(&b->lock);
    b->n = n;
    pthread_mutex_unlock(&b->lock);
}

static struct gv_link *client(int fd, const struct gv_link_secret *seal) {
    char why[GV_DEATH_TEXT] = "";
    struct gv_link *link = gv_tcp_new(&(struct gv_endpoint){.fd = fd, .seal = seal}, true, why);
    if (!link) fprintf(stderr, "no link: %s\n", why);
    if (link) expect_channels(link, 1);
    return link;
}

struct gv_link *tcp_client(int fd) { return client(fd, NULL); }
struct gv_link *sealed_client(int fd) { return client(fd, &test_secret); }

void greet_channel(int fd) {
    struct tcp_frame greeting = {.magic = TCP_CHANNEL_MAGIC, .size = 1};
    CHECK(write(fd, &greeting, sizeof greeting) == sizeof greeting);
}

struct adding {
    struct gv_link *link;
    int channel, fd, outcome;
};

static void *add_channel(void *arg) {
    struct adding *a = arg;
    a->outcome = gv_link_add_channel(a->link, a->channel, a->fd);
    return NULL;
}

void add_channels(struct pair *pair, int channel, const int fds[2]) {
    pthread_t thread;
    struct adding worker = {pair->worker, channel, fds[1], -1};
    CHECK(pthread_create(&thread, NULL, add_channel, &worker) == 0);
    CHECK(gv_link_add_channel(pair->client, channel, fds[0]) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && worker.outcome == 0);
}

static struct gv_link *adopt(const char *transport, struct gv_endpoint *endpoint) {
    char why[GV_DEATH_TEXT] = "";
    struct gv_link *link = gv_link_adopt(transport, endpoint, why);
    if (link) return link;
    fprintf(stderr, "not adopted: %s\n", why);
    CHECK(*why);
    close(endpoint->fd);
    gv_passed_close(&endpoint->passed);
    return NULL;
}

struct gv_link *adopt_tcp(int fd) { return adopt("tcp", &(struct gv_endpoint){.fd = fd}); }

struct gv_link *adopt_sealed(int fd) { return adopt("tcp", &(struct gv_endpoint){.fd = fd, .seal = &test_secret}); }

struct gv_link *adopt_verbs(int fd) { return adopt("verbs", &(struct gv_endpoint){.fd = fd}); }

struct gv_link *adopt_shm(int fd, int memfd, const uint64_t rings[4]) {
    return adopt("shm", &(struct gv_endpoint){.fd = fd, .passed = {{memfd}, 1}, .blob = (const uint8_t *)rings, .blob_size = GV_SHM_BLOB});
}

struct pair make_pair(const char *transport) {
    struct pair pair;
    int fds[2];
    bool sealed = strcmp(transport, "sealed") == 0;
    if (sealed || strcmp(transport, "tcp") == 0) {
        int bulk[2];
        tcp_sockets(fds);
        tcp_sockets(bulk);
        pair.client = sealed ? sealed_client(fds[0]) : tcp_client(fds[0]);
        pair.worker = sealed ? adopt_sealed(fds[1]) : adopt_tcp(fds[1]);
        CHECK(pair.client && pair.worker);
        add_channels(&pair, 0, bulk);
    } else if (strcmp(transport, "verbs") == 0) {
        char why[GV_DEATH_TEXT] = "";
        tcp_sockets(fds);
        pair.worker = adopt_verbs(fds[1]);
        pair.client = gv_transport_named("verbs")->connect(&(struct gv_endpoint){.fd = fds[0]}, why);
        if (!pair.client) fprintf(stderr, "no link: %s\n", why);
    } else if (strcmp(transport, "shm") != 0) {
        CHECK(make_other_pair);
        pair = make_other_pair(transport);
    } else {
        char why[GV_DEATH_TEXT];
        const uint64_t *r = default_rings;
        int memfd = make_memfd(r);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        pair.client = gv_shm_new(fds[0], memfd, r, true, why);
        pair.worker = adopt_shm(fds[1], dup(memfd), r);
    }
    CHECK(pair.client && pair.worker);
    CHECK(strcmp(gv_link_transport(pair.client), sealed ? "tcp" : transport) == 0);
    return pair;
}

void close_pair(struct pair *pair) {
    gv_link_close(pair->client);
    gv_link_close(pair->worker);
}

static void *listen_to(void *arg) {
    struct listening *l = arg;
    while (!atomic_load(&l->stop) && !gv_link_dead(l->link)) {
        CHECK(gv_recv_peek(l->link) == NULL);
        gv_recv_wait(l->link, 10000000, 0);
    }
    return NULL;
}

void listen_start(struct listening *l, struct gv_link *link) {
    l->link = link;
    atomic_store(&l->stop, false);
    CHECK(pthread_create(&l->thread, NULL, listen_to, l) == 0);
}

void listen_stop(struct listening *l) {
    atomic_store(&l->stop, true);
    pthread_join(l->thread, NULL);
}

struct gv_link_counts link_counts(struct gv_link *link) {
    struct gv_link_counts counts;
    gv_link_get_counts(link, &counts);
    return counts;
}

int open_descriptors(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

int send_numbered(struct gv_link *link, uint32_t body, uint64_t n) {
    uint64_t blocked;
    struct gv_record *record = gv_send_begin(link, (uint32_t)sizeof *record + body, &blocked);
    if (!record) return 0;
    record->op = (uint16_t)(n % 1000);
    record->flags = 0;
    record->ctx = (uint32_t)n;
    uint64_t *words = (uint64_t *)(void *)(record + 1);
    for (uint32_t i = 0; i < body / 8; i++) words[i] = n * 0x9e3779b97f4a7c15u + i;
    gv_send_commit(link);
    return 1;
}

int64_t receive_numbered(struct gv_link *link, uint64_t n) {
    int64_t until = gv_now_ns() + TEST_PATIENCE_NS;
    const struct gv_record *record;
    while (!(record = gv_recv_peek(link))) {
        if (gv_link_dead(link)) {
            fprintf(stderr, "died: %s\n", gv_link_death(link));
            return -1;
        }
        CHECK(gv_now_ns() < until);
        gv_recv_wait(link, 500000000, 10000);
    }
    CHECK(record->op == n % 1000 && record->ctx == (uint32_t)n);
    uint32_t body = record->size - (uint32_t)sizeof *record;
    const uint64_t *words = (const uint64_t *)(const void *)(record + 1);
    for (uint32_t i = 0; i < body / 8; i++) CHECK(words[i] == n * 0x9e3779b97f4a7c15u + i);
    gv_recv_consume(link);
    return body;
}
