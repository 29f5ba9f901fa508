/* Which piece of an image is chosen for which device, and that a corrupt image is refused without reading beyond it. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "objects/module/image.h"

struct entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_size;
    uint64_t flags, zero, full_size;
};

#define PTX 1
#define ELF 2

/* Appends an entry whose payload is `byte` repeated. */
static size_t add_entry(char *fatbin, size_t at, int kind, unsigned arch, char byte, size_t size) {
    struct entry e = {.kind = (uint16_t)kind, .version = 0x101, .header_size = sizeof e, .size = size, .arch = arch, .flags = 0x2000};
    memcpy(fatbin + at, &e, sizeof e);
    memset(fatbin + at + sizeof e, byte, size);
    return at + sizeof e + size;
}

static size_t make_fatbin(char *out, const int (*entries)[3], int n) {
    size_t at = 16;
    for (int i = 0; i < n; i++) at = add_entry(out, at, entries[i][0], (unsigned)entries[i][1], (char)entries[i][2], 64);
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header = 16;
    uint64_t size = at - 16;
    memcpy(out, &magic, 4);
    memcpy(out + 4, &version, 2);
    memcpy(out + 6, &header, 2);
    memcpy(out + 8, &size, 8);
    return at;
}

/* The payload byte of what is chosen, 0 when nothing is. */
static int chosen(const int (*entries)[3], int n, int capability, bool wants_ptx, int *rc) {
    char buffer[4096], why[256];
    struct image image;
    struct image_choice choice;
    size_t size = make_fatbin(buffer, entries, n);
    char *exact = malloc(size); /* so that a read beyond it is seen */
    memcpy(exact, buffer, size);
    *rc = image_open(exact, SIZE_MAX, &image);
    int byte = 0;
    if (!*rc) *rc = image_choose(&image, &(struct image_target){.capability = capability, .wants_ptx = wants_ptx}, &choice, why, sizeof why);
    if (!*rc) {
        EQUAL(choice.size, 16 + sizeof(struct entry) + 64);
        byte = ((const char *)choice.data)[16 + sizeof(struct entry)];
        /* What travels is a fatbin by itself. */
        struct image again;
        EQUAL(image_open(choice.data, choice.size, &again), 0);
        EQUAL(again.parts[0].size, choice.size);
    }
    image_choice_free(&choice);
    free(exact);
    return byte;
}

static void choices(void) {
    int rc;
    const int mixed[][3] = {{ELF, 80, 'a'}, {ELF, 90, 'b'}, {PTX, 70, 'c'}, {PTX, 90, 'd'}, {ELF, 120, 'e'}, {PTX, 120, 'f'}};
    EQUAL(chosen(mixed, 6, 130, true, &rc), 'f');  /* a software device: the newest PTX */
    EQUAL(chosen(mixed, 6, 120, true, &rc), 'f');  /* PTX even where SASS fits */
    EQUAL(chosen(mixed, 6, 120, false, &rc), 'e'); /* a real one: its SASS */
    EQUAL(chosen(mixed, 6, 89, false, &rc), 'a');  /* same major, minor below */
    EQUAL(chosen(mixed, 6, 100, false, &rc), 'd'); /* no SASS of 10.x: PTX */
    EQUAL(chosen(mixed, 6, 75, false, &rc), 'c');
    EQUAL(chosen(mixed, 6, 60, false, &rc), 0);
    EQUAL(rc, 209);
    const int sass[][3] = {{ELF, 80, 'a'}, {ELF, 90, 'b'}};
    EQUAL(chosen(sass, 2, 130, true, &rc), 0);
    EQUAL(rc, 209);
    EQUAL(chosen(sass, 2, 90, true, &rc), 0);
    EQUAL(rc, 209);
}

