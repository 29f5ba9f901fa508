/* What a record costs over verbs, on the software libibverbs, whose own cost is taken off: it is the processor time of all threads of both ends but the library's,
 * less the time inside its calls. Arguments: records, rounds, threads... Prints one JSON object by the number of sending threads: microseconds a record, and
 * what was asked of the library for each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../native/transport/verbs/verbs.h"
#include "../native/check.h"
#include "../native/transport/pair.h"
#include "../softverbs/fabric.h"

#define RECORD 104u /* bytes, header included: about a launch with eight arguments */
#define ROUNDS_MOST 101
#define THREADS_MOST 100

/* ---- the time inside the library's calls */

static struct ibv_context_ops real;
static _Thread_local double inside_ns;

static double thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double clock_pair; /* ns that two looks at the clock take, which are none of ours */

#define TIMED(call)                                     \
    double begin_ = thread_ns();                        \
    int result_ = call;                                 \
    inside_ns += thread_ns() - begin_ + clock_pair / 2; \
    return result_

static int timed_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) { TIMED(real.post_send(qp, wr, bad)); }
static int timed_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { TIMED(real.post_recv(qp, wr, bad)); }
static int timed_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc) { TIMED(real.poll_cq(cq, n, wc)); }
static int timed_arm(struct ibv_cq *cq, int solicited) { TIMED(real.req_notify_cq(cq, solicited)); }

static void time_calls(struct verbs *v) {
    struct ibv_context_ops *ops = &v->rails[0].context->ops;
    if (ops->post_send == timed_send) return;
    real = *ops;
    ops->post_send = timed_send;
    ops->post_recv = timed_receive;
    ops->poll_cq = timed_poll;
    ops->req_notify_cq = timed_arm;
}

/* ---- the two ends */

struct part {
    struct gv_link *link;
    uint32_t records;
    double ours; /* ns of processor time, the library's taken off */
};

static void *send_part(void *arg) {
    struct part *p = arg;
    double begin = thread_ns();
    inside_ns = 0;
    for (uint32_t i = 0; i < p->records; i++) {
        struct gv_record *record = gv_send_begin(p->link, RECORD, NULL);
        CHECK(record);
        record->op = 1, record->flags = 0, record->ctx = 0;
        memset(record + 1, 7, RECORD - sizeof *record);
        gv_send_commit(p->link);
    }
    gv_send_flush(p->link);
    p->ours = thread_ns() - begin - inside_ns;
    return NULL;
}

static void *receive_part(void *arg) {
    struct part *p = arg;
    double begin = thread_ns();
    inside_ns = 0;
    for (uint32_t n = 0; n < p->records;) {
        if (!gv_recv_peek(p->link)) {
            CHECK(!gv_link_dead(p->link));
            gv_recv_wait(p->link, 100000000, 0);
            continue;
        }
        gv_recv_consume(p->link);
        n++;
    }
    p->ours = thread_ns() - begin - inside_ns;
    return NULL;
}

static double link_thread_ns(struct gv_link *link) {
    clockid_t clock;
    struct timespec t;
    CHECK(pthread_getcpuclockid(((struct verbs *)link)->thread, &clock) == 0 && clock_gettime(clock, &t) == 0);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct figures {
    double sender, receiver, threads, doorbells, requests, polls;
};

static struct figures round_of(struct pair *p, struct sv_rail *rail, uint32_t records, uint32_t threads) {
    static struct part senders[THREADS_MOST];
    pthread_t ids[THREADS_MOST + 1];
    struct part receiver = {p->worker, records / threads * threads, 0};
    struct figures f = {0};
    double before = link_thread_ns(p->client) + link_thread_ns(p->worker);
    uint64_t doorbells = atomic_load(&rail->doorbells), requests = atomic_load(&rail->send_requests), polls = atomic_load(&rail->polls);
    CHECK(pthread_create(&ids[threads], NULL, receive_part, &receiver) == 0);
    for (uint32_t i = 0; i < threads; i++) {
        senders[i] = (struct part){p->client, records / threads, 0};
        CHECK(pthread_create(&ids[i], NULL, send_part, &senders[i]) == 0);
    }
    for (uint32_t i = 0; i <= threads; i++) pthread_join(ids[i], NULL);
    for (uint32_t i = 0; i < threads; i++) f.sender += senders[i].ours;
    double n = receiver.records;
    f.sender /= n * 1e3;
    f.receiver = receiver.ours / n / 1e3;
    f.threads = (link_thread_ns(p->client) + link_thread_ns(p->worker) - before) / n / 1e3;
    f.doorbells = (double)(atomic_load(&rail->doorbells) - doorbells) / n;
    f.requests = (double)(atomic_load(&rail->send_requests) - requests) / n;
    f.polls = (double)(atomic_load(&rail->polls) - polls) / n;
    return f;
}

static int by_sender(const void *a, const void *b) {
    double x = ((const struct figures *)a)->sender, y = ((const struct figures *)b)->sender;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    uint32_t records = (uint32_t)atoi(argv[1]), rounds = (uint32_t)atoi(argv[2]);
    static struct figures found[ROUNDS_MOST];
    CHECK(rounds && rounds <= ROUNDS_MOST);
    int fd = open(getenv("SOFTVERBS_FABRIC"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SV_FABRIC_BYTES) == 0);
    struct sv_fabric *fabric = mmap(NULL, SV_RINGS_AT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fabric != MAP_FAILED);
    double begin = thread_ns();
    for (int i = 0; i < 100000; i++) thread_ns();
    clock_pair = (thread_ns() - begin) / 50000;
    struct pair p = make_pair("verbs");
    time_calls((struct verbs *)p.client);
    printf("{");
    for (int a = 3; a < argc; a++) {
        uint32_t threads = (uint32_t)atoi(argv[a]);
        CHECK(threads && threads <= THREADS_MOST);
        for (uint32_t r = 0; r < rounds; r++) found[r] = round_of(&p, &fabric->pages[1].rail, records, threads);
        qsort(found, rounds, sizeof *found, by_sender);
        struct figures f = found[rounds / 2];
        printf(
            "%s\"%u\": {\"sender\": %.4f, \"receiver\": %.4f, \"link_threads\": %.4f, \"doorbells\": %.4f, \"work_requests\": %.4f, \"polls\": %.4f}",
            a > 3 ? ", " : "", threads, f.sender, f.receiver, f.threads, f.doorbells, f.requests, f.polls);
    }
    printf("}\n");
    close_pair(&p);
    return 0;
}
