/* From a pool's URL to a link: who is there, are we on the same host, may we, and then the transport. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../wire/proof.h"
#include "../wire/sha256.h"
#include "delay.h"
#include "dial.h"
#include "link.h"

/* Until a server must have connected and greeted, and then to have started a worker. The daemon gives up on the worker a second before that. */
#ifndef OPEN_NS
#define OPEN_NS 10000000000LL
#endif

/* How often a connection that breaks off within the handshake is made anew, and the pause before the first time; each further one is twice as long. */
#define OPEN_TRIES 4
#define OPEN_PAUSE_US 20000

struct attempt {
    const struct gv_link_options *options;
    struct gv_open_error *err;
    struct gv_address address;
    struct gv_link_spec spec;
    int64_t until;
    struct gv_greeting greeting; /* of the connection that asks for the session */
    uint8_t nonce[GV_NONCE_SIZE];
    struct gv_welcome welcome;
    int64_t rtt_ns; /* a round trip to the server */
    bool broke_off; /* the last failure was a connection that ended within the handshake */
    int fd, memfd;
};

__attribute__((format(printf, 3, 4))) static bool fail(struct attempt *a, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    a->err->status = status;
    vsnprintf(a->err->text, sizeof a->err->text, format, args);
    va_end(args);
    return false;
}

/* A peer's text ends up in terminals and logs. */
static void make_printable(char *text, size_t size) {
    text[size - 1] = 0;
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    }
}

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* What was dialled, as from afar where the user wants that. -1 with errno. */
static int as_from_afar(const struct attempt *a, int fd) {
    if (fd < 0) return fd;
    int wrapped = gv_delay_wrap(fd, &a->spec);
    if (wrapped >= 0) return wrapped;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int dial_tcp(struct attempt *a, char *why, size_t why_size) {
    int fd = gv_dial_tcp(&a->address, a->until, why, why_size);
    if (fd < 0) return fd;
    gv_tcp_tune(fd);
    /* As the kernel has just measured it: the time for the name to be found is none of the distance. */
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) a->rtt_ns = (int64_t)info.tcpi_rtt * 1000 + a->spec.rtt_ns;
    fd = as_from_afar(a, fd);
    if (fd < 0) snprintf(why, why_size, "cannot delay the connection to %s: %s", a->address.url, strerror(errno));
    return fd;
}

static bool ended(int error) { return error == ECONNRESET || error == EPIPE || error == ECONNABORTED; }

static bool read_greeting(struct attempt *a, int fd, struct gv_greeting *greeting) {
    const char *url = a->address.url;
    int error = gv_get(fd, greeting, sizeof *greeting, a->until, NULL);
    a->broke_off = ended(error);
    if (error == ETIMEDOUT)
        return fail(a, GV_OPEN_PROTOCOL, "what listens at %s says nothing; it is not a gpuvirt server, or a stuck one: check the port", url);
    if (error == ECONNRESET)
        return fail(a, GV_OPEN_PROTOCOL, "what listens at %s hung up before greeting; it is not a gpuvirt server: check the port", url);
    if (error) return fail(a, GV_OPEN_PROTOCOL, "the connection to %s broke off: %s", url, strerror(error));
    switch (gv_greeting_check(greeting)) {
    case GV_GREETING_GOOD: return true;
    case GV_GREETING_FOREIGN: return fail(a, GV_OPEN_PROTOCOL, "what listens at %s is not a gpuvirt server; check the port", url);
    case GV_GREETING_OTHER_VERSION: break;
    }
    return fail(a, GV_WELCOME_VERSION, "the server at %s speaks wire versions %u to %u and this client version %u; install the same gpuvirt on both",
                url, greeting->version_min, greeting->version_max, GV_WIRE_VERSION);
}

static bool same_host(const struct gv_greeting *greeting) {
    char own[sizeof greeting->boot_id] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, own, sizeof own - 1);
    close(fd);
    if (n <= 0) return false;
    own[strcspn(own, "\n")] = 0;
    return own[0] && strcmp(own, greeting->boot_id) == 0;
}

