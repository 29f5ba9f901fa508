/* nvJitLink for software GPUs. NVIDIA's library generates machine code for the devices that it knows; this one calls the linker of our libcuda, whose
 * image a software GPU runs. The format of LTO-IR is not public: the real library, if the program has it, compiles it to PTX first.
 *
 * It is preloaded, so programs find its functions by name, and by the names of each version, which NVIDIA's header has programs call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "read_file.h"

#define EXPORT __attribute__((visibility("default")))

enum result { SUCCESS, UNRECOGNIZED_OPTION, MISSING_ARCH, INVALID_INPUT, PTX_COMPILE, NVVM_COMPILE, INTERNAL };
enum input_type { INPUT_CUBIN = 1, INPUT_PTX, INPUT_LTOIR, INPUT_FATBIN, INPUT_OBJECT, INPUT_LIBRARY, INPUT_INDEX, INPUT_ANY = 10 };

#define FATBIN_MAGIC 0xba55ed50u
#define LTO_MAGIC 0x7f4e43edu /* how LTO-IR begins that NVIDIA's compilers make */

struct text {
    char *data;
    size_t size;
};

struct input {
    enum input_type type;
    char *name;
    void *data;
    size_t size;
};

typedef struct nvJitLink {
    char **options;
    uint32_t n_options;
    struct input *inputs;
    uint32_t n_inputs;
    bool wants_ptx;
    struct text image, info, error;
} *link_handle;

/* ---- the real library ------------------------------------------------------------------------------------------------ */

struct real {
    void *library;
    int (*create)(void **, uint32_t, const char **);
    int (*destroy)(void **);
    int (*add)(void *, int, const void *, size_t, const char *);
    int (*complete)(void *);
    int (*ptx_size)(void *, size_t *);
    int (*ptx)(void *, char *);
    int (*error_size)(void *, size_t *);
    int (*error)(void *, char *);
    int (*version)(unsigned *, unsigned *);
};

/* Beside another of NVIDIA's libraries that is loaded already: where wheels put it. */
static int open_beside(struct dl_phdr_info *info, size_t size, void *library) {
    static const char *const places[] = {"nvjitlink/lib/libnvJitLink.so.12", "cu13/lib/libnvJitLink.so.13", "nvjitlink/lib/libnvJitLink.so.13"};
    const char *nvidia = info->dlpi_name ? strstr(info->dlpi_name, "/nvidia/") : NULL;
    (void)size;
    for (size_t i = 0; nvidia && i < sizeof places / sizeof *places && !*(void **)library; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%.*s/nvidia/%s", (int)(nvidia - info->dlpi_name), info->dlpi_name, places[i]);
        *(void **)library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return *(void **)library != NULL;
}

static const struct real *real_library(void) {
    static struct real real;
    static bool tried;
    if (__atomic_load_n(&tried, __ATOMIC_ACQUIRE)) return real.library ? &real : NULL;
    struct real r = {0};
    static const char *const names[] = {"libnvJitLink.so.12", "libnvJitLink.so.13"};
    for (size_t i = 0; i < 2 && !r.library; i++) r.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!r.library) dl_iterate_phdr(open_beside, &r.library);
    if (r.library) {
        *(void **)&r.create = dlsym(r.library, "nvJitLinkCreate");
        *(void **)&r.destroy = dlsym(r.library, "nvJitLinkDestroy");
        *(void **)&r.add = dlsym(r.library, "nvJitLinkAddData");
        *(void **)&r.complete = dlsym(r.library, "nvJitLinkComplete");
        *(void **)&r.ptx_size = dlsym(r.library, "nvJitLinkGetLinkedPtxSize");
        *(void **)&r.ptx = dlsym(r.library, "nvJitLinkGetLinkedPtx");
        *(void **)&r.error_size = dlsym(r.library, "nvJitLinkGetErrorLogSize");
        *(void **)&r.error = dlsym(r.library, "nvJitLinkGetErrorLog");
        *(void **)&r.version = dlsym(r.library, "nvJitLinkVersion");
        if (!r.create || !r.destroy || !r.add || !r.complete || !r.ptx_size || !r.ptx || !r.error_size || !r.error) r.library = NULL;
    }
    real = r;
    __atomic_store_n(&tried, true, __ATOMIC_RELEASE);
    return real.library ? &real : NULL;
}

