// Jacobi's iteration for a linear system, until the residual that a reduction computes each round is small; the solution is put back into the system.
#include "program.h"

__global__ void iterate(const double *a, const double *b, const double *x, double *next, int n) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    double sum = 0;
    for (int j = lane; j < n; j += 32)
        if (j != row) sum += a[row * n + j] * x[j];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0) next[row] = (b[row] - sum) / a[row * n + row];
}

__global__ void difference(const double *x, const double *y, double *largest, int n) {
    __shared__ double cells[128];
    double most = 0;
    for (int i = threadIdx.x; i < n; i += 128) most = fmax(most, fabs(x[i] - y[i]));
    cells[threadIdx.x] = most;
    for (int half = 64; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) cells[threadIdx.x] = fmax(cells[threadIdx.x], cells[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) *largest = cells[0];
}

// Red and black points of a grid in turn, with over-relaxation: Gauss and Seidel.
__global__ void relax(float *u, const float *f, int n, int colour) {
    int x = blockIdx.x * blockDim.x + threadIdx.x + 1, y = blockIdx.y * blockDim.y + threadIdx.y + 1;
    if (x >= n - 1 || y >= n - 1 || (x + y) % 2 != colour) return;
    float wanted = 0.25f * (u[y * n + x - 1] + u[y * n + x + 1] + u[(y - 1) * n + x] + u[(y + 1) * n + x] - f[y * n + x]);
    u[y * n + x] += 1.8f * (wanted - u[y * n + x]);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("jacobi");
    const int n = 150 + random.below(50);
    auto a = random.reals<double>(n * n, -1, 1), solution = random.reals<double>(n, -1, 1);
    std::vector<double> b(n);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++) sum += j == i ? 0 : std::fabs(a[i * n + j]);
        a[i * n + i] = 1.5 * sum + 1;
        for (int j = 0; j < n; j++) b[i] += a[i * n + j] * solution[j];
    }
    Array<double> da(a), db(b), x(n), y(n), largest(1);
    int rounds = 0;
    double change = 1;
    while (change > 1e-13 && rounds < 300) {
        iterate<<<blocks_for(n, 4), 128>>>(da, db, rounds % 2 ? y : x, rounds % 2 ? x : y, n);
        difference<<<1, 128>>>(x, y, largest, n);
        change = largest.first();
        rounds++;
    }
    v.that("rounds", rounds > 10 && rounds < 200);
    v.close("solution", (rounds % 2 ? y : x).host(), solution, 1e-12);

    const int m = 34;
    std::vector<float> source(m * m), edge(m * m);
    for (int i = 0; i < m; i++) edge[i] = (float)random.real(0, 1), edge[i * m + m - 1] = (float)random.real(0, 1);
    for (auto &s : source) s = (float)random.real(-0.1, 0.1);
    Array<float> u(edge), f(source);
    for (int k = 0; k < 150; k++)
        for (int colour = 0; colour < 2; colour++) relax<<<dim3(1, 4), dim3(32, 8)>>>(u, f, m, colour);
    auto got = u.host();
    double residual = 0;
    for (int j = 1; j < m - 1; j++)
        for (int i = 1; i < m - 1; i++)
            residual = std::max(residual, std::fabs((double)got[j * m + i - 1] + got[j * m + i + 1] + got[(j - 1) * m + i] + got[(j + 1) * m + i] - 4.0 * got[j * m + i] - source[j * m + i]));
    v.that("residual of the grid", residual < 1e-5);
    return v.end();
}
