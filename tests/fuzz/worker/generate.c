#include "generate.h"

#include <string.h>

#include "link_inputs.h"
#include "mutate.h"
#include "record.h"

#define LIVE_MAX 16u
#define CONTEXTS 3u
#define COPY_SLOTS 4u /* slots 0 to 3 hold 4 MiB each, one for each stream: what a stream writes there, it finds there */

/* What a client knows of its session. */
struct model {
    struct chances *r;
    struct sequence *q;
    bool sound, fixed, cuda;
    uint64_t devices;
    struct {
        uint64_t id;
        uint32_t context;
    } live[N_KINDS][LIVE_MAX];
    unsigned n[N_KINDS], made[N_KINDS];
    uint64_t tags, late;
    unsigned expected, allocated, mapped;
    bool grown;
};

/* ---- handles ------------------------------------------------------------------------------------------------------------- */

static uint64_t fresh(struct model *m, enum kind kind, uint32_t context) {
    /* Physical memory has as many chunks as its handle says (client.c counts by that): one or two. */
    unsigned i = m->made[kind]++;
    uint64_t id = handle_of(kind, kind == KIND_PHYSICAL ? i / 2 * 16 + 1 + i % 2 : i);
    if (m->n[kind] < LIVE_MAX) {
        m->live[kind][m->n[kind]].id = id;
        m->live[kind][m->n[kind]++].context = context;
    }
    return id;
}

static int any(struct model *m, enum kind kind) { return m->n[kind] ? (int)chance(m->r, m->n[kind]) : -1; }

static void gone(struct model *m, enum kind kind, unsigned i) { m->live[kind][i] = m->live[kind][--m->n[kind]]; }

static void context_gone(struct model *m, uint32_t context) {
    for (enum kind kind = 0; kind < N_KINDS; kind++)
        for (unsigned i = m->n[kind]; i-- > 0;)
            if (m->live[kind][i].context == context && kind != KIND_PHYSICAL) gone(m, kind, i);
}

/* A stream and its context in the step; the stream's slot. The first streams have one each, later ones share. */
static unsigned on_stream(struct model *m, struct step *s) {
    int i = any(m, KIND_STREAM);
    uint64_t nth = i < 0 ? COPY_SLOTS : m->live[KIND_STREAM][i].id - handle_of(KIND_STREAM, 0);
    s->mark = one_in(m->r, 3);
    if (i < 0 || one_in(m->r, 6) || (m->sound && nth + 1 >= COPY_SLOTS)) {
        s->context = 1;
        return 0;
    }
    step_set(s, "stream", m->live[KIND_STREAM][i].id);
    s->context = m->live[KIND_STREAM][i].context;
    return 1 + (unsigned)(nth % (COPY_SLOTS - 1));
}

static void at(struct step *s, const char *field, enum base base, unsigned slot, uint64_t offset) {
    *step_value(s, field) = (struct value){.base = base, .slot = (uint8_t)slot, .number = offset};
}

static void add(struct model *m, const struct step *s) { sequence_add(m->q, s); }

static uint64_t copy_size(struct model *m) {
    static const uint64_t sizes[] = {1, 100, 4096, GV_INLINE_MAX, GV_INLINE_MAX + 1, 300000, MIB, MIB + 7, 3 * MIB};
    return one_in(m->r, 3) ? 1 + chance(m->r, 20000) : sizes[chance(m->r, sizeof sizes / sizeof *sizes)];
}

/* ---- commands, valid ------------------------------------------------------------------------------------------------------ */

static void shape_it(struct step *s, uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    step_set(s, "width", width);
    step_set(s, "height", height);
    step_set(s, "depth", depth);
    step_set(s, "pitch", pitch);
    step_set(s, "slice", slice);
}

static struct step payload(const struct blob *data, uint64_t tag) {
    struct step p = step_new("payload");
    *step_blob(&p, "data") = *data;
    step_set(&p, "tag", tag);
    return p;
}

