/* Posting and calling: one record out, for a call one answer back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gv_client.h"
#include "session/session_state.h"

/* ---- posting ------------------------------------------------------------------------------------------------------- */

void *session_begin_any(uint16_t op, uint16_t flags, uint32_t ctx, uint32_t body) {
    uint32_t padded = (body + 7u) & ~7u;
    if (body > GV_RECORD_MAX - sizeof(struct gv_record)) {
        session_lost("this client made a record larger than the wire allows", gv_op_name(op));
        return NULL;
    }
    uint64_t blocked_ns = 0;
    struct gv_record *record = gv_send_begin(session.link, (uint32_t)sizeof *record + padded, &blocked_ns);
    if (blocked_ns > SESSION_CONTENTION_NS) session_count_wait(blocked_ns);
    if (!record) {
        session_lost(NULL, gv_op_name(op));
        return NULL;
    }
    uint64_t posted = atomic_load_explicit(&session.posted, memory_order_relaxed); /* nobody else writes it while we have the record */
    atomic_store_explicit(&session.posted, posted + sizeof *record + padded, memory_order_relaxed);
    if (op == GV_OP_LAUNCH)
        atomic_store_explicit(&session.launched, atomic_load_explicit(&session.launched, memory_order_relaxed) + 1, memory_order_relaxed);
    record->op = op;
    record->flags = flags;
    record->ctx = ctx;
    char *start = (char *)(record + 1);
    if (padded) memset(start + padded - 8, 0, 8); /* the padding says nothing of our memory */
    return start;
}

void *session_begin(uint16_t op, uint16_t flags, uint32_t ctx, uint32_t body) {
    if (atomic_load_explicit(&session.broken, memory_order_relaxed)) return NULL;
    throttle_commands();
    return session_begin_any(op, flags, ctx, body);
}

uint64_t session_end(void) { return gv_send_commit(session.link); }

void session_flush(void) {
    if (!session_broken()) gv_send_flush(session.link);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

/* Calls whose answer is awaited, by seq. */
#define REPLY_BUCKETS 64u
static pthread_mutex_t replies = PTHREAD_MUTEX_INITIALIZER;
static struct session_reply *awaited[REPLY_BUCKETS];

void *session_begin_call(uint16_t op, uint32_t ctx, uint32_t body, struct session_reply *reply) {
    reply->seq = 0;
    reply->status = 0;
    reply->text[0] = 0;
    reply->body = NULL;
    reply->body_size = 0;
    reply->op = op;
    reply->next = NULL;
    reply->names_payload = false;
    atomic_init(&reply->answered, 0);
    void *start = session_begin(op, GV_RECORD_SYNC, ctx, body);
    reply->names_payload = start && (op == GV_OP_MODULE_LOAD || op == GV_OP_LINK);
    if (reply->names_payload) reply_payload_call(1);
    return start;
}

uint64_t session_send_call(struct session_reply *reply) {
    /* The seq is known once the record is on its way, and the answer may overtake us: whoever handles it waits for this lock. */
    pthread_mutex_lock(&replies);
    reply->seq = gv_send_commit(session.link);
    if (reply->seq) {
        struct session_reply **bucket = &awaited[reply->seq % REPLY_BUCKETS];
        reply->next = *bucket;
        *bucket = reply;
    }
    pthread_mutex_unlock(&replies);
    return reply->seq;
}

int session_replied(uint64_t answers, int status, const char *text, const void *body, uint32_t size) {
    pthread_mutex_lock(&replies);
    struct session_reply **at = &awaited[answers % REPLY_BUCKETS];
    while (*at && (*at)->seq != answers) at = &(*at)->next;
    struct session_reply *reply = *at;
    if (!reply) {
        pthread_mutex_unlock(&replies);
        return -1;
    }
    *at = reply->next;
    reply->status = status;
    snprintf(reply->text, sizeof reply->text, "%s", text ? text : "");
    if (size <= sizeof reply->small) {
        reply->body = reply->small;
    } else if (!(reply->body = malloc(size))) {
        reply->status = CUDA_ERROR_OUT_OF_MEMORY;
        size = 0;
    }
    if (size) memcpy(reply->body, body, size);
    reply->body_size = size;
    atomic_store(&reply->answered, 1); /* the caller may go on, and its reply with it */
    pthread_mutex_unlock(&replies);
    return 0;
}

int session_wait_until(struct session_reply *reply, int64_t deadline) {
    if (!reply->seq) {
        /* It never went out: only a lost link does that. */
        session_lost(NULL, gv_op_name(reply->op));
        return reply->status = session_broken();
    }
    int outcome = progress_wait(&reply->answered, 1, deadline, gv_op_name(reply->op));
    if (outcome) {
        pthread_mutex_lock(&replies);
        struct session_reply **at = &awaited[reply->seq % REPLY_BUCKETS];
        while (*at && *at != reply) at = &(*at)->next;
        if (*at) *at = reply->next;
        pthread_mutex_unlock(&replies);
        if (!atomic_load(&reply->answered)) return reply->status = outcome;
    }
    return reply->status;
}

int session_wait_call(struct session_reply *reply) {
    int64_t start = session_now();
    int status = session_wait_until(reply, 0);
    session_count_wait((uint64_t)(session_now() - start));
    return status;
}

int session_end_call(struct session_reply *reply) {
    session_send_call(reply);
    return session_wait_call(reply);
}

void session_reply_done(struct session_reply *reply) {
    if (reply->body != reply->small) free(reply->body);
    reply->body = NULL;
    reply->body_size = 0;
    if (reply->names_payload) reply_payload_call(-1);
    reply->names_payload = false;
}
