/* What sealing payloads costs: plain and sealed links over 1 and 4 channels in turns, beside the cipher alone, on the same cores in one run. By hand:
 *
 *     bulk_rates [ROUNDS]
 *
 * GB/s of the wall clock, and ns of the processor a byte, which other work on the machine disturbs less. What the cipher alone allows is the processor's
 * time of the plain link and of sealing and opening together. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "../../../native/transport/seal/seal.h"
#include "../check.h"
#include "pair.h"

#define SIZE (64ull << 20)
#define PAYLOADS 4 /* in a row */
#define KINDS 4
#define ROUNDS_MOST 100

static uint8_t *source, *target;

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void count(void *arg) { atomic_fetch_add((_Atomic int *)arg, 1); }

static void *receive(void *arg) {
    struct gv_link *link = arg;
    struct gv_bulk_header h;
    for (int i = 0; i < PAYLOADS; i++) CHECK(gv_bulk_recv_header(link, &h) == 0 && h.size == SIZE && gv_bulk_recv(link, target, SIZE) == 0);
    return NULL;
}

/* Bytes a ns of the wall clock, and ns of the processor a byte. */
static void pump(struct gv_link *from, struct gv_link *to, double *rate, double *cost) {
    _Atomic int done = 0;
    pthread_t reader;
    int64_t wall = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    CHECK(pthread_create(&reader, NULL, receive, to) == 0);
    for (int i = 0; i < PAYLOADS; i++) CHECK(gv_bulk_open(from, 1, SIZE) && gv_bulk_part(from, source, SIZE, count, &done) == 0);
    pthread_join(reader, NULL);
    *rate = (double)(SIZE * PAYLOADS) / (double)(clock_ns(CLOCK_MONOTONIC) - wall);
    *cost = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (double)(SIZE * PAYLOADS);
    while (atomic_load(&done) < PAYLOADS) usleep(100);
    CHECK(memcmp(source, target, SIZE) == 0);
}

/* ns a byte for sealing and opening, frame by frame as a channel does it. */
static double cipher_alone(struct gv_seal *out, struct gv_seal *in, uint64_t *counter) {
    static uint8_t frame[TCP_SEALED_MOST], tag[GV_SEAL_TAG];
    int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (uint64_t at = 0; at < SIZE; at += sizeof frame, ++*counter) {
        struct iovec piece = {source + at, sizeof frame};
        CHECK(gv_seal_seal(out, *counter, "head", 4, &piece, 1, frame, tag));
        CHECK(gv_seal_open(in, *counter, "head", 4, frame, sizeof frame, target + at, tag));
    }
    return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) / (double)SIZE;
}

static struct pair open_pair(uint32_t channels, bool sealed) {
    int fds[2];
    tcp_sockets(fds);
    struct pair p = {sealed ? sealed_client(fds[0]) : tcp_client(fds[0]), sealed ? adopt_sealed(fds[1]) : adopt_tcp(fds[1])};
    CHECK(p.client && p.worker);
    expect_channels(p.client, channels);
    for (int i = 0; i < (int)channels; i++) {
        tcp_sockets(fds);
        add_channels(&p, i, fds);
    }
    return p;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    CHECK(rounds > 0 && rounds <= ROUNDS_MOST);
    static double rates[2][KINDS][ROUNDS_MOST], costs[2][KINDS][ROUNDS_MOST], alone[ROUNDS_MOST];
    char why[GV_DEATH_TEXT];
    struct pair pairs[KINDS];
    struct listening listening[2 * KINDS];
    struct gv_seal *out = gv_seal_new(&test_secret, true, true, GV_SEAL_BULK, 99, 0, why);
    struct gv_seal *in = gv_seal_new(&test_secret, false, false, GV_SEAL_BULK, 99, 0, why);
    uint64_t counter = 0;
    CHECK(out && in);
    source = malloc(SIZE), target = malloc(SIZE);
    memset(source, 1, SIZE), memset(target, 2, SIZE);
    for (int k = 0; k < KINDS; k++) {
        pairs[k] = open_pair(k / 2 ? 4 : 1, k & 1);
        listen_start(&listening[2 * k], pairs[k].client);
        listen_start(&listening[2 * k + 1], pairs[k].worker);
    }
    for (int r = 0; r < rounds; r++) {
        for (int way = 0; way < 2; way++)
            for (int k = 0; k < KINDS; k++)
                pump(way ? pairs[k].worker : pairs[k].client, way ? pairs[k].client : pairs[k].worker, &rates[way][k][r], &costs[way][k][r]);
        alone[r] = cipher_alone(out, in, &counter);
    }
    double cipher = median(alone, rounds);
    printf("the cipher alone, sealing and opening frames of %u KiB: %.3f ns a byte\n", TCP_SEALED_MOST >> 10, cipher);
    for (int way = 0; way < 2; way++) {
        for (int k = 0; k < KINDS; k += 2) {
            double rate[2], cost[2];
            for (int s = 0; s < 2; s++) rate[s] = median(rates[way][k + s], rounds), cost[s] = median(costs[way][k + s], rounds);
            printf("%s, %d channels: plain %.2f GB/s, %.3f ns; sealed %.2f GB/s, %.3f ns; sealed/plain %.2f; of what the cipher alone allows %.2f\n",
                   way ? "d2h" : "h2d", k ? 4 : 1, rate[0], cost[0], rate[1], cost[1], rate[1] / rate[0], (cost[0] + cipher) / cost[1]);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        listen_stop(&listening[2 * k]);
        listen_stop(&listening[2 * k + 1]);
        close_pair(&pairs[k]);
    }
    gv_seal_free(out);
    gv_seal_free(in);
    free(source);
    free(target);
    return 0;
}
