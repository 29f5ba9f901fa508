// Host memory that kernels use: allocated for it, mapped when a kernel is given its address, and looked at by both sides while a kernel runs. Prints "right".
#include "check.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

static bool refused(cudaError_t error, cudaError_t as) {
    cudaGetLastError();
    if (error != as) std::printf("%s instead of %s\n", cudaGetErrorName(error), cudaGetErrorName(as));
    return error == as;
}

__global__ void add(int *v, size_t n, int what) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) v[i] += what;
}

static void synchronize() { CHECK(cudaDeviceSynchronize()); }

static int *host(size_t n, unsigned flags) {
    int *p;
    CHECK(cudaHostAlloc(&p, n * 4, flags));
    return p;
}

// Written and read on both sides in turn; copies take it for host memory.
static void in_turn(unsigned flags) {
    for (size_t n : {size_t(1), size_t(5000), size_t(300000)}) {
        int *v = host(n, flags), *seen = nullptr, *d;
        std::memset(v, 0, n * 4);
        if (flags & cudaHostAllocMapped) {
            CHECK(cudaHostGetDevicePointer(&seen, v, 0));
            EXPECT(seen);
        } else {
            seen = v; // unified addresses: the pointer itself
        }
        for (int round = 1; round <= 3; round++) {
            add<<<8, 128>>>(seen, n, 1);
            synchronize();
            for (size_t i = 0; i < n; i++) EXPECT(v[i] == 2 * round - 1);
            for (size_t i = 0; i < n; i++) v[i]++;
        }
        CHECK(cudaMalloc(&d, n * 4));
        CHECK(cudaMemcpy(d, v, n * 4, cudaMemcpyHostToDevice));
        add<<<8, 128>>>(d, n, 10);
        CHECK(cudaMemcpy(v, d, n * 4, cudaMemcpyDeviceToHost));
        EXPECT(v[0] == 16 && v[n - 1] == 16);
        CHECK(cudaMemcpyAsync(v, d, n * 4, cudaMemcpyDefault, 0));
        add<<<8, 128>>>(seen, n, 1);
        synchronize();
        EXPECT(v[0] == 17 && v[n - 1] == 17);
        cudaPointerAttributes a;
        CHECK(cudaPointerGetAttributes(&a, v));
        EXPECT(a.type == cudaMemoryTypeHost && a.hostPointer == v && a.devicePointer == seen);
        unsigned told;
        CHECK(cudaHostGetFlags(&told, v));
        EXPECT(told & cudaHostAllocMapped); // all memory is
        EXPECT(refused(cudaFree(v), cudaErrorInvalidValue));
        CHECK(cudaFree(d));
        CHECK(cudaFreeHost(v));
    }
}
static void asked_for() { in_turn(cudaHostAllocMapped); }
static void by_a_parameter() { in_turn(cudaHostAllocDefault); }

__global__ void hold(volatile int *flag, int *done) {
    while (!*flag) {
    }
    *done = *flag;
}

static bool only_allocated; // what is allocated for it

// A kernel waits for a host write.
static void released() {
    for (unsigned flags : {cudaHostAllocMapped, cudaHostAllocPortable}) {
        if (only_allocated && flags == cudaHostAllocPortable) continue;
        int *flag = host(16, flags), *done;
        CHECK(cudaMalloc(&done, 4));
        for (int round = 1; round <= 5; round++) {
            *flag = 0;
            hold<<<1, 1>>>(flag, done);
            usleep(2000);
            EXPECT(refused(cudaStreamQuery(0), cudaErrorNotReady));
            *(volatile int *)flag = round;
            synchronize();
            int seen;
            CHECK(cudaMemcpy(&seen, done, 4, cudaMemcpyDeviceToHost));
            EXPECT(seen == round);
        }
        CHECK(cudaFree(done));
        CHECK(cudaFreeHost(flag));
    }
}

