// Memory and events that two processes share. A case begins before cuInit, for the other process is a child that must not have the driver yet.
#include "gate.h"
#include <fcntl.h>
#include <sys/socket.h>

// The other process: it runs `part`, with the driver started, and a channel to this one.
class Other {
  public:
    int channel = -1;

    template <typename Part> explicit Other(Part part) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) conformance::fail("no socketpair");
        pid = fork();
        if (pid == 0) {
            close(pair[0]);
            start();
            part(pair[1]);
            std::exit(0);
        }
        close(pair[1]);
        channel = pair[0];
        start();
    }

    void finish() {
        int status = 0;
        if (waitpid(pid, &status, 0) != pid || status) conformance::fail("the other process ended with status %d", status);
    }

  private:
    pid_t pid = -1;
};

template <typename T> static void say(int channel, const T &value) {
    if (write(channel, &value, sizeof value) != static_cast<ssize_t>(sizeof value)) conformance::fail("the other process has ended");
}

template <typename T> static T hear(int channel) {
    T value = garbage<T>();
    for (size_t at = 0; at < sizeof value;) {
        ssize_t n = read(channel, reinterpret_cast<char *>(&value) + at, sizeof value - at);
        if (n <= 0) conformance::fail("the other process has ended");
        at += static_cast<size_t>(n);
    }
    return value;
}

static void say_descriptor(int channel, int fd) {
    char byte = 0;
    iovec what = {&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message = {};
    message.msg_iov = &what;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(channel, &message, 0) != 1) conformance::fail("a descriptor could not be sent");
}

