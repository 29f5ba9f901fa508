/* Opening a link: every way it can fail ends in one line that names the server and what to do. The time limit is the test's (open_ns.h). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "../check.h"
#include "mini_server.h"
#include "pair.h"

/* Every error is one line with the server in it. */
static void check_error(const struct gv_open_error *err, int status, const char *url, const char *text) {
    if (err->status != status) fprintf(stderr, "status %d, text: %s\n", err->status, err->text);
    CHECK(err->status == status);
    CHECK_TEXT(err->text, url);
    CHECK_TEXT(err->text, text);
    for (const char *p = err->text; *p; p++) CHECK((unsigned char)*p >= 32);
}

static void refused(enum fault fault, const char *link, int status, const char *text) {
    struct mini_server server;
    struct gv_open_error err;
    int before = open_descriptors();
    mini_start(&server, fault);
    struct gv_link_options options = mini_options(&server, link);
    CHECK(gv_link_connect(&options, &err) == NULL);
    check_error(&err, status, server.url, text);
    mini_stop(&server);
    CHECK(open_descriptors() == before);
}

/* ---- it works */

static void works(enum fault fault, const char *asked, const char *got) {
    struct mini_server server;
    struct gv_open_error err;
    int before = open_descriptors();
    mini_start(&server, fault);
    struct gv_link_options options = mini_options(&server, asked);
    options.memory = 123;
    struct pair p = {.client = gv_link_connect(&options, &err)};
    if (!p.client) fprintf(stderr, "%s\n", err.text);
    CHECK(p.client);
    CHECK(strcmp(gv_link_transport(p.client), got) == 0 && strcmp(gv_link_server(p.client), server.url) == 0);
    CHECK(gv_link_session(p.client) == 0x1122334455667788u);
    CHECK(server.hello.gpus == 2 && server.hello.memory == 123 && server.hello.flags == 0);
    CHECK(server.hello.pid == (uint32_t)getpid() && strcmp(server.hello.program, "test") == 0 && server.hello.user[0] && server.hello.host[0]);
    p.worker = mini_worker(&server);
    CHECK(send_numbered(p.client, 8, 1) && send_numbered(p.worker, 16, 1));
    gv_send_flush(p.client);
    gv_send_flush(p.worker);
    CHECK(receive_numbered(p.worker, 1) == 8 && receive_numbered(p.client, 1) == 16);
    if (fault == NO_FAULT) {
        struct gv_bulk_header h;
        char text[6] = "";
        CHECK(gv_bulk_send(p.client, 3, "hello", 5) == 1 && gv_bulk_recv_header(p.worker, &h) == 0);
        CHECK(h.tag == 3 && h.size == 5 && gv_bulk_recv(p.worker, text, 5) == 0 && strcmp(text, "hello") == 0);
    }
    /* The server's thread must be through with the worker's link before it goes. */
    while (strcmp(got, "tcp") == 0 && !atomic_load(&server.channels)) usleep(1000);
    mini_close(&server, &p);
    mini_stop(&server);
    CHECK(open_descriptors() == before);
}

static void tcp_works(void) { works(NO_FAULT, "tcp", "tcp"); }
static void shm_works(void) { works(NO_FAULT, "shm", "shm"); }
static void auto_takes_shm(void) {
    works(NO_FAULT, "auto", "shm");
    works(NO_FAULT, NULL, "shm");
    works(NO_FAULT, "", "shm");
    works(TWO_MEMORIES, "auto", "shm");
}

/* Where shared memory cannot be had, `auto` is TCP. */
static void auto_takes_tcp(void) {
    static const enum fault reasons[] = {OTHER_HOST, NO_UNIX, LOST_UNIX};
    for (size_t i = 0; i < 3; i++) {
        struct mini_server server;
        struct gv_open_error err;
        mini_start(&server, reasons[i]);
        struct gv_link_options options = mini_options(&server, "auto");
        /* This server keeps its fault in the channel as well and does not adopt it: it is the session that counts. */
        struct gv_link *link = gv_link_connect(&options, &err);
        CHECK(link && strcmp(gv_link_transport(link), "tcp") == 0);
        gv_link_close(link);
        mini_stop(&server);
    }
}

/* ---- the greeting */

