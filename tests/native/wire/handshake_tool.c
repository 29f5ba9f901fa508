/* Reads questions about the handshake on stdin, for the test that holds C against Python: one letter, then bytes. MESSAGE is a u32 size and bytes.
 *
 *     g MESSAGE | h MESSAGE | s MESSAGE | w MESSAGE    -> the greeting, hello, state, welcome decoded and encoded again, as MESSAGE; of size 0: malformed
 *     x KEY SHARED GREETING HELLO STATE WELCOME        -> the session key and the link's secret after a key exchange (the proofs are in the messages)
 *     p KEY GREETING HELLO STATE WELCOME               -> the hello with its proof, the welcome with its proof, the session key
 *     v KEY GREETING HELLO STATE WELCOME               -> two of 1 or 0: is the hello proved, is the welcome?
 *
 * A state of size 0 is none. */
#include "../../../native/wire/transcript.h"

#include "../check.h"

struct message {
    uint32_t size;
    uint8_t raw[GV_MESSAGE_MAX];
};

static void get(void *to, size_t size) {
    if (size && fread(to, 1, size, stdin) != size) exit(1);
}

static void put(const void *from, size_t size) { CHECK(fwrite(from, 1, size, stdout) == size); }

static void get_message(struct message *m) {
    get(&m->size, sizeof m->size);
    CHECK(m->size <= sizeof m->raw);
    get(m->raw, m->size);
}

static void put_message(const uint8_t *raw, size_t size) {
    uint32_t n = (uint32_t)size;
    put(&n, sizeof n);
    put(raw, size);
}

static void again(int question) {
    static struct message in;
    static uint8_t raw[GV_MESSAGE_MAX];
    static struct gv_greeting greeting;
    static struct gv_hello hello;
    static struct gv_state state;
    static struct gv_welcome welcome;
    get_message(&in);
    uint8_t *exact = malloc(in.size + 1); /* one byte too far is seen */
    memcpy(exact, in.raw, in.size);
    size_t size = 0;
    if (question == 'g' && gv_greeting_decode(&greeting, exact, in.size)) size = gv_greeting_encode(&greeting, raw);
    if (question == 'h' && gv_hello_decode(&hello, exact, in.size)) size = gv_hello_encode(&hello, raw);
    if (question == 's' && gv_state_decode(&state, exact, in.size)) size = gv_state_encode(&state, raw);
    if (question == 'w' && gv_welcome_decode(&welcome, exact, in.size)) size = gv_welcome_encode(&welcome, raw);
    free(exact);
    put_message(raw, size);
}

static void proofs(bool make) {
    static struct message greeting, hello, state, welcome;
    uint8_t key[GV_SECRET_SIZE], session[GV_SECRET_SIZE];
    struct gv_transcript t;
    get(key, sizeof key);
    get_message(&greeting), get_message(&hello), get_message(&state), get_message(&welcome);
    gv_transcript_begin(&t, greeting.raw, greeting.size);
    if (make) {
        gv_hello_prove(&t, hello.raw, hello.size, key);
    } else {
        put(gv_hello_proved(&t, hello.raw, hello.size, key) ? "1" : "0", 1);
    }
    gv_transcript_add(&t, state.raw, state.size);
    if (make) {
        gv_welcome_prove(&t, welcome.raw, welcome.size, key);
        gv_session_key(&t, key, session);
        put(hello.raw, hello.size), put(welcome.raw, welcome.size), put(session, sizeof session);
    } else {
        put(gv_welcome_proved(&t, welcome.raw, welcome.size, key) ? "1" : "0", 1);
    }
}

static void sealed(void) {
    static struct message m;
    uint8_t key[GV_SECRET_SIZE], shared[GV_SECRET_SIZE], out[2][GV_SECRET_SIZE];
    struct gv_transcript t;
    get(key, sizeof key);
    get(shared, sizeof shared);
    for (int i = 0; i < 4; i++) {
        get_message(&m);
        if (i)
            gv_transcript_add(&t, m.raw, m.size);
        else
            gv_transcript_begin(&t, m.raw, m.size);
    }
    gv_sealed_session_keys(&t, key, shared, out[0], out[1]);
    put(out, sizeof out);
}

int main(void) {
    int question;
    while ((question = getchar()) != EOF) {
        if (question == 'x')
            sealed();
        else if (question == 'p' || question == 'v')
            proofs(question == 'p');
        else
            again(question);
    }
    return 0;
}
