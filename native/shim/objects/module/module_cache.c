#define _GNU_SOURCE
#include "objects/module/module_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "wire/module_meta.h"
#include "objects/objects.h"

#ifndef META_CACHE_BYTES /* tests make them small */
#define META_CACHE_BYTES (64ull << 20)
#define META_CACHE_FILES 8192u
#define LEARNED_MAX 8192u /* images that this process remembers, the server's list among them */
#endif
#define META_LARGEST (16u << 20) /* bytes of one module's metadata */

/* ---- what the server has ------------------------------------------------------------------------------------------- */

struct learned {
    struct gv_module_known known;
    enum module_place place;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct learned *learned; /* a hash table of LEARNED_MAX * 2 slots, made when first needed */
static uint32_t n_learned;

static struct learned *slot_of(const uint8_t *hash) {
    uint32_t at;
    memcpy(&at, hash, sizeof at);
    static const struct gv_module_known none;
    for (;; at++) {
        struct learned *l = &learned[at % (2 * LEARNED_MAX)];
        if (!memcmp(l->known.hash, hash, sizeof l->known.hash) || !memcmp(&l->known, &none, sizeof none)) return l;
    }
}

static void put(const uint8_t *hash, enum module_place place, const uint8_t *meta) {
    struct learned *l = slot_of(hash);
    if (memcmp(l->known.hash, hash, sizeof l->known.hash) != 0) {
        if (n_learned == LEARNED_MAX) return;
        n_learned++;
    }
    memcpy(l->known.hash, hash, sizeof l->known.hash);
    memcpy(l->known.meta, meta, sizeof l->known.meta);
    l->place = place;
}

/* The table, with the server's list in it; lock held. */
static bool prepare(void) {
    if (learned) return true;
    learned = calloc(2 * LEARNED_MAX, sizeof *learned);
    const struct shim_server *server = session_server();
    for (uint32_t i = 0; learned && i < server->n_modules; i++) {
        static const uint8_t unlooked[4];
        const struct gv_module_known *k = &server->modules[i];
        put(k->hash, memcmp(k->meta, unlooked, sizeof unlooked) ? MODULE_ACCEPTED : MODULE_ASK, k->meta);
    }
    return learned;
}

enum module_place module_place(const uint8_t hash[GV_SHA256_SIZE], uint8_t meta[4]) {
    enum module_place place = MODULE_AWAY;
    pthread_mutex_lock(&lock);
    if (prepare()) {
        const struct learned *l = slot_of(hash);
        if (!memcmp(l->known.hash, hash, sizeof l->known.hash)) {
            place = l->place;
            memcpy(meta, l->known.meta, sizeof l->known.meta);
        }
    }
    pthread_mutex_unlock(&lock);
    return place;
}

void module_place_learn(const uint8_t hash[GV_SHA256_SIZE], enum module_place place, const uint8_t meta[4]) {
    pthread_mutex_lock(&lock);
    if (prepare()) put(hash, place, meta);
    pthread_mutex_unlock(&lock);
}

/* ---- metadata on disk ---------------------------------------------------------------------------------------------- */

/* A file: this, and behind it the metadata, addresses of globals zero. */
struct header {
    char magic[8];
    uint8_t image[GV_SHA256_SIZE], device[GV_SHA256_SIZE], digest[GV_SHA256_SIZE];
    uint64_t size;
};
static const char magic[8] = "GVMETA1";

/* What decides what the metadata of an image are, beside the image. */
static void device_digest(const struct gv_device_info *device, uint8_t digest[GV_SHA256_SIZE]) {
    const struct shim_server *server = session_server();
    char text[512];
    snprintf(text, sizeof text, "%s|%d|%d|%.255s|%u", server->backend, server->driver_version, device_capability(device), device->name,
             GV_META_VERSION);
    gv_sha256(text, strlen(text), digest);
}

static char folder_path[4096]; /* "": there is none */

static void find_folder(void) {
    const char *base = shim_setting("CACHE", NULL), *xdg = shim_folder_setting("XDG_CACHE_HOME"), *home = shim_folder_setting("HOME");
    int n = base   ? snprintf(folder_path, sizeof folder_path, "%s/modules", base)
            : xdg  ? snprintf(folder_path, sizeof folder_path, "%s/gpuvirt/modules", xdg)
            : home ? snprintf(folder_path, sizeof folder_path, "%s/.cache/gpuvirt/modules", home)
                   : -1;
    if (n < 0 || n >= (int)sizeof folder_path) folder_path[0] = 0;
}

/* The folder, made if it is to be written to; -1: none. */
static int open_folder(bool make) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_folder);
    if (!folder_path[0]) return -1;
    char path[sizeof folder_path];
    memcpy(path, folder_path, sizeof path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 || !make) return fd;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

#define NAME_SIZE 33
static void file_name(const uint8_t *image, const uint8_t *device, char name[NAME_SIZE]) {
    struct gv_sha256 h;
    uint8_t digest[GV_SHA256_SIZE];
    gv_sha256_init(&h);
    gv_sha256_add(&h, image, GV_SHA256_SIZE);
    gv_sha256_add(&h, device, GV_SHA256_SIZE);
    gv_sha256_end(&h, digest);
    for (unsigned i = 0; i < (NAME_SIZE - 1) / 2; i++) sprintf(name + 2 * i, "%02x", digest[i]);
}

