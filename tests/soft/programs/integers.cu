// Integer arithmetic: SHA-256, modular powers of 64-bit numbers, 256-bit products with carries, a sieve, greatest common divisors, division of all kinds.
#include "program.h"

__constant__ uint32_t constants[64];

__host__ __device__ inline uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

__host__ __device__ inline void sha256(const uint32_t *block, uint32_t *digest, const uint32_t *k) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, s[8], w[64];
    for (int i = 0; i < 64; i++)
        w[i] = i < 16 ? block[i]
                      : w[i - 16] + (rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
                            (rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10);
    for (int i = 0; i < 8; i++) s[i] = h[i];
    for (int i = 0; i < 64; i++) {
        uint32_t t = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t u = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int j = 7; j; j--) s[j] = s[j - 1];
        s[4] += t, s[0] = t + u;
    }
    for (int i = 0; i < 8; i++) digest[i] = h[i] + s[i];
}

__global__ void hash(const uint32_t *blocks, uint32_t *digests, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sha256(blocks + 16 * i, digests + 8 * i, constants);
}

__device__ uint64_t product(uint64_t a, uint64_t b, uint64_t m) {
    uint64_t r = 0;
    for (; b; b >>= 1, a = a >= m - a ? a - (m - a) : a + a)
        if (b & 1) r = r >= m - a ? r - (m - a) : r + a;
    return r;
}

__global__ void modular(const uint64_t *in, uint64_t *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t base = in[3 * i], e = in[3 * i + 1] >> 40, m = in[3 * i + 2] | 1, r = 1 % m;
    for (base %= m; e; e >>= 1, base = product(base, base, m))
        if (e & 1) r = product(r, base, m);
    out[2 * i] = r;
    uint64_t a = in[3 * i], b = in[3 * i + 1];
    while (b) {
        uint64_t t = a % b;
        a = b, b = t;
    }
    out[2 * i + 1] = a;
}

// 128 x 128 bits by PTX's carry chain.
__global__ void wide(const uint4 *a, const uint4 *b, uint32_t *out) {
    int i = threadIdx.x;
    uint32_t x[4] = {a[i].x, a[i].y, a[i].z, a[i].w}, y[4] = {b[i].x, b[i].y, b[i].z, b[i].w}, r[8] = {};
    for (int j = 0; j < 4; j++)
        asm("mad.lo.cc.u32 %0, %5, %9, %0; madc.lo.cc.u32 %1, %6, %9, %1; madc.lo.cc.u32 %2, %7, %9, %2; madc.lo.cc.u32 %3, %8, %9, %3; addc.u32 %4, %4, 0;"
            "mad.hi.cc.u32 %1, %5, %9, %1; madc.hi.cc.u32 %2, %6, %9, %2; madc.hi.cc.u32 %3, %7, %9, %3; madc.hi.u32 %4, %8, %9, %4;"
            : "+r"(r[j]), "+r"(r[j + 1]), "+r"(r[j + 2]), "+r"(r[j + 3]), "+r"(r[j + 4])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[j]));
    for (int j = 0; j < 8; j++) out[8 * i + j] = r[j];
}

__global__ void sieve(unsigned *composite, int n, int root) {
    int p = 2 + blockIdx.x * blockDim.x + threadIdx.x;
    if (p > root) return;
    for (int d = 2; d * d <= p; d++)
        if (p % d == 0) return;
    for (int m = p * p; m < n; m += p) atomicOr(&composite[m / 32], 1u << m % 32);
}

