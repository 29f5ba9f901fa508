/* Prints the table of transports: name, needs, further connections, whether it resumes, whether it is sealed. */
#include <stdio.h>

#include "../../../native/transport/link.h"

int main(void) {
    for (int i = 0; gv_transports[i]; i++) {
        const struct gv_transport *t = gv_transports[i];
        printf("%s %u %u %d %d\n", t->name, t->needs, t->connections, t->redial && t->resume, t->seals);
    }
    return 0;
}