/* ---- texts ------------------------------------------------------------------------------------------------------------ */

static bool set_text(struct text *t, const void *data, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) return false;
    memcpy(copy, data, size);
    copy[size] = 0;
    free(t->data);
    *t = (struct text){copy, size};
    return true;
}

static int fail(link_handle h, int result, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(link_handle h, int result, const char *format, ...) {
    char line[9000];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    set_text(&h->error, line, strlen(line));
    return result;
}

/* ---- LTO-IR ----------------------------------------------------------------------------------------------------------- */

static bool is_lto(const struct input *in) {
    uint32_t magic = 0;
    if (in->size >= sizeof magic) memcpy(&magic, in->data, sizeof magic);
    return in->type == INPUT_LTOIR || magic == LTO_MAGIC;
}

/* The number behind -arch=sm_ or compute_. */
static long asked_arch(link_handle h) {
    for (uint32_t i = 0; i < h->n_options; i++) {
        const char *number = strncmp(h->options[i], "-arch=", 6) ? NULL : strchr(h->options[i], '_');
        if (number) return strtol(number + 1, NULL, 10);
    }
    return 0;
}

/* One attempt of the real library, for the architecture `arch` (NULL: the one asked for). */
static int lto_once(const struct real *r, link_handle h, const char *arch, struct text *ptx, struct text *error) {
    const char *options[80];
    uint32_t n = 0;
    bool ptx_asked = false, lto_asked = false;
    for (uint32_t i = 0; i < h->n_options && n < 70; i++) {
        const char *o = h->options[i];
        if (arch && !strncmp(o, "-arch=", 6)) continue;
        ptx_asked |= !strcmp(o, "-ptx");
        lto_asked |= !strcmp(o, "-lto");
        options[n++] = o;
    }
    if (arch) options[n++] = arch;
    if (!ptx_asked) options[n++] = "-ptx";
    if (!lto_asked) options[n++] = "-lto";
    void *link = NULL;
    size_t size = 0;
    int rc = r->create(&link, n, options);
    for (uint32_t i = 0; i < h->n_inputs && !rc; i++) {
        const struct input *in = &h->inputs[i];
        if (is_lto(in)) rc = r->add(link, INPUT_LTOIR, in->data, in->size, in->name);
    }
    if (!rc) rc = r->complete(link);
    if (!rc) rc = r->ptx_size(link, &size);
    if (!rc) {
        char *text = calloc(1, size + 1);
        rc = text ? r->ptx(link, text) : INTERNAL;
        if (!rc && !set_text(ptx, text, strlen(text))) rc = INTERNAL;
        free(text);
    } else if (link && !r->error_size(link, &size) && size) {
        char *text = calloc(1, size + 1);
        if (text && !r->error(link, text)) set_text(error, text, strlen(text));
        free(text);
    }
    if (link) r->destroy(&link);
    return rc;
}

/* PTX of all LTO-IR inputs together. The library does not know a software GPU's capability, and says so on stderr when it is asked: so only what it may know
 * is tried, from what the program wants to the newest and down. */
static int lto_to_ptx(link_handle h, struct text *ptx) {
    const struct real *r = real_library();
    if (!r)
        return fail(h, NVVM_COMPILE, "LTO-IR can only be compiled by NVIDIA's libnvJitLink, which was not found (pip install nvidia-nvjitlink-cu12)");
    static const char *const archs[] = {NULL, "-arch=compute_121", "-arch=compute_120", "-arch=compute_100", "-arch=compute_90"};
    struct text error = {0};
    int rc = INTERNAL;
    for (size_t i = asked_arch(h) > 121; i < sizeof archs / sizeof *archs && rc; i++) rc = lto_once(r, h, archs[i], ptx, &error);
    if (rc) fail(h, rc, "LTO-IR could not be compiled: %s", error.data ? error.data : "no reason was given");
    free(error.data);
    return rc;
}

/* ---- our linker --------------------------------------------------------------------------------------------------------- */

struct driver {
    CUresult (*init)(unsigned);
    CUresult (*current)(CUcontext *);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*create)(unsigned, CUjit_option *, void **, CUlinkState *);
    CUresult (*add)(CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned, CUjit_option *, void **);
    CUresult (*complete)(CUlinkState, void **, size_t *);
    CUresult (*destroy)(CUlinkState);
};

