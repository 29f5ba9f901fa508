/* The hostile server's side of the handshakes: sessions, channels, and connections in the place of those that were cut. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server.h"
#include "transport/seal/exchange.h"
#include "transport/seal/seal.h"
#include "wire/transcript.h"

static uint8_t session_key[GV_SECRET_SIZE];
static struct dice dice;

static bool read_all(int fd, void *into, size_t size) { return recv(fd, into, size, MSG_WAITALL) == (ssize_t)size; }

/* Sends bytes with descriptors; half of them now and then, and nothing behind that. */
static bool send_with(int fd, const void *data, size_t size, const int *passed, unsigned n) {
    char room[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec iov = {(void *)data, size};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n) {
        m.msg_control = room;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(c), passed, n * sizeof(int));
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)size;
}

/* ---- messages ------------------------------------------------------------------------------------------------------- */

static void odd_text(char *text, size_t room) {
    for (size_t i = 0; i + 1 < room; i++) text[i] = (char)(roll(&dice, 3) ? 'a' + (int)roll(&dice, 26) : (int)roll(&dice, 256));
    text[roll(&dice, room)] = 0;
}

static size_t make_greeting(uint8_t raw[GV_MESSAGE_MAX]) {
    struct gv_greeting g = {.version_min = GV_WIRE_VERSION, .version_max = GV_WIRE_VERSION, .server_name = "hostile"};
    for (size_t i = 0; i < sizeof g.nonce; i++) g.nonce[i] = (uint8_t)roll(&dice, 256);
    int boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (boot >= 0) {
        if (read(boot, g.boot_id, 36) != 36) g.boot_id[0] = 0;
        close(boot);
    }
    memcpy(g.unix_path, server.plan->local_at.sun_path, sizeof server.plan->local_at.sun_path);
    bool lies = lie(&dice, LIE_GREETING);
    if (lies && roll(&dice, 3) == 0) odd_text(g.unix_path, sizeof g.unix_path);
    if (lies && roll(&dice, 4) == 0) g.boot_id[0] ^= 1;
    if (lies && roll(&dice, 4) == 0) g.version_min = (uint16_t)roll(&dice, 5), g.version_max = (uint16_t)roll(&dice, 5);
    if (lies && roll(&dice, 4) == 0) g.key_exchange.size = (uint16_t)roll(&dice, GV_KEY_EXCHANGE_MAX);
    size_t size = gv_greeting_encode(&g, raw);
    if (lies && roll(&dice, 2)) spoil(&dice, raw, roll(&dice, 2) ? 64 : size);
    return size;
}

static void say_states(int fd, struct gv_transcript *t) {
    for (uint64_t n = lie(&dice, LIE_STATE) ? 1 + roll(&dice, 20) : 0; n; n--) {
        struct gv_state s = {.state = (uint16_t)roll(&dice, 4), .place = (uint32_t)odd_number(&dice, 1), .queued = (uint32_t)odd_number(&dice, 9)};
        uint8_t raw[GV_MESSAGE_MAX];
        odd_text(s.text, sizeof s.text);
        size_t size = gv_state_encode(&s, raw);
        if (roll(&dice, 6) == 0) spoil(&dice, raw, size);
        gv_transcript_add(t, raw, size);
        if (!send_with(fd, raw, size, NULL, 0)) return;
    }
}

static void lie_in_welcome(struct gv_welcome *w) {
    switch (roll(&dice, 8)) {
    case 0: w->status = (uint32_t)odd_number(&dice, 0); break;
    case 1: odd_text(w->text, sizeof w->text), w->status = (uint32_t)roll(&dice, 9); break;
    case 2: w->connections = (uint16_t)odd_number(&dice, 16); break;
    case 3: w->blob.size = (uint16_t)roll(&dice, GV_BLOB_MAX); break;
    case 4: spoil(&dice, w->blob.data, 32); break;
    case 5: w->key_exchange.size = (uint16_t)roll(&dice, GV_KEY_EXCHANGE_MAX); break;
    case 6: odd_text(w->transport.name, sizeof w->transport.name); break;
    default: w->session = odd_number(&dice, w->session); break;
    }
}

static void move(struct gv_welcome *w) {
    w->status = GV_WELCOME_MOVED;
    switch (roll(&dice, 3)) {
    case 0: odd_text(w->address, sizeof w->address); break;
    case 1: snprintf(w->address, sizeof w->address, "tcp://127.0.0.1:%d", server.plan->port); break;
    default: snprintf(w->address, sizeof w->address, "tcp://127.0.0.1:1"); break;
    }
}

