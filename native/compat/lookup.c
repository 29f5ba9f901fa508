/* dlsym for programs that open NVRTC or libNVVM by themselves, as ctypes does, and take functions from it: what stands in front of one of these for programs
 * that are linked to the library (nvrtc.c, nvvm.c) is what they get. A process may have opened several: each has functions of its own, which remember it.
 * Every other look-up is the C library's.
 *
 * That one looks at its return address for who asks (RTLD_NEXT): it is jumped to, so that it returns to the caller itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "linked.h"

#define HIDDEN __attribute__((visibility("hidden"), used))
#define SLOTS 4

typedef void *program;
int nvrtcCompileProgram(program, int, const char *const *);
int nvrtcGetCUBINSize(program, size_t *);
int nvrtcGetCUBIN(program, char *);
int nvrtcDestroyProgram(program *);
int nvvmCompileProgram(program, int, const char **);
int nvvmVerifyProgram(program, int, const char **);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *base;
    void *library;
} opened[SLOTS];

/* ---- the functions of each library: the call is meant for it ------------------------------------------------------------ */

static int leave(void *before, int rc) {
    linked_library = before;
    return rc;
}

#define FUNCTION(slot, function, parameters, arguments) \
    static int function##_##slot parameters {           \
        void *before = linked_library;                  \
        linked_library = opened[slot].library;          \
        return leave(before, function arguments);       \
    }
#define FUNCTIONS(slot)                                                                                  \
    FUNCTION(slot, nvrtcCompileProgram, (program p, int n, const char *const *options), (p, n, options)) \
    FUNCTION(slot, nvrtcGetCUBINSize, (program p, size_t *size), (p, size))                              \
    FUNCTION(slot, nvrtcGetCUBIN, (program p, char *data), (p, data))                                    \
    FUNCTION(slot, nvrtcDestroyProgram, (program * p), (p))                                              \
    FUNCTION(slot, nvvmCompileProgram, (program p, int n, const char **options), (p, n, options))        \
    FUNCTION(slot, nvvmVerifyProgram, (program p, int n, const char **options), (p, n, options))
FUNCTIONS(0)
FUNCTIONS(1)
FUNCTIONS(2)
FUNCTIONS(3)

#define ROW(function, library)                                                                                         \
    {                                                                                                                  \
        #function, library, { (void *)function##_0, (void *)function##_1, (void *)function##_2, (void *)function##_3 } \
    }
static const struct {
    const char *name, *library;
    void *ours[SLOTS];
} replaced[] = {
    ROW(nvrtcCompileProgram, "/libnvrtc.so"), ROW(nvrtcGetCUBINSize, "/libnvrtc.so"), ROW(nvrtcGetCUBIN, "/libnvrtc.so"),
    ROW(nvrtcDestroyProgram, "/libnvrtc.so"), ROW(nvvmCompileProgram, "/libnvvm.so"), ROW(nvvmVerifyProgram, "/libnvvm.so"),
};

/* ---- looking up ----------------------------------------------------------------------------------------------------------- */

/* The slot of the library that a function is in, -1: it is another library's, or there are too many. */
static int slot_of(const void *function, const char *library) {
    Dl_info info;
    const char *slash = dladdr(function, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    if (!slash || strncmp(slash, library, strlen(library)) != 0) return -1;
    int slot = 0;
    pthread_mutex_lock(&lock);
    while (slot < SLOTS && opened[slot].base && opened[slot].base != info.dli_fbase) slot++;
    if (slot < SLOTS && !opened[slot].base) {
        opened[slot].library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD); /* for good: its functions are in use */
        opened[slot].base = opened[slot].library ? info.dli_fbase : NULL;
    }
    bool there = slot < SLOTS && opened[slot].base;
    pthread_mutex_unlock(&lock);
    return there ? slot : -1;
}

/* What to return, NULL: the C library's answer. */
HIDDEN void *compat_look_up(void *handle, const char *name) {
    libc_dlsym *libc = linked_libc_dlsym();
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || !name || name[0] != 'n' || name[1] != 'v') return NULL;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        if (strcmp(name, replaced[i].name) != 0) continue;
        const void *found = libc(handle, name);
        int slot = found ? slot_of(found, replaced[i].library) : -1;
        return slot < 0 ? NULL : replaced[i].ours[slot];
    }
    return NULL;
}

__asm__(".text\n"
        ".p2align 4\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    push %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    sub $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call compat_look_up\n"
        "    add $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    test %rax, %rax\n"
        "    jnz 1f\n"
        "    jmp *compat_libc_dlsym(%rip)\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        "    .size dlsym, . - dlsym\n");
