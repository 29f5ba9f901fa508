#define _GNU_SOURCE
#include "module_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MODULE_CACHE_BYTES /* tests make them small */
#define MODULE_CACHE_BYTES (1ull << 30)
#define MODULE_CACHE_FILES 4096u
#define KEEP_OPEN 512u              /* files that stay open while their session runs: what was promised can be read, whoever removes its name */
#define LOOK_AT_BYTES (16ull << 20) /* read before a session begins, to offer what is whole */
#define LATE_BYTES (4ull << 20)     /* read while a session begins, of what has come since */
#endif
#define KEY_SIZE 8u
#define NAME_LENGTH (2 * (GV_SHA256_SIZE + GV_META_DIGEST_SIZE + KEY_SIZE) + 2)

struct entry {
    uint8_t hash[GV_SHA256_SIZE], meta[GV_META_DIGEST_SIZE], key[KEY_SIZE];
    uint64_t size;
    struct timespec used;
    int fd; /* -1: not open */
    bool gone;
};

struct module_cache {
    int folder;
    uint32_t n_open;
    uint8_t key[KEY_SIZE];
    struct entry *entries; /* of any key until one is chosen, of ours afterwards */
    uint32_t n, room;
    struct timespec changed; /* the folder, before it was last read */
    uint64_t bytes, files;   /* in the folder, as far as this worker knows */
};

/* ---- names --------------------------------------------------------------------------------------------------------- */

static char *put_hex(char *to, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) to += sprintf(to, "%02x", bytes[i]);
    return to;
}

static bool get_hex(const char *text, uint8_t *bytes, size_t size) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        const char *high = strchr(digits, text[2 * i]), *low = strchr(digits, text[2 * i + 1]);
        if (!high || !low || !*high || !*low) return false;
        bytes[i] = (uint8_t)((high - digits) << 4 | (low - digits));
    }
    return true;
}

static void name_of(const struct entry *e, char name[NAME_LENGTH + 1]) {
    char *to = put_hex(name, e->hash, sizeof e->hash);
    *to++ = '.';
    to = put_hex(to, e->meta, sizeof e->meta);
    *to++ = '.';
    put_hex(to, e->key, sizeof e->key);
}

static bool parse_name(const char *name, struct entry *e) {
    const char *meta = name + 2 * sizeof e->hash + 1, *key = meta + 2 * sizeof e->meta + 1;
    return strlen(name) == NAME_LENGTH && meta[-1] == '.' && key[-1] == '.' && get_hex(name, e->hash, sizeof e->hash) &&
           get_hex(meta, e->meta, sizeof e->meta) && get_hex(key, e->key, sizeof e->key);
}

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static int make_folders(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) return -1;
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0700);
        *slash = '/';
    }
    mkdir(part, 0700);
    return open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static struct entry *add(struct module_cache *c) {
    if (c->n == c->room) {
        uint32_t room = c->room ? 2 * c->room : 64;
        struct entry *more = realloc(c->entries, room * sizeof *more);
        if (!more) return NULL;
        c->entries = more;
        c->room = room;
    }
    struct entry *e = &c->entries[c->n++];
    *e = (struct entry){.fd = -1};
    return e;
}

static int latest_first(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? 1 : -1;
    return x->used.tv_nsec == y->used.tv_nsec ? 0 : x->used.tv_nsec < y->used.tv_nsec ? 1 : -1;
}

static uint32_t slot_of(const struct entry *e, const uint32_t *slots, uint32_t n_slots, const struct entry *entries) {
    uint32_t at;
    memcpy(&at, e->hash, sizeof at);
    for (at &= n_slots - 1; slots[at]; at = (at + 1) & (n_slots - 1)) {
        const struct entry *other = &entries[slots[at] - 1];
        if (!memcmp(other->hash, e->hash, sizeof e->hash) && !memcmp(other->meta, e->meta, sizeof e->meta) &&
            !memcmp(other->key, e->key, sizeof e->key))
            break;
    }
    return at;
}

/* Closes a file that was verified, so that it is verified again before it is offered. */
static void let_go(struct module_cache *c, struct entry *e) {
    if (e->fd < 0) return;
    close(e->fd);
    e->fd = -1;
    c->n_open--;
}

/* Reads the folder, before anything of it was promised: adds new entries, removes those whose file is gone. A file that was verified and is gone had been
 * used lately: whoever removed it found it damaged, and the others are not believed any more, either. */
