#include "turn_words.h"

void turn_words_heard(struct turn_words *t, uint32_t may, uint32_t number, int64_t now) {
    t->may = may;
    t->number = number;
    t->stopping = may == GV_MUST_WAIT;
    t->busy = may == GV_MAY_NOW; /* it was asked for: that nothing has come of it is said, too */
    t->quiet_since = now;
}

uint32_t turn_words_next(struct turn_words *t, uint32_t inside, uint32_t waiting, uint64_t entered, int64_t now) {
    bool works = inside || waiting;
    if (t->stopping) {
        if (inside) return 0;
        t->stopping = false;
        t->seen = entered;
        t->busy = works;
        return works ? GV_TURN_STOPPED_WANTS : GV_TURN_STOPPED;
    }
    if (works || t->seen != entered) {
        t->seen = entered;
        t->quiet_since = now;
        if (t->busy) return 0; /* else it worked, also if that is over already */
        t->busy = true;
        return GV_TURN_WANTS;
    }
    if (!t->busy || now - t->quiet_since < GV_TURN_LINGER_NS) return 0;
    t->busy = false;
    return GV_TURN_IDLE;
}