struct queue {
    volatile unsigned head, tail;
    int padding[14];
    volatile int from_host[64];
    volatile int to_host[64];
};
__global__ void serve(queue *q, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        while (q->head == i) {
        }
        q->to_host[i % 64] = 3 * q->from_host[i % 64];
        __threadfence_system();
        q->tail = i + 1;
    }
}

// A kernel that serves requests while it runs: both sides write to one page, data before its number.
static void served() {
    const unsigned n = 40;
    queue *q;
    CHECK(cudaHostAlloc(&q, sizeof *q, cudaHostAllocMapped));
    std::memset((void *)q, 0, sizeof *q);
    serve<<<1, 1>>>(q, n);
    for (unsigned i = 0; i < n; i++) {
        q->from_host[i % 64] = (int)i + 5;
        std::atomic_thread_fence(std::memory_order_seq_cst);
        q->head = i + 1;
        while (q->tail != i + 1) usleep(10);
        EXPECT(q->to_host[i % 64] == 3 * ((int)i + 5));
    }
    synchronize();
    EXPECT(q->tail == n && q->head == n);
    add<<<1, 1>>>((int *)q, 1, 1); // and afterwards it is memory like any other
    synchronize();
    EXPECT(q->head == n + 1 && q->tail == n);
    CHECK(cudaFreeHost(q));
}

__global__ void take(const int *from, int *to) { *to = *from; }
__global__ void take_time(long long cycles) {
    for (long long begun = clock64(); clock64() - begun < cycles;) {
    }
}

// A thread touches the memory, all the time or when a kernel is being launched, and other work is under way or not: the kernel gets what was written before it was launched, and who wrote
// it sees it meanwhile.
static void beside_launches(bool all_the_time) {
    int *v = host(2048, cudaHostAllocMapped), *other = host(1024, cudaHostAllocMapped), *seen, *got;
    CHECK(cudaHostGetDevicePointer(&seen, v, 0));
    CHECK(cudaMalloc(&got, 4));
    std::memset(v, 0, 8192);
    std::memset(other, 0, 4096);
    cudaStream_t s, t;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    std::atomic<int> launching{0}, wrong{0};
    std::atomic<bool> over{false};
    std::thread toucher([&] {
        volatile int *page = v + 500, *next_page = v + 1500, *apart = other + 500;
        for (int last = 0; !over; *apart = *apart + 1) {
            int now = launching;
            if (!all_the_time && now == last) continue;
            for (int i = 0; !all_the_time && i < now % 50 * 200; i++) launching.load();
            if (*page != 0 || *next_page != last) wrong++;
            *next_page = last = now;
        }
    });
    int reverted = 0, missed = 0;
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5); // over a slow link fewer rounds
    for (int round = 1; round <= 200 && std::chrono::steady_clock::now() < end; round++) {
        if (round % 6) {
            synchronize();
            if (round % 6 > 1) usleep(1000); // nothing is under way, and the memory is not mirrored any more
        } else {
            take_time<<<1, 1, 0, t>>>(100000);
        }
        v[0] = round;
        launching = round;
        take<<<1, 1, 0, s>>>(seen, got);
        for (int i = 0; i < 300; i++)
            if (*(volatile int *)v != round) reverted++;
        int what;
        CHECK(cudaMemcpyAsync(&what, got, 4, cudaMemcpyDeviceToHost, s));
        CHECK(cudaStreamSynchronize(s));
        if (what != round) missed++;
    }
    over = true;
    toucher.join();
    if (wrong || reverted || missed) std::printf("%d wrong, %d reverted, %d missed\n", wrong.load(), reverted, missed);
    EXPECT(wrong == 0 && reverted == 0 && missed == 0);
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaStreamDestroy(t));
    CHECK(cudaFree(got));
    CHECK(cudaFreeHost(v));
    CHECK(cudaFreeHost(other));
}
static void touched_all_the_time() { beside_launches(true); }
static void touched_at_launches() { beside_launches(false); }