/* Bytes to the device, and often back: one stream's own, so that they must be the same. */
static void copies(struct model *m) {
    struct step in = step_new("copy_in"), out = step_new("copy_out"), expect = step_new("expect");
    unsigned slot = on_stream(m, &in);
    uint64_t size = copy_size(m), rows = one_in(m->r, 4) ? 1 + chance(m->r, 9) : 1, deep = rows > 1 && one_in(m->r, 3) ? 2 : 1;
    if (rows > 1) size = 1 + size / rows / deep / 4;
    uint64_t pitch = rows > 1 && !one_in(m->r, 3) ? size + chance(m->r, 50) : size, offset = chance(m->r, 1000) * 64;
    struct blob data = {.kind = BLOB_NOISE, .size = (uint32_t)(size * rows * deep), .seed = (uint32_t)chance(m->r, 1000)};
    at(&in, "dst", BASE_ADDRESS, slot, offset);
    uint64_t slice = pitch * (rows + (deep > 1 && one_in(m->r, 2))); /* slices may lie apart */
    shape_it(&in, size, rows, deep, pitch, slice);
    bool bulk = data.size > GV_INLINE_MAX || one_in(m->r, 4), late = bulk && one_in(m->r, 5), before = bulk && !late && one_in(m->r, 3);
    if (late)
        step_set(&in, "bulk", GV_BULK_LATE | ++m->late);
    else if (bulk)
        at(&in, "bulk", BASE_PAYLOAD, 0, 0);
    else
        *step_blob(&in, "data") = data;
    struct step bytes = payload(&data, late ? GV_BULK_LATE | m->late : 0);
    if (!m->sound && one_in(m->r, 8)) { /* as many bytes as the shape does not say */
        struct blob *lies = bulk ? step_blob(&bytes, "data") : step_blob(&in, "data");
        lies->size = one_in(m->r, 2) ? lies->size / 2 : (uint32_t)chance(m->r, 4000);
        if (one_in(m->r, 2)) step_set(&in, "width", odd_number(m->r));
    }
    if (before) add(m, &bytes);
    add(m, &in);
    if (bulk && !before) add(m, &bytes);
    if (one_in(m->r, 3)) return;
    out.context = in.context;
    out.mark = one_in(m->r, 2);
    step_set(&out, "stream", step_get(&in, "stream"));
    at(&out, "src", BASE_ADDRESS, slot, offset);
    shape_it(&out, size, rows, deep, pitch, slice);
    step_set(&out, "tag", ++m->tags);
    add(m, &out);
    if (m->expected++ >= 60) return;
    step_set(&expect, "tag", m->tags);
    *step_blob(&expect, "data") = data;
    add(m, &expect);
}

static void fills(struct model *m) {
    struct step s = step_new("fill");
    unsigned slot = on_stream(m, &s);
    at(&s, "dst", BASE_ADDRESS, slot, chance(m->r, 100) * 64);
    step_set(&s, "elem", 1u << chance(m->r, 3));
    step_set(&s, "value", chance(m->r, 1000));
    step_set(&s, "width", 1 + chance(m->r, 5000));
    step_set(&s, "height", one_in(m->r, 2) ? 1 : 1 + chance(m->r, 8));
    step_set(&s, "pitch", 20000);
    add(m, &s);
}

static void copies_device(struct model *m) {
    struct step s = step_new("copy_device");
    unsigned slot = on_stream(m, &s);
    at(&s, "dst", BASE_ADDRESS, slot, 64);
    at(&s, "src", BASE_ADDRESS, slot, 2 * MIB);
    step_set(&s, "dst_ctx", s.context);
    step_set(&s, "src_ctx", one_in(m->r, 2) ? 1 : s.context);
    bool plain = one_in(m->r, 2);
    uint64_t width = 1 + chance(m->r, 3000);
    step_set(&s, "width", width);
    step_set(&s, "height", plain ? 1 : 3);
    step_set(&s, "depth", plain ? 1 : 2);
    step_set(&s, "dst_pitch", width + 8);
    step_set(&s, "src_pitch", width + 16);
    step_set(&s, "dst_slice", (width + 8) * 3);
    step_set(&s, "src_slice", (width + 16) * 4);
    add(m, &s);
}

