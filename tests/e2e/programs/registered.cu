// Memory of the program's own that it registers and gives to kernels: they reach it at the address that cudaHostGetDevicePointer tells, which may be another one. Prints "right".
#include "check.h"

#include <cstring>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void add(int *v, size_t n, int what) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) v[i] += what;
}

__global__ void put(int *v, size_t at, int what) { v[at] = what; }

__global__ void spin(long long cycles) {
    for (long long begin = clock64(); clock64() - begin < cycles;) {
    }
}

static void synchronize() { CHECK(cudaDeviceSynchronize()); }

// Registered memory in the middle of other memory, which is the host's alone.
struct Registered {
    std::vector<char> all;
    int *host, *device = nullptr;
    size_t n;

    explicit Registered(size_t count, unsigned flags = cudaHostRegisterMapped) : all(count * 4 + 4000, 0x55), n(count) {
        host = (int *)(((uintptr_t)all.data() + 64) & ~(uintptr_t)3);
        std::memset(host, 0, n * 4);
        CHECK(cudaHostRegister(host, n * 4, flags));
        CHECK(cudaHostGetDevicePointer(&device, host, 0));
        EXPECT(device);
    }
    ~Registered() {
        CHECK(cudaHostUnregister(host));
        for (char *p = all.data(); p < (char *)host; p++) EXPECT(*p == 0x55);
        for (char *p = (char *)(host + n); p < all.data() + all.size(); p++) EXPECT(*p == 0x55);
    }
};

static void in_turn() {
    for (size_t n : {size_t(1), size_t(5000), size_t(3000000)}) {
        Registered r(n);
        for (int round = 0; round < 3; round++) {
            for (size_t i = 0; i < n; i += 700) r.host[i] += 10;
            add<<<64, 256>>>(r.device, n, 1);
            if (round == 1) add<<<64, 256>>>(r.device, n, 0);
            synchronize();
        }
        for (size_t i = 0; i < n; i++) EXPECT(r.host[i] == 3 + (i % 700 ? 0 : 30));
    }
}

// Between two waits both sides change numbers that lie side by side, and nobody's are lost.
static void side_by_side() {
    const size_t n = 10000;
    Registered r(n);
    add<<<8, 128>>>(r.device, n, 1);
    synchronize();
    put<<<1, 1>>>(r.device, 5, 100);
    CHECK(cudaStreamSynchronize(0));
    r.host[6] = 200;
    put<<<1, 1>>>(r.device, 7, 300);
    r.host[8] = 400; // not waited for: the device has 7
    put<<<1, 1>>>(r.device, 9, 500);
    synchronize();
    for (size_t i = 0; i < 12; i++) EXPECT(r.host[i] == (i < 5 || i > 9 ? 1 : (int)(i - 4) * 100));
}

// What the host has not waited for it may not have; what it waits for while other work goes on it has.
static void while_others_run() {
    const size_t n = 4000;
    Registered r(n);
    cudaStream_t a, b;
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (int round = 1; round < 5; round++) {
        spin<<<1, 1, 0, b>>>(20000000);
        r.host[3] = round; // sent for the next kernel, which is behind one that goes on
        put<<<1, 1, 0, b>>>(r.device, 1, round);
        CHECK(cudaStreamSynchronize(a)); // which has nothing to do
        EXPECT(r.host[3] == round);
        put<<<1, 1, 0, a>>>(r.device, 0, round);
        CHECK(cudaStreamSynchronize(a));
        EXPECT(r.host[0] == round && r.host[3] == round);
        r.host[2] = round;
        CHECK(cudaStreamSynchronize(b));
        EXPECT(r.host[1] == round && r.host[2] == round);
    }
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
}

// Copies take either address, and come in their stream's order.
static void copies() {
    const size_t n = 100000;
    Registered r(n);
    int *d;
    CHECK(cudaMalloc(&d, n * 4));
    for (size_t i = 0; i < n; i++) r.host[i] = (int)i;
    add<<<64, 256>>>(r.device, n, 1);
    CHECK(cudaMemcpyAsync(d, r.host, n * 4, cudaMemcpyHostToDevice, 0)); // what the kernel leaves
    add<<<64, 256>>>(d, n, 1);
    CHECK(cudaMemcpyAsync(r.host, d, n * 4, cudaMemcpyDeviceToHost, 0));
    add<<<64, 256>>>(r.device, n, 1); // what the copy leaves
    std::vector<int> out(n);
    CHECK(cudaMemcpy(out.data(), r.device, n * 4, cudaMemcpyDefault));
    for (size_t i = 0; i < n; i++) EXPECT(out[i] == (int)i + 3);
    synchronize();
    for (size_t i = 0; i < n; i++) EXPECT(r.host[i] == (int)i + 3);
    CHECK(cudaMemset(r.device + 10, 0, 40));
    CHECK(cudaMemcpy(out.data(), r.host, n * 4, cudaMemcpyHostToHost));
    EXPECT(out[9] == 12 && out[10] == 0 && out[19] == 0 && out[20] == 23);
    CHECK(cudaMemcpy(r.host, d, 40, cudaMemcpyDeviceToHost));
    EXPECT(r.host[9] == 11 && r.host[10] == 0);
    CHECK(cudaFree(d));
}

