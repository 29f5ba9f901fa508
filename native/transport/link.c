#define _GNU_SOURCE
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gv_link_init(struct gv_link *link, const struct gv_transport *transport) {
    memset(link, 0, sizeof *link);
    link->transport = transport;
    gv_copies_init(&link->copies);
}

/* ---- death */

void gv_link_kill(struct gv_link *link, const char *why) {
    uint32_t alive = 0;
    if (!atomic_compare_exchange_strong(&link->dead, &alive, 1)) {
        while (atomic_load(&link->dead) == 1) gv_pause(); /* whoever returns from here finds the link dead, with its reason */
        return;
    }
    snprintf(link->death, sizeof link->death, "%s", why && *why ? why : "closed");
    atomic_store(&link->dead, 2);
    link->transport->died(link);
}

void gv_link_kill_errno(struct gv_link *link, const char *what, int error) {
    char reason[100], text[GV_DEATH_TEXT];
    snprintf(text, sizeof text, "%s%s", what, strerror_r(error, reason, sizeof reason));
    gv_link_kill(link, text);
}

bool gv_link_dead(const struct gv_link *link) { return atomic_load_explicit(&link->dead, memory_order_acquire) == 2; }

const char *gv_link_death(const struct gv_link *link) { return gv_link_dead(link) ? link->death : ""; }

/* ---- sending */

struct gv_record *gv_send_begin(struct gv_link *link, uint32_t size, uint64_t *blocked_ns) {
    int64_t since = link->transport->admit ? link->transport->admit(link) : 0;
    if (!gv_lock_try(&link->send_lock)) {
        if (blocked_ns && !since) since = gv_now_ns();
        gv_lock_slow(&link->send_lock);
    }
    struct gv_record *record = NULL;
    if (gv_link_dead(link)) {
        /* nothing to reserve */
    } else if (size < sizeof *record || size % 8 || size > GV_RECORD_MAX) {
        gv_link_kill(link, "our own side wanted to send a record of an impossible size");
    } else {
        link->blocked_since = 0;
        record = link->transport->reserve(link, size);
        if (!since) since = link->blocked_since;
    }
    if (blocked_ns) *blocked_ns = since ? (uint64_t)(gv_now_ns() - since) : 0;
    link->filling = record;
    link->filling_size = size;
    if (!record) gv_unlock(&link->send_lock);
    return record;
}

uint64_t gv_send_commit(struct gv_link *link) {
    struct gv_record *record = link->filling;
    uint64_t seq = ++link->seq_out;
    record->size = link->filling_size;
    record->epoch = link->epoch;
    record->seq = seq;
    uint64_t bytes = atomic_load_explicit(&link->bytes_out, memory_order_relaxed);
    atomic_store_explicit(&link->bytes_out, bytes + link->filling_size, memory_order_relaxed);
    link->filling = NULL;
    bool much = link->transport->publish(link);
    gv_unlock(&link->send_lock);
    if (much) link->transport->flush(link);
    return seq;
}

void gv_send_flush(struct gv_link *link) {
    if (!gv_link_dead(link)) link->transport->flush(link);
}

/* ---- receiving */

static void malformed(struct gv_link *link, const char *what, uint64_t got, uint64_t expected) {
    char text[GV_DEATH_TEXT];
    snprintf(text, sizeof text, "malformed record: %s %llu, expected %llu", what, (unsigned long long)got, (unsigned long long)expected);
    gv_link_kill(link, text);
}

const struct gv_record *gv_recv_peek(struct gv_link *link) {
    for (;;) {
        if (gv_link_dead(link)) return NULL;
        if (link->peeked) return link->peeked;
        struct gv_record *record = link->transport->next(link);
        if (!record) return NULL;
        uint64_t bytes = atomic_load_explicit(&link->bytes_in, memory_order_relaxed);
        atomic_store_explicit(&link->bytes_in, bytes + record->size, memory_order_relaxed);
        if (record->epoch > link->epoch_limit) {
            malformed(link, "epoch", record->epoch, link->epoch_limit);
            return NULL;
        }
#ifndef GV_BREAK_REPEATED /* Defined by one test only, which shows that it would notice if records that come again were not dropped. */
        if (record->seq <= link->seq_in && record->seq != 0) {
            link->transport->release(link);
            continue;
        }
#endif
        if (record->seq != link->seq_in + 1) {
            malformed(link, "seq", record->seq, link->seq_in + 1);
            return NULL;
        }
        link->seq_in++;
        link->peeked = record;
        return record;
    }
}

