/* Answers questions about the handshake on stdin, for the test that holds C against Python: one letter, then the messages' bytes.
 *
 *     h KEY NONCE HELLO             -> the hello with its proof
 *     v KEY NONCE HELLO             -> 1 or 0: is it proved?
 *     w KEY CLIENT SERVER WELCOME   -> the welcome with its proof
 *     x KEY CLIENT SERVER WELCOME   -> 1 or 0
 *     k SECRET SERVER CLIENT ID     -> the session key
 *     g GREETING                    -> verdict, boot_id, unix_path, server_name, each with its NUL */
#include "../../../native/wire/proof.h"

#include "../check.h"

static void get(void *to, size_t size) {
    if (fread(to, 1, size, stdin) != size) exit(1);
}

static void put(const void *from, size_t size) { CHECK(fwrite(from, 1, size, stdout) == size); }

int main(void) {
    int question;
    while ((question = getchar()) != EOF) {
        uint8_t key[32], a[32], b[32];
        struct gv_hello hello;
        struct gv_welcome welcome;
        struct gv_greeting greeting;
        switch (question) {
        case 'h':
        case 'v':
            get(key, 32), get(a, 32), get(&hello, sizeof hello);
            if (question == 'v') {
                put(gv_hello_proved(&hello, key, a) ? "1" : "0", 1);
            } else {
                gv_hello_prove(&hello, key, a);
                put(&hello, sizeof hello);
            }
            break;
        case 'w':
        case 'x':
            get(key, 32), get(a, 32), get(b, 32), get(&welcome, sizeof welcome);
            if (question == 'x') {
                put(gv_welcome_proved(&welcome, key, a, b) ? "1" : "0", 1);
            } else {
                gv_welcome_prove(&welcome, key, a, b);
                put(&welcome, sizeof welcome);
            }
            break;
        case 'k': {
            uint64_t session;
            uint8_t made[32];
            get(key, 32), get(a, 32), get(b, 32), get(&session, sizeof session);
            gv_session_key(made, key, a, b, session);
            put(made, 32);
            break;
        }
        case 'g':
            get(&greeting, sizeof greeting);
            question = (int)gv_greeting_check(&greeting);
            putchar('0' + question);
            if (question == GV_GREETING_FOREIGN) break;
            put(greeting.boot_id, strlen(greeting.boot_id) + 1);
            put(greeting.unix_path, strlen(greeting.unix_path) + 1);
            put(greeting.server_name, strlen(greeting.server_name) + 1);
            break;
        default: return 1;
        }
    }
    return 0;
}