static void loads(struct model *m) {
    struct step s = step_new("module_load");
    uint32_t which = (uint32_t)chance(m->r, m->sound ? 3 : 4);
    s.context = 1;
    unsigned how = (unsigned)chance(m->r, 6); /* 1, 4: packed; 2, 4: as a payload; 3: and then by its name */
    struct blob image = {.kind = how == 1 || how == 4 ? BLOB_PACKED : BLOB_IMAGE, .seed = which};
    size_t size;
    image_of(which, &size);
    if (how == 1 || how == 4) step_set(&s, "raw", size);
    if (one_in(m->r, 2) || how == 3) *step_blob(&s, "hash") = (struct blob){.kind = BLOB_HASH, .size = 32, .seed = which};
    struct step bytes = payload(&image, 0);
    if (how == 2 || how == 4) {
        at(&s, "bulk", BASE_PAYLOAD, 0, 0);
        add(m, &bytes);
    } else {
        *step_blob(&s, "image") = image;
    }
    step_set(&s, "module", fresh(m, KIND_MODULE, 1));
    add(m, &s);
    if (how != 3) return;
    /* And again, by its name alone. */
    if (m->sound && !step_get(&m->q->steps[0], "cache")) return;
    *step_blob(&s, "image") = (struct blob){0};
    step_set(&s, "module", fresh(m, KIND_MODULE, 1));
    add(m, &s);
    if (m->sound) return;
    struct step known = step_new("module_load_known");
    known.context = 1;
    *step_blob(&known, "hash") = (struct blob){.kind = BLOB_HASH, .size = 32, .seed = which};
    *step_blob(&known, "meta") = (struct blob){.kind = BLOB_DIGEST, .size = 8, .seed = which};
    step_set(&known, "module", fresh(m, KIND_MODULE, 1));
    add(m, &known);
}

static void launches(struct model *m) {
    int i = any(m, KIND_MODULE);
    if (i < 0) return loads(m);
    struct step s = step_new("launch");
    unsigned slot = on_stream(m, &s);
    step_set(&s, "module", m->live[KIND_MODULE][i].id);
    bool second = one_in(m->r, 3);
    step_set(&s, "kernel", !m->sound && one_in(m->r, 6) ? chance(m->r, 5) : second);
    for (const char *const *f = (const char *const[]){"grid.0", "grid.1", "grid.2", "block.0", "block.1", "block.2", NULL}; *f; f++)
        step_set(&s, *f, 1);
    const uint64_t blocks = 1 + chance(m->r, 4);
    step_set(&s, "grid.0", blocks);
    step_set(&s, "block.0", 1 + chance(m->r, 100));
    step_set(&s, "shared", second ? chance(m->r, 2000) : 0);
    step_set(&s, "cooperative", one_in(m->r, 4));
    if (one_in(m->r, 8)) {
        step_set(&s, "cluster", m->sound ? (one_in(m->r, 2) ? blocks : 1) | 1 << 10 | 1 << 20 : chance(m->r, 1 << 16)); /* wire/cluster_dims.h */
        step_set(&s, "preferred_cluster", chance(m->r, 1 << 16));
    }
    if (!second) *step_blob(&s, "params") = (struct blob){.kind = BLOB_PARAMS, .size = 16, .seed = 50, .at = {BASE_ADDRESS, (uint8_t)slot, 4096}};
    add(m, &s);
}

