/* The contract between compiled kernels (machine code that gpuvirt/soft makes from PTX) and the engine that runs them.
 *
 * Compiled code runs one warp of 32 lanes per call of soft_code.entry, on the engine's stack for that warp. It reads `struct soft_warp` and calls
 * the functions below by name; the engine exports each with default visibility, and the compiler looks the names up in the library that it is told
 * (gpuvirt.soft.host.jit.register_library). A null entry in that look-up is an error at the first kernel that needs the symbol, never earlier.
 *
 * gpuvirt/soft/abi.py mirrors the struct's offsets; tests/soft checks the mirror against this header. Change both together and raise
 * SOFT_ABI_VERSION, which is part of the key of the disk cache.
 *
 * Addresses. A generic address is a host address. The shared window is the offset from `shared`; the local window is the offset from a lane's own
 * `local + lane * local_stride`; global, const and param addresses are host addresses. A 32-bit shared address is therefore always representable.
 * The blocks of a cluster lie SOFT_RANK_BYTES apart. In a kernel that asks for addresses of another block (mapa, getctarank), the shared window is the
 * offset from `window`, where the cluster's first block lies: there a shared address means the same in every block of the cluster, as on a GPU.
 *
 * Faults. Compiled code does not look whether memory is there: an access outside what is mapped raises SIGSEGV or SIGBUS in the engine's thread, and the
 * engine turns it into CUDA_ERROR_ILLEGAL_ADDRESS. That addresses are aligned it proves or tests (gpuvirt/soft/codegen/alignment_checks.py). Integer division by zero does not fault (the result is all ones or the dividend, as on a GPU). The engine
 * leaves the warps of a faulted grid behind (it never returns into them): compiled code holds no locks and owns no memory except through soft_malloc. */
#ifndef GV_SOFT_KERNEL_ABI_H
#define GV_SOFT_KERNEL_ABI_H

#include <stdint.h>

#define SOFT_ABI_VERSION 6u
#define SOFT_LANES 32u
#define SOFT_RANK_SHIFT 24 /* a shared address of a cluster: the block's rank above, the offset in its memory below */
#define SOFT_RANK_BYTES (1ull << SOFT_RANK_SHIFT)

/* What one warp sees. Filled by the engine before each call of entry; compiled code only reads it, but for loops over warps (`blocks`). All fields
 * keep their value for the whole warp, also across barriers (a fiber that moves to another thread keeps its soft_warp). 64-byte aligned. */
struct soft_warp {
    uint32_t ctaid[3];     /*   0: this block's index in the grid */
    uint32_t nctaid[3];    /*  12: the grid's shape, blocks */
    uint32_t ntid[3];      /*  24: the block's shape, threads; equals the shape given to kernel_get */
    uint32_t first_thread; /*  36: linear index in the block of lane 0, a multiple of 32 */
    uint32_t lanes;        /*  40: bit i: lane i exists (all ones except in the last warp of an odd block) */
    uint32_t warp;         /*  44: index of this warp in the block */
    uint32_t warps;        /*  48: warps of the block */
    uint32_t smid;         /*  52: %smid: which core (worker thread) runs the block */
    uint32_t nsmid;        /*  56: %nsmid: how many there are */
    uint32_t shared_bytes; /*  60: total shared memory of the block: dynamic_offset + dynamic bytes */
    void *shared; /*  64: the block's shared memory, one allocation, at least 128-byte aligned: static first, dynamic at soft_code.dynamic_offset */
    const void *params;      /*  72: packed kernel parameters, 16-byte aligned */
    void *local;             /*  80: local memory of lane 0, 16-byte aligned */
    uint64_t local_stride;   /*  88: bytes from one lane's local memory to the next, a multiple of 16, >= soft_code.local_bytes */
    uint64_t grid_id;        /*  96: %gridid */
    uint64_t grid_workspace; /* 104: %envreg1:%envreg2: zeroed memory of a cooperative launch (at least 64 bytes), or 0 */
    uint32_t dynamic_shared; /* 112: %dynamic_smem_size, bytes */
    uint32_t exited;         /* 116: lanes that ended inside a device function */
    void *engine;            /* 120: the engine's own; compiled code never looks at it */
    /* Only of code with soft_code.loops: runs all warps of that many blocks, this one and those that follow in the grid, x fastest, and meanwhile keeps
     * ctaid, warp, first_thread, lanes and local what they are for the warp that runs (exited is 0 at its start). It asks *stop between two blocks, and
     * returns early when that is not 0. blocks == 0: this one warp. */
    uint32_t blocks;           /* 128 */
    const volatile void *stop; /* 136: a byte */
    void *window;              /* 144: the shared memory of the cluster's first block; `shared` where the cluster is one block */
    uint32_t cluster[3];       /* 152: the cluster's shape, blocks */
    uint32_t rank;             /* 164: this block's number in its cluster, x fastest: `shared` is `window + rank * SOFT_RANK_BYTES` */
    uint32_t explicit_cluster; /* 168: 1 if the launch named a cluster, perhaps of one block */
};

