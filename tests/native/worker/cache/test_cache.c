/* The worker's cache of images, with limits of 64 KiB and 16 files, and 10,000 bytes to look at while a session begins: what is listed, kept, refused, forgotten. argv[1]: an empty folder. */
#define _GNU_SOURCE
#include "../../../../native/worker/module_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "../../check.h"

static char folder[2000];
static const uint8_t META[8] = {1, 2, 3, 4, 5, 6, 7, 8}, OTHER[8] = {9, 9, 9, 9};
static struct gv_module_known list[GV_MODULES_KNOWN_MAX];

/* An image of `size` bytes that begins with its number. */
static void make(int number, char *image, size_t size, uint8_t hash[32]) {
    memset(image, 'x', size);
    memcpy(image, &number, sizeof number);
    gv_sha256(image, size, hash);
}

static enum gv_module_kept put(struct module_cache *c, int number, size_t size, const uint8_t *meta) {
    static char image[1 << 20];
    uint8_t hash[32];
    make(number, image, size, hash);
    return module_cache_put(c, hash, image, size, meta);
}

static int has(struct module_cache *c, int number, size_t size) {
    static char image[1 << 20];
    uint8_t hash[32];
    size_t found;
    make(number, image, size, hash);
    void *got = module_cache_get(c, hash, &found);
    if (got) CHECK(found == size && !memcmp(got, image, size));
    free(got);
    return got != NULL;
}

static uint64_t on_disk(int *files) {
    uint64_t bytes = 0;
    *files = 0;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct stat st;
        if (f->d_name[0] == '.' || fstatat(dirfd(d), f->d_name, &st, 0)) continue;
        bytes += (uint64_t)st.st_size;
        ++*files;
    }
    if (d) closedir(d);
    return bytes;
}

/* The name of the only file that belongs to an image. */
static void path_of(int number, size_t size, char path[4096]) {
    static char image[1 << 20];
    uint8_t hash[32];
    char hex[65];
    make(number, image, size, hash);
    for (int i = 0; i < 32; i++) sprintf(hex + 2 * i, "%02x", hash[i]);
    DIR *d = opendir(folder);
    path[0] = 0;
    for (struct dirent *f; (f = readdir(d));) {
        if (!strncmp(f->d_name, hex, 64)) snprintf(path, 4096, "%s/%s", folder, f->d_name);
    }
    closedir(d);
    CHECK(path[0]);
}

static void set_age(int number, size_t size, time_t seconds) {
    char path[4096];
    path_of(number, size, path);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - seconds}};
    CHECK(!utimensat(AT_FDCWD, path, times, 0));
}

