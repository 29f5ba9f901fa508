/* What the recorders tell the tests. */
#ifndef FAKES_H
#define FAKES_H

#include "objects/shim.h"

/* Notes the call and returns what the test set. */
CUresult fake_call(const char *name, CUstream stream);

#endif
