/* Makes sequences. The same seed makes the same. */
#ifndef GENERATE_H
#define GENERATE_H

#include "step.h"

/* A session of some commands, valid ones but for a mutation here and there; in a sound one there is none. */
void generate(struct sequence *q, uint64_t seed);

#endif
