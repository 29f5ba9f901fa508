/* Attributes of a software GPU. */
#include "soft.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct attribute {
    int number; /* CUdevice_attribute */
    int32_t value;
};

/* Everything a driver of version 13.0 knows: attributes 1 to this one. Those not listed below are 0: not supported. */
#define LAST_ATTRIBUTE 147

static const struct attribute attributes[] = {
    {1, SOFT_MAX_THREADS},       /* MAX_THREADS_PER_BLOCK */
    {2, SOFT_MAX_THREADS},       /* MAX_BLOCK_DIM_X */
    {3, SOFT_MAX_THREADS},       /* MAX_BLOCK_DIM_Y */
    {4, SOFT_MAX_BLOCK_Z},       /* MAX_BLOCK_DIM_Z */
    {5, SOFT_MAX_GRID_X},        /* MAX_GRID_DIM_X */
    {6, SOFT_MAX_GRID_YZ},       /* MAX_GRID_DIM_Y */
    {7, SOFT_MAX_GRID_YZ},       /* MAX_GRID_DIM_Z */
    {8, SOFT_SHARED_STATIC},     /* MAX_SHARED_MEMORY_PER_BLOCK */
    {9, 64 << 10},               /* TOTAL_CONSTANT_MEMORY */
    {10, 32},                    /* WARP_SIZE */
    {11, 2147483647},            /* MAX_PITCH */
    {12, SOFT_REGISTERS},        /* MAX_REGISTERS_PER_BLOCK */
    {13, 1500000},               /* CLOCK_RATE, kHz */
    {14, 512},                   /* TEXTURE_ALIGNMENT */
    {15, 1},                     /* GPU_OVERLAP */
    {16, SOFT_MULTIPROCESSORS},  /* MULTIPROCESSOR_COUNT */
    {19, 1},                     /* CAN_MAP_HOST_MEMORY: the client keeps it */
    {21, 131072},                /* MAXIMUM_TEXTURE1D_WIDTH */
    {22, 131072},                /* MAXIMUM_TEXTURE2D_WIDTH */
    {23, 65536},                 /* MAXIMUM_TEXTURE2D_HEIGHT */
    {24, 16384},                 /* MAXIMUM_TEXTURE3D_WIDTH */
    {25, 16384},                 /* MAXIMUM_TEXTURE3D_HEIGHT */
    {26, 16384},                 /* MAXIMUM_TEXTURE3D_DEPTH */
    {27, 32768},                 /* MAXIMUM_TEXTURE2D_LAYERED_WIDTH */
    {28, 32768},                 /* MAXIMUM_TEXTURE2D_LAYERED_HEIGHT */
    {29, 2048},                  /* MAXIMUM_TEXTURE2D_LAYERED_LAYERS */
    {30, 512},                   /* SURFACE_ALIGNMENT */
    {31, 1},                     /* CONCURRENT_KERNELS */
    {36, 2000000},               /* MEMORY_CLOCK_RATE, kHz */
    {37, 256},                   /* GLOBAL_MEMORY_BUS_WIDTH, bits */
    {38, 32 << 20},              /* L2_CACHE_SIZE */
    {39, SOFT_THREADS_PER_SM},   /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 2},                     /* ASYNC_ENGINE_COUNT */
    {41, 1},                     /* UNIFIED_ADDRESSING */
    {42, 32768},                 /* MAXIMUM_TEXTURE1D_LAYERED_WIDTH */
    {43, 2048},                  /* MAXIMUM_TEXTURE1D_LAYERED_LAYERS */
    {45, 32768},                 /* MAXIMUM_TEXTURE2D_GATHER_WIDTH */
    {46, 32768},                 /* MAXIMUM_TEXTURE2D_GATHER_HEIGHT */
    {47, 8192},                  /* MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE */
    {48, 8192},                  /* MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE */
    {49, 32768},                 /* MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE */
    {51, 32},                    /* TEXTURE_PITCH_ALIGNMENT */
    {52, 32768},                 /* MAXIMUM_TEXTURECUBEMAP_WIDTH */
    {53, 32768},                 /* MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH */
    {54, 2046},                  /* MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS */
    {55, 32768},                 /* MAXIMUM_SURFACE1D_WIDTH */
    {56, 131072},                /* MAXIMUM_SURFACE2D_WIDTH */
    {57, 65536},                 /* MAXIMUM_SURFACE2D_HEIGHT */
    {58, 16384},                 /* MAXIMUM_SURFACE3D_WIDTH */
    {59, 16384},                 /* MAXIMUM_SURFACE3D_HEIGHT */
    {60, 16384},                 /* MAXIMUM_SURFACE3D_DEPTH */
    {61, 32768},                 /* MAXIMUM_SURFACE1D_LAYERED_WIDTH */
    {62, 2048},                  /* MAXIMUM_SURFACE1D_LAYERED_LAYERS */
    {63, 32768},                 /* MAXIMUM_SURFACE2D_LAYERED_WIDTH */
    {64, 32768},                 /* MAXIMUM_SURFACE2D_LAYERED_HEIGHT */
    {65, 2048},                  /* MAXIMUM_SURFACE2D_LAYERED_LAYERS */
    {66, 32768},                 /* MAXIMUM_SURFACECUBEMAP_WIDTH */
    {67, 32768},                 /* MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH */
    {68, 2046},                  /* MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS */
    {69, 268435456},             /* MAXIMUM_TEXTURE1D_LINEAR_WIDTH */
    {70, 131072},                /* MAXIMUM_TEXTURE2D_LINEAR_WIDTH */
    {71, 65000},                 /* MAXIMUM_TEXTURE2D_LINEAR_HEIGHT */
    {72, 2097120},               /* MAXIMUM_TEXTURE2D_LINEAR_PITCH */
    {73, 32768},                 /* MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH */
    {74, 32768},                 /* MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT */
    {77, 32768},                 /* MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH */
    {78, 1},                     /* STREAM_PRIORITIES_SUPPORTED: accepted; all run alike */
    {79, 1},                     /* GLOBAL_L1_CACHE_SUPPORTED */
    {80, 1},                     /* LOCAL_L1_CACHE_SUPPORTED */
    {81, SOFT_SHARED_PER_SM},    /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {82, SOFT_REGISTERS},        /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    {83, 1},                     /* MANAGED_MEMORY: the client keeps it */
    {87, 2},                     /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
    {90, 1},                     /* COMPUTE_PREEMPTION_SUPPORTED */
    {95, 1},                     /* COOPERATIVE_LAUNCH */
    {97, SOFT_SHARED_OPTIN},     /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {98, 1},                     /* CAN_FLUSH_REMOTE_WRITES: none are ever outstanding */
    {102, 1},                    /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},                    /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: the client makes them */
    {106, SOFT_BLOCKS_PER_SM},   /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    {111, SOFT_SHARED_RESERVED}, /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    {115, 1},                    /* MEMORY_POOLS_SUPPORTED */
    {119, 1},                    /* MEMPOOL_SUPPORTED_HANDLE_TYPES: POSIX file descriptors */
    {120, 1},                    /* CLUSTER_LAUNCH */
    {122, 1},                    /* CAN_USE_64_BIT_STREAM_MEM_OPS */
    {123, 1},                    /* CAN_USE_STREAM_WAIT_VALUE_NOR */
    {125, 1},                    /* IPC_EVENT_SUPPORTED */
    {126, 1},                    /* MEM_SYNC_DOMAIN_COUNT */
    {131, -1},                   /* NUMA_ID */
    {134, -1},                   /* HOST_NUMA_ID */
};

