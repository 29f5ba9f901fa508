/* The software libibverbs where something is wrong: with the requests, the peer, the rail, the queues. */
#include "ends.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#define MS 1000000ull

/* These requests end flushed, in their order. */
static void expect_flushed(struct end *end, uint64_t first, uint64_t last) {
    for (uint64_t id = first; id <= last; id++) expect(end, id, IBV_WC_WR_FLUSH_ERR);
}

/* A request that is refused: nothing is written, what is behind it is flushed, and the peer is told. */
static void refused(enum ibv_wr_opcode opcode, uint32_t key_change, uint64_t offset, uint32_t length) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){0});
    struct address to = address_of(b);
    memset(a->buffer, 1, 65536);
    CHECK(post_receive(b, 50, 0, 8) == 0 && post_simple(a, IBV_WR_RDMA_WRITE, 1, to, 0, 8) == 0);
    struct ibv_sge sge = piece(a, 0, length);
    struct ibv_send_wr wr = request(a, opcode, 2, &sge, to, offset);
    wr.wr.rdma.rkey += key_change;
    for (; wr.wr_id < 6; wr.wr_id++) {
        wr.send_flags = wr.wr_id % 2 ? 0 : IBV_SEND_SIGNALED; /* flushed ones are seen whether asked for or not */
        CHECK(post(a, wr) == 0);
    }
    expect(a, 1, IBV_WC_SUCCESS);
    expect(a, 2, IBV_WC_REM_ACCESS_ERR);
    expect_flushed(a, 3, 5);
    expect(b, 50, IBV_WC_WR_FLUSH_ERR);
    CHECK(b->buffer[64] == 0 && b->buffer[BUFFER - 1] == 0 && a->qp->state == IBV_QPS_ERR && b->qp->state == IBV_QPS_ERR);
    end_end(a);
    end_end(b);
}

