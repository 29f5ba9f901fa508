// Managed memory as programs use it: read and written on both sides in turn, in small pieces and in large ones, by several threads, by system calls, by host functions, by copies in both roles, attached to
// streams, prefetched, advised; and what must be refused. Prints "right".
#include "check.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
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
__global__ void put(int *v, size_t at, int what) { v[at] = what; }
__global__ void total(const int *v, size_t n, unsigned long long *out) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(out, (unsigned long long)v[i]);
}

template <class T> static T *managed(size_t n, unsigned flags = cudaMemAttachGlobal) {
    T *p;
    CHECK(cudaMallocManaged(&p, n * sizeof(T), flags));
    return p;
}

static void synchronize() { CHECK(cudaDeviceSynchronize()); }

// Both sides in turn, at sizes around a page's and a block's.
static void in_turn() {
    for (size_t n : {size_t(1), size_t(1023), size_t(1024), size_t(1025), size_t(100000), size_t(3 << 20)}) {
        int *v = managed<int>(n);
        for (size_t i = 0; i < n; i++) EXPECT(v[i] == 0); // as programs expect it of a fresh page
        for (int round = 0; round < 3; round++) {
            for (size_t i = 0; i < n; i++) v[i] += (int)i;
            add<<<8, 128>>>(v, n, 1);
            synchronize();
            for (size_t i = 0; i < n; i++) EXPECT(v[i] == (round + 1) * ((int)i + 1));
        }
        CHECK(cudaFree(v));
    }
    int *first = managed<int>(1000); // memory that was used before is zeros again, on both sides
    add<<<1, 128>>>(first, 1000, 7);
    synchronize();
    CHECK(cudaFree(first));
    int *second = managed<int>(1000);
    add<<<1, 128>>>(second, 1000, 1);
    synchronize();
    EXPECT(second[0] == 1 && second[999] == 1);
    CHECK(cudaFree(second));
}

// What one side writes leaves what the other side wrote next to it.
static void neighbours() {
    const size_t n = 1 << 16;
    int *v = managed<int>(n);
    for (size_t i = 0; i < n; i += 2) v[i] = 5;
    for (size_t i = 1; i < n; i += 4096) put<<<1, 1>>>(v, i, 6);
    synchronize();
    for (size_t i = 0; i < n; i++) EXPECT(v[i] == (i % 2 == 0 ? 5 : i % 4096 == 1 ? 6 : 0));
    for (size_t k = 0; k < 200; k++) { // touches without an order
        size_t i = k * 7919 % n;
        v[i] = (int)k;
        put<<<1, 1>>>(v, (i + 1) % n, -(int)k);
        synchronize();
        EXPECT(v[i] == (int)k && v[(i + 1) % n] == -(int)k);
    }
    for (size_t i = n; i-- > 0;) v[i] = (int)i; // in falling order
    add<<<8, 128>>>(v, n, 1);
    synchronize();
    for (size_t i = n; i-- > 0;) EXPECT(v[i] == (int)i + 1);
    CHECK(cudaFree(v));
}

struct node {
    node *next;
    int value;
};
__global__ void walk(node *n, int *sum) {
    for (; n; n = n->next) *sum += n->value++;
}

// Pointers in structures, and the places of results that CUDA's own calls write to.
static void nested() {
    node *head = nullptr;
    for (int i = 1; i <= 50; i++) {
        node *n = managed<node>(1);
        *n = {head, i};
        head = n;
    }
    int *sum = managed<int>(1);
    walk<<<1, 1>>>(head, sum);
    synchronize();
    EXPECT(*sum == 50 * 51 / 2);
    int i = 51;
    for (node *n = head; n; n = n->next) EXPECT(n->value == i--);
    struct table {
        int *device;
        cudaEvent_t event;
        float milliseconds;
        cudaPointerAttributes attributes;
    } *t = managed<table>(1);
    add<<<1, 1>>>((int *)t, 0, 0); // from here on the host has none of it
    CHECK(cudaMalloc(&t->device, 4));
    CHECK(cudaEventCreate(&t->event));
    CHECK(cudaEventRecord(t->event, 0));
    add<<<1, 1>>>((int *)t, 0, 0);
    CHECK(cudaEventSynchronize(t->event));
    CHECK(cudaEventElapsedTime(&t->milliseconds, t->event, t->event));
    EXPECT(t->milliseconds == 0);
    CHECK(cudaPointerGetAttributes(&t->attributes, t));
    EXPECT(t->attributes.type == cudaMemoryTypeManaged && t->attributes.devicePointer == t && t->attributes.hostPointer == t);
    CHECK(cudaFree(t->device));
    CHECK(cudaFree(t));
    while (head) {
        node *n = head->next;
        CHECK(cudaFree(head));
        head = n;
    }
    CHECK(cudaFree(sum));
}

