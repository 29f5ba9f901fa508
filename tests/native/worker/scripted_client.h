/* The worker in this process and a scripted client at the other end of a real link: what the cases of the worker's test are made of. */
#ifndef SCRIPTED_CLIENT_H
#define SCRIPTED_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "../../../native/worker/state.h"
#include "../check.h"
#include "../transport/pair.h"
#include "fake_backend.h"
#include "gv_commands.h"

extern const char *transport; /* of the links: shm, tcp or verbs */
extern struct gv_link *client;
extern struct worker *worker;
extern pthread_t thread;        /* the worker's */
extern uint64_t bulk_sent;      /* payloads */
extern uint8_t body[512 << 10]; /* of the last answer, or its text when it is an error's */

/* Hears what the worker says of turns, in sessions that begin from now on; NULL: nobody. */
extern void (*on_turn)(void *arg, uint32_t device, uint32_t what, uint32_t number);

/* A session begins, and its worker has ended with `expected`. */
void begin(void);
void end(int expected);
const char *end_reason(void);
void attach(void);
void attach_from(uint32_t rtt_us);
void bye(void);
/* A session in which `what` ends the worker with `expected`. */
void ends_badly(void (*what)(void), int expected);

/* Posts a command; its number. */
#define POST(name, flags_, ctx_, ...)                                                                           \
    ({                                                                                                          \
        struct gv_cmd_##name c_ = {__VA_ARGS__};                                                                \
        struct gv_record *r_ = gv_send_begin(client, (uint32_t)(sizeof *r_ + gv_cmd_##name##_size(&c_)), NULL); \
        CHECK(r_);                                                                                              \
        r_->op = OP_##name;                                                                                     \
        r_->flags = (flags_);                                                                                   \
        r_->ctx = (ctx_);                                                                                       \
        gv_cmd_##name##_encode(&c_, r_ + 1);                                                                    \
        uint64_t seq_ = gv_send_commit(client);                                                                 \
        gv_send_flush(client);                                                                                  \
        seq_;                                                                                                   \
    })

enum {
    OP_attach = GV_OP_ATTACH,
    OP_bye = GV_OP_BYE,
    OP_context_create = GV_OP_CONTEXT_CREATE,
    OP_context_destroy = GV_OP_CONTEXT_DESTROY,
    OP_context_limit = GV_OP_CONTEXT_LIMIT,
    OP_memory_grow = GV_OP_MEMORY_GROW,
    OP_memory_shrink = GV_OP_MEMORY_SHRINK,
    OP_memory_alloc = GV_OP_MEMORY_ALLOC,
    OP_memory_info = GV_OP_MEMORY_INFO,
    OP_memory_free = GV_OP_MEMORY_FREE,
    OP_memory_create = GV_OP_MEMORY_CREATE,
    OP_memory_destroy = GV_OP_MEMORY_DESTROY,
    OP_memory_map = GV_OP_MEMORY_MAP,
    OP_memory_unmap = GV_OP_MEMORY_UNMAP,
    OP_memory_access = GV_OP_MEMORY_ACCESS,
    OP_address_reserve = GV_OP_ADDRESS_RESERVE,
    OP_address_free = GV_OP_ADDRESS_FREE,
    OP_stream_create = GV_OP_STREAM_CREATE,
    OP_stream_destroy = GV_OP_STREAM_DESTROY,
    OP_fence = GV_OP_FENCE,
    OP_event_create = GV_OP_EVENT_CREATE,
    OP_event_record = GV_OP_EVENT_RECORD,
    OP_event_elapsed = GV_OP_EVENT_ELAPSED,
    OP_event_destroy = GV_OP_EVENT_DESTROY,
    OP_event_wait = GV_OP_EVENT_WAIT,
    OP_host_func = GV_OP_HOST_FUNC,
    OP_host_done = GV_OP_HOST_DONE,
    OP_copy_in = GV_OP_COPY_IN,
    OP_copy_out = GV_OP_COPY_OUT,
    OP_fill = GV_OP_FILL,
    OP_module_load = GV_OP_MODULE_LOAD,
    OP_link = GV_OP_LINK,
    OP_module_unload = GV_OP_MODULE_UNLOAD,
    OP_module_global = GV_OP_MODULE_GLOBAL,
    OP_launch = GV_OP_LAUNCH,
};

/* The next record, however long it takes: a case that hangs is ended by its alarm. */
const struct gv_record *next(void);
/* The status of the answer to `seq`; its body is in `body`. */
int answer(uint64_t seq);
uint32_t answer_size(void);
struct gv_evt_completed completed(void);
int failed_status(uint64_t seq);
void host_function_comes(uint64_t tag, int status);
/* A copy's payload, which may come in parts. */
void receive(uint64_t tag, uint8_t *back, uint64_t size);
/* `size` bytes to the device and back on `stream`, which events call `id`. */
void round_trip(uint64_t size, uint64_t stream, uint64_t id);

/* The cases, each list ended by one without a name. */
extern const struct test_case memory_cases[], copy_cases[], stream_cases[], module_cases[], held_up_cases[], ending_cases[], turn_cases[],
    device_view_cases[];
bool verbs(void);

#endif
