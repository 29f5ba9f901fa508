/* Replaces a program named ptxas by ours when a process is started: JAX runs the ptxas of its wheel, which generates machine code and does not know software
 * GPUs. Ours is in the folder compat beside this library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef const posix_spawn_file_actions_t *actions;
typedef const posix_spawnattr_t *attributes;
typedef char *const *strings;

/* The C library's own. Looked up at the start: between fork and exec dlsym may wait for a lock that nobody will release. */
static struct {
    int (*execve)(const char *, strings, strings);
    int (*execv)(const char *, strings);
    int (*execvp)(const char *, strings);
    int (*execvpe)(const char *, strings, strings);
    int (*posix_spawn)(pid_t *, const char *, actions, attributes, strings, strings);
    int (*posix_spawnp)(pid_t *, const char *, actions, attributes, strings, strings);
} real;

static char ours[4096];

__attribute__((constructor)) static void look_up(void) {
    *(void **)&real.execve = dlsym(RTLD_NEXT, "execve");
    *(void **)&real.execv = dlsym(RTLD_NEXT, "execv");
    *(void **)&real.execvp = dlsym(RTLD_NEXT, "execvp");
    *(void **)&real.execvpe = dlsym(RTLD_NEXT, "execvpe");
    *(void **)&real.posix_spawn = dlsym(RTLD_NEXT, "posix_spawn");
    *(void **)&real.posix_spawnp = dlsym(RTLD_NEXT, "posix_spawnp");
    Dl_info info;
    if (!dladdr((const void *)&ours, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname) : 0;
    int n = snprintf(ours, sizeof ours, "%.*s/compat/ptxas", folder, info.dli_fname);
    if (!slash || n < 0 || (size_t)n >= sizeof ours || access(ours, X_OK)) ours[0] = 0;
}

/* For what another library's constructor starts before ours has run. */
static void ready(void) {
    if (!real.posix_spawnp) look_up();
}

/* What is run when `path` is asked for. Only strings: this may be called between fork and exec. */
static const char *instead_of(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path;
    return name && ours[0] && !strcmp(name, "ptxas") ? ours : path;
}

EXPORT int execve(const char *path, char *const argv[], char *const envp[]) {
    ready();
    return real.execve(instead_of(path), argv, envp);
}

EXPORT int execv(const char *path, char *const argv[]) {
    ready();
    return real.execv(instead_of(path), argv);
}

EXPORT int execvp(const char *path, char *const argv[]) {
    ready();
    return real.execvp(instead_of(path), argv);
}

EXPORT int execvpe(const char *path, char *const argv[], char *const envp[]) {
    ready();
    return real.execvpe(instead_of(path), argv, envp);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                       char *const argv[], char *const envp[]) {
    ready();
    return real.posix_spawn(pid, instead_of(path), actions, attributes, argv, envp);
}

EXPORT int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                        char *const argv[], char *const envp[]) {
    ready();
    return real.posix_spawnp(pid, instead_of(path), actions, attributes, argv, envp);
}
