#define _GNU_SOURCE
#include "attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../wire/own_process.h"
#include "../wire/record.h"
#include "delay/delay.h"
#include "futex.h"
#include "link.h"

/* A server that has said "wait" says so again before this is over, or is gone. */
#define STATE_NS (4 * GV_STATE_EVERY_S * 1000000000LL)

bool gv_attempt_fail(struct gv_attempt *a, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    a->err->status = status;
    vsnprintf(a->err->text, sizeof a->err->text, format, args);
    va_end(args);
    return false;
}

/* A peer's text ends up in terminals and logs. */
static void make_printable(char *text) {
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    }
}

void gv_attempt_close(struct gv_attempt *a) {
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
    gv_passed_close(&a->passed);
}

static bool ended(int error) { return error == ECONNRESET || error == EPIPE || error == ECONNABORTED; }

/* What was dialled, behind a delay where the user wants that. -1 with errno. */
static int delayed(const struct gv_attempt *a, int fd) {
    if (fd < 0) return fd;
    int wrapped = gv_delay_wrap(fd, &a->spec);
    if (wrapped >= 0) return wrapped;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* ---- greeting ------------------------------------------------------------------------------------------------------ */

static bool wrong_version(struct gv_attempt *a, bool older, const struct gv_head *head) {
    const char *url = a->address.url;
    if (older) {
        return gv_attempt_fail(
            a, GV_WELCOME_VERSION,
            "the server at %s is older than this client: it speaks wire version %u and the client version %u; install the client's "
            "gpuvirt on the server",
            url, head->second, GV_WIRE_VERSION);
    }
    return gv_attempt_fail(a, GV_WELCOME_VERSION,
                           "this client is older than the server at %s: it speaks wire version %u and the server version %u; install the server's "
                           "gpuvirt here",
                           url, GV_WIRE_VERSION, head->first);
}

static bool no_server(struct gv_attempt *a) {
    return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "what listens at %s is not a gpuvirt server; check the port", a->address.url);
}

static bool read_greeting(struct gv_attempt *a) {
    const char *url = a->address.url;
    uint8_t raw[GV_MESSAGE_MAX];
    struct gv_head head;
    int error = gv_get(a->fd, raw, GV_HEAD_SIZE, a->until, NULL);
    if (!error) {
        enum gv_head_verdict verdict = gv_greeting_head(raw, &head);
        if (verdict == GV_HEAD_FOREIGN) return no_server(a);
        if (verdict != GV_HEAD_GOOD) return wrong_version(a, verdict == GV_HEAD_OLDER, &head);
        error = gv_get(a->fd, raw + GV_HEAD_SIZE, head.size - GV_HEAD_SIZE, a->until, NULL);
    }
    a->broke_off = ended(error);
    if (error == ETIMEDOUT) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "what listens at %s says nothing; it is not a gpuvirt server, or a stuck one: check the port",
                               url);
    }
    if (error == ECONNRESET) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "what listens at %s hung up before greeting; it is not a gpuvirt server: check the port", url);
    }
    if (error) return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the connection to %s broke off: %s", url, strerror(error));
    if (!gv_greeting_decode(&a->greeting, raw, head.size)) return no_server(a);
    gv_transcript_begin(&a->transcript, raw, head.size);
    return true;
}

