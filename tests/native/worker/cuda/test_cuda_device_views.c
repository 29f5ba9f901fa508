/* Device memory for RDMA devices by the cuda backend, on a driver of the tests' own: test_cuda_device_views DRIVER [case...]. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "backend_fixture.h"

#define MIB (1ull << 20)

static uint64_t address;

static int view(uint64_t at, uint64_t size, int *fd, uint64_t *offset) { return ops->device_view(backend, address + at, size, fd, offset); }

/* False: there are no views, as gates are host functions of the driver's, which must not call it. */
static bool open_with(struct fake_rdma device) {
    int fd;
    uint64_t offset;
    fake_rdma = device;
    fake_rdma.asked = true;
    begin_with_rdma(0);
    CHECK(ops->memory_alloc(context, 4 * MIB, &address) == 0);
    if (fake_driver_words) return true;
    CHECK(view(0, MIB, &fd, &offset) != 0);
    end();
    return false;
}

static void by_dma_buf(void) {
    int fd;
    uint64_t offset;
    if (!open_with((struct fake_rdma){.dma_buf = 1, .vmm = 1, .ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER})) return;
    CHECK(fake_virtual.prop.allocFlags.gpuDirectRDMACapable == 1);
    CHECK(view(5000, 70000, &fd, &offset) == 0 && fd >= 0 && offset == 5000 - 4096);
    CHECK(fake_rdma.address == address + 4096 && fake_rdma.size == 73728); /* whole pages */
    close(fd);
    ops->device_view_end(backend, address + 5000, 70000, true);
    CHECK(fake_rdma.flushes == 0);
    CHECK(view(0, 4 * MIB + 1, &fd, &offset) != 0); /* more than there is */
    CHECK(ops->device_view(backend, 4096, 4096, &fd, &offset) != 0);
    end();
}

/* Where the order of writes is not kept whoever ends a view that was written flushes them. */
static void flushed(void) {
    int fd;
    uint64_t offset;
    if (!open_with((struct fake_rdma){.dma_buf = 1, .flush = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST})) return;
    CHECK(fake_virtual.prop.allocFlags.gpuDirectRDMACapable == 0); /* this one cannot say so */
    for (int written = 0; written < 2; written++) {
        CHECK(view(0, MIB, &fd, &offset) == 0);
        close(fd);
        ops->device_view_end(backend, address, MIB, written);
        CHECK(fake_rdma.flushes == written);
    }
    end();
}

static void by_address(void) {
    int fd;
    uint64_t offset;
    for (int refuses = 0; refuses < 2; refuses++) {
        if (!open_with((struct fake_rdma){.dma_buf = refuses, .refuses = refuses, .peer = 1, .ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER}))
            return;
        CHECK(view(100, MIB, &fd, &offset) == 0 && fd == -1 && offset == 0);
        ops->device_view_end(backend, address + 100, MIB, false);
        end();
    }
}

static void not_there(void) {
    static const struct fake_rdma without[] = {
        {.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER},                                /* no way at all */
        {.dma_buf = 1},                                                                        /* what is written might not be seen */
        {.dma_buf = 1, .refuses = true, .ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER}, /* the driver makes none */
    };
    int fd;
    uint64_t offset;
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        if (!open_with(without[i])) return;
        CHECK(view(0, MIB, &fd, &offset) != 0 && fake_rdma.flushes == 0);
        end();
    }
    fake_rdma = (struct fake_rdma){.asked = true, .dma_buf = 1, .vmm = 1, .ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER};
    begin(0); /* a link that has no such devices */
    CHECK(ops->memory_alloc(context, MIB, &address) == 0 && fake_virtual.prop.allocFlags.gpuDirectRDMACapable == 0);
    CHECK(view(0, MIB, &fd, &offset) != 0);
    end();
}

static void moved(void) {
    int fd, streams, events;
    uint64_t offset, values[2] = {1, 2}, back[2] = {0};
    if (!open_with((struct fake_rdma){.dma_buf = 1, .ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER})) return;
    streams = fake_streams, events = fake_events;
    CHECK(view(4096, MIB, &fd, &offset) == 0);
    close(fd);
    CHECK(ops->device_move(backend, address + 4096 + 100, values, sizeof values, true) == 0);
    CHECK(ops->device_move(backend, address + 4096 + 100, back, sizeof back, false) == 0 && back[0] == 1 && back[1] == 2);
    CHECK(ops->device_move(backend, address, values, sizeof values, true) != 0); /* before it */
    CHECK(ops->device_move(backend, address + 4096 + MIB - 8, values, sizeof values, true) != 0);
    fake_virtual.fail = 700, fake_virtual.fails = FAKE_COPY;
    CHECK(ops->device_move(backend, address + 4096, values, sizeof values, true) == 700);
    ops->device_view_end(backend, address + 4096, MIB, false);
    CHECK(fake_streams == streams && fake_events == events);
    CHECK(ops->device_move(backend, address + 4096, values, sizeof values, true) != 0); /* it is over */
    end();
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"by_dma_buf", by_dma_buf}, {"flushed", flushed}, {"by_address", by_address}, {"not_there", not_there}, {"moved", moved},
    };
    if (argc < 2) return 2;
    driver = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 100);
}