enum { MULTI_GPU_BOARD_GROUP_ID = 85, PCI_BUS_ID = 33, COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76 };

static uint64_t hash(uint64_t seed, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) seed = (seed ^ (uint8_t)text[i]) * 0x100000001b3ull;
    return seed;
}

/* A UUID that is the same for a pool's device number in every session on this host, and another one on other hosts. */
static void make_uuid(uint32_t ordinal, uint8_t uuid[16]) {
    char host[256] = "gpuvirt software GPU ";
    size_t used = strlen(host);
    int fd = open("/etc/machine-id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, host + used, 64) : 0;
    if (fd >= 0) close(fd);
    if (n <= 0) gethostname(host + used, sizeof host - used - 1);
    used += n > 0 ? (size_t)n : strlen(host + used);
    used += (size_t)snprintf(host + used, sizeof host - used, " %u", ordinal);
    uint64_t halves[2] = {hash(0xcbf29ce484222325ull, host, used), hash(0x84222325cbf29ce4ull, host, used)};
    memcpy(uuid, halves, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x80); /* UUID version 8, vendor-specific */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

int soft_device_info(struct gv_backend *b, uint32_t device, struct gv_device_info *out) {
    if (device >= b->n_devices) return CUDA_ERROR_INVALID_DEVICE;
    const struct soft_device *d = &b->devices[device];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "gpuvirt software GPU");
    make_uuid(d->share.ordinal, out->uuid);
    out->total_memory = d->share.limit;
    out->chunk = SOFT_CHUNK;
    out->flags = GV_DEVICE_WANTS_PTX | GV_DEVICE_SOFTWARE;
    for (int i = 1; i <= LAST_ATTRIBUTE; i++) out->has_attribute[i] = 1;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) out->attributes[attributes[i].number] = attributes[i].value;
    out->attributes[PCI_BUS_ID] = (int32_t)d->share.ordinal + 1;
    out->attributes[MULTI_GPU_BOARD_GROUP_ID] = (int32_t)d->share.ordinal;
    out->attributes[COMPUTE_CAPABILITY_MAJOR] = (int32_t)(b->capability / 10);
    out->attributes[COMPUTE_CAPABILITY_MINOR] = (int32_t)(b->capability % 10);
    return 0;
}
