/* Rails: ports of RDMA devices of this host that a link can use. */
#ifndef GV_VERBS_RAIL_H
#define GV_VERBS_RAIL_H

#include "verbs_library.h"

#define GV_VERBS_RAILS_MAX 8u

struct verbs_rail {
    struct ibv_context *context; /* opened once in the life of a process, for all links */
    uint8_t port;                /* from 1 */
    uint8_t link_layer;          /* IBV_LINK_LAYER_* */
    uint8_t mtu;                 /* enum ibv_mtu */
    uint16_t lid;
    uint8_t reads_out, reads_in; /* RDMA reads under way on a queue pair that it allows: those of its own, of the peer's */
    int gid_index;
    union ibv_gid gid;
    char name[64]; /* of the device, for people */
};

#define GV_GID_VARIABLE "GPUVIRT_GID_INDEX" /* which GID of each port, for whoever knows better */

/* The ports that are active now, in the library's order; how many. 0: `why` says what is in the way. */
uint32_t gv_verbs_rails(struct verbs_rail rails[GV_VERBS_RAILS_MAX], char why[GV_DEATH_TEXT]);
/* Opens the devices, for a process that cannot once it is in its box. */
void gv_verbs_prepare(void);

#endif
