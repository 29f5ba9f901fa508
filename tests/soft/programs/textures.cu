// Textures of linear memory: every format, one to four channels, integers and fractions, elements outside, two textures in one launch.
#include "program.h"

template <class T> __global__ void fetch(cudaTextureObject_t texture, T *out, int n, int from) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<T>(texture, i + from);
}

__global__ void choose(cudaTextureObject_t a, cudaTextureObject_t b, float *out) {
    int i = threadIdx.x;
    out[i] = tex1Dfetch<float>(i % 3 ? a : b, i * 7 % 64);
}

struct Texture {
    cudaTextureObject_t object = 0;
    Texture(void *memory, size_t bytes, cudaChannelFormatDesc format, cudaTextureReadMode mode = cudaReadModeElementType) {
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear.devPtr = memory;
        resource.res.linear.desc = format;
        resource.res.linear.sizeInBytes = bytes;
        cudaTextureDesc sampling = {};
        sampling.readMode = mode;
        CHECK(cudaCreateTextureObject(&object, &resource, &sampling, nullptr));
    }
    ~Texture() { cudaDestroyTextureObject(object); }
};

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("textures");
    const int n = 1000;
    auto reals = random.reals(4 * n, -5, 5);
    auto numbers = random.ints(4 * n, -2000000000, 2000000000);
    Array<float> real(reals);
    Array<int> number(numbers);
    {
        Texture t(real, n * sizeof(float), cudaCreateChannelDesc<float>());
        Array<float> out(n);
        fetch<<<blocks_for(n, 128), 128>>>(t.object, (float *)out, n, 0);
        v.same("float", out.host(), std::vector<float>(reals.begin(), reals.begin() + n));
        // Half of it lies before the first element or behind the last.
        std::vector<float> want(n);
        for (int i = 0; i < n; i++) want[i] = i + 500 < n ? reals[i + 500] : 0;
        fetch<<<blocks_for(n, 128), 128>>>(t.object, (float *)out, n, 500);
        v.same("behind the end", out.host(), want);
        for (int i = 0; i < n; i++) want[i] = i < 300 ? 0 : reals[i - 300];
        fetch<<<blocks_for(n, 128), 128>>>(t.object, (float *)out, n, -300);
        v.same("before the start", out.host(), want);
        Texture other((float *)real + 64, 64 * sizeof(float), cudaCreateChannelDesc<float>());
        choose<<<1, 32>>>(t.object, other.object, out);
        auto got = out.host();
        got.resize(32);
        want.resize(32);
        for (int i = 0; i < 32; i++) want[i] = i % 3 ? reals[i * 7 % 64] : reals[64 + i * 7 % 64];
        v.same("chosen by lane", got, want);
        cudaResourceDesc asked;
        CHECK(cudaGetTextureObjectResourceDesc(&asked, other.object));
        v.that("description", asked.resType == cudaResourceTypeLinear && asked.res.linear.sizeInBytes == 64 * sizeof(float));
    }
    {
        Texture t(real, 4 * n * sizeof(float), cudaCreateChannelDesc<float4>());
        Array<float4> out(n);
        fetch<<<blocks_for(n, 96), 96>>>(t.object, (float4 *)out, n, 0);
        auto got = out.host();
        bool same = true;
        for (int i = 0; i < n; i++) same &= !std::memcmp(&got[i], &reals[4 * i], 16);
        v.that("float4", same);
    }
    {
        Texture t(number, 2 * n * sizeof(int), cudaCreateChannelDesc<int2>());
        Array<int2> out(n);
        fetch<<<blocks_for(n, 96), 96>>>(t.object, (int2 *)out, n, 0);
        auto got = out.host();
        bool same = true;
        for (int i = 0; i < n; i++) same &= got[i].x == numbers[2 * i] && got[i].y == numbers[2 * i + 1];
        v.that("int2", same);
    }
    auto bytes = (const unsigned char *)numbers.data();
    {
        Texture t(number, 4 * n, cudaCreateChannelDesc<uchar4>(), cudaReadModeNormalizedFloat);
        Array<float4> out(n);
        fetch<<<blocks_for(n, 128), 128>>>(t.object, (float4 *)out, n, 0);
        auto got = out.host();
        bool same = true;
        for (int i = 0; i < n; i++) same &= std::fabs(got[i].x - bytes[4 * i] / 255.0f) < 1e-6f && std::fabs(got[i].w - bytes[4 * i + 3] / 255.0f) < 1e-6f;
        v.that("bytes as fractions", same);
    }
    {
        Texture t(number, 2 * n, cudaCreateChannelDesc<short>());
        Array<short> out(n);
        fetch<<<blocks_for(n, 128), 128>>>(t.object, (short *)out, n, 0);
        auto got = out.host();
        v.that("short", !std::memcmp(got.data(), numbers.data(), 2 * n));
    }
    return v.end();
}