bool gv_attempt_dial(struct gv_attempt *a) {
    char why[400];
    a->provides = GV_NEEDS_NETWORK;
    a->fd = gv_dial_tcp(&a->address, a->until, why, sizeof why);
    if (a->fd >= 0) {
        gv_tcp_tune(a->fd);
        /* As the kernel has just measured it: the time for the name to be found is none of the distance. */
        struct tcp_info info = {0};
        socklen_t size = sizeof info;
        if (getsockopt(a->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) a->rtt_ns = (int64_t)info.tcpi_rtt * 1000 + a->spec.rtt_ns;
        a->fd = delayed(a, a->fd);
        if (a->fd < 0) snprintf(why, sizeof why, "cannot delay the connection to %s: %s", a->address.url, strerror(errno));
    }
    if (a->fd < 0) {
        int error = errno;
        gv_attempt_fail(a, error == EMFILE || error == ENFILE || error == ENOMEM ? GV_OPEN_LOCAL : GV_OPEN_UNREACHABLE, "%s", why);
        errno = error;
        return false;
    }
    bool greeted = read_greeting(a);
    if (!greeted) errno = EPROTO;
    return greeted;
}

/* ---- the same host ------------------------------------------------------------------------------------------------- */

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

uint32_t gv_attempt_provides(const struct gv_attempt *a) {
    if (!same_host(&a->greeting)) return GV_NEEDS_NETWORK;
    return GV_NEEDS_NETWORK | GV_NEEDS_SAME_HOST | (a->greeting.unix_path[0] ? GV_NEEDS_DESCRIPTORS : 0);
}

bool gv_attempt_change_to_unix(struct gv_attempt *a, const char *transport) {
    const char *url = a->address.url;
    uint32_t provides = gv_attempt_provides(a);
    if (!(provides & GV_NEEDS_SAME_HOST)) {
        return gv_attempt_fail(a, GV_OPEN_USAGE, "the link %s needs the server on this host, and %s is another one; use --link auto", transport, url);
    }
    if (!(provides & GV_NEEDS_DESCRIPTORS)) {
        return gv_attempt_fail(a, GV_OPEN_USAGE, "the server at %s does not offer the link %s; use --link auto", url, transport);
    }
    char path[sizeof a->greeting.unix_path];
    memcpy(path, a->greeting.unix_path, sizeof path);
    int fd = delayed(a, gv_dial_unix(path, a->until));
    if (fd < 0) {
        int error = errno;
        make_printable(path);
        return gv_attempt_fail(a, GV_OPEN_UNREACHABLE, "the unix socket %s of the server at %s cannot be reached: %s; use --link auto", path, url,
                               strerror(error));
    }
    close(a->fd);
    a->fd = fd;
    a->provides = GV_NEEDS_SAME_HOST | GV_NEEDS_DESCRIPTORS;
    return read_greeting(a);
}

/* ---- hello and welcome --------------------------------------------------------------------------------------------- */

static bool introduce(struct gv_attempt *a, struct gv_hello *hello, const char *program) {
    const char *user = secure_getenv("USER");
    hello->pid = (uint32_t)getpid();
    gv_name_own_process(hello);
    snprintf(hello->program, sizeof hello->program, "%s", program ? program : program_invocation_short_name);
    if (user && *user) {
        snprintf(hello->user, sizeof hello->user, "%s", user);
    } else {
        snprintf(hello->user, sizeof hello->user, "%u", (unsigned)getuid());
    }
    if (gethostname(hello->host, sizeof hello->host - 1) != 0) hello->host[0] = 0;
    if (getrandom(hello->nonce, GV_NONCE_SIZE, 0) == GV_NONCE_SIZE) return true;
    return gv_attempt_fail(a, GV_OPEN_LOCAL, "no random numbers from the kernel: %s", strerror(errno));
}

/* The server lives and cannot serve us yet. */
static bool wait_on(struct gv_attempt *a, struct gv_state *state) {
    const char *url = a->address.url;
    char text[700], place[64] = "";
    a->until = gv_now_ns() + STATE_NS;
    a->waits = true;
    if (a->told || !a->notice) return true;
    a->told = true;
    if (state->place) snprintf(place, sizeof place, ", place %u of %u in the queue", state->place, state->queued);
    if (state->state == GV_STATE_PARKED) {
        snprintf(text, sizeof text, "waiting for the server at %s to bring the session's memory back", url);
    } else {
        make_printable(state->text);
        snprintf(text, sizeof text, "waiting for a GPU of the server at %s%s%s%s", url, place, state->text[0] ? ": " : "", state->text);
    }
    a->notice(a->notice_arg, text);
    return true;
}

/* The next message after our hello: its bytes, or NULL with `err` filled in. */
static bool read_message(struct gv_attempt *a, uint8_t raw[GV_MESSAGE_MAX], struct gv_head *head) {
    const char *url = a->address.url;
    int error = gv_get(a->fd, raw, GV_HEAD_SIZE, a->until, &a->passed);
    if (!error) {
        enum gv_head_verdict verdict = gv_message_head(raw, head);
        if (verdict == GV_HEAD_FOREIGN) return no_server(a);
        if (verdict != GV_HEAD_GOOD) {
            return gv_attempt_fail(a, GV_WELCOME_VERSION, "the server at %s answers in wire version %u and this client speaks version %u", url,
                                   head->first, GV_WIRE_VERSION);
        }
        error = gv_get(a->fd, raw + GV_HEAD_SIZE, head->size - GV_HEAD_SIZE, a->until, &a->passed);
    }
    a->broke_off = ended(error);
    if (error == ETIMEDOUT) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s did not answer within %lld s; its log may say why", url,
                               (a->told ? STATE_NS : OPEN_NS) / 1000000000);
    }
    if (error)
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s broke off the handshake (%s); its log may say why", url, strerror(error));
    return true;
}

