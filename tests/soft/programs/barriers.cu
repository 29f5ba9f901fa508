// Barriers that count: __syncthreads_count, _and, _or; named barriers of some warps; producers and consumers; barriers in divergent branches and after early exits.
#include "program.h"

__global__ void counted(const int *in, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i];
    int odd = __syncthreads_count(x & 1), all = __syncthreads_and(x > 0), any = __syncthreads_or(x > 98);
    out[i] = odd * 4 + (all != 0) * 2 + (any != 0);
}

// Threads below a limit go on and meet at a barrier that the others pass elsewhere; some have left before.
__global__ void apart(int *out, int leave) {
    __shared__ int cells[96];
    int t = threadIdx.x;
    cells[t] = 0;
    __syncthreads();
    if (t >= leave) return;
    for (int round = 0; round < 3; round++) {
        if (t & 1) {
            cells[t] += t;
            __syncthreads();
        } else {
            cells[t] += 2 * t;
            __syncthreads();
        }
        out[blockIdx.x * 96 + t] = cells[leave - 1 - t] + round;
        __syncthreads();
    }
}

// Two warps fill a ring that two others empty: full and empty barriers for each of two slots.
__global__ void ring(const int *in, int *out, int rounds) {
    __shared__ int slots[2][64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int r = 0; r < rounds; r++) {
            if (r >= 2) asm volatile("bar.sync %0, 128;" ::"r"(3 + r % 2) : "memory");
            slots[r % 2][t] = in[r * 64 + t] * 3;
            __threadfence_block();
            asm volatile("bar.arrive %0, 128;" ::"r"(1 + r % 2) : "memory");
        }
    } else {
        for (int r = 0; r < rounds; r++) {
            asm volatile("bar.sync %0, 128;" ::"r"(1 + r % 2) : "memory");
            out[r * 64 + t] = slots[r % 2][63 - t] + r;
            if (r + 2 < rounds) asm volatile("bar.arrive %0, 128;" ::"r"(3 + r % 2) : "memory");
        }
    }
}

// Warps of one half meet often, those of the other once.
__global__ void halves(int *out) {
    __shared__ int chain[128];
    int t = threadIdx.x;
    chain[t] = t;
    __syncthreads();
    if (t < 64) {
        for (int k = 1; k < 64; k *= 2) {
            int v = chain[(t + k) % 64];
            asm volatile("barrier.sync 5, 64;" ::: "memory");
            chain[t] += v;
            asm volatile("barrier.sync 5, 64;" ::: "memory");
        }
    } else chain[t] *= 7;
    __syncthreads();
    out[t] = chain[127 - t];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("barriers");
    const int block = 100, n = block * 8;
    auto in = random.ints(n, 1, 99);
    in[block * 3 + 50] = 0;
    Array<int> data(in), out(n);
    counted<<<8, block>>>(data, out);
    std::vector<int> want(n);
    for (int i = 0; i < n; i++) {
        int odd = 0, all = 1, any = 0;
        for (int j = i / block * block; j < i / block * block + block; j++) odd += in[j] & 1, all &= in[j] > 0, any |= in[j] > 98;
        want[i] = odd * 4 + all * 2 + any;
    }
    v.same("counted", out.host(), want);

    const int leave = random.between(40, 90);
    Array<int> parted(192);
    apart<<<2, 96>>>(parted, leave);
    std::vector<int> parts(192);
    for (int i = 0; i < 192; i++)
        if (i % 96 < leave) {
            int other = leave - 1 - i % 96;
            parts[i] = 3 * (other & 1 ? other : 2 * other) + 2;
        }
    v.same("apart", parted.host(), parts);

    const int rounds = n / 64;
    out.clear();
    ring<<<1, 128>>>(data, out, rounds);
    std::vector<int> passed(n);
    for (int r = 0; r < rounds; r++)
        for (int t = 0; t < 64; t++) passed[r * 64 + t] = in[r * 64 + 63 - t] * 3 + r;
    v.same("ring", out.host(), passed);

    Array<int> chain(128);
    halves<<<1, 128>>>(chain);
    std::vector<int> sums(128);
    for (int t = 0; t < 128; t++) sums[t] = 127 - t < 64 ? 63 * 64 / 2 : (127 - t) * 7;
    v.same("halves", chain.host(), sums);
    return v.end();
}
