/* The software libibverbs where nothing is wrong: every operation, in one process and between two, and what it refuses. */
#define _GNU_SOURCE
#include "ends.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#endif

static void devices(void) {
    int count = -1;
    setenv("SOFTVERBS_DEVICES", "0", 1);
    errno = 0;
    CHECK(!ibv_get_device_list(&count) && errno == ENOSYS && count == 0);
    setenv("SOFTVERBS_DEVICES", "4", 1);
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(count == 4 && list && !list[4] && strcmp(ibv_get_device_name(list[3]), "softverbs3") == 0);
    CHECK(ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
    struct ibv_context *one = ibv_open_device(list[1]), *two = ibv_open_device(list[2]);
    ibv_free_device_list(list);
    struct ibv_port_attr port = {0};
    union ibv_gid gids[2];
    struct ibv_gid_entry entry, entries[4];
    struct ibv_device_attr attr;
    uint16_t key;
    CHECK(one && two && ibv_query_port(one, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && port.active_mtu == IBV_MTU_4096);
    CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && ibv_query_port(one, 2, &port) == EINVAL);
    CHECK(ibv_query_gid(one, 1, 0, &gids[0]) == 0 && ibv_query_gid(two, 1, 0, &gids[1]) == 0 && memcmp(&gids[0], &gids[1], 16) != 0);
    CHECK(ibv_query_gid(one, 1, 2, &gids[1]) == -1);
    CHECK(_ibv_query_gid_ex(one, 1, 0, &entry, 0, sizeof entry) == 0 && memcmp(&entry.gid, &gids[0], 16) == 0);
    CHECK(_ibv_query_gid_ex(one, 1, 1, &entry, 0, sizeof entry) == ENODATA && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    CHECK(_ibv_query_gid_table(two, &entry, 1, 0, sizeof entry) == 1 && memcmp(&entry.gid, &gids[0], 16) != 0);
    set_fault(&rail(1)->ipv4, 1);
    CHECK(_ibv_query_gid_ex(one, 1, 1, &entry, 0, sizeof entry) == 0 && entry.gid.raw[10] == 0xff && entry.gid.raw[12] == 10);
    CHECK(_ibv_query_gid_table(one, entries, 4, 0, sizeof entry) == 2 && memcmp(&entries[1].gid, &entry.gid, 16) == 0);
    set_fault(&rail(1)->ipv4, 0);
    CHECK(ibv_query_device(one, &attr) == 0 && attr.max_qp > 100 && attr.max_qp_rd_atom == 16 && attr.phys_port_cnt == 1);
    CHECK(ibv_query_pkey(one, 1, 0, &key) == 0 && key == 0xffff);
    CHECK(ibv_close_device(one) == 0 && ibv_close_device(two) == 0);
    CHECK_TEXT(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "retry");
    CHECK_TEXT(ibv_wc_status_str((enum ibv_wc_status)99), "unknown");
}

static int threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

/* A process that is to close itself in has no threads when its devices are open. */
static void late(void) {
    setenv("SOFTVERBS_LATE", "1", 1);
    int before = threads();
    struct ibv_context *unused = open_device(0), *context = open_device(1);
    CHECK(threads() == before && ibv_close_device(unused) == 0);
    struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
    CHECK(pd && other && threads() > before); /* a sanitizer may have one of its own */
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other) == 0 && ibv_close_device(context) == 0);
    unsetenv("SOFTVERBS_LATE");
}

