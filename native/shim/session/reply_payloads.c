/* Payloads that belong to a reply, such as a module's metadata: the worker chose their tags. They are kept until the caller takes them. A call brings one at
 * most, so that a server can make this process keep no more of them than there are such calls under way. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_state.h"

#define PAYLOAD_MAX (1ull << 30) /* bytes */

struct payload {
    uint64_t tag, size;
    void *data;
    _Atomic uint64_t ready; /* 0: somebody waits for it, 1: it is here */
    bool taken;             /* an answer has named it */
    struct payload *next;
};
static pthread_mutex_t payloads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct payload *payloads;
static unsigned n_payloads, n_calls;

static struct payload **payload_find(uint64_t tag) {
    struct payload **at = &payloads;
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    return at;
}

static struct payload *payload_new(uint64_t tag) {
    struct payload *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->tag = tag;
    p->next = payloads;
    payloads = p;
    n_payloads++;
    return p;
}

void reply_payload_call(int more) {
    pthread_mutex_lock(&payloads_lock);
    n_calls += (unsigned)more;
    pthread_mutex_unlock(&payloads_lock);
}

/* What is wrong with a payload that comes; NULL: nothing. payloads_lock held. */
static const char *refused(uint64_t tag) {
    const struct payload *p = *payload_find(tag);
    if (p) return p->data ? "a payload's tag came twice" : NULL;
    return n_payloads < n_calls ? NULL : "a payload that nobody asked for";
}

const char *reply_payload_receive(const struct gv_bulk_header *header) {
    pthread_mutex_lock(&payloads_lock);
    const char *why = refused(header->tag);
    pthread_mutex_unlock(&payloads_lock);
    if (why) return why;
    void *data = header->size <= PAYLOAD_MAX ? malloc(header->size ? header->size : 1) : NULL;
    if (!data) return "a payload too large to keep";
    if (gv_bulk_recv(session.link, data, header->size)) {
        free(data);
        return "";
    }
    pthread_mutex_lock(&payloads_lock);
    why = refused(header->tag);
    struct payload *p = why ? NULL : *payload_find(header->tag);
    if (!p && !why && !(p = payload_new(header->tag))) why = "out of memory on this side";
    if (why) {
        free(data);
    } else {
        p->data = data;
        p->size = header->size;
        atomic_store(&p->ready, 1);
    }
    pthread_mutex_unlock(&payloads_lock);
    return why;
}

int session_take_payload(uint64_t tag, void *dst, uint64_t size) {
    static const char during[] = "the load of a module";
    pthread_mutex_lock(&payloads_lock);
    struct payload *p = *payload_find(tag);
    bool wrong = !(tag & GV_BULK_WORKER_TAG) || (p && p->taken);
    if (!wrong && !p) p = payload_new(tag);
    if (!wrong && p) p->taken = true;
    pthread_mutex_unlock(&payloads_lock);
    if (wrong) {
        session_lost("an answer names a payload of another answer", during);
        return session_broken();
    }
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    int outcome = progress_wait(&p->ready, 1, 0, during);
    if (outcome) return outcome;
    pthread_mutex_lock(&payloads_lock);
    *payload_find(tag) = p->next;
    n_payloads--;
    pthread_mutex_unlock(&payloads_lock);
    bool right = p->size == size;
    if (right && size) memcpy(dst, p->data, size);
    free(p->data);
    free(p);
    if (right) return 0;
    session_lost("a payload has not the size its reply named", during);
    return session_broken();
}
