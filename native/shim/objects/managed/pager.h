/* Pages of the host whose accesses are watched. */
#ifndef SHIM_PAGER_H
#define SHIM_PAGER_H

#include <stdbool.h>
#include <stdint.h>

enum page_access { PAGES_NONE, PAGES_READ, PAGES_WRITE };

/* Who is told. */
struct page_watch {
    /* Of an access that the pages' access does not allow, on any thread. It returns whether the address is one of its own; the access is then tried again. */
    bool (*touched)(uint64_t address, bool write);
    /* Of one that is to come, to any memory: what of it is watched becomes accessible. */
    void (*reach)(uint64_t address, uint64_t size, bool write);
};

/* One way to watch pages. */
struct pager {
    const char *name;
    /* Whether it works in this process. */
    bool (*start)(const struct page_watch *watch);
    /* The program's view of `size` bytes begins; the memory is mapped there already. 0 or -1. */
    int (*watch)(uint64_t base, uint64_t size);
    /* 0, or -1 when the kernel has no memory for it. `view`: where else the pages are mapped. */
    int (*protect)(uint64_t base, char *view, uint64_t size, enum page_access access);
    /* The view ends; what follows unmaps it. */
    void (*forget)(uint64_t base, uint64_t size);
    /* Called now and then: another part of the program may have put itself in the pager's place. */
    void (*renew)(void);
};

extern const struct pager pager_userfault, pager_signal;

/* The first that works; chosen once. */
const struct pager *pager_start(const struct page_watch *watch);

#endif