static void empty(void) {
    char command[2100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(!system(command));
}

static struct module_cache *opened(const char *key) {
    struct module_cache *c = module_cache_open(folder);
    if (c) module_cache_choose(c, key);
    return c;
}

static void keeps(void) {
    empty();
    struct module_cache *c = opened("key");
    CHECK(c && !module_cache_list(c, list, 10) && !has(c, 1, 100));
    CHECK(put(c, 1, 100, META) == GV_MODULE_PROMISED && has(c, 1, 100));
    CHECK(put(c, 1, 100, META) == GV_MODULE_PROMISED);
    CHECK(put(c, 2, 100, META) == GV_MODULE_PROMISED);
    module_cache_close(c);
    set_age(1, 100, 50);

    struct module_cache *other = opened("another key");
    CHECK(!module_cache_list(other, list, 10) && !has(other, 1, 100));
    module_cache_close(other);

    c = opened("key");
    uint8_t hash[32];
    char image[100];
    CHECK(module_cache_list(c, list, 10) == 2);
    make(2, image, sizeof image, hash);
    CHECK(!memcmp(list[0].hash, hash, 8) && !memcmp(list[0].meta, META, 4)); /* the one used last comes first */
    CHECK(has(c, 1, 100));
    module_cache_close(c);
    c = opened("key");
    CHECK(module_cache_list(c, list, 1) == 1);
    make(1, image, sizeof image, hash);
    CHECK(!memcmp(list[0].hash, hash, 8));
    /* Other metadata of the same image take its place. */
    CHECK(put(c, 1, 100, OTHER) == GV_MODULE_PROMISED);
    module_cache_close(c);
    int files;
    on_disk(&files);
    CHECK(files == 2);
}

static void bounded(void) {
    empty();
    struct module_cache *c = opened("key");
    int kept = 0, files;
    for (int i = 0; i < 40; i++) kept += put(c, i, 100, META) != GV_MODULE_NOT_KEPT;
    CHECK(kept == 16);
    for (int i = 0; i < 16; i++) set_age(i, 100, 100 - i);
    module_cache_close(c);
    CHECK(on_disk(&files) == 1600 && files == 16);
    c = opened("some other key"); /* whoever comes next clears up, whosever it is */
    CHECK(on_disk(&files) && files == 12);
    module_cache_close(c);
    c = opened("key");
    CHECK(!has(c, 3, 100) && has(c, 4, 100) && has(c, 15, 100)); /* the oldest went */
    module_cache_close(c);

    empty();
    c = opened("key");
    CHECK(put(c, 1, 65537, META) == GV_MODULE_NOT_KEPT);
    CHECK(put(c, 2, 40000, META) == GV_MODULE_PROMISED && put(c, 3, 20000, META) == GV_MODULE_PROMISED);
    CHECK(put(c, 4, 20000, META) == GV_MODULE_NOT_KEPT && put(c, 4, 5000, META) == GV_MODULE_PROMISED);
    set_age(2, 40000, 100);
    module_cache_close(c);
    c = opened("key");
    CHECK(!has(c, 2, 40000) && has(c, 3, 20000) && on_disk(&files) == 25000);
    module_cache_close(c);
}

/* What was promised can be read, whoever clears up; what was not may be gone. */
static void promises(void) {
    empty();
    struct module_cache *c = opened("key");
    for (int i = 0; i < 8; i++) CHECK(put(c, i, 100, META) == (i < 4 ? GV_MODULE_PROMISED : GV_MODULE_ON_DISK)); /* four may be open */
    for (int i = 0; i < 8; i++) set_age(i, 100, 100 - i);
    module_cache_close(c);
    c = opened("key");
    CHECK(module_cache_list(c, list, 10) == 8);
    static const uint8_t none[4];
    for (int i = 0; i < 8; i++) CHECK(!memcmp(list[i].meta, none, 4) == (i >= 4));
    DIR *d = opendir(folder);
    for (struct dirent *f; (f = readdir(d));) unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    for (int i = 0; i < 8; i++) CHECK(has(c, i, 100) == (i >= 4)); /* the last used were listed first */
    module_cache_close(c);
}

/* A worker that takes a session over promises what the old one has promised: not what it has opened itself, and whoever cleared up. */
static void moved(void) {
    empty();
    struct module_cache *old = opened("key"), *other = opened("key");
    uint8_t hashes[10][32];
    for (int i = 0; i < 4; i++) CHECK(put(old, i, 100, META) == GV_MODULE_PROMISED);
    for (int i = 4; i < 10; i++) put(other, i, 100, META);
    for (int i = 0; i < 10; i++) set_age(i, 100, 100 - i); /* the latest six are the other one's, and four may be open */
    struct module_cache *late = opened("key");
    for (int i = 0; i < 4; i++) CHECK(has(late, 6 + i, 100));
    char gone[2][4096];
    for (int i = 0; i < 2; i++) path_of(i, 100, gone[i]);
    for (int i = 0; i < 2; i++) CHECK(!unlink(gone[i]));
    CHECK(module_cache_hand_over(old, hashes, 10) == 4);
    struct module_cache *early = opened("key");
    CHECK(module_cache_take_over(early, hashes, 4) && module_cache_hand_over(early, hashes, 10) == 4);
    module_cache_close(late);
    late = opened("key");
    DIR *d = opendir(folder);
    for (struct dirent *f; (f = readdir(d));) unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    for (int i = 0; i < 10; i++) CHECK(has(early, i, 100) == (i < 4));
    /* A worker that has no file open that is asked for, or is asked for more than it may keep open. */
    module_cache_close(early);
    early = opened("key");
    CHECK(module_cache_take_over(early, hashes, 0) && !module_cache_take_over(early, hashes, 4) && !module_cache_take_over(NULL, hashes, 4));
    module_cache_close(early);
    empty();
    struct module_cache *again = opened("key");
    for (int i = 0; i < 5; i++) put(again, i, 100, META);
    for (int i = 0; i < 5; i++) {
        char image[100];
        make(i, image, sizeof image, hashes[i]);
    }
    CHECK(!module_cache_take_over(again, hashes, 5) && module_cache_take_over(again, &hashes[1], 4));
    for (struct module_cache *const *c = (struct module_cache *[]){old, other, late, again, NULL}; *c; c++) module_cache_close(*c);
}

/* A worker looks at the folder long before its session: what came and went meanwhile counts. */
static void late(void) {
    empty();
    struct module_cache *other = opened("key");
    for (int i = 0; i < 6; i++) put(other, i, 100, META);
    for (int i = 0; i < 6; i++) set_age(i, 100, 50 + i);
    struct module_cache *c = module_cache_open(folder), *idle = module_cache_open(folder); /* 0 to 3 are open now */
    put(other, 7, 100, META);
    char gone[2][4096];
    path_of(1, 100, gone[0]); /* open, but nothing was promised yet */
    path_of(5, 100, gone[1]);
    for (int i = 0; i < 2; i++) CHECK(!unlink(gone[i]));
    module_cache_close(other);
    module_cache_choose(c, "key");
    CHECK(module_cache_list(c, list, 10) == 5);
    char image[100];
    uint8_t hash[32];
    make(7, image, sizeof image, hash);
    CHECK(!memcmp(list[0].hash, hash, 8)); /* the latest */
    CHECK(has(c, 7, 100) && !has(c, 1, 100) && has(c, 4, 100) && !has(c, 5, 100));
    module_cache_close(c);
    module_cache_refresh(NULL);
    module_cache_choose(idle, "another key");
    CHECK(!module_cache_list(idle, list, 10) && put(idle, 1, 100, META) == GV_MODULE_PROMISED);
    module_cache_close(idle);
}

/* What is too much to be looked at while a program waits is looked at before, and then promised. */
static void refreshed(void) {
    enum { LARGE = 6000 };
    for (int again = 0; again < 2; again++) {
        empty();
        struct module_cache *c = module_cache_open(folder), *other = opened("key");
        put(other, 1, LARGE, META);
        put(other, 2, LARGE, META);
        module_cache_close(other);
        if (again) module_cache_refresh(c);
        module_cache_choose(c, "key");
        CHECK(module_cache_list(c, list, 10) == 2);
        static const uint8_t none[4];
        for (int i = 0; i < 2; i++) CHECK(!memcmp(list[i].meta, none, 4) == (i && !again));
        module_cache_close(c);
    }
}

static void damaged(void) {
    empty();
    struct module_cache *c = opened("key");
    for (int i = 0; i < 4; i++) put(c, i, 100, META);
    module_cache_close(c);
    char path[4096];
    path_of(0, 100, path);
    CHECK(!truncate(path, 50));
    path_of(1, 100, path);
    int fd = open(path, O_WRONLY);
    CHECK(pwrite(fd, "?", 1, 70) == 1 && !close(fd));
    path_of(2, 100, path);
    CHECK(!unlink(path) && !symlink("/etc/passwd", path));
    snprintf(path, sizeof path, "%s/rubbish", folder);
    CHECK(!close(open(path, O_WRONLY | O_CREAT, 0600)));
    c = opened("key");
    CHECK(module_cache_list(c, list, 10) == 1);
    CHECK(!has(c, 0, 100) && !has(c, 1, 100) && !has(c, 2, 100) && has(c, 3, 100));
    CHECK(put(c, 0, 100, META) == GV_MODULE_PROMISED && has(c, 0, 100));
    module_cache_close(c);
    CHECK(access(path, F_OK) == 0); /* what is none of ours stays */
}

/* An idle worker has looked at files that are damaged afterwards: once a session has found one of them, it does not believe the others either. */
static void damaged_since(void) {
    empty();
    struct module_cache *c = opened("key");
    for (int i = 0; i < 3; i++) put(c, i, 100, META);
    module_cache_close(c);
    struct module_cache *first = opened("key"), *idle = module_cache_open(folder), *late = module_cache_open(folder);
    for (int i = 0; i < 2; i++) {
        char path[4096];
        path_of(i, 100, path);
        int fd = open(path, O_WRONLY);
        CHECK(pwrite(fd, "?", 1, 70) == 1 && !close(fd));
    }
    CHECK(!has(first, 0, 100));
    module_cache_refresh(idle);
    module_cache_choose(idle, "key");
    CHECK(module_cache_list(idle, list, 10) == 1 && has(idle, 2, 100));
    module_cache_choose(late, "key");
    CHECK(module_cache_list(late, list, 10) == 1 && has(late, 2, 100));
    for (struct module_cache *const *each = (struct module_cache *[]){first, idle, late, NULL}; *each; each++) module_cache_close(*each);
}

/* The bounds are the folder's: workers that began together do not fill it once each. */
static void shared(void) {
    enum { WORKERS = 8 };
    struct module_cache *c[WORKERS];
    int kept = 0, files;
    empty();
    for (int i = 0; i < WORKERS; i++) CHECK((c[i] = opened("key")) != NULL);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < WORKERS; i++) kept += put(c[i], round * WORKERS + i, 16000, META) != GV_MODULE_NOT_KEPT;
    }
    CHECK(kept == 4 && on_disk(&files) == 64000 && files == 4);
    for (int i = 0; i < WORKERS; i++) module_cache_close(c[i]);
}

static void unusable(void) {
    CHECK(!module_cache_open("/proc/gpuvirt/images"));
    CHECK(!module_cache_open("/dev/null/images"));
    uint8_t hash[32] = {0};
    size_t size;
    CHECK(!module_cache_list(NULL, list, 10) && !module_cache_get(NULL, hash, &size) && put(NULL, 1, 10, META) == GV_MODULE_NOT_KEPT);
    module_cache_drop(NULL, hash);
    module_cache_close(NULL);
    /* Nothing can be made in a folder that is gone. */
    empty();
    struct module_cache *c = opened("key");
    CHECK(c);
    char command[2100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(!system(command));
    CHECK(put(c, 1, 100, META) == GV_MODULE_NOT_KEPT && !has(c, 1, 100));
    module_cache_close(c);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    snprintf(folder, sizeof folder, "%s/a/b", argv[1]);
    static const struct test_case cases[] = {{"keeps", keeps},   {"bounded", bounded},     {"promises", promises}, {"moved", moved},
                                             {"late", late},     {"refreshed", refreshed}, {"damaged", damaged},   {"damaged_since", damaged_since},
                                             {"shared", shared}, {"unusable", unusable}};
    return run_cases(cases, sizeof cases / sizeof *cases, 1, argv, 120);
}
