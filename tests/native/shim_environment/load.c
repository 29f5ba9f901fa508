/* Loads a library and says whether the program runs with other rights than those of whoever started it: load LIBRARY. */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/auxv.h>

int main(int argc, char **argv) {
    if (argc != 2 || !dlopen(argv[1], RTLD_NOW)) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "load LIBRARY");
        return 1;
    }
    puts(getauxval(AT_SECURE) ? "secure" : "plain");
    return 0;
}
