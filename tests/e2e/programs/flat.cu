// The same again and again: flat WHAT COUNT FILE, WHAT of "memory" (allocated and freed, in many sizes), "events" (recorded, waited for now and then),
// "modules" (loaded and unloaded), "copies". Prints "running" after a tenth of it, goes on when FILE exists, and prints "right".
#include "check.h"
#include <cstring>
#include <cuda.h>
#include <string>
#include <unistd.h>
#include <vector>

// The driver's own calls, so that each module is one load and one unload.
static const char PTX[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry set(.param .u64 out, .param .u32 value) {
    .reg .u64 %a;
    .reg .u32 %v;
    ld.param.u64 %a, [out];
    ld.param.u32 %v, [value];
    st.global.u32 [%a], %v;
    ret;
}
)";

#define DRIVER(call) EXPECT((call) == CUDA_SUCCESS)

template <typename F> static F *driver(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    EXPECT(result == cudaDriverEntryPointSuccess);
    return (F *)found;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "memory";
    long count = argc > 2 ? std::atol(argv[2]) : 1000;
    unsigned *word;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&word, 4));
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    auto load = driver<decltype(cuModuleLoadData)>("cuModuleLoadData");
    auto unload = driver<decltype(cuModuleUnload)>("cuModuleUnload");
    auto find = driver<decltype(cuModuleGetFunction)>("cuModuleGetFunction");
    auto launch = driver<decltype(cuLaunchKernel)>("cuLaunchKernel");
    std::vector<unsigned char> host(3 << 20), back(3 << 20);
    unsigned char *device, *pinned;
    CHECK(cudaMalloc(&device, host.size()));
    CHECK(cudaMallocHost(&pinned, host.size()));
    std::vector<void *> held(64, nullptr);
    unsigned state = 1;
    for (long i = 0; i < count; i++) {
        if (i == count / 10) {
            CHECK(cudaDeviceSynchronize());
            std::printf("running\n");
            std::fflush(stdout);
            while (argc > 3 && access(argv[3], F_OK) != 0) usleep(1000); // for who measures from here on
        }
        state = state * 1664525u + 1013904223u;
        if (!std::strcmp(what, "memory")) {
            void *&slot = held[state >> 26];
            if (slot) CHECK(cudaFree(slot));
            CHECK(cudaMalloc(&slot, 1 + (state >> 8) % (1u << (8 + state % 14))));
            // On memory that is always the same: a software GPU's pages are its worker's, and count when they are first touched.
            if (i % 64 == 0) CHECK(cudaMemsetAsync(word, 1, 1, stream));
        } else if (!std::strcmp(what, "events")) {
            CHECK(cudaEventRecord(event, stream));
            if (i % 5000 == 0) CHECK(cudaEventSynchronize(event));
        } else if (!std::strcmp(what, "modules")) {
            // Every image is another one.
            std::string image = std::string(PTX) + "// " + std::to_string(i) + "\n";
            CUmodule module;
            CUfunction function;
            DRIVER(load(&module, image.c_str()));
            if (i % 100 == 0) {
                unsigned value = (unsigned)i, got = 0;
                void *parameters[] = {&word, &value};
                DRIVER(find(&function, module, "set"));
                DRIVER(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
                CHECK(cudaMemcpyAsync(&got, word, 4, cudaMemcpyDeviceToHost, stream));
                CHECK(cudaStreamSynchronize(stream));
                EXPECT(got == value);
            }
            DRIVER(unload(module));
        } else {
            size_t size = 1 + state % host.size();
            bool lent = i % 2;
            std::memset(lent ? pinned : host.data(), (int)i, size);
            CHECK(cudaMemcpyAsync(device, lent ? pinned : host.data(), size, cudaMemcpyHostToDevice, stream));
            CHECK(cudaMemcpyAsync(back.data(), device, size, cudaMemcpyDeviceToHost, stream));
            EXPECT(back[0] == (unsigned char)i && back[size - 1] == (unsigned char)i);
        }
    }
    CHECK(cudaDeviceSynchronize());
    for (void *p : held)
        if (p) CHECK(cudaFree(p));
    std::printf("right\n");
    return 0;
}
