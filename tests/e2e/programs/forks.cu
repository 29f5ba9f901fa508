// fork() and GPUs. "before": fork first, then parent and child both compute. "after": the parent computes, forks, the child is refused as by a real driver
// (and only it), the parent goes on. "exec": the parent computes, then forks and executes itself as a fresh program. Prints "right" ("silent", that fresh program, does not).
#include "check.h"
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__global__ void square(int *v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v[i] *= v[i];
}

static void compute(int salt) {
    const int n = 10000;
    std::vector<int> host(n);
    for (int i = 0; i < n; i++) host[i] = i % 1000 + salt;
    int *v;
    CHECK(cudaMalloc(&v, n * 4));
    CHECK(cudaMemcpy(v, host.data(), n * 4, cudaMemcpyHostToDevice));
    square<<<(n + 255) / 256, 256>>>(v, n);
    CHECK(cudaMemcpy(host.data(), v, n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(host[i] == (i % 1000 + salt) * (i % 1000 + salt));
    CHECK(cudaFree(v));
}

static int status_of(pid_t child) {
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    if (!std::strcmp(argv[1], "before")) {
        pid_t child = fork();
        compute(child ? 1 : 2);
        if (!child) return 0;
        EXPECT(status_of(child) == 0);
    } else if (!std::strcmp(argv[1], "after")) {
        compute(1);
        pid_t child = fork();
        if (!child) {
            int *v = nullptr;
            cudaError_t error = cudaMalloc(&v, 64);
            _exit(error == cudaErrorInitializationError ? 0 : 100 + (int)error % 100);
        }
        EXPECT(status_of(child) == 0);
        compute(5);
        // A child that does not touch the GPU must leave the parent's session alone, also when it exits normally.
        child = fork();
        if (!child) std::exit(0);
        EXPECT(status_of(child) == 0);
        compute(6);
    } else if (!std::strcmp(argv[1], "exec")) {
        compute(1);
        pid_t child = fork();
        if (!child) {
            execl("/proc/self/exe", argv[0], "silent", (char *)nullptr);
            _exit(99);
        }
        EXPECT(status_of(child) == 0);
        compute(2);
    } else {
        compute(3);
        return 0;
    }
    std::printf("right\n");
    return 0;
}