void gv_recv_consume(struct gv_link *link) {
    if (!link->peeked) return;
    link->peeked = NULL;
    link->transport->release(link);
}

void gv_recv_wait(struct gv_link *link, int64_t timeout_ns, int64_t spin_ns) {
    if (link->peeked || gv_link_dead(link)) return;
    link->transport->wait(link, timeout_ns < 0 ? INT64_MAX / 4 : timeout_ns, spin_ns);
}

void gv_recv_wake(struct gv_link *link) {
    if (!gv_link_dead(link)) link->transport->wake(link);
}

/* ---- the rest */

void gv_link_fini(struct gv_link *link) { gv_copies_free(&link->copies); }

/* ---- cuts: a link that cannot be cut has none of these */

int gv_link_resume(struct gv_link *link, int channel, int fd, uint32_t epoch) {
    if (link->transport->resume && !atomic_load(&link->held)) return link->transport->resume(link, channel, fd, epoch);
    close(fd);
    return -1;
}

void gv_link_set_grace(struct gv_link *link, int64_t grace_ns) {
    if (link->transport->set_grace) link->transport->set_grace(link, grace_ns);
}

void gv_link_last(struct gv_link *link) {
    if (link->transport->last) link->transport->last(link);
}

void gv_link_client_gone(struct gv_link *link) {
    if (link->transport->client_gone) link->transport->client_gone(link);
}

bool gv_link_down(const struct gv_link *link) { return link->transport->down && !gv_link_dead(link) && link->transport->down(link); }

void gv_link_get_counts(const struct gv_link *link, struct gv_link_counts *counts) {
    memset(counts, 0, sizeof *counts);
    if (link->transport->counts) link->transport->counts(link, counts);
}

int64_t gv_link_rtt_ns(const struct gv_link *link) { return atomic_load(&link->rtt_ns); }
void gv_link_set_rtt(struct gv_link *link, int64_t rtt_ns) { atomic_store(&link->rtt_ns, rtt_ns); }

int gv_link_add_channel(struct gv_link *link, int channel, int fd) { return link->transport->add_channel(link, channel, fd); }
const char *gv_link_transport(const struct gv_link *link) { return link->transport->name; }
const char *gv_link_reason(const struct gv_link *link) { return link->reason; }
const char *gv_link_server(const struct gv_link *link) { return link->server; }
uint64_t gv_link_session(const struct gv_link *link) { return link->session; }
uint64_t gv_link_bytes_out(const struct gv_link *link) { return atomic_load_explicit(&link->bytes_out, memory_order_relaxed); }
uint64_t gv_link_bytes_in(const struct gv_link *link) { return atomic_load_explicit(&link->bytes_in, memory_order_relaxed); }

void gv_link_abandon(struct gv_link *link) {
    /* Only this thread exists in the child, and what another one held when the process forked stays held for ever: nothing here takes a lock. */
    if (link->abandoned) return;
    link->abandoned = true;
    snprintf(link->death, sizeof link->death, "the process forked; the link stays with the parent");
    atomic_store(&link->dead, 2);
    link->transport->abandon(link);
}

void gv_link_close(struct gv_link *link) {
    if (!link || link->abandoned) return;
    void (*closed)(void *arg) = link->closed;
    void *arg = link->closed_arg;
    link->transport->close(link);
    if (closed) closed(arg);
}

void gv_link_offer_memory(struct gv_link *link, const void *at, uint64_t size) {
    if (link->transport->offer_memory && size && !link->abandoned) link->transport->offer_memory(link, at, size);
}

bool gv_link_takes_device_memory(const struct gv_link *link) { return link->transport->offer_device_memory != NULL; }

bool gv_link_offer_device_memory(struct gv_link *link, const void *at, uint64_t size, const struct gv_device_memory *memory) {
    return link->transport->offer_device_memory && size && !link->abandoned && link->transport->offer_device_memory(link, at, size, memory);
}

void gv_link_take_back_memory(struct gv_link *link, const void *at) {
    if (link->transport->take_back_memory && !link->abandoned) link->transport->take_back_memory(link, at);
}