/* False: the connection is to be closed. */
static bool send_welcome(int fd, struct gv_transcript *t, struct gv_welcome *w, const uint8_t *key, int memfd) {
    uint8_t raw[GV_MESSAGE_MAX];
    int passed[8] = {memfd, memfd, memfd, memfd, memfd, memfd, memfd, memfd};
    unsigned n = memfd >= 0;
    if (lie(&dice, LIE_MOVED)) move(w);
    bool lies = lie(&dice, LIE_WELCOME);
    if (lies) lie_in_welcome(w);
    if (memfd >= 0 && lie(&dice, LIE_DESCRIPTORS)) n = (unsigned)roll(&dice, 8);
    w->descriptors = (uint16_t)n;
    size_t size = gv_welcome_encode(w, raw);
    if (lies && roll(&dice, 4) == 0) spoil(&dice, raw, size);
    gv_welcome_prove(t, raw, size, key);
    if (lies && roll(&dice, 6) == 0) spoil(&dice, raw, size);
    if (lies && roll(&dice, 6) == 0) size = roll(&dice, size) + 1;
    return send_with(fd, raw, size, passed, n) && w->status == GV_WELCOME_OK;
}

/* ---- sessions ------------------------------------------------------------------------------------------------------- */

static int make_memory(void) {
    uint64_t size = gv_shm_size(server.rings);
    int memfd = memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    if (lie(&dice, LIE_DESCRIPTORS)) {
        switch (roll(&dice, 3)) {
        case 0: size += 4096; break;
        case 1: size = roll(&dice, roll(&dice, 2) ? 8192 : size); break;
        default: seals = roll(&dice, 2) ? F_SEAL_SHRINK : F_SEAL_GROW; break;
        }
    }
    server_must(memfd >= 0 && !ftruncate(memfd, (off_t)size) && !fcntl(memfd, F_ADD_SEALS, seals), "rings");
    if (size == gv_shm_size(server.rings)) server.rings_map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    return memfd;
}

static void welcome_session(int fd, bool over_unix, struct gv_transcript *t, const struct gv_hello *h) {
    struct gv_welcome w = {.session = 42, .grace_s = 1};
    int memfd = -1;
    if (atomic_load(&server.link)) { /* one session: a client that comes again is told so */
        w.status = GV_WELCOME_BUSY;
        send_welcome(fd, t, &w, fuzz_token + 16, -1);
        close(fd);
        return;
    }
    say_states(fd, t);
    w.transport = h->transports.at[0];
    if (over_unix) {
        memfd = make_memory();
        w.blob.size = GV_SHM_BLOB;
        memcpy(w.blob.data, server.rings, GV_SHM_BLOB);
    } else {
        w.connections = 16;
    }
    char why[GV_DEATH_TEXT] = "";
    uint8_t shared_key[GV_CRYPTO_KEY];
    struct gv_link_secret seal;
    bool sealed = !over_unix && h->key_exchange.size == GV_EXCHANGE_SIZE;
    if (sealed) {
        server_must(gv_exchange_answer(h->key_exchange.data, w.key_exchange.data, shared_key, why), why);
        w.key_exchange.size = GV_EXCHANGE_SIZE;
        seal.cipher = w.key_exchange.data[0];
        if (lie(&dice, LIE_EXCHANGE)) spoil(&dice, w.key_exchange.data, GV_EXCHANGE_SIZE);
    }
    bool sent = send_welcome(fd, t, &w, fuzz_token + 16, memfd);
    if (sealed)
        gv_sealed_session_keys(t, fuzz_token + 16, shared_key, session_key, seal.key);
    else
        gv_session_key(t, fuzz_token + 16, session_key);
    struct gv_endpoint end = {.fd = fd,
                              .passed = {{memfd}, memfd >= 0},
                              .blob = (const uint8_t *)server.rings,
                              .blob_size = memfd >= 0 ? GV_SHM_BLOB : 0,
                              .seal = sealed ? &seal : NULL};
    struct gv_link *link = sent ? gv_link_adopt(over_unix ? "shm" : "tcp", &end, why) : NULL;
    if (!link) {
        if (memfd >= 0) close(memfd);
        close(fd);
        return;
    }
    gv_link_set_grace(link, 1000000000);
    server.main_fd = fd;
    atomic_store(&server.link, link);
}