__global__ void divisions(const int *a, const int *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    long long p = (long long)x * 4294967311ll + y, q = (long long)y * 77777 + 1;
    long long *o = out + 6 * i;
    o[0] = x / y, o[1] = x % y, o[2] = (unsigned)x / (unsigned)y + (unsigned)x % (unsigned)y;
    o[3] = p / q, o[4] = p % q, o[5] = (long long)((unsigned long long)p / 1000000007u) + (short)x / (short)(y | 1) + (x >> 3) + ((unsigned)x >> 5);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("integers");
    uint32_t k[64];
    for (int i = 0, p = 2; i < 64; p++) { // the fractions of the primes' cube roots
        bool prime = true;
        for (int d = 2; d * d <= p; d++) prime &= p % d != 0;
        if (prime) k[i++] = (uint32_t)(uint64_t)std::floor((std::cbrt((long double)p) - std::floor(std::cbrt((long double)p))) * 4294967296.0L);
    }
    CHECK(cudaMemcpyToSymbol(constants, k, sizeof k));
    const int n = 300;
    std::vector<uint32_t> blocks(16 * n), digests(8 * n);
    for (auto &x : blocks) x = (uint32_t)random.bits();
    std::fill(blocks.begin(), blocks.begin() + 16, 0);
    blocks[0] = 0x61626380, blocks[15] = 24; // "abc"
    for (int i = 0; i < n; i++) sha256(&blocks[16 * i], &digests[8 * i], k);
    v.same("the digest of abc", digests[0], 0xba7816bfu);
    Array<uint32_t> db(blocks), dd(8 * n);
    hash<<<blocks_for(n, 64), 64>>>(db, dd, n);
    v.same("SHA-256", dd.host(), digests);

    std::vector<uint64_t> numbers(3 * n), results;
    for (auto &x : numbers) x = random.bits() >> random.below(20);
    for (int i = 0; i < n; i++) {
        uint64_t m = numbers[3 * i + 2] | 1, e = numbers[3 * i + 1] >> 40, r = 1 % m, base = numbers[3 * i] % m, a = numbers[3 * i], b = numbers[3 * i + 1];
        for (; e; e >>= 1, base = (uint64_t)((unsigned __int128)base * base % m))
            if (e & 1) r = (uint64_t)((unsigned __int128)r * base % m);
        while (b) a %= b, std::swap(a, b);
        results.insert(results.end(), {r, a});
    }
    Array<uint64_t> dn(numbers), dr(2 * n);
    modular<<<blocks_for(n, 32), 32>>>(dn, dr, n);
    v.same("modular powers and divisors", dr.host(), results);

    std::vector<uint4> a(64), b(64);
    std::vector<uint32_t> products(512);
    for (int i = 0; i < 64; i++) {
        uint32_t x[8];
        for (auto &e : x) e = random.below(4) ? (uint32_t)random.bits() : ~0u;
        a[i] = make_uint4(x[0], x[1], x[2], x[3]), b[i] = make_uint4(x[4], x[5], x[6], x[7]);
        for (int j = 0; j < 4; j++) {
            uint64_t carry = 0;
            for (int l = 0; l < 4; l++) {
                carry += (uint64_t)x[l] * x[4 + j] + products[8 * i + j + l];
                products[8 * i + j + l] = (uint32_t)carry;
                carry >>= 32;
            }
            products[8 * i + j + 4] = (uint32_t)carry;
        }
    }
    Array<uint4> da(a), dbb(b);
    Array<uint32_t> dp(512);
    wide<<<1, 64>>>(da, dbb, dp);
    v.same("wide products", dp.host(), products);

    const int limit = 20000 + random.below(10000);
    Array<unsigned> composite(limit / 32 + 1);
    sieve<<<2, 128>>>(composite, limit, (int)std::sqrt((double)limit));
    auto bits = composite.host();
    bool right = true;
    for (int i = 2; i < limit; i++) {
        bool prime = true;
        for (int d = 2; d * d <= i && prime; d++) prime = i % d != 0;
        right &= prime == !(bits[i / 32] >> i % 32 & 1);
    }
    v.that("sieve", right);

    std::vector<int> x(n), y(n);
    std::vector<long long> quotients;
    for (int i = 0; i < n; i++) {
        x[i] = (int)random.bits() >> random.below(24), y[i] = (int)random.bits() >> random.below(31);
        if (y[i] == 0 || y[i] == -1) y[i] = 3;
        long long p = (long long)x[i] * 4294967311ll + y[i], q = (long long)y[i] * 77777 + 1;
        quotients.insert(quotients.end(), {x[i] / y[i], x[i] % y[i], (long long)((unsigned)x[i] / (unsigned)y[i] + (unsigned)x[i] % (unsigned)y[i]), p / q, p % q,
                                           (long long)((unsigned long long)p / 1000000007u) + (short)x[i] / (short)(y[i] | 1) + (x[i] >> 3) + ((unsigned)x[i] >> 5)});
    }
    Array<int> dx(x), dy(y);
    Array<long long> dq(6 * n);
    divisions<<<blocks_for(n, 128), 128>>>(dx, dy, dq, n);
    v.same("divisions", dq.host(), quotients);
    return v.end();
}
