/* Who gets a sealed link, who a plain one, and that nobody on the way changes that. This program's tcp is sealed (GV_TCP_SEALS). */
#include "../../../native/transport/seal/exchange.h"
#include "../check.h"
#include "mini_server.h"
#include "pair.h"

static struct notices notices;

/* Both ways, records and a payload. The bulk channel proves the session's key, which both ends derived from what they share. */
static void connects(const char *link, bool sealed) {
    struct mini_server server;
    struct gv_open_error err;
    char text[6] = "";
    mini_start(&server, NO_FAULT);
    struct gv_link_options options = mini_options(&server, link);
    options.notice = take_notice;
    options.notice_arg = &notices;
    notices.n = 0;
    struct pair p = {.client = gv_link_connect(&options, &err)};
    if (!p.client) fprintf(stderr, "%s\n", err.text);
    CHECK(p.client && strcmp(gv_link_transport(p.client), strcmp(link, "shm") == 0 ? "shm" : "tcp") == 0);
    p.worker = mini_worker(&server);
    CHECK(atomic_load(&server.sealed) == sealed && (server.hello.key_exchange.size == GV_EXCHANGE_SIZE) == sealed);
    if (sealed) CHECK(server.hello.key_exchange.data[0] == gv_cipher_preferred() && server.seal.cipher == gv_cipher_preferred());
    CHECK(send_numbered(p.client, 8, 1) && send_numbered(p.worker, 16, 1));
    gv_send_flush(p.client);
    gv_send_flush(p.worker);
    CHECK(receive_numbered(p.worker, 1) == 8 && receive_numbered(p.client, 1) == 16);
    struct gv_bulk_header h;
    CHECK(gv_bulk_send(p.client, 3, "hello", 5) == 1 && gv_bulk_recv_header(p.worker, &h) == 0);
    CHECK(h.tag == 3 && h.size == 5 && gv_bulk_recv(p.worker, text, 5) == 0 && strcmp(text, "hello") == 0);
    mini_close(&server, &p);
    mini_stop(&server);
}

static void sealed_by_default(void) {
    connects("tcp", true);
    CHECK(notices.n == 0);
    connects("tcp(channels=2)", true);
    connects("delay(rtt=2ms,tcp)", true);
}

static void plain_when_asked_for(void) {
    connects("tcp(plain)", false);
    CHECK(notices.n == 1);
    CHECK_TEXT(notices.last, "is plain: whoever is on the way can read and change what passes");
    connects("delay(rtt=2ms,tcp(channels=2,plain))", false);
    CHECK(notices.n == 1);
    connects("shm", false); /* never leaves the host */
    CHECK(notices.n == 0);
}

static void refused(enum fault fault, const char *link, int status, const char *text) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, fault);
    struct gv_link_options options = mini_options(&server, link);
    CHECK(gv_link_connect(&options, &err) == NULL);
    if (err.status != status) fprintf(stderr, "status %d, text: %s\n", err.status, err.text);
    CHECK(err.status == status);
    CHECK_TEXT(err.text, server.url);
    CHECK_TEXT(err.text, text);
    mini_stop(&server);
}

static void bad_answers(void) {
    refused(NO_EXCHANGE, "tcp", GV_OPEN_PROTOCOL, "does not seal the link; install this client's gpuvirt there, or agree on a plain link");
    refused(ODD_EXCHANGE, "tcp", GV_OPEN_PROTOCOL, "cannot be sealed: its answer has another size");
    refused(EMPTY_EXCHANGE, "tcp", GV_OPEN_PROTOCOL, "cannot be sealed: its key is none");
    refused(OTHER_CIPHER, "tcp", GV_OPEN_PROTOCOL, "cannot be sealed: it chose a cipher that it was not offered");
    refused(SEALED, "tcp(plain)", GV_OPEN_PROTOCOL, "wants to seal a link that this client did not ask to seal");
}

/* Whoever takes the offer or the answer out, or puts his own key there, spoils the next proof. */
static void on_the_way(void) {
    refused(STRIPPED_HELLO, "tcp", GV_WELCOME_DENIED, "the token is not known here");
    refused(REPLACED_HELLO, "tcp", GV_WELCOME_DENIED, "the token is not known here");
    refused(STRIPPED_WELCOME, "tcp", GV_OPEN_PROTOCOL, "or the handshake was altered on its way");
    refused(REPLACED_WELCOME, "tcp", GV_OPEN_PROTOCOL, "or the handshake was altered on its way");
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"sealed_by_default", sealed_by_default},
        {"plain_when_asked_for", plain_when_asked_for},
        {"bad_answers", bad_answers},
        {"on_the_way", on_the_way},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
