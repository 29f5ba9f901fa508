"""The CUDA C++ kernels of the benchmark, in textbook form."""

SOURCE = r"""
extern "C" __global__ void saxpy(float *y, const float *x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void exp_each(float *y, const float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = expf(x[i]);
}

extern "C" __global__ void small(float *y) { y[threadIdx.x] += 1.0f; }

/* C = A * B, all n x n; one thread an element, 16 x 16 tiles. */
extern "C" __global__ void sgemm16(float *c, const float *a, const float *b, int n) {
    __shared__ float as[16][16], bs[16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        as[y][x] = a[row * n + k + x];
        bs[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += as[y][i] * bs[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

/* The same with 64 x 64 tiles and 4 x 4 elements a thread. */
extern "C" __global__ void sgemm64(float *c, const float *a, const float *b, int n) {
    __shared__ float as[16][64], bs[16][64];
    int x = threadIdx.x % 16, y = threadIdx.x / 16, row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            as[i % 16][i / 16] = a[(row + i / 16) * n + k + i % 16];
            bs[i / 64][i % 64] = b[(k + i / 64) * n + column + i % 64];
        }
        __syncthreads();
        for (int i = 0; i < 16; i++) {
            float left[4], right[4];
            for (int j = 0; j < 4; j++) left[j] = as[i][y * 4 + j], right[j] = bs[i][x + 16 * j];
            for (int j = 0; j < 4; j++)
                for (int l = 0; l < 4; l++) sum[j][l] += left[j] * right[l];
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++)
        for (int l = 0; l < 4; l++) c[(row + y * 4 + j) * n + column + x + 16 * l] = sum[j][l];
}

/* One sum a block, with shuffles. */
extern "C" __global__ void shuffle_sum(float *out, const float *x, int n) {
    __shared__ float parts[32];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void histogram(unsigned *bins, const unsigned char *x, int n) {
    __shared__ unsigned mine[256];
    mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}

extern "C" __global__ void transpose(float *out, const float *in, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

/* A row a block. */
extern "C" __global__ void softmax(float *out, const float *in, int n) {
    __shared__ float parts[8];
    const float *row = in + (size_t)blockIdx.x * n;
    float most = __int_as_float(0xff800000), sum = 0;
    for (int i = threadIdx.x; i < n; i += 256) most = fmaxf(most, row[i]);
    for (int d = 16; d; d >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++) most = fmaxf(most, parts[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 256) sum += __expf(row[i] - most);
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++) sum += parts[i];
    for (int i = threadIdx.x; i < n; i += 256) out[(size_t)blockIdx.x * n + i] = __expf(row[i] - most) / sum;
}
"""
