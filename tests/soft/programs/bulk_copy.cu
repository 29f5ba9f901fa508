// Hopper's bulk copies by PTX: global to shared memory signalled by an mbarrier with expected bytes, in a ring of stages, shared to global in bulk groups, reductions.
#include "program.h"

__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait(uint64_t *barrier, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}

constexpr int tile = 256, stages = 3;

// One thread asks for tiles, all add to them, one thread sends them off.
__global__ void through_shared(const float *in, float *out, float *sums, int tiles) {
    __shared__ __align__(128) float buffer[stages][tile];
    __shared__ uint64_t full[stages];
    int t = threadIdx.x;
    if (t == 0) {
        for (auto &b : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&b)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    auto ask = [&](int n) {
        unsigned barrier = shared_address(&full[n % stages]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"((unsigned)sizeof buffer[0]) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(buffer[n % stages])),
                     "l"(in + (size_t)n * tile), "r"((unsigned)sizeof buffer[0]), "r"(barrier)
                     : "memory");
    };
    if (t == 0)
        for (int n = 0; n < stages - 1 && n < tiles; n++) ask(n);
    for (int n = 0; n < tiles; n++) {
        if (t == 0 && n + stages - 1 < tiles) {
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); // the stage's earlier content has been read
            ask(n + stages - 1);
        }
        wait(&full[n % stages], n / stages % 2);
        float *cell = &buffer[n % stages][t];
        *cell = *cell * 2 + n;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (t == 0) {
            unsigned from = shared_address(buffer[n % stages]);
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + (size_t)n * tile), "r"(from), "r"((unsigned)sizeof buffer[0]) : "memory");
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sums), "r"(from), "r"((unsigned)sizeof buffer[0]) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (t == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Arrivals of all threads, phase after phase, in place of __syncthreads.
__global__ void phases(int *out, int rounds) {
    __shared__ uint64_t barrier;
    __shared__ int cells[2][96];
    int t = threadIdx.x, x = t;
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 96;" ::"r"(shared_address(&barrier)));
    __syncthreads();
    for (int r = 0; r < rounds; r++) {
        cells[r % 2][t] = x;
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
        wait(&barrier, r % 2);
        x = cells[r % 2][(t + 41) % 96] + r;
    }
    out[t] = x;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("bulk_copy");
    const int tiles = 10 + random.below(6), n = tiles * tile;
    auto in = random.reals(n, -1, 1);
    Array<float> data(in), out(n), sums(tile);
    through_shared<<<1, tile>>>(data, out, sums, tiles);
    std::vector<double> want(n), total(tile);
    for (int i = 0; i < n; i++) want[i] = (double)in[i] * 2 + i / tile, total[i % tile] += want[i];
    v.close("tiles", out.host(), want, 1e-6);
    v.close("sums", sums.host(), total, 1e-5);

    Array<int> last(96);
    const int rounds = 20 + random.below(10);
    phases<<<1, 96>>>(last, rounds);
    std::vector<int> x(96), y(96);
    for (int t = 0; t < 96; t++) x[t] = t;
    for (int r = 0; r < rounds; r++, x = y)
        for (int t = 0; t < 96; t++) y[t] = x[(t + 41) % 96] + r;
    v.same("phases", last.host(), x);
    return v.end();
}
