/* A row behind those of the table: tcp whose two ends are sealed with a secret of the tests, whatever the handshake agreed on. */
#include "pair.h"

extern const struct gv_transport gv_tcp_transport;

static struct gv_link *sealed_connect(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    endpoint->seal = &test_secret;
    return gv_tcp_transport.connect(endpoint, why);
}

static struct gv_link *sealed_adopt(struct gv_endpoint *endpoint, char why[GV_DEATH_TEXT]) {
    endpoint->seal = &test_secret;
    return gv_tcp_transport.adopt(endpoint, why);
}

struct gv_transport gv_sealed_transport;

__attribute__((constructor)) static void fill_in(void) {
    gv_sealed_transport = gv_tcp_transport;
    gv_sealed_transport.name = "sealed";
    gv_sealed_transport.connect = sealed_connect;
    gv_sealed_transport.adopt = sealed_adopt;
}