static void events(struct model *m) {
    int i = any(m, KIND_EVENT);
    struct step s = step_new(i < 0 || one_in(m->r, 4) ? "event_create"
                             : one_in(m->r, 2)        ? "event_record"
                             : one_in(m->r, 3)        ? "event_destroy"
                                                      : "event_wait");
    if (!strcmp(shape_of(&s)->name, "event_create")) {
        s.context = 1;
        step_set(&s, "flags", chance(m->r, 3));
        step_set(&s, "event", fresh(m, KIND_EVENT, 1));
        return add(m, &s);
    }
    step_set(&s, "event", m->live[KIND_EVENT][i].id);
    if (!strcmp(shape_of(&s)->name, "event_destroy"))
        gone(m, KIND_EVENT, (unsigned)i);
    else
        on_stream(m, &s);
    /* All events are the first context's; other contexts' streams may wait for them. */
    if (m->sound && s.context > 1 && !strcmp(shape_of(&s)->name, "event_record")) s.context = 1, step_set(&s, "stream", 0);
    add(m, &s);
    if (m->sound || !one_in(m->r, 4)) return;
    struct step elapsed = step_new("event_elapsed");
    step_set(&elapsed, "start", m->live[KIND_EVENT][0].id);
    step_set(&elapsed, "end", m->live[KIND_EVENT][0].id);
    add(m, &elapsed);
}

static void streams(struct model *m) {
    struct step s = step_new("stream_create");
    if (m->n[KIND_STREAM] > 3 && one_in(m->r, 2)) {
        int i = any(m, KIND_STREAM);
        s = step_new("stream_destroy");
        s.mark = one_in(m->r, 2);
        s.context = m->live[KIND_STREAM][i].context;
        step_set(&s, "stream", m->live[KIND_STREAM][i].id);
        gone(m, KIND_STREAM, (unsigned)i);
        return add(m, &s);
    }
    if (m->n[KIND_STREAM] == 8) return;
    s.context = 1 + (uint32_t)chance(m->r, m->n[KIND_CONTEXT]);
    s.context = (uint32_t)m->live[KIND_CONTEXT][s.context - 1].id;
    step_set(&s, "stream", fresh(m, KIND_STREAM, s.context));
    step_set(&s, "flags", chance(m->r, 2));
    add(m, &s);
}

static void contexts(struct model *m) {
    struct step s = step_new("context_create");
    if (m->n[KIND_CONTEXT] == CONTEXTS || (m->n[KIND_CONTEXT] > 1 && one_in(m->r, 2))) {
        unsigned i = 1 + (unsigned)chance(m->r, m->n[KIND_CONTEXT] - 1); /* the first stays */
        s = step_new("context_destroy");
        s.context = (uint32_t)m->live[KIND_CONTEXT][i].id;
        context_gone(m, s.context);
        return add(m, &s);
    }
    s.context = (uint32_t)fresh(m, KIND_CONTEXT, 0);
    m->live[KIND_CONTEXT][m->n[KIND_CONTEXT] - 1].context = s.context;
    step_set(&s, "device", 0);
    step_set(&s, "primary", one_in(m->r, 2));
    add(m, &s);
}

static void hosts(struct model *m) {
    struct step s = step_new("host_func");
    on_stream(m, &s);
    step_set(&s, "tag", ++m->tags);
    add(m, &s);
    /* Of what the client does not answer by itself; else of one that was answered, or is no host function. */
    bool last = !step_get(&m->q->steps[0], "answers");
    if (last ? one_in(m->r, 3) : m->sound || !one_in(m->r, 3)) return;
    struct step done = step_new("host_done");
    step_set(&done, "tag", last ? m->tags : 1 + chance(m->r, m->tags));
    add(m, &done);
}

static void memory(struct model *m) {
    static const char *const names[] = {"memory_info", "context_limit"};
    struct step s = step_new(names[chance(m->r, 2)]);
    s.context = 1;
    step_set(&s, "value", 2048);
    if (one_in(m->r, 3)) return add(m, &s);
    if (!m->fixed) {
        bool free = m->allocated && one_in(m->r, 2);
        s = step_new(free ? "memory_free" : "memory_alloc");
        s.context = 1;
        s.into = 8;
        if (free)
            at(&s, "address", BASE_ADDRESS, 8, 0);
        else
            step_set(&s, "size", 1 + chance(m->r, 3 * MIB));
        if (!free && m->allocated) return;
        m->allocated = !free;
        return add(m, &s);
    }
    s = step_new(m->grown ? "memory_shrink" : "memory_grow");
    s.context = 1;
    at(&s, "address", BASE_ADDRESS, 10, 0);
    step_set(&s, "size", 2 * MIB);
    m->grown = !m->grown;
    add(m, &s);
}

