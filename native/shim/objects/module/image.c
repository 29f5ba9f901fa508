#include "objects/module/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID_IMAGE 200
#define NO_BINARY_FOR_GPU 209
#define OUT_OF_MEMORY 2

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define ENTRY_PTX 1
#define ENTRY_ELF 2

/* What nvcc leaves in a program's .nvFatBinSegment. Version 2 (separate compilation) adds a list of fatbins that ends with NULL. */
struct wrapper {
    uint32_t magic, version;
    const void *data;
    const void *const *list;
};

struct fatbin {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size; /* of all entries */
};

/* Fields that matter here; the header may be longer. */
struct entry {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size; /* of the payload, padding included */
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t arch;
    uint32_t name_offset, name_size;
    uint64_t flags;
};

struct elf_header {
    uint8_t ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_offset, section_offset;
    uint32_t flags;
    uint16_t header_size, program_size, program_count, section_size, section_count, names;
};

struct elf_section {
    uint32_t name, type;
    uint64_t flags, address, offset, size;
    uint32_t link, info;
    uint64_t align, entry_size;
};

struct elf_program {
    uint32_t type, flags;
    uint64_t offset, vaddr, paddr, file_size, memory_size, align;
};

#define ELF_NOBITS 8
#define ELF_CUDA 190
#define ELF_LARGEST (4ull << 30)

static bool fits(uint64_t offset, uint64_t size, uint64_t limit) { return offset <= limit && size <= limit - offset; }

/* The extent of an ELF file: the end of its furthest section, table or segment. */
static int elf_size(const uint8_t *data, size_t limit, size_t *size) {
    struct elf_header h;
    if (limit < sizeof h) return INVALID_IMAGE;
    memcpy(&h, data, sizeof h);
    uint64_t most = limit < ELF_LARGEST ? limit : ELF_LARGEST, end = sizeof h;
    if (h.ident[4] != 2 || h.ident[5] != 1 || h.machine != ELF_CUDA) return INVALID_IMAGE;
    if (h.section_count) {
        uint64_t table = (uint64_t)h.section_size * h.section_count;
        if (h.section_size < sizeof(struct elf_section) || !fits(h.section_offset, table, most)) return INVALID_IMAGE;
        if (h.section_offset + table > end) end = h.section_offset + table;
        for (unsigned i = 0; i < h.section_count; i++) {
            struct elf_section s;
            memcpy(&s, data + h.section_offset + (uint64_t)i * h.section_size, sizeof s);
            if (s.type == ELF_NOBITS || !s.type) continue;
            if (!fits(s.offset, s.size, most)) return INVALID_IMAGE;
            if (s.offset + s.size > end) end = s.offset + s.size;
        }
    }
    if (h.program_count) {
        uint64_t table = (uint64_t)h.program_size * h.program_count;
        if (h.program_size < sizeof(struct elf_program) || !fits(h.program_offset, table, most)) return INVALID_IMAGE;
        if (h.program_offset + table > end) end = h.program_offset + table;
        for (unsigned i = 0; i < h.program_count; i++) {
            struct elf_program p;
            memcpy(&p, data + h.program_offset + (uint64_t)i * h.program_size, sizeof p);
            if (!fits(p.offset, p.file_size, most)) return INVALID_IMAGE;
            if (p.offset + p.file_size > end) end = p.offset + p.file_size;
        }
    }
    *size = (size_t)end;
    return 0;
}

/* PTX is text that says ".version" after nothing but comments and blanks. */
static bool looks_like_ptx(const char *text, size_t limit) {
    size_t i = 0;
    while (i < limit) {
        if (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
            i++;
        } else if (i + 1 < limit && text[i] == '/' && text[i + 1] == '/') {
            while (i < limit && text[i] && text[i] != '\n') i++;
        } else if (i + 1 < limit && text[i] == '/' && text[i + 1] == '*') {
            for (i += 2; i + 1 < limit && text[i] && !(text[i] == '*' && text[i + 1] == '/'); i++) {
            }
            if (i + 1 >= limit || !text[i]) return false;
            i += 2;
        } else {
            return limit - i >= 8 && !strncmp(text + i, ".version", 8);
        }
    }
    return false;
}

static int add_part(struct image *out, enum image_kind kind, const void *data, size_t size) {
    if (out->n == IMAGE_MAX_PARTS) return INVALID_IMAGE;
    out->parts[out->n++] = (struct image_part){.kind = kind, .data = data, .size = size};
    return 0;
}

static int add_fatbin(struct image *out, const void *data, size_t limit) {
    struct fatbin h;
    if (!data || limit < sizeof h) return INVALID_IMAGE;
    memcpy(&h, data, sizeof h);
    if (h.magic != FATBIN_MAGIC || h.header_size < sizeof h || !fits(h.header_size, h.size, limit < ELF_LARGEST ? limit : ELF_LARGEST))
        return INVALID_IMAGE;
    return add_part(out, IMAGE_FATBIN, data, (size_t)(h.header_size + h.size));
}

