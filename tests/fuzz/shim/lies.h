/* What the server may lie about. A session's seed chooses a few of them, how often they are told, and how much goes well before the first. */
#ifndef SHIM_FUZZ_LIES_H
#define SHIM_FUZZ_LIES_H

#include "fuzz.h"

#define LIES(LIE)                                                                                      \
    LIE(GREETING)    /* fields, versions, bytes; or nothing at all */                                  \
    LIE(STATE)       /* waiting, parked, nonsense */                                                   \
    LIE(WELCOME)     /* status, transport, blob, connections, bytes; half of it */                     \
    LIE(MOVED)       /* here again, nowhere, nonsense */                                               \
    LIE(DESCRIPTORS) /* none, many, a memory that is no memory of ours */                              \
    LIE(EXCHANGE)    /* another key, another cipher */                                                 \
    LIE(CHANNEL)     /* a further connection's handshake and greeting */                               \
    LIE(CUT)         /* connections end, and what is said when they come again */                      \
    LIE(DEVICES)     /* absurd values */                                                               \
    LIE(WINDOW)      /* another window, another way of placing memory, more memory than there is */    \
    LIE(KNOWN)       /* images that the server says it keeps */                                        \
    LIE(NO_REPLY)                                                                                      \
    LIE(REPLY_TWICE)                                                                                   \
    LIE(REPLY_TO_ANOTHER) /* another number, or before the call */                                     \
    LIE(STATUS)                                                                                        \
    LIE(REPLY_BODY)   /* cut, longer, other bytes */                                                   \
    LIE(META)         /* a module's metadata, malformed */                                             \
    LIE(META_PAYLOAD) /* its payload: another size, twice, never, the tag of another */                \
    LIE(TOO_EARLY)    /* completions of what has not been posted, or whose bytes have not been sent */ \
    LIE(BACK)         /* completions of what was completed before */                                   \
    LIE(OTHER_STREAM)                                                                                  \
    LIE(NO_COMPLETION)                                                                                 \
    LIE(PROMISE) /* completions that name payloads that never come */                                  \
    LIE(INLINE)  /* data inside a record: another tag, another size, twice */                          \
    LIE(PAYLOAD_SIZE)                                                                                  \
    LIE(PAYLOAD_TAG)                                                                                   \
    LIE(PAYLOAD_NUMBER) /* and its magic and epoch */                                                  \
    LIE(PAYLOAD_LATE)   /* after its completion */                                                     \
    LIE(PAYLOAD_AGAIN)  /* for a copy that has ended */                                                \
    LIE(PAYLOAD_FLOOD)  /* payloads that nobody asked for */                                           \
    LIE(HOST_FUNCTION)  /* unknown, twice, before its time, of another stream, failed */               \
    LIE(FAILED)         /* failures of commands and contexts, with texts that terminals obey */        \
    LIE(CONSOLE)                                                                                       \
    LIE(NOTICE)     /* texts that terminals obey */                                                    \
    LIE(UNKNOWN)    /* events that there are not */                                                    \
    LIE(EVENT_BODY) /* any event's bytes */                                                            \
    LIE(RECORD)     /* its header: size, number, epoch, flags */                                       \
    LIE(MEMORY)     /* words of the shared memory, whenever */                                         \
    LIE(SOCKET)     /* bytes on a socket, whenever */                                                  \
    LIE(GONE)       /* the server's end */

enum lie {
#define NUMBERED(name) LIE_##name,
    LIES(NUMBERED)
#undef NUMBERED
        LIE_KINDS
};
_Static_assert(LIE_KINDS <= FUZZ_LIES, "the counters have room for all");
extern const char *const lie_names[FUZZ_LIES];

void lies_choose(const struct session_plan *plan);
/* Whether this lie is to be told now. */
bool lie(struct dice *d, enum lie kind);
/* Whether this one is among the session's. */
bool lie_chosen(enum lie kind);

/* A number that has broken programs before, or one near `about`. */
uint64_t odd_number(struct dice *d, uint64_t about);
/* Changes some of the bytes: bits, bytes, words. */
void spoil(struct dice *d, void *bytes, size_t size);

#endif
