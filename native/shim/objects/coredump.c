/* Core dumps: what a program sets of them is kept and told. None is written, because the state of a faulted GPU stays on the server; a fault in a context for which
 * dumps are enabled says so. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gv_impl.h"
#include "objects/objects.h"
#include "objects/registrations.h"

#define TEXT 1024u /* bytes of a path, its NUL included */

struct settings {
    struct settings *next;
    uint32_t ctx; /* 0: of all contexts */
    bool enabled, by_user;
    unsigned flags; /* CUCoredumpGenerationFlags */
    char file[TEXT], pipe[TEXT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings global;
static struct settings *own;                      /* of contexts that have some of their own */
static bool set_up, enabled_by_env, named_by_env; /* the environment has precedence */

static bool is_on(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

/* lock held */
static void begin(void) {
    if (set_up) return;
    set_up = true;
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = 0;
    snprintf(global.file, sizeof global.file, "core.cuda.%s.%d", host, (int)getpid());
    snprintf(global.pipe, sizeof global.pipe, "corepipe.cuda.%s.%d", host, (int)getpid());
    global.enabled = enabled_by_env = is_on("CUDA_ENABLE_COREDUMP_ON_EXCEPTION");
    const char *file = getenv("CUDA_COREDUMP_FILE");
    named_by_env = file && *file && strlen(file) < TEXT;
    if (named_by_env) snprintf(global.file, sizeof global.file, "%s", file);
}

static struct settings *own_of(uint32_t ctx) {
    struct settings *s = own;
    while (s && s->ctx != ctx) s = s->next;
    return s;
}

/* A context's settings are the global ones until it sets one itself. lock held; NULL: out of memory. */
static struct settings *to_change(uint32_t ctx) {
    struct settings *s = ctx ? own_of(ctx) : &global;
    if (s) return s;
    s = malloc(sizeof *s);
    if (!s) return NULL;
    *s = global;
    s->ctx = ctx;
    s->next = own;
    own = s;
    return s;
}

static size_t size_of(CUcoredumpSettings which) {
    switch (which) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
    case CU_COREDUMP_TRIGGER_HOST:
    case CU_COREDUMP_LIGHTWEIGHT:
    case CU_COREDUMP_ENABLE_USER_TRIGGER: return sizeof(bool);
    case CU_COREDUMP_FILE:
    case CU_COREDUMP_PIPE: return TEXT;
    case CU_COREDUMP_GENERATION_FLAGS: return sizeof(unsigned);
    default: return 0;
    }
}

static void read_one(const struct settings *s, CUcoredumpSettings which, void *out) {
    switch (which) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION: *(bool *)out = s->enabled; break;
    case CU_COREDUMP_TRIGGER_HOST: *(bool *)out = !(s->flags & CU_COREDUMP_SKIP_ABORT); break;
    case CU_COREDUMP_LIGHTWEIGHT: *(bool *)out = (s->flags & CU_COREDUMP_LIGHTWEIGHT_FLAGS) == CU_COREDUMP_LIGHTWEIGHT_FLAGS; break;
    case CU_COREDUMP_ENABLE_USER_TRIGGER: *(bool *)out = s->by_user; break;
    case CU_COREDUMP_FILE: memcpy(out, s->file, strlen(s->file) + 1); break;
    case CU_COREDUMP_PIPE: memcpy(out, s->pipe, strlen(s->pipe) + 1); break;
    default: memcpy(out, &s->flags, sizeof s->flags); break;
    }
}

static size_t used_by(const struct settings *s, CUcoredumpSettings which) {
    return which == CU_COREDUMP_FILE ? strlen(s->file) + 1 : which == CU_COREDUMP_PIPE ? strlen(s->pipe) + 1 : size_of(which);
}

static int get(uint32_t ctx, CUcoredumpSettings which, void *value, size_t *size) {
    if (!size || !size_of(which)) return CUDA_ERROR_INVALID_VALUE;
    if (!value) {
        *size = size_of(which);
        return 0;
    }
    pthread_mutex_lock(&lock);
    begin();
    const struct settings *found = ctx ? own_of(ctx) : NULL, *s = found ? found : &global;
    int rc = *size < used_by(s, which) ? CUDA_ERROR_INVALID_VALUE : 0;
    if (!rc) {
        read_one(s, which, value);
        *size = used_by(s, which);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static void set_flags(struct settings *s, unsigned flags, bool on) { s->flags = on ? s->flags | flags : s->flags & ~flags; }

/* Of a text, `size` counts its bytes, with or without the NUL. */
static void write_one(struct settings *s, CUcoredumpSettings which, const void *value, size_t size) {
    bool on = size == sizeof(bool) && *(const bool *)value;
    switch (which) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION: s->enabled = on || enabled_by_env; break;
    case CU_COREDUMP_TRIGGER_HOST: set_flags(s, CU_COREDUMP_SKIP_ABORT, !on); break;
    case CU_COREDUMP_LIGHTWEIGHT: set_flags(s, CU_COREDUMP_LIGHTWEIGHT_FLAGS, on); break;
    case CU_COREDUMP_ENABLE_USER_TRIGGER: s->by_user = on; break;
    case CU_COREDUMP_FILE:
        if (!named_by_env) snprintf(s->file, sizeof s->file, "%.*s", (int)size, (const char *)value);
        break;
    case CU_COREDUMP_PIPE: snprintf(s->pipe, sizeof s->pipe, "%.*s", (int)size, (const char *)value); break;
    default: memcpy(&s->flags, value, sizeof s->flags); break;
    }
}

static int set(uint32_t ctx, CUcoredumpSettings which, const void *value, size_t *size) {
    if (!size || !size_of(which)) return CUDA_ERROR_INVALID_VALUE;
    if (!value) {
        *size = size_of(which);
        return 0;
    }
    bool text = which == CU_COREDUMP_FILE || which == CU_COREDUMP_PIPE;
    if (text ? !*size || strnlen(value, *size) >= TEXT : *size != size_of(which)) return CUDA_ERROR_INVALID_VALUE;
    if (ctx && (which == CU_COREDUMP_ENABLE_USER_TRIGGER || which == CU_COREDUMP_PIPE)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    begin();
    struct settings *s = to_change(ctx);
    int rc = !s ? CUDA_ERROR_OUT_OF_MEMORY : which == CU_COREDUMP_PIPE && s->by_user ? CUDA_ERROR_NOT_PERMITTED : 0;
    if (!rc) write_one(s, which, value, *size);
    pthread_mutex_unlock(&lock);
    return rc;
}

CUresult impl_cuCoredumpGetAttribute(CUcoredumpSettings which, void *value, size_t *size) {
    struct shim_context *c;
    int rc = context_require(&c);
    return rc ? rc : get(c->id, which, value, size);
}

CUresult impl_cuCoredumpSetAttribute(CUcoredumpSettings which, void *value, size_t *size) {
    struct shim_context *c;
    int rc = context_require(&c);
    return rc ? rc : set(c->id, which, value, size);
}

CUresult impl_cuCoredumpGetAttributeGlobal(CUcoredumpSettings which, void *value, size_t *size) { return get(0, which, value, size); }
CUresult impl_cuCoredumpSetAttributeGlobal(CUcoredumpSettings which, void *value, size_t *size) { return set(0, which, value, size); }

/* ---- callbacks ---- */

static int add(enum registration kind, CUcoredumpStatusCallback callback, CUcoredumpCallbackHandle *out) {
    if (!callback) return CUDA_ERROR_INVALID_VALUE;
    void *handle = registration_add(kind, 0);
    if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
    if (out) *out = handle;
    return 0;
}

CUresult impl_cuCoredumpRegisterStartCallback(CUcoredumpStatusCallback callback, void *data, CUcoredumpCallbackHandle *out) {
    (void)data;
    return add(REGISTRATION_DUMP_BEGINS, callback, out);
}

CUresult impl_cuCoredumpRegisterCompleteCallback(CUcoredumpStatusCallback callback, void *data, CUcoredumpCallbackHandle *out) {
    (void)data;
    return add(REGISTRATION_DUMP_ENDS, callback, out);
}

CUresult impl_cuCoredumpDeregisterStartCallback(CUcoredumpCallbackHandle callback) {
    return registration_end(callback, REGISTRATION_DUMP_BEGINS, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuCoredumpDeregisterCompleteCallback(CUcoredumpCallbackHandle callback) {
    return registration_end(callback, REGISTRATION_DUMP_ENDS, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- a fault ---- */

static void on_fault(uint32_t ctx) {
    pthread_mutex_lock(&lock);
    begin();
    const struct settings *found = own_of(ctx);
    bool wanted = (found ? found : &global)->enabled;
    pthread_mutex_unlock(&lock);
    if (wanted)
        shim_log_once("a core dump is enabled for the context that has failed; gpuvirt writes none, and does not end the program: see the line about "
                      "the failure");
}

__attribute__((constructor)) static void hear_of_faults(void) { context_on_failure(on_fault); }
