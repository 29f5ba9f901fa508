/* Callbacks of programs that are registered and never called: what they tell of does not happen here. */
#ifndef SHIM_REGISTRATIONS_H
#define SHIM_REGISTRATIONS_H

#include <stdbool.h>

enum registration { REGISTRATION_DUMP_BEGINS, REGISTRATION_DUMP_ENDS, REGISTRATION_DEVICE };

/* A handle of this kind, `number` beside it; NULL: out of memory. */
void *registration_add(enum registration kind, int number);
/* Ends one; false: there is none of this handle, kind and number. */
bool registration_end(const void *handle, enum registration kind, int number);

#endif