static void no_server(void) {
    struct gv_open_error err;
    int fds[2];
    tcp_sockets(fds); /* a port that was just given back: nobody listens there */
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    CHECK(getpeername(fds[0], (struct sockaddr *)&at, &size) == 0);
    close(fds[0]);
    close(fds[1]);
    char url[64];
    uint8_t key[32] = {0};
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    struct gv_link_options options = {.pool = url, .token_id = key, .secret = key};
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_UNREACHABLE, url, "no gpuvirt server answers at");
    CHECK_TEXT(err.text, "gpuvirt serve --listen");
    options.pool = "tcp://no-such-host.invalid:7070";
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_UNREACHABLE, "no-such-host.invalid", "is not known");
    options.pool = "tcp://[ffff::1]:7070";
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_UNREACHABLE, "tcp://[ffff::1]:7070", "cannot reach");
}

/* A host that does not even refuse: a listener whose backlog is full drops what else comes. */
static void no_answer_to_connect(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fillers[8];
    CHECK(bind(listening, (struct sockaddr *)&at, sizeof at) == 0 && listen(listening, 0) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&at, &size) == 0);
    for (int i = 0; i < 8; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK(connect(fillers[i], (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
    }
    char url[64];
    uint8_t key[32] = {0};
    struct gv_open_error err;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    struct gv_link_options options = {.pool = url, .token_id = key, .secret = key};
    atomic_store(&test_open_ns, 700000000);
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_UNREACHABLE, url, "no answer from");
    for (int i = 0; i < 8; i++) close(fillers[i]);
    close(listening);
}

static void silent_server(void) { refused(SILENT, "auto", GV_OPEN_PROTOCOL, "says nothing"); }
static void hangs_up(void) { refused(HANGS_UP, "auto", GV_OPEN_PROTOCOL, "hung up before greeting"); }
static void garbage_server(void) { refused(GARBAGE, "auto", GV_OPEN_PROTOCOL, "is not a gpuvirt server; check the port"); }
static void other_version(void) {
    refused(NEWER, "auto", GV_WELCOME_VERSION, "this client is older than the server");
    refused(NEWER, "auto", GV_WELCOME_VERSION, "it speaks wire version 2 and the server version 3; install the server's gpuvirt here");
    refused(OLDER, "auto", GV_WELCOME_VERSION, "is older than this client: it speaks wire version 1 and the client version 2; install the client's");
}

static void reset_in_greeting(void) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, RESETS);
    struct gv_link_options options = mini_options(&server, "tcp");
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_PROTOCOL, server.url, "before greeting");
    mini_stop(&server);
}

/* ---- shm asked for where it cannot be had */

static void shm_other_host(void) { refused(OTHER_HOST, "shm", GV_OPEN_USAGE, "needs the server on this host"); }
static void shm_not_offered(void) { refused(NO_UNIX, "shm", GV_OPEN_USAGE, "does not offer the link shm; use --link auto"); }
static void shm_unreachable(void) { refused(LOST_UNIX, "shm", GV_OPEN_UNREACHABLE, ".sock? of the server"); }

/* ---- the welcome */

static void wrong_token(void) {
    struct mini_server server;
    struct gv_open_error err;
    uint8_t other[GV_SECRET_SIZE] = {3};
    mini_start(&server, NO_FAULT);
    struct gv_link_options options = mini_options(&server, "tcp");
    options.secret = other;
    CHECK(!gv_link_connect(&options, &err)); /* a real refusal: the proof does not hold */
    check_error(&err, GV_WELCOME_DENIED, server.url, "the token is not known here");
    CHECK_TEXT(err.text, "GPUVIRT_TOKEN");
    mini_stop(&server);
    refused(WRONG_TOKEN, "shm", GV_WELCOME_DENIED, "gpuvirt token show");
}

static void no_answer(void) { refused(NO_ANSWER, "tcp", GV_OPEN_PROTOCOL, "did not answer within"); }
static void breaks_off(void) { refused(BREAKS_OFF, "auto", GV_OPEN_PROTOCOL, "broke off the handshake"); }
static void busy(void) { refused(BUSY_SERVER, "auto", GV_WELCOME_BUSY, "refused: all taken?[2J?"); }
static void mute_refusal(void) { refused(REFUSES_MUTELY, "auto", GV_OPEN_PROTOCOL, "gives no reason"); }
static void strange_welcome(void) { refused(STRANGE_WELCOME, "tcp", GV_OPEN_PROTOCOL, "is not a gpuvirt server"); }
static void newer_welcome(void) { refused(NEWER_WELCOME, "tcp", GV_WELCOME_VERSION, "answers in wire version 9 and this client speaks version 2"); }

