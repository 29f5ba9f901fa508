// Recursion: Fibonacci, Ackermann, quicksort of rows with its own stack of calls, queens on a board, mutual recursion; lanes go to different depths.
#include "program.h"

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
__device__ bool is_odd(unsigned n);
__device__ __noinline__ bool is_even(unsigned n) { return n == 0 || is_odd(n - 1); }
__device__ __noinline__ bool is_odd(unsigned n) { return n != 0 && is_even(n - 1); }

__device__ void quicksort(int *first, int *last) {
    if (last - first < 1) return;
    int pivot = first[(last - first) / 2], *i = first, *j = last;
    while (i <= j) {
        while (*i < pivot) i++;
        while (*j > pivot) j--;
        if (i <= j) {
            int t = *i;
            *i++ = *j;
            *j-- = t;
        }
    }
    quicksort(first, j);
    quicksort(i, last);
}

__device__ int queens(int n, unsigned columns, unsigned left, unsigned right) {
    unsigned all = (1u << n) - 1;
    if (columns == all) return 1;
    int found = 0;
    for (unsigned free = all & ~(columns | left | right); free;) {
        unsigned bit = free & -free;
        free ^= bit;
        found += queens(n, columns | bit, (left | bit) << 1, (right | bit) >> 1);
    }
    return found;
}

__global__ void numbers(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fibonacci(in[i]) * 4 + is_even(in[i] * 5) + 2 * is_odd(in[i] + 1);
}

__global__ void ackermanns(unsigned *out) { out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x / 3); }

__global__ void sort_rows(int *rows, const int *lengths, int pitch, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) quicksort(rows + i * pitch, rows + i * pitch + lengths[i] - 1);
}

__global__ void place_queens(int *total, int n) {
    // A thread for each place of the first two rows.
    int a = threadIdx.x / n, b = threadIdx.x % n;
    if (a >= n || abs(a - b) < 2) return;
    unsigned p = 1u << a, q = 1u << b;
    atomicAdd(total, queens(n, p | q, ((p << 1) | q) << 1, ((p >> 1) | q) >> 1));
}

static int fibonacci_here(int n) {
    int a = 0, b = 1;
    for (; n; n--) std::swap(a, b), b += a;
    return a;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("recursion");
    const int n = 100;
    auto in = random.ints(n, 0, 14);
    Array<int> data(in), out(n);
    size_t stack = 0;
    CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 16 << 10));
    numbers<<<2, 64>>>(data, out, n);
    std::vector<int> want(n);
    for (int i = 0; i < n; i++) want[i] = fibonacci_here(in[i]) * 4 + (in[i] * 5 % 2 == 0) + 2 * ((in[i] + 1) % 2 == 1);
    v.same("Fibonacci", out.host(), want);

    Array<unsigned> acks(30);
    ackermanns<<<1, 30>>>(acks);
    std::vector<unsigned> known(30);
    for (unsigned i = 0; i < 30; i++) known[i] = i % 3 == 0 ? i / 3 + 1 : i % 3 == 1 ? i / 3 + 2 : 2 * (i / 3) + 3;
    v.same("Ackermann", acks.host(), known);

    const int rows = 70, pitch = 120;
    auto numbers_of_rows = random.ints(rows * pitch, -500, 500), lengths = random.ints(rows, 0, pitch);
    Array<int> matrix(numbers_of_rows), length(lengths);
    sort_rows<<<3, 32>>>(matrix, length, pitch, rows);
    for (int i = 0; i < rows; i++) std::sort(numbers_of_rows.begin() + i * pitch, numbers_of_rows.begin() + i * pitch + lengths[i]);
    v.same("rows", matrix.host(), numbers_of_rows);

    Array<int> total(1);
    place_queens<<<1, 96>>>(total, 8);
    v.same("queens", total.first(), 92);
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, stack));
    return v.end();
}
