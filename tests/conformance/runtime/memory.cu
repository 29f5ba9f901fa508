// Memory of every kind, and copies between them.
#include "runtime.h"

__global__ void add(int *values, int n, int amount) {
    for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += blockDim.x * gridDim.x) values[i] += amount;
}

CASE(copies) {
    const size_t n = 100000;
    std::vector<int> values(n), back(n, -1);
    for (size_t i = 0; i < n; i++) values[i] = static_cast<int>(i * 7);
    int *a = allocate<int>(n), *b = allocate<int>(n);
    CHECK(cudaMemcpy(a, values.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(b, a, n * 4, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemset(a, 0, n * 4));
    CHECK(cudaMemcpy(back.data(), b, n * 4, cudaMemcpyDefault));
    EXPECT(back == values);
    EXPECT(download(a, n) == std::vector<int>(n, 0));
    CHECK(cudaMemcpy(back.data(), values.data(), n * 4, cudaMemcpyHostToHost));
    REFUSED(cudaMemcpy(nullptr, a, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(back.data(), a, 4, static_cast<cudaMemcpyKind>(77)), cudaErrorInvalidMemcpyDirection);
    CHECK(cudaFree(a));
    CHECK(cudaFree(nullptr));
    REFUSED(cudaFree(a), cudaErrorInvalidValue);
}

CASE(rows) {
    const size_t width = 100, height = 50;
    size_t pitch = 0;
    unsigned char *rows = nullptr;
    CHECK(cudaMallocPitch(&rows, &pitch, width, height));
    EXPECT(pitch >= width);
    std::vector<unsigned char> image(width * height), back(width * height, 0);
    for (size_t i = 0; i < image.size(); i++) image[i] = static_cast<unsigned char>(i * 31);
    CHECK(cudaMemset2D(rows, pitch, 9, width, height));
    CHECK(cudaMemcpy2D(rows, pitch, image.data(), width, width, height - 1, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(back.data(), width, rows, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < image.size(); i++) EXPECT(back[i] == (i < width * (height - 1) ? image[i] : 9));
    REFUSED(cudaMemcpy2D(rows, pitch, image.data(), width - 1, width, height, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);

    cudaExtent extent = make_cudaExtent(40, 5, 4);
    cudaPitchedPtr box = garbage<cudaPitchedPtr>();
    CHECK(cudaMalloc3D(&box, extent));
    CHECK(cudaMemset3D(box, 3, extent));
    cudaMemcpy3DParms copy = {};
    std::vector<unsigned char> all(800, 0);
    copy.srcPtr = box, copy.dstPtr = make_cudaPitchedPtr(all.data(), 40, 40, 5), copy.extent = extent, copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    EXPECT(all == std::vector<unsigned char>(800, 3));
}

struct List { // a structure that points into pinned and device memory
    int *values;
    int n;
    List *next;
};
__global__ void walk(List *list, int amount) {
    for (; list; list = list->next)
        for (int i = 0; i < list->n; i++) list->values[i] += amount;
}

// Nested pointers: one address for both sides, whatever structure holds it.
CASE(nested_pointers) {
    NEEDS(attribute(cudaDevAttrCanMapHostMemory) && attribute(cudaDevAttrUnifiedAddressing));
    List *first, *second;
    int *pinned, *on_device = allocate<int>(10);
    CHECK(cudaMallocHost(&first, sizeof *first));
    CHECK(cudaMallocHost(&second, sizeof *second));
    CHECK(cudaMallocHost(&pinned, 40));
    for (int i = 0; i < 10; i++) pinned[i] = i;
    CHECK(cudaMemset(on_device, 0, 40));
    *first = {pinned, 10, second};
    *second = {on_device, 10, nullptr};
    walk<<<1, 1>>>(first, 100);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 10; i++) EXPECT(pinned[i] == i + 100);
    EXPECT(download(on_device, 10) == std::vector<int>(10, 100));
    cudaPointerAttributes told = garbage<cudaPointerAttributes>();
    CHECK(cudaPointerGetAttributes(&told, pinned));
    EXPECT(told.type == cudaMemoryTypeHost && told.hostPointer == pinned && told.devicePointer == pinned);
    CHECK(cudaPointerGetAttributes(&told, on_device));
    EXPECT(told.type == cudaMemoryTypeDevice && told.devicePointer == on_device && told.device == 0);
    CHECK(cudaPointerGetAttributes(&told, &told));
    EXPECT(told.type == cudaMemoryTypeUnregistered);
    for (void *memory : {static_cast<void *>(first), static_cast<void *>(second), static_cast<void *>(pinned)}) CHECK(cudaFreeHost(memory));
    REFUSED(cudaFreeHost(pinned), cudaErrorInvalidValue);
}

// The same, where the structure is copied to the device.
CASE(nested_pointers_on_the_device) {
    NEEDS(attribute(cudaDevAttrCanMapHostMemory) && attribute(cudaDevAttrUnifiedAddressing));
    int *pinned[2];
    for (auto &each : pinned) {
        CHECK(cudaMallocHost(&each, 40));
        for (int i = 0; i < 10; i++) each[i] = i;
    }
    List *lists = allocate<List>(2);
    const List first = {pinned[0], 10, lists + 1}, second = {pinned[1], 10, nullptr};
    CHECK(cudaMemcpy(lists, &first, sizeof first, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(lists + 1, &second, sizeof second, cudaMemcpyHostToDevice));
    walk<<<1, 1>>>(lists, 7);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 10; i++) EXPECT(pinned[0][i] == i + 7 && pinned[1][i] == i + 7);
}

// What is sent from pinned memory is what lies there when the copy's turn has come.
CASE(pinned_source_written_before) {
    const int n = 1 << 16;
    int *pinned, *a = allocate<int>(n), *b = allocate<int>(n);
    CHECK(cudaMallocHost(&pinned, n * 4));
    CHECK(cudaMemset(a, 0, n * 4));
    CHECK(cudaDeviceSynchronize()); // the stream does not wait for the legacy one
    cudaStream_t stream = make_stream();
    add<<<8, 128, 0, stream>>>(a, n, 11);
    CHECK(cudaMemcpyAsync(pinned, a, n * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(b, pinned, n * 4, cudaMemcpyHostToDevice, stream));
    CHECK(cudaLaunchHostFunc(stream, [](void *p) { static_cast<int *>(p)[5] += 1; }, pinned));
    CHECK(cudaMemcpyAsync(b, pinned, 64, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::vector<int> expected(n, 11);
    expected[5] = 12;
    EXPECT(download(b, n) == expected);
}

__managed__ int shared_counter = 40;
__global__ void count_up() { atomicAdd(&shared_counter, 1); }

CASE(managed) {
    NEEDS(attribute(cudaDevAttrManagedMemory));
    const int n = 50000;
    int *values = nullptr;
    CHECK(cudaMallocManaged(&values, n * 4));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++) values[i] = i + round;
        add<<<8, 128>>>(values, n, 1000);
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < n; i += 997) EXPECT(values[i] == i + round + 1000);
    }
    CHECK(cudaMemset(values, 0, n * 4));
    CHECK(cudaDeviceSynchronize());
    EXPECT(values[0] == 0 && values[n - 1] == 0);
    CHECK(cudaFree(values));
    shared_counter += 1;
    count_up<<<2, 32>>>();
    CHECK(cudaDeviceSynchronize());
    EXPECT(shared_counter == 40 + 1 + 64);
}

CASE(registered) {
    std::vector<int> plain(8192, 3);
    CHECK(cudaHostRegister(plain.data(), plain.size() * 4, cudaHostRegisterDefault));
    int *memory = allocate<int>(8192);
    cudaStream_t stream = make_stream();
    CHECK(cudaMemcpyAsync(memory, plain.data(), 8192 * 4, cudaMemcpyHostToDevice, stream));
    add<<<4, 128, 0, stream>>>(memory, 8192, 4);
    CHECK(cudaMemcpyAsync(plain.data(), memory, 8192 * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(plain == std::vector<int>(8192, 7));
    REFUSED(cudaHostRegister(plain.data(), plain.size() * 4, cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
    CHECK(cudaHostUnregister(plain.data()));
    REFUSED(cudaHostUnregister(plain.data()), cudaErrorHostMemoryNotRegistered);
}

CASE(in_stream_order) {
    NEEDS(attribute(cudaDevAttrMemoryPoolsSupported));
    cudaStream_t stream = make_stream();
    std::vector<int> back(1000, -1);
    for (int round = 0; round < 20; round++) {
        int *memory = nullptr;
        CHECK(cudaMallocAsync(&memory, 4000, stream));
        CHECK(cudaMemsetAsync(memory, 0, 4000, stream));
        add<<<2, 64, 0, stream>>>(memory, 1000, round);
        CHECK(cudaMemcpyAsync(back.data(), memory, 4000, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaFreeAsync(memory, stream));
        CHECK(cudaStreamSynchronize(stream));
        EXPECT(back == std::vector<int>(1000, round));
    }
    REFUSED(cudaFreeAsync(back.data(), stream), cudaErrorInvalidValue);
}

// Other programs may take memory of the device and give it back meanwhile, so one round of ten that shows it is enough.
CASE(how_much_there_is) {
    size_t before = 0, with = 0, after = 0, total = 0;
    bool seen = false;
    for (int round = 0; round < 10 && !seen; round++) {
        CHECK(cudaMemGetInfo(&before, &total));
        void *memory = allocate<char>(64 << 20);
        CHECK(cudaMemGetInfo(&with, &total));
        CHECK(cudaFree(memory));
        CHECK(cudaMemGetInfo(&after, &total));
        seen = before <= total && with + (64u << 20) <= before && after == before;
    }
    EXPECT(seen);
    void *more = nullptr;
    REFUSED(cudaMalloc(&more, total + 1), cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&more, 4096)); // running out of memory does not stick
}