static void access_rights(void) {
    refused(IBV_WR_RDMA_WRITE, 1, 64, 64);
    refused(IBV_WR_RDMA_WRITE, 256, 64, 64);
    refused(IBV_WR_RDMA_WRITE, 0, BUFFER - 63, 64);
    refused(IBV_WR_RDMA_WRITE_WITH_IMM, 0, BUFFER - 65535, 65536);
    refused(IBV_WR_RDMA_WRITE, 0, (uint64_t)-1, 64);
    refused(IBV_WR_RDMA_READ, 0, BUFFER - 1, 2);
    /* A queue pair that lets nobody write. */
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.access = IBV_ACCESS_LOCAL_WRITE});
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_REM_ACCESS_ERR);
    end_end(a);
    end_end(b);
    /* Memory that is for reading only. */
    make_pair(&a, &b, (struct wishes){0});
    struct ibv_mr *mr = ibv_reg_mr(b->pd, b->buffer, 4096, IBV_ACCESS_REMOTE_READ);
    struct address to = address_of(b);
    to.rkey = mr->rkey;
    CHECK(post_simple(a, IBV_WR_RDMA_READ, 1, to, 0, 8) == 0 && post_simple(a, IBV_WR_RDMA_WRITE, 2, to, 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    expect(a, 2, IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == 0);
    end_end(a);
    end_end(b);
}

static void local_errors(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){0});
    struct ibv_sge sge = piece(a, 0, 64);
    sge.lkey++;
    CHECK(post_simple(a, IBV_WR_RDMA_READ, 1, address_of(b), 0, 1 << 20) == 0);
    CHECK(post(a, request(a, IBV_WR_RDMA_WRITE, 2, &sge, address_of(b), 0)) == 0);
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 3, address_of(b), 0, 64) == 0);
    expect(a, 1, IBV_WC_SUCCESS); /* those before it are carried out first */
    expect(a, 2, IBV_WC_LOC_PROT_ERR);
    expect(a, 3, IBV_WC_WR_FLUSH_ERR);
    end_end(a);
    end_end(b);
    /* More reads at a time than the peer answers. */
    a = make_end((struct wishes){.reads = 4, .timeout = 20}); /* 4.3 s */
    b = make_end((struct wishes){.reads = 2});
    connect_end(a, address_of(b));
    connect_end(b, address_of(a));
    set_fault(&rail(0)->delay_ns, 500 * MS); /* longer than this thread stands still between the first and the last */
    for (uint64_t id = 1; id < 4; id++) CHECK(post_simple(a, IBV_WR_RDMA_READ, id, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    expect(a, 2, IBV_WC_SUCCESS);
    expect(a, 3, IBV_WC_REM_INV_REQ_ERR);
    CHECK(b->qp->state == IBV_QPS_ERR);
    set_fault(&rail(0)->delay_ns, 0);
    end_end(a);
    end_end(b);
    /* More than was made ready for. */
    make_pair(&a, &b, (struct wishes){0});
    CHECK(post_receive(b, 1, 0, 63) == 0 && post_receive(b, 2, 0, 63) == 0);
    CHECK(post_simple(a, IBV_WR_SEND, 3, address_of(b), 0, 64) == 0);
    expect(a, 3, IBV_WC_REM_INV_REQ_ERR);
    expect(b, 1, IBV_WC_LOC_LEN_ERR);
    expect(b, 2, IBV_WC_WR_FLUSH_ERR);
    end_end(a);
    end_end(b);
}

static void not_ready(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.rnr_retry = 2, .rnr_timer = 10, .timeout = 24}); /* 69 s: else an answer that is late makes one more */
    uint64_t naks = atomic_load(&rail(0)->rnr_naks), began = sv_now();
    CHECK(post_simple(a, IBV_WR_SEND, 1, address_of(b), 0, 8) == 0 && post_simple(a, IBV_WR_SEND, 2, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    expect(a, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK(atomic_load(&rail(0)->rnr_naks) == naks + 3 && sv_now() - began >= 2 * 320000); /* 0.32 ms each */
    end_end(a);
    end_end(b);
    /* For ever: until there is one. A write that has arrived but for its immediate goes on from there. */
    make_pair(&a, &b, (struct wishes){0});
    fill_bytes(a->buffer, 50000, 9);
    struct ibv_sge sge = piece(a, 0, 50000);
    CHECK(post(a, request(a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, &sge, address_of(b), 0)) == 0 &&
          post_simple(a, IBV_WR_SEND, 2, address_of(b), 0, 50000) == 0);
    naks = atomic_load(&rail(0)->rnr_naks);
    wait_for(&rail(0)->rnr_naks, naks + 3);
    CHECK(post_receive(b, 3, 0, 0) == 0 && post_receive(b, 4, 100000, 50000) == 0);
    expect(b, 3, IBV_WC_SUCCESS);
    expect(b, 4, IBV_WC_SUCCESS);
    expect(a, 1, IBV_WC_SUCCESS);
    expect(a, 2, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, 50000, 9) && are_bytes(b->buffer + 100000, 50000, 9));
    /* Every third one, though there is one. */
    set_fault(&rail(0)->rnr_every, 3);
    naks = atomic_load(&rail(0)->rnr_naks);
    for (uint64_t i = 0; i < 30; i++) CHECK(post_receive(b, i, i * 8, 8) == 0);
    for (uint64_t i = 0; i < 30; i++) {
        a->buffer[i * 8] = (uint8_t)(i + 1);
        CHECK(post_simple(a, IBV_WR_SEND, i, address_of(b), i * 8, 8) == 0);
    }
    for (uint64_t i = 0; i < 30; i++) {
        expect(b, i, IBV_WC_SUCCESS);
        expect(a, i, IBV_WC_SUCCESS);
        CHECK(b->buffer[i * 8] == i + 1);
    }
    CHECK(atomic_load(&rail(0)->rnr_naks) >= naks + 10);
    set_fault(&rail(0)->rnr_every, 0);
    end_end(a);
    end_end(b);
}

static void break_off(struct end *b, int how) {
    if (how == 0) CHECK(ibv_destroy_qp(b->qp) == 0);
    if (how == 0) b->qp = NULL;
    if (how == 1) CHECK(ibv_modify_qp(b->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE) == 0);
    if (how == 2) set_fault(&rail(0)->port_down, 1);
    if (how == 3) set_fault(&rail(0)->drop, 1);
}

/* Nobody answers any more: the first request ends after retry_cnt more tries, those behind it flushed. */
static void nobody_answers(void) {
    for (int how = 0; how < 5; how++) {
        struct wishes wishes = {.timeout = 8, .retry_cnt = 2}; /* 1 ms */
        struct end *a = make_end(wishes), *b = make_end(wishes);
        struct address named = address_of(b);
        if (how == 4) named.gid.raw[15]++; /* another's */
        connect_end(a, named);
        connect_end(b, address_of(a));
        CHECK(how == 4 || post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 8) == 0);
        if (how != 4) expect(a, 1, IBV_WC_SUCCESS);
        if (how == 0) nap(1200000); /* until the thread no longer looks at the timers by itself */
        struct address to = address_of(b);
        uint64_t tries = atomic_load(&rail(0)->timeouts), began = sv_now();
        CHECK(ibv_req_notify_cq(a->cq, 0) == 0);
        break_off(b, how);
        for (uint64_t id = 2; id < 6; id++) CHECK(post_simple(a, IBV_WR_RDMA_WRITE, id, to, 64, 8) == 0);
        struct pollfd told = {.fd = a->channel->fd, .events = POLLIN};
        CHECK(poll(&told, 1, (int)(PATIENCE_NS / MS)) == 1); /* not by polling the queue, which looks at the timers too */
        expect(a, 2, IBV_WC_RETRY_EXC_ERR);
        CHECK(atomic_load(&rail(0)->timeouts) == tries + 2 && sv_now() - began >= 3 * (4096 << 8));
        expect_flushed(a, 3, 5);
        CHECK(b->buffer[64] == 0);
        set_fault(&rail(0)->port_down, 0);
        set_fault(&rail(0)->drop, 0);
        end_end(a);
        end_end(b);
    }
}

