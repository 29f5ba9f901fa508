#include "ends.h"

#include <sys/stat.h>
#include <sys/wait.h>

static char path[64];

struct ibv_context *open_device(int index) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && index < count);
    struct ibv_context *context = ibv_open_device(list[index]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

struct sv_rail *rail(int device) { return sv_rail(sv_fabric_map(), (unsigned)device); }

void set_fault(_Atomic uint64_t *word, uint64_t value) {
    atomic_store(word, value);
    sv_ring_all(sv_fabric_map());
}

struct end *make_end(struct wishes wishes) {
    struct end *end = calloc(1, sizeof *end);
    CHECK(end);
    end->wishes = wishes;
    uint32_t depth = wishes.depth ? (uint32_t)wishes.depth : 64;
    end->context = wishes.context ? wishes.context : open_device(wishes.device);
    CHECK((end->pd = ibv_alloc_pd(end->context)));
    CHECK((end->buffer = aligned_alloc(4096, BUFFER)));
    memset(end->buffer, 0, BUFFER);
    CHECK((end->mr = ibv_reg_mr(end->pd, end->buffer, BUFFER, ALL_ACCESS)));
    CHECK((end->channel = ibv_create_comp_channel(end->context)));
    CHECK((end->cq = wishes.cq ? wishes.cq : ibv_create_cq(end->context, wishes.cqe ? wishes.cqe : (int)(2 * depth + 64), end, end->channel, 0)));
    struct ibv_qp_init_attr init = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){depth, depth, 4, 4, 256};
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = wishes.access ? (unsigned)wishes.access : ALL_ACCESS};
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    return end;
}

struct address address_of(const struct end *end) {
    struct address address = {.number = end->qp->qp_num, .psn = end->wishes.psn, .rkey = end->mr->rkey, .buffer = (uintptr_t)end->buffer};
    CHECK(ibv_query_gid(end->context, 1, 0, &address.gid) == 0);
    return address;
}

void connect_end(struct end *end, struct address peer) {
    const struct wishes *w = &end->wishes;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer.number, .rq_psn = peer.psn};
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .hop_limit = 1}};
    attr.max_rd_atomic = attr.max_dest_rd_atomic = (uint8_t)(w->reads ? w->reads : 16);
    attr.min_rnr_timer = (uint8_t)(w->rnr_timer ? w->rnr_timer : 1);
    attr.timeout = (uint8_t)(w->timeout ? w->timeout : 12);
    attr.retry_cnt = (uint8_t)(w->retry_cnt < 0 ? 0 : (w->retry_cnt ? w->retry_cnt : 7));
    attr.rnr_retry = (uint8_t)(w->rnr_retry < 0 ? 0 : (w->rnr_retry ? w->rnr_retry : 7));
    attr.sq_psn = w->psn;
    CHECK(ibv_modify_qp(end->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(end->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void end_end(struct end *end) {
    if (end->qp) CHECK(ibv_destroy_qp(end->qp) == 0);
    if (!end->wishes.cq) CHECK(ibv_destroy_cq(end->cq) == 0);
    CHECK(ibv_destroy_comp_channel(end->channel) == 0);
    CHECK(ibv_dereg_mr(end->mr) == 0);
    CHECK(ibv_dealloc_pd(end->pd) == 0);
    if (!end->wishes.context) CHECK(ibv_close_device(end->context) == 0);
    free(end->buffer);
    free(end);
}

void make_pair(struct end **a, struct end **b, struct wishes wishes) {
    *a = make_end(wishes);
    *b = make_end(wishes);
    connect_end(*a, address_of(*b));
    connect_end(*b, address_of(*a));
}

struct ibv_sge piece(const struct end *end, uint64_t offset, uint32_t length) {
    return (struct ibv_sge){.addr = (uintptr_t)end->buffer + offset, .length = length, .lkey = end->mr->lkey};
}

struct ibv_send_wr request(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge *sge, struct address to, uint64_t offset) {
    (void)from;
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = to.buffer + offset;
    wr.wr.rdma.rkey = to.rkey;
    return wr;
}

int post(struct end *end, struct ibv_send_wr wr) {
    struct ibv_send_wr *bad = NULL;
    int error = ibv_post_send(end->qp, &wr, &bad);
    CHECK(!error == !bad);
    return error;
}

int post_simple(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct address to, uint64_t offset, uint32_t length) {
    struct ibv_sge sge = piece(from, offset, length);
    return post(from, request(from, opcode, id, &sge, to, offset));
}

int post_receive(struct end *end, uint64_t id, uint64_t offset, uint32_t length) {
    struct ibv_sge sge = piece(end, offset, length);
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
    return ibv_post_recv(end->qp, &wr, &bad);
}

struct ibv_wc next_completion(struct end *end) {
    struct ibv_wc wc;
    uint64_t until = sv_now() + PATIENCE_NS;
    for (int tries = 0;; tries++) {
        int taken = ibv_poll_cq(end->cq, 1, &wc);
        CHECK(taken >= 0);
        if (taken) {
            atomic_fetch_add(&end->completions, 1);
            return wc;
        }
        CHECK(sv_now() < until);
        if (tries > 100) nap(20);
    }
}

void expect(struct end *end, uint64_t id, enum ibv_wc_status status) {
    struct ibv_wc wc = next_completion(end);
    if (wc.wr_id != id || wc.status != status) {
        fprintf(stderr, "completion %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
        fprintf(stderr, "not     %llu: %s\n", (unsigned long long)id, ibv_wc_status_str(status));
    }
    CHECK(wc.wr_id == id && wc.status == status && wc.qp_num == end->qp->qp_num);
    CHECK(status == IBV_WC_SUCCESS || (wc.byte_len == 0x5a5a5a5a && wc.opcode == 0x5a));
}

void wait_for(_Atomic uint64_t *counter, uint64_t value) {
    for (uint64_t until = sv_now() + PATIENCE_NS; atomic_load(counter) < value; nap(100)) CHECK(sv_now() < until);
}

void nap(unsigned us) { nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL); }

void fill_bytes(uint8_t *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) bytes[i] = (uint8_t)(seed * 131 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29);
}

bool are_bytes(const uint8_t *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != (uint8_t)(seed * 131 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29)) return false;
    }
    return true;
}

int run_on_a_fabric(const struct test_case *cases, size_t count, int argc, char **argv) {
    struct stat status;
    snprintf(path, sizeof path, "%s/softverbs-%d", stat("/dev/shm", &status) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
    setenv("SOFTVERBS_FABRIC", path, 1);
    setenv("SOFTVERBS_DEVICES", "4", 1);
    fflush(NULL);
    /* In a child, so that the file goes however it ends. */
    pid_t child = fork();
    if (child == 0) exit(run_cases(cases, count, argc, argv, PATIENCE_NS / 1000000000 + 30));
    int ended = 0;
    waitpid(child, &ended, 0);
    unlink(path);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
}
