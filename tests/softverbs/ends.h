/* Ends of connections for the tests of the software libibverbs: a queue pair with all that it needs, in this process or in another. */
#ifndef ENDS_H
#define ENDS_H

#include "../native/check.h"
#include "fabric.h"
#include "../../native/transport/verbs/verbs_abi.h"

#include <errno.h>

#ifndef PATIENCE_NS
#define PATIENCE_NS 20000000000ull /* until what must come is missed */
#endif
#define BUFFER (4u << 20)
#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* How an end is to be: 0 for what the comment says. */
struct wishes {
    int device;
    int depth;     /* of each queue: 64 */
    int cqe;       /* 2 * depth + 64 */
    int timeout;   /* code: 12, 16.8 ms */
    int retry_cnt; /* -1: 0; else 7 */
    int rnr_retry; /* -1: 0; else 7, for ever */
    int rnr_timer; /* code: 1, 10 us */
    int reads;     /* 16 */
    int access;    /* of the queue pair: all */
    uint32_t psn;
    struct ibv_context *context; /* one that is open */
    struct ibv_cq *cq;           /* of that context */
};

struct end {
    struct wishes wishes;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    uint8_t *buffer;
    _Atomic unsigned completions; /* that were taken */
};

/* What one end must know of the other. */
struct address {
    union ibv_gid gid;
    uint32_t number, psn, rkey;
    uint64_t buffer;
};

struct ibv_context *open_device(int index);
struct sv_rail *rail(int device);
/* Sets a word of a rail and has everyone look. */
void set_fault(_Atomic uint64_t *word, uint64_t value);

struct end *make_end(struct wishes wishes);
struct address address_of(const struct end *end);
/* To RTS. */
void connect_end(struct end *end, struct address peer);
void end_end(struct end *end);
/* Two ends in this process, connected. */
void make_pair(struct end **a, struct end **b, struct wishes wishes);

struct ibv_send_wr request(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge *sge, struct address to, uint64_t offset);
struct ibv_sge piece(const struct end *end, uint64_t offset, uint32_t length);
int post(struct end *end, struct ibv_send_wr wr);
/* A signalled request for one piece of the buffer, at the same place there. */
int post_simple(struct end *from, enum ibv_wr_opcode opcode, uint64_t id, struct address to, uint64_t offset, uint32_t length);
int post_receive(struct end *end, uint64_t id, uint64_t offset, uint32_t length);
struct ibv_wc next_completion(struct end *end);
/* The next completion has this id and status. */
void expect(struct end *end, uint64_t id, enum ibv_wc_status status);
/* Until a counter is at least that. */
void wait_for(_Atomic uint64_t *counter, uint64_t value);
void nap(unsigned us);
void fill_bytes(uint8_t *bytes, size_t length, unsigned seed);
bool are_bytes(const uint8_t *bytes, size_t length, unsigned seed);

/* A fabric of this program's own, gone when it ends; then the cases. */
int run_on_a_fabric(const struct test_case *cases, size_t count, int argc, char **argv);

#endif
