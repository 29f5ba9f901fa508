#define _GNU_SOURCE
#include "verbs_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libibverbs.so.1"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct verbs_library functions;
static bool loaded;
static char reason[GV_DEATH_TEXT];

static bool look_up(void *library, const char *name, bool optional, void *into) {
    void *symbol = dlsym(library, name);
    memcpy(into, &symbol, sizeof symbol);
    if (!symbol && !optional) snprintf(reason, sizeof reason, "the RDMA library lacks %.60s", name);
    return symbol || optional;
}

static bool look_up_all(void *library) {
#define FIND(name) look_up(library, "ibv_" #name, false, &functions.name)
    return FIND(get_device_list) && FIND(free_device_list) && FIND(get_device_name) && FIND(open_device) && FIND(close_device) && FIND(query_port) &&
           FIND(query_gid) && FIND(alloc_pd) && FIND(dealloc_pd) && FIND(reg_mr) && FIND(dereg_mr) && FIND(create_comp_channel) &&
           FIND(destroy_comp_channel) && FIND(create_cq) && FIND(destroy_cq) && FIND(get_cq_event) && FIND(ack_cq_events) && FIND(create_qp) &&
           FIND(modify_qp) && FIND(destroy_qp) && FIND(wc_status_str) && FIND(query_device) && FIND(fork_init) &&
           look_up(library, "ibv_reg_dmabuf_mr", true, &functions.reg_dmabuf_mr) &&
           look_up(library, "ibv_is_fork_initialized", true, &functions.is_fork_initialized) &&
           look_up(library, "_ibv_query_gid_ex", true, &functions.query_gid_ex);
#undef FIND
}

static void load(void) {
    const char *path = getenv(GV_IBVERBS_VARIABLE);
    bool own = path && *path;
    /* NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): whoever sets the environment may have any library loaded */
    void *library = dlopen(own ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        if (own)
            snprintf(reason, sizeof reason, "%s: %.150s", GV_IBVERBS_VARIABLE, dlerror());
        else
            snprintf(reason, sizeof reason, "there is no %s; install rdma-core", LIBRARY);
        return;
    }
    loaded = look_up_all(library);
    /* Before anything is made with it: a kernel before 5.12 would let a forked child's first write take away pages that a device uses. */
    if (loaded) functions.fork_init();
}

const struct verbs_library *gv_verbs_library(char why[GV_DEATH_TEXT]) {
    pthread_once(&once, load);
    if (loaded) return &functions;
    snprintf(why, GV_DEATH_TEXT, "%s", reason);
    return NULL;
}
