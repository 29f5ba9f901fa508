// Devices and what they say of themselves.
#include "conformance.h"

CASE(count_and_get, "cuDeviceGetCount", "cuDeviceGet") {
    int count = garbage<int>();
    CHECK(cuDeviceGetCount(&count));
    EXPECT(count >= 1);
    for (int i = 0; i < count; i++) {
        CUdevice one = garbage<CUdevice>();
        CHECK(cuDeviceGet(&one, i));
        EXPECT(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, one) == 32);
    }
    CUdevice none = garbage<CUdevice>();
    REFUSED(cuDeviceGet(&none, count), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGet(&none, -1), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetCount(nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(name, "cuDeviceGetName") {
    char whole[256], part[4];
    std::memset(whole, 0xa5, sizeof whole);
    std::memset(part, 0xa5, sizeof part);
    CHECK(cuDeviceGetName(whole, sizeof whole, device));
    EXPECT(std::memchr(whole, 0, sizeof whole) && std::strlen(whole) > 3);
    CHECK(cuDeviceGetName(part, sizeof part, device)); // no more than it has room for, and ended
    EXPECT(std::strlen(part) == 3 && std::strncmp(whole, part, 3) == 0);
    REFUSED(cuDeviceGetName(nullptr, 16, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetName(whole, sizeof whole, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(uuid, "cuDeviceGetUuid") {
    std::vector<CUuuid> seen;
    for (int i = 0; i < device_count(); i++) {
        CUuuid one = garbage<CUuuid>(), again;
        std::memset(&again, 0x3c, sizeof again);
        CHECK(cuDeviceGetUuid(&one, i));
        CHECK(cuDeviceGetUuid(&again, i));
        EXPECT(std::memcmp(&one, &again, sizeof one) == 0);
        for (const auto &other : seen) EXPECT(std::memcmp(&one, &other, sizeof one) != 0);
        seen.push_back(one);
    }
    CUuuid none;
    REFUSED(cuDeviceGetUuid(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetUuid(&none, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(total_memory, "cuDeviceTotalMem") {
    size_t of_device = garbage<size_t>(), free_bytes = garbage<size_t>(), of_context = garbage<size_t>();
    CHECK(cuDeviceTotalMem(&of_device, device));
    CHECK(cuMemGetInfo(&free_bytes, &of_context));
    EXPECT(of_device >= of_context && of_device / 2 <= of_context);
    REFUSED(cuDeviceTotalMem(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceTotalMem(&of_device, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(attributes, "cuDeviceGetAttribute", "cuDeviceGetProperties", "cuDeviceComputeCapability") {
    CUdevprop properties = garbage<CUdevprop>();
    CHECK(cuDeviceGetProperties(&properties, device));
    int major = garbage<int>(), minor = garbage<int>();
    CHECK(cuDeviceComputeCapability(&major, &minor, device));
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == major);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == minor);
    EXPECT(major >= 3 && minor >= 0);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) == properties.maxThreadsPerBlock);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) == properties.maxThreadsDim[0]);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) == properties.maxGridSize[0]);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) == properties.sharedMemPerBlock);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE) == properties.SIMDWidth);
    EXPECT(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) == properties.textureAlign);
    int value = 0;
    REFUSED(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(0), device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGetProperties(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceComputeCapability(&value, &value, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(pci_bus_id, "cuDeviceGetPCIBusId", "cuDeviceGetByPCIBusId") {
    for (int i = 0; i < device_count(); i++) {
        char text[32];
        std::memset(text, 0xa5, sizeof text);
        CHECK(cuDeviceGetPCIBusId(text, sizeof text, i));
        unsigned domain = 0, bus = 0, slot = 0, function = 0;
        EXPECT(std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4);
        EXPECT(static_cast<int>(bus) == attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, i));
        EXPECT(static_cast<int>(slot) == attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, i));
        CUdevice found = garbage<CUdevice>();
        CHECK(cuDeviceGetByPCIBusId(&found, text));
        EXPECT(found == i);
    }
    char text[32];
    CUdevice found;
    REFUSED(cuDeviceGetPCIBusId(nullptr, 32, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetPCIBusId(text, sizeof text, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGetByPCIBusId(&found, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetByPCIBusId(&found, "ffff:ff:1f.7"), CUDA_ERROR_INVALID_DEVICE);
}

CASE(peers, "cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute") {
    int value = garbage<int>();
    CHECK(cuDeviceCanAccessPeer(&value, device, device));
    EXPECT(value == 0); // no device is its own peer
    if (device_count() > 1) {
        int can = garbage<int>(), supported = garbage<int>(), rank = garbage<int>();
        CHECK(cuDeviceCanAccessPeer(&can, 0, 1));
        CHECK(cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
        CHECK(cuDeviceGetP2PAttribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 1));
        EXPECT((can == 0 || can == 1) && supported == can && rank != garbage<int>());
        REFUSED(cuDeviceGetP2PAttribute(nullptr, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1), CUDA_ERROR_INVALID_VALUE);
    }
    REFUSED(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceCanAccessPeer(&value, device, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(atomics, "cuDeviceGetHostAtomicCapabilities", "cuDeviceGetP2PAtomicCapabilities") {
    const unsigned known = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION |
                           CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64 | CU_ATOMIC_CAPABILITY_SCALAR_128 |
                           CU_ATOMIC_CAPABILITY_VECTOR_32x4;
    CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
    unsigned host[2] = {~0u, ~0u}, peer[2] = {~0u, ~0u};
    CHECK(cuDeviceGetHostAtomicCapabilities(host, operations, 2, device));
    EXPECT((host[0] & ~known) == 0 && (host[1] & ~known) == 0);
    if (device_count() > 1) {
        CHECK(cuDeviceGetP2PAtomicCapabilities(peer, operations, 2, 0, 1));
        EXPECT((peer[0] & ~known) == 0 && (peer[1] & ~known) == 0);
        int whole = garbage<int>();
        CHECK(cuDeviceGetP2PAttribute(&whole, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1));
        EXPECT(!whole || peer[0] != 0);
    }
    CUatomicOperation unknown = static_cast<CUatomicOperation>(1000);
    REFUSED(cuDeviceGetHostAtomicCapabilities(nullptr, operations, 2, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetHostAtomicCapabilities(host, operations, 0, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetHostAtomicCapabilities(host, &unknown, 1, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetHostAtomicCapabilities(host, operations, 2, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGetP2PAtomicCapabilities(peer, operations, 2, device, device), CUDA_ERROR_INVALID_DEVICE);
}

CASE(execution_affinity, "cuDeviceGetExecAffinitySupport") {
    int supported = garbage<int>();
    CHECK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device));
    EXPECT(supported == 0 || supported == 1);
    REFUSED(cuDeviceGetExecAffinitySupport(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

CASE(linear_textures, "cuDeviceGetTexture1DLinearMaxWidth") {
    size_t bytes1 = garbage<size_t>(), bytes4 = garbage<size_t>();
    CHECK(cuDeviceGetTexture1DLinearMaxWidth(&bytes1, CU_AD_FORMAT_UNSIGNED_INT8, 1, device));
    CHECK(cuDeviceGetTexture1DLinearMaxWidth(&bytes4, CU_AD_FORMAT_FLOAT, 4, device));
    EXPECT(bytes1 >= bytes4 && bytes4 >= 1u << 20 && bytes1 < size_t{1} << 40);
    REFUSED(cuDeviceGetTexture1DLinearMaxWidth(nullptr, CU_AD_FORMAT_FLOAT, 4, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetTexture1DLinearMaxWidth(&bytes1, CU_AD_FORMAT_FLOAT, 3, device), CUDA_ERROR_INVALID_VALUE);
}

// A device of a fabric is part of cliques, another one is in none.
CASE(cliques, "cuDeviceGetCliqueCount", "cuDeviceGetCliqueInfo") {
    NEEDS_FUNCTION(cuDeviceGetCliqueCount);
    size_t count = garbage<size_t>(), room = 8;
    CUcliqueInfo cliques[8];
    CHECK(cuDeviceGetCliqueCount(&count, device));
    CHECK(cuDeviceGetCliqueInfo(cliques, &room, device));
    EXPECT(count < 100 && room == (count < 8 ? count : 8));
    REFUSED(cuDeviceGetCliqueCount(nullptr, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetCliqueCount(&count, device_count()), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceGetCliqueInfo(cliques, nullptr, device), CUDA_ERROR_INVALID_VALUE);
    room = 8;
    REFUSED(cuDeviceGetCliqueInfo(nullptr, &room, device), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceGetCliqueInfo(cliques, &room, device_count()), CUDA_ERROR_INVALID_DEVICE);
}

static void CUDA_CB on_notification(CUasyncNotificationInfo *, void *, CUasyncCallbackHandle) {}

CASE(notifications, "cuDeviceRegisterAsyncNotification", "cuDeviceUnregisterAsyncNotification") {
    CUasyncCallbackHandle one = garbage<CUasyncCallbackHandle>(), other = garbage<CUasyncCallbackHandle>();
    CHECK(cuDeviceRegisterAsyncNotification(device, on_notification, nullptr, &one));
    CHECK(cuDeviceRegisterAsyncNotification(device, on_notification, nullptr, &other));
    EXPECT(one != other && one != garbage<CUasyncCallbackHandle>() && other != garbage<CUasyncCallbackHandle>());
    CHECK(cuDeviceUnregisterAsyncNotification(device, other));
    REFUSED(cuDeviceRegisterAsyncNotification(device, nullptr, nullptr, &other), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuDeviceRegisterAsyncNotification(device_count(), on_notification, nullptr, &other), CUDA_ERROR_INVALID_DEVICE);
    REFUSED(cuDeviceUnregisterAsyncNotification(device_count(), one), CUDA_ERROR_INVALID_DEVICE);
    UNCHECKED_BY_THE_DRIVER(cuDeviceRegisterAsyncNotification(device, on_notification, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuDeviceUnregisterAsyncNotification(device, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuDeviceUnregisterAsyncNotification(device, one));
    GONE(cuDeviceUnregisterAsyncNotification(device, one));
}

HINT_CASE(rdma_writes, "cuFlushGPUDirectRDMAWrites") {
    const CUflushGPUDirectRDMAWritesTarget here = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
    CHECK(cuFlushGPUDirectRDMAWrites(here, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
    CHECK(cuFlushGPUDirectRDMAWrites(here, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES));
    REFUSED(cuFlushGPUDirectRDMAWrites(here, static_cast<CUflushGPUDirectRDMAWritesScope>(7)), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFlushGPUDirectRDMAWrites(static_cast<CUflushGPUDirectRDMAWritesTarget>(7), CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
            CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxSetCurrent(nullptr));
    REFUSED(cuFlushGPUDirectRDMAWrites(here, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER), CUDA_ERROR_INVALID_CONTEXT);
}
