// Stencils: 2-D with a halo in shared memory, 3-D with a queue of planes in registers, 1-D of radius 3 with a dynamic tile.
#include "program.h"

__global__ void heat_2d(const float *in, float *out, int w, int h) {
    __shared__ float tile[18][34];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    auto at = [&](int x, int y) { return in[min(max(y, 0), h - 1) * w + min(max(x, 0), w - 1)]; };
    tile[ty][tx] = at(x, y);
    if (threadIdx.x == 0) tile[ty][0] = at(x - 1, y);
    if (threadIdx.x == 31) tile[ty][33] = at(x + 1, y);
    if (threadIdx.y == 0) tile[0][tx] = at(x, y - 1);
    if (threadIdx.y == 15) tile[17][tx] = at(x, y + 1);
    __syncthreads();
    if (x < w && y < h)
        out[y * w + x] = 0.6f * tile[ty][tx] + 0.1f * (tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx]);
}

__global__ void laplace_3d(const double *in, double *out, int n) {
    int x = blockIdx.x * 16 + threadIdx.x + 1, y = blockIdx.y * 8 + threadIdx.y + 1;
    if (x >= n - 1 || y >= n - 1) return;
    int plane = n * n, i = y * n + x;
    double below = in[i], here = in[i + plane];
    for (int z = 1; z < n - 1; z++) {
        i += plane;
        double above = in[i + plane];
        out[i] = below + above + in[i - 1] + in[i + 1] + in[i - n] + in[i + n] - 6 * here;
        below = here, here = above;
    }
}

__global__ void smooth_1d(const int *in, int *out, int n) {
    extern __shared__ int cells[];
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x + 3;
    cells[t] = i < n ? in[i] : 0;
    if (threadIdx.x < 3) {
        cells[threadIdx.x] = i >= 3 ? in[i - 3] : 0;
        int right = i + blockDim.x;
        cells[t + blockDim.x] = right < n ? in[right] : 0;
    }
    __syncthreads();
    int sum = 0;
    for (int d = -3; d <= 3; d++) sum += (4 - abs(d)) * cells[t + d];
    if (i < n) out[i] = sum;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("stencil");
    const int w = 150 + random.below(60), h = 130 + random.below(60), steps = 4;
    auto field = random.reals(w * h, 0, 100);
    Array<float> a(field), b(w * h);
    std::vector<double> now(field.begin(), field.end()), next(w * h);
    for (int s = 0; s < steps; s++) {
        heat_2d<<<dim3(blocks_for(w, 32), blocks_for(h, 16)), dim3(32, 16)>>>(s % 2 ? b : a, s % 2 ? a : b, w, h);
        auto at = [&](int x, int y) { return now[std::clamp(y, 0, h - 1) * w + std::clamp(x, 0, w - 1)]; };
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) next[y * w + x] = 0.6 * at(x, y) + 0.1 * (at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1));
        now.swap(next);
    }
    v.close("2-D", a.host(), now, 1e-6);

    const int n = 30 + random.below(10);
    auto cube = random.reals<double>(n * n * n, -1, 1);
    Array<double> c(cube), d(cube.size());
    laplace_3d<<<dim3(blocks_for(n - 2, 16), blocks_for(n - 2, 8)), dim3(16, 8)>>>(c, d, n);
    std::vector<double> want(cube.size());
    for (int z = 1; z < n - 1; z++)
        for (int y = 1; y < n - 1; y++)
            for (int x = 1; x < n - 1; x++) {
                int i = (z * n + y) * n + x;
                want[i] = cube[i - n * n] + cube[i + n * n] + cube[i - 1] + cube[i + 1] + cube[i - n] + cube[i + n] - 6 * cube[i];
            }
    v.close("3-D", d.host(), want, 1e-14);

    const int m = 5000 + random.below(100);
    auto line = random.ints(m, -1000, 1000);
    Array<int> e(line), f(m);
    smooth_1d<<<blocks_for(m, 128), 128, (128 + 6) * sizeof(int)>>>(e, f, m);
    std::vector<int> smooth(m);
    for (int i = 0; i < m; i++)
        for (int k = -3; k <= 3; k++) smooth[i] += i + k >= 0 && i + k < m ? (4 - std::abs(k)) * line[i + k] : 0;
    v.same("1-D", f.host(), smooth);
    return v.end();
}
