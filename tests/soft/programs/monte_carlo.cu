// Monte Carlo: Philox 4x32-10 written out (its words checked one by one), pi, and the price of an option by Box and Muller's normals.
#include "program.h"

__host__ __device__ inline uint4 philox(uint4 c, uint2 k) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = make_uint4((uint32_t)(b >> 32) ^ c.y ^ k.x, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ k.y, (uint32_t)a);
        k.x += 0x9E3779B9u, k.y += 0xBB67AE85u;
    }
    return c;
}

__global__ void words(uint4 *out, uint2 key) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = philox(make_uint4(i, 0, 7, 0), key);
}

__global__ void darts(unsigned long long *hits, uint2 key, int rounds) {
    unsigned id = blockIdx.x * blockDim.x + threadIdx.x, inside = 0;
    for (int r = 0; r < rounds; r++) {
        uint4 w = philox(make_uint4(id, r, 1, 0), key);
        uint64_t x = w.x, y = w.y, s = w.z, t = w.w;
        inside += (x * x >> 1) + (y * y >> 1) < (1ull << 63);
        inside += (s * s >> 1) + (t * t >> 1) < (1ull << 63);
    }
    inside = __reduce_add_sync(~0u, inside);
    if (threadIdx.x % 32 == 0) atomicAdd(hits, (unsigned long long)inside);
}

__global__ void paths(double *sum, uint2 key, int rounds) {
    __shared__ double cells[128];
    unsigned id = blockIdx.x * blockDim.x + threadIdx.x;
    double paid = 0;
    for (int r = 0; r < rounds; r++) {
        uint4 w = philox(make_uint4(id, r, 2, 0), key);
        float radius = sqrtf(-2 * logf((w.x + 0.5f) * 0x1p-32f)), s, c;
        sincospif(w.y * 0x1p-31f, &s, &c);
        for (float z : {radius * s, radius * c}) paid += fmaxf(0, 100 * expf(-0.03f + 0.2f * z) - 95);
    }
    cells[threadIdx.x] = paid;
    for (int half = 64; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(sum, cells[0]);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("monte_carlo");
    const uint2 key = make_uint2((unsigned)random.bits(), (unsigned)random.bits());
    const int n = 64 * 128, rounds = 4;
    Array<uint4> numbers(n);
    words<<<64, 128>>>(numbers, key);
    auto got = numbers.host();
    bool right = true;
    for (int i = 0; i < n; i++) {
        uint4 want = philox(make_uint4(i, 0, 7, 0), key);
        right &= want.x == got[i].x && want.y == got[i].y && want.z == got[i].z && want.w == got[i].w;
    }
    v.that("words", right);

    Array<unsigned long long> hits(1);
    darts<<<64, 128>>>(hits, key, rounds);
    unsigned long long inside = 0;
    double paid = 0;
    for (unsigned id = 0; id < n; id++)
        for (int r = 0; r < rounds; r++) {
            uint4 w = philox(make_uint4(id, r, 1, 0), key);
            for (auto [x, y] : {std::pair<uint64_t, uint64_t>{w.x, w.y}, {w.z, w.w}}) inside += (x * x >> 1) + (y * y >> 1) < (1ull << 63);
            w = philox(make_uint4(id, r, 2, 0), key);
            double radius = std::sqrt(-2 * std::log((w.x + 0.5) / 4294967296.0)), angle = w.y / 4294967296.0 * 2 * M_PI;
            for (double z : {radius * std::sin(angle), radius * std::cos(angle)}) paid += std::max(0.0, 100 * std::exp(-0.03 + 0.2 * z) - 95);
        }
    v.same("darts", hits.first(), inside);
    v.close("pi", 4.0 * inside / (2.0 * n * rounds), M_PI, 0.02);
    Array<double> sum(1);
    paths<<<64, 128>>>(sum, key, rounds);
    v.close("option", sum.first(), paid, 1e-5);
    return v.end();
}
