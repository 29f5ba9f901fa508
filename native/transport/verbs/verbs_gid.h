/* GIDs: what a port is called in its network. */
#ifndef GV_VERBS_GID_H
#define GV_VERBS_GID_H

#include "verbs_library.h"

#define GV_VERBS_GIDS 3u /* that a link uses of a port: one of each family */

struct verbs_gid {
    int index; /* in the port's table */
    union ibv_gid gid;
};

#define GV_GID_VARIABLE "GPUVIRT_GID_INDEX" /* which GID of each port, for whoever knows better */

/* Those of a port by which links may meet it, the best first: of RoCE the first one of version 2 in each family, IPv4, IPv6, link-local; of InfiniBand the port's own;
 * or the one that the user names. table: how many the port has. How many were found. */
uint32_t gv_verbs_gids(const struct verbs_library *library, struct ibv_context *context, const char *device, uint8_t port, uint8_t link_layer,
                       int table, struct verbs_gid gids[GV_VERBS_GIDS]);
/* Whether they are in one network, as far as they show it: InfiniBand's subnet prefix, of RoCE the family. */
bool gv_verbs_gids_meet(uint8_t link_layer, const uint8_t a[16], const uint8_t b[16]);

#endif