static bool open_driver(struct driver *d) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return false;
    *(void **)&d->init = dlsym(library, "cuInit");
    *(void **)&d->current = dlsym(library, "cuCtxGetCurrent");
    *(void **)&d->retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&d->release = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&d->push = dlsym(library, "cuCtxPushCurrent_v2");
    *(void **)&d->pop = dlsym(library, "cuCtxPopCurrent_v2");
    *(void **)&d->create = dlsym(library, "cuLinkCreate_v2");
    *(void **)&d->add = dlsym(library, "cuLinkAddData_v2");
    *(void **)&d->complete = dlsym(library, "cuLinkComplete");
    *(void **)&d->destroy = dlsym(library, "cuLinkDestroy");
    return d->init && d->current && d->retain && d->release && d->push && d->pop && d->create && d->add && d->complete && d->destroy;
}

/* CUjitInputType of an input; what it is is seen from its beginning where the program does not say. */
static CUjitInputType driver_type(const struct input *in) {
    uint32_t magic = 0;
    if (in->size >= sizeof magic) memcpy(&magic, in->data, sizeof magic);
    switch (in->type) {
    case INPUT_CUBIN: return CU_JIT_INPUT_CUBIN;
    case INPUT_FATBIN: return CU_JIT_INPUT_FATBINARY;
    case INPUT_OBJECT: return CU_JIT_INPUT_OBJECT;
    case INPUT_LIBRARY: return CU_JIT_INPUT_LIBRARY;
    case INPUT_ANY:
        if (magic == FATBIN_MAGIC) return CU_JIT_INPUT_FATBINARY;
        if (in->size > 20 && !memcmp(in->data, "\177ELF", 4)) return ((uint8_t *)in->data)[18] == 190 ? CU_JIT_INPUT_CUBIN : CU_JIT_INPUT_OBJECT;
        if (in->size > 8 && !memcmp(in->data, "!<arch>\n", 8)) return CU_JIT_INPUT_LIBRARY;
        return CU_JIT_INPUT_PTX;
    default: return CU_JIT_INPUT_PTX;
    }
}

static int link_here(link_handle h, const struct driver *d, const struct text *lto) {
    char info[8192] = "", error[8192] = "";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error}, *image = NULL;
    CUlinkState state = NULL;
    size_t size = 0;
    bool keeps = true;
    CUresult rc = d->create(4, options, values, &state);
    if (!rc && lto->data) rc = d->add(state, CU_JIT_INPUT_PTX, lto->data, lto->size, "LTO-IR", 0, NULL, NULL);
    for (uint32_t i = 0; i < h->n_inputs && !rc; i++) {
        const struct input *in = &h->inputs[i];
        if (!is_lto(in)) rc = d->add(state, driver_type(in), in->data, in->size, in->name, 0, NULL, NULL);
    }
    if (!rc) rc = d->complete(state, &image, &size);
    if (!rc) keeps = set_text(&h->image, image, size);
    if (state) d->destroy(state);
    set_text(&h->info, info, strlen(info));
    if (rc) return fail(h, rc == CUDA_ERROR_INVALID_PTX ? PTX_COMPILE : INVALID_INPUT, "%s", error[0] ? error : "the driver's linker gave no reason");
    return keeps ? SUCCESS : INTERNAL;
}

/* The linker works in a context: the thread's, else the first device's own. */
static int link_in_context(link_handle h, const struct text *lto) {
    struct driver d;
    CUcontext current = NULL, primary;
    if (!open_driver(&d)) return fail(h, INTERNAL, "there is no libcuda.so.1 with a linker");
    CUresult rc = d.init(0);
    if (!rc) rc = d.current(&current);
    if (!rc && current) return link_here(h, &d, lto);
    if (!rc) rc = d.retain(&primary, 0);
    if (rc) return fail(h, INTERNAL, "there is no device to link for (error %d)", (int)rc);
    int result = d.push(primary) ? INTERNAL : SUCCESS;
    if (!result) {
        result = link_here(h, &d, lto);
        d.pop(&current);
    }
    d.release(0);
    return result;
}

