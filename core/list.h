/*
 * Intrusive doubly linked list with a sentinel. A node that is in no list points at itself, so that membership is a question a
 * node can answer and removal is idempotent in effect.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "core/check.h"

struct list_node {
    struct list_node *next;
    struct list_node *prev;
};

/* The structure that contains `node` as `member`. */
#define LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void list_init(struct list_node *node)
{
    node->next = node;
    node->prev = node;
}

static inline bool list_is_empty(const struct list_node *head)
{
    return head->next == head;
}

/* A node is linked when it is in a list; for a head it means "not empty". */
static inline bool list_is_linked(const struct list_node *node)
{
    return node->next != node;
}

static inline void list_push_back(struct list_node *head, struct list_node *node)
{
    ZG_CHECK(!list_is_linked(node));
    node->next = head;
    node->prev = head->prev;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* The first node, removed; NULL where the list is empty. */
static inline struct list_node *list_pop_front(struct list_node *head)
{
    if (list_is_empty(head))
        return NULL;
    struct list_node *node = head->next;
    list_remove(node);
    return node;
}
