// Transposition: straight, through a padded tile, by warp shuffles of an 8-byte type, and in place.
#include "program.h"

struct alignas(8) Pair {
    int x, y;
    bool operator==(const Pair &other) const { return x == other.x && y == other.y; }
};

__global__ void straight(const float *in, float *out, int rows, int columns) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x < columns && y < rows) out[(size_t)x * rows + y] = in[(size_t)y * columns + x];
}

template <class T> __global__ void tiled(const T *in, T *out, int rows, int columns) {
    __shared__ T tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < columns) out[(size_t)(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

// A warp transposes 32 x 32 elements in registers, in five rounds of exchanges.
__global__ void exchanged(const double *in, double *out) {
    double row[32];
    int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 32; i++) row[i] = in[i * 32 + lane];
#pragma unroll
    for (int d = 16; d; d /= 2)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (!(i & d)) {
                double sent = lane & d ? row[i] : row[i | d], came = __shfl_xor_sync(~0u, sent, d);
                if (lane & d) row[i] = came;
                else row[i | d] = came;
            }
#pragma unroll
    for (int i = 0; i < 32; i++) out[i * 32 + lane] = row[i];
}

__global__ void in_place(Pair *a, int n) {
    __shared__ Pair upper[16][17], lower[16][17];
    if (blockIdx.x < blockIdx.y) return;
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, xt = blockIdx.y * 16 + threadIdx.x, yt = blockIdx.x * 16 + threadIdx.y;
    upper[threadIdx.y][threadIdx.x] = a[y * n + x];
    lower[threadIdx.y][threadIdx.x] = a[yt * n + xt];
    __syncthreads();
    a[yt * n + xt] = upper[threadIdx.x][threadIdx.y];
    a[y * n + x] = lower[threadIdx.x][threadIdx.y];
}

template <class T> static std::vector<T> turned(const std::vector<T> &in, int rows, int columns) {
    std::vector<T> out(in.size());
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++) out[(size_t)x * rows + y] = in[(size_t)y * columns + x];
    return out;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("transpose");
    const int rows = 200 + random.below(100), columns = 300 + random.below(100);
    auto in = random.reals((size_t)rows * columns, -1, 1);
    Array<float> a(in), b(in.size());
    straight<<<dim3(blocks_for(columns, 32), blocks_for(rows, 8)), dim3(32, 8)>>>(a, b, rows, columns);
    v.same("straight", b.host(), turned(in, rows, columns));
    b.clear();
    tiled<<<dim3(blocks_for(columns, 32), blocks_for(rows, 32)), dim3(32, 8)>>>(a.data, b.data, rows, columns);
    v.same("tiled", b.host(), turned(in, rows, columns));

    std::vector<char> bytes(in.size());
    for (auto &c : bytes) c = (char)random.bits();
    Array<char> p(bytes), q(bytes.size());
    tiled<<<dim3(blocks_for(columns, 32), blocks_for(rows, 32)), dim3(32, 8)>>>(p.data, q.data, rows, columns);
    v.same("tiled bytes", q.host(), turned(bytes, rows, columns));

    auto square = random.reals<double>(1024, -1, 1);
    Array<double> c(square), d(1024);
    exchanged<<<1, 32>>>(c, d);
    v.same("exchanged", d.host(), turned(square, 32, 32));

    const int n = 16 * random.between(3, 9);
    std::vector<Pair> pairs(n * n);
    for (auto &pair : pairs) pair = {random.below(1000), random.below(1000)};
    Array<Pair> e(pairs);
    in_place<<<dim3(n / 16, n / 16), dim3(16, 16)>>>(e, n);
    v.same("in place", e.host(), turned(pairs, n, n));
    return v.end();
}