static void virtuals(struct model *m) {
    int i = any(m, KIND_PHYSICAL);
    struct step s = step_new("memory_create");
    if (i < 0) {
        uint64_t handle = fresh(m, KIND_PHYSICAL, 0);
        step_set(&s, "handle", handle);
        step_set(&s, "size", handle % 16 << 21);
        add(m, &s);
        if (m->fixed) return;
        s = step_new("address_reserve");
        s.into = 1;
        step_set(&s, "size", 4 * MIB);
        return add(m, &s);
    }
    uint64_t handle = m->live[KIND_PHYSICAL][i].id, size = handle % 16 << 21;
    if (!m->mapped) {
        s = step_new("memory_map");
        step_set(&s, "handle", handle);
        at(&s, "address", BASE_RESERVED, 1, 0);
        step_set(&s, "size", size);
        add(m, &s);
        s = step_new("memory_access");
        at(&s, "address", BASE_RESERVED, 1, 0);
        step_set(&s, "size", size);
        step_set(&s, "rights", one_in(m->r, 3) ? 1 : 3);
        m->mapped = 1;
        return add(m, &s);
    }
    s = step_new("memory_unmap");
    at(&s, "address", BASE_RESERVED, 1, 0);
    step_set(&s, "size", size);
    add(m, &s);
    m->mapped = 0;
    s = step_new("memory_destroy");
    step_set(&s, "handle", handle);
    gone(m, KIND_PHYSICAL, (unsigned)i);
    add(m, &s);
    if (m->fixed) return;
    s = step_new("address_free");
    at(&s, "address", BASE_RESERVED, 1, 0);
    step_set(&s, "size", 4 * MIB);
    add(m, &s);
}

static void textures(struct model *m) {
    struct step s = step_new("texture_create");
    s.context = 1;
    s.into = (uint8_t)chance(m->r, 4);
    step_set(&s, "kind", 2);
    step_set(&s, "format", 0x20);
    step_set(&s, "channels", 1);
    at(&s, "address", BASE_ADDRESS, 0, 0);
    step_set(&s, "width", 4096);
    add(m, &s);
    if (!one_in(m->r, 2)) return;
    struct step destroy = step_new("texture_destroy");
    destroy.context = 1;
    at(&destroy, "object", BASE_TEXTURE, s.into, 0);
    add(m, &destroy);
}

/* Every fourth is a mipmapped array, of three levels. */
static struct step array_made(struct model *m) {
    struct step s = step_new("array_create");
    uint64_t id = fresh(m, KIND_ARRAY, 1);
    s.context = 1;
    step_set(&s, "array", id);
    step_set(&s, "format", 0x20);
    step_set(&s, "channels", 1);
    step_set(&s, "flags", 2); /* CUDA_ARRAY3D_SURFACE_LDST */
    step_set(&s, "levels", id % 4 == 3 ? 3 : 0);
    step_set(&s, "width", 64);
    step_set(&s, "height", 8);
    step_set(&s, "depth", one_in(m->r, 4) ? 2 : 0);
    return s;
}

/* Between the array's first slice and what no other copy uses of the stream's own memory. */
static struct step array_copied(struct model *m, uint64_t id) {
    struct step s = step_new("copy_array");
    unsigned slot = on_stream(m, &s);
    bool in = one_in(m->r, 2);
    step_set(&s, in ? "dst_array" : "src_array", id);
    at(&s, in ? "src" : "dst", BASE_ADDRESS, slot, 4 * MIB - 4096);
    step_set(&s, "width", 256);
    step_set(&s, "height", 8);
    step_set(&s, "depth", 1);
    step_set(&s, in ? "src_pitch" : "dst_pitch", 256);
    step_set(&s, in ? "src_slice" : "dst_slice", 2048);
    return s;
}

