/* libibverbs, loaded when a verbs link is first thought of. What is missing is no fault: the link goes over something else then. */
#ifndef GV_VERBS_LIBRARY_H
#define GV_VERBS_LIBRARY_H

#include "../transport.h"
#include "verbs_abi.h"

/* Its functions, by their names without ibv_. */
struct verbs_library {
    struct ibv_device **(*get_device_list)(int *n);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *at, size_t size, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int size, void *arg, struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **arg);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*fork_init)(void);
    /* NULL in libraries before rdma-core 34. */
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t size, uint64_t iova, int fd, int access);
    /* NULL in libraries before rdma-core 35. */
    enum ibv_fork_status (*is_fork_initialized)(void);
    /* NULL in libraries before rdma-core 33: then the kernel's files say what a GID is. */
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size);
};

#define GV_IBVERBS_VARIABLE "GPUVIRT_IBVERBS" /* the library's path, for whoever has it elsewhere */

/* The library, the same for the life of the process. NULL with a reason in `why`, for `gpuvirt doctor`. */
const struct verbs_library *gv_verbs_library(char why[GV_DEATH_TEXT]);

#endif
