/* Devices: found, opened, asked; protection domains. */
#include "softverbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

static struct ibv_device devices[SV_RAILS];

/* SOFTVERBS_DEVICES: how many, the first ones; or, with commas, which and in what order. */
static unsigned listed(unsigned which[SV_RAILS]) {
    const char *asked = getenv("SOFTVERBS_DEVICES");
    unsigned count = 0;
    if (asked && strchr(asked, ',')) {
        for (char *at = (char *)asked; *at && count < SV_RAILS; at += *at == ',') which[count++] = (unsigned)strtoul(at, &at, 10) % SV_RAILS;
        return count;
    }
    unsigned most = asked ? (unsigned)strtoul(asked, NULL, 10) : 1;
    for (; count < most && count < SV_RAILS; count++) which[count] = count;
    return count;
}

struct ibv_device **ibv_get_device_list(int *num_devices) {
    unsigned which[SV_RAILS], count = listed(which);
    struct ibv_device **list = count ? calloc(count + 1, sizeof *list) : NULL;
    if (num_devices) *num_devices = list ? (int)count : 0;
    if (!list) {
        errno = count ? ENOMEM : ENOSYS; /* as the library answers where the kernel has no RDMA */
        return NULL;
    }
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        list[i] = &devices[which[i]];
        if (list[i]->name[0]) continue;
        list[i]->node_type = IBV_NODE_CA;
        list[i]->transport_type = IBV_TRANSPORT_IB;
        snprintf(list[i]->name, sizeof list[i]->name, "softverbs%u", which[i]);
        snprintf(list[i]->dev_name, sizeof list[i]->dev_name, "uverbs%u", which[i]);
    }
    pthread_mutex_unlock(&lock);
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
int ibv_get_device_index(struct ibv_device *device);
int ibv_get_device_index(struct ibv_device *device) { return (int)(device - devices); }

uint64_t ibv_get_device_guid(struct ibv_device *device) { return sv_gid(NULL, (unsigned)ibv_get_device_index(device), 0).global.interface_id; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct sv_fabric *fabric = sv_fabric_map();
    struct sv_context *context = fabric ? calloc(1, sizeof *context) : NULL;
    if (!context) return NULL;
    context->ibv.device = device;
    context->ibv.ops.poll_cq = sv_poll_cq;
    context->ibv.ops.req_notify_cq = sv_req_notify_cq;
    context->ibv.ops.post_send = sv_post_send;
    context->ibv.ops.post_recv = sv_post_recv;
    context->ibv.cmd_fd = context->ibv.async_fd = -1;
    context->ibv.num_comp_vectors = 1;
    pthread_mutex_init(&context->ibv.mutex, NULL);
    pthread_mutex_init(&context->list, NULL);
    pthread_rwlock_init(&context->memory, NULL);
    context->index = (unsigned)ibv_get_device_index(device);
    context->fabric = fabric;
    context->rail = sv_rail(fabric, context->index);
    context->probe = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    /* SOFTVERBS_LATE: not before a protection domain. A process that has opened its devices has no threads then, and can close itself in. */
    if (context->probe >= 0 && (getenv("SOFTVERBS_LATE") || sv_progress_start(context))) return &context->ibv;
    if (context->probe >= 0) close(context->probe);
    free(context);
    return NULL;
}

/* Queue pairs that were left are gone, as the kernel would see to; what was allocated for them and others is lost. */
int ibv_close_device(struct ibv_context *ibv) {
    struct sv_context *context = sv_of(ibv);
    sv_progress_stop(context);
    for (struct sv_qp *qp = context->qps; qp; qp = qp->next) atomic_store(&qp->slot->number, 0);
    close(context->probe);
    free(context->regions);
    if (!atomic_load(&context->objects)) free(context);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct sv_pd *pd = sv_progress_start(sv_of(context)) ? calloc(1, sizeof *pd) : NULL;
    if (!pd) return NULL;
    pd->ibv.context = context;
    atomic_fetch_add(&sv_of(context)->objects, 1);
    return &pd->ibv;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    if (atomic_load(&((struct sv_pd *)pd)->users)) return EBUSY;
    atomic_fetch_sub(&sv_of(pd->context)->objects, 1);
    free(pd);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    *attr = (struct ibv_device_attr){
        .fw_ver = "softverbs",
        .node_guid = ibv_get_device_guid(context->device),
        .max_qp = SV_SLOTS - 1,
        .max_qp_wr = SV_MAX_WR,
        .device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN,
        .max_sge = SV_MAX_SGE,
        .max_sge_rd = SV_MAX_SGE,
        .max_cqe = 1 << 20,
        .max_qp_rd_atom = SV_MAX_READS,
        .max_qp_init_rd_atom = SV_MAX_READS,
        .atomic_cap = IBV_ATOMIC_NONE,
        .max_pkeys = 1,
        .phys_port_cnt = 1,
    };
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr) {
    if (port_num != 1) return EINVAL;
    bool down = atomic_load(&sv_of(context)->rail->port_down);
    struct ibv_port_attr known = {
        .state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_4096,
        .gid_tbl_len = 2,
        .max_msg_sz = 1 << 30,
        .pkey_tbl_len = 1,
        .active_width = 2,
        .active_speed = atomic_load(&sv_of(context)->rail->slow_port) ? 1 : 32,
        .phys_state = down ? 3 : 5,
        .link_layer = IBV_LINK_LAYER_ETHERNET,
    };
    memcpy(attr, &known, offsetof(struct ibv_port_attr, port_cap_flags2)); /* the public structure was shorter once */
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid) {
    if (port_num != 1 || index < 0 || index > 1) return errno = EINVAL, -1;
    *gid = sv_gid(sv_of(context)->fabric, sv_of(context)->index, (unsigned)index);
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags,
                      size_t entry_size) {
    if (flags || entry_size < sizeof *entry || port_num != 1) return EINVAL;
    *entry = (struct ibv_gid_entry){.gid_index = gid_index, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2};
    return ibv_query_gid(context, 1, (int)gid_index, &entry->gid) || !entry->gid.global.interface_id ? ENODATA : 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries, uint32_t flags, size_t entry_size) {
    if (flags || entry_size != sizeof *entries) return -EINVAL;
    ssize_t n = 0;
    while (n < 2 && (size_t)n < max_entries && !_ibv_query_gid_ex(context, 1, (uint32_t)n, &entries[n], 0, entry_size)) n++;
    return n;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, uint16_t *pkey) {
    (void)context;
    if (port_num != 1 || index != 0) return errno = EINVAL, -1;
    *pkey = 0xffff;
    return 0;
}
