/* A server for tests: greets and welcomes as handshake.h says, or gets one thing wrong on purpose. Its end of each session is a link in this
 * process. */
#ifndef MINI_SERVER_H
#define MINI_SERVER_H

#include <pthread.h>

#include "../../../native/transport/link.h"
#include "../../../native/transport/seal/seal.h"
#include "../../../native/wire/transcript.h"
#include "pair.h"

/* How long an unanswering server has (OPEN_NS), ns: mini_start sets it. A file that is compiled for these tests calls the second one. */
extern _Atomic int64_t test_open_ns;
long long test_open_limit(void);

enum fault {
    NO_FAULT,
    /* in the greeting */
    SILENT,     /* accepts and says nothing */
    HANGS_UP,   /* accepts and closes */
    GARBAGE,    /* speaks HTTP */
    RESETS,     /* resets the connection within the greeting */
    NEWER,      /* only wire versions 3 to 4 */
    OLDER,      /* a greeting of wire version 1 */
    OTHER_HOST, /* another boot_id */
    NO_UNIX,    /* no unix socket */
    LOST_UNIX,  /* a unix socket that is not there */
    /* in the welcome of a session */
    NO_ANSWER,       /* reads the hello and says nothing */
    BREAKS_OFF,      /* reads the hello and closes */
    WRONG_TOKEN,     /* refuses: DENIED */
    BUSY_SERVER,     /* refuses: BUSY, with a text of unprintable bytes and without its NUL */
    REFUSES_MUTELY,  /* refuses with a status of the future and no text */
    STRANGE_WELCOME, /* something else than a welcome */
    NEWER_WELCOME,   /* proved, but of another wire version */
    UNPROVED,        /* welcomes without holding the secret */
    NO_CHANNELS,     /* tcp without a bulk channel */
    NO_MEMORY,       /* shm without a memfd */
    TWO_MEMORIES,    /* more descriptors than one: harmless, the others are closed */
    SHORT_MEMORY,    /* a memfd that is smaller than its rings */
    UNSEALED_MEMORY, /* a memfd that could be cut short */
    ODD_RINGS,       /* rings whose sizes are no powers of two */
    MEMORY_AND_EOF,  /* a memfd with half a welcome */
    /* in a bulk channel */
    CHANNEL_REFUSED,
    CHANNEL_UNPROVED,
    CHANNEL_GARBAGE,
    CHANNEL_NO_LISTENER, /* the server is gone when the channel is to be opened */
    /* when a session is taken up again */
    RESUME_REFUSED, /* the session is not known any more */
    RESUME_DENIED,  /* the proof is not to its liking */
    /* what no client asked for */
    OTHER_TRANSPORT, /* one that was not offered */
    SEALED,          /* a key exchange */
    /* to one who asks for a sealed link */
    NO_EXCHANGE,    /* no answer to the key exchange */
    ODD_EXCHANGE,   /* an answer of another size */
    EMPTY_EXCHANGE, /* a key that gives the same secret with every other */
    OTHER_CIPHER,   /* one that does not exist */
    STRIPPED_HELLO, /* somebody on the way took the offer out of the hello */
    REPLACED_HELLO, /* ... put a key of his own there */
    STRIPPED_WELCOME,
    REPLACED_WELCOME,
};

struct mini_server {
    char url[64], unix_path[108];
    uint8_t token_id[GV_TOKEN_ID_SIZE], secret[GV_SECRET_SIZE];
    enum fault fault;
    struct gv_hello hello;    /* of the last session */
    const char *moves_to;     /* where a session or a resume is sent, by the test; NULL: stays */
    _Atomic int resume_moves; /* how many resumes are sent there */
    int waits;                /* so many states before a session's welcome */
    uint16_t state;           /* which */
    int listening, unix_listening, stop[2];
    pthread_t thread;
    _Atomic(struct gv_link *) worker;
    struct gv_link *resumable;   /* the server thread's own view of it, to hand it further connections */
    int held[8], n_held;         /* connections that are kept open in silence */
    uint8_t key[GV_SECRET_SIZE]; /* of the last session */
    struct gv_link_secret seal;  /* of the last session, where it is sealed */
    _Atomic bool sealed;
    uint32_t grace_s; /* set by the test before a client comes */
    _Atomic int sessions, channels, resumes, adding;
};

void mini_start(struct mini_server *server, enum fault fault);
void mini_stop(struct mini_server *server);
/* The worker's end of the session that was opened last. The caller closes it. */
struct gv_link *mini_worker(struct mini_server *server);
/* Closes both ends of a session, the worker's when no thread of the server's is busy with it any more. */
void mini_close(struct mini_server *server, struct pair *pair);
/* What a client needs for it. */
struct gv_link_options mini_options(struct mini_server *server, const char *link);
/* A session by these options, which may name somebody in front of the server: both ends. */
struct pair mini_connect(struct mini_server *server, const struct gv_link_options *options);

/* What a link said to its user. */
struct notices {
    _Atomic int n;
    char last[600];
};
/* For gv_link_options.notice; notice_arg is a struct notices. */
void take_notice(void *notices, const char *text);

#endif