static void CUDART_CB set(void *flag) { *(volatile int *)flag = 9; }

// A host function of one stream releases a kernel of another.
static void by_a_host_function() {
    int *flag = host(1, cudaHostAllocMapped), *done;
    cudaStream_t a, b;
    CHECK(cudaMalloc(&done, 4));
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    *flag = 0;
    hold<<<1, 1, 0, a>>>(flag, done);
    CHECK(cudaLaunchHostFunc(b, set, flag));
    CHECK(cudaStreamSynchronize(a));
    int seen;
    CHECK(cudaMemcpy(&seen, done, 4, cudaMemcpyDeviceToHost));
    EXPECT(seen == 9);
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
    CHECK(cudaFree(done));
    CHECK(cudaFreeHost(flag));
}

// Many small ones, pinned memory that is only copied, and what cannot be mapped.
static void the_rest() {
    std::vector<int *> all;
    for (int i = 0; i < 200; i++) {
        all.push_back(host(100, i % 2 ? cudaHostAllocMapped : cudaHostAllocDefault));
        all.back()[0] = i;
    }
    for (int i = 1; i < 200; i += 2) add<<<1, 1>>>(all[i], 1, 1);
    add<<<1, 1>>>(all[0], 1, 1);
    synchronize();
    for (int i = 0; i < 200; i++) EXPECT(all[i][0] == i + (i % 2 || !i));
    for (int *p : all) CHECK(cudaFreeHost(p));
    int *big, *seen, local[16] = {};
    CHECK(cudaMallocHost(&big, 64 << 20));
    CHECK(cudaHostGetDevicePointer(&seen, big, 0));
    big[3] = 5;
    add<<<64, 256>>>(seen, 16 << 20, 1);
    synchronize();
    EXPECT(big[3] == 6 && big[(16 << 20) - 1] == 1);
    EXPECT(refused(cudaHostGetDevicePointer(&seen, local, 0), cudaErrorInvalidValue));
    CHECK(cudaFreeHost(big));
    int can;
    CHECK(cudaDeviceGetAttribute(&can, cudaDevAttrCanMapHostMemory, 0));
    EXPECT(can == 1);
}

// Where the driver places memory and this process has something else, another place is found.
static void elsewhere() {
    std::vector<std::pair<void *, size_t>> ours;
    for (int round = 0; round < 4; round++) {
        const size_t n = 1 << 16;
        int *first = host(n, cudaHostAllocMapped), *seen;
        CHECK(cudaFreeHost(first));
        void *there = mmap(first, n * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (there == MAP_FAILED) continue; // the addresses are kept for this
        std::memset(there, 7, n * 4);
        ours.push_back({there, n * 4});
        int *v = host(n, cudaHostAllocMapped);
        EXPECT(v != first);
        CHECK(cudaHostGetDevicePointer(&seen, v, 0));
        add<<<8, 128>>>(seen, n, 1);
        synchronize();
        for (size_t i = 0; i < n; i++) EXPECT(v[i] == 1);
        CHECK(cudaFreeHost(v));
    }
    for (auto &[memory, size] : ours) {
        for (size_t i = 0; i < size; i++) EXPECT(((char *)memory)[i] == 7);
        munmap(memory, size);
    }
}

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*run)();
    } cases[] = {{"asked_for", asked_for},
                 {"by_a_parameter", by_a_parameter},
                 {"released", released},
                 {"touched_all_the_time", touched_all_the_time},
                 {"touched_at_launches", touched_at_launches},
                 {"served", served},
                 {"by_a_host_function", by_a_host_function},
                 {"the_rest", the_rest},
                 {"elsewhere", elsewhere}};
    only_allocated = argc == 3;
    CHECK(cudaFree(0));
    for (auto &c : cases)
        if (argc < 2 || c.name == std::string(argv[1])) c.run();
    std::printf("right\n");
}