static void scan(struct module_cache *c) {
    struct stat folder;
    int copy = openat(c->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    uint32_t n_slots = 1024, known = c->n;
    while (n_slots < 2 * known + 2) n_slots *= 2;
    uint32_t *slots = calloc(n_slots, sizeof *slots); /* a table of known entries by hash: index + 1 */
    bool *seen = calloc((size_t)known + 1, sizeof *seen);
    if (!d || !slots || !seen || fstat(c->folder, &folder)) {
        if (d) closedir(d);
        if (!d && copy >= 0) close(copy);
        free(slots);
        free(seen);
        return;
    }
    c->changed = folder.st_mtim;
    for (uint32_t i = 0; i < known; i++) slots[slot_of(&c->entries[i], slots, n_slots, c->entries)] = i + 1;
    time_t now = time(NULL);
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;
        struct entry found = {.fd = -1};
        bool ours = parse_name(f->d_name, &found);
        if (!ours && strncmp(f->d_name, ".new.", 5) != 0) continue;
        uint32_t slot = ours ? slots[slot_of(&found, slots, n_slots, c->entries)] : 0;
        if (slot) {
            seen[slot - 1] = true;
            continue;
        }
        if (fstatat(c->folder, f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        if (!ours) { /* a temporary file of a worker that was killed */
            if (st.st_mtime < now - 3600) unlinkat(c->folder, f->d_name, 0);
            continue;
        }
        struct entry *e = add(c);
        if (!e) break;
        *e = found;
        e->size = (uint64_t)st.st_size;
        e->used = st.st_mtim;
        c->bytes += e->size;
        c->files++;
    }
    closedir(d);
    uint32_t kept = 0;
    bool damage = false;
    for (uint32_t i = 0; i < c->n; i++) {
        struct entry *e = &c->entries[i];
        if (i >= known || seen[i]) {
            c->entries[kept++] = *e;
            continue;
        }
        damage |= e->fd >= 0;
        let_go(c, e);
        c->bytes -= e->size;
        c->files--;
    }
    c->n = kept;
    for (uint32_t i = 0; damage && i < c->n; i++) let_go(c, &c->entries[i]);
    free(slots);
    free(seen);
    if (c->n) qsort(c->entries, c->n, sizeof *c->entries, latest_first);
}

static void remove_file(struct module_cache *c, const struct entry *e) {
    char name[NAME_LENGTH + 1];
    name_of(e, name);
    unlinkat(c->folder, name, 0);
    c->bytes -= e->size < c->bytes ? e->size : c->bytes;
    c->files -= c->files > 0;
}

/* Evicts from seven eighths of the limits down to three quarters. Files promised to running sessions stay open. */
static void evict(struct module_cache *c) {
    if (c->bytes <= MODULE_CACHE_BYTES / 8 * 7 && c->files <= MODULE_CACHE_FILES / 8 * 7) return;
    while (c->n && (c->bytes > MODULE_CACHE_BYTES / 4 * 3 || c->files > MODULE_CACHE_FILES / 4 * 3)) remove_file(c, &c->entries[--c->n]);
}

/* ---- using --------------------------------------------------------------------------------------------------------- */

static struct entry *find(struct module_cache *c, const uint8_t *hash) {
    for (uint32_t i = 0; c && i < c->n; i++) {
        if (!c->entries[i].gone && !memcmp(c->entries[i].hash, hash, GV_SHA256_SIZE)) return &c->entries[i];
    }
    return NULL;
}

static void forget(struct module_cache *c, struct entry *e) {
    let_go(c, e);
    remove_file(c, e);
    e->gone = true;
}

static int open_entry(struct module_cache *c, const struct entry *e) {
    char name[NAME_LENGTH + 1];
    name_of(e, name);
    return openat(c->folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* The file's contents if their hash is its name, else NULL. */
static void *read_whole(int fd, const struct entry *e, size_t *size) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0 || (uint64_t)st.st_size > MODULE_CACHE_BYTES) return NULL;
    size_t n = 0, all = (size_t)st.st_size;
    char *data = malloc(all);
    while (data && n < all) {
        ssize_t got = pread(fd, data + n, all - n, (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    uint8_t digest[GV_SHA256_SIZE];
    if (data) gv_sha256(data, n, digest);
    if (data && (n < all || memcmp(digest, e->hash, sizeof digest) != 0)) {
        free(data);
        return NULL;
    }
    *size = n;
    return data;
}

static void used_now(int fd) { futimens(fd, (struct timespec[2]){{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}}); }

void *module_cache_get(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], size_t *size) {
    struct entry *e = find(c, hash);
    if (!e) return NULL;
    int fd = e->fd >= 0 ? e->fd : open_entry(c, e);
    void *image = fd < 0 ? NULL : read_whole(fd, e, size);
    if (image) used_now(fd);
    if (fd >= 0 && fd != e->fd) close(fd);
    if (!image) forget(c, e);
    return image;
}

/* Keeps the file open, so that it can be promised, if few are open and its contents match its name. */
static bool keep_open(struct module_cache *c, struct entry *e) {
    if (c->n_open == KEEP_OPEN) return false;
    size_t size;
    int fd = open_entry(c, e);
    void *image = fd < 0 ? NULL : read_whole(fd, e, &size);
    free(image);
    if (!image) {
        if (fd >= 0) close(fd);
        return false;
    }
    e->fd = fd;
    c->n_open++;
    return true;
}

/* Verifies the most recently used files, until `bytes` are read; removes damaged ones. */
static void look(struct module_cache *c, uint64_t bytes) {
    uint32_t kept = 0;
    bool enough = false;
    for (uint32_t i = 0; i < c->n; i++) {
        struct entry *e = &c->entries[i];
        if (e->fd < 0 && !enough && c->n_open < KEEP_OPEN) {
            enough = e->size > bytes;
            if (!enough) {
                bytes -= e->size;
                if (!keep_open(c, e)) {
                    remove_file(c, e);
                    continue;
                }
            }
        }
        c->entries[kept++] = *e;
    }
    c->n = kept;
}

struct module_cache *module_cache_open(const char *folder) {
    struct module_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->folder = make_folders(folder);
    if (c->folder < 0) {
        free(c);
        return NULL;
    }
    scan(c);
    evict(c);
    look(c, LOOK_AT_BYTES);
    return c;
}

/* Whether the folder may have changed since it was read. */
static bool changed(const struct module_cache *c) {
    /* A folder's modification time has the resolution of the kernel's tick: a change within the same tick would not show. */
    struct stat now;
    struct timespec clock = {0};
    clock_gettime(CLOCK_REALTIME, &clock);
    return fstat(c->folder, &now) || now.st_mtim.tv_sec != c->changed.tv_sec || now.st_mtim.tv_nsec != c->changed.tv_nsec ||
           clock.tv_sec - now.st_mtim.tv_sec < 2;
}

void module_cache_refresh(struct module_cache *c) {
    if (!c || !changed(c)) return;
    scan(c);
    look(c, LOOK_AT_BYTES);
}

void module_cache_choose(struct module_cache *c, const char *key) {
    uint8_t digest[GV_SHA256_SIZE];
    gv_sha256(key, strlen(key), digest);
    memcpy(c->key, digest, sizeof c->key);
    if (changed(c)) scan(c);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct entry *e = &c->entries[i];
        if (!memcmp(e->key, c->key, sizeof c->key)) {
            c->entries[kept++] = *e;
        } else {
            let_go(c, e);
        }
    }
    c->n = kept;
    look(c, LATE_BYTES);
}

void module_cache_close(struct module_cache *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->entries[i].fd >= 0) close(c->entries[i].fd);
    }
    close(c->folder);
    free(c->entries);
    free(c);
}

uint32_t module_cache_list(struct module_cache *c, struct gv_module_known *out, uint32_t most) {
    uint32_t n = 0;
    for (uint32_t i = 0; c && i < c->n && n < most; i++) {
        const struct entry *e = &c->entries[i];
        if (e->gone) continue;
        memset(&out[n], 0, sizeof out[n]);
        if (e->fd >= 0) memcpy(out[n].meta, e->meta, sizeof out[n].meta); /* it was verified and its file is open */
        memcpy(out[n].hash, e->hash, sizeof out[n].hash);
        n++;
    }
    return n;
}

static bool write_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t put = write(fd, data, size);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        data += put;
        size -= (size_t)put;
    }
    return true;
}

