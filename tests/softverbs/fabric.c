#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sv_fabric *mapped;
static int mapped_fd = -1;

struct sv_fabric *sv_fabric_map(void) {
    const char *path = getenv("SOFTVERBS_FABRIC");
    pthread_mutex_lock(&map_lock);
    if (!mapped && !path) {
        fputs("softverbs: no fabric; set SOFTVERBS_FABRIC to the path of a file\n", stderr);
        errno = ENODEV;
    } else if (!mapped) {
        struct stat status;
        int fd = open(path, O_RDWR | O_CLOEXEC); /* another user's, it may be: with O_CREAT that is refused in /dev/shm */
        if (fd < 0 && errno == ENOENT) {
            fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
            if (fd >= 0) fchmod(fd, 0666);
        }
        if (fd >= 0 && fstat(fd, &status) == 0 && (status.st_size >= SV_FABRIC_BYTES || ftruncate(fd, SV_FABRIC_BYTES) == 0)) {
            void *map = mmap(NULL, SV_FABRIC_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
            if (map != MAP_FAILED) mapped = map;
        }
        if (mapped)
            mapped_fd = fd;
        else if (fd >= 0)
            close(fd);
    }
    pthread_mutex_unlock(&map_lock);
    return mapped;
}

unsigned sv_station_index(struct sv_fabric *fabric, struct sv_station *station) {
    return (unsigned)(((uint8_t *)station - (uint8_t *)fabric->stations) / SV_STATION_BYTES);
}

bool sv_station_lives(struct sv_station *station) {
    if (atomic_load(&station->dead) || !atomic_load(&station->used)) return false;
    int held = pthread_mutex_trylock(&station->alive);
    if (held == EBUSY) return true;
    atomic_store(&station->dead, 1);
    if (held == EOWNERDEAD) pthread_mutex_consistent(&station->alive);
    if (held == 0 || held == EOWNERDEAD) pthread_mutex_unlock(&station->alive);
    return false;
}

/* Between processes, also those that have forked: a lock of flock's would be theirs together. */
static void lock_file(short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    while (fcntl(mapped_fd, F_SETLKW, &lock) != 0 && errno == EINTR) {
    }
}

static void make_lock(struct sv_station *station) {
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&station->alive, &robust);
    station->lock_made = 1;
}

struct sv_station *sv_station_take(struct sv_fabric *fabric) {
    struct sv_station *mine = NULL;
    pthread_mutex_lock(&map_lock);
    lock_file(F_WRLCK);
    for (unsigned i = 0; i < SV_STATIONS; i++) {
        struct sv_station *station = sv_station(fabric, i);
        if (atomic_load(&station->used) == 2 && !sv_station_lives(station)) { /* 1: its thread has not begun */
            for (uint32_t n = 0; n < SV_SLOTS; n++) {
                if (atomic_load(&sv_slot(fabric, n)->station) == i) atomic_store(&sv_slot(fabric, n)->number, 0);
            }
            atomic_store(&station->used, 0);
        }
        if (mine || atomic_load(&station->used)) continue;
        mine = station;
        if (!mine->lock_made) make_lock(mine);
        atomic_store(&mine->dead, 0);
        atomic_store(&mine->used, 1);
    }
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&map_lock);
    if (!mine) errno = EMFILE;
    return mine;
}

struct sv_slot *sv_slot_take(struct sv_fabric *fabric, struct sv_station *station, unsigned rail) {
    for (uint32_t tried = 0; tried < SV_SLOTS; tried++) {
        uint32_t index = atomic_fetch_add(&fabric->pages[0].next_slot, 1) % SV_SLOTS, free = 0;
        struct sv_slot *slot = sv_slot(fabric, index);
        if (!index || !atomic_compare_exchange_strong(&slot->number, &free, UINT32_MAX)) continue;
        slot->generation = (slot->generation + 1) % 32768;
        atomic_store(&slot->state, 0);
        atomic_store(&slot->peer, 0);
        atomic_store(&slot->lost, 0);
        atomic_store(&slot->rail, rail);
        atomic_store(&slot->station, sv_station_index(fabric, station));
        atomic_store(&slot->number, slot->generation * SV_SLOTS + index);
        return slot;
    }
    errno = ENOMEM;
    return NULL;
}

uint8_t *sv_ring_data(struct sv_fabric *fabric, struct sv_slot *slot, struct sv_ring *ring) {
    size_t index = (size_t)((uint8_t *)slot - (uint8_t *)fabric->slots) / SV_SLOT_BYTES;
    return (uint8_t *)fabric + SV_RINGS_AT + (2 * index + (ring == &slot->responses)) * SV_RING_BYTES;
}

static uint32_t packet_bytes(uint32_t payload) { return (uint32_t)sizeof(struct sv_packet) + (payload + 63) / 64 * 64; }
/* A packet does not go around the ring's end. */
static uint32_t skipped(uint64_t tail, uint32_t bytes) {
    uint32_t left = SV_RING_BYTES - (uint32_t)(tail % SV_RING_BYTES);
    return bytes > left ? left : 0;
}

bool sv_ring_room(struct sv_ring *ring, uint32_t payload) {
    uint64_t tail = atomic_load(&ring->tail);
    uint64_t end = tail + packet_bytes(payload) + skipped(tail, packet_bytes(payload));
    if (end - atomic_load(&ring->head) <= SV_RING_BYTES) return true;
    atomic_store(&ring->producer_waits, 1);
    return end - atomic_load(&ring->head) <= SV_RING_BYTES;
}

struct sv_packet *sv_ring_reserve(struct sv_ring *ring, uint8_t *data, uint32_t payload) {
    if (!sv_ring_room(ring, payload)) return NULL;
    uint64_t tail = atomic_load(&ring->tail);
    uint32_t filler = skipped(tail, packet_bytes(payload));
    if (filler) {
        struct sv_packet *packet = (struct sv_packet *)(data + tail % SV_RING_BYTES);
        *packet = (struct sv_packet){.kind = SV_FILLER, .bytes = filler};
        sv_ring_publish(ring, packet);
    }
    struct sv_packet *packet = (struct sv_packet *)(data + (tail + filler) % SV_RING_BYTES);
    packet->bytes = packet_bytes(payload);
    return packet;
}

void sv_ring_publish(struct sv_ring *ring, const struct sv_packet *packet) { atomic_fetch_add(&ring->tail, packet->bytes); }

struct sv_packet *sv_ring_peek(struct sv_ring *ring, uint8_t *data) {
    for (;;) {
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
        if (atomic_load(&ring->tail) == head) return NULL;
        struct sv_packet *packet = (struct sv_packet *)(data + head % SV_RING_BYTES);
        if (packet->kind != SV_FILLER) return packet;
        atomic_store(&ring->head, head + packet->bytes);
    }
}

bool sv_ring_consume(struct sv_ring *ring, const struct sv_packet *packet) {
    atomic_fetch_add(&ring->head, packet->bytes);
    return atomic_load(&ring->producer_waits) && atomic_exchange(&ring->producer_waits, 0);
}

void sv_ring_clear(struct sv_ring *ring) { atomic_store(&ring->head, atomic_load(&ring->tail)); }
