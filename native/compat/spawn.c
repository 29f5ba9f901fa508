/* Programs that run a ptxas of their own, wherever they have it from (JAX: its wheel's), run ours instead: theirs knows no software GPU, and makes machine
 * code. It stands beside this library, in the folder compat. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static char ours[4096];

__attribute__((constructor)) static void find_ours(void) {
    Dl_info info;
    if (!dladdr((const void *)&ours, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash ? (int)(slash - info.dli_fname) : 0;
    int n = snprintf(ours, sizeof ours, "%.*s/compat/ptxas", folder, info.dli_fname);
    if (!slash || n < 0 || (size_t)n >= sizeof ours || access(ours, X_OK)) ours[0] = 0;
}

/* What is run when `path` is asked for. Only strings: this may be called between fork and exec. */
static const char *instead_of(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path;
    return name && ours[0] && !strcmp(name, "ptxas") ? ours : path;
}

#define REAL(name, ...)              \
    static int (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

EXPORT int execve(const char *path, char *const argv[], char *const envp[]) {
    REAL(execve, const char *, char *const[], char *const[]);
    return real(instead_of(path), argv, envp);
}

EXPORT int execv(const char *path, char *const argv[]) {
    REAL(execv, const char *, char *const[]);
    return real(instead_of(path), argv);
}

EXPORT int execvp(const char *path, char *const argv[]) {
    REAL(execvp, const char *, char *const[]);
    return real(instead_of(path), argv);
}

EXPORT int execvpe(const char *path, char *const argv[], char *const envp[]) {
    REAL(execvpe, const char *, char *const[], char *const[]);
    return real(instead_of(path), argv, envp);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                       char *const argv[], char *const envp[]) {
    REAL(posix_spawn, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);
    return real(pid, instead_of(path), actions, attributes, argv, envp);
}

EXPORT int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                        char *const argv[], char *const envp[]) {
    REAL(posix_spawnp, pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);
    return real(pid, instead_of(path), actions, attributes, argv, envp);
}