static void arrays(struct model *m) {
    int i = any(m, KIND_ARRAY);
    if (i < 0 || (one_in(m->r, 3) && m->n[KIND_ARRAY] < LIVE_MAX)) {
        struct step s = array_made(m);
        return add(m, &s);
    }
    uint64_t id = m->live[KIND_ARRAY][i].id;
    bool levels = id % 4 == 3;
    if (one_in(m->r, 3)) {
        struct step s = step_new("array_destroy");
        step_set(&s, "array", id);
        gone(m, KIND_ARRAY, (unsigned)i);
        return add(m, &s);
    }
    if (one_in(m->r, 2) && (!levels || !m->sound)) {
        struct step s = array_copied(m, id);
        return add(m, &s);
    }
    if (levels && one_in(m->r, 2)) {
        struct step s = step_new("array_level");
        s.context = 1;
        step_set(&s, "level", handle_of(KIND_ARRAY, 4 * (1000 + m->made[KIND_ARRAY]++))); /* of which no more is said */
        step_set(&s, "array", id);
        step_set(&s, "number", chance(m->r, 3));
        return add(m, &s);
    }
    bool surface = !levels && one_in(m->r, 2);
    struct step s = step_new(surface ? "surface_create" : "array_texture"), destroy = step_new(surface ? "surface_destroy" : "texture_destroy");
    s.context = destroy.context = 1;
    s.into = (uint8_t)chance(m->r, 4);
    step_set(&s, "array", id);
    add(m, &s);
    if (!one_in(m->r, 2)) return;
    at(&destroy, "object", BASE_TEXTURE, s.into, 0);
    add(m, &destroy);
}

static void tensor_maps(struct model *m) {
    struct step s = step_new("tensor_map");
    s.context = 1;
    uint32_t rank = 1 + (uint32_t)chance(m->r, m->sound ? 5 : 9);
    step_set(&s, "type", 7);
    step_set(&s, "rank", rank);
    at(&s, "address", BASE_ADDRESS, 0, 0);
    *step_blob(&s, "dims") = (struct blob){.kind = BLOB_WORDS, .size = rank, .seed = 1, .at.number = 64};
    *step_blob(&s, "strides") = (struct blob){.kind = BLOB_WORDS, .size = rank - 1, .seed = 1, .at.number = 4096};
    *step_blob(&s, "box") = (struct blob){.kind = BLOB_WORDS, .size = rank, .at.number = 4};
    *step_blob(&s, "steps") = (struct blob){.kind = BLOB_WORDS, .size = rank, .at.number = 1};
    add(m, &s);
    if (!m->sound || rank > 2) {
        struct step columns = step_new("tensor_map_im2col");
        uint32_t pixels = rank > 2 ? rank - 2 : 1; /* dimensions of them */
        columns.context = 1;
        step_set(&columns, "type", 7);
        step_set(&columns, "rank", rank);
        step_set(&columns, "channels", m->sound || chance(m->r, 4) ? 4 : 0);
        step_set(&columns, "pixels", 8);
        at(&columns, "address", BASE_ADDRESS, 0, 0);
        *step_blob(&columns, "dims") = (struct blob){.kind = BLOB_WORDS, .size = rank, .seed = 1, .at.number = 64};
        *step_blob(&columns, "strides") = (struct blob){.kind = BLOB_WORDS, .size = rank - 1, .seed = 1, .at.number = 4096};
        *step_blob(&columns, "lower") = (struct blob){.kind = BLOB_WORDS, .size = pixels, .at.number = 0};
        *step_blob(&columns, "upper") = (struct blob){.kind = BLOB_WORDS, .size = pixels, .at.number = 0};
        *step_blob(&columns, "steps") = (struct blob){.kind = BLOB_WORDS, .size = rank, .at.number = 1};
        add(m, &columns);
    }
    if (m->sound) return;
    struct step moved = step_new("tensor_map_address"); /* of a map that is none, or has not its size */
    moved.context = 1;
    *step_blob(&moved, "map") = (struct blob){.kind = BLOB_ZERO, .size = rank % 2 ? 128 : 120};
    at(&moved, "address", BASE_ADDRESS, 0, 0);
    add(m, &moved);
}

