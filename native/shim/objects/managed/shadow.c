#include "objects/managed/shadow.h"

#include <stdlib.h>
#include <string.h>

#include "objects/managed/managed.h"
#include "objects/managed/region.h"
#include "objects/managed/transfer.h"

#define BLOCK 4096ull    /* bytes that are compared at a time */
#define PIECE (4u << 20) /* bytes that are sent at a time at most */
#define STORE 4u         /* bytes that are sent together, no half of a number, where the device may have changed others beside them */

struct shadow {
    struct shadow *next;
    struct shim_context *context;
    char *host;
    uint64_t device, size;
    char *common;   /* what both sides had last */
    char *incoming; /* what the device has */
    bool sent;      /* the device has anything at all */
    bool written;   /* the device may have changed since it was fetched */
    bool fetching;  /* into `incoming` */
    unsigned users; /* threads that have let go of the lock meanwhile */
    uint64_t sends, launches;
    bool read_only; /* the program says that devices change nothing */
};

_Atomic uint64_t shadows;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken before region_lock */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct shadow *all;

/* Who holds the lock is not throttled: what would end that may wait for the lock. */
static void enter(void) {
    throttle_exempt_begin();
    pthread_mutex_lock(&lock);
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
    throttle_exempt_end();
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- there is one ---- */

static void drop(struct shadow *h) {
    free(h->common);
    free(h->incoming);
    free(h);
    atomic_fetch_sub(&shadows, 1);
    atomic_fetch_sub(&managed_regions, 1);
}

int shadow_add(const struct range *r, uint64_t device) {
    struct shadow *h = calloc(1, sizeof *h);
    if (!h) return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct shadow){.context = r->context, .host = (char *)(uintptr_t)range_base(r), .device = device, .size = r->size};
    h->read_only = r->kind == RANGE_REGISTERED && r->flags & CU_MEMHOSTREGISTER_READ_ONLY;
    h->common = malloc(h->size);
    h->incoming = malloc(h->size);
    int rc = h->common && h->incoming ? transfer_prepare(h->context) : (int)CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&shadows, 1);
    atomic_fetch_add(&managed_regions, 1);
    if (rc) {
        drop(h);
        return rc;
    }
    enter();
    range_set_shadow(range_base(r), device);
    h->next = all;
    all = h;
    leave();
    return 0;
}

bool shadow_contains(uint64_t device) {
    struct range r;
    return shadow_in_use() && range_find_device(device, &r) && r.shadow;
}

uint64_t shadow_of(uint64_t host) {
    struct range r;
    return shadow_in_use() && range_find_host(host, &r) && r.shadow ? r.shadow + (host - range_base(&r)) : 0;
}

/* ---- to the device ---- */

/* On the stream of the fetches: what comes back has what was sent. The stream that needs it waits for it (stream_after_copies). */
static int send(struct shadow *h, uint64_t at, uint64_t n) {
    uint64_t seq;
    h->sends++;
    memcpy(h->common + at, h->host + at, n); /* what is sent is what is noted, whatever the program writes meanwhile */
    return transfer_push(h->context->pages, h->device + at, h->common + at, n, &seq);
}

static bool differ(const struct shadow *h, uint64_t at, uint64_t n) { return memcmp(h->host + at, h->common + at, n) != 0; }

/* Sends what differs in [at, end), bytes of `unit` at a time, in runs of at most PIECE. */
static int send_changes(struct shadow *h, uint64_t at, uint64_t end, uint64_t unit) {
    int rc = 0;
    while (at < end && !rc) {
        uint64_t n = 0;
        while (at + n < end && n < PIECE && (!h->sent || differ(h, at + n, least(unit, end - at - n)))) n = least(n + unit, end - at);
        if (n) rc = send(h, at, n);
        at += n ? n : unit;
    }
    return rc;
}

/* Bytes that the host has not changed are not sent where the device may have other ones there. */
static int push(struct shadow *h) {
    int rc = 0;
    for (uint64_t at = 0; h->written && at < h->size && !rc; at += BLOCK) {
        uint64_t end = least(at + BLOCK, h->size);
        if (differ(h, at, end - at)) rc = send_changes(h, at, end, STORE);
    }
    if (!h->written) rc = send_changes(h, 0, h->size, BLOCK);
    h->sent = true;
    return rc;
}

