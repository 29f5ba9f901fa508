// What is set of core dumps, of one context and of all, and callbacks for them.
#include "conformance.h"

template <typename T> T told(CUcoredumpSettings which, CUresult (*ask)(CUcoredumpSettings, void *, size_t *)) {
    T value = garbage<T>();
    size_t size = sizeof value;
    CHECK(ask(which, &value, &size));
    EXPECT(size == sizeof value);
    return value;
}

template <typename T> void tell(CUcoredumpSettings which, T value, CUresult (*set)(CUcoredumpSettings, void *, size_t *)) {
    size_t size = sizeof value;
    CHECK(set(which, &value, &size));
}

static std::string text(CUcoredumpSettings which, CUresult (*ask)(CUcoredumpSettings, void *, size_t *)) {
    char value[1024] = "garbage";
    size_t size = sizeof value;
    CHECK(ask(which, value, &size));
    EXPECT(memchr(value, 0, sizeof value));
    return value;
}

CASE(of_all_contexts, "cuCoredumpGetAttributeGlobal", "cuCoredumpSetAttributeGlobal") {
    EXPECT(!told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttributeGlobal));
    text(CU_COREDUMP_FILE, cuCoredumpGetAttributeGlobal); // which file is the driver's choice
    tell(CU_COREDUMP_ENABLE_ON_EXCEPTION, true, cuCoredumpSetAttributeGlobal);
    EXPECT(told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttributeGlobal));
    CUcontext later = garbage<CUcontext>();
    CHECK(cuCtxCreate(&later, nullptr, 0, device));
    EXPECT(told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttribute)); // of a context that is made now
    CHECK(cuCtxDestroy(later));
    tell(CU_COREDUMP_ENABLE_ON_EXCEPTION, false, cuCoredumpSetAttributeGlobal);
    EXPECT(!told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttributeGlobal));
    char path[] = "/tmp/a-core";
    size_t size = sizeof path, needed = garbage<size_t>();
    CHECK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, path, &size));
    EXPECT(text(CU_COREDUMP_FILE, cuCoredumpGetAttributeGlobal) == path);
    // The older switches are bits of the flags.
    tell<unsigned>(CU_COREDUMP_GENERATION_FLAGS, CU_COREDUMP_LIGHTWEIGHT_FLAGS | CU_COREDUMP_SKIP_ABORT, cuCoredumpSetAttributeGlobal);
    EXPECT(told<bool>(CU_COREDUMP_LIGHTWEIGHT, cuCoredumpGetAttributeGlobal) && !told<bool>(CU_COREDUMP_TRIGGER_HOST, cuCoredumpGetAttributeGlobal));
    tell(CU_COREDUMP_LIGHTWEIGHT, false, cuCoredumpSetAttributeGlobal);
    EXPECT(told<unsigned>(CU_COREDUMP_GENERATION_FLAGS, cuCoredumpGetAttributeGlobal) & CU_COREDUMP_SKIP_ABORT);
    EXPECT(!told<bool>(CU_COREDUMP_LIGHTWEIGHT, cuCoredumpGetAttributeGlobal));
    CHECK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, nullptr, &needed)); // how large it is
    EXPECT(needed == sizeof(bool));
    tell(CU_COREDUMP_ENABLE_USER_TRIGGER, true, cuCoredumpSetAttributeGlobal);
    size = sizeof path;
    EXPECT(cuCoredumpSetAttributeGlobal(CU_COREDUMP_PIPE, path, &size) != CUDA_SUCCESS); // it is in use
    UNCHECKED_BY_THE_DRIVER(cuCoredumpSetAttributeGlobal(CU_COREDUMP_PIPE, path, &size), CUDA_ERROR_NOT_PERMITTED);
    REFUSED(cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, path, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpSetAttributeGlobal(CU_COREDUMP_MAX, path, &size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpSetAttributeGlobal(static_cast<CUcoredumpSettings>(0), path, &size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, path, &size), CUDA_ERROR_INVALID_VALUE); // another size
    REFUSED(cuCoredumpGetAttributeGlobal(CU_COREDUMP_MAX, path, &size), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, path, nullptr), CUDA_ERROR_INVALID_VALUE);
    size = 2;
    REFUSED(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, path, &size), CUDA_ERROR_INVALID_VALUE);
}