static void states(void) {
    struct end *end = make_end((struct wishes){0}), *other = make_end((struct wishes){0});
    const int to_rtr =
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp->qp_num, .min_rnr_timer = 12}, seen;
    struct ibv_qp_init_attr init;
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = address_of(other).gid}};
    for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) { /* each of those that are needed; any that is not */
        if (bit != IBV_QP_STATE && bit != IBV_QP_ACCESS_FLAGS && bit != IBV_QP_PKEY_INDEX && bit != IBV_QP_ALT_PATH) {
            CHECK(ibv_modify_qp(end->qp, &attr, to_rtr ^ bit) == EINVAL);
        }
    }
    CHECK(post_simple(end, IBV_WR_SEND, 1, address_of(other), 0, 1) == EINVAL);
    attr.max_dest_rd_atomic = 17;
    CHECK(ibv_modify_qp(end->qp, &attr, to_rtr) == EINVAL);
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr.is_global = 0;
    CHECK(ibv_modify_qp(end->qp, &attr, to_rtr) == EINVAL);
    attr.ah_attr.is_global = 1;
    CHECK(ibv_modify_qp(end->qp, &attr, to_rtr) == 0 && end->qp->state == IBV_QPS_RTR);
    CHECK(post_simple(end, IBV_WR_SEND, 1, address_of(other), 0, 1) == EINVAL && post_receive(end, 1, 0, 1) == 0);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == EINVAL);
    CHECK(ibv_query_qp(end->qp, &seen, to_rtr, &init) == 0 && seen.qp_state == IBV_QPS_RTR && seen.path_mtu == IBV_MTU_1024);
    CHECK(seen.dest_qp_num == other->qp->qp_num && seen.min_rnr_timer == 12 && init.cap.max_send_wr == 64 && init.send_cq == end->cq);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == 0);
    expect(end, 1, IBV_WC_WR_FLUSH_ERR);
    CHECK(post_simple(end, IBV_WR_SEND, 2, address_of(other), 0, 1) == 0 && post_receive(end, 3, 0, 1) == 0);
    expect(end, 2, IBV_WC_WR_FLUSH_ERR);
    expect(end, 3, IBV_WC_WR_FLUSH_ERR);
    attr.qp_state = IBV_QPS_RESET;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == 0 && post_receive(end, 3, 0, 1) == EINVAL);
    init.qp_type = IBV_QPT_UD;
    errno = 0;
    CHECK(!ibv_create_qp(end->pd, &init) && errno == EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    init.cap.max_inline_data = 1 << 20;
    CHECK(!ibv_create_qp(end->pd, &init) && errno == EINVAL);
    CHECK(ibv_destroy_cq(end->cq) == EBUSY && ibv_dealloc_pd(end->pd) == EBUSY && ibv_destroy_comp_channel(end->channel) == EBUSY);
    end_end(end);
    end_end(other);
}

/* A queue pair that was used is reset and connected again, to another. */
static void again(void) {
    struct end *a, *b, *c = make_end((struct wishes){.psn = 0xfffffe});
    make_pair(&a, &b, (struct wishes){0});
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS};
    CHECK(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    connect_end(a, address_of(c));
    connect_end(c, address_of(a));
    for (unsigned i = 0; i < 5; i++) { /* past the packet sequence number's 24 bits */
        a->buffer[0] = (uint8_t)(i + 1);
        CHECK(post_simple(a, IBV_WR_RDMA_WRITE, i, address_of(c), 0, 1) == 0 && post_receive(a, 10 + i, 100, 4) == 0);
        expect(a, i, IBV_WC_SUCCESS);
        CHECK(c->buffer[0] == i + 1 && post_simple(c, IBV_WR_SEND, i, address_of(a), 0, 1) == 0);
        expect(c, i, IBV_WC_SUCCESS);
        expect(a, 10 + i, IBV_WC_SUCCESS);
    }
    end_end(a);
    end_end(b);
    end_end(c);
}