// A host function is called, and returns, while a call of the driver's waits for it and a thread waits for what kernels have left.
static void beside_host_functions() {
    Registered r(1000);
    int *d;
    cudaStream_t a, b;
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (int i = 0; i < 10; i++) {
        int over = 0;
        CHECK(cudaMalloc(&d, 1000));
        put<<<1, 1, 0, b>>>(r.device, 40, i + 7);
        CHECK(cudaLaunchHostFunc(a, [](void *at) { usleep(20000), *(int *)at = 1; }, &over));
        CHECK(cudaFree(d)); // waits for the device
        CHECK(cudaStreamSynchronize(b));
        EXPECT(r.host[40] == i + 7);
        CHECK(cudaStreamSynchronize(a));
        EXPECT(over == 1);
    }
    CHECK(cudaStreamDestroy(a));
    CHECK(cudaStreamDestroy(b));
}

static void what_it_is() {
    Registered r(1000);
    cudaPointerAttributes a;
    int *inner;
    CHECK(cudaHostGetDevicePointer(&inner, r.host + 10, 0));
    EXPECT(inner == r.device + 10);
    CHECK(cudaPointerGetAttributes(&a, r.host + 10));
    EXPECT(a.type == cudaMemoryTypeHost && a.hostPointer == r.host + 10 && a.devicePointer == inner);
    CHECK(cudaPointerGetAttributes(&a, inner));
    EXPECT(a.type == cudaMemoryTypeHost && a.hostPointer == r.host + 10 && a.devicePointer == inner);
    EXPECT(cudaFree(r.device) != cudaSuccess);
    cudaGetLastError();
    put<<<1, 1>>>(r.device, 3, 4);
    synchronize();
    EXPECT(r.host[3] == 4);
}

static void graphs() {
    Registered r(1000);
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    add<<<4, 128, 0, s>>>(r.device, r.n, 2);
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        r.host[7] += 10;
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
    }
    EXPECT(r.host[7] == 36 && r.host[8] == 6);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(s));
}

// Many, made and ended while another thread launches.
static void many() {
    bool over = false;
    int *d;
    CHECK(cudaMalloc(&d, 400));
    std::thread other([&] {
        while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) add<<<1, 100>>>(d, 100, 1);
        CHECK(cudaDeviceSynchronize());
    });
    for (int i = 0; i < 30; i++) {
        Registered a(100 + i * 37), b(50);
        put<<<1, 1>>>(a.device, i, i + 1);
        put<<<1, 1>>>(b.device, i, i + 2);
        synchronize();
        EXPECT(a.host[i] == i + 1 && b.host[i] == i + 2);
    }
    __atomic_store_n(&over, true, __ATOMIC_RELAXED);
    other.join();
    CHECK(cudaFree(d));
}

static void only_read() {
    std::vector<int> v(1000, 3);
    int *device, sum = 0, *out;
    CHECK(cudaHostRegister(v.data(), 4000, cudaHostRegisterMapped));
    CHECK(cudaHostGetDevicePointer(&device, v.data(), 0));
    CHECK(cudaMalloc(&out, 4000));
    CHECK(cudaMemcpy(out, device, 4000, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(&sum, out + 999, 4, cudaMemcpyDeviceToHost));
    EXPECT(sum == 3);
    CHECK(cudaFree(out));
    CHECK(cudaHostUnregister(v.data()));
    EXPECT(cudaHostGetDevicePointer(&device, v.data(), 0) == cudaErrorInvalidValue);
    cudaGetLastError();
}

int main() {
    in_turn();
    side_by_side();
    while_others_run();
    copies();
    beside_host_functions();
    what_it_is();
    graphs();
    many();
    only_read();
    std::printf("right\n");
}
