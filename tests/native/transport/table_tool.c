/* Prints the table of transports: name, needs, further connections, whether it resumes. */
#include <stdio.h>

#include "../../../native/transport/link.h"

int main(void) {
    for (int i = 0; gv_transports[i]; i++) {
        const struct gv_transport *t = gv_transports[i];
        printf("%s %u %u %d\n", t->name, t->needs, t->connections, t->redial && t->resume);
    }
    return 0;
}
