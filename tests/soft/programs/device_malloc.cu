// Memory from within kernels: malloc and free, new and delete of objects with destructors, lists that outlive their kernel, failure when the heap is full.
#include "program.h"

struct Node {
    int value;
    Node *next;
};

__device__ int destroyed;

struct Counted {
    int x;
    __device__ explicit Counted(int x) : x(x) {}
    __device__ ~Counted() { atomicAdd(&destroyed, 1); }
};

__global__ void push(Node **lists, const int *in, int n, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Node *node = new Node{in[i], nullptr};
    if (!node) return;
    Node **head = &lists[i % count];
    unsigned long long seen = *(volatile unsigned long long *)head, assumed;
    do {
        assumed = seen;
        node->next = (Node *)assumed;
        __threadfence();
        seen = atomicCAS((unsigned long long *)head, assumed, (unsigned long long)node);
    } while (seen != assumed);
}

__global__ void pop_all(Node **lists, long long *sums, int *lengths, int count) {
    int i = threadIdx.x;
    if (i >= count) return;
    for (Node *node = lists[i]; node;) {
        Node *next = node->next;
        sums[i] += node->value;
        lengths[i]++;
        delete node;
        node = next;
    }
}

__global__ void scratch(const int *in, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, size = 1 + i % 50;
    if (i >= n) return;
    long long *part = (long long *)malloc(size * sizeof(long long));
    if ((uintptr_t)part % 16) out[i] = -1;
    for (int j = 0; j < size; j++) part[j] = (long long)in[i] * j;
    long long sum = 0;
    for (int j = 0; j < size; j++) sum += part[j];
    free(part);
    Counted *object = new Counted(in[i]);
    out[i] += sum + object->x;
    delete object;
}

/* A megabyte a thread: so many of them as the heap has room for. */
__global__ void fill_heap(int *got) {
    char *p = (char *)malloc(1 << 20);
    if (p) p[threadIdx.x] = 1, atomicAdd(got, 1);
    __syncthreads();
    free(p);
}

__global__ void too_much(int *refused) {
    void *p = malloc((size_t)1 << 40);
    if (!p) atomicAdd(refused, 1);
    free(nullptr);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("device_malloc");
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    const int n = 4000 + random.below(500), count = 37;
    auto in = random.ints(n, -1000000, 1000000);
    Array<int> data(in), lengths(count), refused(1);
    Array<Node *> lists(count);
    Array<long long> sums(count), out(n);
    push<<<blocks_for(n, 128), 128>>>(lists, data, n, count);
    pop_all<<<1, 64>>>(lists, sums, lengths, count);
    std::vector<long long> want(count), parts(n);
    std::vector<int> long_(count);
    for (int i = 0; i < n; i++) want[i % count] += in[i], long_[i % count]++;
    v.same("sums of lists", sums.host(), want);
    v.same("lengths of lists", lengths.host(), long_);

    int before = 0, after = 0;
    CHECK(cudaMemcpyFromSymbol(&before, destroyed, sizeof before));
    scratch<<<blocks_for(n, 64), 64>>>(data, out, n);
    for (int i = 0; i < n; i++) parts[i] = (long long)in[i] * (i % 50) * (i % 50 + 1) / 2 + in[i];
    v.same("scratch", out.host(), parts);
    CHECK(cudaMemcpyFromSymbol(&after, destroyed, sizeof after));
    v.same("destructors", after - before, n);
    too_much<<<1, 40>>>(refused);
    v.same("too much is refused", refused.first(), 40);
    Array<int> few(1), many(1);
    fill_heap<<<1, 60>>>(few);
    CHECK(cudaDeviceSynchronize());
    v.that("the heap has its limit", few.first() >= 10 && few.first() <= 16);
    size_t limit = 0;
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 80 << 20));
    CHECK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    v.that("the limit is what was set", limit >= 80 << 20);
    fill_heap<<<1, 60>>>(many);
    v.same("a larger heap", many.first(), 60);
    return v.end();
}