/* ---- channels, and connections that come again ------------------------------------------------------------------------ */

struct adding {
    int channel, fd;
    uint32_t epoch;
};

/* A thread of its own: both ends greet each other, and wait for that. */
static void *add_connection(void *arg) {
    struct adding *a = arg;
    struct gv_link *link = atomic_load(&server.link);
    if (a->channel >= 0 && !a->epoch) {
        if (a->channel < 16) server.channel_fds[a->channel] = a->fd;
        if (gv_link_add_channel(link, a->channel, a->fd)) close(a->fd);
    } else {
        gv_link_resume(link, a->channel, a->fd, a->epoch);
    }
    free(a);
    return NULL;
}

/* What either end says first on a connection of its kind, with something else in it. */
static void say_nonsense(int fd) {
    uint8_t raw[256];
    memset(raw, 0, sizeof raw);
    struct gv_record r = {
        .size = (uint32_t)(sizeof r + 16), .op = GV_RECORD_RESUME, .epoch = 1 + (uint32_t)roll(&dice, 3), .seq = odd_number(&dice, 20)};
    struct {
        uint32_t magic, size;
        uint64_t position;
    } frame = {roll(&dice, 4) ? 0x4e414843u : (uint32_t)odd_number(&dice, 0), (uint32_t)odd_number(&dice, 1), odd_number(&dice, 1000)};
    size_t size = roll(&dice, 2) ? sizeof r + 16 : sizeof frame;
    memcpy(raw, size == sizeof frame ? (const void *)&frame : &r, size == sizeof frame ? sizeof frame : sizeof r);
    if (roll(&dice, 3) == 0) spoil(&dice, raw, size);
    if (roll(&dice, 4) == 0) size = roll(&dice, sizeof raw);
    if (send(fd, raw, size, MSG_NOSIGNAL) < 0) return;
}

static void welcome_further(int fd, struct gv_transcript *t, const struct gv_hello *h) {
    struct gv_welcome w = {.session = h->session};
    bool channel = h->purpose == GV_HELLO_CHANNEL, lies = lie(&dice, channel ? LIE_CHANNEL : LIE_CUT);
    if (lies && roll(&dice, 4) == 0) lie_in_welcome(&w);
    say_states(fd, t);
    if (!send_welcome(fd, t, &w, session_key, -1) || !atomic_load(&server.link)) {
        close(fd);
        return;
    }
    if (lies && roll(&dice, 2)) {
        say_nonsense(fd);
        if (roll(&dice, 2)) {
            close(fd);
            return;
        }
    }
    pthread_t thread;
    struct adding *a = malloc(sizeof *a);
    *a = (struct adding){channel ? h->channel : -1, fd, h->epoch};
    if (pthread_create(&thread, NULL, add_connection, a) == 0) pthread_detach(thread);
}

/* ---- all of them ------------------------------------------------------------------------------------------------------ */

static void shake(int fd, bool over_unix) {
    static uint8_t raw[GV_MESSAGE_MAX];
    struct gv_transcript t;
    struct gv_head head;
    struct gv_hello h;
    size_t size = make_greeting(raw);
    gv_transcript_begin(&t, raw, size);
    struct timeval patience = {.tv_sec = 5}, none = {0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (send(fd, raw, size, MSG_NOSIGNAL) != (ssize_t)size || !read_all(fd, raw, GV_HEAD_SIZE) || gv_message_head(raw, &head) != GV_HEAD_GOOD ||
        !read_all(fd, raw + GV_HEAD_SIZE, head.size - GV_HEAD_SIZE) || !gv_hello_decode(&h, raw, head.size)) {
        close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    bool further = h.purpose != GV_HELLO_SESSION;
    /* The transcript goes on behind the client's proof. */
    if (!gv_hello_proved(&t, raw, head.size, further ? session_key : fuzz_token + 16)) {
        close(fd);
        return;
    }
    if (further)
        welcome_further(fd, &t, &h);
    else
        welcome_session(fd, over_unix, &t, &h);
}

void *greets(void *arg) {
    (void)arg;
    dice = dice_of(server.plan->seed, 2);
    for (;;) {
        struct pollfd fds[2] = {{server.plan->listener, POLLIN, 0}, {server.plan->local, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0) continue;
        for (int i = 0; i < 2; i++) {
            int fd = fds[i].revents & POLLIN ? accept4(fds[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd >= 0) shake(fd, i == 1);
        }
    }
}
