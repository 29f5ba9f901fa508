#include "children.h"

#include <stdlib.h>

struct soft_child *soft_children_take(struct soft_children *children, struct soft_child *rest) {
    struct soft_child *made = atomic_exchange(&children->made, NULL), *launched = atomic_exchange(&children->launched, NULL), *next;
    atomic_store(&children->n, 0);
    for (struct soft_child *c = made; c; c = next) {
        next = c->made;
        if (!c->launched) free(c);
    }
    /* The lists begin with the last launch. */
    struct soft_child *first = rest, *others = NULL;
    for (struct soft_child *c = launched; c; c = next) {
        next = c->next;
        struct soft_child **list = c->stream == SOFT_STREAM_TAIL ? &first : &others;
        c->next = *list;
        *list = c;
    }
    if (!others) return first;
    struct soft_child *last = others;
    while (last->next) last = last->next;
    last->next = first;
    return others;
}

void soft_children_free(struct soft_child *first) {
    for (struct soft_child *next; first; first = next) {
        next = first->next;
        free(first);
    }
}
