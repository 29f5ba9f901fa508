// cp.async: copies of 4, 8 and 16 bytes into shared memory, with zeros beyond the end, double buffered in groups that are waited for in turn.
#include <cuda_pipeline.h>

#include "program.h"

constexpr int tile = 256;

// Sums over tiles while the next ones are on their way.
template <int stages> __global__ void pipelined(const float4 *in, float4 *out, int tiles) {
    __shared__ float4 buffer[stages][tile];
    float4 sum = make_float4(0, 0, 0, 0);
    int fetched = 0;
    for (; fetched < stages - 1; fetched++) {
        if (fetched < tiles) __pipeline_memcpy_async(&buffer[fetched][threadIdx.x], &in[fetched * tile + threadIdx.x], 16);
        __pipeline_commit();
    }
    for (int t = 0; t < tiles; t++, fetched++) {
        if (fetched < tiles) __pipeline_memcpy_async(&buffer[fetched % stages][threadIdx.x], &in[fetched * tile + threadIdx.x], 16);
        __pipeline_commit();
        __pipeline_wait_prior(stages - 1);
        __syncthreads();
        float4 v = buffer[t % stages][(threadIdx.x + t) % tile];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

// Bytes past the source's end are zeros; sizes by PTX, with and without the L1 cache and hints.
__global__ void partial(const char *in, char *out, int n) {
    __shared__ __align__(16) char a[64 * 16], b[64 * 8], c[64 * 4];
    int i = threadIdx.x, left = max(0, min(16, n - i * 16));
    unsigned to_a = (unsigned)__cvta_generic_to_shared(a + i * 16), to_b = (unsigned)__cvta_generic_to_shared(b + i * 8);
    unsigned to_c = (unsigned)__cvta_generic_to_shared(c + i * 4);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_a), "l"(in + i * 16), "r"(left) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to_b), "l"(in + i * 8) : "memory");
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(to_c), "l"(in + i * 4), "r"(i & 1) : "memory");
    c[i * 4] = i & 1 ? c[i * 4] : 1;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    int j = 63 - i;
    for (int k = 0; k < 16; k++) out[i * 28 + k] = a[j * 16 + k];
    for (int k = 0; k < 8; k++) out[i * 28 + 16 + k] = b[j * 8 + k];
    for (int k = 0; k < 4; k++) out[i * 28 + 24 + k] = j & 1 || k == 0 ? c[j * 4 + k] : 0;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("async_copy");
    const int tiles = 20 + random.below(9);
    auto in = random.reals(tiles * tile * 4, -1, 1);
    Array<float> data(in), out(tile * 4);
    std::vector<double> want(tile * 4);
    for (int t = 0; t < tiles; t++)
        for (int i = 0; i < tile; i++)
            for (int k = 0; k < 4; k++) want[i * 4 + k] += in[(t * tile + (i + t) % tile) * 4 + k];
    auto *from = reinterpret_cast<const float4 *>(data.data);
    auto *to = reinterpret_cast<float4 *>(out.data);
    pipelined<2><<<1, tile>>>(from, to, tiles);
    v.close("two stages", out.host(), want, 1e-5);
    out.clear();
    pipelined<4><<<1, tile>>>(from, to, tiles);
    v.close("four stages", out.host(), want, 1e-5);
    out.clear();
    pipelined<3><<<1, tile>>>(from, to, 2);
    for (int i = 0; i < tile; i++)
        for (int k = 0; k < 4; k++) want[i * 4 + k] = (double)in[i * 4 + k] + in[(tile + (i + 1) % tile) * 4 + k];
    v.close("fewer tiles than stages", out.host(), want, 1e-6);

    const int n = 700 + random.below(300);
    std::vector<char> bytes(64 * 16), parts(64 * 28);
    for (auto &b : bytes) b = (char)random.between(1, 127);
    Array<char> source(bytes), result(64 * 28);
    partial<<<1, 64>>>(source, result, n);
    for (int i = 0; i < 64; i++) {
        int j = 63 - i;
        for (int k = 0; k < 16; k++) parts[i * 28 + k] = j * 16 + k < n ? bytes[j * 16 + k] : 0;
        for (int k = 0; k < 8; k++) parts[i * 28 + 16 + k] = bytes[j * 8 + k];
        for (int k = 0; k < 4; k++) parts[i * 28 + 24 + k] = j & 1 ? bytes[j * 4 + k] : k == 0;
    }
    v.same("parts", result.host(), parts);
    return v.end();
}
