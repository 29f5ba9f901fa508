/* The device's vprintf: CUDA's packed arguments, formatted one conversion at a time by the host's snprintf. */
#include "exec_private.h"

#include <stdio.h>
#include <string.h>

#define SOFT_EXPORT __attribute__((visibility("default")))
#define LINE 1024 /* bytes that one call prints at most in a piece */

struct out {
    struct grid *grid;
    char text[LINE];
    size_t used;
};

static void put(struct out *o, const char *text, size_t size) {
    while (size) {
        if (o->used == LINE) {
            soft_grid_print(o->grid, o->text, o->used);
            o->used = 0;
        }
        size_t n = size < LINE - o->used ? size : LINE - o->used;
        memcpy(o->text + o->used, text, n);
        o->used += n;
        text += n;
        size -= n;
    }
}

/* Packed arguments lie at their natural alignment. */
static uint64_t next(const char *args, size_t *at, size_t size) {
    *at = (*at + size - 1) & ~(size - 1);
    uint64_t value = 0;
    memcpy(&value, args + *at, size);
    *at += size;
    return value;
}

/* One conversion; `spec` holds flags, width and precision, with '*' already replaced. */
static void convert(struct out *o, char *spec, size_t used, bool wide, char kind, const char *args, size_t *at) {
    char text[512];
    int n;
    if (strchr("diouxXc", kind)) {
        uint64_t value = next(args, at, wide ? 8 : 4);
        if (wide && kind != 'c') {
            memcpy(spec + used, "ll", 2);
            used += 2;
        }
        spec[used] = kind;
        spec[used + 1] = 0;
        n = wide && kind != 'c' ? snprintf(text, sizeof text, spec, (long long)value) : snprintf(text, sizeof text, spec, (int)value);
    } else if (kind == 's') {
        const char *string = (const char *)(uintptr_t)next(args, at, 8);
        if (used == 1) { /* plain %s: of any length */
            if (!string) string = "(null)";
            put(o, string, strlen(string));
            return;
        }
        spec[used] = 's';
        spec[used + 1] = 0;
        n = snprintf(text, sizeof text, spec, string ? string : "(null)");
    } else if (kind == 'p') {
        spec[used] = 'p';
        spec[used + 1] = 0;
        n = snprintf(text, sizeof text, spec, (void *)(uintptr_t)next(args, at, 8));
    } else {
        uint64_t bits = next(args, at, 8);
        double value;
        memcpy(&value, &bits, 8);
        spec[used] = kind;
        spec[used + 1] = 0;
        n = snprintf(text, sizeof text, spec, value);
    }
    if (n > 0) put(o, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

SOFT_EXPORT int32_t soft_vprintf(struct soft_warp *w, uint32_t lane, const char *format, const void *packed) {
    (void)lane;
    if (!format) return -1;
    struct out o = {.grid = soft_fiber_of(w)->block->runner->grid};
    const char *args = packed;
    size_t at = 0;
    int32_t count = 0;
    for (const char *c = format; *c;) {
        const char *percent = strchr(c, '%');
        if (!percent) {
            put(&o, c, strlen(c));
            break;
        }
        put(&o, c, (size_t)(percent - c));
        c = percent + 1;
        if (*c == '%') {
            put(&o, c++, 1);
            continue;
        }
        char spec[64] = "%";
        size_t used = 1;
        bool wide = false;
        for (; *c && strchr("-+ #0123456789.*hlLjzt", *c); c++) {
            if (strchr("ljzt", *c))
                wide = true;
            else if (*c == '*' && used < 32) {
                used += (size_t)snprintf(spec + used, 16, "%d", (int)next(args, &at, 4));
                count++;
            } else if (*c != 'h' && *c != 'L' && used < 32)
                spec[used++] = *c;
        }
        if (!*c || !strchr("diouxXcspeEfFgGaA", *c)) {
            count = -1;
            break;
        }
        convert(&o, spec, used, wide, *c++, args, &at);
        count++;
    }
    if (o.used) soft_grid_print(o.grid, o.text, o.used);
    return count;
}
