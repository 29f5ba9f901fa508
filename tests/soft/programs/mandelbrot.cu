// The Mandelbrot set: lanes leave their loops at different times; counts in double are exact, the picture in float is nearly the same.
#include "program.h"

template <class T> __host__ __device__ int escape(T cx, T cy, int limit) {
    T x = 0, y = 0;
    int n = 0;
    while (n < limit) {
        T xx = x * x, yy = y * y;
        if (xx + yy > 4) break;
        y = 2 * x * y + cy;
        x = xx - yy + cx;
        n++;
    }
    return n;
}

template <class T> __global__ void draw(int *out, int w, int h, T left, T top, T step, int limit) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) out[y * w + x] = escape<T>(left + x * step, top + y * step, limit);
}

// Integers alone, in fixed point: the same everywhere.
__host__ __device__ inline int escape_fixed(int64_t cx, int64_t cy, int limit) {
    int64_t x = 0, y = 0;
    for (int n = 0; n < limit; n++) {
        int64_t xx = x * x >> 24, yy = y * y >> 24;
        if (xx + yy > 4 << 24) return n;
        y = (x * y >> 23) + cy;
        x = xx - yy + cx;
    }
    return limit;
}

__global__ void draw_fixed(int *out, int w, int h, int left, int top, int step, int limit) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) out[y * w + x] = escape_fixed(left + x * step, top + y * step, limit);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("mandelbrot");
    const int w = 150, h = 100, limit = 200;
    const double left = random.real(-2.1, -1.9), top = random.real(-1.1, -0.9), step = 0.02;
    const dim3 block(32, 4), grid(blocks_for(w, 32), blocks_for(h, 4));
    Array<int> out(w * h);
    auto compare = [&](const char *what, auto reference, int allowed) {
        auto got = out.host();
        int different = 0, inside = 0;
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                int want = reference(x, y);
                different += got[y * w + x] != want, inside += got[y * w + x] == limit;
            }
        v.that(what, different <= allowed && inside > 500 && inside < w * h);
        out.clear();
    };
    draw_fixed<<<grid, block>>>(out, w, h, (int)(left * (1 << 24)), (int)(top * (1 << 24)), (int)(step * (1 << 24)), limit);
    compare("fixed", [&](int x, int y) { return escape_fixed((int)(left * (1 << 24)) + x * (int)(step * (1 << 24)), (int)(top * (1 << 24)) + y * (int)(step * (1 << 24)), limit); }, 0);
    // Whether a compiler fuses a multiplication and an addition decides over a few points at the edge.
    draw<double><<<grid, block>>>(out, w, h, left, top, step, limit);
    compare("double", [&](int x, int y) { return escape<double>(left + x * step, top + y * step, limit); }, 40);
    draw<float><<<grid, block>>>(out, w, h, (float)left, (float)top, (float)step, limit);
    compare("float", [&](int x, int y) { return escape<float>((float)left + x * (float)step, (float)top + y * (float)step, limit); }, 150);
    return v.end();
}
