/* The launches of a grid that has ended, in the order in which they run: each is followed by what it launches itself. */
#ifndef SOFT_FAMILY_H
#define SOFT_FAMILY_H

#include "engine/children.h"
#include "soft.h"

/* Takes what the grid has launched out of `children`, in front of `rest`: launches in their order, then those of the tail stream. Frees what it has not launched. */
struct soft_child *soft_children_take(struct soft_children *children, struct soft_child *rest);
/* Frees launches that are not to run. */
void soft_children_free(struct soft_child *first);

#endif
