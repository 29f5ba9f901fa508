/* Payloads that belong to a reply, such as a module's metadata: the worker chose their tags. They are kept until the caller takes them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_state.h"

#define PAYLOAD_MAX (1ull << 30) /* bytes */
#define PAYLOADS_MAX 64

struct payload {
    uint64_t tag, size;
    void *data;
    _Atomic uint64_t ready; /* 0: somebody waits for it, 1: it is here */
    struct payload *next;
};
static pthread_mutex_t payloads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct payload *payloads;
static int n_payloads;

static struct payload **payload_find(uint64_t tag) {
    struct payload **at = &payloads;
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    return at;
}

/* NULL when there are too many, or no memory. */
static struct payload *payload_new(uint64_t tag) {
    struct payload *p = n_payloads < PAYLOADS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->tag = tag;
    p->next = payloads;
    payloads = p;
    n_payloads++;
    return p;
}

const char *reply_payload_receive(const struct gv_bulk_header *header) {
    void *data = header->size <= PAYLOAD_MAX ? malloc(header->size ? header->size : 1) : NULL;
    if (!data) return "a payload too large to keep";
    if (gv_bulk_recv(session.link, data, header->size)) {
        free(data);
        return "";
    }
    const char *why = NULL;
    pthread_mutex_lock(&payloads_lock);
    struct payload *p = *payload_find(header->tag);
    if (!p) p = payload_new(header->tag);
    if (!p || p->data) {
        free(data);
        why = p ? "a payload's tag came twice" : "too many payloads that nobody takes";
    } else {
        p->data = data;
        p->size = header->size;
        atomic_store(&p->ready, 1);
    }
    pthread_mutex_unlock(&payloads_lock);
    return why;
}

int session_take_payload(uint64_t tag, void *dst, uint64_t size) {
    pthread_mutex_lock(&payloads_lock);
    struct payload *p = *payload_find(tag);
    if (!p) p = payload_new(tag);
    pthread_mutex_unlock(&payloads_lock);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    int outcome = progress_wait(&p->ready, 1, 0, "the load of a module");
    if (outcome) return outcome;
    pthread_mutex_lock(&payloads_lock);
    *payload_find(tag) = p->next;
    n_payloads--;
    pthread_mutex_unlock(&payloads_lock);
    bool right = p->data && p->size == size;
    if (right) memcpy(dst, p->data, size);
    free(p->data);
    free(p);
    if (right) return 0;
    session_lost("a payload has not the size its reply named", "the load of a module");
    return session_broken();
}