CASE(of_one_context, "cuCoredumpGetAttribute", "cuCoredumpSetAttribute") {
    CUcontext other = garbage<CUcontext>();
    CHECK(cuCtxCreate(&other, nullptr, 0, device)); // which is current now
    tell(CU_COREDUMP_ENABLE_ON_EXCEPTION, true, cuCoredumpSetAttribute);
    char path[] = "/tmp/of-the-other";
    size_t size = sizeof path;
    CHECK(cuCoredumpSetAttribute(CU_COREDUMP_FILE, path, &size));
    EXPECT(told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttribute));
    EXPECT(text(CU_COREDUMP_FILE, cuCoredumpGetAttribute) == path);
    EXPECT(!told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttributeGlobal));
    CHECK(cuCtxSetCurrent(primary));
    EXPECT(!told<bool>(CU_COREDUMP_ENABLE_ON_EXCEPTION, cuCoredumpGetAttribute));
    EXPECT(text(CU_COREDUMP_FILE, cuCoredumpGetAttribute) != path);
    bool on = true;
    size = sizeof on;
    REFUSED(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_USER_TRIGGER, &on, &size), CUDA_ERROR_INVALID_VALUE); // of all contexts only
    REFUSED(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpGetAttribute(CU_COREDUMP_MAX, &on, &size), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++) CHECK(cuCtxSetCurrent(nullptr)); // two contexts are on the stack
    REFUSED(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size), CUDA_ERROR_INVALID_CONTEXT);
    REFUSED(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size), CUDA_ERROR_INVALID_CONTEXT);
}

static void CUDA_CB on_dump(void *, int, CUdevice) {}

CASE(begins, "cuCoredumpRegisterStartCallback", "cuCoredumpDeregisterStartCallback") {
    NEEDS_FUNCTION(cuCoredumpRegisterStartCallback);
    CUcoredumpCallbackHandle one = garbage<CUcoredumpCallbackHandle>(), other = garbage<CUcoredumpCallbackHandle>();
    CHECK(cuCoredumpRegisterStartCallback(on_dump, nullptr, &one));
    CHECK(cuCoredumpRegisterStartCallback(on_dump, nullptr, &other));
    CHECK(cuCoredumpRegisterStartCallback(on_dump, nullptr, nullptr));
    EXPECT(one != other && one != garbage<CUcoredumpCallbackHandle>() && other != garbage<CUcoredumpCallbackHandle>());
    CHECK(cuCoredumpDeregisterStartCallback(other));
    REFUSED(cuCoredumpRegisterStartCallback(nullptr, nullptr, &other), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpDeregisterStartCallback(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpDeregisterCompleteCallback(one), CUDA_ERROR_INVALID_VALUE); // another kind
    CHECK(cuCoredumpDeregisterStartCallback(one));
    GONE(cuCoredumpDeregisterStartCallback(one));
}

CASE(ends, "cuCoredumpRegisterCompleteCallback", "cuCoredumpDeregisterCompleteCallback") {
    NEEDS_FUNCTION(cuCoredumpRegisterCompleteCallback);
    CUcoredumpCallbackHandle one = garbage<CUcoredumpCallbackHandle>(), other = garbage<CUcoredumpCallbackHandle>();
    CHECK(cuCoredumpRegisterCompleteCallback(on_dump, nullptr, &one));
    CHECK(cuCoredumpRegisterCompleteCallback(on_dump, nullptr, &other));
    EXPECT(one != other && one != garbage<CUcoredumpCallbackHandle>() && other != garbage<CUcoredumpCallbackHandle>());
    CHECK(cuCoredumpDeregisterCompleteCallback(other));
    REFUSED(cuCoredumpRegisterCompleteCallback(nullptr, nullptr, &other), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpDeregisterCompleteCallback(nullptr), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuCoredumpDeregisterStartCallback(one), CUDA_ERROR_INVALID_VALUE); // another kind
    CHECK(cuCoredumpDeregisterCompleteCallback(one));
    GONE(cuCoredumpDeregisterCompleteCallback(one));
}