// Copies and fills, with managed memory in the role of the device's and of the host's, without and with pages that the host has written.
static void copies() {
    const size_t n = 50000;
    int *v = managed<int>(n), *w = managed<int>(n), *d;
    CHECK(cudaMalloc(&d, n * 4));
    std::vector<int> h(n, 3);
    CHECK(cudaMemcpy(v, h.data(), n * 4, cudaMemcpyHostToDevice));
    EXPECT(v[0] == 3 && v[n - 1] == 3);
    v[1] = 4;
    CHECK(cudaMemcpy(d, v, n * 4, cudaMemcpyHostToDevice)); // the host's role
    CHECK(cudaMemcpy(w, d, n * 4, cudaMemcpyDeviceToHost));
    EXPECT(w[0] == 3 && w[1] == 4 && w[n - 1] == 3);
    w[7] = 70;
    CHECK(cudaMemcpy(w + 10, v, 400, cudaMemcpyDefault)); // a part: what the host wrote around it stays
    EXPECT(w[7] == 70 && w[10] == 3 && w[11] == 4 && w[109] == 3);
    CHECK(cudaMemcpy(h.data(), w, n * 4, cudaMemcpyDefault));
    EXPECT(h[7] == 70 && h[11] == 4);
    w[0] = 9;
    CHECK(cudaMemset(w + 1, 0, n * 2));
    EXPECT(w[0] == 9 && w[1] == 0 && w[n / 2] == 0 && w[n / 2 + 1] == 3);
    CHECK(cudaMemset2D(w, 16, 1, 4, 8));
    EXPECT(w[0] == 0x01010101 && w[1] == 0 && w[4] == 0x01010101 && w[28] == 0x01010101 && w[32] == 0);
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int round = 0; round < 20; round++) { // asynchronous ones, behind what the host wrote
        for (size_t i = 0; i < n; i += 500) v[i] = round;
        CHECK(cudaMemcpyAsync(w, v, n * 4, cudaMemcpyDefault, s));
        add<<<8, 128, 0, s>>>(w, n, 1);
        CHECK(cudaStreamSynchronize(s));
        for (size_t i = 0; i < n; i += 500) EXPECT(w[i] == round + 1);
    }
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(v));
    CHECK(cudaFree(w));
    CHECK(cudaFree(d));
}

// System calls, and the standard library's large reads, which go straight to the buffer.
static void system_calls() {
    const size_t n = 300000;
    int *v = managed<int>(n);
    std::vector<int> h(n);
    for (size_t i = 0; i < n; i++) h[i] = (int)i * 3;
    char name[] = "/tmp/managedXXXXXX";
    int file = mkstemp(name);
    EXPECT(file >= 0);
    unlink(name);
    EXPECT(write(file, h.data(), n * 4) == (ssize_t)(n * 4));
    add<<<8, 128>>>(v, n, 1); // no page is the host's
    synchronize();
    EXPECT(pread(file, v, n * 4, 0) == (ssize_t)(n * 4));
    add<<<8, 128>>>(v, n, 1);
    synchronize();
    EXPECT(v[0] == 1 && v[n - 1] == (int)(n - 1) * 3 + 1);
    add<<<8, 128>>>(v, n, 1);
    synchronize();
    EXPECT(pwrite(file, v, n * 4, 0) == (ssize_t)(n * 4));
    EXPECT(pread(file, h.data(), n * 4, 0) == (ssize_t)(n * 4));
    EXPECT(h[0] == 2 && h[n - 1] == (int)(n - 1) * 3 + 2);
    lseek(file, 0, SEEK_SET);
    FILE *f = fdopen(file, "r+b");
    add<<<8, 128>>>(v, n, 1);
    synchronize();
    EXPECT(fread(v, 4, n, f) == n);
    EXPECT(v[n - 1] == (int)(n - 1) * 3 + 2);
    add<<<8, 128>>>(v, n, 5);
    synchronize();
    rewind(f);
    EXPECT(fwrite(v, 4, n, f) == n && fflush(f) == 0);
    EXPECT(pread(file, h.data(), n * 4, 0) == (ssize_t)(n * 4) && h[1] == 3 + 2 + 5);
    int ends[2];
    EXPECT(pipe(ends) == 0);
    add<<<8, 128>>>(v, n, 1);
    synchronize();
    EXPECT(write(ends[1], v, 4096) == 4096 && read(ends[0], h.data(), 4096) == 4096 && h[1] == 3 + 2 + 6);
    close(ends[0]), close(ends[1]);
    fclose(f);
    CHECK(cudaFree(v));
}

