/* Payloads, out to the client and in from it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server.h"

struct payload {
    uint64_t tag, size;
    uint8_t *data;
    unsigned parts;
    int delay_ms;
    struct payload *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t due = PTHREAD_COND_INITIALIZER;
static struct payload *first, **last = &first;
static struct dice dice;

uint64_t payload_queue(struct dice *d, uint64_t tag, void *data, uint64_t size, int delay_ms) {
    struct payload *p = malloc(sizeof *p);
    *p = (struct payload){.tag = tag, .size = size, .data = data, .parts = size > 4 && roll(d, 3) == 0 && !(tag >> 63) ? 3 : 1, .delay_ms = delay_ms};
    pthread_mutex_lock(&lock);
    *last = p;
    last = &p->next;
    uint64_t number = atomic_fetch_add(&server.bulk_number, p->parts) + p->parts;
    pthread_cond_signal(&due);
    pthread_mutex_unlock(&lock);
    return number;
}

static void keep(void *arg) { (void)arg; }

/* One payload, or what is told to be one. */
static void put(uint64_t tag, const uint8_t *data, uint64_t size) {
    struct gv_link *link = atomic_load(&server.link);
    struct gv_bulk_header h = {.number = ++link->bulk_out, .tag = tag, .size = size, .magic = GV_BULK_MAGIC};
    uint8_t *longer = NULL;
    if (lie(&dice, LIE_PAYLOAD_SIZE)) {
        h.size = odd_number(&dice, size);
        if (data && roll(&dice, 2)) { /* it is as long as it says */
            uint64_t more = 1 + roll(&dice, roll(&dice, 2) ? 100 : 200000);
            longer = malloc(size + more);
            data = memcpy(longer, data, size);
            memset(longer + size, 0xdd, more);
            h.size = size += more;
        }
    }
    if (lie(&dice, LIE_PAYLOAD_TAG)) h.tag = roll(&dice, 3) ? 1 + roll(&dice, tag & 0xffff) : odd_number(&dice, tag) | (uint64_t)roll(&dice, 2) << 63;
    if (lie(&dice, LIE_PAYLOAD_NUMBER)) {
        switch (roll(&dice, 3)) {
        case 0: h.number = odd_number(&dice, h.number); break;
        case 1: h.magic ^= 1u << roll(&dice, 32); break;
        default: h.epoch = 1 + (uint32_t)roll(&dice, 3); break;
        }
    }
    if (link->transport->bulk_part(link, &h, sizeof h, NULL, NULL)) size = 0;
    link->bulk_position += sizeof h;
    static uint8_t zeros[PAYLOAD_ZEROS];
    if (!data && size) {
        gv_bulk_part(link, zeros, size, keep, NULL);
    } else if (size) {
        uint8_t *copy = malloc(size);
        gv_bulk_part(link, memcpy(copy, data, size), size, free, copy);
    }
    free(longer);
}

void *payloads_out(void *arg) {
    (void)arg;
    dice = dice_of(server.plan->seed, 3);
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!first) pthread_cond_wait(&due, &lock);
        struct payload *p = first;
        if (!(first = p->next)) last = &first;
        pthread_mutex_unlock(&lock);
        if (p->delay_ms) usleep((useconds_t)p->delay_ms * 1000);
        uint64_t step = p->parts > 1 ? p->size * 2 / 5 + 1 : p->size, at = 0;
        for (unsigned i = 0; i < p->parts; i++, at += step) put(p->tag, p->data ? p->data + at : NULL, i + 1 < p->parts ? step : p->size - at);
        free(p->data);
        free(p);
    }
    return NULL;
}

void *payloads_in(void *arg) {
    static uint8_t kept[65536];
    struct gv_bulk_header h;
    (void)arg;
    struct gv_link *link = atomic_load(&server.link);
    while (!gv_bulk_recv_header(link, &h))
        for (uint64_t n; h.size; h.size -= n) {
            n = h.size < sizeof kept ? h.size : sizeof kept;
            if (gv_bulk_recv(link, kept, n)) return NULL;
        }
    return NULL;
}
