/* What the shim remembers of modules, with limits of 16 files and 64 images: the server's list, what was learned since, metadata on disk. argv[1]: an
 * empty folder. */
#include "fake_session.h"
#include "objects/module/module_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "wire/module_meta.h"

static struct gv_device_info device, another;

static void name_of(uint32_t number, uint8_t hash[32]) { gv_sha256(&number, sizeof number, hash); }

static void places(void) {
    struct shim_server *server = (struct shim_server *)session_server();
    uint8_t hash[32], meta[4];
    for (uint32_t i = 0; i < 10; i++) {
        name_of(i, hash);
        memcpy(server->modules[i].hash, hash, 8);
        memcpy(server->modules[i].meta, i < 5 ? hash + 20 : (const uint8_t *)"\0\0\0\0", 4);
    }
    server->n_modules = 10;
    for (uint32_t i = 0; i < 20; i++) {
        name_of(i, hash);
        EQUAL(module_place(hash, meta), i < 5 ? MODULE_ACCEPTED : i < 10 ? MODULE_ASK : MODULE_AWAY);
        if (i < 5) CHECK(!memcmp(meta, hash + 20, 4));
    }
    name_of(0, hash);
    module_place_learn(hash, MODULE_AWAY, meta);
    EQUAL(module_place(hash, meta), MODULE_AWAY);
    module_place_learn(hash, MODULE_ACCEPTED, (const uint8_t *)"meta");
    EQUAL(module_place(hash, meta), MODULE_ACCEPTED);
    CHECK(!memcmp(meta, "meta", 4));
    /* What is beyond the limit is forgotten, not what was there. */
    unsigned known = 0;
    for (uint32_t i = 100; i < 300; i++) {
        name_of(i, hash);
        module_place_learn(hash, MODULE_ACCEPTED, meta);
    }
    for (uint32_t i = 0; i < 300; i++) {
        name_of(i, hash);
        known += module_place(hash, meta) != MODULE_AWAY;
    }
    EQUAL(known, 64);
}

/* Sound metadata of one global. */
static size_t make(char *blob, uint64_t address) {
    struct gv_meta_header h = {.magic = GV_META_MAGIC, .version = GV_META_VERSION, .n_globals = 1, .strings_size = 8};
    struct gv_meta_global g = {.size = 16, .align = 4, .address = address};
    memcpy(blob, &h, sizeof h);
    memcpy(blob + sizeof h, &g, sizeof g);
    memcpy(blob + sizeof h + sizeof g, "table\0\0", 8);
    return sizeof h + sizeof g + 8;
}

static int files(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) n += f->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void metadata(const char *base) {
    char folder[2000], path[3000];
    snprintf(folder, sizeof folder, "%s/modules", base);
    CHECK(!mkdir(folder, 0700));
    /* What others left: more than there may be, the oldest to go. Rubbish of other names is nobody's business. */
    for (int i = 0; i < 20; i++) {
        snprintf(path, sizeof path, "%s/%032d", folder, i);
        CHECK(!close(open(path, O_WRONLY | O_CREAT, 0600)));
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - 100 + i}};
        CHECK(!utimensat(AT_FDCWD, path, times, 0));
    }
    snprintf(path, sizeof path, "%s/notes", folder);
    CHECK(!close(open(path, O_WRONLY | O_CREAT, 0600)));

    static char blob[200] __attribute__((aligned(8))), other[200] __attribute__((aligned(8)));
    size_t size = make(blob, 0x123456), found;
    uint8_t hash[32], digest[32], got[32];
    make(other, 0);
    gv_meta_digest(blob, size, digest);
    gv_meta_digest(other, size, got);
    CHECK(!memcmp(digest, got, 32)); /* addresses do not count */
    name_of(1, hash);
    CHECK(!module_meta_read(hash, &device, digest, &found, got));
    module_meta_write(hash, &device, blob, size, digest);
    EQUAL(files(folder), 12 + 1 + 1);
    snprintf(path, sizeof path, "%s/%032d", folder, 7);
    CHECK(access(path, F_OK));
    snprintf(path, sizeof path, "%s/%032d", folder, 8);
    CHECK(!access(path, F_OK));

    void *read = module_meta_read(hash, &device, digest, &found, got);
    CHECK(read && found == size && !memcmp(read, other, size) && !memcmp(got, digest, 32));
    free(read);
    CHECK(!module_meta_read(hash, &another, digest, &found, got));                 /* of another device */
    CHECK(!module_meta_read(hash, &device, (const uint8_t *)"????", &found, got)); /* as another build gave them */
    name_of(2, hash);
    CHECK(!module_meta_read(hash, &device, digest, &found, got)); /* of another image */
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    fake.cache = argv[1];
    session_attach();
    device = another = session_server()->devices[0];
    another.name[0]++;
    places();
    metadata(argv[1]);
    return check_result("module cache");
}
