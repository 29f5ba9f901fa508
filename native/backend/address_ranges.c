#include "address_ranges.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first range that ends behind `address`. */
static size_t find(const struct address_ranges *r, uint64_t address) {
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (r->items[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool address_ranges_hold(const struct address_ranges *r, uint64_t start, uint64_t size) {
    size_t i = find(r, start);
    return start + size > start && i < r->n && r->items[i].start <= start && r->items[i].end >= start + size;
}

bool address_ranges_touch(const struct address_ranges *r, uint64_t start, uint64_t size) {
    size_t i = find(r, start);
    return i < r->n && r->items[i].start < start + size;
}

uint64_t address_ranges_fit(const struct address_ranges *r, uint64_t size) {
    for (size_t i = 0; i < r->n; i++)
        if (r->items[i].end - r->items[i].start >= size) return r->items[i].start;
    return 0;
}

static bool open_gap(struct address_ranges *r, size_t at) {
    if (r->n == r->size) {
        size_t size = r->size ? 2 * r->size : 16;
        struct address_range *items = realloc(r->items, size * sizeof *items);
        if (!items) return false;
        r->items = items;
        r->size = size;
    }
    memmove(&r->items[at + 1], &r->items[at], (r->n - at) * sizeof *r->items);
    r->n++;
    return true;
}

static void close_gap(struct address_ranges *r, size_t at) {
    r->n--;
    memmove(&r->items[at], &r->items[at + 1], (r->n - at) * sizeof *r->items);
}

bool address_ranges_add(struct address_ranges *r, uint64_t start, uint64_t size) {
    uint64_t end = start + size;
    size_t i = find(r, start);
    bool left = i > 0 && r->items[i - 1].end == start, right = i < r->n && r->items[i].start == end;
    if (left && right) {
        r->items[i - 1].end = r->items[i].end;
        close_gap(r, i);
    } else if (left) {
        r->items[i - 1].end = end;
    } else if (right) {
        r->items[i].start = start;
    } else {
        if (!open_gap(r, i)) return false;
        r->items[i] = (struct address_range){start, end};
    }
    return true;
}

bool address_ranges_remove(struct address_ranges *r, uint64_t start, uint64_t size) {
    uint64_t end = start + size;
    size_t i = find(r, start);
    struct address_range whole = r->items[i];
    if (whole.start == start && whole.end == end) {
        close_gap(r, i);
    } else if (whole.start == start) {
        r->items[i].start = end;
    } else if (whole.end == end) {
        r->items[i].end = start;
    } else {
        if (!open_gap(r, i + 1)) return false;
        r->items[i].end = start;
        r->items[i + 1] = (struct address_range){end, whole.end};
    }
    return true;
}

void address_ranges_free(struct address_ranges *r) {
    free(r->items);
    *r = (struct address_ranges){0};
}
