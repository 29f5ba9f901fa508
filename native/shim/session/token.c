/* Tokens: what proves to a server that we may use it. "gpuvirt1." and base64url of 16 bytes name, 32 bytes secret, 32 bytes server key. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session/session_state.h"

#define TOKEN_PREFIX "gpuvirt1."

static int base64url_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

bool token_parse(const char *text, struct token *out) {
    uint8_t bytes[sizeof *out];
    size_t n = 0;
    uint32_t bits = 0;
    int n_bits = 0;
    if (strncmp(text, TOKEN_PREFIX, sizeof TOKEN_PREFIX - 1) != 0) return false;
    for (text += sizeof TOKEN_PREFIX - 1; *text && !strchr("=\r\n \t", *text); text++) {
        int digit = base64url_digit(*text);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        if (n == sizeof bytes) return false;
        bytes[n++] = (uint8_t)(bits >> n_bits);
    }
    if (n != sizeof bytes || text[strspn(text, "=\r\n \t")]) return false;
    memcpy(out, bytes, sizeof bytes);
    return true;
}

/* PORT of "tcp://HOST:PORT". */
static bool pool_port(const char *pool, char *port, size_t room) {
    const char *colon = strrchr(pool, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    if (!digits || digits >= room || strspn(colon + 1 + digits, "/") != strlen(colon + 1 + digits)) return false;
    memcpy(port, colon + 1, digits);
    port[digits] = 0;
    return true;
}

/* The token in a file that is ours alone. False: not there, or not to be trusted (err says which, "" for not there). */
static bool token_read(const char *path, struct token *out, char *err) {
    *err = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    struct stat st;
    char text[256];
    ssize_t n = -1;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        snprintf(err, 512, "%s is not used: it must be a file of yours that nobody else may read", path);
    else
        n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 0) return false;
    text[n] = 0;
    if (token_parse(text, out)) return true;
    snprintf(err, 512, "%s holds no token", path);
    return false;
}

bool token_find(const char *pool, struct token *out, char *err) {
    char port[8], path[512];
    const char *given = shim_setting("TOKEN", NULL);
    if (given) {
        if (token_parse(given, out)) return true;
        snprintf(err, 512, "GPUVIRT_TOKEN is not a token: it begins with \"" TOKEN_PREFIX "\", as `gpuvirt token show` prints it on the server");
        return false;
    }
    *err = 0;
    if (pool_port(pool, port, sizeof port)) {
        const char *runtime = shim_folder_setting("XDG_RUNTIME_DIR");
        if (runtime) {
            snprintf(path, sizeof path, "%s/gpuvirt/%s.token", runtime, port);
            if (token_read(path, out, err)) return true;
        }
        char why[512];
        snprintf(path, sizeof path, "/tmp/gpuvirt-%u/%s.token", (unsigned)geteuid(), port);
        if (token_read(path, out, why)) return true;
        if (!*err) snprintf(err, 512, "%s", why);
    }
    if (!*err) snprintf(err, 512, "it asks for a token and GPUVIRT_TOKEN is not set: take it from `gpuvirt token show` on the server");
    return false;
}