/* Every lane mask below has bit i for lane i of the calling warp. */

/* bar.sync / barrier.sync: returns when `threads` threads of the block have arrived at barrier `id` (0..15). threads == 0 means all of the block's
 * threads that have not exited; otherwise a multiple of 32. A warp arrives as a whole: it counts 32, whichever of its lanes are in `lanes`
 * (a partial last warp too). Orders all earlier memory accesses of the block before all later ones. */
void soft_barrier_sync(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes);

/* bar.arrive / barrier.arrive: counts as above, and returns at once. */
void soft_barrier_arrive(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes);

/* bar.red: as soft_barrier_sync, and reduces the predicate over all arriving lanes. `set` has the bits of the lanes whose predicate is true (a subset of
 * `lanes`). Returns 0 or 1 for AND and OR, the number of true lanes for POPC. */
enum { SOFT_RED_AND = 0, SOFT_RED_OR = 1, SOFT_RED_POPC = 2 };
uint32_t soft_barrier_red(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t lanes, uint32_t op, uint32_t set);

/* wgmma.fence and wgmma.wait_group: returns when all four warps of the warp's group (warps 4 i to 4 i + 3 of the block) have come. */
void soft_warpgroup_sync(struct soft_warp *w);

/* barrier.cluster: a warp arrives as a whole, at its first arrival since it last waited, and waits for the warps of all of the cluster's blocks that have
 * not exited. Orders as soft_barrier_sync. */
void soft_cluster_arrive(struct soft_warp *w);
void soft_cluster_wait(struct soft_warp *w);

/* Called now and then by loops that wait for memory to change (volatile, acquire, atomic loads): lets other warps of the block, then other threads, run.
 * A kernel that may call this or soft_nanosleep has uses_barrier set. */
void soft_yield(struct soft_warp *w);

/* Called now and then by loops that stream through memory, in kernels with barriers: lets the block's next warp that can go on have its turn, so that
 * warps that read side by side do so at about the same time. */
void soft_turn(struct soft_warp *w);

/* Called before each access to memory that others see, by code that was compiled for seeded schedules (schedule.h): other warps may run first. */
void soft_preempt(struct soft_warp *w);

/* nanosleep.u32: as soft_yield, then sleeps at most `ns` nanoseconds (the engine may cut it to what is useful). */
void soft_nanosleep(struct soft_warp *w, uint32_t ns);

/* As soft_yield, for a loop in which some lanes of the warp wait while others are elsewhere; `turns`: how often in a row it has called. Not 0 when the
 * lanes have waited for so long that they should leave the code for 32 of them: the others may be what they wait for. */
uint32_t soft_spin_wait(struct soft_warp *w, uint32_t turns);

/* The lane fallback. Each call under way makes a frame, innermost first, of so many bytes (of which the first 8 are the engine's: the frame of the call
 * inside this one) and returns to its caller, until the kernel calls soft_fall_back: it calls `entry` for each lane, with a warp of that lane alone and
 * the kernel's frame, and returns when all lanes have ended. */
void *soft_fallback_frame(struct soft_warp *w, uint64_t bytes);
void soft_fall_back(struct soft_warp *w, void (*entry)(struct soft_warp *, void *frame));

/* Where a lane is that runs by itself. The instructions of a module that others notice (accesses to memory that is not the thread's own, calls,
 * exchanges, barriers) are its points, numbered from 1 in the order of the control flow graph; loops are numbered too. soft_lane_point, before each of
 * them, returns when it is the lane's turn: lanes at the same point do it before any of them does more, and the lanes behind catch up first. `loop`: the
 * innermost loop around it, or UINT32_MAX; `acts`: more than a look, or an atomic operation that may only look. soft_lane_spin_round is called at the end of
 * each round of a loop that waits for memory to change, soft_lane_enter and soft_lane_leave at a function's beginning and end. */