struct called {
    int *v;
    size_t n;
    int seen;
};
static void CUDART_CB call(void *data) {
    called *c = (called *)data;
    c->seen = c->v[c->n - 1];
    for (size_t i = 0; i < c->n; i++) c->v[i] += 100;
}

// A host function between two kernels, which reads what the first wrote and writes what the second reads.
static void host_functions() {
    const size_t n = 20000;
    int *v = managed<int>(n);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamAttachMemAsync(s, v, 0, cudaMemAttachSingle));
    CHECK(cudaStreamSynchronize(s));
    called c{v, n, 0};
    add<<<8, 128, 0, s>>>(v, n, 1);
    CHECK(cudaLaunchHostFunc(s, call, &c));
    CHECK(cudaStreamSynchronize(s));
    add<<<8, 128, 0, s>>>(v, n, 1000);
    CHECK(cudaStreamSynchronize(s));
    EXPECT(c.seen == 1 && v[0] == 1101 && v[n - 1] == 1101);
    v[0] = 1;
    add<<<8, 128>>>(v, n, 1); // the legacy stream may use it nevertheless
    synchronize();
    EXPECT(v[0] == 2 && v[n - 1] == 1102);
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(v));
}

static volatile sig_atomic_t trapped;
static sigjmp_buf back;
static void on_fault(int, siginfo_t *info, void *) {
    trapped = info->si_addr == (void *)16;
    siglongjmp(back, 1);
}
static std::atomic<int> alarms;
static int *of_the_alarm;
static void on_alarm(int) {
    of_the_alarm[alarms % 1000] += 1;
    alarms++;
}

// The program's own handlers: of faults, which stay its own, and one that touches managed memory.
static void signals() {
    int *v = managed<int>(5000);
    struct sigaction mine = {}, old;
    mine.sa_sigaction = on_fault;
    mine.sa_flags = SA_SIGINFO;
    CHECK(cudaDeviceSynchronize());
    EXPECT(sigaction(SIGSEGV, &mine, &old) == 0);
    v[0] = 1; // with the program's handler in place
    add<<<8, 128>>>(v, 5000, 1);
    synchronize();
    EXPECT(v[0] == 2 && v[4999] == 1);
    if (!sigsetjmp(back, 1)) *(volatile int *)16 = 1;
    EXPECT(trapped == 1);
    v[1] = 5;
    struct sigaction now;
    EXPECT(sigaction(SIGSEGV, &old, &now) == 0 && now.sa_sigaction == on_fault);
    of_the_alarm = managed<int>(1000);
    struct sigaction tick = {};
    tick.sa_handler = on_alarm;
    tick.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &tick, nullptr);
    int expected = 0;
    for (int round = 0; round < 10; round++) {
        add<<<1, 128>>>(v, 5000, 1);
        synchronize();
        raise(SIGALRM);
        expected++;
        v[round] += 1;
    }
    int sum = 0;
    for (int i = 0; i < 1000; i++) sum += of_the_alarm[i];
    EXPECT(sum == expected);
    CHECK(cudaFree(of_the_alarm));
    CHECK(cudaFree(v));
}

