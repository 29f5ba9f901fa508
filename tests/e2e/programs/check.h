// What the test programs share: a CUDA error ends the program with exit code 3 and one line that tests can read.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t error_ = (call);                                                                 \
        if (error_ != cudaSuccess) {                                                                 \
            std::printf("cuda error %d (%s) at %s\n", (int)error_, cudaGetErrorName(error_), #call); \
            std::fflush(stdout);                                                                     \
            std::_Exit(3);                                                                           \
        }                                                                                            \
    } while (0)

// With CHECK_GO_ON in the environment the program goes on after what is not so: all that a driver does otherwise is told in one run.
#define EXPECT(condition)                                               \
    do {                                                                \
        if (!(condition)) {                                             \
            std::printf("line %d: not so: %s\n", __LINE__, #condition); \
            std::fflush(stdout);                                        \
            if (!check_goes_on()) std::_Exit(4);                        \
        }                                                               \
    } while (0)

// What a driver does not look for, and need not survive: it is asked of ours only.
#define EXPECT_OF_OURS(condition)                           \
    do {                                                    \
        if (!std::getenv("CHECK_GO_ON")) EXPECT(condition); \
    } while (0)

inline bool check_goes_on() {
    static int times = 0;
    return std::getenv("CHECK_GO_ON") && ++times < 40;
}