static void sends(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.psn = 77});
    fill_bytes(a->buffer, 8192, 1);
    struct ibv_sge pieces[4] = {piece(a, 0, 1000), piece(a, 1000, 0), piece(a, 1000, 3), piece(a, 1003, 997)},
                   parts[2] = {piece(b, 0, 7), piece(b, 7, 5000)};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = parts, .num_sge = 2}, *bad_receive;
    CHECK(ibv_post_recv(b->qp, &receive, &bad_receive) == 0);
    struct ibv_send_wr wr = request(a, IBV_WR_SEND_WITH_IMM, 2, pieces, address_of(b), 0);
    wr.num_sge = 4;
    wr.imm_data = 0x01020304;
    CHECK(post(a, wr) == 0);
    expect(a, 2, IBV_WC_SUCCESS);
    struct ibv_wc wc = next_completion(b);
    CHECK(wc.wr_id == 1 && wc.opcode == IBV_WC_RECV && wc.byte_len == 2000 && wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 0x01020304);
    CHECK(wc.src_qp == a->qp->qp_num && are_bytes(b->buffer, 2000, 1) && b->buffer[2000] == 0);
    /* Inline: the buffer may change at once, and needs no key. */
    uint8_t text[200];
    fill_bytes(text, sizeof text, 2);
    struct ibv_sge inlined = {.addr = (uintptr_t)text, .length = sizeof text};
    wr = request(a, IBV_WR_SEND, 3, &inlined, address_of(b), 0);
    wr.send_flags |= IBV_SEND_INLINE;
    CHECK(post(a, wr) == 0);
    memset(text, 0, sizeof text);
    nap(2000);
    CHECK(post_receive(b, 4, 0, 4096) == 0);
    expect(b, 4, IBV_WC_SUCCESS);
    expect(a, 3, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, 200, 2));
    inlined.length = 257;
    CHECK(post(a, wr) == EINVAL);
    /* Nothing at all, and a message of many packets. */
    CHECK(post_receive(b, 5, 0, 0) == 0 && post_receive(b, 6, 0, 1 << 20) == 0);
    wr = request(a, IBV_WR_SEND, 7, NULL, address_of(b), 0);
    fill_bytes(a->buffer, 1 << 20, 3);
    CHECK(post(a, wr) == 0 && post_simple(a, IBV_WR_SEND, 8, address_of(b), 0, 1 << 20) == 0);
    expect(b, 5, IBV_WC_SUCCESS);
    expect(b, 6, IBV_WC_SUCCESS);
    expect(a, 7, IBV_WC_SUCCESS);
    expect(a, 8, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer, 1 << 20, 3));
    end_end(a);
    end_end(b);
}

static void writes(void) {
    static const uint32_t lengths[] = {0, 1, 7, 8, 64, 65, 4096, 16384, 16385, 100000, 3 << 20};
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.psn = 0xabcdef});
    struct address to = address_of(b);
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fill_bytes(a->buffer + 100, lengths[i], i);
        memset(b->buffer, 0, lengths[i] + 200);
        CHECK(post_simple(a, IBV_WR_RDMA_WRITE, i, to, 100, lengths[i]) == 0);
        expect(a, i, IBV_WC_SUCCESS);
        CHECK(are_bytes(b->buffer + 100, lengths[i], i) && b->buffer[99] == 0 && b->buffer[100 + lengths[i]] == 0);
        struct ibv_sge sge = piece(a, 100, lengths[i]);
        struct ibv_send_wr wr = request(a, IBV_WR_RDMA_WRITE_WITH_IMM, 1000 + i, &sge, to, 100);
        wr.imm_data = i;
        memset(b->buffer, 0, lengths[i] + 200);
        CHECK(post_receive(b, 2000 + i, 0, 0) == 0 && post(a, wr) == 0);
        struct ibv_wc wc = next_completion(b);
        CHECK(wc.wr_id == 2000 + i && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == i && wc.byte_len == lengths[i]);
        CHECK(are_bytes(b->buffer + 100, lengths[i], i) && b->buffer[100 + lengths[i]] == 0);
        expect(a, 1000 + i, IBV_WC_SUCCESS);
    }
    end_end(a);
    end_end(b);
}