// Threads that touch the same pages at once, and threads with streams and memory of their own.
static void threads() {
    const size_t n = 1 << 20;
    int *v = managed<int>(n);
    for (int round = 0; round < 5; round++) {
        add<<<64, 256>>>(v, n, 1);
        synchronize();
        std::atomic<int> wrong{0};
        std::vector<std::thread> all;
        for (int t = 0; t < 8; t++)
            all.emplace_back([&, t] {
                for (size_t i = 0; i < n; i++)
                    if (v[i] != 2 * round + 1) wrong++;
            });
        for (auto &t : all) t.join();
        EXPECT(wrong == 0);
        all.clear();
        for (int t = 0; t < 8; t++)
            all.emplace_back([&, t] {
                for (size_t i = t; i < n; i += 8) v[i]++;
            });
        for (auto &t : all) t.join();
    }
    CHECK(cudaFree(v));
    std::vector<std::thread> all;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; t++)
        all.emplace_back([&, t] {
            cudaStream_t s;
            CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
            for (int k = 0; k < 10; k++) {
                const size_t m = 1000 + 5000 * t;
                int *mine = managed<int>(m, cudaMemAttachHost);
                CHECK(cudaStreamAttachMemAsync(s, mine, 0, cudaMemAttachSingle));
                CHECK(cudaStreamSynchronize(s));
                for (size_t i = 0; i < m; i++) mine[i] = 0; // a driver may give what was freed before, as it was left
                for (int round = 0; round < 5; round++) {
                    for (size_t i = 0; i < m; i++) mine[i] += t;
                    add<<<4, 128, 0, s>>>(mine, m, 1);
                    CHECK(cudaStreamSynchronize(s));
                    for (size_t i = 0; i < m; i++)
                        if (mine[i] != (round + 1) * (t + 1)) wrong++;
                }
                CHECK(cudaFree(mine));
            }
            CHECK(cudaStreamDestroy(s));
        });
    for (auto &t : all) t.join();
    EXPECT(wrong == 0);
}

// What the host reads while kernels run may be old, and is new once they have been waited for.
static void provisional() {
    const size_t n = 4096;
    int *v = managed<int>(n), *other = managed<int>(n);
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int round = 1; round <= 20; round++) {
        add<<<8, 128, 0, s>>>(v, n, 1);
        volatile int early = v[5];
        EXPECT(early == round || early == round - 1);
        other[round] = round;
        CHECK(cudaStreamSynchronize(s));
        EXPECT(v[5] == round && v[n - 1] == round && other[round] == round);
    }
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(v));
    CHECK(cudaFree(other));
}

// A thread reads a page while another one queues a kernel or a fill that writes it: what the reader's touch brought is not what the host sees once the kernel has been waited for.
static void beside_launches() {
    int *v = managed<int>(1024);
    v[1023] = 7;
    const int rounds = 400;
    std::atomic<int> begun{0}, ended{0}, wrong{0};
    std::thread reader([&] {
        for (int round = 1; round <= rounds; round++) {
            while (begun < round) std::this_thread::yield();
            if (reinterpret_cast<volatile int *>(v)[1023] != 7) wrong++;
            ended = round;
        }
    });
    for (int round = 1; round <= rounds; round++) {
        put<<<1, 1>>>(v, 1, round); // the page is the device's
        synchronize();
        begun = round;
        for (int i = 0; i < round % 20 * 50; i++) begun.load();
        if (round % 3 == 0) usleep(round % 20 * 10); // the reader's touch is under way
        bool kernel = round / 2 % 2;
        if (kernel)
            put<<<1, 1>>>(v, 0, round);
        else
            CHECK(cudaMemsetAsync(v, round % 128, 4));
        while (round % 2 && ended < round) std::this_thread::yield();
        synchronize();
        if (v[0] != (kernel ? round : round % 128 * 0x01010101)) wrong++;
        while (ended < round) std::this_thread::yield();
    }
    reader.join();
    EXPECT(wrong == 0);
    CHECK(cudaFree(v));
}

// Twenty rounds of a kernel, a prefetch to the host, a wait and reads; another stream has work that nobody has waited for.
static void prefetched() {
    const size_t n = 1 << 16;
    int *v = managed<int>(n), *d;
    cudaMemLocation cpu = {cudaMemLocationTypeHost, 0};
    cudaStream_t s, t;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&d, 4));
    CHECK(cudaMemsetAsync(d, 0, 4, t));
    for (size_t i = 0; i < n; i++) v[i] = 0;
    for (int round = 1; round <= 20; round++) {
        add<<<8, 128, 0, s>>>(v, n, 1);
        CHECK(cudaMemPrefetchAsync(v, n * 4, cpu, 0, s));
        CHECK(cudaStreamSynchronize(s));
        for (size_t i = 0; i < n; i++) EXPECT(v[i] == round);
    }
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaStreamDestroy(t));
    CHECK(cudaFree(d));
    CHECK(cudaFree(v));
}

