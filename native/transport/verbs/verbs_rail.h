/* Rails: ports of RDMA devices of this host that a link can use. */
#ifndef GV_VERBS_RAIL_H
#define GV_VERBS_RAIL_H

#include "verbs_gid.h"

#define GV_VERBS_RAILS_MAX 8u

struct verbs_rail {
    struct ibv_context *context; /* opened once in the life of a process, for all links */
    uint8_t port;                /* from 1 */
    uint8_t link_layer;          /* IBV_LINK_LAYER_* */
    uint8_t mtu;                 /* enum ibv_mtu */
    uint16_t lid;
    uint8_t reads_out, reads_in; /* RDMA reads under way on a queue pair that it allows: those of its own, of the peer's */
    uint32_t rate;               /* Mb/s */
    bool slow;                   /* less than half of the fastest one's rate */
    int numa;                    /* the node that the device is attached to, -1: none is told */
    struct verbs_gid gids[GV_VERBS_GIDS];
    uint32_t n_gids;
    uint32_t gid;  /* which of them meets the peer's port */
    char name[64]; /* of the device, for people */
};

/* The ports that are active now; how many. In the order in which gpuvirt/client/link_choice.py has them: slow ones last, those on the NUMA node of the first fastest
 * one first, by their rates. 0: `why` says what is in the way. */
uint32_t gv_verbs_rails(struct verbs_rail rails[GV_VERBS_RAILS_MAX], char why[GV_DEATH_TEXT]);
/* Which of the peer's port's GIDs, the best first, is in the rail's network; the rail's `gid` is the one that meets it. GV_VERBS_GIDS: none is. */
uint32_t gv_verbs_rail_meets(struct verbs_rail *rail, uint8_t link_layer, const uint8_t theirs[GV_VERBS_GIDS][16]);
/* The first of the rails, but of those in `taken` (bits), that meets a peer's port. GV_VERBS_RAILS_MAX: none does. */
uint32_t gv_verbs_rail_for(struct verbs_rail *rails, uint32_t n, uint32_t taken, uint8_t link_layer, const uint8_t theirs[GV_VERBS_GIDS][16]);
/* Opens the devices, for a process that cannot once it is in its box. */
void gv_verbs_prepare(void);

#endif
