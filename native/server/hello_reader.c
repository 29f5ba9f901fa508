/* Greets a client and reads its hello. */
#include "hello_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

bool hello_greet(struct hello_reader *r, int fd, const uint8_t *greeting, uint32_t size, uint32_t nonce_at) {
    r->size = GV_HEAD_SIZE;
    if (getrandom(r->nonce, sizeof r->nonce, 0) != (ssize_t)sizeof r->nonce) return false;
    struct iovec parts[] = {
        {(void *)greeting, nonce_at},
        {r->nonce, sizeof r->nonce},
        {(void *)(greeting + nonce_at + sizeof r->nonce), size - nonce_at - sizeof r->nonce},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    /* A fresh socket's buffer takes a whole greeting. */
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

static enum hello_verdict head_came(struct hello_reader *r) {
    struct gv_head head;
    if (gv_message_head(r->head, &head) == GV_HEAD_GOOD) r->size = head.size;
    r->hello = malloc(r->size);
    if (!r->hello) return HELLO_CLOSED;
    memcpy(r->hello, r->head, GV_HEAD_SIZE);
    return r->size == GV_HEAD_SIZE ? HELLO_CAME : HELLO_HEAD;
}

enum hello_verdict hello_read(struct hello_reader *r, int fd) {
    enum hello_verdict verdict = HELLO_MORE;
    for (;;) {
        uint8_t *into = r->hello ? r->hello : r->head;
        ssize_t n = recv(fd, into + r->came, r->size - r->came, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return verdict;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return HELLO_CLOSED;
        r->came += (uint32_t)n;
        if (r->came < r->size) continue;
        if (r->hello) return HELLO_CAME;
        verdict = head_came(r);
        if (verdict != HELLO_HEAD) return verdict;
    }
}

void hello_free(struct hello_reader *r) {
    free(r->hello);
    r->hello = NULL;
}