static void globals(struct model *m) {
    int i = any(m, KIND_MODULE);
    if (i < 0) return loads(m);
    struct step s = step_new(one_in(m->r, 2)                ? "module_global"
                             : one_in(m->r, 3)              ? "module_unload"
                             : !m->sound && one_in(m->r, 2) ? (one_in(m->r, 4) ? "processor_groups" : "cluster_count")
                                                            : "kernel_attribute");
    step_set(&s, "module", m->live[KIND_MODULE][i].id);
    if (step_blob(&s, "name")) *step_blob(&s, "name") = (struct blob){.kind = BLOB_TEXT, .seed = (uint32_t)chance(m->r, 2)};
    step_set(&s, "attribute", 8);
    step_set(&s, "value", 1024);
    s.into = (uint8_t)chance(m->r, 4);
    if (!strcmp(shape_of(&s)->name, "processor_groups")) s.context = 1;
    if (!strcmp(shape_of(&s)->name, "module_unload")) gone(m, KIND_MODULE, (unsigned)i);
    add(m, &s);
}

static void links(struct model *m) {
    struct step s = step_new("link");
    s.context = 1;
    struct blob inputs = {.kind = BLOB_INPUTS, .size = 1 + (uint32_t)chance(m->r, 4), .seed = (uint32_t)chance(m->r, 100)};
    struct step bytes = payload(&inputs, 0);
    static const uint64_t wrong[] = {0, 1, 2, 5, GV_LINK_MAX_INPUTS, UINT32_MAX};
    step_set(&s, "n_inputs", !m->sound && one_in(m->r, 2) ? wrong[chance(m->r, sizeof wrong / sizeof *wrong)] : inputs.size);
    *step_blob(&s, "options") = (struct blob){.kind = BLOB_OPTIONS, .size = (uint32_t)chance(m->r, 3)};
    if (one_in(m->r, 2)) {
        *step_blob(&s, "inputs") = inputs;
    } else {
        add(m, &bytes);
        at(&s, "bulk", BASE_PAYLOAD, 0, 0);
    }
    add(m, &s);
}

static void operations(struct model *m) {
    struct step s = step_new("memory_operations");
    unsigned slot = on_stream(m, &s);
    /* Seed 1 writes only; others may wait for what nobody writes. */
    *step_blob(&s, "operations") = (struct blob){.kind = BLOB_OPERATIONS,
                                                 .size = 1 + (uint32_t)chance(m->r, 3),
                                                 .seed = m->sound ? 1 : (uint32_t)chance(m->r, 50),
                                                 .at = {BASE_ADDRESS, (uint8_t)slot, 8192}};
    add(m, &s);
}

static void waits(struct model *m) {
    struct step s = step_new(one_in(m->r, 3) ? "wait" : one_in(m->r, 2) ? "sleep" : "fence");
    step_set(&s, "us", chance(m->r, 2000));
    if (!strcmp(shape_of(&s)->name, "fence")) on_stream(m, &s);
    add(m, &s);
}