/* A rail that comes back in time has lost nothing. */
static void rail_comes_back(void) {
    struct end *a = make_end((struct wishes){.device = 1, .timeout = 17}), *b = make_end((struct wishes){.device = 2});
    connect_end(a, address_of(b));
    connect_end(b, address_of(a));
    fill_bytes(a->buffer, BUFFER, 4);
    uint64_t got = 0, ids = 60, dropped = 0;
    uint32_t part = BUFFER / 60 / 8 * 8;
    for (uint64_t id = 0; id < ids; id++) {
        bool cut = id % 20 == 10;
        if (cut) {
            dropped = atomic_load(&rail(1)->dropped);
            set_fault(id == 30 ? &rail(1)->drop : &rail(2)->drop, 1); /* either end's */
        }
        enum ibv_wr_opcode opcode = id % 5 == 4 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
        if (opcode == IBV_WR_SEND) CHECK(post_receive(b, id, id * part, part) == 0);
        CHECK(post_simple(a, opcode, id, address_of(b), id * part, part) == 0);
        if (cut) {
            wait_for(&rail(1)->dropped, dropped + 1);
            set_fault(&rail(1)->drop, 0);
            set_fault(&rail(2)->drop, 0);
        }
        if (id >= 40) expect(a, got++, IBV_WC_SUCCESS);
    }
    while (got < ids) expect(a, got++, IBV_WC_SUCCESS);
    for (uint64_t id = 4; id < ids; id += 5) expect(b, id, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, ids * part, 4));
    CHECK(atomic_load(&rail(1)->timeouts) > 0);
    /* Reads, whose answers are lost. */
    memset(a->buffer, 0, BUFFER);
    set_fault(&rail(2)->delay_ns, 500 * MS); /* longer than this thread stands still */
    uint64_t packets = atomic_load(&rail(2)->packets), tries = atomic_load(&rail(1)->timeouts);
    dropped = atomic_load(&rail(1)->dropped);
    for (uint64_t id = 0; id < 8; id++) CHECK(post_simple(a, IBV_WR_RDMA_READ, id, address_of(b), id * 100000, 100000) == 0);
    wait_for(&rail(2)->packets, packets + 2);
    set_fault(&rail(1)->drop, 1); /* they are under way */
    wait_for(&rail(1)->dropped, dropped + 1);
    set_fault(&rail(1)->drop, 0);
    set_fault(&rail(2)->delay_ns, 0);
    for (uint64_t id = 0; id < 8; id++) expect(a, id, IBV_WC_SUCCESS);
    CHECK(are_bytes(a->buffer, 800000, 4) && atomic_load(&rail(1)->timeouts) > tries);
    end_end(a);
    end_end(b);
}

