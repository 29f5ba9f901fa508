/* A balanced tree of nodes that live inside other structures, ordered by (key, sub). For the address maps and the free lists of the allocator. No locks. */
#ifndef SHIM_TREAP_H
#define SHIM_TREAP_H

#include <stddef.h>
#include <stdint.h>

struct treap_node {
    struct treap_node *left, *right;
    uint64_t key, sub;
    uint32_t priority;
};

struct treap {
    struct treap_node *root;
    size_t count;
};

/* key and sub are set by the caller before; no two nodes of a tree have both equal. */
void treap_insert(struct treap *t, struct treap_node *node);
void treap_remove(struct treap *t, struct treap_node *node);
/* The greatest node <= (key, sub), the smallest >= (key, sub); NULL when there is none. */
struct treap_node *treap_floor(const struct treap *t, uint64_t key, uint64_t sub);
struct treap_node *treap_ceiling(const struct treap *t, uint64_t key, uint64_t sub);
/* In order: the first, and the one after `node`; NULL at the end. */
struct treap_node *treap_first(const struct treap *t);
struct treap_node *treap_next(const struct treap *t, const struct treap_node *node);

#define treap_entry(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))

#endif
