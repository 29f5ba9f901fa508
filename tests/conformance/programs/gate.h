// A gate that a stream waits at until the program opens it: so that a case knows what has not been done yet.
#pragma once
#include "conformance.h"
#include <atomic>

struct Gate {
    std::atomic<bool> reached{false}, open{false};
    // The stream stands at the gate until `open` is set.
    void put(CUstream stream) { CHECK(cuLaunchHostFunc(stream, wait, this)); }
    static void CUDA_CB wait(void *gate) {
        auto *self = static_cast<Gate *>(gate);
        self->reached = true;
        for (int i = 0; i < 15000 && !self->open; i++) { // not for ever: a case that fails must end
            timespec pause = {0, 1000000};
            nanosleep(&pause, nullptr);
        }
    }
};
