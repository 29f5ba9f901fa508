// The start, the versions, the look-up of functions, the names of errors.
#include "conformance.h"

COLD_CASE(init, "cuInit") {
    int count = garbage<int>();
    REFUSED(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    REFUSED(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    EXPECT(count >= 1);
    CHECK(cuInit(0)); // again changes nothing
}

COLD_CASE(version, "cuDriverGetVersion") {
    int before = garbage<int>(), after = garbage<int>();
    CHECK(cuDriverGetVersion(&before)); // works before cuInit
    EXPECT(before >= 11000 && before < 100000 && before % 10 == 0);
    CHECK(cuInit(0));
    CHECK(cuDriverGetVersion(&after));
    EXPECT(before == after);
    REFUSED(cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(proc_address, "cuGetProcAddress") {
    int version = garbage<int>();
    CHECK(cuDriverGetVersion(&version));
    void *found = garbage<void *>();
    CUdriverProcAddressQueryResult status = garbage<CUdriverProcAddressQueryResult>();
    CHECK(cuGetProcAddress("cuMemAlloc", &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(found && status == CU_GET_PROC_ADDRESS_SUCCESS);
    CUdeviceptr address = garbage<CUdeviceptr>(), base = garbage<CUdeviceptr>();
    size_t size = garbage<size_t>();
    CHECK(reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t)>(found)(&address, 100));
    CHECK(cuMemGetAddressRange(&base, &size, address));
    EXPECT(base == address && size == 100);

    // What is not there, or was not yet, is a pointer of NULL and a status, and no error.
    found = garbage<void *>();
    CHECK(cuGetProcAddress("cuMemAllocAsync", &found, 10000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(!found && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    found = garbage<void *>();
    CHECK(cuGetProcAddress("cuNoSuchFunction", &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(!found && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    REFUSED(cuGetProcAddress("cuMemAlloc", &found, version + 10, 0, &status), CUDA_ERROR_INVALID_VALUE); // newer than the driver
    UNCHECKED_BY_THE_DRIVER(cuGetProcAddress(nullptr, &found, version, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    UNCHECKED_BY_THE_DRIVER(cuGetProcAddress("cuMemAlloc", nullptr, version, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

COLD_CASE(errors, "cuGetErrorName", "cuGetErrorString") {
    const char *name = garbage<const char *>(), *text = garbage<const char *>();
    CHECK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    EXPECT(std::strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    CHECK(cuGetErrorName(CUDA_SUCCESS, &name));
    EXPECT(std::strcmp(name, "CUDA_SUCCESS") == 0);
    CHECK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(std::strcmp(text, "out of memory") == 0);
    CHECK(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &text));
    EXPECT(std::strcmp(text, "invalid argument") == 0);
    name = text = garbage<const char *>();
    REFUSED(cuGetErrorName(static_cast<CUresult>(99999), &name), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuGetErrorString(static_cast<CUresult>(99999), &text), CUDA_ERROR_INVALID_VALUE);
    if (!conformance::effects_only) EXPECT(!name && !text); // "the address of the NULL string"
}

// Tables of NVIDIA's own libraries, which no documentation describes: that there is one, or that it is not found, is all that can be told.
HINT_CASE(export_table, "cuGetExportTable") {
    const void *table = garbage<const void *>();
    CUuuid unknown = garbage<CUuuid>();
    CUresult result = cuGetExportTable(&table, &unknown);
    EXPECT(result != CUDA_SUCCESS);
    REFUSED(cuGetExportTable(nullptr, &unknown), CUDA_ERROR_INVALID_VALUE);
}
