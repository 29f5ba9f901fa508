// Sparse matrix times vector: compressed rows by threads, by warps and in merged pieces with carries, ELLPACK, coordinates with atomics; power iteration.
#include "program.h"

__global__ void by_threads(const int *rows, const int *columns, const float *values, const float *x, float *y, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n) return;
    float sum = 0;
    for (int e = rows[r]; e < rows[r + 1]; e++) sum += values[e] * x[columns[e]];
    y[r] = sum;
}

template <int width> __global__ void by_groups(const int *rows, const int *columns, const float *values, const float *__restrict__ x, float *y, int n) {
    int r = (blockIdx.x * blockDim.x + threadIdx.x) / width, lane = threadIdx.x % width;
    float sum = 0;
    if (r < n)
        for (int e = rows[r] + lane; e < rows[r + 1]; e += width) sum = fmaf(values[e], __ldg(&x[columns[e]]), sum);
#pragma unroll
    for (int d = width / 2; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d, width);
    if (r < n && lane == 0) y[r] = sum;
}

// Every thread takes the same number of elements; what a row has in several threads is added by atomics.
__global__ void in_pieces(const int *rows, const int *columns, const float *values, const float *x, float *y, int n, int count, int each) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * each, last = min(first + each, count);
    if (first >= count) return;
    int low = 0, high = n; // the row of the first element
    while (high - low > 1) {
        int middle = (low + high) / 2;
        (rows[middle] <= first ? low : high) = middle;
    }
    float sum = 0;
    for (int e = first, r = low; e < last; e++) {
        while (e >= rows[r + 1]) {
            if (sum != 0) atomicAdd(&y[r], sum);
            sum = 0, r++;
        }
        sum += values[e] * x[columns[e]];
        if (e + 1 == last) atomicAdd(&y[r], sum);
    }
}

__global__ void ellpack(const int *columns, const float *values, const float *x, float *y, int n, int width) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n) return;
    float sum = 0;
    for (int k = 0; k < width; k++) {
        int c = columns[k * n + r];
        if (c >= 0) sum += values[k * n + r] * x[c];
    }
    y[r] = sum;
}

__global__ void coordinates(const int *from, const int *to, const float *values, const float *x, double *y, int count) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e < count) atomicAdd(&y[from[e]], (double)values[e] * x[to[e]]);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("spmv");
    const int n = 900 + random.below(100);
    std::vector<int> rows = {0}, columns, row_of, wide;
    std::vector<float> values, wide_values;
    for (int r = 0; r < n; r++) {
        int length = r % 97 == 5 ? 300 : r % 11 == 3 ? 0 : random.below(20);
        for (int k = 0; k < length; k++) {
            columns.push_back(random.below(n));
            values.push_back((float)random.real(-1, 1));
            row_of.push_back(r);
        }
        rows.push_back((int)columns.size());
    }
    const int count = rows[n], width = 300;
    auto x = random.reals(n, -1, 1);
    std::vector<double> want(n);
    wide.assign(width * n, -1), wide_values.assign(width * n, 0);
    for (int r = 0; r < n; r++)
        for (int e = rows[r]; e < rows[r + 1]; e++) {
            want[r] += (double)values[e] * x[columns[e]];
            wide[(e - rows[r]) * n + r] = columns[e], wide_values[(e - rows[r]) * n + r] = values[e];
        }
    Array<int> dr(rows), dc(columns), df(row_of), dw(wide);
    Array<float> dv(values), dx(x), dy(n), dwv(wide_values);
    auto check = [&](const char *what) {
        v.close(what, dy.host(), want, 1e-5);
        dy.clear();
    };
    by_threads<<<blocks_for(n, 64), 64>>>(dr, dc, dv, dx, dy, n);
    check("by threads");
    by_groups<32><<<blocks_for(n, 4), 128>>>(dr, dc, dv, dx, dy, n);
    check("by warps");
    by_groups<8><<<blocks_for(n, 12), 96>>>(dr, dc, dv, dx, dy, n);
    check("by groups of 8");
    in_pieces<<<blocks_for(count, 64 * 7), 64>>>(dr, dc, dv, dx, dy, n, count, 7);
    check("in pieces");
    ellpack<<<blocks_for(n, 128), 128>>>(dw, dwv, dx, dy, n, width);
    check("ELLPACK");
    Array<double> sums(n);
    coordinates<<<blocks_for(count, 256), 256>>>(df, dc, dv, dx, sums, count);
    v.close("coordinates", sums.host(), want, 1e-13);
    return v.end();
}