/* Messages are lost on their way, and it is over before the sender could have noticed by itself. */
static void lost_on_the_way(void) {
    struct end *a = make_end((struct wishes){.device = 1, .timeout = 18}), *b = make_end((struct wishes){.device = 2}); /* 1.07 s */
    connect_end(a, address_of(b));
    connect_end(b, address_of(a));
    fill_bytes(a->buffer, 400000, 4);
    set_fault(&rail(1)->delay_ns, 500 * MS);
    uint64_t tries = atomic_load(&rail(1)->timeouts), packets = atomic_load(&rail(1)->packets), dropped = atomic_load(&rail(2)->dropped);
    for (uint64_t id = 0; id < 4; id++) CHECK(post_simple(a, IBV_WR_RDMA_WRITE, id, address_of(b), id * 100000, 100000) == 0);
    wait_for(&rail(1)->packets, packets + 28);
    set_fault(&rail(2)->drop, 1);
    wait_for(&rail(2)->dropped, dropped + 10);
    set_fault(&rail(2)->drop, 0);
    set_fault(&rail(1)->delay_ns, 0);
    for (uint64_t id = 0; id < 4; id++) expect(a, id, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, 400000, 4) && atomic_load(&rail(1)->timeouts) > tries);
    end_end(a);
    end_end(b);
}

static void dead_process(void) {
    int ended, to_parent[2], to_child[2];
    CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct end *end = make_end((struct wishes){.device = 1});
        struct address mine = address_of(end), theirs;
        CHECK(write(to_parent[1], &mine, sizeof mine) == sizeof mine && read(to_child[0], &theirs, sizeof theirs) == sizeof theirs);
        connect_end(end, theirs);
        CHECK(write(to_parent[1], "", 1) == 1);
        for (;;) pause();
    }
    struct end *end = make_end((struct wishes){.timeout = 8, .retry_cnt = 3});
    struct address mine = address_of(end), theirs;
    char ready;
    CHECK(write(to_child[1], &mine, sizeof mine) == sizeof mine && read(to_parent[0], &theirs, sizeof theirs) == sizeof theirs);
    connect_end(end, theirs);
    CHECK(read(to_parent[0], &ready, 1) == 1 && post_simple(end, IBV_WR_RDMA_WRITE, 1, theirs, 0, 4096) == 0);
    expect(end, 1, IBV_WC_SUCCESS);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &ended, 0) == child);
    for (uint64_t id = 2; id < 5; id++) CHECK(post_simple(end, IBV_WR_RDMA_WRITE, id, theirs, 0, BUFFER) == 0); /* more than the ring holds */
    expect(end, 2, IBV_WC_RETRY_EXC_ERR);
    expect_flushed(end, 3, 4);
    struct sv_slot *slot = sv_slot(sv_fabric_map(), theirs.number);
    CHECK(atomic_load(&slot->number) == theirs.number);
    CHECK(ibv_close_device(open_device(0)) == 0); /* who comes next cleans up */
    CHECK(atomic_load(&slot->number) == 0);
    end_end(end);
    for (int i = 0; i < 2; i++) close(to_parent[i]), close(to_child[i]);
}

static void wait_for_state(struct end *end, enum ibv_qp_state state) {
    struct ibv_qp_attr seen = {0};
    struct ibv_qp_init_attr init;
    for (uint64_t until = sv_now() + PATIENCE_NS; seen.qp_state != state; nap(100))
        CHECK(sv_now() < until && ibv_query_qp(end->qp, &seen, IBV_QP_STATE, &init) == 0);
}

static void ports(void) {
    struct ibv_context *context = open_device(3);
    struct ibv_port_attr port = {0};
    set_fault(&rail(3)->port_down, 1);
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_DOWN);
    set_fault(&rail(3)->port_down, 0);
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    CHECK(ibv_close_device(context) == 0);
}

/* A completion queue that is too small, and one of which the rail says so. Those who use it are in error. */
static void overrun(void) {
    for (int by_fault = 0; by_fault < 2; by_fault++) {
        struct end *a, *b;
        make_pair(&a, &b, (struct wishes){.cqe = by_fault ? 64 : 4});
        if (by_fault) set_fault(&rail(0)->cq_overrun_at, 5);
        for (uint64_t id = 0; id < 6; id++) CHECK(post_simple(a, IBV_WR_RDMA_WRITE, id, address_of(b), 0, 8) == 0);
        wait_for_state(a, IBV_QPS_ERR);
        for (uint64_t id = 0; id < 4; id++) expect(a, id, IBV_WC_SUCCESS); /* what was in it */
        struct ibv_wc wc;
        CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 9, address_of(b), 0, 8) == 0 && ibv_poll_cq(a->cq, 1, &wc) == 0);
        CHECK(atomic_load(&rail(0)->cq_overrun_at) == 0);
        end_end(a);
        end_end(b);
    }
}