int image_open(const void *pointer, size_t limit, struct image *out) {
    memset(out, 0, sizeof *out);
    uint32_t magic;
    if (!pointer || limit < sizeof magic) return INVALID_IMAGE;
    memcpy(&magic, pointer, sizeof magic);
    if (magic == WRAPPER_MAGIC) {
        struct wrapper w;
        if (limit < sizeof w) return INVALID_IMAGE;
        memcpy(&w, pointer, sizeof w);
        int rc = w.data ? add_fatbin(out, w.data, SIZE_MAX) : 0;
        out->linked = w.data != NULL;
        for (unsigned i = 0; !rc && w.version == 2 && w.list && w.list[i]; i++) rc = add_fatbin(out, w.list[i], SIZE_MAX);
        return rc ? rc : out->n ? 0 : INVALID_IMAGE;
    }
    if (magic == FATBIN_MAGIC) return add_fatbin(out, pointer, limit);
    if (!memcmp(&magic, "\177ELF", 4)) {
        size_t size;
        int rc = elf_size(pointer, limit, &size);
        return rc ? rc : add_part(out, IMAGE_ELF, pointer, size);
    }
    if (!looks_like_ptx(pointer, limit)) return INVALID_IMAGE;
    return add_part(out, IMAGE_PTX, pointer, limit == SIZE_MAX ? strlen(pointer) : strnlen(pointer, limit));
}

int image_keep(struct image *image) {
    size_t total = 0;
    for (unsigned i = 0; i < image->n; i++) total += (image->parts[i].size + 16) & ~(size_t)15;
    char *copy = malloc(total + 16);
    if (!copy) return OUT_OF_MEMORY;
    size_t at = 0;
    for (unsigned i = 0; i < image->n; i++) {
        struct image_part *p = &image->parts[i];
        memcpy(copy + at, p->data, p->size);
        copy[at + p->size] = 0;
        p->data = copy + at;
        at += (p->size + 16) & ~(size_t)15;
    }
    image->copy = copy;
    return 0;
}

void image_close(struct image *image) {
    free(image->copy);
    memset(image, 0, sizeof *image);
}

/* How well an entry suits: 0 not at all, else the higher the better. */
static unsigned entry_score(const struct entry *e, const struct image_target *target) {
    if (e->arch > (unsigned)target->capability) return 0;
    if (e->kind == ENTRY_PTX) return 1 + e->arch;
    if (e->kind == ENTRY_ELF && !target->wants_ptx && e->arch / 10 == (unsigned)target->capability / 10) return 100000 + e->arch;
    return 0;
}

struct chosen {
    const uint8_t *entry;
    uint64_t size;
    unsigned score;
    bool is_ptx;
};

static void note(char *why, size_t why_size, const char *format, unsigned arch) {
    size_t used = strlen(why);
    if (used + 24 < why_size) snprintf(why + used, why_size - used, format, used ? ", " : "", arch);
}

static int search_fatbin(const struct image_part *part, const struct image_target *target, struct chosen *best, char *why, size_t why_size) {
    struct fatbin h;
    memcpy(&h, part->data, sizeof h);
    const uint8_t *at = (const uint8_t *)part->data + h.header_size;
    uint64_t left = h.size;
    while (left >= sizeof(struct entry)) {
        struct entry e;
        memcpy(&e, at, sizeof e);
        if (!e.kind && !e.header_size) break; /* padding */
        if (e.header_size < sizeof e || !fits(e.header_size, e.size, left)) return INVALID_IMAGE;
        unsigned score = entry_score(&e, target);
        if (score > best->score) {
            *best = (struct chosen){.entry = at, .size = e.header_size + e.size, .score = score, .is_ptx = e.kind == ENTRY_PTX};
        }
        if (e.kind == ENTRY_PTX)
            note(why, why_size, "%sPTX for %u", e.arch);
        else if (e.kind == ENTRY_ELF)
            note(why, why_size, "%sSASS for %u", e.arch);
        else
            note(why, why_size, "%skind %u", e.kind);
        at += e.header_size + e.size;
        left -= e.header_size + e.size;
    }
    return 0;
}

int image_choose(const struct image *image, const struct image_target *target, struct image_choice *out, char *why, size_t why_size) {
    struct chosen best = {0};
    if (why_size) why[0] = 0;
    memset(out, 0, sizeof *out);
    for (unsigned i = 0; i < image->n; i++) {
        const struct image_part *p = &image->parts[i];
        if (p->kind == IMAGE_PTX) {
            *out = (struct image_choice){.data = p->data, .size = p->size, .is_ptx = true};
            return 0;
        }
        if (p->kind == IMAGE_ELF) {
            if (target->wants_ptx) {
                snprintf(why, why_size, "machine code only (an ELF file)");
                return NO_BINARY_FOR_GPU;
            }
            *out = (struct image_choice){.data = p->data, .size = p->size};
            return 0;
        }
        int rc = search_fatbin(p, target, &best, why, why_size);
        if (rc) return rc;
    }
    if (!best.score) {
        if (why_size && !why[0]) snprintf(why, why_size, "no program at all");
        return NO_BINARY_FOR_GPU;
    }
    struct fatbin h = {.magic = FATBIN_MAGIC, .version = 1, .header_size = sizeof h, .size = best.size};
    char *data = malloc(sizeof h + (size_t)best.size);
    if (!data) return OUT_OF_MEMORY;
    memcpy(data, &h, sizeof h);
    memcpy(data + sizeof h, best.entry, (size_t)best.size);
    *out = (struct image_choice){.data = data, .size = sizeof h + (size_t)best.size, .is_ptx = best.is_ptx, .owned = true};
    return 0;
}

void image_choice_free(struct image_choice *choice) {
    if (choice->owned) free((void *)choice->data);
    choice->owned = false;
    choice->data = NULL;
}