static void reads(void) {
    static const uint32_t lengths[] = {0, 1, 8, 4096, 70000, 2 << 20};
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.reads = 2});
    struct address to = address_of(b);
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fill_bytes(b->buffer, lengths[i], i);
        memset(a->buffer, 0, lengths[i] + 1);
        CHECK(post_simple(a, IBV_WR_RDMA_READ, i, to, 0, lengths[i]) == 0);
        struct ibv_wc wc = next_completion(a);
        CHECK(wc.wr_id == i && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == lengths[i]);
        CHECK(are_bytes(a->buffer, lengths[i], i) && a->buffer[lengths[i]] == 0);
    }
    /* Completions come in the order of the requests, whichever they are. With the fence a send waits for what the read before it fills. */
    for (unsigned i = 0; i < 30; i++) {
        uint64_t at = 100000 + i * 64;
        fill_bytes(b->buffer + at, 64, i);
        if (i % 3 == 2) memset(a->buffer + at, 0, 64);
        CHECK(post_simple(a, i % 3 == 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, i, to, i % 3 == 2 ? at : 0, 64) == 0);
    }
    struct ibv_sge sge = piece(a, 100000 + 29 * 64, 64);
    struct ibv_send_wr wr = request(a, IBV_WR_RDMA_WRITE, 30, &sge, to, 200000);
    wr.send_flags |= IBV_SEND_FENCE;
    CHECK(post(a, wr) == 0);
    for (unsigned i = 0; i <= 30; i++) expect(a, i, IBV_WC_SUCCESS);
    CHECK(are_bytes(b->buffer + 200000, 64, 29));
    end_end(a);
    end_end(b);
}

/* Entries of a queue are free when a completion behind them was polled, not before. */
static void full_queues(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){.depth = 8});
    struct ibv_sge sge = piece(a, 0, 8);
    struct ibv_send_wr list[10], *bad = NULL, wr = request(a, IBV_WR_RDMA_WRITE, 0, &sge, address_of(b), 0);
    for (unsigned i = 0; i < 10; i++) {
        list[i] = wr;
        list[i].wr_id = i;
        list[i].send_flags = i == 7 ? IBV_SEND_SIGNALED : 0;
        list[i].next = i < 9 ? &list[i + 1] : NULL;
    }
    uint64_t doorbells = atomic_load(&rail(0)->doorbells), requests = atomic_load(&rail(0)->send_requests), made = atomic_load(&rail(0)->completions);
    CHECK(ibv_post_send(a->qp, list, &bad) == ENOMEM && bad == &list[8]);
    CHECK(atomic_load(&rail(0)->doorbells) == doorbells + 1 && atomic_load(&rail(0)->send_requests) == requests + 8);
    wait_for(&rail(0)->completions, made + 1);
    CHECK(post(a, wr) == ENOMEM);
    expect(a, 7, IBV_WC_SUCCESS);
    CHECK(atomic_load(&rail(0)->completions) == made + 1);
    for (unsigned i = 0; i < 8; i++) CHECK(post(a, wr) == 0);
    CHECK(post(a, wr) == ENOMEM);
    for (unsigned i = 0; i < 8; i++) expect(a, 0, IBV_WC_SUCCESS);
    for (unsigned i = 0; i < 8; i++) CHECK(post_receive(b, i, 0, 8) == 0);
    CHECK(post_receive(b, 8, 0, 8) == ENOMEM);
    CHECK(post_simple(a, IBV_WR_SEND, 1, address_of(b), 0, 8) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    expect(b, 0, IBV_WC_SUCCESS);
    CHECK(post_receive(b, 8, 0, 8) == 0 && post_receive(b, 9, 0, 8) == ENOMEM);
    /* Nobody hears any more of a queue pair that is gone. */
    made = atomic_load(&rail(0)->completions);
    CHECK(post_simple(a, IBV_WR_SEND, 1, address_of(b), 0, 8) == 0);
    wait_for(&rail(0)->completions, made + 2);
    CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
    a->qp = b->qp = NULL;
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(a->cq, 1, &wc) == 0 && ibv_poll_cq(b->cq, 1, &wc) == 0);
    end_end(a);
    end_end(b);
}

