// Memory and events that processes share. With the name of a case: the parent's part of it, which starts this program again for the other processes' parts; prints "right".
// "give" prints a memory handle and an event's and waits; "take HANDLES" tries to open them, and prints the errors' names.
#include "check.h"
#include <cerrno>
#include <csignal>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char **environ;

template <typename F> static F *find(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    F *f = driver ? (F *)dlsym(driver, name) : nullptr;
    if (!f) {
        std::printf("no %s\n", name);
        std::_Exit(5);
    }
    return f;
}
#define DRIVER(name, symbol) static auto *const name = find<decltype(symbol)>(#symbol)
DRIVER(ipc_get, cuIpcGetMemHandle);
DRIVER(ipc_open, cuIpcOpenMemHandle_v2);
DRIVER(ipc_close, cuIpcCloseMemHandle);
DRIVER(event_get, cuIpcGetEventHandle);
DRIVER(event_open, cuIpcOpenEventHandle);
DRIVER(address_range, cuMemGetAddressRange_v2);
DRIVER(free_memory, cuMemFree_v2);
DRIVER(create, cuMemCreate);
DRIVER(release, cuMemRelease);
DRIVER(reserve, cuMemAddressReserve);
DRIVER(unreserve, cuMemAddressFree);
DRIVER(map, cuMemMap);
DRIVER(unmap, cuMemUnmap);
DRIVER(set_access, cuMemSetAccess);
DRIVER(properties, cuMemGetAllocationPropertiesFromHandle);
DRIVER(export_handle, cuMemExportToShareableHandle);
DRIVER(import_handle, cuMemImportFromShareableHandle);
DRIVER(pool_create, cuMemPoolCreate);
DRIVER(pool_destroy, cuMemPoolDestroy);
DRIVER(pool_export, cuMemPoolExportToShareableHandle);
DRIVER(pool_import, cuMemPoolImportFromShareableHandle);
DRIVER(pointer_export, cuMemPoolExportPointer);
DRIVER(pointer_import, cuMemPoolImportPointer);
DRIVER(alloc_from_pool, cuMemAllocFromPoolAsync);
DRIVER(free_async, cuMemFreeAsync);

#define OK(call) EXPECT((call) == CUDA_SUCCESS)

// ---- processes -----------------------------------------------------------------------------------------------------

static const int CHANNEL = 3; // to the parent, in a child

struct Child {
    pid_t pid;
    int channel;
};

static void put(int channel, const void *data, size_t size) { EXPECT(write(channel, data, size) == (ssize_t)size); }

static void get(int channel, void *data, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t n = read(channel, (char *)data + at, size - at);
        EXPECT(n > 0);
        at += n;
    }
}

template <typename T> static void say(int channel, const T &value) { put(channel, &value, sizeof value); }
template <typename T> static T hear(int channel) {
    T value;
    get(channel, &value, sizeof value);
    return value;
}

static void say_descriptor(int channel, int fd) {
    char byte = 'd';
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
    EXPECT(sendmsg(channel, &message, 0) == 1);
}

