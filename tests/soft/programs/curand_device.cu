// cuRAND's device functions: Philox, XORWOW and MRG32k3a, whose raw numbers are those of the same code on the host; uniform and normal numbers by their moments.
#define QUALIFIERS static __forceinline__ __host__ __device__
#include <curand_kernel.h>

#include "program.h"

template <class State> __global__ void draw(unsigned long long seed, unsigned *raw, float *uniform, float *normal, int each) {
    int id = blockIdx.x * blockDim.x + threadIdx.x;
    State state;
    curand_init(seed, id, 3 * id, &state);
    for (int i = 0; i < each; i++) raw[id * each + i] = curand(&state);
    for (int i = 0; i < each; i++) uniform[id * each + i] = curand_uniform(&state);
    for (int i = 0; i < each; i++) normal[id * each + i] = curand_normal(&state);
}

template <class State> static void run(Verdict &v, const char *name, unsigned long long seed) {
    const int threads = 256, each = 16;
    Array<unsigned> raw(threads * each);
    Array<float> uniform(threads * each), normal(threads * each);
    draw<State><<<4, threads / 4>>>(seed, raw.data, uniform.data, normal.data, each);
    std::vector<unsigned> want;
    std::vector<double> uniforms, normals;
    for (int id = 0; id < threads; id++) {
        State state;
        curand_init(seed, id, 3 * id, &state);
        for (int i = 0; i < each; i++) want.push_back(curand(&state));
        for (int i = 0; i < each; i++) uniforms.push_back(curand_uniform(&state));
        for (int i = 0; i < each; i++) normals.push_back(curand_normal(&state));
    }
    v.same(name, raw.host(), want);
    v.close(name, uniform.host(), uniforms, 1e-7);
    v.close(name, normal.host(), normals, 1e-5);
    double sum = 0, squares = 0;
    for (float x : normal.host()) sum += x, squares += (double)x * x;
    v.close(name, sum / (threads * each), 0, 0.08);
    v.close(name, squares / (threads * each), 1, 0.06);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("curand_device");
    run<curandStatePhilox4_32_10_t>(v, "Philox", random.bits());
    run<curandStateXORWOW_t>(v, "XORWOW", random.bits());
    run<curandStateMRG32k3a_t>(v, "MRG32k3a", random.bits() >> 1);
    return v.end();
}
