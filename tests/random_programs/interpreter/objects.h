// What a running program has: streams, events, blocks of memory, graphs, by the numbers that its steps call them. A number is used by one thread
// at a time; which step comes first is the program's business.
#pragma once
#include "kernels.h"
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// MAPPED and ASKED are both pinned and used by kernels; of the one the program says so when it allocates it, of the other when it asks for its address.
// SHADOWED is registered, and used by kernels at an address of its own.
enum Kind { DEVICE, ASYNC, PITCHED, VIRTUAL, VARIABLE, MANAGED, PAGEABLE, PINNED, REGISTERED, MAPPED, ASKED, SHADOWED };

struct Block {
    Kind kind;
    size_t size;
    unsigned char *host;  // where the host uses it, if it does
    CUdeviceptr address;  // where kernels, copies and fills use it; of host memory that kernels do not use, the same
    CUmodule module;      // of a variable
    CUdeviceptr reserved; // of virtual memory
    CUmemGenericAllocationHandle parts[2];
};

// What a host function does; kept until the program is over, because a graph calls it again and again.
struct HostWork {
    enum What { FILL, ADD, XOR, SLEEP, SIGNAL } what;
    unsigned char *to;
    const unsigned char *from;
    size_t size;
    uint32_t value;
    std::atomic<int> *signal;
};

constexpr int FLAGS = 1 << 14;

struct Objects {
    CUcontext context;
    CUmodule module;
    CUfunction functions[5];
    std::vector<CUstream> streams = std::vector<CUstream>(64);
    std::vector<CUevent> events = std::vector<CUevent>(256);
    std::vector<Block> blocks = std::vector<Block>(4096);
    std::vector<CUgraph> graphs = std::vector<CUgraph>(512);
    std::vector<CUgraphExec> executables = std::vector<CUgraphExec>(512);
    std::vector<std::vector<CUgraphNode>> nodes = std::vector<std::vector<CUgraphNode>>(512);
    std::vector<std::unique_ptr<HostWork>> work;
    std::mutex work_lock;
    CUdeviceptr flags;         // words that streams write and wait for
    volatile uint32_t *polled; // words that streams write and the host looks at
    CUdeviceptr polled_address;
    std::vector<std::atomic<int>> signals = std::vector<std::atomic<int>>(FLAGS); // that host functions set
    CUdeviceptr scratch;
};

extern const char *running; // the program's name

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...) {
    static std::mutex one;
    one.lock(); // and keeps it: the first thread that fails ends the process
    std::printf("program %s: ", running);
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
    std::fflush(stdout);
    std::_Exit(1);
}

inline thread_local int current_line = -1;

inline void check(CUresult result, const char *call) {
    const char *name = nullptr;
    if (result == CUDA_SUCCESS) return;
    cuGetErrorName(result, &name);
    fail("line %d: %s answers %s", current_line, call, name ? name : "?");
}

#define CHECK(call) check((call), #call)
