/* Turns on devices whose compute sessions share: from the daemon to the backend, and what becomes of them back. */
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

void worker_turn_said(void *arg, uint32_t device, uint32_t what, uint32_t number) {
    struct worker *w = arg;
    w->turns_said(w->turns_arg, device, what, number);
}

EXPORT void worker_watch_turns(struct worker *w, void (*said)(void *arg, uint32_t device, uint32_t what, uint32_t number), void *arg) {
    w->turns_said = said;
    w->turns_arg = arg;
}

EXPORT int worker_turn(struct worker *w, uint32_t device, uint32_t may, uint32_t number) {
    return w->ops->compute_turn && w->turns_said && !w->ops->compute_turn(w->backend, device, may, number) ? 0 : -1;
}