static void channels(void) {
    struct end *a, *b;
    struct ibv_cq *cq;
    void *context;
    make_pair(&a, &b, (struct wishes){0});
    struct pollfd ready = {.fd = b->channel->fd, .events = POLLIN};
    CHECK(fcntl(b->channel->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_cq_event(b->channel, &cq, &context) == -1 && errno == EAGAIN && poll(&ready, 1, 0) == 0);
    CHECK(ibv_req_notify_cq(b->cq, 0) == 0);
    for (unsigned i = 0; i < 2; i++) CHECK(post_receive(b, i, 0, 8) == 0 && post_simple(a, IBV_WR_SEND, i, address_of(b), 0, 8) == 0);
    CHECK(poll(&ready, 1, (int)(PATIENCE_NS / 1000000)) == 1 && ibv_get_cq_event(b->channel, &cq, &context) == 0 && cq == b->cq && context == b);
    for (unsigned i = 0; i < 2; i++) expect(b, i, IBV_WC_SUCCESS);
    for (unsigned i = 0; i < 2; i++) expect(a, i, IBV_WC_SUCCESS);
    CHECK(ibv_get_cq_event(b->channel, &cq, &context) == -1); /* one event for one request of it */
    ibv_ack_cq_events(b->cq, 1);
    CHECK(ibv_req_notify_cq(b->cq, 1) == EOPNOTSUPP); /* of solicited ones only */
    /* An event that nobody takes goes with its queue. */
    CHECK(ibv_req_notify_cq(b->cq, 0) == 0 && post_receive(b, 5, 0, 8) == 0);
    CHECK(post_simple(a, IBV_WR_SEND, 5, address_of(b), 0, 8) == 0);
    expect(b, 5, IBV_WC_SUCCESS);
    CHECK(poll(&ready, 1, 0) == 1);
    end_end(a);
    end_end(b);
}

/* A key of another domain than the queue pair's is as good as none. */
static void domains(void) {
    struct ibv_context *context = open_device(0);
    struct end *a = make_end((struct wishes){0}), *b = make_end((struct wishes){.context = context}),
               *c = make_end((struct wishes){.context = context});
    connect_end(a, address_of(b));
    connect_end(b, address_of(a));
    struct ibv_sge sge = {.addr = (uintptr_t)c->buffer, .length = 8, .lkey = c->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(b->qp, &wr, &bad) == 0);
    a->buffer[0] = 1;
    CHECK(post_simple(a, IBV_WR_SEND, 9, address_of(b), 0, 1) == 0);
    expect(a, 9, IBV_WC_REM_OP_ERR);
    expect(b, 1, IBV_WC_LOC_PROT_ERR);
    CHECK(c->buffer[0] == 0);
    end_end(a);
    end_end(b);
    end_end(c);
    CHECK(ibv_close_device(context) == 0);
}

static void memory(void) {
    struct end *a, *b;
    make_pair(&a, &b, (struct wishes){0});
    errno = 0;
    CHECK(!ibv_reg_mr(a->pd, a->buffer, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    uint8_t *hole = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(hole + 4096, 4096) == 0 && !ibv_reg_mr(a->pd, hole, 3 * 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    CHECK(!ibv_reg_mr(a->pd, hole + 4096, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    memset(hole, 0xff, 4096); /* whatever is in it */
    /* Under an address of the user's choice. */
    struct ibv_mr *mr = ibv_reg_mr_iova2(b->pd, hole, 4096, 1 << 20, ALL_ACCESS);
    struct address to = address_of(b);
    to.rkey = mr->rkey;
    to.buffer = 1 << 20;
    fill_bytes(a->buffer, 64, 5);
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, to, 0, 64) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    CHECK(are_bytes(hole, 64, 5) && ibv_dereg_mr(mr) == 0);
    /* A dmabuf is a memfd here. */
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    CHECK(ftruncate(fd, 8192) == 0);
    CHECK(!ibv_reg_dmabuf_mr(b->pd, 0, 8192, 0, fd, ALL_ACCESS) && errno == EOPNOTSUPP);
    setenv("SOFTVERBS_DMABUF", "1", 1);
    CHECK((mr = ibv_reg_dmabuf_mr(b->pd, 4096, 4096, 4096, fd, ALL_ACCESS)));
    unsetenv("SOFTVERBS_DMABUF");
    to.rkey = mr->rkey;
    to.buffer = 4096;
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 2, to, 0, 64) == 0);
    expect(a, 2, IBV_WC_SUCCESS);
    uint8_t seen[64];
    CHECK(pread(fd, seen, 64, 4096) == 64 && are_bytes(seen, 64, 5));
    CHECK(ibv_dereg_mr(mr) == 0 && close(fd) == 0 && munmap(hole, 4096) == 0 && munmap(hole + 8192, 4096) == 0);
    /* What is no longer registered is no longer there, nor is its key for what takes its place. */
    struct ibv_mr *next = ibv_reg_mr(b->pd, b->buffer, 4096, ALL_ACCESS);
    CHECK(next->rkey != to.rkey && post_simple(a, IBV_WR_RDMA_WRITE, 3, to, 0, 64) == 0);
    expect(a, 3, IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(next) == 0);
    end_end(a);
    end_end(b);
}

/* Writes to the peer's half, reads of it and sends, all checked there; both ends do it at once. */
static void exchange(struct end *end, struct address to, unsigned rounds, unsigned mine) {
    enum { HALF = BUFFER / 2, SLOT = 200000 };
    for (unsigned round = 0; round < rounds; round++) {
        uint32_t length = round * 7919 % SLOT + 1;
        fill_bytes(end->buffer, length, round + mine);
        CHECK(post_receive(end, 100 + round, HALF + SLOT, SLOT) == 0);
        CHECK(post_simple(end, IBV_WR_RDMA_WRITE, 1, to, 0, 0) == 0);
        struct ibv_sge sge = piece(end, 0, length), back = piece(end, 2 * SLOT, length);
        CHECK(post(end, request(end, IBV_WR_RDMA_WRITE, 2, &sge, to, HALF)) == 0);
        CHECK(post(end, request(end, IBV_WR_RDMA_READ, 3, &back, to, HALF)) == 0);
        CHECK(post(end, request(end, IBV_WR_SEND, 4, &sge, to, 0)) == 0);
        uint64_t next = 1;
        for (int got = 0; got < 5; got++) {
            struct ibv_wc wc = next_completion(end);
            CHECK(wc.status == IBV_WC_SUCCESS);
            if (wc.opcode == IBV_WC_RECV)
                CHECK(wc.wr_id == 100 + round && wc.byte_len == length);
            else
                CHECK(wc.wr_id == next++);
        }
        CHECK(are_bytes(end->buffer + 2 * SLOT, length, round + mine) && are_bytes(end->buffer + HALF + SLOT, length, round + 1 - mine));
    }
}

static void meet(struct end *end, int socket) {
    struct address mine = address_of(end), theirs;
    CHECK(write(socket, &mine, sizeof mine) == sizeof mine && read(socket, &theirs, sizeof theirs) == sizeof theirs);
    connect_end(end, theirs);
    char ready = 1;
    CHECK(write(socket, &ready, 1) == 1 && read(socket, &ready, 1) == 1);
    end->wishes.device = (int)theirs.gid.raw[15];
    *(struct address *)end->buffer = theirs;
}

static void talk(int device, int socket, unsigned mine) {
    struct end *end = make_end((struct wishes){.device = device, .psn = mine * 1000});
    meet(end, socket);
    struct address theirs = *(struct address *)end->buffer;
    exchange(end, theirs, SANITIZED ? 20 : 100, mine);
    char done = 1;
    CHECK(write(socket, &done, 1) == 1 && read(socket, &done, 1) == 1);
    end_end(end);
}

static void two_processes(void) {
    int sockets[2], ended;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    if (child == 0) {
        talk(1, sockets[1], 1);
        exit(0);
    }
    talk(0, sockets[0], 0);
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
    close(sockets[0]);
    close(sockets[1]);
}

struct both {
    struct end *end;
    struct address to;
    unsigned mine;
    _Atomic unsigned done;
};

static void *exchange_thread(void *argument) {
    struct both *both = argument;
    exchange(both->end, both->to, 20, both->mine);
    atomic_fetch_add(&both->done, 1);
    return NULL;
}

static void two_threads(void) {
    struct end *ends[2];
    pthread_t threads[2];
    make_pair(&ends[0], &ends[1], (struct wishes){0});
    struct both both[2] = {{ends[0], address_of(ends[1]), 0, 0}, {ends[1], address_of(ends[0]), 1, 0}};
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, exchange_thread, &both[i]) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) end_end(ends[i]);
}

/* Loses one packet, then waits until each end has taken three completions, of which one at least is of its own requests: so no request runs out
 * of retries, on a machine of any speed. */
static void lose_a_packet(struct sv_rail *rail, struct both both[2]) {
    atomic_store(&rail->drop_at, 7);
    while (atomic_load(&rail->drop_at) && !(atomic_load(&both[0].done) && atomic_load(&both[1].done))) nap(200);
    unsigned before[2] = {atomic_load(&both[0].end->completions), atomic_load(&both[1].end->completions)};
    for (int i = 0; i < 2; i++) {
        while (!atomic_load(&both[i].done) && atomic_load(&both[i].end->completions) - before[i] < 3) nap(200);
    }
}

/* The same with all that an adapter gets over, at once. */
static void troubled(void) {
    struct end *ends[2];
    pthread_t threads[2];
    struct sv_rail *with = rail(2);
    make_pair(&ends[0], &ends[1], (struct wishes){.device = 2, .timeout = 12, .reads = 1});
    struct both both[2] = {{ends[0], address_of(ends[1]), 0, 0}, {ends[1], address_of(ends[0]), 1, 0}};
    set_fault(&with->rnr_every, 4);
    set_fault(&with->delay_ns, 30000);
    set_fault(&with->read_delay_ns, 200000);
    set_fault(&with->rate_mbps, 20000);
    set_fault(&with->send_delay_ns, 40000);
    set_fault(&with->completion_delay_ns, 50000);
    set_fault(&with->completion_reorder, 1);
    uint64_t tries = atomic_load(&with->timeouts), naks = atomic_load(&with->rnr_naks);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, exchange_thread, &both[i]) == 0);
    while (!atomic_load(&both[0].done) || !atomic_load(&both[1].done)) lose_a_packet(with, both);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(atomic_load(&with->timeouts) > tries && atomic_load(&with->rnr_naks) > naks);
    atomic_store(&with->drop_at, 0);
    atomic_store(&with->rnr_every, 0);
    atomic_store(&with->delay_ns, 0);
    atomic_store(&with->read_delay_ns, 0);
    atomic_store(&with->rate_mbps, 0);
    atomic_store(&with->send_delay_ns, 0);
    atomic_store(&with->completion_delay_ns, 0);
    set_fault(&with->completion_reorder, 0);
    for (int i = 0; i < 2; i++) end_end(ends[i]);
}