/* Trades the TCP connection for one to the same server's unix socket. False with `err` filled: shm was asked for and cannot be had. With `auto` a
 * socket that cannot be reached (another container, another user's folder) means tcp. */
static bool change_to_unix(struct attempt *a, bool asked, bool *changed) {
    const char *url = a->address.url;
    char *path = a->greeting.unix_path;
    *changed = false;
    if (!same_host(&a->greeting)) {
        return asked ? fail(a, GV_OPEN_USAGE, "the link shm needs the server on this host, and %s is another one; use --link tcp", url) : true;
    }
    if (!path[0]) return asked ? fail(a, GV_OPEN_USAGE, "the server at %s does not offer the link shm; use --link tcp", url) : true;
    int fd = as_from_afar(a, gv_dial_unix(path, a->until));
    if (fd < 0) {
        int error = errno;
        make_printable(path, sizeof a->greeting.unix_path);
        return asked ? fail(a, GV_OPEN_UNREACHABLE, "the unix socket %s of the server at %s cannot be reached: %s; use --link tcp", path, url,
                            strerror(error))
                     : true;
    }
    close_fd(&a->fd);
    a->fd = fd;
    *changed = true;
    return read_greeting(a, fd, &a->greeting);
}

static bool fill_nonce(struct attempt *a, uint8_t nonce[GV_NONCE_SIZE]) {
    if (getrandom(nonce, GV_NONCE_SIZE, 0) == GV_NONCE_SIZE) return true;
    return fail(a, GV_OPEN_LOCAL, "no random numbers from the kernel: %s", strerror(errno));
}

static void fill_identity(struct gv_hello *hello, const char *program) {
    const char *user = secure_getenv("USER");
    hello->pid = (uint32_t)getpid();
    snprintf(hello->program, sizeof hello->program, "%s", program ? program : program_invocation_short_name);
    if (user) {
        snprintf(hello->user, sizeof hello->user, "%s", user);
    } else {
        snprintf(hello->user, sizeof hello->user, "%u", (unsigned)getuid());
    }
    if (gethostname(hello->host, sizeof hello->host - 1) != 0) hello->host[0] = 0;
}

/* Sends `hello` and reads a WELCOME that was made with the same key. */
static bool shake(struct attempt *a, int fd, struct gv_hello *hello, const uint8_t *key, const uint8_t *server_nonce, struct gv_welcome *welcome,
                  int *passed) {
    const char *url = a->address.url;
    gv_hello_prove(hello, key, server_nonce);
    int error = gv_put(fd, hello, sizeof *hello, a->until);
    if (!error) error = gv_get(fd, welcome, sizeof *welcome, a->until, passed);
    a->broke_off = ended(error);
    if (error == ETIMEDOUT)
        return fail(a, GV_OPEN_PROTOCOL, "the server at %s did not answer within %lld s; its log may say why", url, OPEN_NS / 1000000000);
    if (error) return fail(a, GV_OPEN_PROTOCOL, "the server at %s broke off the handshake (%s); its log may say why", url, strerror(error));
    if (memcmp(welcome->magic, GV_MAGIC, sizeof welcome->magic) != 0) {
        return fail(a, GV_OPEN_PROTOCOL, "what listens at %s is not a gpuvirt server; check the port", url);
    }
    make_printable(welcome->text, sizeof welcome->text);
    if (welcome->status != GV_WELCOME_OK) {
        bool denied = welcome->status == GV_WELCOME_DENIED;
        return fail(a, welcome->status < GV_OPEN_UNREACHABLE ? (int)welcome->status : GV_OPEN_PROTOCOL, "the server at %s refused: %s%s", url,
                    welcome->text[0] ? welcome->text : "it gives no reason",
                    denied ? "; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server" : "");
    }
    if (welcome->version != GV_WIRE_VERSION) {
        return fail(a, GV_WELCOME_VERSION,
                    "the server at %s answers in wire version %u and this client speaks version %u; install the same gpuvirt on both", url,
                    welcome->version, GV_WIRE_VERSION);
    }
    if (!gv_welcome_proved(welcome, key, hello->nonce, server_nonce)) {
        return fail(a, GV_OPEN_PROTOCOL, "the server at %s does not hold the token's secret itself; it is not the one the token came from", url);
    }
    return true;
}

