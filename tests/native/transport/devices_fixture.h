/* The devices of the software libibverbs that a test runs on: their faults and counters are words in the fabric's file (SOFTVERBS_FABRIC). */
#ifndef DEVICES_FIXTURE_H
#define DEVICES_FIXTURE_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../softverbs/fabric.h"
#include "../check.h"

static struct sv_fabric *fabric;

static inline struct sv_rail *rail(uint32_t i) { return &fabric->pages[1 + i].rail; }

static inline void open_fabric(void) {
    int fd = open(getenv("SOFTVERBS_FABRIC"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SV_FABRIC_BYTES) == 0);
    fabric = mmap(NULL, SV_RINGS_AT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fabric != MAP_FAILED);
    close(fd);
}

#endif
