#define _GNU_SOURCE
#include "verbs_rail.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define READS_MOST 128
#define GIDS_MAX 256 /* of a port that are looked at */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened {
    struct ibv_context *context;
    uint8_t reads_out, reads_in;
    int numa;
    char name[64];
} devices[DEVICES_MAX];
static uint32_t n_devices;
static pid_t opened_by; /* a forked child opens its own */
static char cannot[GV_DEATH_TEXT];

/* ---- devices */

/* One at least: every device has reads on reliable connections. */
static uint8_t read_depth(int said) { return (uint8_t)(said < 1 ? 1 : said > READS_MOST ? READS_MOST : said); }

static int numa_node(const char *device) {
    char path[120], text[16] = "";
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/numa_node", device);
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): a file of the kernel's, which has its text */
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    char *end;
    long node = strtol(text, &end, 10);
    return end == text || node < 0 || node > INT16_MAX ? -1 : (int)node;
}

static void look_at_device(const struct verbs_library *library, struct opened *o) {
    struct ibv_device_attr attr;
    memset(&attr, 0, sizeof attr);
    if (library->query_device(o->context, &attr)) attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = 1;
    o->reads_in = read_depth(attr.max_qp_rd_atom);
    o->reads_out = read_depth(attr.max_qp_init_rd_atom);
    o->numa = numa_node(o->name);
}

static void open_all(const struct verbs_library *library) {
    int n = 0;
    struct ibv_device **list = library->get_device_list(&n);
    n_devices = 0;
    snprintf(cannot, sizeof cannot, "there is no RDMA device");
    for (int i = 0; list && i < n && n_devices < DEVICES_MAX; i++) {
        struct opened *o = &devices[n_devices];
        snprintf(o->name, sizeof o->name, "%s", library->get_device_name(list[i]));
        o->context = library->open_device(list[i]);
        if (o->context) {
            look_at_device(library, o);
            n_devices++;
        } else {
            snprintf(cannot, sizeof cannot, "the RDMA device %.60s cannot be opened: %s", o->name, strerror(errno));
        }
    }
    if (list) library->free_device_list(list);
    opened_by = getpid();
}

/* ---- GIDs: what a port is called in its network */

static bool mapped_ipv4(const union ibv_gid *g) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(g->raw, prefix, sizeof prefix) == 0;
}

static bool link_local(const union ibv_gid *g) {
    return mapped_ipv4(g) ? g->raw[12] == 169 && g->raw[13] == 254 : g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

static bool empty(const union ibv_gid *g) {
    static const union ibv_gid none;
    return memcmp(g, &none, sizeof none) == 0;
}

/* What the kernel's files say; for libraries that do not. */
static uint32_t type_by_file(const char *device, uint8_t port, uint32_t index) {
    char path[200], text[32] = "";
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%u", device, port, index);
    FILE *file = fopen(path, "re");
    if (!file) return IBV_GID_TYPE_ROCE_V2;
    /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): a file of the kernel's, which has its text */
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    return strstr(text, "v2") ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB;
}

enum gid_family { GID_IPV4, GID_IPV6, GID_LINK_LOCAL };

static enum gid_family family_of(const union ibv_gid *g) { return link_local(g) ? GID_LINK_LOCAL : mapped_ipv4(g) ? GID_IPV4 : GID_IPV6; }

/* How good it is for RoCE, version 2: an address of IPv4 is what networks are set up for, one that is link-local passes no router. 0: of no use. */
static int gid_merit(const union ibv_gid *gid, uint32_t type) {
    if (empty(gid) || type != IBV_GID_TYPE_ROCE_V2) return 0;
    return link_local(gid) ? 1 : mapped_ipv4(gid) ? 3 : 2;
}

static uint32_t gid_at(const struct verbs_library *library, const struct opened *o, uint8_t port, uint32_t index, union ibv_gid *gid) {
    struct ibv_gid_entry entry;
    if (library->query_gid_ex) {
        if (library->query_gid_ex(o->context, port, index, &entry, 0, sizeof entry)) memset(&entry, 0, sizeof entry);
        *gid = entry.gid;
        return entry.gid_type;
    }
    if (library->query_gid(o->context, port, (int)index, gid)) memset(gid, 0, sizeof *gid);
    return type_by_file(o->name, port, index);
}

/* What the user names; -1: nothing. What is no number is none of the port's. */
static int named_gid(void) {
    const char *said = getenv(GV_GID_VARIABLE);
    char *end;
    if (!said || !*said) return -1;
    long i = strtol(said, &end, 10);
    return *end || i < 0 || i > GIDS_MAX ? GIDS_MAX : (int)i;
}

/* The best one, or the one that the user names. False: there is none. */
static bool choose_gid(const struct verbs_library *library, const struct opened *o, struct verbs_rail *rail, int n) {
    int best = 0;
    bool named = named_gid() >= 0;
    for (int i = named ? named_gid() : 0; i < (n < GIDS_MAX ? n : GIDS_MAX); i++) {
        union ibv_gid gid;
        uint32_t type = gid_at(library, o, rail->port, (uint32_t)i, &gid);
        bool other = named || rail->link_layer != IBV_LINK_LAYER_ETHERNET; /* of another kind than RoCE v2, perhaps */
        int merit = other ? !empty(&gid) : gid_merit(&gid, type);
        if (merit > best) {
            best = merit;
            rail->gid_index = i;
            rail->gid = gid;
        }
        if (other) break; /* of InfiniBand the first is the port's own */
    }
    return best;
}

static const struct opened *device_of(const struct verbs_rail *rail) {
    for (uint32_t i = 0; i < n_devices; i++)
        if (devices[i].context == rail->context) return &devices[i];
    return NULL;
}

