/* The worker library's interface to the Python process that hosts it (gpuvirt/server/worker.py, through ctypes). One session per process. */
#ifndef GV_WORKER_H
#define GV_WORKER_H

#include <stdint.h>

struct worker;

/* Keep in step with gpuvirt/server/worker_library.py, which mirrors it field by field. */
struct worker_config {
    uint32_t struct_size; /* sizeof(struct worker_config), checked */
    uint32_t n_devices;
    const char *backend;     /* "soft" or "cuda" */
    const char *driver;      /* cuda: absolute path of libcuda.so.1, NULL: the system's */
    const uint32_t *devices; /* pool ordinals */
    uint64_t memory;         /* per device, 0: no limit of its own */
    uint64_t device_memory;  /* soft */
    uint32_t capability;     /* soft, times 10; 0: 130 */
    uint32_t strict;         /* soft */
    uint32_t memory_usage_slot;
    uint32_t grace;             /* seconds that the session outlives a lost connection, 0: none */
    int32_t memory_usage_fd;    /* -1: none */
    int32_t fd;                 /* the connection handed over by the daemon */
    const char *transport;      /* of the connection: a name in the table of transports */
    const int32_t *descriptors; /* of the transport */
    uint32_t n_descriptors;
    uint32_t blob_size;
    const uint8_t *blob; /* what the transport's server end told the client */
    uint64_t session;
    void *compiler; /* struct soft_compiler *, soft */
    const char *server_name;
    const uint8_t *seal; /* 33 bytes: the key and the cipher of struct gv_link_secret; NULL: the link is plain */
    void *memory_row; /* this session's row of the table of memory usage, mapped writable; NULL: it is mapped from memory_usage_fd, if there is one */
    uint32_t restored;   /* the session comes from another worker: worker_restore brings what it has, worker_begin lets it run */
    int32_t memory_file; /* soft: a memfd for device memory that is mapped more than once, taken over; 0: one is made when it is first needed */
};

/* Takes over the descriptors and opens the backend. NULL: err (512 bytes) says why; the client has been told. */
struct worker *worker_open(const struct worker_config *config, char *err);
struct module_cache;
/* Looks at the images of modules kept in `folder`, before there is a session: it may take tens of milliseconds. NULL: the folder cannot be had. */
struct module_cache *worker_open_cache(const char *folder);
/* Closes one that is not taken over. NULL does nothing. */
void worker_close_cache(struct module_cache *cache);
/* Opens what a session over this transport needs and worker_open could not open any more, in a process that is about to be in its box. */
void worker_prepare_link(const char *transport);
/* Looks again, for as long as no session has come: what is looked at now is not looked at while a program waits. NULL does nothing. */
void worker_refresh_cache(struct module_cache *cache);
/* Takes that cache over, between worker_open and worker_run; without one (NULL) images travel each time. `build` names what the metadata of modules are
 * made by: what another build keeps there is not believed. */
void worker_use_cache(struct worker *w, struct module_cache *cache, const char *build);
/* The session moves. The old worker: worker_save, any thread but worker_run's, waits at most so long until the session is at rest, calls at_rest (on any thread;
 * the session takes no connections from here on), and writes its image to the descriptor. 0: it is written, and the session stands still until worker_continue, or until the process is killed. -1: err (512 bytes) says why not; the session
 * has gone on. The new worker, opened with `restored` and with its cache: worker_restore reads the image, and is followed by worker_begin and worker_run once the
 * old one is dead; -1: err says why not, and the session can only be closed. */
int worker_save(struct worker *w, int32_t fd, uint32_t limit_ms, void (*at_rest)(void *arg), void *arg, char *err);
void worker_continue(struct worker *w);
int worker_restore(struct worker *w, int32_t fd, uint32_t limit_ms, char *err);
/* Parks an idle session, or, with finish_ms, one whose GPU has done what it does within so many ms, whatever the program wants next; any thread but worker_run's: its device memory goes to the file, which stays open until it is back. 0: it is parked; -1: err
 * (512 bytes) says why not. `said` is called, on worker_run's thread, when it is PARKED, when it WANTS its memory back and waits for worker_answer_room, again if there was no room for
 * it then, and when it has it BACK. */
enum worker_park_said { WORKER_PARKED = 1, WORKER_PARK_WANTS, WORKER_PARK_BACK };
int worker_park(struct worker *w, int32_t fd, uint32_t finish_ms, void (*said)(void *arg, int32_t what), void *arg, char *err);
/* Who can make room on a GPU, before worker_run: `asked` is called, on worker_run's thread, when an allocation of `bytes` on that device of the pool does not fit
 * because other sessions have the memory; it waits for worker_answer_room. */
