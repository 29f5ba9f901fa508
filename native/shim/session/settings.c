/* Settings: GPUVIRT_* variables, copied at the first look at any of them, so that a program that changes its environment later (setenv is not
 * thread-safe) changes nothing halfway through a session. A program that runs with other rights than those of whoever started it (AT_SECURE: setuid,
 * setgid, capabilities) has no settings: its environment was made by somebody with fewer rights, and settings name files to write and servers to trust. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "session/session.h"

#define PREFIX "GPUVIRT_"
#define SETTINGS_MAX 64

extern char **environ;

static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static char *settings[SETTINGS_MAX];
static int n_settings;

static void read_settings(void) {
    if (getauxval(AT_SECURE)) return;
    for (char **e = environ; e && *e && n_settings < SETTINGS_MAX; e++) {
        if (strncmp(*e, PREFIX, sizeof PREFIX - 1) != 0) continue;
        char *copy = strdup(*e + sizeof PREFIX - 1);
        if (copy) settings[n_settings++] = copy;
    }
}

const char *shim_setting(const char *name, const char *fallback) {
    pthread_once(&settings_once, read_settings);
    size_t length = strlen(name);
    for (int i = 0; i < n_settings; i++) {
        if (strncmp(settings[i], name, length) != 0 || settings[i][length] != '=') continue;
        const char *value = settings[i] + length + 1;
        return *value ? value : fallback;
    }
    return fallback;
}

const char *shim_folder_setting(const char *variable) {
    const char *value = secure_getenv(variable);
    return value && *value == '/' ? value : NULL;
}
