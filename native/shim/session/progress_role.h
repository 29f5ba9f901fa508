/* The progress role: who reads the link. Everybody else who waits sleeps. */
#ifndef SHIM_PROGRESS_ROLE_H
#define SHIM_PROGRESS_ROLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum progress_role { ROLE_FREE, ROLE_WAITER, ROLE_BACKGROUND };

/* Takes the role if it is free. Else false, and *holder (which may be NULL) says who has it. */
bool progress_role_take(enum progress_role as, enum progress_role *holder);
/* Gives it up, and wakes one sleeper to take it over. */
void progress_role_leave(void);
/* Sleeps until the counter is there, the session over or the deadline past (false), or until this thread got the role (true). */
bool progress_role_sleep(const _Atomic uint64_t *counter, uint64_t target, int64_t deadline);
/* How often a caller has taken the role. */
uint32_t progress_role_taken(void);
/* Whether a caller sleeps, or polls: the background thread gives the role up. */
bool progress_role_wanted(void);
/* A caller polls: it wants the role if the background thread has it. */
void progress_role_poll(enum progress_role holder);
void progress_role_polled(void);

/* What a counter stands at (&session.bulk_acked: gv_bulk_acked). */
uint64_t progress_value(const _Atomic uint64_t *counter);
/* Wakes the sleepers whose counters are there. */
void progress_wake(void);

#endif
