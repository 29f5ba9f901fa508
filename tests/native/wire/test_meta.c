/* Module metadata: a sound blob is taken, and no single wrong number in it is. */
#include "../../../native/wire/module_meta.h"

#include <stdbool.h>

#include "../check.h"

struct blob {
    struct gv_meta_header header;
    struct gv_meta_kernel kernels[2];
    struct gv_meta_param params[3];
    struct gv_meta_global globals[1];
    char strings[16];
};

static const struct blob sound = {
    .header = {.magic = GV_META_MAGIC, .version = GV_META_VERSION, .n_kernels = 2, .n_params = 3, .n_globals = 1, .strings_size = 16},
    .kernels = {{.name = 0, .first_param = 0, .n_params = 2, .param_bytes = 16}, {.name = 4, .first_param = 2, .n_params = 1, .param_bytes = 4}},
    .params = {{0, 8}, {8, 8}, {0, 4}},
    .globals = {{.name = 8, .align = 16, .size = 64}},
    .strings = "one\0two\0counter",
};
_Static_assert(sizeof sound % 8 == 0, "no padding at the end");

static bool good(const struct blob *b) { return gv_meta_check(b, sizeof *b) == 0; }

static void accessors(void) {
    CHECK(good(&sound));
    CHECK(gv_meta_kernels(&sound) == sound.kernels && gv_meta_params(&sound) == sound.params && gv_meta_globals(&sound) == sound.globals);
    CHECK(gv_meta_strings(&sound) == sound.strings);
    struct gv_meta_header empty = {.magic = GV_META_MAGIC, .version = GV_META_VERSION};
    CHECK(gv_meta_check(&empty, sizeof empty) == 0);
}

/* Every length but the right one (and up to 7 bytes of a carrier's padding) is wrong; the blob lies at the end of its allocation, so that a read
 * beyond is seen. */
static void lengths(void) {
    for (size_t size = 0; size <= sizeof sound + 16; size++) {
        char *exact = malloc(size ? size : 1);
        memset(exact, 0, size);
        memcpy(exact, &sound, size < sizeof sound ? size : sizeof sound);
        CHECK((gv_meta_check(exact, size) == 0) == (size >= sizeof sound && size < sizeof sound + 8));
        free(exact);
    }
}

#define WRONG(field, value)    \
    do {                       \
        struct blob b = sound; \
        b.field = value;       \
        CHECK(!good(&b));      \
    } while (0)

static void wrong_numbers(void) {
    WRONG(header.magic, 1);
    WRONG(header.version, 2);
    WRONG(header.n_kernels, 3);
    WRONG(header.n_kernels, UINT32_MAX);
    WRONG(header.n_params, UINT32_MAX);
    WRONG(header.n_globals, UINT32_MAX);
    WRONG(header.strings_size, UINT32_MAX);
    WRONG(header.strings_size, 0);
    WRONG(kernels[0].name, 16);
    WRONG(kernels[1].name, UINT32_MAX);
    WRONG(kernels[0].first_param, 2);
    WRONG(kernels[0].first_param, 4);
    WRONG(kernels[0].first_param, UINT32_MAX);
    WRONG(kernels[0].n_params, 4);
    WRONG(kernels[0].n_params, UINT32_MAX);
    WRONG(kernels[0].param_bytes, 15);
    WRONG(params[1].offset, 9);
    WRONG(params[1].offset, UINT32_MAX);
    WRONG(params[1].size, 9);
    WRONG(params[2].size, UINT32_MAX);
    WRONG(globals[0].name, 16);
    WRONG(globals[0].align, 3);
    WRONG(strings[15], 'x');
}

static void misaligned(void) {
    char *room = malloc(sizeof sound + 8);
    memcpy(room + 4, &sound, sizeof sound);
    CHECK(gv_meta_check(room + 4, sizeof sound) == -1);
    free(room);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"accessors", accessors}, {"lengths", lengths}, {"wrong_numbers", wrong_numbers}, {"misaligned", misaligned}};
    return run_cases(cases, sizeof cases / sizeof *cases, argc, argv, 240);
}