/* ---- the interface -------------------------------------------------------------------------------------------------------- */

EXPORT int nvJitLinkCreate(link_handle *out, uint32_t n, const char **options) {
    bool has_arch = false;
    if (!out || (n && !options)) return INVALID_INPUT;
    link_handle h = calloc(1, sizeof *h);
    if (!h || !(h->options = calloc(n + 1, sizeof *h->options))) {
        free(h);
        return INTERNAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        h->options[h->n_options++] = strdup(options[i]);
        has_arch |= !strncmp(options[i], "-arch=", 6);
        h->wants_ptx |= !strcmp(options[i], "-ptx");
    }
    *out = h;
    return has_arch ? SUCCESS : fail(h, MISSING_ARCH, "the option -arch=sm_<N> is missing");
}

EXPORT int nvJitLinkDestroy(link_handle *handle) {
    if (!handle || !*handle) return INVALID_INPUT;
    link_handle h = *handle;
    for (uint32_t i = 0; i < h->n_options; i++) free(h->options[i]);
    for (uint32_t i = 0; i < h->n_inputs; i++) {
        free(h->inputs[i].name);
        free(h->inputs[i].data);
    }
    free(h->options);
    free(h->inputs);
    free(h->image.data);
    free(h->info.data);
    free(h->error.data);
    free(h);
    *handle = NULL;
    return SUCCESS;
}

EXPORT int nvJitLinkAddData(link_handle h, int type, const void *data, size_t size, const char *name) {
    if (!h) return INVALID_INPUT;
    if (!data || !size) return fail(h, INVALID_INPUT, "an input without data");
    if (type == INPUT_INDEX || type < INPUT_CUBIN || (type > INPUT_INDEX && type != INPUT_ANY))
        return fail(h, INVALID_INPUT, "inputs of type %d are not taken", type);
    struct input *more = realloc(h->inputs, (h->n_inputs + 1) * sizeof *more);
    if (!more) return INTERNAL;
    h->inputs = more;
    struct input in = {.type = (enum input_type)type, .name = strdup(name ? name : "unnamed"), .data = malloc(size), .size = size};
    if (!in.data || !in.name) {
        free(in.data);
        free(in.name);
        return INTERNAL;
    }
    memcpy(in.data, data, size);
    h->inputs[h->n_inputs++] = in;
    return SUCCESS;
}

EXPORT int nvJitLinkAddFile(link_handle h, int type, const char *path) {
    if (!h) return INVALID_INPUT;
    size_t size;
    char *data = path ? read_file(path, &size) : NULL;
    if (!data) return fail(h, INVALID_INPUT, "the file '%s' cannot be read", path ? path : "");
    int rc = nvJitLinkAddData(h, type, data, size, path);
    free(data);
    return rc;
}

EXPORT int nvJitLinkComplete(link_handle h) {
    if (!h) return INVALID_INPUT;
    bool any_lto = false;
    struct text lto = {0};
    for (uint32_t i = 0; i < h->n_inputs; i++) any_lto |= is_lto(&h->inputs[i]);
    int rc = any_lto ? lto_to_ptx(h, &lto) : SUCCESS;
    if (!rc && h->wants_ptx)
        rc = lto.data ? (set_text(&h->image, lto.data, lto.size + 1) ? SUCCESS : INTERNAL) : fail(h, INVALID_INPUT, "-ptx goes with LTO-IR inputs");
    else if (!rc)
        rc = link_in_context(h, &lto);
    free(lto.data);
    return rc;
}

static int size_of(link_handle h, const struct text *t, size_t nul, size_t *size) {
    if (!h || !size) return INVALID_INPUT;
    *size = t->data ? t->size + nul : 0;
    return SUCCESS;
}