static void unproved(void) {
    refused(UNPROVED, "tcp", GV_OPEN_PROTOCOL, "does not hold the token's secret");
    refused(UNPROVED, "shm", GV_OPEN_PROTOCOL, "does not hold the token's secret");
}

static void not_asked_for(void) {
    refused(OTHER_TRANSPORT, "tcp", GV_OPEN_PROTOCOL, "chose a transport that it was not offered");
    refused(SEALED, "tcp(plain)", GV_OPEN_PROTOCOL, "wants to seal a link that this client did not ask to seal");
}

/* ---- not yet, and elsewhere */

static struct notices notices;

static void waits_for_a_gpu(const char *link, uint16_t state, const char *said) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, NO_FAULT);
    server.waits = 4;
    server.state = state;
    struct gv_link_options options = mini_options(&server, link);
    options.notice = take_notice;
    options.notice_arg = &notices;
    notices.n = 0;
    struct pair p = {gv_link_connect(&options, &err), NULL};
    if (!p.client) fprintf(stderr, "%s\n", err.text);
    CHECK(p.client && notices.n == 1); /* told once, however often the server says so */
    CHECK_TEXT(notices.last, said);
    CHECK_TEXT(notices.last, server.url);
    p.worker = mini_worker(&server);
    mini_close(&server, &p);
    mini_stop(&server);
}

static void waits(void) {
    waits_for_a_gpu("tcp", GV_STATE_WAITING, "waiting for a GPU of the server at");
    waits_for_a_gpu("tcp", GV_STATE_WAITING, "place 4 of 7 in the queue");
    waits_for_a_gpu("shm", GV_STATE_WAITING, "place 4 of 7 in the queue");
    waits_for_a_gpu("auto", GV_STATE_PARKED, "bring the session's memory back");
}

/* Two hops. */
static void moved(void) {
    static const char *const links[] = {"tcp", "shm", "auto"};
    for (size_t i = 0; i < 3; i++) {
        struct mini_server servers[3];
        struct gv_open_error err;
        int before = open_descriptors();
        for (int k = 0; k < 3; k++) mini_start(&servers[k], NO_FAULT);
        servers[0].moves_to = servers[1].url;
        servers[1].moves_to = servers[2].url;
        struct gv_link_options options = mini_options(&servers[0], links[i]);
        struct pair p = {gv_link_connect(&options, &err), NULL};
        if (!p.client) fprintf(stderr, "%s\n", err.text);
        CHECK(p.client && strcmp(gv_link_server(p.client), servers[2].url) == 0);
        p.worker = mini_worker(&servers[2]);
        CHECK(send_numbered(p.client, 8, 1));
        gv_send_flush(p.client);
        CHECK(receive_numbered(p.worker, 1) == 8);
        while (i == 0 && !atomic_load(&servers[2].channels)) usleep(1000);
        mini_close(&servers[2], &p);
        for (int k = 0; k < 3; k++) mini_stop(&servers[k]);
        CHECK(open_descriptors() == before);
    }
}

static void moves_on_and_on(void) {
    struct mini_server server;
    struct gv_open_error err;
    mini_start(&server, NO_FAULT);
    server.moves_to = server.url;
    struct gv_link_options options = mini_options(&server, "tcp");
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_PROTOCOL, server.url, "moved more than 4 times in a row");
    CHECK(atomic_load(&server.sessions) == GV_MOVES_MAX + 1);
    server.moves_to = "the moon\x1b";
    CHECK(!gv_link_connect(&options, &err));
    check_error(&err, GV_OPEN_PROTOCOL, server.url, "moved to 'the moon?', which is no address");
    mini_stop(&server);
}

static void no_channels(void) { refused(NO_CHANNELS, "tcp", GV_OPEN_PROTOCOL, "offers no bulk channel"); }

static void bad_memory(void) {
    refused(NO_MEMORY, "shm", GV_OPEN_PROTOCOL, "it sent 0 of 1 descriptors");
    refused(SHORT_MEMORY, "shm", GV_OPEN_PROTOCOL, "is not as large as its rings");
    refused(UNSEALED_MEMORY, "shm", GV_OPEN_PROTOCOL, "is not sealed");
    refused(ODD_RINGS, "auto", GV_OPEN_PROTOCOL, "are not powers of two");
    refused(MEMORY_AND_EOF, "shm", GV_OPEN_PROTOCOL, "broke off");
}

