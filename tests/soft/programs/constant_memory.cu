// Constant memory: initialised, written from the host, with an offset and from a stream, indexed by lanes, holding structures and pointers.
#include "program.h"

struct Sphere {
    float x, y, z, radius;
    int colour;
};

__constant__ float weights[9] = {1, 2, 1, 2, 4, 2, 1, 2, 1};
__constant__ Sphere spheres[64];
__constant__ int table[256];
__constant__ const float *pointer;
__device__ int counter = 40;
__device__ int initialised[2][3] = {{1, 2, 3}, {4, 5, 6}};

__global__ void blur(const float *in, float *out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= w - 1 || y >= h - 1) return;
    float sum = 0;
    for (int j = -1; j <= 1; j++)
        for (int i = -1; i <= 1; i++) sum += weights[(j + 1) * 3 + i + 1] * in[(y + j) * w + x + i];
    out[y * w + x] = sum;
}

__global__ void hit(const float3 *rays, int *colours, int n, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float nearest = 1e30f;
    int colour = -1;
    for (int s = 0; s < count; s++) {
        float dx = spheres[s].x - rays[i].x, dy = spheres[s].y - rays[i].y, d = spheres[s].radius * spheres[s].radius - dx * dx - dy * dy;
        float z = spheres[s].z - d;
        if (d > 0 && z < nearest) nearest = z, colour = spheres[s].colour;
    }
    colours[i] = colour;
}

__global__ void look_up(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[in[i]] + initialised[i % 2][i % 3];
    if (i == 0) counter += 2;
}

__global__ void through_pointer(float *out) { out[threadIdx.x] = 2 * pointer[threadIdx.x]; }

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("constant_memory");
    const int w = 70, h = 50;
    auto image = random.reals(w * h, 0, 1);
    Array<float> in(image), out(w * h);
    for (int round = 0; round < 2; round++) {
        std::vector<float> k = {1, 2, 1, 2, 4, 2, 1, 2, 1};
        if (round) {
            k[4] = (float)random.real(5, 6), k[5] = (float)random.real(-1, 1);
            CHECK(cudaMemcpyToSymbol(weights, &k[4], 2 * sizeof(float), 4 * sizeof(float)));
        }
        std::vector<double> want(w * h);
        for (int y = 1; y < h - 1; y++)
            for (int x = 1; x < w - 1; x++)
                for (int j = 0; j < 9; j++) want[y * w + x] += (double)k[j] * image[(y + j / 3 - 1) * w + x + j % 3 - 1];
        out.clear();
        blur<<<dim3(blocks_for(w, 16), blocks_for(h, 8)), dim3(16, 8)>>>(in, out, w, h);
        v.close("blur", out.host(), want, 2e-6);
    }

    const int n = 1000, count = 20 + random.below(44);
    Sphere s[64];
    for (auto &sphere : s)
        sphere = {(float)random.real(-1, 1), (float)random.real(-1, 1), (float)random.real(0, 1), (float)random.real(0.1, 0.4), random.below(1 << 20)};
    std::vector<float3> rays(n);
    for (auto &r : rays) r = make_float3((float)random.real(-1, 1), (float)random.real(-1, 1), 0);
    std::vector<int> colours(n), bytes = random.ints(n, 0, 255), entries = random.ints(256, -1000000, 1000000), looked(n);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMemcpyToSymbolAsync(spheres, s, sizeof s, 0, cudaMemcpyHostToDevice, stream));
    Array<float3> ray(rays);
    Array<int> colour(n), index(bytes), found(n);
    hit<<<blocks_for(n, 128), 128, 0, stream>>>(ray, colour, n, count);
    for (int i = 0; i < n; i++) {
        float nearest = 1e30f;
        colours[i] = -1;
        for (int k = 0; k < count; k++) {
            double dx = (double)s[k].x - rays[i].x, dy = (double)s[k].y - rays[i].y, d = (double)s[k].radius * s[k].radius - dx * dx - dy * dy;
            if (d > 0 && s[k].z - d < nearest) nearest = (float)(s[k].z - d), colours[i] = s[k].colour;
        }
    }
    auto hits = colour.host();
    int different = 0; // an edge may fall to either side
    for (int i = 0; i < n; i++) different += hits[i] != colours[i];
    v.that("spheres", different <= 2);

    CHECK(cudaMemcpyToSymbol(table, entries.data(), sizeof table));
    look_up<<<blocks_for(n, 96), 96>>>(index, found, n);
    for (int i = 0; i < n; i++) looked[i] = entries[bytes[i]] + i % 2 * 3 + i % 3 + 1;
    v.same("look-up", found.host(), looked);
    int was = 0, back[256];
    CHECK(cudaMemcpyFromSymbol(&was, counter, sizeof was));
    CHECK(cudaMemcpyFromSymbol(back, table, sizeof back));
    v.same("counter", was, 42);
    v.that("read back", std::equal(back, back + 256, entries.begin()));
    was = 40;
    CHECK(cudaMemcpyToSymbol(counter, &was, sizeof was));

    const float *where = in;
    CHECK(cudaMemcpyToSymbol(pointer, &where, sizeof where));
    through_pointer<<<1, 64>>>(out);
    std::vector<double> twice(image.begin(), image.begin() + 64);
    for (auto &x : twice) x *= 2;
    auto got = out.host();
    got.resize(64);
    v.close("pointer", got, twice, 0);
    CHECK(cudaStreamDestroy(stream));
    return v.end();
}
