// What each step does.
#pragma once
#include "memory.h"
#include "program.h"
#include "work.h"
#include <functional>
#include <sched.h>

inline uint32_t crc32(const unsigned char *bytes, size_t size) {
    static const auto table = [] {
        std::vector<uint32_t> made(256);
        for (uint32_t i = 0; i < 256; i++) {
            made[i] = i;
            for (int bit = 0; bit < 8; bit++) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xedb88320u : 0);
        }
        return made;
    }();
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 255];
    return ~crc;
}

inline void pause_thread(int tries) {
    if (tries < 200)
        sched_yield();
    else
        usleep(20);
}

template <typename Condition> void poll(Condition condition) {
    for (int tries = 0; !condition(); tries++) pause_thread(tries);
}

inline bool passed(CUresult result) {
    if (result != CUDA_ERROR_NOT_READY) CHECK(result);
    return result == CUDA_SUCCESS;
}

// Bytes that are not the model's are kept in a file, which ../runner.py compares.
inline void compare(const Step &step, const unsigned char *bytes) { // block, offset, size, crc
    auto found = crc32(bytes, step.numbers[2]);
    if (found == step.numbers[3]) return;
    if (FILE *file = std::fopen("actual.bin", "wb")) {
        std::fwrite(bytes, 1, step.numbers[2], file);
        std::fclose(file);
    }
    fail("line %d: block %d has other bytes than it should", step.line, static_cast<int>(step.numbers[0]));
}

struct Thread {
    Objects &o;
    size_t number;
    std::vector<std::atomic<int64_t>> &progress; // steps done by each thread

    void run(const Step &step) {
        static const std::map<std::string, void (Thread::*)(const Step &)> does = {
            {"await", &Thread::await},
            {"stream", &Thread::stream},
            {"stream_destroy", &Thread::stream_destroy},
            {"event", &Thread::event},
            {"event_destroy", &Thread::event_destroy},
            {"record", &Thread::record},
            {"wait", &Thread::wait},
            {"event_sync", &Thread::event_sync},
            {"event_poll", &Thread::event_poll},
            {"stream_sync", &Thread::stream_sync},
            {"stream_poll", &Thread::stream_poll},
            {"context_sync", &Thread::context_sync},
            {"alloc", &Thread::alloc},
            {"free", &Thread::free},
            {"fill", &Thread::fill_step},
            {"copy", &Thread::copy_step},
            {"kernel", &Thread::kernel},
            {"host", &Thread::host},
            {"host_here", &Thread::host_here},
            {"peek", &Thread::peek},
            {"check_here", &Thread::check_here},
            {"check", &Thread::check_copy},
            {"write_value", &Thread::write_value},
            {"flag_write", &Thread::flag_write},
            {"flag_wait", &Thread::flag_wait},
            {"poll_write", &Thread::poll_write},
            {"poll_wait", &Thread::poll_wait},
            {"signal_wait", &Thread::signal_wait},
            {"barrier", &Thread::barrier},
            {"prefetch", &Thread::prefetch},
            {"graph", &Thread::graph},
            {"node", &Thread::node},
            {"capture_begin", &Thread::capture_begin},
            {"capture_end", &Thread::capture_end},
            {"instantiate", &Thread::instantiate},
            {"launch", &Thread::launch_graph},
            {"kernel_set", &Thread::kernel_set},
            {"graph_destroy", &Thread::graph_destroy},
        };
        current_line = step.line;
        auto found = does.find(step.name);
        if (found == does.end()) fail("line %d: there is no step %s", step.line, step.name.c_str());
        (this->*found->second)(step);
    }