/* Completions come late, those of some queue pairs later than those of others, but never out of a queue pair's order. */
static void late_completions(void) {
    enum { PAIRS = 4, EACH = 20 };
    struct end *a[PAIRS], *b[PAIRS];
    struct ibv_context *context = open_device(0);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 400, NULL, channel, 0), *told;
    uint64_t next[PAIRS] = {0}, previous = 0, overtaken = 0;
    void *unused;
    for (int i = 0; i < PAIRS; i++) {
        a[i] = make_end((struct wishes){.context = context, .cq = cq});
        b[i] = make_end((struct wishes){0});
        connect_end(a[i], address_of(b[i]));
        connect_end(b[i], address_of(a[i]));
    }
    set_fault(&rail(0)->completion_reorder, 1);
    set_fault(&rail(0)->completion_delay_ns, 100 * MS);
    uint64_t began = sv_now(), made = atomic_load(&rail(0)->completions);
    for (uint64_t n = 0; n < EACH; n++) {
        if (n == EACH / 2) { /* shorter: those after do not overtake */
            wait_for(&rail(0)->completions, made + PAIRS * EACH / 2);
            set_fault(&rail(0)->completion_delay_ns, MS);
        }
        for (int i = 0; i < PAIRS; i++) CHECK(post_simple(a[i], IBV_WR_RDMA_WRITE, n * PAIRS + (uint64_t)i, address_of(b[i]), 0, 8) == 0);
    }
    CHECK(ibv_req_notify_cq(cq, 0) == 0 && ibv_get_cq_event(channel, &told, &unused) == 0);
    for (int got = 0; got < PAIRS * EACH; got++) {
        struct ibv_wc wc = next_completion(a[0]);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id / PAIRS == next[wc.wr_id % PAIRS]);
        next[wc.wr_id % PAIRS]++;
        overtaken += wc.wr_id < previous;
        previous = wc.wr_id;
    }
    CHECK(overtaken > 0 && sv_now() - began >= 100 * MS);
    set_fault(&rail(0)->completion_reorder, 0);
    /* Who is told of one is told when it can be polled. */
    set_fault(&rail(0)->completion_delay_ns, 2 * MS);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    began = sv_now();
    CHECK(post_simple(a[0], IBV_WR_RDMA_WRITE, 1, address_of(b[0]), 0, 8) == 0);
    CHECK(ibv_get_cq_event(channel, &told, &unused) == 0 && sv_now() - began >= 2 * MS);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 1);
    set_fault(&rail(0)->completion_delay_ns, 0);
    ibv_ack_cq_events(cq, 2);
    for (int i = 0; i < PAIRS; i++) end_end(a[i]), end_end(b[i]);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 && ibv_close_device(context) == 0);
}

