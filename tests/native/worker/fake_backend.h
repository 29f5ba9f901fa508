#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../../../native/worker/backend.h"

/* What a test sets before, and looks at after. */
struct fake_state {
    bool refuse_open;
    _Atomic int delay_us;        /* every job takes this long */
    _Atomic int sticky;          /* the context's asynchronous error from now on */
    _Atomic size_t meta_padding; /* makes metadata large */
    _Alignas(4096) uint8_t memory[8 << 20];
    _Atomic uint64_t used;
    _Atomic int ran;    /* launches that ran */
    _Atomic int filled; /* fills */
    _Atomic uint64_t image_sum;
    _Atomic bool free_waits; /* memory_free comes back only when all streams are idle, as real drivers do */
    _Atomic bool fill_waits; /* fills come back only when all streams are idle, as of a driver whose queue is full */
    _Atomic int free_us;     /* memory_free takes so long */
    _Atomic bool frees_wait; /* host_free comes back only when no gate is queued, as of a driver that frees pinned memory when the device is idle */
    _Atomic int gates;       /* that are queued, or run */
    _Atomic int pinned;      /* pieces of host_alloc's that are there */
    _Atomic uint64_t fixed;  /* addresses=fixed: so many bytes can be backed; the first window offered is refused */
    _Atomic uint64_t backed; /* bytes */
    _Atomic uint64_t back_waits; /* calls of memory_back that others may have to give way for */
    _Atomic int queued;          /* jobs */
    _Atomic int most_queued;
    _Atomic bool views;                  /* the CPU reaches the memory */
    _Atomic bool hold_views, held_views; /* host_view comes back when the first is false; it sets the second while it waits */
    _Atomic int viewed;                  /* ranges that are held */
    _Atomic int views_given;
    bool device_views; /* RDMA devices reach the memory */
    bool refuse_views; /* but for these */
    _Atomic bool refuse_moves;
    _Atomic int written;      /* views that were written */
    _Atomic uint64_t moved;   /* bytes */
    _Atomic bool tells_marks; /* mark_follows knows */
    _Atomic bool refuse_gates;
    _Atomic bool marks_wait; /* mark comes back when the mark has been called */
    _Atomic int mapped;      /* pieces of physical memory */
    _Atomic int alive;       /* streams, events and modules that the worker holds */
};
extern struct fake_state fake;

/* The memory is a file's from now on: its descriptor is what device_view gives. */
void fake_memory_in_a_file(void);

#endif
