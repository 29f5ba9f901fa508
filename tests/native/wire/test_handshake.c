/* The handshake's messages and proofs: what one side alters on the way is found by both. */
#include "../../../native/wire/transcript.h"

#include "../../../native/wire/record.h"
#include "../check.h"

static const uint8_t key[GV_SECRET_SIZE] = {1, 2, 3};

/* What passed on one connection, as each side saw it. */
enum { GREETING, HELLO, STATE, WELCOME, MESSAGES };
struct seen {
    uint8_t raw[GV_MESSAGE_MAX];
    size_t size;
};

static struct gv_greeting a_greeting(void) {
    struct gv_greeting g = {.version_min = GV_WIRE_VERSION, .version_max = GV_WIRE_VERSION, .flags = 1, .control_port = 7071};
    memset(g.nonce, 5, sizeof g.nonce);
    strcpy(g.boot_id, "b0070000-0000-4000-8000-000000000000");
    strcpy(g.unix_path, "/run/user/1000/gpuvirt/7070.sock");
    strcpy(g.server_name, "box");
    return g;
}

static struct gv_hello a_hello(void) {
    struct gv_hello h = {
        .purpose = GV_HELLO_SESSION, .gpus = 2, .memory = 1 << 30, .pid = 99, .transports = {.n = 2, .at = {{3, "shm"}, {4, "tcp"}}}};
    memset(h.nonce, 6, sizeof h.nonce);
    memset(h.token_id, 7, sizeof h.token_id);
    strcpy(h.program, "python");
    h.key_exchange.size = 32;
    memset(h.key_exchange.data, 9, 32);
    return h;
}

static struct gv_welcome a_welcome(void) {
    struct gv_welcome w = {.session = 0x1122334455667788, .transport = {3, "shm"}, .descriptors = 1, .connections = 16, .grace_s = 60};
    w.blob.size = 32;
    memset(w.blob.data, 8, 32);
    return w;
}

/* One handshake through `relay`, which may alter a message on its way. How far it came: 0: the client does not take the greeting, 1: the server does not
 * take the hello, 2: the client does not take what comes then, 3: both are through. */
static int shake(void (*relay)(int which, struct seen *m)) {
    static struct seen at_client[MESSAGES], at_server[MESSAGES];
    struct gv_transcript client, server;
    static struct gv_greeting g;
    static struct gv_hello h;
    static struct gv_state s;
    static struct gv_welcome w;
    g = a_greeting(), h = a_hello(), w = a_welcome();
    struct gv_head head;
    at_server[GREETING].size = gv_greeting_encode(&g, at_server[GREETING].raw);
    gv_transcript_begin(&server, at_server[GREETING].raw, at_server[GREETING].size);
    at_client[GREETING] = at_server[GREETING];
    relay(GREETING, &at_client[GREETING]);
    if (gv_greeting_head(at_client[GREETING].raw, &head) != GV_HEAD_GOOD) return 0;
    if (!gv_greeting_decode(&g, at_client[GREETING].raw, at_client[GREETING].size)) return 0;
    gv_transcript_begin(&client, at_client[GREETING].raw, at_client[GREETING].size);

    at_client[HELLO].size = gv_hello_encode(&h, at_client[HELLO].raw);
    gv_hello_prove(&client, at_client[HELLO].raw, at_client[HELLO].size, key);
    at_server[HELLO] = at_client[HELLO];
    relay(HELLO, &at_server[HELLO]);
    if (!gv_hello_decode(&h, at_server[HELLO].raw, at_server[HELLO].size)) return 1;
    if (!gv_hello_proved(&server, at_server[HELLO].raw, at_server[HELLO].size, key)) return 1;

    s = (struct gv_state){.state = GV_STATE_WAITING, .place = 2, .queued = 3};
    at_server[STATE].size = gv_state_encode(&s, at_server[STATE].raw);
    gv_transcript_add(&server, at_server[STATE].raw, at_server[STATE].size);
    at_server[WELCOME].size = gv_welcome_encode(&w, at_server[WELCOME].raw);
    gv_welcome_prove(&server, at_server[WELCOME].raw, at_server[WELCOME].size, key);
    at_client[STATE] = at_server[STATE], at_client[WELCOME] = at_server[WELCOME];
    relay(STATE, &at_client[STATE]);
    relay(WELCOME, &at_client[WELCOME]);
    if (!gv_state_decode(&s, at_client[STATE].raw, at_client[STATE].size)) return 2;
    gv_transcript_add(&client, at_client[STATE].raw, at_client[STATE].size);
    if (!gv_welcome_decode(&w, at_client[WELCOME].raw, at_client[WELCOME].size)) return 2;
    if (!gv_welcome_proved(&client, at_client[WELCOME].raw, at_client[WELCOME].size, key)) return 2;

    uint8_t ours[GV_SECRET_SIZE], theirs[GV_SECRET_SIZE];
    gv_session_key(&client, key, ours);
    gv_session_key(&server, key, theirs);
    CHECK(memcmp(ours, theirs, sizeof ours) == 0);
    return 3;
}

static int target, position, bit;
static size_t sizes[MESSAGES];

static void faithful(int which, struct seen *m) { sizes[which] = m->size; }

static void flip(int which, struct seen *m) {
    if (which == target) m->raw[position] ^= (uint8_t)(1 << bit);
}

static void an_honest_one(void) { CHECK(shake(faithful) == 3); }