// Hints, which change no result, and what they leave to ask for.
static void hints() {
    const size_t n = 1 << 20;
    int *v = managed<int>(n);
    cudaMemLocation gpu = {cudaMemLocationTypeDevice, 0}, cpu = {cudaMemLocationTypeHost, 0};
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    for (size_t i = 0; i < n; i++) v[i] = 1;
    CHECK(cudaMemAdvise(v, n * 4, cudaMemAdviseSetPreferredLocation, gpu));
    CHECK(cudaMemAdvise(v, n * 4, cudaMemAdviseSetAccessedBy, cpu));
    CHECK(cudaMemAdvise(v, n * 2, cudaMemAdviseSetReadMostly, gpu));
    for (int round = 0; round < 4; round++) {
        CHECK(cudaMemPrefetchAsync(v, n * 4, gpu, 0, s));
        EXPECT(v[3] == 1 + round); // still readable
        add<<<64, 128, 0, s>>>(v, n, 1);
        CHECK(cudaMemPrefetchAsync(v, n * 4, cpu, 0, s));
        CHECK(cudaStreamSynchronize(s));
        for (size_t i = 0; i < n; i++) EXPECT(v[i] == 2 + round);
    }
    CHECK(cudaMemPrefetchAsync(v, n * 4, cpu, 0, s));
    add<<<64, 128, 0, s>>>(v, n, 1); // behind a prefetch that nobody looked at
    CHECK(cudaMemPrefetchAsync(v, n * 2, cpu, 0, s));
    CHECK(cudaFree(managed<int>(100)));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(v[0] == 6 && v[n - 1] == 6);
    int value = 7, two[3];
    CHECK(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributePreferredLocation, v, n * 4));
    EXPECT(value == 0);
    CHECK(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributeReadMostly, v, n * 4));
    EXPECT(value == 0);
    CHECK(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributeReadMostly, v, n * 2));
    EXPECT(value == 1);
    CHECK(cudaMemRangeGetAttribute(two, 12, cudaMemRangeAttributeAccessedBy, v, n * 4));
    EXPECT(two[0] == cudaCpuDeviceId && two[1] == cudaInvalidDeviceId && two[2] == cudaInvalidDeviceId);
    CHECK(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributeLastPrefetchLocation, v, n * 2));
    EXPECT(value == cudaCpuDeviceId);
    CHECK(cudaMemAdvise(v, n * 4, cudaMemAdviseUnsetPreferredLocation, gpu));
    CHECK(cudaMemRangeGetAttribute(&value, 4, cudaMemRangeAttributePreferredLocation, v, n * 4));
    EXPECT(value == cudaInvalidDeviceId);
    cudaStreamDestroy(s);
    CHECK(cudaFree(v));
}

// A graph reads at its launch what the host has written by then.
static void graphs() {
    const size_t n = 5000;
    int *v = managed<int>(n), *w = managed<int>(n);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    add<<<8, 128, 0, s>>>(v, n, 1);
    CHECK(cudaMemcpyAsync(w, v, n * 4, cudaMemcpyDefault, s));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(s, &graph));
    cudaGraphExec_t x;
    CHECK(cudaGraphInstantiate(&x, graph, 0));
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < n; i++) v[i] = round * 10;
        CHECK(cudaGraphLaunch(x, s));
        CHECK(cudaStreamSynchronize(s));
        EXPECT(w[0] == round * 10 + 1 && w[n - 1] == round * 10 + 1 && v[77] == round * 10 + 1);
    }
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaFree(v));
    CHECK(cudaFree(w));
}

__managed__ int counter = 5;
__managed__ int table[3000];
__managed__ node *list;
__device__ int behind = 77; // the variable after it has pages of its own
__global__ void use(int *sum) {
    counter++;
    for (int i = threadIdx.x; i < 3000; i += blockDim.x) table[i] += i;
    for (node *n = list; n; n = n->next) *sum += n->value;
    *sum += behind;
}