struct soft_lane_loop {
    uint32_t first, last; /* points */
    uint32_t outer;       /* the loop around it, or UINT32_MAX */
};
void soft_lane_begin(struct soft_warp *w, const struct soft_lane_loop *loops);
void soft_lane_point(struct soft_warp *w, uint32_t point, uint32_t loop, uint32_t acts);
void soft_lane_spin_round(struct soft_warp *w, uint32_t loop);
void soft_lane_enter(struct soft_warp *w);
void soft_lane_leave(struct soft_warp *w);

/* What lanes do together that run by themselves. An exchange: each lane writes its operands to area[operand * 32 + lane], soft_lane_exchange_begin waits for those of the
 * `named` lanes that have not ended and returns who has come, each does all of the instruction, soft_lane_exchange_end waits until all have done it. Only
 * equal keys meet. */
uint64_t *soft_lane_exchange_area(struct soft_warp *w);
uint32_t soft_lane_exchange_begin(struct soft_warp *w, uint32_t named, uint32_t key);
void soft_lane_exchange_end(struct soft_warp *w, uint32_t group);
/* activemask, at a point of its own: the lanes at this point together with the calling one, of which each says whether its guard lets it execute. */
uint32_t soft_lane_active(struct soft_warp *w, uint32_t executes);
/* The block's barriers, or the cluster's: one of SOFT_RED_*, or one of these. */
enum { SOFT_LANE_SYNC = 3, SOFT_LANE_ARRIVE = 4, SOFT_LANE_CLUSTER_ARRIVE = 5, SOFT_LANE_CLUSTER_WAIT = 6, SOFT_LANE_WARPGROUP = 7 };
uint32_t soft_lane_barrier(struct soft_warp *w, uint32_t id, uint32_t threads, uint32_t op, uint32_t set);

/* %globaltimer, nanoseconds since the epoch. %clock and %clock64 are inlined (the host's cycle counter). */
uint64_t soft_globaltimer(struct soft_warp *w);

/* The device's vprintf for one lane: `args` is CUDA's packed argument buffer (every argument at its natural alignment, float promoted to double,
 * strings are pointers). Returns the number of arguments, or -1. Output is buffered and printed when the grid ends or the buffer is full. */
int32_t soft_vprintf(struct soft_warp *w, uint32_t lane, const char *format, const void *args);

/* The device heap. malloc returns 16-byte aligned memory or NULL; memory lives until freed, across launches. */
void *soft_malloc(struct soft_warp *w, uint32_t lane, uint64_t size);
void soft_free(struct soft_warp *w, uint32_t lane, void *p);

/* What libcudadevrt needs to launch kernels (children.h), for one lane: a buffer for a kernel's parameters, or NULL; the launch itself, which returns an error of the
 * device runtime; the thread's last error, and setting it. */
void *soft_child_buffer(struct soft_warp *w, uint32_t lane, uint64_t kernel);
uint32_t soft_child_launch(struct soft_warp *w, uint32_t lane, void *params, uint64_t stream);
/* cudaGraphSetConditional: the handle of a graph's condition is the address of its word. */
void soft_set_condition(struct soft_warp *w, uint32_t lane, uint64_t handle, uint32_t value);
uint32_t soft_last_error(struct soft_warp *w, uint32_t lane, uint32_t error, uint32_t set);

/* __assertfail for one lane: prints CUDA's message and ends the grid with CUDA_ERROR_ASSERT. Does not return. */
_Noreturn void soft_assert_fail(struct soft_warp *w, uint32_t lane, const char *message, const char *file, uint32_t line, const char *function);

/* trap, or a condition that a GPU reports as a launch failure. Ends the grid with the CUDA error that fits. Does not return. */
enum {
    SOFT_TRAP = 0,           /* trap: CUDA_ERROR_LAUNCH_FAILED (or ILLEGAL_INSTRUCTION as the engine sees fit) */
    SOFT_TRAP_STACK = 1,     /* local stack exhausted by recursion: CUDA_ERROR_HARDWARE_STACK_ERROR */
    SOFT_TRAP_BAD_PC = 2,    /* call through a pointer that is no function of the module: CUDA_ERROR_INVALID_PC */
    SOFT_TRAP_MISALIGNED = 3 /* CUDA_ERROR_MISALIGNED_ADDRESS */
};
_Noreturn void soft_trap(struct soft_warp *w, uint32_t lanes, uint32_t kind);