static void corrupt(void) {
    struct image image;
    struct image_choice choice;
    char why[64];
    const struct image_target target = {.capability = 130, .wants_ptx = true};
    EQUAL(image_open(NULL, SIZE_MAX, &image), 200);
    EQUAL(image_open("no image at all", SIZE_MAX, &image), 200);
    EQUAL(image_open("", 1, &image), 200);
    EQUAL(image_open("// only a comment\n", SIZE_MAX, &image), 200);
    EQUAL(image_open("/* never ends", SIZE_MAX, &image), 200);
    char buffer[4096];
    const int one[][3] = {{PTX, 90, 'x'}, {PTX, 100, 'y'}};
    size_t size = make_fatbin(buffer, one, 2);
    /* Every damaged byte of the headers: an error or a choice inside the image, never a read beyond it. */
    for (size_t at = 0; at < size; at++) {
        if (at >= 16 + sizeof(struct entry) && at < 16 + sizeof(struct entry) + 64) continue;
        for (int bit = 0; bit < 8; bit++) {
            char *copy = malloc(size);
            memcpy(copy, buffer, size);
            copy[at] ^= (char)(1 << bit);
            if (!image_open(copy, size, &image)) {
                int rc = image_choose(&image, &target, &choice, why, sizeof why);
                CHECK(rc == 0 || rc == 200 || rc == 209);
                image_choice_free(&choice);
            }
            free(copy);
        }
    }
    /* And every truncation. */
    for (size_t length = 0; length < size; length++) {
        char *copy = malloc(length ? length : 1);
        memcpy(copy, buffer, length);
        EQUAL(image_open(copy, length, &image), 200);
        free(copy);
    }
}

static void text_and_elf(void) {
    struct image image;
    struct image_choice choice;
    char why[64];
    static const char ptx[] = "//\n// made by hand\n/* two */\n.version 8.0\n.target sm_80\n";
    EQUAL(image_open(ptx, SIZE_MAX, &image), 0);
    EQUAL(image.parts[0].kind, IMAGE_PTX);
    EQUAL(image.parts[0].size, sizeof ptx - 1);
    EQUAL(image_keep(&image), 0);
    CHECK(image.parts[0].data != ptx && !strcmp(image.parts[0].data, ptx));
    EQUAL(image_choose(&image, &(struct image_target){.capability = 130, .wants_ptx = true}, &choice, why, sizeof why), 0);
    CHECK(choice.is_ptx && !choice.owned);
    image_close(&image);

    unsigned char elf[256] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
    uint16_t machine = 190, section_size = 64, sections = 2;
    uint64_t table = 64, offset = 200, size = 40;
    uint32_t type = 1;
    memcpy(elf + 18, &machine, 2);
    memcpy(elf + 40, &table, 8);
    memcpy(elf + 58, &section_size, 2);
    memcpy(elf + 60, &sections, 2);
    memcpy(elf + 64 + 64 + 4, &type, 4);
    memcpy(elf + 64 + 64 + 24, &offset, 8);
    memcpy(elf + 64 + 64 + 32, &size, 8);
    EQUAL(image_open(elf, SIZE_MAX, &image), 0);
    EQUAL(image.parts[0].size, 240);
    EQUAL(image_choose(&image, &(struct image_target){.capability = 90}, &choice, why, sizeof why), 0);
    EQUAL(choice.size, 240);
    EQUAL(image_choose(&image, &(struct image_target){.capability = 130, .wants_ptx = true}, &choice, why, sizeof why), 209);
    EQUAL(image_open(elf, 220, &image), 200);
    size = UINT64_MAX - 10;
    memcpy(elf + 64 + 64 + 32, &size, 8);
    EQUAL(image_open(elf, SIZE_MAX, &image), 200);
}

static void wrappers(void) {
    char first[4096], second[4096], why[64];
    const int sass[][3] = {{ELF, 90, 's'}}, ptx[][3] = {{PTX, 90, 'p'}};
    make_fatbin(first, sass, 1);
    make_fatbin(second, ptx, 1);
    const void *list[] = {second, NULL};
    struct {
        uint32_t magic, version;
        const void *data;
        const void *const *list;
    } wrapper = {.magic = 0x466243b1, .version = 1, .data = second};
    struct image image;
    struct image_choice choice;
    const struct image_target target = {.capability = 130, .wants_ptx = true};
    EQUAL(image_open(&wrapper, SIZE_MAX, &image), 0);
    EQUAL(image_choose(&image, &target, &choice, why, sizeof why), 0);
    image_choice_free(&choice);
    /* Separately compiled code: the PTX is in the second fatbin. */
    wrapper.version = 2;
    wrapper.data = first;
    wrapper.list = list;
    EQUAL(image_open(&wrapper, SIZE_MAX, &image), 0);
    EQUAL(image.n, 2);
    EQUAL(image_choose(&image, &target, &choice, why, sizeof why), 0);
    EQUAL(((const char *)choice.data)[16 + sizeof(struct entry)], 'p');
    image_choice_free(&choice);
    wrapper.data = NULL;
    wrapper.list = NULL;
    EQUAL(image_open(&wrapper, SIZE_MAX, &image), 200);
}

int main(void) {
    choices();
    corrupt();
    text_and_elf();
    wrappers();
    return check_result("image");
}
