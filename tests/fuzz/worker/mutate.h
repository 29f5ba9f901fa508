/* Chances, and what is changed by them. */
#ifndef MUTATE_H
#define MUTATE_H

#include "step.h"

#define MIB (1ull << 20)

struct chances {
    uint64_t state;
};
/* 0 to below - 1. */
uint64_t chance(struct chances *r, uint64_t below);
bool one_in(struct chances *r, uint64_t n);
/* A small number, or one at the edge of something. */
uint64_t odd_number(struct chances *r);
/* The client's name for the i-th object of a kind. */
uint64_t handle_of(enum kind kind, uint64_t i);

/* Some mutations of a session that was run before. */
void mutate(struct sequence *q, struct chances *r);
/* One field. */
void change_step(struct step *s, struct chances *r);
/* What a client of its own will does to a session. */
struct step misdeed(struct chances *r);

#endif
