// Launches, old and new, and what a device has room for.
#include "kernels.h"

struct Launched {
    CUmodule module = load();
    CUdeviceptr out = allocate(64);
    CUstream stream = make_stream();
    CUfunction shape = kernel(module, "shape");
    void *arguments[1] = {&out};

    Launched() {
        CHECK(cuMemsetD8(out, 0xff, 64));
        CHECK(cuCtxSynchronize());
    }
    // Whether the kernel saw this grid, these blocks, and so much dynamic shared memory.
    bool saw(unsigned blocks, unsigned x, unsigned y, unsigned shared) {
        CHECK(cuCtxSynchronize());
        return download<unsigned>(out, 4) == (std::vector<unsigned>{blocks, x, y, shared});
    }
};

CASE(launch, "cuLaunchKernel") {
    Launched l;
    CHECK(cuLaunchKernel(l.shape, 3, 1, 1, 8, 4, 1, 256, l.stream, l.arguments, nullptr));
    EXPECT(l.saw(3, 8, 4, 256));
    size_t bytes = sizeof l.out; // the parameters as one buffer
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &l.out, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CHECK(cuLaunchKernel(l.shape, 2, 1, 1, 16, 1, 1, 0, l.stream, nullptr, extra));
    EXPECT(l.saw(2, 16, 1, 0));
    REFUSED(cuLaunchKernel(l.shape, 0, 1, 1, 1, 1, 1, 0, l.stream, l.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchKernel(l.shape, 1, 1, 1, 4096, 1, 1, 0, l.stream, l.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchKernel(l.shape, 1, 1, 1, 1, 1, 1, 1 << 30, l.stream, l.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, l.stream, l.arguments, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

CASE(launch_by_configuration, "cuLaunchKernelEx") {
    Launched l;
    CUlaunchConfig config = {};
    config.gridDimX = 5, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 4, config.blockDimY = 2, config.blockDimZ = 1;
    config.sharedMemBytes = 128, config.hStream = l.stream;
    CHECK(cuLaunchKernelEx(&config, l.shape, l.arguments, nullptr));
    EXPECT(l.saw(5, 4, 2, 128));
    REFUSED(cuLaunchKernelEx(nullptr, l.shape, l.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
    config.gridDimX = 0;
    REFUSED(cuLaunchKernelEx(&config, l.shape, l.arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(cooperative, "cuLaunchCooperativeKernel") {
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH));
    Launched l;
    CHECK(cuLaunchCooperativeKernel(l.shape, 2, 1, 1, 32, 1, 1, 0, l.stream, l.arguments));
    EXPECT(l.saw(2, 32, 1, 0));
    REFUSED(cuLaunchCooperativeKernel(l.shape, 1 << 24, 1, 1, 32, 1, 1, 0, l.stream, l.arguments), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

// One launch a device, each on a stream of its own: none begins before all streams have come so far, and what follows on any waits for all of them.
CASE(cooperative_on_several, "cuLaunchCooperativeKernelMultiDevice") {
    NEEDS(device_count() > 1 && attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH));
    CUcontext contexts[2] = {primary, nullptr};
    CHECK(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    CUDA_LAUNCH_PARAMS list[2];
    CUdeviceptr out[2];
    unsigned value[2] = {100, 200};
    void *arguments[2][2] = {{&out[0], &value[0]}, {&out[1], &value[1]}};
    CUfunction functions[2];
    CUstream streams[2];
    for (unsigned i = 0; i < 2; i++) {
        CHECK(cuCtxSetCurrent(contexts[i]));
        functions[i] = kernel(load(), "store");
        streams[i] = make_stream();
        out[i] = upload(filled<unsigned>(64, 7));
        CHECK(cuCtxSynchronize()); // the streams do not wait for the legacy one
        list[i] = {functions[i], 2, 1, 1, 32, 1, 1, 0, streams[i], arguments[i]};
    }
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    for (unsigned i = 0; i < 2; i++) {
        CHECK(cuCtxSetCurrent(contexts[i]));
        CHECK(cuStreamSynchronize(streams[1 - i])); // which has waited for this one, too
        EXPECT(download<unsigned>(out[i], 64) == counting<unsigned>(64, value[i]));
    }
    CHECK(cuCtxSetCurrent(primary));
    value[0] = 300;
    CHECK(cuLaunchCooperativeKernelMultiDevice(
        list, 1, CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC));
    CHECK(cuStreamSynchronize(streams[0]));
    EXPECT(download<unsigned>(out[0], 64) == counting<unsigned>(64, 300));
    REFUSED(cuLaunchCooperativeKernelMultiDevice(nullptr, 2, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchCooperativeKernelMultiDevice(list, 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchCooperativeKernelMultiDevice(list, 2, 8), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchCooperativeKernelMultiDevice(list, static_cast<unsigned>(device_count()) + 1, 0), CUDA_ERROR_INVALID_VALUE);
    CUDA_LAUNCH_PARAMS wrong[2] = {list[0], list[1]};
    wrong[1].gridDimX = 3; // not as the other
    REFUSED(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0), CUDA_ERROR_INVALID_VALUE);
    wrong[1] = list[1], wrong[1].hStream = nullptr;
    REFUSED(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0), CUDA_ERROR_INVALID_HANDLE);
    wrong[0].gridDimX = wrong[1].gridDimX = 1 << 24, wrong[1].hStream = streams[1];
    REFUSED(cuLaunchCooperativeKernelMultiDevice(wrong, 2, 0), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

// The functions from before CUDA 4: a kernel holds its block's shape and its parameters.
CASE(old_launches, "cuFuncSetBlockShape", "cuFuncSetSharedSize", "cuParamSetSize", "cuParamSetv", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync") {
    Launched l;
    CHECK(cuFuncSetBlockShape(l.shape, 8, 2, 1));
    CHECK(cuFuncSetSharedSize(l.shape, 64));
    CHECK(cuParamSetv(l.shape, 0, &l.out, sizeof l.out));
    CHECK(cuParamSetSize(l.shape, sizeof l.out));
    CHECK(cuLaunch(l.shape));
    EXPECT(l.saw(1, 8, 2, 64));
    CHECK(cuLaunchGrid(l.shape, 3, 1));
    EXPECT(l.saw(3, 8, 2, 64));
    CHECK(cuLaunchGridAsync(l.shape, 4, 1, l.stream));
    EXPECT(l.saw(4, 8, 2, 64));
    REFUSED(cuFuncSetBlockShape(l.shape, -1, 1, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncSetSharedSize(nullptr, 64), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuParamSetSize(nullptr, 8), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuParamSetv(l.shape, 0, nullptr, 8), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchGrid(l.shape, 0, 1), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunchGridAsync(l.shape, 1, -1, l.stream), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLaunch(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

CASE(old_parameters, "cuParamSeti", "cuParamSetf") {
    CUfunction store = kernel(load(), "store");
    CUdeviceptr out = allocate(64);
    CHECK(cuFuncSetBlockShape(store, 4, 1, 1));
    CHECK(cuParamSetv(store, 0, &out, sizeof out));
    CHECK(cuParamSeti(store, 8, 500));
    CHECK(cuParamSetSize(store, 12));
    CHECK(cuLaunch(store));
    EXPECT(download<unsigned>(out, 4) == counting<unsigned>(4, 500));
    CHECK(cuParamSetf(store, 8, 1.0f));
    CHECK(cuLaunch(store));
    EXPECT(download<unsigned>(out, 4) == counting<unsigned>(4, 0x3f800000));
    UNCHECKED_BY_THE_DRIVER(cuParamSeti(store, -4, 1), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuParamSetf(store, -4, 1), CUDA_ERROR_INVALID_VALUE);
}

CASE(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
     "cuOccupancyAvailableDynamicSMemPerBlock") {
    CUfunction store = kernel(load(), "store");
    const int threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    int few = garbage<int>(), many = garbage<int>(), flagged = garbage<int>();
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&few, store, 512, 0));
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&many, store, 256, 0));
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, store, 256, 0, CU_OCCUPANCY_DEFAULT));
    EXPECT(few >= 1 && few <= threads / 512 && many >= few && many <= threads / 256 && flagged == many);
    size_t available = garbage<size_t>();
    CHECK(cuOccupancyAvailableDynamicSMemPerBlock(&available, store, 1, 128));
    EXPECT(available > 0 && available <= static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)));
    REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, store, 256, 0, 0x80), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, store, 256, 0), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuOccupancyAvailableDynamicSMemPerBlock(nullptr, store, 1, 128), CUDA_ERROR_INVALID_VALUE);
}

static size_t CUDA_CB shared_of(int) { return 0; }

CASE(block_size, "cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags") {
    CUfunction store = kernel(load(), "store");
    int grid = garbage<int>(), block = garbage<int>(), grid2 = garbage<int>(), block2 = garbage<int>();
    CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, store, shared_of, 0, 0));
    EXPECT(grid >= attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    EXPECT(block >= 32 && block % 32 == 0 && block <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    CHECK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid2, &block2, store, nullptr, 0, 64, CU_OCCUPANCY_DEFAULT));
    EXPECT(block2 >= 32 && block2 <= 64 && grid2 >= 1); // the program's limit
    REFUSED(cuOccupancyMaxPotentialBlockSize(nullptr, &block, store, shared_of, 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, store, nullptr, 0, 0, 0x80), CUDA_ERROR_INVALID_VALUE);
}