/* Any command of the table, as its fields' roles say: what is new in the specification is sent without a word here. */
static void anything(struct model *m) {
    struct step s = {.shape = (uint16_t)chance(m->r, n_commands)};
    const struct shape *shape = shape_of(&s);
    unsigned blob = 0;
    s.context = 1;
    s.loose = one_in(m->r, 2);
    for (unsigned i = 0; i < shape->n_fields; i++) {
        const struct field *f = &shape->fields[i];
        int one = f->kind < N_KINDS ? any(m, f->kind) : -1;
        switch (f->role) {
        case ROLE_BYTES:
        case ROLE_TEXT:
            s.blobs[blob++] =
                (struct blob){.kind = (uint8_t)chance(m->r, N_BLOB_KINDS), .size = (uint32_t)chance(m->r, 64), .seed = (uint32_t)chance(m->r, 9)};
            break;
        case ROLE_DEVICE:
        case ROLE_KERNEL: s.values[i].number = chance(m->r, 3); break;
        case ROLE_MAKE: s.values[i].number = fresh(m, f->kind, 1); break;
        case ROLE_NUMBER:
            s.values[i] = one_in(m->r, 3) ? (struct value){BASE_ADDRESS, (uint8_t)chance(m->r, SLOTS), chance(m->r, 5000)}
                                          : (struct value){.number = odd_number(m->r)};
            break;
        case ROLE_BULK: break;
        default: s.values[i].number = one < 0 ? 0 : m->live[f->kind][one].id;
        }
    }
    if (shape->op != GV_OP_BYE || one_in(m->r, 20)) add(m, &s);
}

/* ---- sessions ------------------------------------------------------------------------------------------------------------------ */

static void begin(struct model *m) {
    struct step s = step_new("session");
    uint64_t backend = chance(m->r, 5);
    m->sound = one_in(m->r, 3);
    backend = backend < 2 ? 0 : backend < 4 ? 1 : 2;
    m->fixed = backend == 0;
    m->cuda = backend == 1;
    step_set(&s, "backend", backend);
    step_set(&s, "transport", chance(m->r, 3));
    step_set(&s, "devices", 1 + one_in(m->r, 4));
    step_set(&s, "grace", m->sound ? 0 : chance(m->r, 2));
    step_set(&s, "answers", m->sound || !one_in(m->r, 3));
    step_set(&s, "sound", m->sound);
    step_set(&s, "cache", chance(m->r, 3));
    add(m, &s);
    s = step_new("attach");
    step_set(&s, "rtt_us", one_in(m->r, 3) ? 50000 : 0);
    *step_blob(&s, "windows") =
        (struct blob){.kind = BLOB_WINDOWS, .seed = m->sound ? 1 : (uint32_t)chance(m->r, 3), .size = (uint32_t)chance(m->r, 60)};
    add(m, &s);
    contexts(m);
    for (uint64_t n = 1 + chance(m->r, 3); n > 0; n--) streams(m);
    for (unsigned i = 0; i < COPY_SLOTS && !m->fixed; i++) {
        s = step_new("memory_alloc");
        s.context = 1;
        s.into = (uint8_t)i;
        step_set(&s, "size", 4 * MIB);
        add(m, &s);
    }
}

static void (*const kinds_of_work[])(struct model *) = {
    copies, copies, copies, copies,   fills,    copies_device, loads,       launches, launches, events,     events, streams, contexts,
    hosts,  hosts,  memory, virtuals, virtuals, textures,      tensor_maps, globals,  links,    operations, waits,  arrays};

void generate(struct sequence *q, uint64_t seed) {
    struct chances r = {.state = seed};
    r.state = chance(&r, UINT64_MAX); /* a chance is a step and a mix: from seeds beside each other the same ones would follow, one step apart */
    struct model m = {.r = &r, .q = q};
    q->n = 0;
    begin(&m);
    uint64_t rate = 4u << chance(&r, 4); /* one step in so many is changed */
    for (uint64_t n = 4 + chance(&r, 50); n > 0 && q->n + 8 < STEPS_MAX; n--) {
        uint32_t before = q->n;
        if (!m.sound && one_in(&r, 10))
            anything(&m);
        else
            kinds_of_work[chance(&r, sizeof kinds_of_work / sizeof *kinds_of_work)](&m);
        for (uint32_t i = before; i < q->n && !m.sound; i++)
            if (one_in(&r, rate)) change_step(&q->steps[i], &r);
        struct step wrong = misdeed(&r);
        if (!m.sound && one_in(&r, 40)) add(&m, &wrong);
    }
    struct step s = step_new("wait");
    if (m.sound || one_in(&r, 2)) add(&m, &s);
    s = step_new("bye");
    if (m.sound || one_in(&r, 3)) add(&m, &s);
}
