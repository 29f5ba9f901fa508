/* One allocation of managed memory. */
#ifndef SHIM_REGION_H
#define SHIM_REGION_H

#include "objects/managed/pager.h"
#include "objects/objects.h"

/* The host's copy of a block. */
enum block_state {
    BLOCK_STALE,    /* the device may have written it since it was fetched: inaccessible */
    BLOCK_FETCHING, /* a thread fetches it */
    BLOCK_CLEAN,    /* the device's and the host's are the same: the host may read */
    BLOCK_DIRTY     /* the host has written it since the device saw it */
};

#define BLOCK_STATE 3u
#define BLOCK_PROVISIONAL 4u /* was fetched while work was under way that may have written it */
#define BLOCK_SENDING 8u     /* stale, and the host's copy is on its way to the device: it is still good */
#define BLOCK_PREFETCHED 16u /* stale, and a copy to the host is queued */

struct advice {
    bool read_mostly;
    CUmemLocation preferred, prefetched; /* type CU_MEM_LOCATION_TYPE_INVALID: none */
    uint32_t accessed_by;                /* a bit a device */
    bool accessed_by_host;
};

/* A command on a stream. */
struct passing {
    struct shim_stream *stream; /* NULL: none */
    uint64_t id, seq;
};

/* Bytes of a region that are the program's, from its base: all of an allocation; of variables, those that lie in the pages. */
struct extent {
    uint64_t low, high;
};

struct mirror;

struct region {
    struct treap_node node;         /* key: base */
    struct region *next, *previous; /* of those that the host may access some of */
    bool listed;                    /* in that list */
    uint64_t size;                  /* whole pages */
    char *view;                     /* the same pages, always accessible: where bytes of the device arrive, and where those for it are read */
    unsigned shift;                 /* a block has 1 << shift bytes */
    size_t n;                       /* blocks */
    uint8_t *blocks;                /* enum block_state and flags */
    struct extent *extents;
    size_t n_extents;
    size_t accessible, dirty;     /* how many are clean or dirty, and dirty */
    uint64_t accesses;            /* how often a call that names it gave it to the device */
    unsigned users;               /* threads that work on it with the lock released */
    unsigned senders;             /* of these, threads that send what the host has written */
    bool gone;                    /* freed, and waiting for them */
    struct shim_context *context; /* whose memory it is */
    unsigned attached;            /* CU_MEM_ATTACH_* */
    struct shim_stream *stream;   /* with CU_MEM_ATTACH_SINGLE */
    uint64_t stream_id;
    size_t next_read, next_write; /* the block after the last touch, and how many were made accessible then: touches in order take more at a time */
    size_t read_run, write_run;
    struct advice *advice;      /* a block each; NULL: none was given */
    bool mapped;                /* host memory that kernels use, so they may look at it while they run (mirror.c) */
    struct mirror *mirror;      /* NULL: it is not mirrored now */
    struct passing pushed;      /* the last copy to the device */
    uint64_t unpassed;          /* its number, if it did not end while a host function waited for it */
    struct passing prefetching; /* the last copy to the host that nobody has waited for */
    uint64_t prefetch_given;    /* region_given() when it was queued */
};

static inline uint64_t region_base(const struct region *r) { return r->node.key; }
static inline enum block_state region_state(const struct region *r, size_t block) { return r->blocks[block] & BLOCK_STATE; }
/* The bytes of blocks [first, first + n); the last block may be shorter. */
static inline uint64_t region_bytes(const struct region *r, size_t first, size_t n) {
    uint64_t low = (uint64_t)first << r->shift, high = (uint64_t)(first + n) << r->shift;
    return (high < r->size ? high : r->size) - low;
}

/* Guards all regions. */
extern pthread_mutex_t region_lock;
/* A thread has finished with a region, or a fetch is over. */
extern pthread_cond_t region_changed;
extern struct region *region_list;
/* Commands that are given memory and are not posted yet (managed_begin). It grows before region_given does: a thread that read it too early sees region_given change. */
extern _Atomic uint64_t region_posting;
/* Kernels that have been given their memory so far: each may write any region, also one that the host cannot access and no list has. Guarded by region_lock. */
extern uint64_t region_launches;
/* How often the device was given the region. A copy to the host that was queued before the number changed may lack what is there now. */
static inline uint64_t region_given(const struct region *r) { return r->accesses + region_launches; }

/* Makes one of the pages at `base` (`shared`: shared memory that is mapped there already): stale, or clean, when both copies are zeros once the device's memory is filled. `watch`: who is told of touches. Pages that are in another one already are left to it. 0
 * or a CUresult; CUDA_ERROR_ALREADY_MAPPED: the process uses the addresses, where the server's driver chose them. */
int region_make(struct shim_context *c, uint64_t base, uint64_t size, unsigned attached, enum block_state state, bool shared,
                const struct page_watch *watch);
/* The rest with region_lock held. */
struct region *region_find(uint64_t address); /* NULL: none */
struct region *region_next(uint64_t address); /* the first that begins at or above */
/* Adds the part of [address, address + size) that lies in a region to what is the program's there. 0 or CUDA_ERROR_OUT_OF_MEMORY. */
int region_extend(struct region *r, uint64_t address, uint64_t size);
/* Gives blocks a state, and the pages what it allows. 0, or -1 when the kernel has no memory for it. */
int region_set(struct region *r, size_t first, size_t n, enum block_state state, unsigned flags);
/* Blocks become stale, those that were dirty with BLOCK_SENDING. Blocks that are being fetched stay so. 0 or -1. */
int region_invalidate(struct region *r, size_t first, size_t n);
/* Says to the pager that it is time to look (pager.h). */
void region_renew(void);
/* No thread uses it from now on: waits for those that do. */
void region_retire(struct region *r);
/* Frees one that is retired. */
void region_free(struct region *r);

#endif