static bool open_session(struct attempt *a, bool shm) {
    const struct gv_link_options *o = a->options;
    struct gv_hello hello = {
        .kind = GV_HELLO_SESSION,
        .link = shm ? GV_LINK_SHM : GV_LINK_TCP,
        .gpus = o->gpus,
        .memory = o->memory,
        .flags = o->no_wait ? GV_HELLO_NO_WAIT : 0,
    };
    memcpy(hello.launch, o->launch, sizeof hello.launch);
    memcpy(hello.token_id, o->token_id, GV_TOKEN_ID_SIZE);
    fill_identity(&hello, o->program);
    if (!fill_nonce(a, a->nonce)) return false;
    memcpy(hello.nonce, a->nonce, sizeof hello.nonce);
    a->until = gv_now_ns() + OPEN_NS; /* the worker may still have to start */
    return shake(a, a->fd, &hello, o->secret, a->greeting.nonce, &a->welcome, shm ? &a->memfd : NULL);
}

/* What reconnecting and further connections need. NULL: no memory. */
static struct gv_redial_target *redial_target(const struct attempt *a) {
    struct gv_redial_target *redial = calloc(1, sizeof *redial);
    if (!redial) return NULL;
    redial->address = a->address;
    redial->session = a->welcome.session;
    redial->grace_ns = (int64_t)a->welcome.grace_s * 1000000000;
    redial->rtt_ns = a->rtt_ns;
    redial->spec = a->spec;
    redial->channels = a->spec.channels ? a->spec.channels : 1;
    if (redial->channels > a->welcome.channels) redial->channels = a->welcome.channels;
    redial->notice = a->options->notice;
    redial->notice_arg = a->options->notice_arg;
    snprintf(redial->program, sizeof redial->program, "%s", a->options->program ? a->options->program : program_invocation_short_name);
    gv_session_key(redial->key, a->options->secret, a->greeting.nonce, a->nonce, a->welcome.session);
    return redial;
}

int gv_redial(const struct gv_redial_target *target, int channel, uint32_t epoch, int64_t until, char *why, size_t why_size) {
    struct gv_open_error err = {0};
    struct attempt a = {.err = &err, .address = target->address, .spec = target->spec, .until = until};
    struct gv_hello hello = {.kind = channel < 0 ? GV_HELLO_RESUME : GV_HELLO_CHANNEL,
                             .link = GV_LINK_TCP,
                             .channel = channel < 0 ? 0 : (uint16_t)channel,
                             .session = target->session,
                             .epoch = epoch};
    int fd = dial_tcp(&a, why, why_size);
    /* Whoever listened there is gone, and the session with him. */
    if (fd < 0) return errno == ECONNREFUSED ? GV_REDIAL_FINAL : GV_REDIAL_AGAIN;
    fill_identity(&hello, target->program);
    if (read_greeting(&a, fd, &a.greeting) && fill_nonce(&a, hello.nonce) && shake(&a, fd, &hello, target->key, a.greeting.nonce, &a.welcome, NULL)) {
        gv_set_blocking(fd);
        return fd;
    }
    close(fd);
    snprintf(why, why_size, "%s", err.text);
    bool final = err.status == (int)GV_WELCOME_UNKNOWN || err.status == (int)GV_WELCOME_DENIED || err.status == (int)GV_WELCOME_VERSION;
    return final ? GV_REDIAL_FINAL : GV_REDIAL_AGAIN;
}

