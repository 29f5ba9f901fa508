/* The transports there are, the preferred first. A new one is a file with its row, and a line here. */
#include <stdio.h>
#include <string.h>

#include "link.h"

extern const struct gv_transport gv_shm_transport, gv_verbs_transport, gv_tcp_transport;
#ifdef GV_MORE_TRANSPORT /* a test adds a row of its own */
extern const struct gv_transport GV_MORE_TRANSPORT;
#endif

const struct gv_transport *const gv_transports[] = {
    &gv_shm_transport,
    &gv_verbs_transport,
    &gv_tcp_transport,
#ifdef GV_MORE_TRANSPORT
    &GV_MORE_TRANSPORT,
#endif
    NULL,
};

const struct gv_transport *gv_transport_named(const char *name) {
    for (int i = 0; gv_transports[i]; i++)
        if (strcmp(gv_transports[i]->name, name) == 0) return gv_transports[i];
    return NULL;
}

uint32_t gv_transports_usable(const char *wanted, uint32_t provides, const struct gv_transport *rows[GV_TRANSPORTS_MAX]) {
    uint32_t n = 0;
    char why[GV_DEATH_TEXT];
    for (int i = 0; gv_transports[i] && n < GV_TRANSPORTS_MAX; i++) {
        const struct gv_transport *row = gv_transports[i];
        if (*wanted && strcmp(wanted, row->name) != 0) continue;
        if (row->needs & ~provides) continue;
        if (!row->probe || row->probe(why)) rows[n++] = row;
    }
    return n;
}

void gv_link_prepare(const char *transport) {
    const struct gv_transport *row = gv_transport_named(transport);
    if (row && row->prepare) row->prepare();
}

struct gv_link *gv_link_adopt(const char *transport, struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    const struct gv_transport *row = gv_transport_named(transport);
    if (!row) {
        snprintf(why, GV_DEATH_TEXT, "this library has no transport %.40s", transport);
        return NULL;
    }
    if (endpoint->passed.n != row->descriptors) {
        snprintf(why, GV_DEATH_TEXT, "the transport %s takes %u descriptors, not %u", row->name, row->descriptors, endpoint->passed.n);
        return NULL;
    }
    return row->adopt(endpoint, why);
}