/* An access of `size` bytes to an address that is no multiple of it: the first of the lanes', in the terms of its space. Does not return. */
enum { SOFT_SPACE_GENERIC, SOFT_SPACE_SHARED, SOFT_SPACE_LOCAL };
_Noreturn void soft_misaligned(struct soft_warp *w, uint32_t lanes, uint64_t address, uint32_t size, uint32_t space);

/* ---- asynchronous copies: each call is for one lane ---- */

enum {
    SOFT_MBARRIER_INIT,
    SOFT_MBARRIER_INVAL,
    SOFT_MBARRIER_ARRIVE,  /* adds `tx` to the bytes awaited, then `count` arrivals */
    SOFT_MBARRIER_DROP,    /* the same, and the next phases want `count` arrivals less */
    SOFT_MBARRIER_TX,      /* expects `tx` more bytes */
    SOFT_MBARRIER_COMPLETE /* `tx` bytes came */
};
/* Changes the mbarrier at `address`; returns what it was. */
uint64_t soft_mbarrier(struct soft_warp *w, uint32_t lane, uint32_t op, void *address, uint64_t count, int64_t tx);

/* Whether the phase of `state` (an earlier result, or with by_parity its parity) is over. `patient`: lets others run before it says no; kernels that may
 * ask so have uses_barrier set. */
uint32_t soft_mbarrier_test(struct soft_warp *w, uint32_t lane, void *address, uint64_t state, uint32_t by_parity, uint32_t patient);

/* Copies; `mbarrier` (or NULL) is told of the bytes. `keep`: which of each 16 bytes are written. `ranks`: not to `to` and `mbarrier` but to what lies
 * where they do in those blocks of the cluster, a bit each; 0: no multicast. SOFT_RANKS_PAIRS (cta_group::2): one mbarrier of each pair is told for both. */
#define SOFT_RANKS_PAIRS (1u << 16)
#define SOFT_RANKS 0xffffu
void soft_bulk_copy(struct soft_warp *w, uint32_t lane, void *to, const void *from, uint32_t bytes, void *mbarrier, uint32_t keep, uint32_t ranks);
void soft_bulk_zero(struct soft_warp *w, uint32_t lane, void *to, uint64_t bytes);

enum { SOFT_REDUCE_ADD, SOFT_REDUCE_MIN, SOFT_REDUCE_MAX, SOFT_REDUCE_AND, SOFT_REDUCE_OR, SOFT_REDUCE_XOR, SOFT_REDUCE_INC, SOFT_REDUCE_DEC };
enum { SOFT_REDUCE_F16, SOFT_REDUCE_BF16, SOFT_REDUCE_F32, SOFT_REDUCE_U32, SOFT_REDUCE_S32, SOFT_REDUCE_F64, SOFT_REDUCE_U64, SOFT_REDUCE_S64 };
static inline uint32_t soft_reduce_size(uint32_t type) { return type <= SOFT_REDUCE_BF16 ? 2 : type <= SOFT_REDUCE_S32 ? 4 : 8; }
/* Combines arrays of elements into `to`, each atomically. */
void soft_bulk_reduce(struct soft_warp *w, uint32_t lane, void *to, const void *from, uint32_t bytes, void *mbarrier, uint32_t op, uint32_t type);

/* The same for one element, the low `size` bytes of `value`. */
void soft_st_async(struct soft_warp *w, uint32_t lane, void *to, uint64_t value, uint32_t size, void *mbarrier);
void soft_red_async(struct soft_warp *w, uint32_t lane, void *to, uint64_t value, uint32_t size, void *mbarrier, uint32_t op, uint32_t type);

/* clusterlaunchcontrol.try_cancel: writes the answer "no", 16 bytes; `all`: to every block of the cluster. */
void soft_cancel_answer(struct soft_warp *w, uint32_t lane, void *to, void *mbarrier, uint32_t all);

/* Boxes of a tensor (tensor_map.h); `shared` is in the shared memory of the block or, for a load, of another one of its cluster; `ranks` as above. */
enum { SOFT_TENSOR_LOAD, SOFT_TENSOR_STORE, SOFT_TENSOR_REDUCE };
struct soft_tensor_map;
void soft_tensor_copy(struct soft_warp *w, uint32_t lane, const struct soft_tensor_map *map, char *shared, uint32_t how, uint32_t rank,
                      void *mbarrier, int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4, uint32_t ranks);