int shadow_launch(void) {
    if (!shadow_in_use()) return 0;
    int rc = 0;
    enter();
    for (struct shadow *h = all; h && !rc; h = h->next) {
        rc = push(h);
        h->written = true;
        h->launches++;
    }
    leave();
    return rc;
}

int shadow_access(uint64_t device, bool written) {
    if (!shadow_in_use()) return 0;
    int rc = 0;
    enter();
    for (struct shadow *h = all; h && !rc; h = h->next) {
        if (device - h->device >= h->size) continue;
        rc = push(h);
        h->written |= written;
        h->launches += written;
    }
    leave();
    return rc;
}

/* ---- to the host ---- */

/* Takes over what the device has changed and the host has not. */
static void merge(struct shadow *h) {
    for (uint64_t at = 0; at < h->size; at += BLOCK) {
        uint64_t end = least(at + BLOCK, h->size);
        if (!memcmp(h->incoming + at, h->common + at, end - at)) continue;
        for (uint64_t i = at; i < end; i++) {
            if (h->incoming[i] == h->common[i]) continue;
            if (h->host[i] == h->common[i]) h->host[i] = h->incoming[i];
            h->common[i] = h->incoming[i];
        }
    }
}

/* lock held, and let go of while the bytes are on their way: they come behind calls of the driver's that wait for the device, and that may wait for a launch of another thread's.
 * False: what was sent meanwhile would be taken for the device's. */
static bool fetch(struct shadow *h) {
    struct shim_stream *s = h->context->pages;
    uint64_t seq = 0, sends = h->sends;
    h->fetching = true;
    pthread_mutex_unlock(&lock);
    int rc = transfer_fetch(s, h->incoming, h->device, h->size, &seq);
    int status = seq ? session_wait_stream(&s->session, seq) : 0;
    pthread_mutex_lock(&lock);
    h->fetching = false;
    if (rc || status) return true; /* the context has failed, as the program is told */
    if (h->sends != sends) return false;
    merge(h);
    return true;
}

/* lock held. */
static void refresh(struct shadow *h) {
    h->users++;
    while (h->fetching) pthread_cond_wait(&changed, &lock);
    for (bool done = !h->written; !done;) {
        uint64_t newest, passed, launches = h->launches;
        bool posting = atomic_load(&region_posting) != 0;
        stream_progress(&newest, &passed);
        done = fetch(h);
        if (done && h->launches == launches) h->written = posting || passed != UINT64_MAX; /* work that goes on may write after this */
    }
    h->users--;
    pthread_cond_broadcast(&changed);
}

void shadow_waited(void) {
    if (!shadow_in_use()) return;
    enter();
    for (struct shadow *h = all; h; h = h->next)
        if (h->written && !h->read_only) refresh(h);
    leave();
}

/* ---- there is none any more ---- */

static void forget(struct shadow **at) {
    struct shadow *h = *at;
    *at = h->next;
    range_set_shadow((uint64_t)(uintptr_t)h->host, 0);
    drop(h);
}

/* Where the list has the first that is the host's at `host`, or the context's, or its end. lock held, and let go of while another thread uses it. */
static struct shadow **find(uint64_t host, const struct shim_context *c) {
    struct shadow **at = &all;
    while (*at && (uint64_t)(uintptr_t)(*at)->host != host && (*at)->context != c) at = &(*at)->next;
    if (!*at || !(*at)->users) return at;
    pthread_cond_wait(&changed, &lock);
    return find(host, c);
}

void shadow_remove(uint64_t host) {
    shadow_waited();
    enter();
    struct shadow **at = find(host, NULL);
    if (*at) forget(at);
    leave();
}

void shadow_context_gone(const struct shim_context *c) {
    if (!shadow_in_use()) return;
    enter();
    for (struct shadow **at; *(at = find(0, c));) forget(at);
    leave();
}
