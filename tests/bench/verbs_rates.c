/* Payloads over verbs on rails of a pretended rate and delay, and small messages beside them: on the software libibverbs, which accounts for large reads and writes
 * and copies nothing. Arguments: the rate of a rail (Mbit/s), the delay one way (ns), milliseconds of each measurement, rails... Prints one JSON object by the number
 * of rails: the share of the rails' rate, and round trips of a small message, idle and beside payloads, in microseconds. With messages each end of a link is a
 * process, which opens devices of its own: two ends in one process would share the pretended rail of both directions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../../native/transport/link_spec.h"
#include "../../native/transport/verbs/verbs.h"
#include "../native/check.h"
#include "../native/transport/pair.h"
#include "../softverbs/fabric.h"

#define PAYLOAD (32ull << 20)
#define AHEAD 4 /* payloads that are lent and not read */
#define RECORD 64u
#define TRIPS_MOST (1u << 20)
#define PAYLOAD_PATIENCE_NS 60000000000ll

static double *trips;
static struct sv_fabric *fabric;

struct figures {
    double rate, idle[2], beside[2], waits;
};

/* What the processes of a measurement share. */
static struct shared {
    _Atomic uint64_t bytes; /* of payloads that have come */
    struct figures figures;
} *shared;

/* Payloads, at one end. */
struct bulk {
    struct gv_link *link;
    uint8_t *memory;
    bool kept_apart; /* its threads, from the processor of small messages */
    _Atomic bool stop;
    _Atomic int out;
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
        CHECK(gv_bulk_open(b->link, 1, PAYLOAD) && gv_bulk_part(b->link, b->memory, PAYLOAD, back, &b->out) == 0);
    }
    CHECK(gv_bulk_open(b->link, 2, 0));
    return NULL;
}