/* Columns of pixels (cp.async.bulk.tensor with .im2col): of `pixels` pixels from x1, x2, x3 on the channels from x0 on, all at the offsets o0, o1, o2 from there. */
void soft_tensor_im2col(struct soft_warp *w, uint32_t lane, const struct soft_tensor_map *map, char *shared, uint32_t how, uint32_t rank,
                        void *mbarrier, int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4, uint32_t o0, uint32_t o1, uint32_t o2,
                        uint32_t ranks);
enum {
    SOFT_TENSOR_ADDRESS,
    SOFT_TENSOR_RANK,
    SOFT_TENSOR_BOX,
    SOFT_TENSOR_DIM,
    SOFT_TENSOR_STRIDE,
    SOFT_TENSOR_STEP,
    SOFT_TENSOR_TYPE,
    SOFT_TENSOR_INTERLEAVE,
    SOFT_TENSOR_SWIZZLE,
    SOFT_TENSOR_FILL
};
void soft_tensor_replace(struct soft_warp *w, uint32_t lane, struct soft_tensor_map *map, uint32_t field, uint32_t which, uint64_t value);

/* wgmma: a matrix in the block's shared memory, as a matrix descriptor has it, `pieces` times 16 bytes of each row: 8 * blocks of its rows (of its columns, where it
 * is the right factor), from number `first` on. For each eight of them `out` gets as many times 128 bytes: the first piece of the eight rows, one row after the
 * other, then the second. `transposed`: the elements, of 16 bits, of a column lie side by side. */
void soft_matrix_load(struct soft_warp *w, uint64_t descriptor, uint32_t first, uint32_t blocks, uint32_t pieces, uint32_t transposed, void *out);

/* ---- tensor memory (tcgen05) ---- */

/* A block has 128 lanes of 512 columns of 32 bits; an address has the lane in its high and the column in its low 16 bits. Columns are allocated in units of 32.
 * `lanes`: who carries it out; where lanes run by themselves the first of them does. soft_tensor_memory_alloc writes the address to `to`, and waits until so many
 * columns are free (kernels that call it have uses_barrier set); after soft_tensor_memory_relinquish nobody may take any more. */
#define SOFT_TENSOR_LANES 128u
#define SOFT_TENSOR_COLUMNS 512u
void soft_tensor_memory_alloc(struct soft_warp *w, uint32_t lanes, void *to, uint32_t columns);
void soft_tensor_memory_dealloc(struct soft_warp *w, uint32_t lanes, uint32_t address, uint32_t columns);
void soft_tensor_memory_relinquish(struct soft_warp *w);

/* tcgen05.ld and .st: so many registers of 32 lanes each. `packed`: a register has the low halves of two columns. `half`: of SOFT_TENSOR_16X32X2, the columns between the
 * two halves of the warp. */
enum { SOFT_TENSOR_32X32, SOFT_TENSOR_16X64, SOFT_TENSOR_16X128, SOFT_TENSOR_16X256, SOFT_TENSOR_16X32X2 };
void soft_tensor_memory_load(struct soft_warp *w, uint32_t address, uint32_t shape, uint32_t registers, uint32_t packed, uint32_t half,
                             uint32_t *out);
void soft_tensor_memory_store(struct soft_warp *w, uint32_t address, uint32_t shape, uint32_t registers, uint32_t packed, uint32_t half,
                              const uint32_t *values);

/* tcgen05.cp for one lane: rows of a matrix in shared memory (a matrix descriptor), once, or to two or four groups of lanes. `pair`: both blocks of the pair do it, each
 * from its own shared memory to its own tensor memory. */
enum { SOFT_TENSOR_128X256, SOFT_TENSOR_4X256, SOFT_TENSOR_128X128, SOFT_TENSOR_64X128_02_13, SOFT_TENSOR_64X128_01_23, SOFT_TENSOR_32X128 };
void soft_tensor_memory_copy(struct soft_warp *w, uint32_t lane, uint32_t address, uint64_t descriptor, uint32_t shape, uint32_t pair);

/* tcgen05.mma for one lane: D = A B + D, D in tensor memory from address d on. how: the kind, and bits. a: a matrix descriptor, or an address in tensor memory; b: a descriptor; instruction: the
 * instruction descriptor; metadata: where those of a sparse A lie, scale_a and scale_b: the scales; enable: whether D is added, which is then divided by
 * two to the power of the number at SOFT_PRODUCT_SCALE_SHIFT; disabled: lanes of D that stay as they are, 128 bits of this block and 128 of the other one of the pair. */