    CUstream at(int64_t number) { return o.streams[number]; }
    // of another thread: how many of its steps must be done
    void await(const Step &s) {
        poll([&] { return progress[s.numbers[0]].load(std::memory_order_acquire) >= s.numbers[1]; });
    }
    void stream(const Step &s) { CHECK(cuStreamCreateWithPriority(&o.streams[s.numbers[0]], s.numbers[1], s.numbers[2])); }
    void stream_destroy(const Step &s) { CHECK(cuStreamDestroy(at(s.numbers[0]))); }
    void event(const Step &s) { CHECK(cuEventCreate(&o.events[s.numbers[0]], s.numbers[1])); }
    void event_destroy(const Step &s) { CHECK(cuEventDestroy(o.events[s.numbers[0]])); }
    void record(const Step &s) { CHECK(cuEventRecord(o.events[s.numbers[0]], at(s.numbers[1]))); }
    void wait(const Step &s) { CHECK(cuStreamWaitEvent(at(s.numbers[1]), o.events[s.numbers[0]], 0)); }
    void event_sync(const Step &s) { CHECK(cuEventSynchronize(o.events[s.numbers[0]])); }
    void event_poll(const Step &s) {
        poll([&] { return passed(cuEventQuery(o.events[s.numbers[0]])); });
    }
    void stream_sync(const Step &s) { CHECK(cuStreamSynchronize(at(s.numbers[0]))); }
    void stream_poll(const Step &s) {
        poll([&] { return passed(cuStreamQuery(at(s.numbers[0]))); });
    }
    void context_sync(const Step &) { CHECK(cuCtxSynchronize()); }
    // block, kind, size, stream
    void alloc(const Step &s) { o.blocks[s.numbers[0]] = make_block(static_cast<Kind>(s.numbers[1]), s.numbers[2], at(s.numbers[3])); }
    void free(const Step &s) { free_block(o.blocks[s.numbers[0]], at(s.numbers[1])); }
    void fill_step(const Step &s) { fill(o, s.numbers[0], &s.numbers[1], at(s.numbers[8])); }
    void copy_step(const Step &s) { copy(o, static_cast<Way>(s.numbers[0]), &s.numbers[1], at(s.numbers[9])); }
    void kernel(const Step &s) { launch(o, s.numbers.data(), at(s.numbers[10])); }
    void host(const Step &s) { // and the stream, and whether by the older call
        HostWork *work = host_work(o, s.numbers.data());
        if (s.numbers[8])
            CHECK(cuStreamAddCallback(at(s.numbers[7]), callback, work, 0));
        else
            CHECK(cuLaunchHostFunc(at(s.numbers[7]), run_host_work, work));
    }
    void host_here(const Step &s) { run_host_work(host_work(o, s.numbers.data())); }
    void peek(const Step &s) { static_cast<void>(*(static_cast<volatile unsigned char *>(o.blocks[s.numbers[0]].host) + s.numbers[1])); }
    void check_here(const Step &s) { compare(s, o.blocks[s.numbers[0]].host + s.numbers[1]); }
    void check_copy(const Step &s) {
        std::vector<unsigned char> bytes(s.numbers[2]);
        CHECK(cuMemcpyDtoH(bytes.data(), o.blocks[s.numbers[0]].address + s.numbers[1], bytes.size()));
        compare(s, bytes.data());
    }
    // block, offset, bytes, value, stream
    void write_value(const Step &s) {
        CUdeviceptr to = o.blocks[s.numbers[0]].address + s.numbers[1];
        if (s.numbers[2] == 4)
            CHECK(cuStreamWriteValue32(at(s.numbers[4]), to, s.numbers[3], 0));
        else
            CHECK(cuStreamWriteValue64(at(s.numbers[4]), to, s.numbers[3], 0));
    }
    void flag_write(const Step &s) { CHECK(cuStreamWriteValue32(at(s.numbers[1]), o.flags + 4 * s.numbers[0], 1, 0)); }
    void flag_wait(const Step &s) {
        unsigned how = s.numbers[2] ? CU_STREAM_WAIT_VALUE_GEQ : CU_STREAM_WAIT_VALUE_EQ;
        CHECK(cuStreamWaitValue32(at(s.numbers[1]), o.flags + 4 * s.numbers[0], 1, how));
    }
    void poll_write(const Step &s) { CHECK(cuStreamWriteValue32(at(s.numbers[1]), o.polled_address + 4 * s.numbers[0], 1, 0)); }
    void poll_wait(const Step &s) {
        poll([&] { return o.polled[s.numbers[0]] == 1; });
        std::atomic_thread_fence(std::memory_order_acquire);
    }
    void signal_wait(const Step &s) {
        poll([&] { return o.signals[s.numbers[0]].load(std::memory_order_acquire) == 1; });
    }
    // Work of the legacy stream, which waits for the blocking ones and they for it.
    void barrier(const Step &) { CHECK(cuMemsetD32Async(o.scratch, 0, 1, nullptr)); }
    void prefetch(const Step &s) { // block, stream, and whether to the host
        CUmemLocation to = {s.numbers[2] ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        const Block &block = o.blocks[s.numbers[0]];
        CHECK(cuMemPrefetchAsync(block.address, block.size, to, 0, at(s.numbers[1])));
    }
    void graph(const Step &s) {
        CHECK(cuGraphCreate(&o.graphs[s.numbers[0]], 0));
        o.nodes[s.numbers[0]].clear();
    }
    void node(const Step &s) { add_node(o, s.numbers.data()); }
    void capture_begin(const Step &s) { CHECK(cuStreamBeginCapture(at(s.numbers[0]), static_cast<CUstreamCaptureMode>(s.numbers[1]))); }
    void capture_end(const Step &s) { CHECK(cuStreamEndCapture(at(s.numbers[1]), &o.graphs[s.numbers[0]])); }
    void instantiate(const Step &s) { CHECK(cuGraphInstantiate(&o.executables[s.numbers[0]], o.graphs[s.numbers[0]], 0)); }
    void launch_graph(const Step &s) { CHECK(cuGraphLaunch(o.executables[s.numbers[0]], at(s.numbers[1]))); }
    void kernel_set(const Step &s) { // graph, node, and what a kernel's step has
        Launch l(o, &s.numbers[2]);
        CUDA_KERNEL_NODE_PARAMS params = l.node();
        CHECK(cuGraphExecKernelNodeSetParams(o.executables[s.numbers[0]], o.nodes[s.numbers[0]][s.numbers[1]], &params));
    }
    void graph_destroy(const Step &s) {
        CHECK(cuGraphExecDestroy(o.executables[s.numbers[0]]));
        CHECK(cuGraphDestroy(o.graphs[s.numbers[0]]));
    }
};
