/* Makes sequences, and changes them. The same seed makes the same. */
#ifndef GENERATE_H
#define GENERATE_H

#include "step.h"

struct chances {
    uint64_t state;
};
/* 0 to below - 1. */
uint64_t chance(struct chances *r, uint64_t below);

/* A session of some commands, valid ones but for a mutation here and there; in a sound one there is none. */
void generate(struct sequence *q, uint64_t seed);
/* Some mutations in steps of chance. */
void mutate(struct sequence *q, struct chances *r);

#endif
