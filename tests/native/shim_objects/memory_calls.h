/* The cases of test_calls that are about memory. Each begins in `context`, and leaves it current. */
#ifndef MEMORY_CALLS_H
#define MEMORY_CALLS_H

#include "cuda.h"

extern CUcontext context;

void memory(void);
void quarantine(void);
void memory_is_asked_for_ahead(void);
void copies(void);
void pinned(void);
void lending(void);
void virtual_memory(void);
void as_many_as_a_session_may_have(void);

#endif
