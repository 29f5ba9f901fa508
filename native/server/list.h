/* Doubly linked lists whose nodes lie inside what they list. A list is a node of its own, first and last of a ring. */
#ifndef SERVER_LIST_H
#define SERVER_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct node {
    struct node *next, *previous;
};

/* What the node lies in. */
#define NODE_OF(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

static inline void list_init(struct node *list) { list->next = list->previous = list; }

static inline bool list_empty(const struct node *list) { return list->next == list; }

static inline void list_append(struct node *list, struct node *node) {
    node->previous = list->previous;
    node->next = list;
    list->previous->next = node;
    list->previous = node;
}

/* The node is then a list of its own, so that it may be removed again. */
static inline void list_remove(struct node *node) {
    node->previous->next = node->next;
    node->next->previous = node->previous;
    list_init(node);
}

#endif
