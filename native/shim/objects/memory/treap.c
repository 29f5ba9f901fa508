#include "objects/memory/treap.h"

#include <stdatomic.h>

static int before(const struct treap_node *a, uint64_t key, uint64_t sub) { return a->key < key || (a->key == key && a->sub < sub); }

/* Everything below (key, sub) goes left, the rest right. */
static void split(struct treap_node *t, uint64_t key, uint64_t sub, struct treap_node **left, struct treap_node **right) {
    if (!t) {
        *left = *right = NULL;
    } else if (before(t, key, sub)) {
        split(t->right, key, sub, &t->right, right);
        *left = t;
    } else {
        split(t->left, key, sub, left, &t->left);
        *right = t;
    }
}

static struct treap_node *merge(struct treap_node *a, struct treap_node *b) {
    if (!a) return b;
    if (!b) return a;
    if (a->priority > b->priority) {
        a->right = merge(a->right, b);
        return a;
    }
    b->left = merge(a, b->left);
    return b;
}

/* Priorities only have to look random. */
static uint32_t next_priority(void) {
    static _Atomic uint64_t counter;
    uint64_t x = atomic_fetch_add_explicit(&counter, 0x9e3779b97f4a7c15ull, memory_order_relaxed);
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32);
}

void treap_insert(struct treap *t, struct treap_node *node) {
    node->priority = next_priority();
    struct treap_node **at = &t->root;
    while (*at && (*at)->priority >= node->priority) at = before(*at, node->key, node->sub) ? &(*at)->right : &(*at)->left;
    split(*at, node->key, node->sub, &node->left, &node->right);
    *at = node;
    t->count++;
}

void treap_remove(struct treap *t, struct treap_node *node) {
    struct treap_node **at = &t->root;
    while (*at && *at != node) at = before(*at, node->key, node->sub) ? &(*at)->right : &(*at)->left;
    if (!*at) return;
    *at = merge(node->left, node->right);
    node->left = node->right = NULL;
    t->count--;
}

struct treap_node *treap_floor(const struct treap *t, uint64_t key, uint64_t sub) {
    struct treap_node *best = NULL;
    for (struct treap_node *n = t->root; n;) {
        if (before(n, key, sub) || (n->key == key && n->sub == sub)) {
            best = n;
            n = n->right;
        } else {
            n = n->left;
        }
    }
    return best;
}

struct treap_node *treap_ceiling(const struct treap *t, uint64_t key, uint64_t sub) {
    struct treap_node *best = NULL;
    for (struct treap_node *n = t->root; n;) {
        if (before(n, key, sub)) {
            n = n->right;
        } else {
            best = n;
            n = n->left;
        }
    }
    return best;
}

struct treap_node *treap_first(const struct treap *t) { return treap_ceiling(t, 0, 0); }

struct treap_node *treap_next(const struct treap *t, const struct treap_node *node) {
    if (node->sub == UINT64_MAX) return node->key == UINT64_MAX ? NULL : treap_ceiling(t, node->key + 1, 0);
    return treap_ceiling(t, node->key, node->sub + 1);
}
