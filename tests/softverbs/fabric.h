/* The fabric: one file that every process of a test maps whole. All zeros is its valid start, so whoever comes first only sizes it.
 *
 *     0                 a page for all
 *     SV_RAILS_AT       a page for each device (rail): words that make faults, and counters. A test writes and reads these while it runs.
 *     SV_STATIONS_AT   an open device of a process: the word on which its progress thread sleeps, and a lock that tells that the process lives
 *     SV_SLOTS_AT       queue pairs: state and the control words of two rings each
 *     SV_RINGS_AT       the rings: of queue pair i the requests sent to it, then the responses sent to it
 *
 * control.py reads the numbers and the rails' words in this file: one `#define` or one `_Atomic uint64_t NAME;` a line. */
#ifndef SV_FABRIC_H
#define SV_FABRIC_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SV_RAILS 8
#define SV_RAILS_AT 4096
#define SV_RAIL_BYTES 4096
#define SV_STATIONS 128
#define SV_STATIONS_AT 36864
#define SV_STATION_BYTES 128
#define SV_SLOTS 512
#define SV_SLOTS_AT 53248
#define SV_SLOT_BYTES 512
#define SV_RINGS_AT 1048576
#define SV_RING_BYTES 1048576
#define SV_FABRIC_BYTES 1074790400
/* For small_waits below: bytes of a small packet, and microseconds that are told apart. */
#define SV_SMALL 256
#define SV_WAITS 256

/* Times are CLOCK_MONOTONIC's, in ns. `n-th` counts down in the word itself: it is 0 when it has happened. Zero is no fault throughout. */
struct sv_rail {
    _Atomic uint64_t port_down;           /* 1: PORT_ERR, nothing passes; back to 0: PORT_ACTIVE */
    _Atomic uint64_t drop;                /* 1: whatever is sent or under way is lost; nobody is told */
    _Atomic uint64_t delay_ns;            /* one way, from a sender on this rail */
    _Atomic uint64_t rate_mbps;           /* out of and into each open device */
    _Atomic uint64_t rnr_every;           /* every n-th request that needs a receive finds none */
    _Atomic uint64_t bad_rkey_at;         /* the n-th RDMA write from now has a wrong rkey */
    _Atomic uint64_t read_delay_ns;       /* more delay for read responses */
    _Atomic uint64_t completion_delay_ns; /* completions are seen later */
    _Atomic uint64_t completion_reorder;  /* 1: by another multiple of that for each queue pair */
    _Atomic uint64_t cq_overrun_at;       /* the n-th completion from now finds the queue full */
    _Atomic uint64_t send_delay_ns;       /* a request's memory is read this long after it was posted, as a busy adapter does */
    _Atomic uint64_t account_above;       /* writes and reads of more bytes than this are checked and counted, not copied */
    /* Counters. */
    _Atomic uint64_t doorbells; /* calls of ibv_post_send */
    _Atomic uint64_t send_requests;
    _Atomic uint64_t receive_requests;
    _Atomic uint64_t bytes; /* payload put on the wire, accounted ones included */
    _Atomic uint64_t accounted_bytes;
    _Atomic uint64_t packets;
    _Atomic uint64_t dropped;
    _Atomic uint64_t timeouts; /* retransmissions after a timeout */
    _Atomic uint64_t rnr_naks;
    _Atomic uint64_t completions;
    _Atomic uint64_t polls;
    _Atomic uint64_t arms; /* calls of ibv_req_notify_cq */
    _Atomic uint64_t notifications;
    _Atomic uint64_t rnr_count; /* for rnr_every */
    _Atomic uint64_t network;   /* only rails of the same one reach each other; of 0 GIDs are link-local, of others global */
    _Atomic uint64_t slow_port; /* 1: the port tells a tenth of the rate */
    _Atomic uint64_t drop_at;   /* the n-th packet to arrive from now is lost */
    _Atomic uint64_t ipv4;      /* 1: the port has a second GID, of an IPv4 address */
    /* Packets with up to SV_SMALL bytes, by the whole microseconds for which they waited until the links were free of others, the last for all longer waits. */
    _Atomic uint64_t small_waits[SV_WAITS];
};

struct sv_station {
    _Atomic uint32_t bell; /* a futex: changed when there is something to do */
    _Atomic uint32_t sleeping;
    _Atomic uint32_t sleeps_long; /* without a look at the timers */
    _Atomic uint32_t used;
    _Atomic uint32_t dead;
    uint32_t lock_made;
    _Atomic uint64_t sends_until; /* for rate_mbps */
    _Atomic uint64_t receives_until;
    pthread_mutex_t alive; /* robust, held by the progress thread: the kernel tells when that has died */
};

struct sv_ring {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint32_t producer_waits;
};

struct sv_slot {
    _Alignas(64) _Atomic uint32_t number; /* of the queue pair, 0: free; the slot's index is in its lower bits */
    _Atomic uint32_t state;               /* enum ibv_qp_state */
    _Atomic uint32_t peer;
    _Atomic uint32_t station;
    _Atomic uint32_t rail;
    _Atomic uint32_t lost; /* something that it sent, or an answer to it, has been dropped */
    uint32_t generation;
    struct sv_ring requests;
    struct sv_ring responses;
};