static void *take(void *arg) {
    struct bulk *b = arg;
    struct gv_bulk_header h;
    if (b->kept_apart) on_processor(false);
    while (gv_bulk_recv_header(b->link, &h) == 0 && h.tag == 1) {
        CHECK(gv_bulk_recv(b->link, b->memory, h.size) == 0);
        atomic_fetch_add(&shared->bytes, h.size);
    }
    CHECK(link_counts(b->link).bulk_in_place == atomic_load(&shared->bytes));
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

static void *echo(void *link) {
    on_processor(true);
    while (receive_one(link) && send_one(link)) continue;
    return NULL;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Whether a measurement goes on: on a busy machine also until payloads have come, if any are to. before: the bytes of those that had. */
static bool goes_on(int64_t begin, int64_t ns, bool payloads, uint64_t before) {
    int64_t passed = gv_now_ns() - begin;
    return passed < ns || (payloads && passed < PAYLOAD_PATIENCE_NS && atomic_load(&shared->bytes) == before);
}

static void round_trips(struct gv_link *link, int64_t ns, bool payloads, double percentiles[2]) {
    uint32_t n = 0;
    uint64_t before = atomic_load(&shared->bytes);
    for (int64_t since = gv_now_ns(); n < TRIPS_MOST && goes_on(since, ns, payloads, before); n++) {
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

static void *map(void) {
    void *at = mmap(NULL, PAYLOAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Payloads alone, with all processors; or messages, which have one of their own: beside payloads on the same link, beside payloads on another link over the same
 * rails, or beside threads that only compute. What the last two take, this link cannot help. */
enum kind { PAYLOADS, SAME_LINK, OTHER_LINK, COMPUTING };

struct threads {
    pthread_t each[4];
    int n;
};

static void start(struct threads *t, void *(*run)(void *), void *arg) {
    CHECK(pthread_create(&t->each[t->n], NULL, run, arg) == 0);
    t->n++;
}

static void join(struct threads *t) {
    while (t->n) pthread_join(t->each[--t->n], NULL);
}

/* One end. Its threads, and the devices', stay away from the processor of messages. */
static struct gv_link *make_end(int fd, uint32_t rails, bool client, bool kept_apart) {
    char why[GV_DEATH_TEXT] = "";
    struct gv_link_spec spec = {.rails = rails};
    if (kept_apart) on_processor(false);
    struct gv_link *link = client ? gv_transport_named("verbs")->connect(&(struct gv_endpoint){.fd = fd, .spec = &spec}, why) : adopt_verbs(fd);
    if (!link) fprintf(stderr, "no link: %s\n", why);
    CHECK(link);
    return link;
}

static void *compute(void *arg) {
    struct bulk *b = arg;
    on_processor(false);
    while (!atomic_load(&b->stop)) continue;
    return NULL;
}

struct worker {
    int fd;
    uint32_t rails;
    bool messages, payloads, kept_apart;
};

/* The worker's end, until the client is gone. */
static void *worker(void *arg) {
    const struct worker *w = arg;
    struct bulk b = {.link = make_end(w->fd, w->rails, false, w->kept_apart), .memory = map(), .kept_apart = w->kept_apart};
    struct threads t = {0};
    gv_link_offer_memory(b.link, b.memory, PAYLOAD);
    if (w->messages) start(&t, echo, b.link);
    start(&t, w->payloads ? take : await, w->payloads ? (void *)&b : b.link);
    while (!gv_link_dead(b.link)) usleep(1000);
    join(&t);
    gv_link_close(b.link);
    return NULL;
}

static void client(const int fds[2], uint32_t rails, int64_t ns, enum kind kind) {
    struct figures *f = &shared->figures;
    bool messages = kind != PAYLOADS;
    struct gv_link *link = make_end(fds[0], rails, true, messages), *other = kind == OTHER_LINK ? make_end(fds[1], rails, true, true) : link;
    struct bulk b = {.link = other, .memory = map(), .kept_apart = messages};
    struct threads t = {0}, beside = {0};
    gv_link_offer_memory(other, b.memory, PAYLOAD);
    start(&t, await, link);
    if (other != link) start(&t, await, other);
    if (messages) on_processor(true);
    if (messages) round_trips(link, ns, false, f->idle);
    start(&beside, kind == COMPUTING ? compute : lend, &b);
    if (kind == COMPUTING) start(&beside, compute, &b);
    usleep((useconds_t)(ns / 4000));
    forget_waits();
    uint64_t before = atomic_load(&shared->bytes);
    int64_t begin = gv_now_ns();
    if (messages)
        round_trips(link, ns, kind != COMPUTING, f->beside);
    else
        nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
    while (!messages && goes_on(begin, ns, true, before)) usleep(1000);
    f->rate = (double)(atomic_load(&shared->bytes) - before) / (double)(gv_now_ns() - begin);
    f->waits = waits();
    atomic_store(&b.stop, true);
    join(&beside);
    while (atomic_load(&b.out)) usleep(1000); /* what was lent is read */
    gv_link_kill(link, "measured");
    gv_link_kill(other, "measured");
    join(&t);
    gv_link_close(link);
    if (other != link) gv_link_close(other);
}

/* Payloads alone: both ends in one process, for a machine of two processors has none for twice as many devices. Nothing goes the other way but requests. */
static void alone(uint32_t rails, int64_t ns) {
    int fds[2];
    tcp_sockets(fds);
    struct worker w = {.fd = fds[1], .rails = rails, .payloads = true};
    struct threads t = {0};
    start(&t, worker, &w);
    client((int[]){fds[0], -1}, rails, ns, PAYLOADS);
    join(&t);
}

/* One process of several: the workers', and the client's, which is the last. */
static void take_part(int i, int fds[2][2], int n, uint32_t rails, int64_t ns, enum kind kind) {
    for (int each = 0; each < n; each++)
        for (int end = 0; end < 2; end++)
            if (i == n ? end == 1 : each != i || end == 0) close(fds[each][end]);
    if (i == n)
        client((int[]){fds[0][0], fds[n - 1][0]}, rails, ns, kind);
    else
        worker(&(struct worker){fds[i][1], rails, .messages = i == 0, .payloads = kind != COMPUTING && i == n - 1, .kept_apart = true});
}

static struct figures measure(uint32_t rails, int64_t ns, enum kind kind) {
    int fds[2][2], n = kind == OTHER_LINK ? 2 : 1, processes = kind == PAYLOADS ? 1 : n + 1, status;
    *shared = (struct shared){0};
    for (int i = 0; i < n && kind != PAYLOADS; i++) tcp_sockets(fds[i]);
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid) continue;
        if (kind == PAYLOADS)
            alone(rails, ns);
        else
            take_part(i, fds, n, rails, ns, kind);
        _exit(0);
    }
    for (int i = 0; i < n && kind != PAYLOADS; i++)
        for (int end = 0; end < 2; end++) close(fds[i][end]);
    for (int i = 0; i < processes; i++) CHECK(wait(&status) > 0 && status == 0);
    return shared->figures;
}

static void report(uint32_t rails, double most, int64_t ns, bool first) {
    static const struct {
        enum kind kind;
        const char *name;
    } beside[] = {{SAME_LINK, "same"}, {OTHER_LINK, "other"}, {COMPUTING, "computing"}};
    printf("%s\"%u\": {\"share\": %.4f, \"slice\": %.2f", first ? "" : ", ", rails, measure(rails, ns, PAYLOADS).rate / (most * rails),
           VERBS_SLICE / most / 1e3);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        struct figures f = measure(rails, ns, beside[i].kind);
        printf(", \"%s\": {\"idle_p50\": %.2f, \"idle_p99\": %.2f, \"p50\": %.2f, \"p99\": %.2f, \"waits_p99\": %.0f, \"share\": %.4f}",
               beside[i].name, f.idle[0], f.idle[1], f.beside[0], f.beside[1], f.waits, f.rate / (most * rails));
    }
    printf("}");
}

int main(int argc, char **argv) {
    CHECK(argc > 4);
    uint64_t mbps = strtoull(argv[1], NULL, 10), delay = strtoull(argv[2], NULL, 10);
    int64_t ns = strtoll(argv[3], NULL, 10) * 1000000;
    int fd = open(getenv("SOFTVERBS_FABRIC"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SV_FABRIC_BYTES) == 0);
    fabric = mmap(NULL, SV_RINGS_AT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fabric != MAP_FAILED);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    trips = calloc(TRIPS_MOST, sizeof *trips);
    CHECK(shared != MAP_FAILED && trips);
    for (uint32_t i = 0; i < SV_RAILS; i++) {
        struct sv_rail *rail = &fabric->pages[1 + i].rail;
        atomic_store(&rail->delay_ns, delay);
        atomic_store(&rail->rate_mbps, mbps);
        atomic_store(&rail->account_above, 16384);
    }
    setbuf(stdout, NULL); /* no child has any of it */
    printf("{");
    for (int a = 4; a < argc; a++) report((uint32_t)atoi(argv[a]), (double)mbps / 8e3, ns, a == 4);
    printf("}\n");
    return 0;
}