/* What all workers together have put into the folder. */
static void count(struct module_cache *c) {
    int copy = openat(c->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) {
        if (copy >= 0) close(copy);
        return;
    }
    c->bytes = c->files = 0;
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;
        if (fstatat(c->folder, f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        c->bytes += (uint64_t)st.st_size;
        c->files++;
    }
    closedir(d);
}

/* The file of that entry, under its name; -1: it could not be written. */
static int write_file(struct module_cache *c, const struct entry *e, const void *image) {
    static unsigned number; /* the executor's alone */
    char temporary[64], name[NAME_LENGTH + 1];
    snprintf(temporary, sizeof temporary, ".new.%d.%u", (int)getpid(), number++);
    int fd = openat(c->folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    name_of(e, name);
    if (write_all(fd, image, e->size) && !renameat(c->folder, temporary, c->folder, name)) return fd;
    close(fd);
    unlinkat(c->folder, temporary, 0);
    return -1;
}

static struct entry *write_entry(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], const void *image, size_t size,
                                 const uint8_t meta[GV_META_DIGEST_SIZE]) {
    struct entry made = {.size = size, .fd = -1};
    memcpy(made.hash, hash, sizeof made.hash);
    memcpy(made.meta, meta, sizeof made.meta);
    memcpy(made.key, c->key, sizeof made.key);
    int fd = write_file(c, &made, image);
    struct entry *e = fd < 0 ? NULL : add(c);
    if (e) {
        if (c->n_open < KEEP_OPEN) made.fd = fd, c->n_open++;
        *e = made;
        c->bytes += size;
        c->files++;
    }
    if (fd >= 0 && made.fd < 0) close(fd);
    return e;
}

enum gv_module_kept module_cache_put(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE], const void *image, size_t size,
                                     const uint8_t meta[GV_META_DIGEST_SIZE]) {
    if (!c || !size) return GV_MODULE_NOT_KEPT;
    struct entry *e = find(c, hash);
    if (e && !memcmp(e->meta, meta, sizeof e->meta)) return e->fd >= 0 ? GV_MODULE_PROMISED : GV_MODULE_ON_DISK;
    if (e) forget(c, e); /* the same image has other metadata now: the backend has changed */
    /* The bounds are those of the folder, whoever fills it: one worker at a time counts and writes. */
    flock(c->folder, LOCK_EX);
    count(c);
    bool room = c->bytes + size <= MODULE_CACHE_BYTES && c->files < MODULE_CACHE_FILES;
    e = room ? write_entry(c, hash, image, size, meta) : NULL;
    flock(c->folder, LOCK_UN);
    return !e ? GV_MODULE_NOT_KEPT : e->fd < 0 ? GV_MODULE_ON_DISK : GV_MODULE_PROMISED;
}

