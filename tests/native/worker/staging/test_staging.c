/* Staging memory when kernels write to what is free of it. */
#include "../../../../native/worker/staging.h"
#include "../../check.h"

static char pool[8][1 << 13];
static int made, freed;

/* What the link was told of and has not been taken back. */
static const void *offered[16];
static int n_offered;

void gv_link_offer_memory(struct gv_link *link, const void *at, uint64_t size) {
    CHECK(link && size >= 1 << 12 && n_offered < 16);
    offered[n_offered++] = at;
}
void gv_link_take_back_memory(struct gv_link *link, const void *at) {
    int i = 0;
    while (i < n_offered && offered[i] != at) i++;
    CHECK(link && i < n_offered);
    offered[i] = offered[--n_offered];
}

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

/* For the thread that the driver must not hold up: memory that is kept, or the heap's. */
static void without_the_driver(void) {
    static const struct gv_backend_ops ops = {.host_alloc = host_alloc, .host_free = host_free};
    struct staging s;
    bool first, second;
    staging_init(&s);
    staging_set_backend(&s, &ops, NULL);
    int before = made;
    void *pinned = staging_take(&s, 4000);
    CHECK(made == before + 1);
    staging_give(&s, pinned, 4000);
    void *kept = staging_take_at_hand(&s, 4000, &first), *heap = staging_take_at_hand(&s, 4000, &second);
    CHECK(kept == pinned && !first && heap && second && made == before + 1);
    CHECK(atomic_load(&s.in_use) == 8000);
    memset(heap, 1, 4000);
    staging_give_either(&s, heap, 4000, second);
    staging_give_either(&s, kept, 4000, first);
    CHECK(atomic_load(&s.in_use) == 0 && staging_take(&s, 4000) == pinned);
    staging_end(&s);
}

/* The link hears of each piece once, and that it is no more before it is freed. */
static void the_link_is_told(void) {
    struct staging s;
    void *pieces[4];
    staging_init(&s);
    staging_set_link(&s, (struct gv_link *)&s);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++) pieces[i] = staging_take(&s, 4000);
        for (int i = 0; i < 4; i++) staging_give(&s, pieces[i], 4000);
        CHECK(n_offered == 4);
    }
    staging_end(&s);
    CHECK(n_offered == 0);
}

/* Of the driver's memory as well: what is not kept is taken back before it is freed, and what is left at the end stays the link's. */
static void the_link_is_told_of_pinned_pieces(void) {
    static const struct gv_backend_ops ops = {.host_alloc = host_alloc, .host_free = host_free};
    struct staging s;
    void *pieces[4];
    int before = freed;
    made = 0;
    staging_init(&s);
    staging_set_link(&s, (struct gv_link *)&s);
    staging_set_backend(&s, &ops, NULL);
    for (int i = 0; i < 4; i++) pieces[i] = staging_take(&s, 4000);
    CHECK(n_offered == 4);
    s.kept_bytes = STAGING_KEPT_PINNED - (2 << 12); /* there is room for two */
    for (int i = 0; i < 4; i++) staging_give(&s, pieces[i], 4000);
    staging_free_spare(&s);
    CHECK(n_offered == 2 && freed == before + 2);
    staging_end(&s);
    CHECK(n_offered == 2);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"free_pieces_are_written", free_pieces_are_written},
                                             {"without_the_driver", without_the_driver},
                                             {"the_link_is_told", the_link_is_told},
                                             {"the_link_is_told_of_pinned_pieces", the_link_is_told_of_pinned_pieces}};
    return run_cases(cases, 4, argc, argv, 60);
}
