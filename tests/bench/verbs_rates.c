/* Payloads over verbs on rails of a pretended rate and delay, and small messages beside them: on the software libibverbs, which accounts for large reads and writes
 * and copies nothing. Arguments: the rate of a rail (Mbit/s), the delay one way (ns), milliseconds of each measurement, rails... Prints one JSON object by the number
 * of rails: the share of the rails' rate, and round trips of a small message, idle and beside payloads, in microseconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../native/transport/link_spec.h"
#include "../../native/transport/verbs/verbs.h"
#include "../native/check.h"
#include "../native/transport/pair.h"
#include "../softverbs/fabric.h"

#define PAYLOAD (32ull << 20)
#define AHEAD 4 /* payloads that are lent and not read */
#define RECORD 64u
#define TRIPS_MOST (1u << 20)

static double *trips;
static struct sv_fabric *fabric;

struct bulk {
    struct gv_link *from, *to;
    uint8_t *source, *target;
    bool kept_apart; /* its threads, from the processor of small messages */
    _Atomic bool stop;
    _Atomic int out;
    _Atomic uint64_t bytes;
};

/* Small messages have a processor of their own, both ways, payloads the others: on machines with few they would measure the scheduler. */
static void on_processor(bool first) {
    cpu_set_t set;
    CPU_ZERO(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = first ? 0 : 1; i < (first ? 1 : n); i++) CPU_SET((size_t)i, &set);
    if (n > 1) CHECK(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
}

static void back(void *arg) { atomic_fetch_sub((_Atomic int *)arg, 1); }

static void *lend(void *arg) {
    struct bulk *b = arg;
    if (b->kept_apart) on_processor(false);
    while (!atomic_load(&b->stop)) {
        if (atomic_load(&b->out) >= AHEAD) {
            usleep(500);
            continue;
        }
        atomic_fetch_add(&b->out, 1);
        CHECK(gv_bulk_open(b->from, 1, PAYLOAD) && gv_bulk_part(b->from, b->source, PAYLOAD, back, &b->out) == 0);
    }
    CHECK(gv_bulk_open(b->from, 2, 0));
    return NULL;
}

static void *take(void *arg) {
    struct bulk *b = arg;
    struct gv_bulk_header h;
    if (b->kept_apart) on_processor(false);
    while (gv_bulk_recv_header(b->to, &h) == 0 && h.tag == 1) {
        CHECK(gv_bulk_recv(b->to, b->target, h.size) == 0);
        atomic_fetch_add(&b->bytes, h.size);
    }
    return NULL;
}

/* What both ends always have: somebody who waits for payloads, and so takes notes. */
static void *await(void *link) {
    struct gv_bulk_header h;
    while (gv_bulk_recv_header(link, &h) == 0) continue;
    return NULL;
}

static bool send_one(struct gv_link *link) {
    struct gv_record *record = gv_send_begin(link, RECORD, NULL);
    if (!record) return false;
    record->op = 1, record->flags = 0, record->ctx = 0;
    memset(record + 1, 7, RECORD - sizeof *record);
    gv_send_commit(link);
    gv_send_flush(link);
    return true;
}

static bool receive_one(struct gv_link *link) {
    while (!gv_recv_peek(link)) {
        if (gv_link_dead(link)) return false;
        gv_recv_wait(link, 100000000, 100000);
    }
    gv_recv_consume(link);
    return true;
}

static void *echo(void *link) { /* on its maker's processor */
    while (receive_one(link) && send_one(link)) continue;
    return NULL;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void round_trips(struct gv_link *link, int64_t ns, double percentiles[2]) {
    uint32_t n = 0;
    for (int64_t end = gv_now_ns() + ns; n < TRIPS_MOST && gv_now_ns() < end; n++) {
        int64_t begin = gv_now_ns();
        CHECK(send_one(link) && receive_one(link));
        trips[n] = (double)(gv_now_ns() - begin) / 1e3;
    }
    qsort(trips, n, sizeof *trips, by_value);
    percentiles[0] = trips[n / 2];
    percentiles[1] = trips[n - 1 - n / 100];
}

static void forget_waits(void) {
    for (uint32_t i = 0; i < SV_RAILS; i++)
        for (uint32_t w = 0; w < SV_WAITS; w++) atomic_store(&fabric->pages[1 + i].rail.small_waits[w], 0);
}

/* For how long 99 of 100 small packets that go the way of the payloads waited at most for a pretended link that others were on, in microseconds. Half of the packets
 * go the other way and find it free: so it is for 199 of 200 of all. */
static double waits(void) {
    uint64_t by_length[SV_WAITS] = {0}, all = 0, seen = 0;
    for (uint32_t i = 0; i < SV_RAILS; i++)
        for (uint32_t w = 0; w < SV_WAITS; w++) by_length[w] += atomic_load(&fabric->pages[1 + i].rail.small_waits[w]);
    for (uint32_t w = 0; w < SV_WAITS; w++) all += by_length[w];
    for (uint32_t w = 0; w < SV_WAITS; w++)
        if ((seen += by_length[w]) >= all - all / 200) return w + 1;
    return SV_WAITS;
}

static double rate(struct bulk *b, int64_t ns) {
    uint64_t before = atomic_load(&b->bytes);
    int64_t begin = gv_now_ns();
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
    return (double)(atomic_load(&b->bytes) - before) / (double)(gv_now_ns() - begin);
}

static struct pair make_rails(uint32_t rails) {
    int fds[2];
    char why[GV_DEATH_TEXT] = "";
    struct gv_link_spec spec = {.rails = rails};
    struct pair pair;
    tcp_sockets(fds);
    pair.worker = adopt_verbs(fds[1]);
    pair.client = gv_transport_named("verbs")->connect(&(struct gv_endpoint){.fd = fds[0], .spec = &spec}, why);
    if (!pair.client) fprintf(stderr, "%s\n", why);
    CHECK(pair.client && pair.worker);
    while (gv_link_down(pair.worker)) usleep(100);
    return pair;
}

static void *map(void) {
    void *at = mmap(NULL, PAYLOAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

struct figures {
    double rate, idle[2], beside[2], waits;
};

/* Payloads alone, with all processors; or messages, idle and beside payloads, with one of their own. */
static struct figures measure(uint32_t rails, int64_t ns, bool messages) {
    struct figures f = {0};
    if (messages) on_processor(false);
    struct pair p = make_rails(rails); /* with its threads, and the devices' */
    if (messages) on_processor(true);
    struct bulk b = {.from = p.client, .to = p.worker, .source = map(), .target = map(), .kept_apart = messages};
    pthread_t threads[4];
    gv_link_offer_memory(p.client, b.source, PAYLOAD);
    gv_link_offer_memory(p.worker, b.target, PAYLOAD);
    CHECK(pthread_create(&threads[0], NULL, await, p.client) == 0 && pthread_create(&threads[1], NULL, echo, p.worker) == 0);
    if (messages) round_trips(p.client, ns, f.idle);
    CHECK(pthread_create(&threads[2], NULL, take, &b) == 0 && pthread_create(&threads[3], NULL, lend, &b) == 0);
    rate(&b, ns / 4);
    forget_waits();
    if (messages)
        round_trips(p.client, ns, f.beside);
    else
        f.rate = rate(&b, ns);
    f.waits = waits();
    atomic_store(&b.stop, true);
    pthread_join(threads[3], NULL);
    pthread_join(threads[2], NULL);
    CHECK(link_counts(p.worker).bulk_in_place == atomic_load(&b.bytes));
    gv_link_kill(p.client, "measured");
    gv_link_kill(p.worker, "measured");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    close_pair(&p);
    munmap(b.source, PAYLOAD);
    munmap(b.target, PAYLOAD);
    return f;
}

static void report(uint32_t rails, double most, int64_t ns, bool first) {
    double share = measure(rails, ns, false).rate / (most * rails);
    struct figures f = measure(rails, ns, true);
    printf("%s\"%u\": {\"share\": %.4f, \"idle_p50\": %.2f, \"idle_p99\": %.2f, \"beside_p50\": %.2f, \"beside_p99\": %.2f, \"waits_p99\": %.0f, "
           "\"slice\": %.2f}",
           first ? "" : ", ", rails, share, f.idle[0], f.idle[1], f.beside[0], f.beside[1], f.waits, VERBS_SLICE / most / 1e3);
}

int main(int argc, char **argv) {
    CHECK(argc > 4);
    uint64_t mbps = strtoull(argv[1], NULL, 10), delay = strtoull(argv[2], NULL, 10);
    int64_t ns = strtoll(argv[3], NULL, 10) * 1000000;
    int fd = open(getenv("SOFTVERBS_FABRIC"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SV_FABRIC_BYTES) == 0);
    fabric = mmap(NULL, SV_RINGS_AT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fabric != MAP_FAILED);
    trips = calloc(TRIPS_MOST, sizeof *trips);
    CHECK(trips);
    for (uint32_t i = 0; i < SV_RAILS; i++) {
        struct sv_rail *rail = &fabric->pages[1 + i].rail;
        atomic_store(&rail->delay_ns, delay);
        atomic_store(&rail->rate_mbps, mbps);
        atomic_store(&rail->account_above, 16384);
    }
    printf("{");
    for (int a = 4; a < argc; a++) report((uint32_t)atoi(argv[a]), (double)mbps / 8e3, ns, a == 4);
    printf("}\n");
    return 0;
}