/* A counter in memory that one side reads without a lock while the other writes it over and over is never torn, and what was written before is there. */
static void *watch(void *argument) {
    struct end *end = argument;
    _Atomic uint64_t *counter = (_Atomic uint64_t *)(end->buffer + 4096);
    for (uint64_t seen = 0; seen != 0x7d0000007d0ull;) {
        seen = atomic_load_explicit(counter, memory_order_acquire);
        CHECK(seen >> 32 == (seen & 0xffffffff));
        if (seen) CHECK(end->buffer[0] != 0);
        sched_yield();
    }
    return NULL;
}

static void counters_in_memory(void) {
    struct end *a, *b;
    pthread_t watcher;
    make_pair(&a, &b, (struct wishes){0});
    a->buffer[0] = 1;
    CHECK(pthread_create(&watcher, NULL, watch, b) == 0);
    CHECK(post_simple(a, IBV_WR_RDMA_WRITE, 1, address_of(b), 0, 2048) == 0);
    expect(a, 1, IBV_WC_SUCCESS);
    for (uint64_t i = 1; i <= 2000; i++) {
        uint64_t value = i << 32 | i;
        struct ibv_sge sge = {.addr = (uintptr_t)&value, .length = 8};
        struct ibv_send_wr wr = request(a, IBV_WR_RDMA_WRITE, i, &sge, address_of(b), 4096);
        wr.send_flags |= IBV_SEND_INLINE;
        CHECK(post(a, wr) == 0);
        expect(a, i, IBV_WC_SUCCESS);
    }
    pthread_join(watcher, NULL);
    end_end(a);
    end_end(b);
}

