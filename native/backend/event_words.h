/* Events that sessions share. The events that one session has exported have words in one file of its own, which other workers map too: how often an event has been
 * recorded, by whomever, and which of these records have been reached. A wait is for the record that is the latest when it is queued. */
#ifndef BACKEND_EVENT_WORDS_H
#define BACKEND_EVENT_WORDS_H

#include <pthread.h>
#include <stdatomic.h>

#include "shared_file.h"

struct event_words;
/* A record from here on: its number. */
uint64_t event_words_record(struct event_words *w);
/* The latest record so far, 0: there was none; and whether one has been reached. */
uint64_t event_words_latest(const struct event_words *w);
void event_words_reach(struct event_words *w, uint64_t number);
bool event_words_reached(const struct event_words *w, uint64_t number);
/* Waits until a record has been reached, or a while (10 ms) has passed. */
void event_words_wait(struct event_words *w, uint64_t number);

/* Where the words of the events lie that one session has exported. Under `lock`, but `gone`. */
struct event_file {
    struct event_file *next;
    uint64_t session; /* that has exported them, 0: this one */
    int fd;           /* ours only, else -1 */
    uint64_t number;  /* likewise */
    uint32_t refs;    /* events and waits; ours stays */
    uint32_t given;   /* words of ours that were given so far */
    char *base;
    _Atomic bool gone; /* the session has ended */
};

/* All that a session has open. */
struct event_files {
    struct event_file *first;
    pthread_mutex_t *lock;
    const struct file_source *source;
};

/* Words for one of this session's events; NULL: there are none to be had. Executor. */
struct event_words *event_words_new(struct event_files *files, struct event_file **file, uint64_t *offset);
/* Those of another session's; the file is held until it is dropped. Takes the descriptors over. NULL: what was given is no such file. Executor. */
struct event_words *event_words_open(struct event_files *files, const struct gv_shared *s, uint64_t session, struct event_file **file);
/* How another session finds them. */
void event_words_say(const struct event_file *file, const struct event_words *words, uint32_t ordinal, struct gv_shared *out);
/* Nobody waits for what that session has recorded any more. */
void event_files_recorder_gone(struct event_files *files, uint64_t session);
bool event_files_any(struct event_files *files);
/* One reference less; lock held. */
void event_file_drop(struct event_files *files, struct event_file *f);
/* The words stay mapped: somebody may still be about to write some. */
void event_files_close(struct event_files *files);

#endif
