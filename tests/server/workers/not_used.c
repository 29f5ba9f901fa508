/* What a worker library has and no stand-in of it uses: images of sessions, the module cache, sealing, turns, exports. */
#include <stdio.h>

#include "native/worker/worker.h"

int worker_begin(struct worker *w) { return (void)w, 0; }
int worker_save(struct worker *w, int32_t fd, uint32_t limit_ms, void (*at_rest)(void *arg), void *arg, char *err) {
    return (void)w, (void)fd, (void)limit_ms, (void)at_rest, (void)arg, snprintf(err, 512, "none of this is saved");
}
int worker_restore(struct worker *w, int32_t fd, uint32_t limit_ms, char *err) { return (void)w, (void)fd, (void)limit_ms, (void)err, 0; }
int worker_park(struct worker *w, int32_t fd, uint32_t finish_ms, void (*said)(void *arg, int32_t what), void *arg, char *err) {
    return (void)w, (void)fd, (void)finish_ms, (void)said, (void)arg, snprintf(err, 512, "none of this is parked");
}
void worker_ask_room(struct worker *w, void (*asked)(void *arg, uint32_t device, uint64_t bytes), void *arg) { (void)w, (void)asked, (void)arg; }
void worker_answer_room(struct worker *w, int32_t granted) { (void)w, (void)granted; }
void worker_continue(struct worker *w) { (void)w; }
__attribute__((weak)) struct module_cache *worker_open_cache(const char *folder) { return (void)folder, NULL; }
void worker_close_cache(struct module_cache *c) { (void)c; }
void worker_refresh_cache(struct module_cache *c) { (void)c; }
void worker_prepare_link(const char *transport) { (void)transport; }
void worker_use_cache(struct worker *w, struct module_cache *cache, const char *build) { (void)w, (void)cache, (void)build; }
int worker_seal_library(char *text) { return snprintf(text, 512, "nothing is sealed here") - 22; }
int worker_exchange_answer(const uint8_t *heard, uint8_t *said, uint8_t *shared, char *why) {
    (void)heard, (void)said, (void)shared;
    return snprintf(why, 512, "nothing is sealed here") - 23;
}
void worker_watch_turns(struct worker *w, void (*said)(void *arg, uint32_t device, uint32_t what, uint32_t number), void *arg) {
    (void)w, (void)said, (void)arg;
}
int worker_turn(struct worker *w, uint32_t device, uint32_t may, uint32_t number) { return (void)w, (void)device, (void)may, (void)number, 0; }
void worker_ask_exports(struct worker *w, void (*asked)(void *arg, uint32_t what, uint64_t number, const uint8_t *name), void *arg) {
    (void)w, (void)asked, (void)arg;
}
void worker_answer_export(struct worker *w, const void *what, uint32_t size, const int32_t *fds, uint32_t n) {
    (void)w, (void)what, (void)size, (void)fds, (void)n;
}
uint32_t worker_give_export(struct worker *w, const uint8_t *name, void *what, uint64_t *files, uint32_t *n, int32_t *fds, uint32_t *n_fds) {
    return (void)w, (void)name, (void)what, (void)files, (void)fds, *n = *n_fds = 0;
}
void worker_exporter_gone(struct worker *w, uint64_t session) { (void)w, (void)session; }