static int hear_descriptor(int channel) {
    char byte = 0;
    iovec what = {&byte, 1};
    int fd = -1;
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message = {};
    message.msg_iov = &what;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    if (recvmsg(channel, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) conformance::fail("no descriptor has come");
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static bool shares() { return attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) != 0; }

static bool mapped(CUdeviceptr address) {
    CUdeviceptr base = 0;
    size_t size = 0;
    return cuMemGetAddressRange(&base, &size, address) == CUDA_SUCCESS;
}

COLD_CASE(memory, "cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle") {
    Other other([](int channel) {
        if (!shares()) return;
        CUipcMemHandle handle = hear<CUipcMemHandle>(channel);
        CUdeviceptr address = garbage<CUdeviceptr>();
        CHECK(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        EXPECT(download<int>(address, 1000) == counting<int>(1000));
        CHECK(cuMemsetD32(address, 7, 1000));
        CHECK(cuCtxSynchronize());
        say(channel, 'w');
        hear<char>(channel);
        EXPECT(mapped(address));
        CHECK(cuIpcCloseMemHandle(address));
        EXPECT(!mapped(address));
        REFUSED(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
        REFUSED(cuIpcOpenMemHandle(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);
        REFUSED(cuIpcOpenMemHandle(&address, handle, 0x10), CUDA_ERROR_INVALID_VALUE);
        say(channel, 'c');
    });
    NEEDS(shares());
    CUdeviceptr address = upload(counting<int>(1000));
    CHECK(cuCtxSynchronize());
    CUipcMemHandle handle = garbage<CUipcMemHandle>();
    CHECK(cuIpcGetMemHandle(&handle, address));
    say(other.channel, handle);
    hear<char>(other.channel);
    EXPECT(download<int>(address, 1000) == filled<int>(1000, 7));
    REFUSED(cuIpcGetMemHandle(nullptr, address), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcGetMemHandle(&handle, 4096), CUDA_ERROR_INVALID_VALUE);
    say(other.channel, 'g');
    hear<char>(other.channel);
    other.finish();
}

COLD_CASE(event, "cuIpcGetEventHandle", "cuIpcOpenEventHandle") {
    Other other([](int channel) {
        if (!shares()) return;
        CUipcEventHandle handle = hear<CUipcEventHandle>(channel);
        CUevent event = garbage<CUevent>();
        CHECK(cuIpcOpenEventHandle(&event, handle));
        REFUSED(cuIpcOpenEventHandle(nullptr, handle), CUDA_ERROR_INVALID_VALUE);
        say(channel, 'o');
        hear<char>(channel); // recorded, behind what has not ended
        EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        CUstream stream = make_stream();
        CHECK(cuStreamWaitEvent(stream, event, 0));
        EXPECT(stays_behind(stream, make_stream()));
        say(channel, 'w');
        CHECK(cuEventSynchronize(event));
        CHECK(cuStreamSynchronize(stream));
        say(channel, 'd');
    });
    NEEDS(shares());
    CUevent event = make_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), plain = make_event(CU_EVENT_DISABLE_TIMING);
    CUipcEventHandle handle = garbage<CUipcEventHandle>();
    CHECK(cuIpcGetEventHandle(&handle, event));
    say(other.channel, handle);
    hear<char>(other.channel);
    CUstream stream = make_stream();
    Gate gate;
    gate.put(stream);
    CHECK(cuEventRecord(event, stream));
    say(other.channel, 'r');
    hear<char>(other.channel);
    gate.open = true;
    hear<char>(other.channel);
    CHECK(cuEventQuery(event));
    REFUSED(cuIpcGetEventHandle(nullptr, event), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
    REFUSED(cuEventCreate(&plain, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE); // with its time
    other.finish();
}

static CUmemAllocationProp exportable() {
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return wanted;
}

static size_t granularity() {
    CUmemAllocationProp wanted = exportable();
    size_t bytes = garbage<size_t>();
    CHECK(cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return bytes;
}

static CUdeviceptr map_it(CUmemGenericAllocationHandle handle, size_t size) {
    CUdeviceptr address = garbage<CUdeviceptr>();
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve(&address, size, 0, 0, 0));
    CHECK(cuMemMap(address, size, 0, handle, 0));
    CHECK(cuMemSetAccess(address, size, &access, 1));
    return address;
}

static void *as_descriptor(int fd) { return reinterpret_cast<void *>(static_cast<intptr_t>(fd)); }

COLD_CASE(descriptor, "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle") {
    Other other([](int channel) {
        if (!attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) return;
        int fd = hear_descriptor(channel);
        CUmemGenericAllocationHandle handle = garbage<CUmemGenericAllocationHandle>();
        CHECK(cuMemImportFromShareableHandle(&handle, as_descriptor(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        CUdeviceptr address = map_it(handle, granularity());
        EXPECT(download<int>(address, 100) == counting<int>(100));
        CHECK(cuMemsetD32(address, 9, 100));
        CHECK(cuCtxSynchronize());
        say(channel, 'w');
        REFUSED(cuMemImportFromShareableHandle(nullptr, as_descriptor(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), CUDA_ERROR_INVALID_VALUE);
    });
    NEEDS(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
    CUmemAllocationProp wanted = exportable();
    CUmemGenericAllocationHandle handle = garbage<CUmemGenericAllocationHandle>();
    CHECK(cuMemCreate(&handle, granularity(), &wanted, 0));
    CUdeviceptr address = map_it(handle, granularity());
    std::vector<int> values = counting<int>(100);
    CHECK(cuMemcpyHtoD(address, values.data(), 400));
    CHECK(cuCtxSynchronize());
    int fd = -1;
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT(fcntl(fd, F_GETFD) >= 0);
    say_descriptor(other.channel, fd);
    hear<char>(other.channel);
    EXPECT(download<int>(address, 100) == filled<int>(100, 9));
    REFUSED(cuMemExportToShareableHandle(nullptr, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1), CUDA_ERROR_INVALID_VALUE);
    other.finish();
}

COLD_CASE(pool, "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer", "cuMemPoolImportPointer") {
    auto shares_pools = [] { return attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; };
    Other other([&](int channel) {
        if (!shares_pools()) return;
        int fd = hear_descriptor(channel);
        CUmemPoolPtrExportData data = hear<CUmemPoolPtrExportData>(channel);
        CUmemoryPool pool = garbage<CUmemoryPool>();
        CUdeviceptr address = garbage<CUdeviceptr>();
        CHECK(cuMemPoolImportFromShareableHandle(&pool, as_descriptor(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK(cuMemPoolImportPointer(&address, pool, &data));
        EXPECT(download<int>(address, 1000) == filled<int>(1000, 5));
        CHECK(cuMemsetD32(address, 6, 1000));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemFree(address));
        say(channel, 'f');
        REFUSED(cuMemPoolImportFromShareableHandle(nullptr, as_descriptor(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_ERROR_INVALID_VALUE);
        REFUSED(cuMemPoolImportPointer(nullptr, pool, &data), CUDA_ERROR_INVALID_VALUE);
    });
    NEEDS(shares_pools());
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CUmemoryPool pool = garbage<CUmemoryPool>();
    CHECK(cuMemPoolCreate(&pool, &properties));
    CUstream stream = make_stream();
    CUdeviceptr address = garbage<CUdeviceptr>();
    CHECK(cuMemAllocFromPoolAsync(&address, 4000, pool, stream));
    CHECK(cuMemsetD32Async(address, 5, 1000, stream));
    CHECK(cuStreamSynchronize(stream));
    int fd = -1;
    CUmemPoolPtrExportData data = garbage<CUmemPoolPtrExportData>();
    CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cuMemPoolExportPointer(&data, address));
    EXPECT(fcntl(fd, F_GETFD) >= 0);
    say_descriptor(other.channel, fd);
    say(other.channel, data);
    hear<char>(other.channel);
    EXPECT(download<int>(address, 1000) == filled<int>(1000, 6));
    REFUSED(cuMemPoolExportToShareableHandle(nullptr, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemPoolExportPointer(nullptr, address), CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFreeAsync(address, stream));
    CHECK(cuStreamSynchronize(stream));
    other.finish();
}