void worker_ask_room(struct worker *w, void (*asked)(void *arg, uint32_t device, uint64_t bytes), void *arg);
/* There is room for what the session wants, its memory if it is parked, and what it allocates; or there is none for what it allocates. Any thread. */
void worker_answer_room(struct worker *w, int32_t granted);
/* Turns on devices whose compute sessions share. Before worker_run: `said` is called, on any thread, with what becomes of them (gv_turn_said of turns.h). */
void worker_watch_turns(struct worker *w, void (*said)(void *arg, uint32_t device, uint32_t what, uint32_t number), void *arg);
/* Whether kernels may run on that device of the pool from now on (gv_may), by a word of that number. Any thread. 0, or -1: it has no such device, or no
 * thread for them. */
int worker_turn(struct worker *w, uint32_t device, uint32_t may, uint32_t number);
/* 0, or -1: there are no threads to be had. */
int worker_begin(struct worker *w);
/* What sessions of one lease share (sharing/exports.c). Before worker_run: `asked` is called, on worker_run's thread, when the session wants a file of `number` bytes for
 * its exports (FILE), or what the session `number` has exported under a name of 16 bytes (OPEN), and waits for worker_answer_export; and, on any thread, when
 * the file `number` is not used any more (FILE_OVER). */
enum worker_export_asked { WORKER_EXPORT_FILE = 1, WORKER_EXPORT_FILE_OVER, WORKER_EXPORT_OPEN };
#define WORKER_EXPORT_FILES 6
void worker_ask_exports(struct worker *w, void (*asked)(void *arg, uint32_t what, uint64_t number, const uint8_t *name), void *arg);
/* What the session has asked for, any thread: a file (one descriptor; its number in `what`, as struct gv_shared's size), or an export, as its worker has said it (`what`).
 * Nothing: it is refused. The descriptors are taken over. */
void worker_answer_export(struct worker *w, const void *what, uint32_t size, const int32_t *fds, uint32_t n);
/* What this session has exported under a name, for another worker, any thread: its size in bytes, in `what` (512 bytes), and the numbers of the files in which it lies; 0
 * stands for a file of the driver's, of which there is a descriptor, the caller's. 0: there is no such export, or it is over. */
uint32_t worker_give_export(struct worker *w, const uint8_t *name, void *what, uint64_t *files, uint32_t *n, int32_t *fds, uint32_t *n_fds);
/* A session whose exports this one may have opened has ended. Any thread. */
void worker_exporter_gone(struct worker *w, uint64_t session);
/* A further bulk channel's socket, any thread. */
int worker_add_channel(struct worker *w, int32_t channel, int32_t fd);
/* A connection in the place of one that was cut (channel -1: the main one), any thread. 0, or -1: refused; the descriptor is taken over either way. */
int worker_resume(struct worker *w, int32_t channel, int32_t fd, uint32_t epoch);
/* The client's program has ended, says its launcher: the session ends as soon as the client is not connected. Any thread. */
void worker_client_gone(struct worker *w);
/* Runs the session until the client says goodbye or is lost. Returns 0 after a goodbye, 1 when the client was lost, 2 after a protocol error; err says more. */
int worker_run(struct worker *w, char *err);
/* Tells the client a line for its user. Waits while the link is full. Any thread. */
void worker_notice(struct worker *w, const char *text);
/* Figures of the session so far, any thread (the daemon asks for `devices` and `ps`). */
struct worker_figures {
    uint64_t commands, launches, bytes_in, bytes_out, memory_used;
    /* Since this worker has the session: commands whose sender waited for the answer, and ns for which the connection was cut, as far as this end has
     * noticed. rtt_ns: a round trip, as the client has measured it; 0: not known. */
    uint64_t answers, cut_ns, rtt_ns;
};
void worker_get_figures(struct worker *w, struct worker_figures *out);
void worker_close(struct worker *w);

/* The server's end of the key exchange of a session's handshake (gv_exchange_answer in seal/exchange.h), called by the daemon: heard and said are 33
 * bytes, shared 32. 0, or -1: why (512 bytes) says what to do. */
int worker_exchange_answer(const uint8_t *heard, uint8_t *said, uint8_t *shared, char *why);
/* Whether there is a library to seal links with; `text` (512 bytes) gets its version, or what to do. 0, or -1: there is none. */
int worker_seal_library(char *text);

#endif
