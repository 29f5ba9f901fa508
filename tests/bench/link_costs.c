/* What sealing costs a tcp link's records: plain and sealed in turns, the worker's end in a process of its own, beside the sealing alone. Arguments: rounds,
 * records in a row. Prints one JSON object; times are microseconds, the medians of the rounds. The least of a round (of a waiting call: of a single one) is what other
 * programs on the same cores disturbed least; processor time is both ends' together. */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../native/check.h"
#include "../native/transport/pair.h"
#include "../native/transport/sealed_peer.h"

#define ROUNDS_MOST 1001
#define RECORD 104u /* bytes, header included: about a launch with eight arguments */
#define BURST 256
#define WAITS 50
#define FRAME (64u << 10)
enum { ONE_WAY = 1, ANSWER = 2 };

static double now_us(void) { return (double)gv_now_ns() * 1e-3; }

/* Processor time of both ends together. */
static double cpu_us(pid_t worker) {
    clockid_t clock;
    struct timespec ours, theirs;
    CHECK(clock_getcpuclockid(worker, &clock) == 0 && clock_gettime(clock, &theirs) == 0 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ours) == 0);
    return (double)(ours.tv_sec + theirs.tv_sec) * 1e6 + (double)(ours.tv_nsec + theirs.tv_nsec) * 1e-3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_size);
    return values[n / 2];
}

static void post(struct gv_link *link, uint16_t op, uint32_t size) {
    struct gv_record *record = gv_send_begin(link, size, NULL);
    CHECK(record);
    record->op = op, record->flags = 0, record->ctx = 0;
    memset(record + 1, op, size - sizeof *record);
    gv_send_commit(link);
}

static bool take(struct gv_link *link, uint16_t *op) {
    const struct gv_record *record;
    while (!(record = gv_recv_peek(link))) {
        if (gv_link_dead(link)) return false;
        gv_recv_wait(link, 1000000000, 20000);
    }
    *op = record->op;
    gv_recv_consume(link);
    return true;
}

static void serve(struct gv_link *link) {
    for (uint16_t op; take(link, &op);) {
        if (op != ANSWER) continue;
        post(link, ANSWER, 64);
        gv_send_flush(link);
    }
}

static pid_t open_link(bool sealed, struct gv_link **client) {
    int fds[2];
    tcp_sockets(fds);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        serve(sealed ? adopt_sealed(fds[1]) : adopt_tcp(fds[1]));
        _exit(0);
    }
    close(fds[1]);
    *client = sealed ? sealed_client(fds[0]) : tcp_client(fds[0]);
    CHECK(*client);
    return pid;
}

static double wait_for_answer(struct gv_link *link) {
    uint16_t op;
    double t = now_us();
    post(link, ANSWER, 64);
    gv_send_flush(link);
    CHECK(take(link, &op));
    return now_us() - t;
}

/* One frame of `size` bytes sealed and opened, so often. */
static double seal_and_open(struct sealed_peer *peer, struct gv_seal *open, uint64_t *counter, size_t size, int times) {
    static uint8_t text[FRAME], frame[FRAME_BUFFER];
    double t = now_us();
    for (int i = 0; i < times; i++) {
        struct gv_sealed_head head;
        ++*counter;
        size_t n = seal_records(peer, *counter, text, size, frame);
        memcpy(&head, frame, sizeof head);
        head.size = 0; /* as it is authenticated */
        CHECK(gv_seal_open(open, *counter, &head, sizeof head, frame + sizeof head, size, frame + sizeof head, frame + n - GV_SEAL_TAG));
    }
    return (now_us() - t) / times;
}

enum figure { BURST_US, SUSTAINED_US, SUSTAINED_CPU, WAIT_US, WAIT_CPU, FIGURES };
static const char *const names[FIGURES] = {"one_way_burst", "one_way_sustained", "one_way_cpu", "waiting", "waiting_cpu"};

int main(int argc, char **argv) {
    size_t rounds = argc > 1 ? (size_t)atoi(argv[1]) : 21;
    int records = argc > 2 ? atoi(argv[2]) : 20000;
    static double found[2][FIGURES][ROUNDS_MOST], small[ROUNDS_MOST], large[ROUNDS_MOST], least_wait[2];
    struct gv_link *links[2];
    pid_t pids[2];
    char why[GV_DEATH_TEXT];
    CHECK(rounds >= 1 && rounds <= ROUNDS_MOST && records > 0);
    for (int sealed = 0; sealed < 2; sealed++) pids[sealed] = open_link(sealed, &links[sealed]);
    struct sealed_peer peer = sealed_peer(0);
    struct gv_seal *open = gv_seal_new(&test_secret, false, false, GV_SEAL_RECORDS, 0, 0, why);
    uint64_t counter = 0;
    CHECK(open);
    for (size_t round = 0; round < rounds; round++) {
        for (int sealed = 0; sealed < 2; sealed++) {
            struct gv_link *link = links[sealed];
            double waits[WAITS], t, cpu = cpu_us(pids[sealed]);
            for (int i = 0; i < WAITS; i++) waits[i] = wait_for_answer(link);
            found[sealed][WAIT_CPU][round] = (cpu_us(pids[sealed]) - cpu) / WAITS;
            found[sealed][WAIT_US][round] = median(waits, WAITS); /* sorts them */
            if (!round || waits[0] < least_wait[sealed]) least_wait[sealed] = waits[0];
            t = now_us();
            for (int i = 0; i < BURST; i++) post(link, ONE_WAY, RECORD);
            found[sealed][BURST_US][round] = (now_us() - t) / BURST;
            wait_for_answer(link);
            t = now_us();
            cpu = cpu_us(pids[sealed]);
            for (int i = 0; i < records; i++) post(link, ONE_WAY, RECORD);
            wait_for_answer(link);
            found[sealed][SUSTAINED_CPU][round] = (cpu_us(pids[sealed]) - cpu) / records;
            found[sealed][SUSTAINED_US][round] = (now_us() - t) / records;
        }
        small[round] = seal_and_open(&peer, open, &counter, 64, 200);
        large[round] = seal_and_open(&peer, open, &counter, FRAME, 20);
    }
    printf("{");
    for (int f = 0; f < FIGURES; f++) {
        double plain = median(found[0][f], rounds), sealed = median(found[1][f], rounds);
        double least[2] = {found[0][f][0], found[1][f][0]};
        if (f == WAIT_US) memcpy(least, least_wait, sizeof least);
        printf("\"%s\": {\"plain\": %.4f, \"sealed\": %.4f, \"more\": %.4f, \"ratio\": %.3f, ", names[f], plain, sealed, sealed - plain,
               sealed / plain);
        printf("\"least_plain\": %.4f, \"least_sealed\": %.4f, \"least_more\": %.4f}, ", least[0], least[1], least[1] - least[0]);
    }
    double whole = median(large, rounds);
    printf("\"aead\": {\"frame_64\": %.4f, \"frame_64k\": %.4f, \"record_in_frame_64k\": %.4f, ", median(small, rounds), whole,
           whole * RECORD / FRAME);
    printf("\"least_frame_64\": %.4f, \"least_frame_64k\": %.4f}}\n", small[0], large[0]);
    for (int sealed = 0; sealed < 2; sealed++) {
        gv_link_close(links[sealed]);
        CHECK(waitpid(pids[sealed], NULL, 0) == pids[sealed]);
    }
    gv_seal_free(open);
    sealed_peer_free(&peer);
    return 0;
}
