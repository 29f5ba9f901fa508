// The first call of all is a launch, and what the kernel prints comes out in the program's own output, before what the host prints after synchronising.
#include "check.h"

__global__ void hello(int n) {
    if (threadIdx.x < 2) printf("lane %d: %s %.2f %llu %c %5d|\n", threadIdx.x, "text", 1.5 * n, 123456789012345ull, 'x', n);
}

int main() {
    hello<<<1, 32>>>(7);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::printf("host\n");
    return 0;
}