static int hear_descriptor(int channel) {
    char byte;
    iovec what = {&byte, 1};
    int fd = -1;
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message = {};
    message.msg_iov = &what;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    EXPECT(recvmsg(channel, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// LINK_OF_CHILD: the link of children, where it is another one.
static Child start(const char *part) {
    int pair[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t pid = fork();
    if (!pid) {
        int kept = fcntl(pair[1], F_DUPFD, 10);
        dup2(kept, CHANNEL);
        if (const char *link = getenv("LINK_OF_CHILD")) setenv("GPUVIRT_LINK", link, 1);
        execl("/proc/self/exe", "ipc", part, (char *)nullptr);
        _exit(9);
    }
    close(pair[1]);
    return {pid, pair[0]};
}

static void finish(Child child) {
    int status;
    EXPECT(waitpid(child.pid, &status, 0) == child.pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(child.channel);
}

static void kill_it(Child child) {
    int status;
    kill(child.pid, SIGKILL);
    EXPECT(waitpid(child.pid, &status, 0) == child.pid);
    close(child.channel);
}

// ---- work -----------------------------------------------------------------------------------------------------------

__global__ void fill(unsigned *v, size_t n, unsigned seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) v[i] = seed + (unsigned)i;
}

__global__ void count_wrong(const unsigned *v, size_t n, unsigned seed, unsigned *wrong) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (v[i] != seed + (unsigned)i) atomicAdd(wrong, 1);
}

__global__ void add(unsigned *v, unsigned what) { atomicAdd(v, what); }

__global__ void count_up(unsigned *v, unsigned n) {
    for (unsigned i = 0; i < n; i++) atomicAdd(v, 1);
}

__global__ void write_word(unsigned *word, unsigned value) { *word = value; }

// Until the word says so: the host decides how long it takes.
__global__ void spin(volatile unsigned *word, unsigned until) {
    while (*word != until) {}
}

static unsigned wrong(const unsigned *v, size_t n, unsigned seed) {
    unsigned *count, host;
    CHECK(cudaMalloc(&count, sizeof host));
    CHECK(cudaMemset(count, 0, sizeof host));
    count_wrong<<<16, 64>>>(v, n, seed, count);
    CHECK(cudaMemcpy(&host, count, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(count));
    return host;
}

static unsigned word_of(const unsigned *at) {
    unsigned value;
    CHECK(cudaMemcpy(&value, at, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static unsigned *opened(const CUipcMemHandle &handle) {
    CUdeviceptr at = 0;
    CUresult rc = ipc_open(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (rc) std::printf("cuIpcOpenMemHandle: %d\n", rc);
    EXPECT(rc == CUDA_SUCCESS);
    return (unsigned *)at;
}

static CUipcMemHandle handle_of(const void *p) {
    CUipcMemHandle handle;
    OK(ipc_get(&handle, (CUdeviceptr)p));
    return handle;
}

static cudaEvent_t shared_event() {
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventInterprocess | cudaEventDisableTiming));
    return e;
}

static CUipcEventHandle handle_of_event(cudaEvent_t e) {
    CUipcEventHandle handle;
    OK(event_get(&handle, (CUevent)e));
    return handle;
}

static cudaEvent_t opened_event(const CUipcEventHandle &handle) {
    CUevent e = nullptr;
    OK(event_open(&e, handle));
    return (cudaEvent_t)e;
}

static const size_t N = 1300000; // words, over five megabytes: neither begin nor end is one of a page

// ---- memory ---------------------------------------------------------------------------------------------------------

static void memory_child() {
    CUipcMemHandle handle = hear<CUipcMemHandle>(CHANNEL), small = hear<CUipcMemHandle>(CHANNEL);
    unsigned *v = opened(handle), *again = opened(handle), *s = opened(small);
    EXPECT(v == again && s != v);
    CUdeviceptr base = 0;
    size_t size = 0;
    OK(address_range(&base, &size, (CUdeviceptr)(v + 5)));
    EXPECT(base == (CUdeviceptr)v && size == N * sizeof *v);
    EXPECT(wrong(v, N, 17) == 0 && wrong(s, 100, 3) == 0);
    EXPECT(free_memory((CUdeviceptr)v) == CUDA_ERROR_INVALID_VALUE);
    fill<<<16, 64>>>(v, N, 1000);
    CHECK(cudaDeviceSynchronize());
    say(CHANNEL, 'w');
    EXPECT(hear<char>(CHANNEL) == 'h'); // the parent's copy from the host, which has returned there
    EXPECT(word_of(v + N - 1) == 4711);
    OK(ipc_close((CUdeviceptr)v));
    EXPECT(word_of(v + 1) == 1001); // it was opened twice
    OK(ipc_close((CUdeviceptr)v));
    EXPECT(ipc_close((CUdeviceptr)v) == CUDA_ERROR_INVALID_VALUE);
    OK(ipc_close((CUdeviceptr)s));
    v = opened(handle);
    EXPECT(word_of(v + 1) == 1001);
    OK(ipc_close((CUdeviceptr)v));
    say(CHANNEL, 'c');
    EXPECT(hear<char>(CHANNEL) == 'f'); // freed
    CUdeviceptr at = 0;
    EXPECT(ipc_open(&at, handle, 1) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(ipc_open(&at, handle, 8) == CUDA_ERROR_INVALID_VALUE);
    handle.reserved[20] ^= 1;
    EXPECT(ipc_open(&at, handle, 1) == CUDA_ERROR_INVALID_VALUE);
}

static void memory() {
    unsigned *first, *v, *s, *other;
    CHECK(cudaMalloc(&first, 1000));
    CHECK(cudaMalloc(&s, 400));
    CHECK(cudaMalloc(&v, N * sizeof *v));
    CHECK(cudaMalloc(&other, 4000));
    fill<<<16, 64>>>(v, N, 17);
    fill<<<1, 64>>>(s, 100, 3);
    fill<<<1, 64>>>(other, 1000, 9);
    CHECK(cudaDeviceSynchronize()); // the child is not behind this process's streams
    Child child = start("memory-child");
    CUipcMemHandle handle = handle_of(v), same = handle_of(v);
    EXPECT(!std::memcmp(&handle, &same, sizeof handle));
    say(child.channel, handle);
    say(child.channel, handle_of(s));
    CUdeviceptr own = 0;
    EXPECT(ipc_open(&own, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(ipc_close((CUdeviceptr)v) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(hear<char>(child.channel) == 'w');
    EXPECT(wrong(v, N, 1000) == 0 && wrong(s, 100, 3) == 0 && wrong(other, 1000, 9) == 0);
    unsigned word = 4711;
    count_up<<<1, 1>>>(first, 5000000); // which the copy waits for, and so does the call
    CHECK(cudaMemcpy(v + N - 1, &word, sizeof word, cudaMemcpyHostToDevice));
    say(child.channel, 'h');
    EXPECT(hear<char>(child.channel) == 'c');
    CHECK(cudaFree(v));
    say(child.channel, 'f');
    finish(child);
    // What was exported is memory like any other again.
    CHECK(cudaMalloc(&v, N * sizeof *v));
    fill<<<16, 64>>>(v, N, 5);
    EXPECT(wrong(v, N, 5) == 0 && wrong(s, 100, 3) == 0);
}

// Each of three processes has memory that the two others add to.
static void three_child() {
    unsigned *own;
    CHECK(cudaMalloc(&own, sizeof *own));
    CHECK(cudaMemset(own, 0, sizeof *own));
    CHECK(cudaDeviceSynchronize());
    say(CHANNEL, handle_of(own));
    unsigned *others[2] = {opened(hear<CUipcMemHandle>(CHANNEL)), opened(hear<CUipcMemHandle>(CHANNEL))};
    for (unsigned *o : others) add<<<10, 10>>>(o, 1);
    CHECK(cudaDeviceSynchronize());
    say(CHANNEL, 'd');
    EXPECT(hear<char>(CHANNEL) == 'd');
    EXPECT(word_of(own) == 200);
    say(CHANNEL, 'r');
    EXPECT(hear<char>(CHANNEL) == 'e');
    for (unsigned *o : others) OK(ipc_close((CUdeviceptr)o));
}

static void three() {
    unsigned *own;
    CHECK(cudaMalloc(&own, sizeof *own));
    CHECK(cudaMemset(own, 0, sizeof *own));
    CHECK(cudaDeviceSynchronize());
    Child one = start("three-child"), two = start("three-child");
    CUipcMemHandle mine = handle_of(own), ones = hear<CUipcMemHandle>(one.channel), twos = hear<CUipcMemHandle>(two.channel);
    say(one.channel, mine);
    say(one.channel, twos);
    say(two.channel, mine);
    say(two.channel, ones);
    unsigned *others[2] = {opened(ones), opened(twos)};
    for (unsigned *o : others) add<<<10, 10>>>(o, 1);
    CHECK(cudaDeviceSynchronize());
    EXPECT(hear<char>(one.channel) == 'd' && hear<char>(two.channel) == 'd');
    EXPECT(word_of(own) == 200);
    say(one.channel, 'd');
    say(two.channel, 'd');
    EXPECT(hear<char>(one.channel) == 'r' && hear<char>(two.channel) == 'r');
    say(one.channel, 'e');
    say(two.channel, 'e');
    finish(one);
    finish(two);
    EXPECT(word_of(others[0]) == 200); // whose process has ended
    for (unsigned *o : others) OK(ipc_close((CUdeviceptr)o));
}

static void killed_child() {
    unsigned *v;
    CHECK(cudaMalloc(&v, N * sizeof *v));
    fill<<<16, 64>>>(v, N, 23);
    CHECK(cudaDeviceSynchronize());
    say(CHANNEL, handle_of(v));
    pause();
}

// The memory of a process that was killed stays with whoever has opened it; nobody else gets it.
static void killed() {
    CHECK(cudaFree(nullptr));
    Child child = start("killed-child");
    CUipcMemHandle handle = hear<CUipcMemHandle>(child.channel);
    unsigned *v = opened(handle);
    kill_it(child);
    EXPECT(wrong(v, N, 23) == 0);
    sleep(1);
    fill<<<16, 64>>>(v, N, 24);
    EXPECT(wrong(v, N, 24) == 0);
    OK(ipc_close((CUdeviceptr)v));
    CUdeviceptr at;
    CUresult rc;
    for (int i = 0; i < 300 && (rc = ipc_open(&at, handle, 1)) == CUDA_SUCCESS; i++) { // its end is noticed soon
        OK(ipc_close(at));
        usleep(100000);
    }
    EXPECT(rc == CUDA_ERROR_INVALID_VALUE);
}

static void survivor_child() {
    unsigned *v;
    CHECK(cudaMalloc(&v, 64 << 20));
    say(CHANNEL, handle_of(v));
    pause();
}

// Has 64 MiB of a process that was killed.
static void survivor() {
    Child child = start("survivor-child");
    unsigned *v = opened(hear<CUipcMemHandle>(child.channel));
    kill_it(child);
    std::printf("running\n");
    std::fflush(stdout);
    sleep(600);
    OK(ipc_close((CUdeviceptr)v));
}

// Memory that is freed while another process has it open, and a child that ends with all of it open.
static void order_child() {
    unsigned *v = opened(hear<CUipcMemHandle>(CHANNEL)), *w = opened(hear<CUipcMemHandle>(CHANNEL));
    EXPECT(wrong(v, N, 1) == 0 && wrong(w, N, 2) == 0);
    say(CHANNEL, 'o');
    EXPECT(hear<char>(CHANNEL) == 'f');
    OK(ipc_close((CUdeviceptr)v));
    EXPECT(wrong(w, N, 2) == 0);
}

static void order() {
    unsigned *v, *w;
    CHECK(cudaMalloc(&v, N * sizeof *v));
    CHECK(cudaMalloc(&w, N * sizeof *w));
    fill<<<16, 64>>>(v, N, 1);
    fill<<<16, 64>>>(w, N, 2);
    CHECK(cudaDeviceSynchronize());
    Child child = start("order-child");
    say(child.channel, handle_of(v));
    say(child.channel, handle_of(w));
    EXPECT(hear<char>(child.channel) == 'o');
    CHECK(cudaFree(v));
    say(child.channel, 'f');
    finish(child);
    EXPECT(wrong(w, N, 2) == 0);
    CHECK(cudaFree(w));
    for (int i = 0; i < 200; i++) { // many, one after the other, in the same places
        CHECK(cudaMalloc(&v, 3 << 20));
        handle_of(v);
        CHECK(cudaFree(v));
    }
}

// ---- events ---------------------------------------------------------------------------------------------------------

// The parent's record is under way, and must be waited for: the word is written behind it.
static void events_child() {
    unsigned *word = opened(hear<CUipcMemHandle>(CHANNEL));
    cudaEvent_t theirs = opened_event(hear<CUipcEventHandle>(CHANNEL)), own = shared_event();
    CHECK(cudaEventQuery(theirs)); // never recorded
    say(CHANNEL, handle_of_event(own));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT(hear<char>(CHANNEL) == 'r');
    EXPECT(cudaEventQuery(theirs) == cudaErrorNotReady);
    unsigned *copy;
    CHECK(cudaMalloc(&copy, sizeof *copy));
    CHECK(cudaStreamWaitEvent(stream, theirs, 0));
    CHECK(cudaMemcpyAsync(copy, word, sizeof *copy, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaEventRecord(own, stream));
    say(CHANNEL, 'w'); // the parent may let its work end now
    CHECK(cudaEventSynchronize(theirs));
    CHECK(cudaEventQuery(theirs));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(word_of(copy) == 42);
    say(CHANNEL, 'd'); // the parent may record again
    // Back and forth, each behind the other's last record; and on the other process's own event.
    for (unsigned i = 0; i < 20; i++) {
        EXPECT(hear<char>(CHANNEL) == 'a');
        CHECK(cudaStreamWaitEvent(stream, theirs, 0));
        add<<<1, 1, 0, stream>>>(word, 1);
        CHECK(cudaEventRecord(i % 2 ? own : theirs, stream));
        say(CHANNEL, 'b');
    }
    EXPECT(hear<char>(CHANNEL) == 'e');
    CHECK(cudaEventDestroy(theirs));
    CHECK(cudaEventDestroy(own));
    OK(ipc_close((CUdeviceptr)word));
}

static void events() {
    unsigned *word, *flag;
    CHECK(cudaMalloc(&word, 4096));
    CHECK(cudaMemset(word, 0, 4096));
    CHECK(cudaDeviceSynchronize()); // streams that do not block are not behind it
    flag = word + 512;
    cudaEvent_t own = shared_event();
    cudaStream_t stream, side;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    write_word<<<1, 1, 0, side>>>(flag, 1); // a driver that loads kernels when they are first used waits for one that spins
    spin<<<1, 1, 0, side>>>(flag, 1);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemset(flag, 0, sizeof *flag));
    CHECK(cudaDeviceSynchronize());
    Child child = start("events-child");
    say(child.channel, handle_of(word));
    say(child.channel, handle_of_event(own));
    cudaEvent_t theirs = opened_event(hear<CUipcEventHandle>(child.channel));
    spin<<<1, 1, 0, stream>>>(flag, 1);
    write_word<<<1, 1, 0, stream>>>(word, 42);
    CHECK(cudaEventRecord(own, stream));
    say(child.channel, 'r');
    EXPECT(hear<char>(child.channel) == 'w');
    EXPECT(cudaEventQuery(theirs) == cudaErrorNotReady && cudaEventQuery(own) == cudaErrorNotReady);
    write_word<<<1, 1, 0, side>>>(flag, 1);
    CHECK(cudaEventSynchronize(theirs));
    CHECK(cudaEventSynchronize(own));
    EXPECT(hear<char>(child.channel) == 'd');
    CHECK(cudaMemset(word, 0, sizeof *word));
    CHECK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 20; i++) {
        add<<<1, 1, 0, stream>>>(word, 100);
        CHECK(cudaEventRecord(own, stream));
        say(child.channel, 'a');
        EXPECT(hear<char>(child.channel) == 'b');
        CHECK(cudaStreamWaitEvent(stream, i % 2 ? theirs : own, 0));
        write_word<<<1, 1, 0, stream>>>(flag + 1 + i, i); // something behind it
    }
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(word_of(word) == 20 * 101);
    say(child.channel, 'e');
    finish(child);
    CUevent again;
    EXPECT(event_open(&again, handle_of_event(own)) == CUDA_ERROR_INVALID_CONTEXT);
    cudaEvent_t plain;
    CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CUipcEventHandle handle;
    EXPECT(event_get(&handle, (CUevent)plain) == CUDA_ERROR_INVALID_HANDLE);
    EXPECT(event_get(&handle, (CUevent)theirs) == CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cudaEventCreateWithFlags(&plain, cudaEventInterprocess) == cudaErrorInvalidValue);
}

static void recorder_child() {
    unsigned *flag;
    cudaEvent_t e = shared_event();
    CHECK(cudaMalloc(&flag, sizeof *flag));
    CHECK(cudaMemset(flag, 0, sizeof *flag));
    say(CHANNEL, handle_of_event(e));
    spin<<<1, 1>>>(flag, 1); // for ever
    CHECK(cudaEventRecord(e, 0));
    say(CHANNEL, 'r');
    pause();
}

// Whoever waits for the record of a process that was killed goes on.
static void killed_recorder() {
    CHECK(cudaFree(nullptr));
    Child child = start("recorder-child");
    cudaEvent_t e = opened_event(hear<CUipcEventHandle>(child.channel));
    EXPECT(hear<char>(child.channel) == 'r');
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamWaitEvent(stream, e, 0));
    EXPECT(cudaStreamQuery(stream) == cudaErrorNotReady && cudaEventQuery(e) == cudaErrorNotReady);
    kill_it(child);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventSynchronize(e));
}

// ---- virtual memory by descriptors -------------------------------------------------------------------------------------

static const CUmemAllocationHandleType FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
static const size_t CHUNK = 2 << 20, PHYSICAL = 3 * CHUNK, WORDS = PHYSICAL / sizeof(unsigned);

static unsigned *mapped(CUmemGenericAllocationHandle handle) {
    CUdeviceptr at = 0;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(reserve(&at, PHYSICAL, 0, 0, 0));
    OK(map(at, PHYSICAL, 0, handle, 0));
    OK(set_access(at, PHYSICAL, &access, 1));
    return (unsigned *)at;
}

static void unmapped(unsigned *v) {
    OK(unmap((CUdeviceptr)v, PHYSICAL));
    OK(unreserve((CUdeviceptr)v, PHYSICAL));
}

static CUmemAllocationProp exportable() {
    CUmemAllocationProp wanted = {};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    wanted.requestedHandleTypes = FD;
    return wanted;
}

static void descriptors_child() {
    int fd = hear_descriptor(CHANNEL), fresh = hear_descriptor(CHANNEL);
    CUmemGenericAllocationHandle handle, again, empty;
    OK(import_handle(&handle, (void *)(intptr_t)fd, FD));
    OK(import_handle(&again, (void *)(intptr_t)fd, FD));
    OK(import_handle(&empty, (void *)(intptr_t)fresh, FD));
    close(fresh);
    CUmemAllocationProp is;
    OK(properties(&is, handle));
    EXPECT(is.location.id == 0 && is.type == CU_MEM_ALLOCATION_TYPE_PINNED);
    unsigned *v = mapped(handle), *w = mapped(again), *e = mapped(empty);
    OK(release(handle));
    EXPECT(wrong(v, WORDS, 31) == 0 && wrong(w, WORDS, 31) == 0 && word_of(e) == 0);
    fill<<<16, 64>>>(e, WORDS, 77);
    fill<<<16, 64>>>(v, WORDS, 32);
    EXPECT(wrong(w, WORDS, 32) == 0);
    unmapped(w);
    OK(release(again));
    say(CHANNEL, 'w');
    EXPECT(hear<char>(CHANNEL) == 'u'); // unmapped and released by who made it
    EXPECT(wrong(v, WORDS, 33) == 0);
    EXPECT(import_handle(&handle, (void *)(intptr_t)fd, FD) == CUDA_ERROR_INVALID_VALUE);
    unmapped(v);
    unmapped(e);
    OK(release(empty));
    EXPECT(import_handle(&handle, (void *)(intptr_t)CHANNEL, FD) == CUDA_ERROR_INVALID_VALUE); // no such descriptor
    EXPECT(import_handle(&handle, (void *)(intptr_t)-1, FD) == CUDA_ERROR_INVALID_VALUE);
}

static void descriptors() {
    CUmemAllocationProp wanted = exportable();
    CUmemGenericAllocationHandle handle, fresh, plain;
    OK(create(&handle, PHYSICAL, &wanted, 0));
    OK(create(&fresh, PHYSICAL, &wanted, 0));
    unsigned *v = mapped(handle);
    fill<<<16, 64>>>(v, WORDS, 31);
    CHECK(cudaDeviceSynchronize());
    int fd = -1, fresh_fd = -1;
    OK(export_handle(&fd, handle, FD, 0));
    OK(export_handle(&fresh_fd, fresh, FD, 0));
    EXPECT(fd >= 0 && fresh_fd >= 0 && fcntl(fd, F_GETFD) & FD_CLOEXEC);
    EXPECT(export_handle(&fd, handle, FD, 1) == CUDA_ERROR_INVALID_VALUE && export_handle(&fd, handle + 1, FD, 0) == CUDA_ERROR_INVALID_VALUE);
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    OK(create(&plain, PHYSICAL, &wanted, 0));
    EXPECT(export_handle(&fd, plain, FD, 0) == CUDA_ERROR_INVALID_VALUE);
    Child child = start("descriptors-child");
    say_descriptor(child.channel, fd);
    say_descriptor(child.channel, fresh_fd);
    EXPECT(hear<char>(child.channel) == 'w');
    EXPECT(wrong(v, WORDS, 32) == 0);
    unsigned *e = mapped(fresh);
    EXPECT(wrong(e, WORDS, 77) == 0);
    // In the same process, too: a second handle of the same memory.
    CUmemGenericAllocationHandle own;
    OK(import_handle(&own, (void *)(intptr_t)fd, FD));
    unsigned *o = mapped(own);
    EXPECT(wrong(o, WORDS, 32) == 0);
    fill<<<16, 64>>>(o, WORDS, 33);
    EXPECT(wrong(v, WORDS, 33) == 0);
    unmapped(o);
    OK(release(own));
    unmapped(v);
    OK(release(handle));
    say(child.channel, 'u');
    finish(child);
    unmapped(e);
    OK(release(fresh));
    OK(release(plain));
}

// ---- pools ------------------------------------------------------------------------------------------------------------

static void pools_child() {
    int fd = hear_descriptor(CHANNEL);
    CUmemPoolPtrExportData data = hear<CUmemPoolPtrExportData>(CHANNEL);
    CUmemoryPool pool, other;
    OK(pool_import(&pool, (void *)(intptr_t)fd, FD, 0));
    EXPECT(pool_import(&other, (void *)(intptr_t)CHANNEL, FD, 0) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr at = 0, refused = 0;
    OK(pointer_import(&at, pool, &data));
    unsigned *v = (unsigned *)at;
    EXPECT(wrong(v, N, 61) == 0);
    EXPECT(alloc_from_pool(&refused, 4096, pool, nullptr) == CUDA_ERROR_INVALID_VALUE);
    fill<<<16, 64>>>(v, N, 62);
    CHECK(cudaDeviceSynchronize());
    OK(free_async(at, nullptr));
    EXPECT(free_async(at, nullptr) == CUDA_ERROR_INVALID_VALUE);
    OK(pointer_import(&at, pool, &data));
    EXPECT(wrong((unsigned *)at, N, 62) == 0);
    OK(free_memory(at));
    data.reserved[30] ^= 4;
    EXPECT(pointer_import(&at, pool, &data) == CUDA_ERROR_INVALID_VALUE);
    OK(pool_destroy(pool));
    say(CHANNEL, 'w');
}

static void pools() {
    CUmemPoolProps wanted = {};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.handleTypes = FD;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemoryPool pool, plain;
    OK(pool_create(&pool, &wanted));
    wanted.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    OK(pool_create(&plain, &wanted));
    CUdeviceptr at, private_at;
    OK(alloc_from_pool(&at, N * sizeof(unsigned), pool, nullptr));
    OK(alloc_from_pool(&private_at, 4096, plain, nullptr));
    unsigned *v = (unsigned *)at;
    fill<<<16, 64>>>(v, N, 61);
    CHECK(cudaDeviceSynchronize());
    int fd = -1;
    CUmemPoolPtrExportData data;
    OK(pool_export(&fd, pool, FD, 0));
    EXPECT(pool_export(&fd, plain, FD, 0) == CUDA_ERROR_INVALID_VALUE && pool_export(&fd, pool, FD, 1) == CUDA_ERROR_INVALID_VALUE);
    OK(pointer_export(&data, at));
    CUmemPoolPtrExportData none;
    EXPECT(pointer_export(&none, private_at) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr refused;
    EXPECT(pointer_import(&refused, pool, &data) == CUDA_ERROR_INVALID_VALUE); // not an imported one
    Child child = start("pools-child");
    say_descriptor(child.channel, fd);
    say(child.channel, data);
    EXPECT(hear<char>(child.channel) == 'w');
    finish(child);
    EXPECT(wrong(v, N, 62) == 0);
    OK(free_async(at, nullptr));
    OK(free_async(private_at, nullptr));
    CHECK(cudaDeviceSynchronize());
    OK(pool_destroy(pool));
}

// ---- handles of another lease -----------------------------------------------------------------------------------------

static void give() {
    unsigned *v;
    CHECK(cudaMalloc(&v, 4096));
    CUipcMemHandle memory_handle = handle_of(v);
    CUipcEventHandle event_handle = handle_of_event(shared_event());
    for (const char *h : {memory_handle.reserved, event_handle.reserved})
        for (int i = 0; i < 64; i++) std::printf("%02x", (unsigned char)h[i]);
    std::printf("\n");
    std::fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static void take(const char *hex) {
    CUipcMemHandle memory_handle;
    CUipcEventHandle event_handle;
    CHECK(cudaFree(nullptr));
    for (int i = 0; i < 128; i++) {
        unsigned byte;
        EXPECT(std::sscanf(hex + 2 * i, "%2x", &byte) == 1);
        (i < 64 ? memory_handle.reserved[i] : event_handle.reserved[i - 64]) = (char)byte;
    }
    CUdeviceptr at;
    CUevent e;
    std::printf("%d %d\n", ipc_open(&at, memory_handle, 1), event_open(&e, event_handle));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
        bool child;
    } parts[] = {
        {"memory", memory, false},         {"memory-child", memory_child, true},
        {"three", three, false},           {"three-child", three_child, true},
        {"killed", killed, false},         {"killed-child", killed_child, true},
        {"survivor", survivor, false},             {"survivor-child", survivor_child, true},
        {"order", order, false},           {"order-child", order_child, true},
        {"events", events, false},         {"events-child", events_child, true},
        {"descriptors", descriptors, false}, {"descriptors-child", descriptors_child, true},
        {"pools", pools, false},           {"pools-child", pools_child, true},
        {"recorder", killed_recorder, false}, {"recorder-child", recorder_child, true},
    };
    std::string part = argc > 1 ? argv[1] : "";
    signal(SIGPIPE, SIG_IGN);
    if (part == "give") return give(), 0;
    if (part == "take" && argc == 3) return take(argv[2]), 0;
    for (const auto &p : parts) {
        if (part != p.name) continue;
        CHECK(cudaFree(nullptr));
        p.run();
        CHECK(cudaDeviceSynchronize());
        if (!p.child) std::printf("right\n");
        return 0;
    }
    return 2;
}
