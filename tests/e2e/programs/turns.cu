// A program that shares a GPU's memory with others: turns MIB SECONDS [half FILE | until FILE]. It allocates MIB MiB in pieces of 10, computes on all of them for
// SECONDS, with "until" also until FILE exists, checks them, and prints "right" with the number of its rounds. It says "running" when it has its memory; with "half"
// when it has half of it, and goes on when FILE exists. Prints "out of memory" and ends with 3 when it does not get what it wants.
#include "check.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

static const size_t PIECE = 10 << 20, WORDS = PIECE / 4;

__global__ void add(unsigned *v, unsigned value) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < WORDS; i += (size_t)gridDim.x * blockDim.x) v[i] += value;
}

static void say_running() {
    std::printf("running\n");
    std::fflush(stdout);
}

int main(int argc, char **argv) {
    EXPECT(argc > 2);
    const size_t count = std::strtoul(argv[1], nullptr, 10) / 10;
    const std::chrono::duration<double> seconds(std::strtod(argv[2], nullptr));
    const std::string mode = argc > 3 ? argv[3] : "";
    std::vector<unsigned *> pieces;
    while (pieces.size() < count) {
        unsigned *piece;
        cudaError_t error = cudaMalloc(&piece, PIECE);
        if (error == cudaErrorMemoryAllocation) {
            std::printf("out of memory\n");
            return 3;
        }
        CHECK(error);
        CHECK(cudaMemset(piece, 0, PIECE));
        pieces.push_back(piece);
        if (mode != "half" || pieces.size() != count / 2) continue;
        CHECK(cudaDeviceSynchronize());
        say_running();
        while (access(argv[4], F_OK) != 0) usleep(1000);
    }
    if (mode != "half") say_running();
    unsigned rounds = 0;
    const auto began = std::chrono::steady_clock::now();
    do {
        rounds++;
        for (size_t i = 0; i < count; i++) add<<<64, 128>>>(pieces[i], (unsigned)i + 1);
        CHECK(cudaDeviceSynchronize());
    } while (std::chrono::steady_clock::now() - began < seconds || (mode == "until" && access(argv[4], F_OK) != 0));
    std::vector<unsigned> found(WORDS);
    for (size_t i = 0; i < count; i++) {
        CHECK(cudaMemcpy(found.data(), pieces[i], PIECE, cudaMemcpyDeviceToHost));
        for (unsigned word : found) EXPECT(word == rounds * ((unsigned)i + 1));
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("right %u\n", rounds);
    return 0;
}
