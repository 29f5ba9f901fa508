/* From a pool's URL to a link: who is there, which transports are possible, may we, and then the transport that the server chose. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attempt.h"
#include "delay/delay.h"
#include "link.h"
#include "redial.h"
#include "seal/exchange.h"
#include "seal/seal.h"

/* How often a connection that breaks off within the handshake is made anew, and the pause before the first time; each further one is twice as long. */
#define OPEN_TRIES 4
#define OPEN_PAUSE_US 20000

/* What a session's handshake leaves both ends with. */
struct secrets {
    uint8_t key[GV_SECRET_SIZE]; /* of its further connections */
    bool sealed;
    struct gv_link_secret link;
};

static void fill_hello(struct gv_hello *hello, const struct gv_link_options *o, const struct gv_transport **rows, uint32_t n) {
    *hello = (struct gv_hello){
        .purpose = GV_HELLO_SESSION, .gpus = o->gpus, .memory = o->memory, .compute = o->compute, .priority = o->priority, .wait_ms = o->wait_ms};
    if (o->no_wait) hello->flags |= GV_HELLO_NO_WAIT;
    if (o->notices) hello->flags |= GV_HELLO_NOTICES;
    memcpy(hello->launch, o->launch, sizeof hello->launch);
    memcpy(hello->lease, o->lease, sizeof hello->lease);
    memcpy(hello->token_id, o->token_id, GV_TOKEN_ID_SIZE);
    for (uint32_t i = 0; i < n; i++, hello->transports.n++) {
        hello->transports.at[i].needs = rows[i]->needs;
        snprintf(hello->transports.at[i].name, GV_TRANSPORT_NAME, "%s", rows[i]->name);
    }
}

/* What reconnecting and further connections need. NULL: no memory. */
static struct gv_redial_target *redial_target(const struct gv_attempt *a, const struct gv_link_options *o, const struct gv_transport *row,
                                              const struct secrets *secrets) {
    struct gv_redial_target *redial = calloc(1, sizeof *redial);
    if (!redial) return NULL;
    pthread_mutex_init(&redial->lock, NULL);
    redial->address = a->address;
    redial->session = a->welcome.session;
    redial->grace_ns = (int64_t)a->welcome.grace_s * 1000000000;
    redial->rtt_ns = a->rtt_ns;
    redial->needs = row->needs;
    redial->spec = a->spec;
    snprintf(redial->spec.transport, sizeof redial->spec.transport, "%s", row->name);
    redial->channels = a->spec.channels ? a->spec.channels : 1;
    if (redial->channels > a->welcome.connections) redial->channels = a->welcome.connections;
    redial->notice = o->notice;
    redial->notice_arg = o->notice_arg;
    snprintf(redial->program, sizeof redial->program, "%s", o->program ? o->program : program_invocation_short_name);
    memcpy(redial->key, secrets->key, sizeof redial->key);
    return redial;
}

/* The row that the server chose, among those that it was offered. */
static const struct gv_transport *chosen(struct gv_attempt *a, const struct gv_transport **rows, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(rows[i]->name, a->welcome.transport.name) == 0) return rows[i];
    gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the server at %s chose a transport that it was not offered", a->address.url);
    return NULL;
}

/* ---- sealing ------------------------------------------------------------------------------------------------------- */

/* Puts an offer into the hello where a transport that it names is sealed, and the user did not ask for a plain link. */
static bool offer_exchange(struct gv_attempt *a, const struct gv_transport **rows, uint32_t n, struct gv_hello *hello,
                           uint8_t secret[GV_CRYPTO_KEY]) {
    char why[GV_DEATH_TEXT];
    bool seals = false;
    for (uint32_t i = 0; i < n; i++) seals = seals || rows[i]->seals;
    if (!seals || a->spec.plain) return true;
    hello->key_exchange.size = GV_EXCHANGE_SIZE;
    if (gv_exchange_offer(secret, hello->key_exchange.data, why)) return true;
    return gv_attempt_fail(a, GV_OPEN_LOCAL, "the link with the server at %s cannot be sealed: %s", a->address.url, why);
}

