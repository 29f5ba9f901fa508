/* libNVVM for software GPUs. NVIDIA's library makes PTX for the architectures that it knows; asked for a newer one, as programs do that ask for their device's,
 * it is asked for the newest that it knows instead, whose PTX a software GPU loads as well.
 *
 * It is preloaded, so programs that are linked to libNVVM call it first; for those that open the library by themselves there is lookup.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "linked.h"

enum { OUT_OF_MEMORY = 1, COMPILATION_FAILURE = 9, INVALID_OPTION = 7 };

typedef int (*compile)(void *program, int n, const char **options);

static int newest_known(compile call, void *program, int n, const char **options) {
    static const int known[] = {121, 120, 110, 103, 101, 100, 90, 89, 87, 86, 80, 75}; /* the library says of none whether it knows it */
    static const char names_it[] = "-arch=compute_";
    char line[32];
    int arch = -1, rc = call(program, n, options);
    for (int i = 0; i < n; i++)
        if (options[i] && !strncmp(options[i], names_it, strlen(names_it))) arch = i; /* the last one counts */
    long asked = arch < 0 ? 0 : strtol(options[arch] + strlen(names_it), NULL, 10);
    for (size_t i = 0; rc == INVALID_OPTION && i < sizeof known / sizeof *known; i++) {
        if (known[i] >= asked) continue;
        snprintf(line, sizeof line, "%s%d", names_it, known[i]);
        options[arch] = line;
        rc = call(program, n, options);
    }
    return rc;
}

static int with_known(const char *name, const void *caller, void *program, int n, const char **options) {
    compile call;
    *(void **)&call = linked_function(name, "/libnvvm.so", caller);
    if (!call) return COMPILATION_FAILURE;
    if (n < 1 || !options) return call(program, n, options);
    const char **copy = malloc((size_t)n * sizeof *copy);
    if (!copy) return OUT_OF_MEMORY;
    memcpy(copy, options, (size_t)n * sizeof *copy);
    int rc = newest_known(call, program, n, copy);
    free(copy);
    return rc;
}

EXPORT int nvvmCompileProgram(void *program, int n, const char **options) { return with_known("nvvmCompileProgram", CALLER, program, n, options); }
EXPORT int nvvmVerifyProgram(void *program, int n, const char **options) { return with_known("nvvmVerifyProgram", CALLER, program, n, options); }
