/* Staging memory when kernels write to what is free of it. */
#include "../../../../native/worker/staging.h"
#include "../../check.h"

static char pool[8][1 << 13];
static int made, freed;

static void *host_alloc(struct gv_backend *b, size_t size) {
    (void)b;
    CHECK(size == 1 << 12 && made < 8);
    return pool[made++];
}
static void host_free(struct gv_backend *b, void *memory) {
    (void)b;
    CHECK((char *)memory >= pool[0] && (char *)memory < pool[8 - 1] + sizeof pool[0]);
    freed++;
}

/* Every piece that is taken is one that the allocator made, whatever stands in pieces that were given back. */
static void free_pieces_are_written(void) {
    static const struct gv_backend_ops ops = {.host_alloc = host_alloc, .host_free = host_free};
    struct staging s;
    staging_init(&s);
    staging_set_backend(&s, &ops, NULL);
    void *pieces[4];
    for (int i = 0; i < 4; i++) pieces[i] = staging_take(&s, 4000);
    for (int i = 0; i < 4; i++) staging_give(&s, pieces[i], 4000);
    for (int i = 0; i < 4; i++) memset(pool[i], 0x41, sizeof pool[i]);
    for (int i = 0; i < 5; i++) {
        char *taken = staging_take(&s, 3000);
        CHECK(taken >= pool[0] && taken <= pool[7] && (taken - pool[0]) % (1 << 13) == 0);
        pieces[i % 4] = taken;
    }
    CHECK(made == 5);
    for (int i = 0; i < 4; i++) staging_give(&s, pieces[i], 3000);
    for (int i = 0; i < 4; i++) memset(pool[i], 0x42, sizeof pool[i]);
    staging_end(&s);
    CHECK(freed == 0); /* the process's end does that */
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"free_pieces_are_written", free_pieces_are_written}};
    return run_cases(cases, 1, argc, argv, 60);
}
