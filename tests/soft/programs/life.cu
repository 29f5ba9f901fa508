// The game of life on a torus: bytes, tiles in shared memory, and 32 cells to a word with the sums of neighbours in bit planes.
#include "program.h"

__global__ void bytes(const uint8_t *in, uint8_t *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    int sum = 0;
    for (int j = n - 1; j <= n + 1; j++)
        for (int i = n - 1; i <= n + 1; i++) sum += in[(y + j) % n * n + (x + i) % n];
    out[y * n + x] = sum == 3 || (sum == 4 && in[y * n + x]);
}

__global__ void tiles(const uint8_t *in, uint8_t *out, int n) {
    __shared__ uint8_t tile[18][18];
    int x0 = blockIdx.x * 16, y0 = blockIdx.y * 16;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) tile[i / 18][i % 18] = in[(y0 + i / 18 - 1 + n) % n * n + (x0 + i % 18 - 1 + n) % n];
    __syncthreads();
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1, sum = 0;
    for (int j = -1; j <= 1; j++)
        for (int i = -1; i <= 1; i++) sum += tile[ty + j][tx + i];
    out[(y0 + ty - 1) * n + x0 + tx - 1] = sum == 3 || (sum == 4 && tile[ty][tx]);
}

__device__ void add(unsigned &ones, unsigned &twos, unsigned &fours, unsigned bit) {
    unsigned carry = ones & bit;
    ones ^= bit;
    fours |= twos & carry;
    twos ^= carry;
}

__global__ void words(const unsigned *in, unsigned *out, int n) {
    int per_row = n / 32, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * per_row) return;
    int w = i % per_row, y = i / per_row;
    unsigned ones = 0, twos = 0, fours = 0, here = 0;
    for (int j = -1; j <= 1; j++) {
        const unsigned *row = in + (y + j + n) % n * per_row;
        unsigned middle = row[w], left = row[(w + per_row - 1) % per_row], right = row[(w + 1) % per_row];
        add(ones, twos, fours, __funnelshift_l(left, middle, 1));
        add(ones, twos, fours, __funnelshift_r(middle, right, 1));
        if (j) add(ones, twos, fours, middle);
        else here = middle;
    }
    out[i] = twos & ~fours & (ones | here);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("life");
    const int n = 96, steps = 20;
    std::vector<uint8_t> cells(n * n), next(n * n);
    for (auto &c : cells) c = random.below(3) == 0;
    std::vector<unsigned> packed(n * n / 32);
    for (int i = 0; i < n * n; i++) packed[i / 32] |= (unsigned)cells[i] << i % 32;
    Array<uint8_t> a(cells), b(n * n), c(cells), d(n * n);
    Array<unsigned> p(packed), q(n * n / 32);
    for (int s = 0; s < steps; s++) {
        bool odd = s % 2;
        bytes<<<dim3(blocks_for(n, 32), blocks_for(n, 5)), dim3(32, 5)>>>(odd ? b : a, odd ? a : b, n);
        tiles<<<dim3(n / 16, n / 16), dim3(16, 16)>>>(odd ? d : c, odd ? c : d, n);
        words<<<blocks_for(n * n / 32, 64), 64>>>(odd ? q : p, odd ? p : q, n);
        for (int y = 0; y < n; y++)
            for (int x = 0; x < n; x++) {
                int sum = 0;
                for (int j = 0; j < 9; j++) sum += cells[(y + j / 3 - 1 + n) % n * n + (x + j % 3 - 1 + n) % n];
                next[y * n + x] = sum == 3 || (sum == 4 && cells[y * n + x]);
            }
        cells.swap(next);
    }
    std::vector<unsigned> want(n * n / 32);
    for (int i = 0; i < n * n; i++) want[i / 32] |= (unsigned)cells[i] << i % 32;
    v.same("bytes", a.host(), cells);
    v.same("tiles", c.host(), cells);
    v.same("words", p.host(), want);
    v.that("alive", std::count(cells.begin(), cells.end(), 1) > 20);
    return v.end();
}