static struct gv_link *make_link(struct attempt *a, bool shm) {
    struct gv_link *link;
    gv_set_blocking(a->fd);
    if (shm) {
        const uint64_t rings[4] = {a->welcome.command_ring, a->welcome.reply_ring, a->welcome.bulk_out_ring, a->welcome.bulk_in_ring};
        char why[GV_DEATH_TEXT] = "it sent no shared memory";
        int memfd = a->memfd >= 0 ? gv_delay_shm(a->fd, a->memfd, rings, &a->spec) : -1;
        if (memfd >= 0) a->memfd = memfd;
        if (memfd < 0 && a->memfd >= 0) snprintf(why, sizeof why, "it cannot be delayed: %s", strerror(errno));
        link = memfd >= 0 ? gv_shm_new(a->fd, a->memfd, rings, true, why) : NULL;
        if (!link) fail(a, GV_OPEN_PROTOCOL, "no shared memory with the server at %s: %s; use --link tcp", a->address.url, why);
    } else if (a->welcome.channels == 0) {
        fail(a, GV_OPEN_PROTOCOL, "the server at %s offers no bulk channel", a->address.url);
        return NULL;
    } else {
        struct gv_redial_target *redial = redial_target(a);
        link = redial ? gv_tcp_new(a->fd, redial) : NULL;
        if (!link) {
            fail(a, GV_OPEN_LOCAL, "the link to %s could not be set up: %s", a->address.url, strerror(errno));
            free(redial);
        }
    }
    if (!link) return NULL;
    a->fd = a->memfd = -1; /* the link's from here on */
    link->session = a->welcome.session;
    snprintf(link->server, sizeof link->server, "%s", a->address.url);
    gv_link_set_rtt(link, a->rtt_ns);
    return link;
}

static struct gv_link *attempt(struct attempt *a) {
    char why[400];
    bool shm = false;
    a->fd = dial_tcp(a, why, sizeof why);
    if (a->fd < 0) {
        int status = errno == EMFILE || errno == ENFILE || errno == ENOMEM ? GV_OPEN_LOCAL : GV_OPEN_UNREACHABLE;
        fail(a, status, "%s", why);
        return NULL;
    }
    if (!read_greeting(a, a->fd, &a->greeting)) return NULL;
    if (a->spec.kind != GV_TCP_LINK && !change_to_unix(a, a->spec.kind == GV_SHM_LINK, &shm)) return NULL;
    if (!open_session(a, shm)) return NULL;
    return make_link(a, shm);
}

struct gv_link *gv_link_connect(const struct gv_link_options *options, struct gv_open_error *err) {
    struct attempt a = {.options = options, .err = err, .until = gv_now_ns() + OPEN_NS, .fd = -1, .memfd = -1};
    char wrong[GV_LINK_ERROR_TEXT];
    memset(err, 0, sizeof *err);
    if (!options->token_id || !options->secret) {
        fail(&a, GV_OPEN_USAGE, "no token; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server");
        return NULL;
    }
    if (!gv_link_spec_parse(options->link, &a.spec, wrong)) {
        fail(&a, GV_OPEN_USAGE, "%s", wrong);
        return NULL;
    }
    if (!gv_address_parse(options->pool, &a.address)) {
        fail(&a, GV_OPEN_USAGE, "'%.200s' is not a pool; write tcp://HOST:PORT", options->pool ? options->pool : "");
        return NULL;
    }
    /* A connection may be cut within the handshake as well as afterwards. What listens there and is no server hangs up each time. */
    struct gv_link *link = NULL;
    for (int tries = 0; !link && tries < OPEN_TRIES && (!tries || a.broke_off); tries++) {
        if (tries) usleep(OPEN_PAUSE_US << tries);
        a.until = gv_now_ns() + OPEN_NS;
        a.broke_off = false;
        link = attempt(&a);
        close_fd(&a.fd);
        close_fd(&a.memfd);
    }
    return link;
}
