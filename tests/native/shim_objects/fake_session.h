/* A session with nobody behind it: it carries out commands at once in this process, where "device memory" is a mapped window. What completes when is the test's to say. */
#ifndef FAKE_SESSION_H
#define FAKE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "gv_commands.h"
#include "objects/shim.h"

#define FAKE_DEVICES 2
#define FAKE_DEVICE_MEMORY (256ull << 20)

extern struct fake {
    bool hold;           /* completions wait for fake_complete (or for somebody who waits) */
    uint64_t count[256]; /* commands seen, by op */
    uint64_t waits;
    uint64_t backed[FAKE_DEVICES];
    struct gv_cmd_launch launch; /* the last one */
    char params[4096];
    uint32_t launch_ctx;
    uint64_t kernel_attribute_value;
    struct gv_cmd_cluster_count query; /* the last one, what it is answered, */
    uint32_t groups;                   /* pairs of multiprocessors that processor_groups tells of, */
    int groups_status;                 /* and by which status */
    int clusters, cluster_status;      /* and by which status */
    int load_status;                   /* what module_load answers */
    size_t load_size;                  /* of the image it was sent */
    bool lost;
    int access_status;              /* what memory_access answers */
    int map_status;                 /* of tensor maps */
    uint64_t mapped;                /* bytes */
    const char *cache;              /* folder for metadata of modules, NULL: none */
    uint64_t lent;                  /* payloads sent from where they lie */
    unsigned offers;                /* of page-locked memory */
    const void *taken_back;         /* the last that was */
    uint64_t loans_low, loans_high; /* the memory that was last asked about */
} fake;

/* Everything marked so far has completed. */
void fake_complete(void);
/* The next marks of every stream complete with this status. */
void fake_fault(int status);
/* Forgets the counts. */
void fake_reset(void);

/* What the fake worker says of every module: kernels "add" (three parameters: 8, 4 and 8 bytes; 1 KiB static shared memory, at most 512 threads, 32 registers), "empty" and
 * "exact" (.reqntid 64), "clustered" (.reqnctapercluster 2), the global "table" of 256 bytes. */
#define FAKE_PTX ".version 8.0\n.target sm_80\n"

#endif
