// Runs random programs, which ../lowering made together with what they must give: driver API only, so the same binary runs on any driver.
//
//     run [--repeat N] [--timeout SECONDS] < programs
//
// Says "N steps of M programs" when all bytes were right; else which program, step and block were not, and exit code 1; 2 if nothing moved any more.
#include "steps.h"
#include <iostream>
#include <thread>

const char *running = "";

static std::vector<std::atomic<int64_t>> progress(8); // of each thread; the watchdog looks as well
static std::atomic<bool> over;

static void watch(int seconds) {
    std::vector<int64_t> seen(progress.size());
    for (int still = 0; still < seconds * 10; still++) {
        usleep(100000);
        if (over) return;
        for (size_t i = 0; i < seen.size(); i++)
            if (int64_t now = progress[i]; now != seen[i]) seen[i] = now, still = 0;
    }
    std::printf("program %s: nothing has moved for %d s; steps done by each thread:", running, seconds);
    for (auto &of : progress) std::printf(" %d", static_cast<int>(of));
    std::printf("\n");
    std::fflush(stdout);
    std::_Exit(2);
}

static size_t run(const Program &program, CUdevice device, CUcontext primary) {
    Objects o = {};
    running = program.name.c_str();
    o.context = primary;
    if (program.own_context) CHECK(cuCtxCreate(&o.context, nullptr, 0, device));
    CHECK(cuCtxSetCurrent(o.context));
    CHECK(cuModuleLoadData(&o.module, kernels::image().c_str()));
    for (int i = 0; i < 5; i++) CHECK(cuModuleGetFunction(&o.functions[i], o.module, kernels::NAMES[i]));
    CHECK(cuMemAlloc(&o.flags, 4 * FLAGS));
    CHECK(cuMemAlloc(&o.scratch, 4));
    CHECK(cuMemsetD32(o.flags, 0, FLAGS));
    void *polled = nullptr;
    CHECK(cuMemHostAlloc(&polled, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    std::memset(polled, 0, 4096);
    o.polled = static_cast<uint32_t *>(polled);
    CHECK(cuMemHostGetDevicePointer(&o.polled_address, polled, 0));
    CHECK(cuCtxSynchronize());
    o.streams[1] = CU_STREAM_PER_THREAD;
    o.streams[2] = CU_STREAM_LEGACY;
    for (auto &of : progress) of = 0;
    std::vector<std::thread> threads;
    size_t steps = 0;
    for (size_t i = 0; i < program.threads.size(); i++) {
        steps += program.threads[i].size();
        threads.emplace_back([&, i] {
            CHECK(cuCtxSetCurrent(o.context));
            Thread thread = {o, i, progress};
            for (const Step &step : program.threads[i]) {
                thread.run(step);
                progress[i].fetch_add(1, std::memory_order_release);
            }
        });
    }
    for (auto &thread : threads) thread.join();
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFreeHost(polled));
    CHECK(cuMemFree(o.scratch));
    CHECK(cuMemFree(o.flags));
    CHECK(cuModuleUnload(o.module));
    if (program.own_context) CHECK(cuCtxDestroy(o.context));
    return steps;
}

int main(int argc, char **argv) {
    int repeat = 1, timeout = 60;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--repeat")) repeat = std::atoi(argv[i + 1]);
        if (!std::strcmp(argv[i], "--timeout")) timeout = std::atoi(argv[i + 1]);
    }
    std::ios::sync_with_stdio(false);
    CUdevice device = 0;
    CUcontext primary = nullptr;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    size_t steps = 0, programs = 0;
    std::thread watchdog(watch, timeout);
    for (Program program; read_program(std::cin, program); programs++)
        for (int i = 0; i < repeat; i++) steps += run(program, device, primary);
    over = true;
    watchdog.join();
    std::printf("%zu steps of %zu programs\n", steps, programs);
    return 0;
}
