#include "handles.h"

#include <stdlib.h>

#define GRAVE UINT64_MAX

static uint64_t slot_of(const struct handles *h, uint64_t id) { return (id * 0x9e3779b97f4a7c15ull >> 32) & (h->size - 1); }

static int64_t find(const struct handles *h, uint64_t id) {
    if (!h->size || id == 0 || id == GRAVE) return -1;
    for (uint64_t at = slot_of(h, id); h->ids[at]; at = (at + 1) & (h->size - 1)) {
        if (h->ids[at] == id) return (int64_t)at;
    }
    return -1;
}

void *handles_get(const struct handles *h, uint64_t id) {
    int64_t at = find(h, id);
    return at < 0 ? NULL : h->objects[at];
}

void *handles_at(const struct handles *h, uint64_t i) { return h->ids[i] && h->ids[i] != GRAVE ? h->objects[i] : NULL; }

static void insert(struct handles *h, uint64_t id, void *object) {
    uint64_t at = slot_of(h, id);
    while (h->ids[at]) at = (at + 1) & (h->size - 1);
    h->ids[at] = id;
    h->objects[at] = object;
    h->used++;
    h->live++;
}

static int grow(struct handles *h) {
    struct handles bigger = {.size = 64};
    while (bigger.size < h->live * 4) bigger.size *= 2;
    bigger.ids = calloc(bigger.size, sizeof *bigger.ids);
    bigger.objects = malloc(bigger.size * sizeof *bigger.objects);
    if (!bigger.ids || !bigger.objects) {
        free(bigger.ids);
        free(bigger.objects);
        return -1;
    }
    for (uint64_t i = 0; i < h->size; i++) {
        if (h->ids[i] && h->ids[i] != GRAVE) insert(&bigger, h->ids[i], h->objects[i]);
    }
    handles_free(h);
    *h = bigger;
    return 0;
}

int handles_put(struct handles *h, uint64_t id, void *object) {
    if (id == 0 || id == GRAVE || find(h, id) >= 0) return -1;
    if (h->used * 2 >= h->size && grow(h)) return -1;
    insert(h, id, object);
    return 0;
}

void *handles_take(struct handles *h, uint64_t id) {
    int64_t at = find(h, id);
    if (at < 0) return NULL;
    h->ids[at] = GRAVE;
    h->live--;
    return h->objects[at];
}

void *handles_pop(struct handles *h) {
    for (uint64_t i = 0; i < h->size; i++) {
        if (h->ids[i] && h->ids[i] != GRAVE) {
            h->ids[i] = GRAVE;
            h->live--;
            return h->objects[i];
        }
    }
    return NULL;
}

void handles_free(struct handles *h) {
    free(h->ids);
    free(h->objects);
    *h = (struct handles){0};
}
