/* Ranges of addresses that this process keeps free for device memory, offered to the worker at attach. */
#ifndef SHIM_WINDOW_OFFER_H
#define SHIM_WINDOW_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#define WINDOWS_MAX 6

struct window {
    uint64_t base, size; /* as they travel */
};

/* Maps (PROT_NONE) what is free of the ranges we would like; returns how many, best first. */
int window_offer(struct window out[WINDOWS_MAX]);
/* Gives all back but [base, base + size), size 0: all. False when that was not among them. */
bool window_keep(const struct window *offered, int n, uint64_t base, uint64_t size);

#endif