enum sv_kind { SV_FILLER, SV_SEND, SV_WRITE, SV_READ, SV_ACK, SV_RNR, SV_NAK, SV_READ_DATA };
enum sv_packet_flags { SV_LAST = 1, SV_IMM = 2, SV_ACCOUNTED = 4 };

/* Before its payload in a ring; both together are a multiple of 64 bytes. */
struct sv_packet {
    _Alignas(64) uint64_t due;
    uint64_t sequence; /* of the message, not of the packet: both ends count on from the packet sequence numbers they were given */
    uint64_t remote;   /* of the message */
    uint32_t rkey;
    uint32_t bytes; /* in the ring */
    uint32_t source;
    uint32_t total; /* of the message */
    uint32_t offset;
    uint32_t length; /* of the payload, or of what is counted as such */
    uint32_t imm;    /* SV_READ: how many reads are outstanding with this one */
    uint8_t kind;
    uint8_t flags;
    uint8_t status; /* SV_NAK: enum ibv_wc_status */
    uint8_t timer;  /* SV_RNR: the code of min_rnr_timer */
};

struct sv_fabric {
    _Alignas(SV_RAILS_AT) union {
        _Atomic uint32_t next_slot; /* of the page for all: freed ones are taken last, so that a late packet finds nobody */
        struct sv_rail rail;
        uint8_t page[SV_RAIL_BYTES];
    } pages[1 + SV_RAILS];
    union {
        struct sv_station station;
        uint8_t room[SV_STATION_BYTES];
    } stations[SV_STATIONS];
    union {
        struct sv_slot slot;
        uint8_t room[SV_SLOT_BYTES];
    } slots[SV_SLOTS];
};
_Static_assert(offsetof(struct sv_fabric, stations) == SV_STATIONS_AT && offsetof(struct sv_fabric, slots) == SV_SLOTS_AT, "as control.py reads it");
_Static_assert(sizeof(struct sv_slot) <= SV_SLOT_BYTES && sizeof(struct sv_station) <= SV_STATION_BYTES, "they have room");
_Static_assert(sizeof(struct sv_packet) == 64 && sizeof(struct sv_fabric) <= SV_RINGS_AT, "they have room");
_Static_assert(SV_FABRIC_BYTES == SV_RINGS_AT + 2LL * SV_SLOTS * SV_RING_BYTES, "two rings for each");

static inline struct sv_rail *sv_rail(struct sv_fabric *fabric, unsigned device) { return &fabric->pages[1 + device % SV_RAILS].rail; }
static inline struct sv_station *sv_station(struct sv_fabric *fabric, unsigned index) { return &fabric->stations[index % SV_STATIONS].station; }
static inline struct sv_slot *sv_slot(struct sv_fabric *fabric, uint32_t number) { return &fabric->slots[number % SV_SLOTS].slot; }

static inline int64_t sv_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static inline void sv_ring_bell(struct sv_station *station) {
    atomic_fetch_add(&station->bell, 1);
    if (atomic_load(&station->sleeping)) sv_futex(&station->bell, FUTEX_WAKE, 1, NULL);
}

/* After a change of a rail's words: every progress thread looks. */
static inline void sv_ring_all(struct sv_fabric *fabric) {
    for (unsigned i = 0; i < SV_STATIONS; i++) {
        if (atomic_load(&sv_station(fabric, i)->used)) sv_ring_bell(sv_station(fabric, i));
    }
}

static inline uint64_t sv_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Whether the rail loses what is sent over it. */
static inline bool sv_rail_dead(struct sv_rail *rail) { return atomic_load(&rail->port_down) || atomic_load(&rail->drop); }
/* Counts a word down: true when this was the n-th. */
static inline bool sv_nth(_Atomic uint64_t *word) {
    uint64_t left = atomic_load(word);
    while (left && !atomic_compare_exchange_weak(word, &left, left - 1)) {
    }
    return left == 1;
}

#define SV_COUNT(rail, counter, by) atomic_fetch_add_explicit(&(rail)->counter, (by), memory_order_relaxed)

/* The process's one mapping of the fabric, made when the first device is opened: NULL with errno. It stays. */
struct sv_fabric *sv_fabric_map(void);
/* A station of this process; NULL with errno. What dead processes have left is freed. */
struct sv_station *sv_station_take(struct sv_fabric *fabric);
unsigned sv_station_index(struct sv_fabric *fabric, struct sv_station *station);
bool sv_station_lives(struct sv_station *station);
/* A queue pair's slot, with its number; NULL when all are taken. */
struct sv_slot *sv_slot_take(struct sv_fabric *fabric, struct sv_station *station, unsigned rail);

uint8_t *sv_ring_data(struct sv_fabric *fabric, struct sv_slot *slot, struct sv_ring *ring);
/* Whether a packet with `payload` bytes has room; if not the consumer rings when there is some. */
bool sv_ring_room(struct sv_ring *ring, uint32_t payload);
/* Where it goes, its `bytes` set; NULL without room. sv_ring_publish ends it. */
struct sv_packet *sv_ring_reserve(struct sv_ring *ring, uint8_t *data, uint32_t payload);
void sv_ring_publish(struct sv_ring *ring, const struct sv_packet *packet);
struct sv_packet *sv_ring_peek(struct sv_ring *ring, uint8_t *data);
/* The packet has been read. True when the producer waits for room. */
bool sv_ring_consume(struct sv_ring *ring, const struct sv_packet *packet);
void sv_ring_clear(struct sv_ring *ring);

#endif