static int give(link_handle h, const struct text *t, size_t nul, void *out) {
    if (!h || !out) return INVALID_INPUT;
    if (t->data) memcpy(out, t->data, t->size + nul);
    return SUCCESS;
}

/* An image is there only after a link that went well. */
static int image_ready(link_handle h, bool as_ptx) { return !h || !h->image.data || h->wants_ptx != as_ptx ? INVALID_INPUT : SUCCESS; }

EXPORT int nvJitLinkGetLinkedCubinSize(link_handle h, size_t *size) { return image_ready(h, false) ? INVALID_INPUT : size_of(h, &h->image, 0, size); }
EXPORT int nvJitLinkGetLinkedCubin(link_handle h, void *out) { return image_ready(h, false) ? INVALID_INPUT : give(h, &h->image, 0, out); }
EXPORT int nvJitLinkGetLinkedPtxSize(link_handle h, size_t *size) { return image_ready(h, true) ? INVALID_INPUT : size_of(h, &h->image, 0, size); }
EXPORT int nvJitLinkGetLinkedPtx(link_handle h, char *out) { return image_ready(h, true) ? INVALID_INPUT : give(h, &h->image, 0, out); }
EXPORT int nvJitLinkGetErrorLogSize(link_handle h, size_t *size) { return h ? size_of(h, &h->error, 1, size) : INVALID_INPUT; }
EXPORT int nvJitLinkGetErrorLog(link_handle h, char *out) { return h ? give(h, &h->error, 1, out) : INVALID_INPUT; }
EXPORT int nvJitLinkGetInfoLogSize(link_handle h, size_t *size) { return h ? size_of(h, &h->info, 1, size) : INVALID_INPUT; }
EXPORT int nvJitLinkGetInfoLog(link_handle h, char *out) { return h ? give(h, &h->info, 1, out) : INVALID_INPUT; }

/* The real library's version where there is one, for a program that asks what it can be given. */
EXPORT int nvJitLinkVersion(unsigned *major, unsigned *minor) {
    if (!major || !minor) return INVALID_INPUT;
    const struct real *r = real_library();
    if (r && r->version) return r->version(major, minor);
    *major = 12;
    *minor = 9;
    return SUCCESS;
}

/* None is made here: the format of LTO-IR is not public. A handle of ours must not reach NVIDIA's function of that name. */
EXPORT int nvJitLinkGetLinkedLTOIRSize(link_handle h, size_t *size) {
    (void)size;
    return h ? fail(h, INTERNAL, "linked LTO-IR is not supported on software GPUs: ask for PTX or a cubin") : INVALID_INPUT;
}

EXPORT int nvJitLinkGetLinkedLTOIR(link_handle h, void *out) {
    (void)out;
    return nvJitLinkGetLinkedLTOIRSize(h, NULL);
}

/* ---- the names of each version ---- */

#define ALIAS(name, version) EXPORT extern __typeof__(nvJitLink##name) __nvJitLink##name##_##version __attribute__((alias("nvJitLink" #name)));
#define FIVE(name, a, b, c, d, e) ALIAS(name, a) ALIAS(name, b) ALIAS(name, c) ALIAS(name, d) ALIAS(name, e)
#define OF_12(name) FIVE(name, 12_0, 12_1, 12_2, 12_3, 12_4) FIVE(name, 12_5, 12_6, 12_7, 12_8, 12_9)
#define OF_13(name) FIVE(name, 13_0, 13_1, 13_2, 13_3, 13_4) FIVE(name, 13_5, 13_6, 13_7, 13_8, 13_9)
#define VERSIONS(name) OF_12(name) OF_13(name)

VERSIONS(Create)
VERSIONS(Destroy)
VERSIONS(AddData)
VERSIONS(AddFile)
VERSIONS(Complete)
VERSIONS(GetLinkedCubinSize)
VERSIONS(GetLinkedCubin)
VERSIONS(GetLinkedPtxSize)
VERSIONS(GetLinkedPtx)
VERSIONS(GetLinkedLTOIRSize)
VERSIONS(GetLinkedLTOIR)
VERSIONS(GetErrorLogSize)
VERSIONS(GetErrorLog)
VERSIONS(GetInfoLogSize)
VERSIONS(GetInfoLog)
