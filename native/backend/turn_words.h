/* What a session is told of its turns on one device, and what it is to say of them: turns.h has the numbers. No I/O, no clock, no lock of its own. */
#ifndef TURN_WORDS_H
#define TURN_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "../wire/turns.h"

struct turn_words {
    uint32_t may, number; /* what was said last (gv_may), and its number */
    bool stopping;        /* nobody was told yet that it stands still */
    bool busy;            /* as it was told last */
    uint64_t seen;        /* `entered`, when it was looked at last */
    int64_t quiet_since;
};

/* now: ns, as gv_now_ns. */
void turn_words_heard(struct turn_words *t, uint32_t may, uint32_t number, int64_t now);
/* The next thing to say (gv_turn_said), 0: nothing. inside: what runs or is queued; waiting: what waits for a turn; entered: how often something has begun, ever. */
uint32_t turn_words_next(struct turn_words *t, uint32_t inside, uint32_t waiting, uint64_t entered, int64_t now);

#endif