#if !SANITIZED
/* After the device is open, and its queues are made, nothing is opened and nothing connected: a process that may do little else can use it. */
static void confine(void) {
    static const int allowed[] = {SYS_futex, SYS_read, SYS_write,           SYS_mmap,       SYS_munmap,      SYS_mprotect, SYS_madvise,
                                  SYS_brk,   SYS_exit, SYS_clock_nanosleep, SYS_exit_group, SYS_rt_sigreturn};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < COUNT; i++)
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], (uint8_t)(COUNT - i), 0);
    filter[1 + COUNT] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[2 + COUNT] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static void confined(void) {
    int ended;
    pid_t child = fork();
    if (child == 0) {
        struct end *a, *b;
        struct ibv_cq *cq;
        void *context;
        make_pair(&a, &b, (struct wishes){0});
        confine();
        CHECK(ibv_req_notify_cq(b->cq, 0) == 0 && post_receive(b, 1, 0, BUFFER) == 0);
        CHECK(post_simple(a, IBV_WR_SEND, 2, address_of(b), 0, 1 << 20) == 0);
        CHECK(ibv_get_cq_event(b->channel, &cq, &context) == 0);
        expect(b, 1, IBV_WC_SUCCESS);
        expect(a, 2, IBV_WC_SUCCESS);
        struct ibv_mr *mr = ibv_reg_mr(a->pd, a->buffer, 4096, ALL_ACCESS);
        CHECK(mr && ibv_dereg_mr(mr) == 0);
        nap(1200000); /* long enough for the thread to go to sleep */
        CHECK(post_simple(a, IBV_WR_RDMA_READ, 3, address_of(b), 0, 1 << 20) == 0);
        expect(a, 3, IBV_WC_SUCCESS);
        _exit(0);
    }
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
}
#endif

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"late", late}, /* first: before there was a thread */
        {"devices", devices},
        {"states", states},
        {"again", again},
        {"sends", sends},
        {"writes", writes},
        {"reads", reads},
        {"full_queues", full_queues},
        {"channels", channels},
        {"domains", domains},
        {"memory", memory},
        {"two_threads", two_threads},
        {"troubled", troubled},
        {"counters_in_memory", counters_in_memory},
        {"two_processes", two_processes},
#if !SANITIZED
        {"confined", confined},
#endif
    };
    return run_on_a_fabric(cases, sizeof cases / sizeof *cases, argc, argv);
}