/* Every bit of every message in turn. */
static void every_bit(void) {
    static const int most[MESSAGES] = {1, 1, 2, 2};
    CHECK(shake(faithful) == 3);
    int flips = 0;
    for (target = 0; target < MESSAGES; target++) {
        for (position = 0; position < (int)sizes[target]; position++) {
            for (bit = 0; bit < 8; bit++, flips++) {
                int came = shake(flip);
                if (came > most[target]) fprintf(stderr, "message %d, byte %d, bit %d: came to %d\n", target, position, bit, came);
                CHECK(came <= most[target]);
            }
        }
    }
    CHECK(flips > 5000);
    printf("%d flips\n", flips);
}

/* What a message carries comes out again; a field at its largest, too. */
static void all_fields(void) {
    static struct gv_hello in, out;
    static uint8_t raw[GV_MESSAGE_MAX];
    in = a_hello();
    in.channel = 3, in.session = UINT64_MAX, in.epoch = 4, in.flags = 1, in.priority = -100, in.wait_ms = UINT32_MAX;
    memset(in.program, 'p', sizeof in.program - 1);
    memset(in.launch, 4, sizeof in.launch);
    memset(in.process, 5, sizeof in.process);
    memset(in.exec_id, 6, sizeof in.exec_id);
    memset(in.lease, 7, sizeof in.lease);
    in.key_exchange.size = GV_KEY_EXCHANGE_MAX;
    in.transports.n = GV_TRANSPORTS_MAX;
    for (uint32_t i = 0; i < GV_TRANSPORTS_MAX; i++) {
        in.transports.at[i].needs = i;
        memset(in.transports.at[i].name, 'a' + (int)i, GV_TRANSPORT_NAME - 1);
        in.transports.at[i].name[GV_TRANSPORT_NAME - 1] = 0;
    }
    CHECK(gv_hello_decode(&out, raw, gv_hello_encode(&in, raw)) && memcmp(&in, &out, sizeof in) == 0);
    static struct gv_welcome win, wout;
    win = a_welcome();
    win.status = GV_WELCOME_MOVED;
    memset(win.address, 'x', sizeof win.address - 1);
    memset(win.text, 't', sizeof win.text - 1);
    win.blob.size = GV_BLOB_MAX;
    win.key_exchange.size = GV_KEY_EXCHANGE_MAX;
    CHECK(gv_welcome_decode(&wout, raw, gv_welcome_encode(&win, raw)) && memcmp(&win, &wout, sizeof win) == 0);
    static struct gv_state sin = {.state = GV_STATE_PARKED, .place = 1, .queued = 2, .text = "soon"}, sout;
    CHECK(gv_state_decode(&sout, raw, gv_state_encode(&sin, raw)) && memcmp(&sin, &sout, sizeof sin) == 0);
}

/* Puts a field behind a state's head. */
static size_t with_field(uint8_t *raw, uint16_t tag, uint16_t claims, uint16_t has) {
    static const struct gv_state none = {0};
    size_t size = gv_state_encode(&none, raw);
    memcpy(raw + size, &tag, 2);
    memcpy(raw + size + 2, &claims, 2);
    memset(raw + size + 4, 0, has);
    size += 4u + has;
    uint32_t whole = (uint32_t)size;
    memcpy(raw + 12, &whole, 4);
    return size;
}

static void strange_fields(void) {
    uint8_t raw[GV_MESSAGE_MAX];
    struct gv_state s;
    CHECK(gv_state_decode(&s, raw, with_field(raw, 999, 5, 5)));                    /* not known: skipped */
    CHECK(!gv_state_decode(&s, raw, with_field(raw, 999 | GV_TAG_CRITICAL, 5, 5))); /* must be known */
    CHECK(!gv_state_decode(&s, raw, with_field(raw, 999, 6, 5)));                   /* reaches beyond the message */
    CHECK(!gv_state_decode(&s, raw, with_field(raw, GV_TAG_PLACE, 2, 2)));          /* a number of another size */
    CHECK(!gv_state_decode(&s, raw, with_field(raw, GV_TAG_TEXT, 256, 256)));       /* no room for its NUL */
    CHECK(gv_state_decode(&s, raw, with_field(raw, GV_TAG_TEXT, 255, 255)));
    size_t size = with_field(raw, GV_TAG_PLACE, 4, 4);
    CHECK(gv_state_decode(&s, raw, size));
    memcpy(raw + size, raw + GV_HEAD_SIZE, 8); /* the same field twice */
    uint32_t whole = (uint32_t)size + 8;
    memcpy(raw + 12, &whole, 4);
    CHECK(!gv_state_decode(&s, raw, whole));
    CHECK(!gv_state_decode(&s, raw, whole - 1)); /* the head says another size */
}

static void versions(void) {
    uint8_t raw[GV_MESSAGE_MAX];
    struct gv_head head;
    struct gv_greeting g = a_greeting();
    static const struct {
        uint16_t low, high;
        enum gv_head_verdict verdict;
    } cases[] = {{1, 1, GV_HEAD_OLDER}, {2, 2, GV_HEAD_GOOD}, {1, 3, GV_HEAD_GOOD}, {3, 9, GV_HEAD_NEWER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        g.version_min = cases[i].low, g.version_max = cases[i].high;
        CHECK(gv_greeting_encode(&g, raw) >= GV_GREETING_LEAST);
        CHECK(gv_greeting_head(raw, &head) == cases[i].verdict);
    }
    raw[0] ^= 1;
    CHECK(gv_greeting_head(raw, &head) == GV_HEAD_FOREIGN && gv_message_head(raw, &head) == GV_HEAD_FOREIGN);
    static struct gv_greeting empty = {.version_min = 2, .version_max = 2};
    CHECK(gv_greeting_encode(&empty, raw) == GV_GREETING_LEAST); /* what version 1 waits for */
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"an_honest_one", an_honest_one},   {"every_bit", every_bit}, {"all_fields", all_fields},
        {"strange_fields", strange_fields}, {"versions", versions},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 120);
}