/* Takes a GID of RoCE v2 of this family. False: the port has none, or its user has named another. lock held. */
static bool take_family(struct verbs_rail *rail, enum gid_family family) {
    char why[GV_DEATH_TEXT];
    const struct verbs_library *library = gv_verbs_library(why);
    const struct opened *o = device_of(rail);
    for (int i = 0; library && o && named_gid() < 0 && i < (rail->gids < GIDS_MAX ? rail->gids : GIDS_MAX); i++) {
        union ibv_gid gid;
        uint32_t type = gid_at(library, o, rail->port, (uint32_t)i, &gid);
        if (!gid_merit(&gid, type) || family_of(&gid) != family) continue;
        rail->gid_index = i;
        rail->gid = gid;
        return true;
    }
    return false;
}

static bool reaches(struct verbs_rail *rail, uint8_t link_layer, const union ibv_gid *theirs) {
    if (rail->link_layer != link_layer) return false;
    if (link_layer != IBV_LINK_LAYER_ETHERNET) return memcmp(rail->gid.raw, theirs->raw, 8) == 0;
    return family_of(&rail->gid) == family_of(theirs) || take_family(rail, family_of(theirs));
}

uint32_t gv_verbs_rail_for(struct verbs_rail *rails, uint32_t n, uint32_t taken, uint8_t link_layer, const uint8_t gid[16]) {
    union ibv_gid theirs;
    uint32_t i = 0;
    memcpy(theirs.raw, gid, sizeof theirs.raw);
    pthread_mutex_lock(&lock);
    while (i < n && (taken & 1u << i || !reaches(&rails[i], link_layer, &theirs))) i++;
    pthread_mutex_unlock(&lock);
    return i < n ? i : GV_VERBS_RAILS_MAX;
}

/* ---- ports */

/* Mb/s: what the port's speed and width stand for (IBTA, PortInfo). */
static uint32_t rate_of(const struct ibv_port_attr *attr) {
    static const struct {
        uint8_t speed;
        uint32_t rate; /* of a lane */
    } speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10313}, {16, 14063}, {32, 25781}, {64, 53125}, {128, 106250}};
    static const struct {
        uint8_t width, lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint32_t rate = 0, lanes = 1;
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (speeds[i].speed == attr->active_speed) rate = speeds[i].rate;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].width == attr->active_width) lanes = widths[i].lanes;
    return rate * lanes;
}

/* Whether a comes before b, near: the NUMA node of the first fastest one. */
static bool better(const struct verbs_rail *a, const struct verbs_rail *b, int near) {
    if (a->slow != b->slow) return b->slow;
    if ((a->numa == near) != (b->numa == near)) return a->numa == near;
    return a->rate > b->rate;
}

static void put_in_order(struct verbs_rail *rails, uint32_t n) {
    uint32_t fastest = 0;
    int near = -1;
    for (uint32_t i = 0; i < n; i++)
        if (rails[i].rate > fastest) fastest = rails[i].rate, near = rails[i].numa;
    for (uint32_t i = 0; i < n; i++) rails[i].slow = 2 * rails[i].rate < fastest;
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t k = i; k && better(&rails[k], &rails[k - 1], near); k--) {
            struct verbs_rail other = rails[k];
            rails[k] = rails[k - 1];
            rails[k - 1] = other;
        }
}

/* False: it is of no use now, and `why` says so. */
static bool use_port(const struct verbs_library *library, const struct opened *o, uint8_t port, struct verbs_rail *rail, char why[GV_DEATH_TEXT]) {
    struct ibv_port_attr attr;
    memset(&attr, 0, sizeof attr);
    if (library->query_port(o->context, port, &attr)) return false;
    if (attr.state != IBV_PORT_ACTIVE) {
        snprintf(why, GV_DEATH_TEXT, "port %u of the RDMA device %.60s is not active", port, o->name);
        return false;
    }
    *rail = (struct verbs_rail){.context = o->context,
                                .port = port,
                                .link_layer = attr.link_layer,
                                .mtu = (uint8_t)attr.active_mtu,
                                .lid = attr.lid,
                                .reads_out = o->reads_out,
                                .reads_in = o->reads_in,
                                .rate = rate_of(&attr),
                                .numa = o->numa,
                                .gids = attr.gid_tbl_len,
                                .gid_index = -1};
    snprintf(rail->name, sizeof rail->name, "%s", o->name);
    if (choose_gid(library, o, rail, attr.gid_tbl_len) || attr.link_layer == IBV_LINK_LAYER_INFINIBAND) return true;
    snprintf(why, GV_DEATH_TEXT, "port %u of the RDMA device %.60s has no RoCE v2 GID%s", port, o->name,
             getenv(GV_GID_VARIABLE) ? " where " GV_GID_VARIABLE " says" : "");
    return false;
}

uint32_t gv_verbs_rails(struct verbs_rail rails[GV_VERBS_RAILS_MAX], char why[GV_DEATH_TEXT]) {
    const struct verbs_library *library = gv_verbs_library(why);
    uint32_t n = 0;
    if (!library) return 0;
    pthread_mutex_lock(&lock);
    if (opened_by != getpid()) open_all(library);
    snprintf(why, GV_DEATH_TEXT, "%s", cannot);
    for (uint32_t d = 0; d < n_devices; d++)
        for (uint8_t port = 1; n < GV_VERBS_RAILS_MAX && port <= 2; port++)
            if (use_port(library, &devices[d], port, &rails[n], why)) n++;
    pthread_mutex_unlock(&lock);
    put_in_order(rails, n);
    return n;
}

void gv_verbs_prepare(void) {
    struct verbs_rail rails[GV_VERBS_RAILS_MAX];
    char why[GV_DEATH_TEXT];
    gv_verbs_rails(rails, why);
}