enum {
    SOFT_PRODUCT_F16,
    SOFT_PRODUCT_TF32,
    SOFT_PRODUCT_F8F6F4,
    SOFT_PRODUCT_I8,
    SOFT_PRODUCT_MXF8F6F4,
    SOFT_PRODUCT_MXF4,
    SOFT_PRODUCT_MXF4NVF4,
    SOFT_PRODUCT_KIND = 15,
    SOFT_PRODUCT_PAIR = 16,      /* cta_group::2: both blocks of the pair make it, with half of A's and B's rows each */
    SOFT_PRODUCT_LEFT_HERE = 32, /* A is in tensor memory */
    SOFT_PRODUCT_SPARSE = 64,
    SOFT_PRODUCT_STATIONARY = 128,  /* .ws: other lanes have the rows */
    SOFT_PRODUCT_VECTORS_SHIFT = 8, /* scales of a row: 1, 2 or 4 */
    SOFT_PRODUCT_SCALE_SHIFT = 12
};
void soft_tensor_product(struct soft_warp *w, uint32_t lane, uint32_t how, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                         uint32_t metadata, uint32_t scale_a, uint32_t scale_b, uint32_t enable, uint64_t disabled0, uint64_t disabled1,
                         uint64_t disabled2, uint64_t disabled3);

/* tcgen05.commit: one arrival at the mbarrier; `ranks`: at those that lie where it does in these blocks of the cluster, a bit each; 0: at itself. */
void soft_tensor_commit(struct soft_warp *w, uint32_t lane, void *mbarrier, uint32_t ranks);

/* Textures and surfaces (texture.h) for the lanes of a warp. handles: of 32 lanes. rows: values of 32 lanes each, bits of u32, s32 or f32: the layer, then x, y, z; then
 * the level of detail, or three rows of d/dx and three of d/dy. what: the geometry (1, 2 or 3 dimensions, or a cube: 0 to 3), and bits; what of a texture from bit
 * SOFT_TEX_GATHER_SHIFT on: 1 + the component that tld4 gathers. out of soft_tex: four rows of bits. Of surfaces x counts bytes, an element has n parts of so many bytes, and
 * values have a row of 64 bits for each part. */
enum {
    SOFT_TEX_LAYERED = 4,
    SOFT_TEX_INTEGERS = 8, /* x, y, z are numbers of texels */
    SOFT_TEX_LEVEL = 16,
    SOFT_TEX_GRADIENTS = 32,
    SOFT_SURFACE_CLAMP = 64, /* elsewhere than in the surface: its edge; nothing, and 0 is read; else an error */
    SOFT_SURFACE_ZERO = 128,
    SOFT_TEX_GATHER_SHIFT = 8 /* number of the first bit */
};
enum { SOFT_SURFACE_ADD, SOFT_SURFACE_AND, SOFT_SURFACE_OR, SOFT_SURFACE_MIN, SOFT_SURFACE_MAX, SOFT_SURFACE_MIN_SIGNED, SOFT_SURFACE_MAX_SIGNED };
void soft_tex(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t *out);
void soft_surface_load(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t bytes, uint32_t n,
                       uint64_t *out);
void soft_surface_store(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t bytes, uint32_t n,
                        const uint64_t *values);
void soft_surface_reduce(struct soft_warp *w, uint32_t lanes, const uint64_t *handles, const uint32_t *rows, uint32_t what, uint32_t bytes,
                         uint32_t op, const uint64_t *values);

/* Arithmetic in double with a rounding mode, over the 32 lanes' operands: out[i] = op(a[i], b[i], c[i]). */
enum { SOFT_F64_MUL, SOFT_F64_DIV, SOFT_F64_FMA, SOFT_F64_SQRT, SOFT_F64_ADD };
enum { SOFT_ROUND_NEAREST, SOFT_ROUND_DOWN, SOFT_ROUND_UP, SOFT_ROUND_ZERO };
void soft_f64(uint32_t op, uint32_t mode, uint32_t lanes, const double *a, const double *b, const double *c, double *out);

/* An instruction that only at run time proves to be one the software GPU lacks; `text` names it. CUDA_ERROR_ILLEGAL_INSTRUCTION. Does not return. */
_Noreturn void soft_unsupported(struct soft_warp *w, const char *text);

#endif
