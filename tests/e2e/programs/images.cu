// An image with code for several architectures: the kernel tells for which one it was compiled, and that variables and constants came along.
__constant__ int table[3] = {5, 6, 7};
__device__ int counter = 40;
extern "C" __global__ void which(int *out)
{
    out[0] = __CUDA_ARCH__;
    out[1] = table[threadIdx.x + 2];
    out[2] = ++counter;
}
