// A kernel that never ends. Prints "running" when it has been launched.
#include "check.h"
#include <unistd.h>

__global__ void endless(volatile int *flag) {
    while (*flag == 0) {}
}

int main() {
    int *flag;
    CHECK(cudaMalloc(&flag, sizeof(int)));
    CHECK(cudaMemset(flag, 0, sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    endless<<<1, 32>>>(flag);
    CHECK(cudaGetLastError());
    usleep(300000);
    std::printf("running\n");
    std::fflush(stdout);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