/* What the welcome makes of the offer. Nothing but a plain link that the user asked for is taken without an answer. */
static bool finish_exchange(struct gv_attempt *a, const struct gv_link_options *o, const struct gv_transport *row, const struct gv_hello *hello,
                            uint8_t secret[GV_CRYPTO_KEY], struct secrets *secrets) {
    const struct gv_key_exchange *answer = &a->welcome.key_exchange;
    uint8_t shared[GV_CRYPTO_KEY];
    char why[GV_DEATH_TEXT] = "its answer has another size";
    const char *url = a->address.url;
    secrets->sealed = row->seals && !a->spec.plain;
    if (!secrets->sealed) {
        gv_session_key(&a->transcript, o->secret, secrets->key);
        return true;
    }
    if (!answer->size) {
        return gv_attempt_fail(a, GV_OPEN_PROTOCOL,
                               "the server at %s does not seal the link; install this client's gpuvirt there, or agree on a plain link: "
                               "--link 'tcp(plain)' here and `gpuvirt serve --plain` there",
                               url);
    }
    bool good = answer->size == GV_EXCHANGE_SIZE && gv_exchange_finish(secret, hello->key_exchange.data, answer->data, shared, why);
    if (good) {
        gv_sealed_session_keys(&a->transcript, o->secret, shared, secrets->key, secrets->link.key);
        secrets->link.cipher = answer->data[0];
    }
    explicit_bzero(shared, sizeof shared);
    return good || gv_attempt_fail(a, GV_OPEN_PROTOCOL, "the link with the server at %s cannot be sealed: %s", url, why);
}

/* A transport that both hosts have and that does not work between them: with `auto` the next one is taken. */
static bool take_another(const struct gv_attempt *a, const struct gv_link_options *o) {
    char text[700];
    snprintf(text, sizeof text, "%s: another link is taken", a->err->text);
    if (o->notice) o->notice(o->notice_arg, text);
    return true;
}

static void say_plain(const struct gv_attempt *a, const struct gv_link_options *o) {
    char text[400];
    if (!o->notice) return;
    snprintf(text, sizeof text, "the link with the server at %s is plain: whoever is on the way can read and change what passes", a->address.url);
    o->notice(o->notice_arg, text);
}

/* ---- the link ------------------------------------------------------------------------------------------------------ */

/* Why a network's link is none that the hosts' own fabric would carry. */
static void why_not_better(const struct gv_attempt *a, char why[GV_DEATH_TEXT]) {
    snprintf(why, GV_DEATH_TEXT, "there is none that is faster");
    for (int i = 0; gv_transports[i]; i++) {
        const struct gv_transport *row = gv_transports[i];
        if (!row->probe || (row->needs & ~a->provides)) continue;
        if (a->failed == row)
            snprintf(why, GV_DEATH_TEXT, "%s does not work between these hosts", row->name);
        else if (a->spec.delayed)
            snprintf(why, GV_DEATH_TEXT, "%s cannot be delayed", row->name);
        else if (row->probe(why))
            snprintf(why, GV_DEATH_TEXT, "the server does not offer %s", row->name);
        return;
    }
}

static void explain(const struct gv_attempt *a, const struct gv_transport *row, char why[GV_DEATH_TEXT]) {
    if (*a->spec.transport)
        snprintf(why, GV_DEATH_TEXT, "--link asks for it");
    else if (row->needs & GV_NEEDS_SAME_HOST)
        snprintf(why, GV_DEATH_TEXT, "client and server are on the same host");
    else if (row->probe)
        snprintf(why, GV_DEATH_TEXT, "both hosts have devices for it, which reach each other");
    else
        why_not_better(a, why);
}

/* What is left of a client's link when it has been closed. */
static void link_closed(void *redial) {
    gv_redial_target_free(redial);
    gv_delay_drain(); /* what was sent last may still be in a delay line */
}

static struct gv_link *make_link(struct gv_attempt *a, const struct gv_link_options *o, const struct gv_transport *row,
                                 const struct secrets *secrets) {
    char why[GV_DEATH_TEXT] = "";
    if (a->passed.n < row->descriptors) snprintf(why, sizeof why, "it sent %u of %u descriptors", a->passed.n, row->descriptors);
    while (a->passed.n > row->descriptors) close(a->passed.fd[--a->passed.n]);
    struct gv_redial_target *redial = redial_target(a, o, row, secrets);
    struct gv_endpoint endpoint = {.fd = a->fd,
                                   .passed = a->passed,
                                   .blob = a->welcome.blob.data,
                                   .blob_size = a->welcome.blob.size,
                                   .connections = a->welcome.connections,
                                   .spec = &a->spec,
                                   .redial = redial,
                                   .seal = secrets->sealed ? &secrets->link : NULL};
    gv_set_blocking(a->fd);
    struct gv_link *link = redial && !*why ? row->connect(&endpoint, why) : NULL;
    if (!link) {
        if (redial && row->probe) a->failed = row;
        a->passed = endpoint.passed; /* connect may have put another descriptor in the place of one */
        gv_attempt_fail(a, redial ? GV_OPEN_PROTOCOL : GV_OPEN_LOCAL, "no %s link with the server at %s: %s; choose another with --link", row->name,
                        a->address.url, redial ? why : "out of memory");
        gv_redial_target_free(redial);
        return NULL;
    }
    a->fd = -1; /* the link's from here on */
    a->passed.n = 0;
    link->closed = link_closed;
    link->closed_arg = redial;
    if (!*link->server) { /* one that resumes has taken them from `redial`: its thread may be reading them */
        link->session = a->welcome.session;
        snprintf(link->server, sizeof link->server, "%s", a->address.url);
    }
    explain(a, row, link->reason);
    gv_link_set_rtt(link, a->rtt_ns);
    if (row->seals && !secrets->sealed) say_plain(a, o);
    return link;
}