/* Bulk channels are opened behind the caller's back; without a grace period the session ends with the first that fails. */
static void dies(enum fault fault, const char *text) {
    struct mini_server server;
    struct gv_open_error err;
    int before = open_descriptors();
    mini_start(&server, fault);
    struct gv_link_options options = mini_options(&server, "tcp");
    struct pair p = {.client = gv_link_connect(&options, &err)};
    CHECK(p.client);
    p.worker = mini_worker(&server);
    struct gv_bulk_header header;
    CHECK(gv_bulk_recv_header(p.client, &header) == -1 && gv_link_dead(p.client));
    CHECK_TEXT(gv_link_death(p.client), text);
    mini_close(&server, &p);
    mini_stop(&server);
    CHECK(open_descriptors() == before);
}

static void bad_channel(void) {
    dies(CHANNEL_REFUSED, "no such session");
    dies(CHANNEL_UNPROVED, "does not hold the token's secret");
    dies(CHANNEL_GARBAGE, "is not a gpuvirt server");
    dies(CHANNEL_NO_LISTENER, "no gpuvirt server answers");
}

/* ---- our own side */

static void bad_usage(void) {
    static const char *pools[] = {"",
                                  "127.0.0.1:7070",
                                  "http://h:1",
                                  "tcp://",
                                  "tcp://h",
                                  "tcp://h:",
                                  "tcp://h:0",
                                  "tcp://h:65536",
                                  "tcp://h:123456",
                                  "tcp://h:12x",
                                  "tcp://:12",
                                  "tcp://[::1:12",
                                  "tcp://[::1]12",
                                  "tcp://[]:12",
                                  "tcp://h:1,tcp://i:2",
                                  "tcp://a b\n:1/x"};
    uint8_t key[32] = {0};
    struct gv_open_error err;
    struct gv_link_options options = {.token_id = key, .secret = key};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        options.pool = pools[i];
        CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_USAGE);
        CHECK_TEXT(err.text, "write tcp://HOST:PORT");
    }
    char longest[400] = "tcp://";
    memset(longest + 6, 'h', 300);
    strcpy(longest + 306, ":1");
    options.pool = longest;
    CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_USAGE);
    options.pool = NULL;
    CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_USAGE);
    options.pool = "tcp://127.0.0.1:1";
    options.link = "pigeon";
    CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_USAGE);
    CHECK_TEXT(err.text, "'pigeon' is not a link; write auto, shm, tcp");
    options.secret = NULL;
    CHECK(!gv_link_connect(&options, &err) && err.status == GV_OPEN_USAGE);
    CHECK_TEXT(err.text, "no token");
}

/* The process has no descriptor left: the remedy is named, and afterwards all is well. */
static void no_descriptors(void) {
    struct mini_server server;
    struct gv_open_error err;
    struct rlimit before, tight;
    mini_start(&server, NO_FAULT);
    struct gv_link_options options = mini_options(&server, "auto");
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    tight = before;
    tight.rlim_cur = (rlim_t)dup(0); /* the lowest free number */
    close((int)tight.rlim_cur);
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    CHECK(!gv_link_connect(&options, &err));
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    check_error(&err, GV_OPEN_LOCAL, server.url, "ulimit -n");
    struct gv_link *link = gv_link_connect(&options, &err);
    CHECK(link);
    gv_link_close(link);
    mini_stop(&server);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"tcp_works", tcp_works},
        {"shm_works", shm_works},
        {"auto_takes_shm", auto_takes_shm},
        {"auto_takes_tcp", auto_takes_tcp},
        {"no_server", no_server},
        {"no_answer_to_connect", no_answer_to_connect},
        {"silent_server", silent_server},
        {"hangs_up", hangs_up},
        {"garbage_server", garbage_server},
        {"other_version", other_version},
        {"reset_in_greeting", reset_in_greeting},
        {"shm_other_host", shm_other_host},
        {"shm_not_offered", shm_not_offered},
        {"shm_unreachable", shm_unreachable},
        {"wrong_token", wrong_token},
        {"no_answer", no_answer},
        {"breaks_off", breaks_off},
        {"busy", busy},
        {"mute_refusal", mute_refusal},
        {"strange_welcome", strange_welcome},
        {"newer_welcome", newer_welcome},
        {"unproved", unproved},
        {"not_asked_for", not_asked_for},
        {"waits", waits},
        {"moved", moved},
        {"moves_on_and_on", moves_on_and_on},
        {"no_channels", no_channels},
        {"bad_memory", bad_memory},
        {"bad_channel", bad_channel},
        {"bad_usage", bad_usage},
        {"no_descriptors", no_descriptors},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
