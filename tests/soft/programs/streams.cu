// Streams: pinned memory, copies and kernels of several streams at once, events between them, host functions, timing, the legacy stream's order.
#include "program.h"

__global__ void scale(float *data, int n, float factor, float offset) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = data[i] * factor + offset;
}

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

struct Note {
    std::vector<int> *order;
    int number;
    const float *seen;
    float value;
};

static void CUDART_CB write_down(void *data) {
    Note *note = static_cast<Note *>(data);
    note->order->push_back(note->number);
    note->value = *note->seen;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("streams");
    const int parts = 4, n = 1 << 14, total = parts * n, rounds = 3;
    float *pinned, *result;
    CHECK(cudaMallocHost(&pinned, total * sizeof(float)));
    CHECK(cudaHostAlloc(&result, total * sizeof(float), cudaHostAllocDefault));
    auto values = random.reals(total, -1, 1);
    std::copy(values.begin(), values.end(), pinned);
    std::fill(result, result + total, 0.0f);
    Array<float> data(total);
    CHECK(cudaDeviceSynchronize()); // non-blocking streams do not wait for what has just filled it
    cudaStream_t streams[parts];
    cudaEvent_t begin, end, ready[parts];
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (auto &e : ready) CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (auto &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));

    // Copy in, work, copy out, note: in order within each stream.
    std::vector<int> order[parts];
    std::vector<Note> notes(parts * rounds);
    CHECK(cudaEventRecord(begin, streams[0]));
    for (int r = 0; r < rounds; r++)
        for (int p = 0; p < parts; p++) {
            float *part = data + p * n;
            if (r == 0) CHECK(cudaMemcpyAsync(part, pinned + p * n, n * sizeof(float), cudaMemcpyHostToDevice, streams[p]));
            scale<<<8, 256, 0, streams[p]>>>(part, n, 2, (float)p);
            CHECK(cudaMemcpyAsync(result + p * n, part, n * sizeof(float), cudaMemcpyDeviceToHost, streams[p]));
            notes[r * parts + p] = {&order[p], r, result + p * n, 0};
            CHECK(cudaLaunchHostFunc(streams[p], write_down, &notes[r * parts + p]));
        }
    for (int p = 1; p < parts; p++) {
        CHECK(cudaEventRecord(ready[p], streams[p]));
        CHECK(cudaStreamWaitEvent(streams[0], ready[p], 0));
    }
    CHECK(cudaEventRecord(end, streams[0]));
    CHECK(cudaEventSynchronize(end));
    float ms = -1;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    v.that("time", ms > 0 && ms < 600000);
    bool right = true;
    for (int p = 0; p < parts; p++) {
        v.same("order of notes", order[p], std::vector<int>{0, 1, 2});
        float first = values[p * n];
        for (int r = 0; r < rounds; r++) {
            first = first * 2 + p;
            right &= notes[r * parts + p].value == first;
        }
    }
    v.that("notes see their round", right);
    std::vector<double> want(total);
    for (int i = 0; i < total; i++) {
        want[i] = values[i];
        for (int r = 0; r < rounds; r++) want[i] = want[i] * 2 + i / n;
    }
    v.close("results", std::vector<float>(result, result + total), want, 1e-6);

    // A chain that goes from stream to stream, each waiting for the one before.
    for (int hop = 0; hop < 12; hop++) {
        int s = hop % parts;
        scale<<<4, 128, 0, streams[s]>>>(data, n, 1, 1);
        CHECK(cudaEventRecord(ready[s], streams[s]));
        CHECK(cudaStreamWaitEvent(streams[(s + 1) % parts], ready[s], 0));
    }
    add<<<n / 256, 256, 0, streams[0]>>>(data, data, data + n, n);
    CHECK(cudaStreamSynchronize(streams[0]));
    v.same("query", cudaStreamQuery(streams[0]), cudaSuccess);
    auto got = data.host();
    v.close("chain", std::vector<float>(got.begin() + n, got.begin() + 2 * n), [&] {
        std::vector<double> w(want.begin(), want.begin() + n);
        for (auto &x : w) x = 2 * (x + 12);
        return w;
    }(), 1e-5);

    // The legacy stream waits for blocking streams, and they for it.
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaMemsetAsync(data, 0, n * sizeof(float), blocking));
    scale<<<1, 32, 0, blocking>>>(data, n, 1, 3);
    scale<<<1, 32>>>(data, n, 5, 0);
    scale<<<1, 32, 0, blocking>>>(data, n, 1, 1);
    got = data.host();
    v.that("legacy stream", std::all_of(got.begin(), got.begin() + n, [](float x) { return x == 16; }));

    // Memory that is allocated and freed in a stream's order.
    float *temporary;
    CHECK(cudaMallocAsync(&temporary, n * sizeof(float), blocking));
    CHECK(cudaMemcpyAsync(temporary, pinned, n * sizeof(float), cudaMemcpyHostToDevice, blocking));
    scale<<<8, 64, 0, blocking>>>(temporary, n, -1, 0);
    CHECK(cudaMemcpyAsync(result, temporary, n * sizeof(float), cudaMemcpyDeviceToHost, blocking));
    CHECK(cudaFreeAsync(temporary, blocking));
    CHECK(cudaStreamSynchronize(blocking));
    v.that("stream-ordered memory", std::equal(result, result + n, pinned, [](float a, float b) { return a == -b; }));

    for (auto &s : streams) CHECK(cudaStreamDestroy(s));
    for (auto &e : ready) CHECK(cudaEventDestroy(e));
    CHECK(cudaStreamDestroy(blocking));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFreeHost(result));
    return v.end();
}
