/* Writes its argument as the shim writes messages: log TEXT. */
#include "session/session.h"

int main(int argc, char **argv) {
    if (argc == 2) shim_log("the server says: %s", argv[1]);
    return argc != 2;
}
