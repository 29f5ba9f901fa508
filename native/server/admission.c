/* Shares out the connections of a port among the addresses that they come from. */
#include "admission.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUCKETS 1024u
#define FORGET_AT 4096u /* addresses that are remembered for their rates, until those that have recovered are forgotten */

struct admission_group {
    struct admission_address address;
    struct admission_group *next; /* in its bucket */
    struct node places;
    uint32_t n_places;
    int64_t rested;      /* when it may begin a whole burst again */
    struct node waiting; /* places */
    struct node turn;    /* among the groups that have waiting ones */
    struct node crowd;   /* among the groups that have places */
};

struct admission {
    struct admission_limits limits;
    int64_t interval; /* ns between two beginnings of one address */
    uint64_t seed[2];
    struct admission_group *buckets[BUCKETS];
    uint32_t n_groups, forget_at;
    struct node all, turns, crowds;
    uint32_t n_places;
};

struct admission_address admission_address_of(const struct sockaddr_storage *peer) {
    struct admission_address address = {0, 0};
    if (peer->ss_family == AF_INET) {
        address.low = UINT64_C(0xffff00000000) | ntohl(((const struct sockaddr_in *)(const void *)peer)->sin_addr.s_addr);
    } else if (peer->ss_family == AF_INET6) {
        const uint8_t *bytes = ((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr.s6_addr;
        for (int i = 0; i < 8; i++) address.high = address.high << 8 | bytes[i];
        if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)bytes))
            for (int i = 8; i < 16; i++) address.low = address.low << 8 | bytes[i];
    }
    return address;
}

struct admission *admission_new(struct admission_limits limits) {
    struct admission *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->limits = limits;
    a->interval = limits.rate ? 1000000000 / (int64_t)limits.rate : 0;
    a->forget_at = FORGET_AT;
    if (getrandom(a->seed, sizeof a->seed, 0) != (ssize_t)sizeof a->seed) a->seed[0] = (uintptr_t)a;
    list_init(&a->all);
    list_init(&a->turns);
    list_init(&a->crowds);
    return a;
}

void admission_free(struct admission *a) {
    if (!a) return;
    for (uint32_t i = 0; i < BUCKETS; i++)
        while (a->buckets[i]) {
            struct admission_group *g = a->buckets[i];
            a->buckets[i] = g->next;
            free(g);
        }
    free(a);
}

uint32_t admission_count(const struct admission *a) { return a->n_places; }

/* Whoever chooses addresses does not know the seeds, and so not which of them share a bucket. */
static struct admission_group **bucket_of(struct admission *a, struct admission_address address) {
    uint64_t hash = (address.high ^ a->seed[0]) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 29) ^ address.low ^ a->seed[1]) * UINT64_C(0xbf58476d1ce4e5b9);
    return &a->buckets[(hash >> 32) % BUCKETS];
}

/* Forgets the addresses without a connection whose rates have recovered. */
static void forget(struct admission *a, int64_t now) {
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (struct admission_group **at = &a->buckets[i]; *at;) {
            struct admission_group *g = *at;
            if (g->n_places || g->rested > now) {
                at = &g->next;
                continue;
            }
            *at = g->next;
            free(g);
            a->n_groups--;
        }
    a->forget_at = a->n_groups > FORGET_AT / 2 ? 2 * a->n_groups : FORGET_AT;
}

static struct admission_group *group_of(struct admission *a, struct admission_address address, int64_t now) {
    struct admission_group **bucket = bucket_of(a, address);
    for (struct admission_group *g = *bucket; g; g = g->next)
        if (g->address.high == address.high && g->address.low == address.low) return g;
    if (a->n_groups >= a->forget_at) forget(a, now);
    struct admission_group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->address = address;
    g->rested = now;
    list_init(&g->places);
    list_init(&g->waiting);
    list_init(&g->turn);
    list_init(&g->crowd);
    g->next = *bucket;
    *bucket = g;
    a->n_groups++;
    return g;
}

void admission_leave(struct admission *a, struct admission_place *place) {
    struct admission_group *g = place->group;
    if (!g) return;
    list_remove(&place->of_group);
    list_remove(&place->of_all);
    list_remove(&place->waiting);
    if (list_empty(&g->waiting)) list_remove(&g->turn);
    if (!--g->n_places) list_remove(&g->crowd);
    a->n_places--;
    place->group = NULL;
}

static struct admission_place *evict(struct admission *a, struct admission_place *place, int64_t now) {
    if (place->start_at > now) place->group->rested -= a->interval; /* its handshake never began */
    admission_leave(a, place);
    return place;
}

struct admission_place *admission_shed(struct admission *a, int64_t now) {
    if (!a->n_places) return NULL;
    struct admission_group *most = NULL;
    for (struct node *at = a->crowds.next; at != &a->crowds; at = at->next) {
        struct admission_group *g = NODE_OF(at, struct admission_group, crowd);
        if (!most || g->n_places > most->n_places) most = g;
    }
    if (most && most->n_places > 1) return evict(a, NODE_OF(most->places.next, struct admission_place, of_group), now);
    return evict(a, NODE_OF(a->all.next, struct admission_place, of_all), now);
}

struct admission_place *admission_enter(struct admission *a, struct admission_place *place, struct admission_address address, int64_t now) {
    struct admission_group *g = group_of(a, address, now);
    if (!g) return place;
    struct admission_place *goes = NULL;
    if (!list_empty(&g->places) && g->n_places >= a->limits.share) {
        goes = evict(a, NODE_OF(g->places.next, struct admission_place, of_group), now);
    } else if (a->n_places >= a->limits.total) {
        goes = admission_shed(a, now);
    }
    int64_t rested = g->rested > now ? g->rested : now;
    int64_t start_at = rested - (int64_t)a->limits.burst * a->interval;
    place->start_at = start_at > now ? start_at : now;
    g->rested = rested + a->interval;
    place->group = g;
    list_append(&g->places, &place->of_group);
    list_append(&a->all, &place->of_all);
    list_init(&place->waiting);
    if (!g->n_places++) list_append(&a->crowds, &g->crowd);
    a->n_places++;
    return goes;
}

void admission_wait(struct admission *a, struct admission_place *place) {
    struct admission_group *g = place->group;
    if (list_empty(&g->waiting)) list_append(&a->turns, &g->turn);
    list_append(&g->waiting, &place->waiting);
}

struct admission_place *admission_take(struct admission *a) {
    if (list_empty(&a->turns)) return NULL;
    struct admission_group *g = NODE_OF(a->turns.next, struct admission_group, turn);
    list_remove(&g->turn);
    list_append(&a->turns, &g->turn); /* behind the others */
    struct admission_place *place = NODE_OF(g->waiting.next, struct admission_place, waiting);
    admission_leave(a, place);
    return place;
}
