// N bodies under gravity: all pairs through tiles of shared memory, several steps; energy and positions against double.
#include "program.h"

constexpr int tile = 128;
constexpr float softening = 0.01f;

__global__ void accelerate(const float4 *bodies, float3 *velocities, int n, float dt) {
    __shared__ float4 near[tile];
    int i = blockIdx.x * tile + threadIdx.x;
    float4 own = i < n ? bodies[i] : make_float4(0, 0, 0, 0);
    float3 a = make_float3(0, 0, 0);
    for (int start = 0; start < n; start += tile) {
        near[threadIdx.x] = start + threadIdx.x < n ? bodies[start + threadIdx.x] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < tile; j++) {
            float dx = near[j].x - own.x, dy = near[j].y - own.y, dz = near[j].z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening), s = near[j].w * inverse * inverse * inverse;
            a.x += s * dx, a.y += s * dy, a.z += s * dz;
        }
        __syncthreads();
    }
    if (i < n) {
        velocities[i].x += dt * a.x, velocities[i].y += dt * a.y, velocities[i].z += dt * a.z;
    }
}

__global__ void move(float4 *bodies, const float3 *velocities, int n, float dt) {
    int i = blockIdx.x * tile + threadIdx.x;
    if (i >= n) return;
    float4 b = bodies[i];
    bodies[i] = make_float4(b.x + dt * velocities[i].x, b.y + dt * velocities[i].y, b.z + dt * velocities[i].z, b.w);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("nbody");
    const int n = 600 + random.below(100), steps = 5;
    const float dt = 0.01f;
    std::vector<float4> bodies(n);
    std::vector<double> p(3 * n), u(3 * n), m(n);
    for (int i = 0; i < n; i++) {
        float4 &b = bodies[i];
        b.x = (float)random.real(-1, 1), b.y = (float)random.real(-1, 1), b.z = (float)random.real(-1, 1), b.w = (float)random.real(0.5, 1) / n;
        p[3 * i] = b.x, p[3 * i + 1] = b.y, p[3 * i + 2] = b.z, m[i] = b.w;
    }
    Array<float4> data(bodies);
    Array<float3> velocities(n);
    for (int s = 0; s < steps; s++) {
        accelerate<<<blocks_for(n, tile), tile>>>(data, velocities, n, dt);
        move<<<blocks_for(n, tile), tile>>>(data, velocities, n, dt);
    }
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < n; i++) {
            double a[3] = {0, 0, 0};
            for (int j = 0; j < n; j++) {
                double d[3], square = softening;
                for (int k = 0; k < 3; k++) d[k] = p[3 * j + k] - p[3 * i + k], square += d[k] * d[k];
                for (int k = 0; k < 3; k++) a[k] += m[j] * d[k] / (square * std::sqrt(square));
            }
            for (int k = 0; k < 3; k++) u[3 * i + k] += dt * a[k];
        }
        for (int i = 0; i < 3 * n; i++) p[i] += dt * u[i];
    }
    auto got = data.host();
    auto speed = velocities.host();
    std::vector<double> positions, speeds;
    for (int i = 0; i < n; i++) {
        positions.insert(positions.end(), {got[i].x, got[i].y, got[i].z});
        speeds.insert(speeds.end(), {speed[i].x, speed[i].y, speed[i].z});
    }
    v.close("positions", positions, p, 2e-6);
    v.close("velocities", speeds, u, 2e-5);
    return v.end();
}
