/* Memory and events that sessions share. What is shared lies in files that several workers have mapped; a session without any has none of this. */
#ifndef SOFT_SHARED_H
#define SOFT_SHARED_H

#include "../soft.h"

/* A file of pages that this session has exported, or another one. Under memory.lock. */
struct soft_file {
    struct soft_file *next;
    int fd;
    uint64_t number; /* that whoever has made it has for it */
    uint64_t size;
    uint32_t refs;    /* segments, pieces, exports */
    uint32_t exports; /* of those, what another session may still ask for */
    bool ours;        /* of this session's files, of which it has so many bytes at most */
};

/* Addresses of allocations whose pages lie in such a file. Under memory.lock. */
struct soft_segment {
    struct soft_segment *next;
    uint64_t address, size, offset;
    struct soft_file *file;
};

/* What physical memory in several files is made of. */
struct soft_pieces {
    uint32_t n;
    struct soft_piece {
        struct soft_file *file;
        uint64_t offset, size;
    } items[GV_SHARED_PIECES];
};

/* ---- files.c ---- */

void soft_shared_open(struct gv_backend *b, const struct gv_backend_config *config);
void soft_shared_close(struct gv_backend *b);
/* What lay at these addresses is freed, and unmapped; memory.lock held. */
void soft_segments_forget(struct gv_backend *b, uint64_t address, uint64_t size);
/* Whether pages of this session lie in files that others have open, or had. */
bool soft_memory_is_shared(struct gv_backend *b);

/* Takes the descriptor over, with one reference; NULL: there is no memory, and the descriptor is the caller's. memory.lock held. */
struct soft_file *soft_file_add(struct soft_memory *m, int fd, uint64_t number, uint64_t size, bool ours);
/* One reference less; memory.lock held. */
void soft_file_drop(struct gv_backend *b, struct soft_file *f);
/* Maps `size` bytes of memory that is in PIECES, with such a protection. */
bool soft_pieces_map(const struct gv_physical *p, uint64_t address, uint64_t size, int protection);
/* Gives back the pieces of memory that is destroyed. */
void soft_pieces_drop(struct gv_physical *p);
/* Copies pages, from an address, into a file; pages never written stay holes. By way of a mapping: a limit of the size of files that are written is not
 * this one's. */
bool soft_copy_pages(int file, uint64_t offset, uint64_t from, uint64_t size);

#endif
