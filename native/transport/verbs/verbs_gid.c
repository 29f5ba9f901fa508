#include "verbs_gid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_MOST 256 /* of a port's GIDs that are looked at */

/* In the order of preference: an address of IPv4 is what networks are set up for, one that is link-local passes no router. */
enum gid_family { GID_IPV4, GID_IPV6, GID_LINK_LOCAL, GID_NONE };
_Static_assert(GID_NONE == GV_VERBS_GIDS, "one of each");

static bool empty(const uint8_t gid[16]) {
    static const uint8_t none[16];
    return memcmp(gid, none, sizeof none) == 0;
}

static enum gid_family family_of(const uint8_t gid[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (empty(gid)) return GID_NONE;
    if (memcmp(gid, mapped, sizeof mapped) == 0) return gid[12] == 169 && gid[13] == 254 ? GID_LINK_LOCAL : GID_IPV4;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? GID_LINK_LOCAL : GID_IPV6;
}

bool gv_verbs_gids_meet(uint8_t link_layer, const uint8_t a[16], const uint8_t b[16]) {
    if (link_layer != IBV_LINK_LAYER_ETHERNET) return memcmp(a, b, 8) == 0;
    return family_of(a) != GID_NONE && family_of(a) == family_of(b);
}

/* What the kernel's files say; for libraries that do not. */
static uint32_t type_by_file(const char *device, uint8_t port, int index) {
    char path[200], text[32] = "";
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%d", device, port, index);
    FILE *file = fopen(path, "re");
    if (!file) return IBV_GID_TYPE_ROCE_V2;
    /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): a file of the kernel's, which has its text */
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    return strstr(text, "v2") ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
}

/* What the user names; -1: nothing. What is no number is none of the port's. */
static int named_index(void) {
    const char *said = getenv(GV_GID_VARIABLE);
    char *end;
    if (!said || !*said) return -1;
    long i = strtol(said, &end, 10);
    return *end || i < 0 || i > TABLE_MOST ? TABLE_MOST : (int)i;
}

uint32_t gv_verbs_gids(const struct verbs_library *library, struct ibv_context *context, const char *device, uint8_t port, uint8_t link_layer,
                       int table, struct verbs_gid gids[GV_VERBS_GIDS]) {
    struct verbs_gid first[GV_VERBS_GIDS];
    bool found[GV_VERBS_GIDS] = {false};
    uint32_t n = 0;
    bool only = named_index() >= 0 || link_layer != IBV_LINK_LAYER_ETHERNET; /* of another kind than RoCE v2, perhaps */
    int begin = named_index() >= 0 ? named_index() : 0, end = table < TABLE_MOST ? table : TABLE_MOST;
    for (int i = begin; i < (only && begin < end ? begin + 1 : end); i++) {
        struct ibv_gid_entry entry;
        memset(&entry, 0, sizeof entry);
        if (library->query_gid_ex) {
            if (library->query_gid_ex(context, port, (uint32_t)i, &entry, 0, sizeof entry)) memset(&entry, 0, sizeof entry);
        } else {
            if (library->query_gid(context, port, i, &entry.gid)) memset(&entry, 0, sizeof entry);
            entry.gid_type = type_by_file(device, port, i);
        }
        enum gid_family family = family_of(entry.gid.raw);
        if (family == GID_NONE || found[family] || (!only && entry.gid_type != IBV_GID_TYPE_ROCE_V2)) continue;
        found[family] = true;
        first[family] = (struct verbs_gid){i, entry.gid};
    }
    for (uint32_t family = 0; family < GV_VERBS_GIDS; family++)
        if (found[family]) gids[n++] = first[family];
    return n;
}
