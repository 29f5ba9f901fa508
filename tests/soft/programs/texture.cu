// Textures of linear memory: fetches of all element types and vectors, normalised reads, out-of-range texels that are zero; layered over pitches by hand.
#include "program.h"

template <class T> static cudaTextureObject_t texture_of(T *data, size_t count, cudaTextureReadMode mode = cudaReadModeElementType) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = data;
    resource.res.linear.desc = cudaCreateChannelDesc<T>();
    resource.res.linear.sizeInBytes = count * sizeof(T);
    cudaTextureDesc how = {};
    how.readMode = mode;
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    return texture;
}

__global__ void gather(cudaTextureObject_t floats, cudaTextureObject_t pairs, cudaTextureObject_t bytes, cudaTextureObject_t fractions, const int *index, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int j = index[i];
    int2 pair = tex1Dfetch<int2>(pairs, j);
    uchar4 four = tex1Dfetch<uchar4>(bytes, j);
    float4 part = tex1Dfetch<float4>(fractions, j);
    float *o = out + i * 11;
    o[0] = tex1Dfetch<float>(floats, j), o[1] = (float)pair.x, o[2] = (float)pair.y;
    o[3] = four.x, o[4] = four.y, o[5] = four.z, o[6] = four.w;
    o[7] = part.x, o[8] = part.y, o[9] = part.z, o[10] = part.w;
}

// A blur of an image whose rows are texels of one line.
__global__ void blur(cudaTextureObject_t image, float *out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float sum = 0;
    for (int j = -2; j <= 2; j++)
        for (int i = -2; i <= 2; i++) sum += tex1Dfetch<float>(image, min(max(y + j, 0), h - 1) * w + min(max(x + i, 0), w - 1));
    out[y * w + x] = sum / 25;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("texture");
    const int count = 700 + random.below(100), n = 1000;
    auto floats = random.reals(count, -10, 10);
    std::vector<int2> pairs(count);
    std::vector<uchar4> bytes(count);
    for (auto &p : pairs) p = make_int2(random.between(-1000, 1000), random.between(-1000, 1000));
    for (auto &b : bytes) b = make_uchar4((unsigned char)random.bits(), (unsigned char)random.bits(), (unsigned char)random.bits(), (unsigned char)random.bits());
    auto index = random.ints(n, -3, count + 3);
    Array<float> df(floats), out(n * 11);
    Array<int2> dp(pairs);
    Array<uchar4> db(bytes);
    Array<int> di(index);
    cudaTextureObject_t textures[4] = {texture_of(df.data, count), texture_of(dp.data, count), texture_of(db.data, count),
                                       texture_of(db.data, count, cudaReadModeNormalizedFloat)};
    gather<<<blocks_for(n, 128), 128>>>(textures[0], textures[1], textures[2], textures[3], di, out, n);
    std::vector<double> want(n * 11);
    for (int i = 0; i < n; i++) {
        int j = index[i];
        if (j < 0 || j >= count) continue;
        double row[11] = {floats[j], (double)pairs[j].x, (double)pairs[j].y, (double)bytes[j].x, (double)bytes[j].y, (double)bytes[j].z, (double)bytes[j].w,
                          bytes[j].x / 255.0, bytes[j].y / 255.0, bytes[j].z / 255.0, bytes[j].w / 255.0};
        std::copy(row, row + 11, &want[i * 11]);
    }
    v.close("fetched", out.host(), want, 1e-6);

    const int w = 60, h = 40;
    auto image = random.reals(w * h, 0, 1);
    Array<float> di2(image), blurred(w * h);
    cudaTextureObject_t texture = texture_of(di2.data, w * h);
    blur<<<dim3(blocks_for(w, 16), blocks_for(h, 8)), dim3(16, 8)>>>(texture, blurred, w, h);
    std::vector<double> smooth(w * h);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int k = 0; k < 25; k++) smooth[y * w + x] += (double)image[std::clamp(y + k / 5 - 2, 0, h - 1) * w + std::clamp(x + k % 5 - 2, 0, w - 1)] / 25;
    v.close("blurred", blurred.host(), smooth, 1e-6);
    for (auto t : textures) CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaDestroyTextureObject(texture));
    return v.end();
}