static bool refused(struct gv_attempt *a) {
    struct gv_welcome *w = &a->welcome;
    make_printable(w->text);
    return gv_attempt_fail(a, w->status < GV_OPEN_UNREACHABLE ? (int)w->status : GV_OPEN_PROTOCOL, "the server at %s refused: %s%s", a->address.url,
                           w->text[0] ? w->text : "it gives no reason",
                           w->status == GV_WELCOME_DENIED ? "; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server" : "");
}

static bool judge_welcome(struct gv_attempt *a, const uint8_t *raw, size_t size, const struct gv_hello *hello, const uint8_t *key) {
    struct gv_welcome *w = &a->welcome;
    const char *url = a->address.url;
    if (!gv_welcome_decode(w, raw, size)) return no_server(a);
    if (w->status != GV_WELCOME_OK && w->status != GV_WELCOME_MOVED) return refused(a);
    if (!gv_welcome_proved(&a->transcript, raw, size, key)) {
        return gv_attempt_fail(
            a, GV_OPEN_PROTOCOL,
            "the server at %s does not hold the token's secret itself, or the handshake was altered on its way; it is not the one the "
            "token came from",
            url);
    }
    if (w->key_exchange.size && !hello->key_exchange.size)
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s wants to seal a link that this client did not ask to seal", url);
    return true;
}

bool gv_attempt_shake(struct gv_attempt *a, struct gv_hello *hello, const char *program, const uint8_t *key) {
    uint8_t raw[GV_MESSAGE_MAX];
    if (!introduce(a, hello, program)) return false;
    size_t size = gv_hello_encode(hello, raw);
    gv_hello_prove(&a->transcript, raw, size, key);
    int error = gv_put(a->fd, raw, size, a->until);
    if (error) {
        a->broke_off = ended(error);
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s broke off the handshake (%s); its log may say why", a->address.url,
                               strerror(error));
    }
    for (;;) {
        struct gv_head head = {0};
        struct gv_state state;
        if (!read_message(a, raw, &head)) return false;
        if (head.second != GV_MESSAGE_STATE) return judge_welcome(a, raw, head.size, hello, key);
        if (!gv_state_decode(&state, raw, head.size)) return no_server(a);
        gv_transcript_add(&a->transcript, raw, head.size);
        if (!wait_on(a, &state)) return false;
    }
}

bool gv_attempt_follow(struct gv_attempt *a, int *moves) {
    struct gv_address next;
    char *to = a->welcome.address;
    gv_attempt_close(a);
    make_printable(to);
    if (!gv_address_parse(to, &next)) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s says that the session moved to '%.100s', which is no address", a->address.url,
                               to);
    }
    if (++*moves > GV_MOVES_MAX) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the session moved more than %d times in a row, at last from %s to %.100s", GV_MOVES_MAX,
                               a->address.url, to);
    }
    a->address = next;
    return true;
}