/* The rows without the one that failed, and without those that a delay is no delay for: how many are left. */
static uint32_t possible(const struct gv_attempt *a, const struct gv_transport **rows, uint32_t n) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i] != a->failed && !(a->spec.delayed && rows[i]->undelayed)) rows[left++] = rows[i];
    return left;
}

/* The connection that the preferred one of the possible transports needs. With `auto` a unix socket that cannot be reached (another container, another
 * user's folder) means the network. */
static bool choose_connection(struct gv_attempt *a, const struct gv_transport **rows, uint32_t *n) {
    *n = gv_transports_usable(a->spec.transport, gv_attempt_provides(a), rows);
    const struct gv_transport *first = *n ? rows[0] : gv_transport_named(a->spec.transport);
    if (first && (first->needs & GV_NEEDS_DESCRIPTORS)) {
        int before = a->fd;
        if (!gv_attempt_change_to_unix(a, first->name) && (a->fd != before || *a->spec.transport)) return false;
    }
    *n = possible(a, rows, gv_transports_usable(a->spec.transport, a->provides, rows));
    if (*n) return true;
    return gv_attempt_fail(a, GV_OPEN_USAGE, "no link of this client leads to the server at %s; use --link auto", a->address.url);
}

/* One connection. NULL with a welcome that says MOVED, or with `err` filled in. */
static struct gv_link *attempt(struct gv_attempt *a, const struct gv_link_options *o, bool *moved) {
    const struct gv_transport *rows[GV_TRANSPORTS_MAX], *row;
    uint32_t n;
    struct gv_hello hello;
    struct secrets secrets = {0};
    struct gv_link *link = NULL;
    uint8_t secret[GV_CRYPTO_KEY]; /* of the exchange, for this attempt only */
    if (!gv_attempt_dial(a) || !choose_connection(a, rows, &n)) return NULL;
    fill_hello(&hello, o, rows, n);
    a->until = gv_now_ns() + OPEN_NS; /* the worker may still have to start */
    if (offer_exchange(a, rows, n, &hello, secret) && gv_attempt_shake(a, &hello, o->program, o->secret)) {
        *moved = a->welcome.status == GV_WELCOME_MOVED;
        if (!*moved && (row = chosen(a, rows, n)) && finish_exchange(a, o, row, &hello, secret, &secrets)) link = make_link(a, o, row, &secrets);
    }
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(&secrets, sizeof secrets);
    return link;
}

struct gv_link *gv_link_connect(const struct gv_link_options *options, struct gv_open_error *err) {
    struct gv_attempt a = {.err = err, .notice = options->notice, .notice_arg = options->notice_arg, .fd = -1};
    char wrong[GV_LINK_ERROR_TEXT];
    memset(err, 0, sizeof *err);
    if (!options->token_id || !options->secret) {
        gv_attempt_fail(&a, GV_OPEN_USAGE, "no token; set GPUVIRT_TOKEN to what `gpuvirt token show` prints on the server");
        return NULL;
    }
    if (!gv_link_spec_parse(options->link, &a.spec, wrong)) {
        gv_attempt_fail(&a, GV_OPEN_USAGE, "%s", wrong);
        return NULL;
    }
    if (!gv_address_parse(options->pool, &a.address)) {
        gv_attempt_fail(&a, GV_OPEN_USAGE, "'%.200s' is not a pool; write tcp://HOST:PORT", options->pool ? options->pool : "");
        return NULL;
    }
    /* A connection may be cut within the handshake as well as afterwards. What listens there and is no server hangs up each time. */
    struct gv_link *link = NULL;
    const struct gv_transport *failed = NULL;
    int tries = 0, moves = 0;
    int64_t lost_at = 0; /* when the server was lost that had let us wait */
    for (bool again = true; again; tries++) {
        bool moved = false;
        if (tries) usleep(OPEN_PAUSE_US << (tries < OPEN_TRIES ? tries : OPEN_TRIES));
        a.until = gv_now_ns() + OPEN_NS;
        a.broke_off = a.waits = a.told = false;
        link = attempt(&a, options, &moved);
        again = !link && a.broke_off && tries + 1 < OPEN_TRIES;
        if (!link && a.failed && a.failed != failed && !*a.spec.transport) again = take_another(&a, options);
        failed = a.failed;
        if (!link && a.broke_off && a.waits) lost_at = gv_now_ns();
        if (!link && lost_at && (a.broke_off || err->status == GV_OPEN_UNREACHABLE)) again = gv_now_ns() - lost_at < RESTART_NS;
        if (moved && (again = gv_attempt_follow(&a, &moves))) tries = -1;
        gv_attempt_close(&a);
    }
    return link;
}
