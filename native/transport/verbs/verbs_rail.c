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

/* ---- networks */

uint32_t gv_verbs_rail_meets(struct verbs_rail *rail, uint8_t link_layer, const uint8_t theirs[GV_VERBS_GIDS][16]) {
    for (uint32_t k = 0; rail->link_layer == link_layer && k < GV_VERBS_GIDS; k++)
        for (uint32_t i = 0; i < rail->n_gids; i++)
            if (gv_verbs_gids_meet(link_layer, rail->gids[i].gid.raw, theirs[k])) {
                rail->gid = i;
                return k;
            }
    return GV_VERBS_GIDS;
}

uint32_t gv_verbs_rail_for(struct verbs_rail *rails, uint32_t n, uint32_t taken, uint8_t link_layer, const uint8_t theirs[GV_VERBS_GIDS][16]) {
    for (uint32_t i = 0; i < n; i++)
        if (!(taken & 1u << i) && gv_verbs_rail_meets(&rails[i], link_layer, theirs) < GV_VERBS_GIDS) return i;
    return GV_VERBS_RAILS_MAX;
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
                                .numa = o->numa};
    snprintf(rail->name, sizeof rail->name, "%s", o->name);
    rail->n_gids = gv_verbs_gids(library, o->context, o->name, port, attr.link_layer, attr.gid_tbl_len, rail->gids);
    if (!rail->n_gids && attr.link_layer == IBV_LINK_LAYER_INFINIBAND) rail->n_gids = 1; /* it has a local address: none is asked for */
    if (rail->n_gids) return true;
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
