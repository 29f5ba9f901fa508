// Atomics on all types and spaces: integers of 32, 64 and 16 bits, float, double, half pairs, compare-and-swap loops, exchange, wrapping counters, scopes.
#include <cuda_fp16.h>

#include "program.h"

struct Totals {
    int add, min, max;
    unsigned inc, dec, bits_and, bits_or, bits_xor;
    unsigned long long add64, max64, or64;
    long long min64;
    float sum;
    double sum64;
    float least, product;
};

__device__ void atomic_min(float *address, float value) {
    int *at = reinterpret_cast<int *>(address), old = *at, assumed;
    do {
        assumed = old;
        if (__int_as_float(assumed) <= value) return;
        old = atomicCAS(at, assumed, __float_as_int(value));
    } while (old != assumed);
}

__device__ void apply(Totals *t, int x) {
    atomicAdd(&t->add, x), atomicMin(&t->min, x), atomicMax(&t->max, x);
    atomicInc(&t->inc, 999), atomicDec(&t->dec, 777);
    atomicAnd(&t->bits_and, ~(1u << (x & 15))), atomicOr(&t->bits_or, 1u << (x & 31)), atomicXor(&t->bits_xor, (unsigned)x);
    atomicAdd(&t->add64, (unsigned long long)x << 20), atomicMax(&t->max64, (unsigned long long)(x + 5000) << 33), atomicOr(&t->or64, 1ull << (x & 63));
    atomicMin(&t->min64, (long long)x * 1000000007ll);
    atomicAdd(&t->sum, (float)(x & 255)), atomicAdd(&t->sum64, x * 0.5);
    atomic_min(&t->least, x * 0.25f);
}

__global__ void global_atomics(const int *in, Totals *t, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) apply(t, in[i]);
}

__global__ void shared_atomics(const int *in, Totals *out, const Totals *start, int n) {
    __shared__ Totals t;
    if (threadIdx.x == 0) t = *start;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) apply(&t, in[i]);
    __syncthreads();
    if (threadIdx.x == 0) *out = t;
}

// What each thread gets back from its own cell, and a chain of exchanges that loses no token.
__global__ void returned(unsigned *cells, unsigned *got, unsigned *token, unsigned long long *tokens) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    got[i * 4] = atomicAdd(&cells[i], 5);
    got[i * 4 + 1] = atomicExch(&cells[i], 70);
    got[i * 4 + 2] = atomicCAS(&cells[i], 70, 71);
    got[i * 4 + 3] = atomicCAS(&cells[i], 70, 72) + atomicSub(&cells[i], 1) * 1000;
    atomicAdd(tokens, atomicExch(token, (unsigned)i + 1));
}

__global__ void small_ones(unsigned short *short_, half2 *pair, half *one, int *block_scope, int *system_scope) {
    unsigned short old = *short_, assumed;
    do {
        assumed = old;
        old = atomicCAS(short_, assumed, (unsigned short)(assumed + 3));
    } while (old != assumed);
    atomicAdd(pair, __floats2half2_rn(1, 2));
    atomicAdd(one, __float2half(0.5f));
    atomicAdd_block(block_scope, 2), atomicAdd_system(system_scope, 3);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("atomics");
    const int n = 3000 + random.below(500);
    auto in = random.ints(n, -4000, 4000);
    const Totals start = {1, 1 << 30, -(1 << 30), 17, 5, ~0u, 0, 0, 3, 0, 0, 1ll << 60, 0, 0, 1e30f, 1};
    Totals w = start;
    for (int x : in) {
        w.add += x, w.min = std::min(w.min, x), w.max = std::max(w.max, x);
        w.inc = w.inc >= 999 ? 0 : w.inc + 1, w.dec = w.dec == 0 || w.dec > 777 ? 777 : w.dec - 1;
        w.bits_and &= ~(1u << (x & 15)), w.bits_or |= 1u << (x & 31), w.bits_xor ^= (unsigned)x;
        w.add64 += (unsigned long long)x << 20, w.max64 = std::max(w.max64, (unsigned long long)(x + 5000) << 33), w.or64 |= 1ull << (x & 63);
        w.min64 = std::min(w.min64, (long long)x * 1000000007ll);
        w.sum += (float)(x & 255), w.sum64 += x * 0.5, w.least = std::min(w.least, x * 0.25f);
    }
    Array<int> data(in);
    Array<Totals> totals(std::vector<Totals>{start, start, start});
    global_atomics<<<blocks_for(n, 128), 128>>>(data, totals, n);
    shared_atomics<<<1, 256>>>(data, totals + 1, totals + 2, n);
    auto got = totals.host();
    for (int k = 0; k < 2; k++) {
        const Totals &g = got[k];
        const char *what = k ? "shared" : "global";
        v.that(what, g.add == w.add && g.min == w.min && g.max == w.max && g.inc == w.inc && g.dec == w.dec);
        v.that(what, g.bits_and == w.bits_and && g.bits_or == w.bits_or && g.bits_xor == w.bits_xor);
        v.that(what, g.add64 == w.add64 && g.max64 == w.max64 && g.or64 == w.or64 && g.min64 == w.min64);
        v.that(what, g.sum == w.sum && g.sum64 == w.sum64 && g.least == w.least); // all sums are exact in their types
    }

    const int m = 512;
    auto cells = random.ints<unsigned>(m, 0, 1000);
    Array<unsigned> cell(cells), back(m * 4), token(1);
    Array<unsigned long long> tokens(1);
    returned<<<4, m / 4>>>(cell, back, token, tokens);
    std::vector<unsigned> want(m * 4);
    for (int i = 0; i < m; i++) want[i * 4] = cells[i], want[i * 4 + 1] = cells[i] + 5, want[i * 4 + 2] = 70, want[i * 4 + 3] = 71 + 71000;
    v.same("returned", back.host(), want);
    v.same("tokens", tokens.first() + token.first(), (unsigned long long)m * (m + 1) / 2);

    Array<unsigned short> short_(2);
    Array<half2> pair(1);
    Array<half> one(2);
    Array<int> scopes(2);
    small_ones<<<3, 100>>>(short_ + 1, pair, one + 1, scopes, scopes + 1);
    v.same("16 bits", short_.host(), std::vector<unsigned short>{0, 900});
    v.same("half", (float)one.host()[1], 150.0f);
    v.same("pair", (float)pair.first().x * 1000 + (float)pair.first().y, 300600.0f);
    v.same("scopes", scopes.host(), std::vector<int>{600, 900});
    return v.end();
}