static bool read_all(int fd, void *to, size_t size) {
    for (size_t n = 0; n < size;) {
        ssize_t got = read(fd, (char *)to + n, size - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        n += (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t size) {
    for (size_t n = 0; n < size;) {
        ssize_t put = write(fd, (const char *)from + n, size - n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        n += (size_t)put;
    }
    return true;
}

/* The metadata in an open file, checked against hash, device and digest. */
static void *take(int fd, const uint8_t *hash, const uint8_t *device, const uint8_t *meta, size_t *size, uint8_t *digest) {
    struct header h;
    if (!read_all(fd, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic) != 0 || memcmp(h.image, hash, sizeof h.image) != 0 ||
        memcmp(h.device, device, sizeof h.device) != 0 || memcmp(h.digest, meta, 4) != 0 || h.size < sizeof(struct gv_meta_header) ||
        h.size > META_LARGEST)
        return NULL;
    void *found = malloc(h.size);
    if (!found || !read_all(fd, found, h.size) || gv_meta_check(found, h.size)) {
        free(found);
        return NULL;
    }
    gv_meta_forget_addresses(found);
    gv_meta_digest(found, h.size, digest);
    if (memcmp(digest, h.digest, GV_SHA256_SIZE) != 0) {
        free(found);
        return NULL;
    }
    *size = h.size;
    return found;
}

void *module_meta_read(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const uint8_t meta[4], size_t *size,
                       uint8_t digest[GV_SHA256_SIZE]) {
    int folder = open_folder(false);
    if (folder < 0) return NULL;
    uint8_t key[GV_SHA256_SIZE];
    char name[NAME_SIZE];
    device_digest(device, key);
    file_name(hash, key, name);
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    close(folder);
    if (fd < 0) return NULL;
    void *found = take(fd, hash, key, meta, size, digest);
    if (found) futimens(fd, (struct timespec[2]){{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}});
    close(fd);
    return found;
}

/* ---- keeping it small ---------------------------------------------------------------------------------------------- */

struct old {
    char name[NAME_SIZE];
    time_t used;
    uint64_t size;
};

static int oldest_first(const void *a, const void *b) {
    const struct old *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used;
}

/* Removes the least recently used files down to three quarters of the limit; once a process, before it adds a file. */
static void clear_up(int folder) {
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) {
        if (copy >= 0) close(copy);
        return;
    }
    struct old *files = NULL;
    size_t n = 0, room = 0;
    uint64_t bytes = 0;
    time_t now = time(NULL);
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;
        bool begun = !strncmp(f->d_name, ".new.", 5);
        if ((!begun && strlen(f->d_name) != NAME_SIZE - 1) || fstatat(folder, f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        if (begun) {
            if (st.st_mtime < now - 3600) unlinkat(folder, f->d_name, 0); /* of a process that was killed meanwhile */
            continue;
        }
        if (n == room) {
            struct old *more = realloc(files, (room = room ? 2 * room : 256) * sizeof *more);
            if (!more) break;
            files = more;
        }
        memcpy(files[n].name, f->d_name, NAME_SIZE);
        files[n].used = st.st_mtime;
        files[n++].size = (uint64_t)st.st_size;
        bytes += (uint64_t)st.st_size;
    }
    closedir(d);
    if (bytes > META_CACHE_BYTES || n > META_CACHE_FILES) {
        qsort(files, n, sizeof *files, oldest_first);
        for (size_t i = 0; i < n && (bytes > META_CACHE_BYTES / 4 * 3 || n - i > META_CACHE_FILES / 4 * 3); i++) {
            unlinkat(folder, files[i].name, 0);
            bytes -= files[i].size;
        }
    }
    free(files);
}

void module_meta_write(const uint8_t hash[GV_SHA256_SIZE], const struct gv_device_info *device, const void *meta, size_t size,
                       const uint8_t digest[GV_SHA256_SIZE]) {
    if (size > META_LARGEST) return;
    int folder = open_folder(true);
    if (folder < 0) return;
    static atomic_flag cleared = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&cleared)) clear_up(folder);
    static _Atomic unsigned number;
    struct header h = {.size = size};
    char name[NAME_SIZE], temporary[64];
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.image, hash, sizeof h.image);
    memcpy(h.digest, digest, sizeof h.digest);
    device_digest(device, h.device);
    file_name(hash, h.device, name);
    snprintf(temporary, sizeof temporary, ".new.%d.%u", (int)getpid(), atomic_fetch_add(&number, 1));
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    void *bare = malloc(size);
    if (fd >= 0) {
        if (bare) {
            memcpy(bare, meta, size);
            gv_meta_forget_addresses(bare);
        }
        bool good = bare && write_all(fd, &h, sizeof h) && write_all(fd, bare, size);
        good = !close(fd) && good;
        if (!good || renameat(folder, temporary, folder, name)) unlinkat(folder, temporary, 0);
    }
    free(bare);
    close(folder);
}