void module_cache_drop(struct module_cache *c, const uint8_t hash[GV_SHA256_SIZE]) {
    struct entry *e = find(c, hash);
    if (e) forget(c, e);
}

/* ---- sessions that move -------------------------------------------------------------------------------------------- */

/* The entry's file was used last, so whoever clears up takes others; it is there again if somebody has removed its name. */
static void renew(struct module_cache *c, const struct entry *e) {
    size_t size;
    int fd = open_entry(c, e);
    if (fd >= 0) {
        used_now(fd);
    } else if (errno == ENOENT) {
        void *image = read_whole(e->fd, e, &size);
        if (image && size == e->size) fd = write_file(c, e, image);
        free(image);
    }
    if (fd >= 0) close(fd);
}

uint32_t module_cache_hand_over(struct module_cache *c, uint8_t (*hashes)[GV_SHA256_SIZE], uint32_t most) {
    uint32_t n = 0;
    for (uint32_t i = 0; c && i < c->n && n < most; i++) {
        const struct entry *e = &c->entries[i];
        if (e->fd < 0 || e->gone) continue;
        renew(c, e);
        memcpy(hashes[n++], e->hash, GV_SHA256_SIZE);
    }
    return n;
}

bool module_cache_take_over(struct module_cache *c, const uint8_t (*hashes)[GV_SHA256_SIZE], uint32_t n) {
    if (!n) return true;
    bool *promised = c ? calloc((size_t)c->n + 1, sizeof *promised) : NULL, all = promised != NULL;
    for (uint32_t i = 0; i < n && all; i++) {
        const struct entry *e = find(c, hashes[i]);
        all = e != NULL;
        if (e) promised[e - c->entries] = true;
    }
    /* Nobody was promised what this worker has opened by its own choice: it makes room for what another one has promised. */
    for (uint32_t i = 0; all && i < c->n; i++) {
        struct entry *e = &c->entries[i];
        if (promised[i] || e->fd < 0) continue;
        close(e->fd);
        e->fd = -1;
        c->n_open--;
    }
    for (uint32_t i = 0; all && i < c->n; i++) all = !promised[i] || c->entries[i].fd >= 0 || keep_open(c, &c->entries[i]);
    free(promised);
    return all;
}
