// The profiler's switches and the driver's log.
#include "conformance.h"

// Of cudaProfiler.h, which the header wheels lack.
extern "C" CUresult cuProfilerStart();
extern "C" CUresult cuProfilerStop();
extern "C" CUresult cuProfilerInitialize(const char *configuration, const char *output, int mode);

COLD_HINT_CASE(start_and_stop, "cuProfilerStart", "cuProfilerStop") {
    REFUSED(cuProfilerStart(), CUDA_ERROR_NOT_INITIALIZED);
    REFUSED(cuProfilerStop(), CUDA_ERROR_NOT_INITIALIZED);
    start();
    CHECK(cuProfilerStart());
    CHECK(cuProfilerStart()); // "if profiling is already enabled, has no effect"
    CHECK(cuProfilerStop());
    CHECK(cuProfilerStop());
}

// Its output is of a kind that no tool reads any more.
COLD_HINT_CASE(initialize, "cuProfilerInitialize") {
    NEEDS(driver_version() >= 13000); // what older ones do depends on the tools that are there
    REFUSED(cuProfilerInitialize("configuration", "output", 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void CUDA_CB on_log(void *, CUlogLevel, char *, size_t) {}

CASE(log_callbacks, "cuLogsRegisterCallback") {
    CUlogsCallbackHandle first = garbage<CUlogsCallbackHandle>(), second = garbage<CUlogsCallbackHandle>();
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &first));
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &second));
    EXPECT(first != second && first != garbage<CUlogsCallbackHandle>() && second != garbage<CUlogsCallbackHandle>());
    CHECK(cuLogsUnregisterCallback(second));
    CHECK(cuLogsUnregisterCallback(first));
    REFUSED(cuLogsRegisterCallback(nullptr, nullptr, &first), CUDA_ERROR_INVALID_VALUE);
}

HINT_CASE(log_callbacks_end, "cuLogsUnregisterCallback") {
    CUlogsCallbackHandle one = garbage<CUlogsCallbackHandle>();
    CHECK(cuLogsRegisterCallback(on_log, nullptr, &one));
    CHECK(cuLogsUnregisterCallback(one));
    REFUSED(cuLogsUnregisterCallback(nullptr), CUDA_ERROR_INVALID_VALUE);
}

// Something goes wrong of which the driver has something to say.
static void fail_loudly() {
    CUmodule module = garbage<CUmodule>();
    EXPECT(cuModuleLoadData(&module, ".version 6.4\n.target sm_50\n.address_size 64\nthis is no PTX\n") != CUDA_SUCCESS);
}

// What the log has from there on.
static std::string dumped(CUlogIterator *from) {
    std::vector<char> text(32768, 'x');
    size_t size = text.size();
    CHECK(cuLogsDumpToMemory(from, text.data(), &size, 0));
    if (text[0] == 'x') return ""; // where nothing is told, nothing need be written
    EXPECT(std::memchr(text.data(), 0, text.size()));
    if (text[0]) EXPECT_NUMBER(size, std::strlen(text.data()));
    return text.data();
}

CASE(log, "cuLogsCurrent", "cuLogsDumpToMemory") {
    CUlogIterator begin = garbage<CUlogIterator>(), at = garbage<CUlogIterator>();
    CHECK(cuLogsCurrent(&begin, 0));
    at = begin;
    EXPECT(dumped(&at).empty() && at == begin);
    fail_loudly();
    std::string first = dumped(&at);
    EXPECT(!first.empty() && first.back() == '\n' && at != begin);
    EXPECT(dumped(&at).empty()); // it has gone on
    fail_loudly();
    at = begin;
    std::string both = dumped(&at), all = dumped(nullptr);
    EXPECT(both.size() > first.size() && both.compare(0, first.size(), first) == 0);
    EXPECT(all.size() >= both.size() && all.compare(all.size() - both.size(), both.size(), both) == 0);
    // Where there is no room for all, the newest lines are told, and that some are missing.
    size_t last = both.size() - 1 - both.rfind('\n', both.size() - 2), size = last + 200;
    std::vector<char> some(size + 1024, 'x'); // behind what it was told there is, NVIDIA's driver was seen to corrupt the heap
    for (int i = 0; i < 8; i++) fail_loudly();
    at = begin;
    CHECK(cuLogsDumpToMemory(&at, some.data(), &size, 0));
    // That what is told fits, that lines are whole, and end with a NUL where there was no room for all, only a driver that is asked for it has.
    EXPECT(size > 0 && (!conformance::unchecked || (size < last + 200 && some[size] == 0 && some[size - 1] == '\n')));
    EXPECT(both.compare(0, size, some.data()) != 0);
    REFUSED(cuLogsCurrent(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuLogsCurrent(&at, 1)); // flags are not looked at
    REFUSED(cuLogsDumpToMemory(&at, nullptr, &size, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLogsDumpToMemory(&at, some.data(), nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    size = 8;
    REFUSED(cuLogsDumpToMemory(nullptr, some.data(), &size, 0), CUDA_ERROR_INVALID_VALUE); // not one line
    EXPECT(conformance::effects_only || size == 0);
}

CASE(log_file, "cuLogsDumpToFile") {
    CUlogIterator at = garbage<CUlogIterator>();
    CHECK(cuLogsCurrent(&at, 0));
    CUlogIterator begin = at;
    fail_loudly();
    char path[] = "/tmp/conformance-log-XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0);
    CHECK(cuLogsDumpToFile(&at, path, 0));
    std::vector<char> text(32768);
    ssize_t n = read(file, text.data(), text.size());
    close(file);
    unlink(path);
    EXPECT(n > 0 && std::string(text.data(), static_cast<size_t>(n)) == dumped(&begin) && at == begin);
    REFUSED(cuLogsDumpToFile(&at, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuLogsDumpToFile(&at, "/no/such/folder/log", 0), CUDA_ERROR_INVALID_VALUE);
}
