#include "scenarios.h"

#include <string.h>

/* Whether the process keeps [base, base + size) free of everything: mapped, without any access. */
static bool kept(uint64_t base, uint64_t size) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], access[8];
    unsigned long long from, to;
    bool found = false;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %7s", &from, &to, access) == 3 && from <= base && base + size <= to && access[0] == '-') found = true;
    if (maps) fclose(maps);
    return found;
}

/* Whether [base, base + size) was given back. A sanitizer may hold those addresses itself. */
static bool given_back(uint64_t base, uint64_t size) {
#ifdef __SANITIZE_THREAD__
    return base + size > 0;
#else
    return !kept(base, size);
#endif
}

static int attach(struct fake *f) {
    (void)f;
    CHECK(session_attach() == 0);
    CHECK(session_attach() == 0 && session_broken() == 0 && !session_in_forked_child());
    const struct shim_server *s = session_server();
    CHECK(s->n_devices == 2 && !strcmp(s->devices[1].name, "fake 1") && s->driver_version == 13000);
    CHECK(s->addresses == GV_ADDRESSES_FIXED && s->initial == 1 << 20 && !strcmp(s->backend, "fake") && !strcmp(s->name, "here"));
    CHECK(kept(s->window_base, s->window_size));
    CHECK(given_back(s->window_base, s->window_size + 1)); /* the other candidates were given back */
    return 0;
}

static void one_session(struct fake *f) { CHECK(f->sessions == 1 && SOON(f->byes == 1)); }

static int reply_addresses(struct fake *f) {
    (void)f;
    CHECK(session_attach() == 0 && session_server()->window_size == 0 && session_server()->addresses == GV_ADDRESSES_REPLY);
    CHECK(given_back(0x200000000000ull, 1ull << 40));
    return 0;
}

/* Whatever goes wrong: one code, one line, and at once the next time. */
static int fails(struct fake *f) {
    (void)f;
    CHECK(session_attach() == 100);
    double start = seconds();
    for (int i = 0; i < 1000; i++) CHECK(session_attach() == 100);
    CHECK(seconds() - start < 20);
    CHECK(given_back(0x200000000000ull, 1ull << 40));
    return 0;
}

const struct scenario attach_scenarios[] = {
    {"attach", FAKE_ATTACH, attach, one_session, 0},
    {"attach_reply_addresses", FAKE_REPLY_ADDRESSES, reply_addresses, NULL, 0},
    {"attach_refused", FAKE_REFUSE, fails, NULL, 0},
    {"attach_foreign_window", FAKE_FOREIGN_WINDOW, fails, NULL, 0},
    {"attach_no_devices", FAKE_NO_DEVICES, fails, NULL, 0},
    {"attach_impossible_device", FAKE_IMPOSSIBLE_DEVICE, fails, NULL, 0},
    {"attach_garbage", FAKE_GARBAGE, fails, NULL, 0},
    {"attach_worker_dies", FAKE_DIE, fails, NULL, 0},
    {"attach_fails", FAKE_ATTACH, fails, NULL, 0}, /* the environment sees to it */
    {0},
};
