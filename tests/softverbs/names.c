/* What the library says in words, need not do, and does not do. */
#include "softverbs.h"

#include <errno.h>

const char *ibv_wc_status_str(enum ibv_wc_status status) {
    static const char *const names[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    };
    return (size_t)status < sizeof names / sizeof *names && names[status] ? names[status] : "unknown";
}

int ibv_fork_init(void) { return 0; }
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

/* gpuvirt has no receives that queue pairs share, no queue that grows, and no use for events that no request asked for. */
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, void *init);
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, void *init) {
    (void)pd, (void)init;
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe);
int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
    (void)cq, (void)cqe;
    return EOPNOTSUPP;
}

int ibv_get_async_event(struct ibv_context *context, void *event);
int ibv_get_async_event(struct ibv_context *context, void *event) {
    (void)context, (void)event;
    return errno = EOPNOTSUPP, -1;
}
