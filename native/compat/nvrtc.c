/* NVRTC for software GPUs. NVIDIA's library makes machine code for the devices that it knows (sm_90); asked for that, or for a device that it does not know,
 * it is asked for PTX instead, and what the program then gets as machine code is the PTX, which a software GPU loads as well.
 *
 * It is preloaded, so programs that are linked to NVRTC call it first; for those that open the library by themselves there is lookup.c. */
#include <ctype.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "linked.h"

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, INTERNAL_ERROR = 11, MOST_ARCHS = 64, LONGEST_ARCH = 24 };

typedef void *program;

static void *real(const char *name, const void *caller) { return linked_function(name, "/libnvrtc.so", caller); }

/* ---- architectures ------------------------------------------------------------------------------------------------------ */

/* The newest architecture that the library knows and that is no newer than the one asked for; what is asked for where it says nothing. */
static int known_arch(int asked, const void *caller) {
    int (*count)(int *), (*list)(int *), n = 0, archs[MOST_ARCHS], best = 0, oldest = 0;
    *(void **)&count = real("nvrtcGetNumSupportedArchs", caller);
    *(void **)&list = real("nvrtcGetSupportedArchs", caller);
    if (!count || !list || count(&n) || n < 1 || n > MOST_ARCHS || list(archs)) return asked;
    for (int i = 0; i < n; i++) {
        if (archs[i] <= asked && archs[i] > best) best = archs[i];
        if (!oldest || archs[i] < oldest) oldest = archs[i];
    }
    return best ? best : oldest;
}

/* The architecture's name in an option, if it is one; `next` is the option behind it, in which its value may be. */
static const char *arch_value(const char *option, const char *next, bool *in_next) {
    static const char *const names[] = {"--gpu-architecture", "-arch"};
    *in_next = false;
    for (size_t i = 0; option && i < sizeof names / sizeof *names; i++) {
        size_t size = strlen(names[i]);
        if (strncmp(option, names[i], size) != 0) continue;
        if (option[size] == '=') return option + size + 1;
        *in_next = !option[size];
        if (*in_next) return next;
    }
    return NULL;
}

/* Writes what to ask for instead of `arch`: whether that is needed. `machine_code`: it names a device's own. */
static bool other_arch(const char *arch, const void *caller, char out[LONGEST_ARCH], bool *machine_code) {
    *machine_code = !strncmp(arch, "sm_", 3);
    const char *number = *machine_code ? arch + 3 : arch + strlen("compute_");
    if (!*machine_code && strncmp(arch, "compute_", strlen("compute_")) != 0) return false;
    if (!isdigit((unsigned char)*number)) return false;
    char *suffix;
    long asked = strtol(number, &suffix, 10);
    int known = known_arch((int)asked, caller);
    if (known == asked && !*machine_code) return false;
    snprintf(out, LONGEST_ARCH, "compute_%d%.4s", known, known == asked ? suffix : "");
    return true;
}

/* ---- programs whose machine code is PTX ------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct replaced {
    struct replaced *next;
    program program;
} *first;

/* Where a program is noted; what holds it is NULL if it is not. */
static struct replaced **place_of(program p) {
    struct replaced **place = &first;
    while (*place && (*place)->program != p) place = &(*place)->next;
    return place;
}

static bool is_replaced(program p) {
    pthread_mutex_lock(&lock);
    bool found = *place_of(p) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool note(program p) {
    bool noted = true;
    pthread_mutex_lock(&lock);
    struct replaced **place = place_of(p);
    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (*place) (*place)->program = p;
        noted = *place != NULL;
    }
    pthread_mutex_unlock(&lock);
    return noted;
}

static void forget(program p) {
    pthread_mutex_lock(&lock);
    struct replaced **place = place_of(p), *old = *place;
    if (old) *place = old->next;
    pthread_mutex_unlock(&lock);
    free(old);
}

/* ---- the interface -------------------------------------------------------------------------------------------------------- */

EXPORT int nvrtcCompileProgram(program p, int n, const char *const *options) {
    const void *caller = CALLER;
    int (*compile)(program, int, const char *const *);
    *(void **)&compile = real("nvrtcCompileProgram", caller);
    if (!compile) return INTERNAL_ERROR;
    if (!p || n < 1 || !options) return compile(p, n, options);
    char arch[LONGEST_ARCH], line[LONGEST_ARCH + 24];
    bool machine_code = false;
    const char **changed = malloc((size_t)n * sizeof *changed);
    if (!changed) return OUT_OF_MEMORY;
    for (int i = 0; i < n; i++) {
        bool in_next;
        const char *value = arch_value(options[i], i + 1 < n ? options[i + 1] : NULL, &in_next);
        changed[i] = options[i];
        if (!value) continue;
        bool other = other_arch(value, caller, arch, &machine_code); /* the last one counts, as it does for NVRTC */
        if (!other) continue;
        snprintf(line, sizeof line, "--gpu-architecture=%s", arch);
        changed[i] = line;
        if (in_next && i + 1 < n) {
            changed[i++] = "--gpu-architecture";
            changed[i] = arch;
        }
    }
    if (!machine_code) forget(p);
    int rc = machine_code && !note(p) ? OUT_OF_MEMORY : compile(p, n, changed);
    free(changed);
    return rc;
}

static int call_size(const char *name, const void *caller, program p, size_t *size) {
    int (*function)(program, size_t *);
    *(void **)&function = real(name, caller);
    return function ? function(p, size) : INTERNAL_ERROR;
}

static int call_data(const char *name, const void *caller, program p, char *data) {
    int (*function)(program, char *);
    *(void **)&function = real(name, caller);
    return function ? function(p, data) : INTERNAL_ERROR;
}

EXPORT int nvrtcGetCUBINSize(program p, size_t *size) { return call_size(is_replaced(p) ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize", CALLER, p, size); }
EXPORT int nvrtcGetCUBIN(program p, char *data) { return call_data(is_replaced(p) ? "nvrtcGetPTX" : "nvrtcGetCUBIN", CALLER, p, data); }

EXPORT int nvrtcDestroyProgram(program *p) {
    int (*destroy)(program *);
    *(void **)&destroy = real("nvrtcDestroyProgram", CALLER);
    if (p && *p) forget(*p); /* before it is gone: its address may be another's at once */
    return destroy ? destroy(p) : INTERNAL_ERROR;
}