// Variables of both sides, with what they were initialised to.
static void variables() {
    int *sum = managed<int>(1);
    EXPECT(counter == 5 && table[2999] == 0 && list == nullptr);
    counter = 10;
    table[7] = 100;
    node *n = managed<node>(2);
    n[0] = {&n[1], 3}, n[1] = {nullptr, 4};
    list = n;
    use<<<1, 1>>>(sum);
    synchronize();
    EXPECT(counter == 11 && table[7] == 107 && table[2999] == 2999 && *sum == 7 + 77);
    int value = 0;
    CHECK(cudaMemcpyFromSymbol(&value, counter, 4));
    EXPECT(value == 11);
    value = 20;
    CHECK(cudaMemcpyToSymbol(counter, &value, 4));
    EXPECT(counter == 20);
    cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, &counter));
    EXPECT(a.type == cudaMemoryTypeManaged);
    CHECK(cudaFree(sum));
    CHECK(cudaFree(n));
}

static void refusals() {
    int *v = managed<int>(1000), *d, attribute, *p;
    CHECK(cudaMalloc(&d, 4000));
    CHECK(cudaDeviceGetAttribute(&attribute, cudaDevAttrManagedMemory, 0));
    EXPECT(attribute == 1);
    EXPECT(refused(cudaMallocManaged(&p, 4, cudaMemAttachSingle), cudaErrorInvalidValue));
    cudaMemLocation gpu = {cudaMemLocationTypeDevice, 0}, none = {cudaMemLocationTypeDevice, 77};
    EXPECT(refused(cudaMemPrefetchAsync(d, 4000, gpu, 0, 0), cudaErrorInvalidValue));
    EXPECT(refused(cudaMemPrefetchAsync(v, 4004, gpu, 0, 0), cudaErrorInvalidValue));
    EXPECT(refused(cudaMemPrefetchAsync(v, 4000, none, 0, 0), cudaErrorInvalidDevice));
    EXPECT(refused(cudaMemAdvise(d, 4000, cudaMemAdviseSetReadMostly, gpu), cudaErrorInvalidValue));
    EXPECT(refused(cudaStreamAttachMemAsync(0, v, 0, cudaMemAttachSingle), cudaErrorInvalidValue));
    EXPECT(refused(cudaStreamAttachMemAsync(0, d, 0, cudaMemAttachGlobal), cudaErrorInvalidValue));
    EXPECT(refused(cudaMemRangeGetAttribute(&attribute, 8, cudaMemRangeAttributeReadMostly, v, 4000), cudaErrorInvalidValue));
    pid_t child = fork(); // has no part of it, as it has none in the session
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        v[0] = 1;
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(cudaFree(v));
    child = fork(); // freed memory faults
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        v[0] = 1;
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(cudaFree(d));
}

// Not for a real GPU, which may be asked for more than it has and then be very slow.
static void too_much() {
    int *p;
    EXPECT(refused(cudaMallocManaged(&p, size_t(1) << 45), cudaErrorMemoryAllocation));
}

// The server goes while only the GPU has the newest content.
static int lost(pid_t server) {
    int *v = managed<int>(1000);
    add<<<1, 128>>>(v, 1000, 1);
    synchronize();
    kill(server, SIGTERM);
    sleep(3);
    std::printf("read %d\n", v[0]);
    return 5;
}

int main(int argc, char **argv) {
    if (argc == 3) return lost(atoi(argv[2]));
    struct {
        const char *name;
        void (*run)();
    } cases[] = {{"in_turn", in_turn},
                 {"neighbours", neighbours},
                 {"nested", nested},
                 {"copies", copies},
                 {"system_calls", system_calls},
                 {"host_functions", host_functions},
                 {"signals", signals},
                 {"threads", threads},
                 {"provisional", provisional},
                 {"beside_launches", beside_launches},
                 {"prefetched", prefetched},
                 {"hints", hints},
                 {"graphs", graphs},
                 {"variables", variables},
                 {"refusals", refusals},
                 {"too_much", too_much}};
    CHECK(cudaFree(0));
    for (auto &c : cases)
        if (argc < 2 || c.name == std::string(argv[1])) c.run();
    std::printf("right\n");
}