static void delays(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.reads = 1, .timeout = 18}); /* 1.07 s */
    set_fault(&rail(0)->delay_ns, 3 * MS);
    uint64_t began = sv_now();
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    CHECK(sv_now() - began >= 6 * MS);
    /* One read at a time: each has a round trip for itself. */
    began = sv_now();
    for (uint64_t id = 0; id < 4; id++) CHECK(post_simple(a, IBV_WR_RDMA_READ, id, address_of(b), 0, 8) == 0);
    for (uint64_t id = 0; id < 4; id++) expect(a, id, IBV_WC_SUCCESS);
    CHECK(sv_now() - began >= 24 * MS);
    set_fault(&rail(0)->delay_ns, 0);
    set_fault(&rail(0)->read_delay_ns, 5 * MS);
    began = sv_now();
    CHECK(post_simple(a, IBV_WR_RDMA_READ, 1, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    CHECK(sv_now() - began >= 5 * MS);
    set_fault(&rail(0)->read_delay_ns, 0);
    /* What is changed too early arrives changed, but for what is inline. */
    set_fault(&rail(0)->send_delay_ns, 500 * MS); /* longer than this thread stands still */
    struct ibv_sge eight = piece(a, 64, 8);
    struct ibv_send_wr inlined = request(a, IBV_WR_RDMA_WRITE, 2, &eight, address_of(b), 64);
    inlined.send_flags |= IBV_SEND_INLINE;
    began = sv_now();
    a->buffer[0] = a->buffer[64] = 1;
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 8) == 0 && post(a, inlined) == 0);
    a->buffer[0] = a->buffer[64] = 2;
    expect(a, 1, IBV_WC_SUCCESS);
    expect(a, 2, IBV_WC_SUCCESS);
    CHECK(sv_now() - began >= 500 * MS && b->buffer[0] == 2 && b->buffer[64] == 1);
    set_fault(&rail(0)->send_delay_ns, 0);
    /* 1 Gb/s: a megabyte takes 8 ms each way. Above a size bytes are counted only, at the same rate. */
    set_fault(&rail(0)->rate_mbps, 1000);
    fill_bytes(a->buffer, 1000000, 6);
    for (int accounted = 0; accounted < 2; accounted++) {
        if (accounted) set_fault(&rail(0)->account_above, 4096);
        uint64_t bytes = atomic_load(&rail(0)->bytes), unmoved = atomic_load(&rail(0)->accounted_bytes);
        memset(b->buffer, 0, 1000000);
        began = sv_now();
        CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 1000000) == 0);
        expect(a, 1, IBV_WC_SUCCESS);
        CHECK(sv_now() - began >= 8 * MS && atomic_load(&rail(0)->bytes) == bytes + 1000000);
        CHECK(atomic_load(&rail(0)->accounted_bytes) == unmoved + (accounted ? 1000000u : 0u));
        CHECK(accounted ? b->buffer[1] == 0 : are_bytes(b->buffer, 1000000, 6));
        began = sv_now();
        CHECK(post_simple(a, IBV_WR_RDMA_READ, 2, address_of(b), 1000000, 1000000) == 0);
        expect(a, 2, IBV_WC_SUCCESS);
        CHECK(sv_now() - began >= 8 * MS);
    }
    /* Into one device from two: they share the rate. */
    struct end *c = make_end((struct wishes){0}), *d = make_end((struct wishes){.context = b->context});
    connect_end(c, address_of(d));
    connect_end(d, address_of(c));
    began = sv_now();
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 500000) == 0 && post_simple(c, IBV_WR_RDMA_WRITE, 2, address_of(d), 0, 500000) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    expect(c, 2, IBV_WC_SUCCESS);
    CHECK(sv_now() - began >= 8 * MS);
    end_end(c);
    end_end(d);
    set_fault(&rail(0)->rate_mbps, 0);
    /* Small ones are copied still, and what is only counted is checked as ever. */
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 3, address_of(b), 0, 4096) == 0);
    expect(a, 3, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, 4096, 6));
    struct ibv_sge sge = piece(a, 0, 5000);
    CHECK(post(a, request(a, IBV_WR_RDMA_WRITE, 4, &sge, address_of(b), BUFFER - 4999)) == 0);
    expect(a, 4, IBV_WC_REM_ACCESS_ERR);
    set_fault(&rail(0)->account_above, 0);
    end_end(a);
    end_end(b);
}

static void wrong_key_at(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){0});
    set_fault(&rail(0)->bad_rkey_at, 3);
    for (uint64_t id = 0; id < 5; id++) {
        CHECK(post_simple(a, id == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, id, address_of(b), 0, id == 0 ? 100000 : 8) == 0);
    }
    for (uint64_t id = 0; id < 3; id++) expect(a, id, IBV_WC_SUCCESS);
    expect(a, 3, IBV_WC_REM_ACCESS_ERR);
    expect(a, 4, IBV_WC_WR_FLUSH_ERR);
    end_end(a);
    end_end(b);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"access_rights", access_rights},
        {"local_errors", local_errors},
        {"not_ready", not_ready},
        {"nobody_answers", nobody_answers},
        {"rail_comes_back", rail_comes_back},
        {"lost_on_the_way", lost_on_the_way},
        {"dead_process", dead_process},
        {"ports", ports},
        {"overrun", overrun},
        {"late_completions", late_completions},
        {"delays", delays},
        {"wrong_key_at", wrong_key_at},
    };
    return run_on_a_fabric(cases, sizeof cases / sizeof *cases, argc, argv);
}
