// Warp-level primitives against a model on the host: ballot, any, all, match, reduce, shuffles of all kinds and widths, partial and divided warps, funnel shifts.
#include "program.h"

constexpr unsigned full = ~0u;

__global__ void votes(const int *in, unsigned *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i];
    unsigned *o = out + i * 12;
    o[0] = __ballot_sync(full, x & 1);
    o[1] = __any_sync(full, x > 14) + 2 * __all_sync(full, x > 0) + 4 * __all_sync(full, x >= 0);
    o[2] = __match_any_sync(full, x);
    int pred;
    o[3] = __match_all_sync(full, (long long)x / 100, &pred);
    o[4] = pred + 2 * __popc(__match_any_sync(full, (double)(x % 3)));
    o[5] = __reduce_add_sync(full, x);
    o[6] = __reduce_min_sync(full, (unsigned)x) * 100 + __reduce_max_sync(full, x - 5);
    o[7] = __reduce_or_sync(full, 1u << x) ^ __reduce_xor_sync(full, (unsigned)x * 77u) ^ __reduce_and_sync(full, x | 3u);
    // Halves of the warp go apart and ask among themselves.
    if (threadIdx.x % 32 < 13) o[8] = __ballot_sync(0x1FFF, x & 2) + __activemask() % 2;
    else o[8] = __ballot_sync(~0x1FFFu, x & 4);
    __syncwarp();
    // Lanes that left early take no part.
    if (x == 7) {
        for (int k = 9; k < 12; k++) o[k] = 7;
        return;
    }
    unsigned left = __activemask();
    o[9] = __ballot_sync(left, x > 7);
    o[10] = __popc(left);
    o[11] = __shfl_sync(left, x, __ffs(left) - 1);
}

template <int width> __global__ void shuffles(const double *in, double *out, const int *by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double x = in[i];
    double *o = out + i * 8;
    o[0] = __shfl_sync(full, x, by[i], width);
    o[1] = __shfl_up_sync(full, x, 3, width);
    o[2] = __shfl_down_sync(full, x, 5, width);
    o[3] = __shfl_xor_sync(full, x, 6, width);
    o[4] = __shfl_up_sync(full, (short)(x * 100), by[i / 32 * 32] & 31, width);
    o[5] = __shfl_down_sync(full, (float)x, by[i / 32 * 32] & 31, width);
    o[6] = __shfl_xor_sync(full, (long long)(x * 1000), by[i / 32 * 32] & 31, width);
    o[7] = __shfl_sync(full, (unsigned char)(x + 100), threadIdx.x * 7 + 1, width);
}

__global__ void bits(const unsigned *in, unsigned *out) {
    int i = threadIdx.x;
    unsigned a = in[i], b = in[i + 64], s = in[i + 128] % 40;
    unsigned *o = out + i * 10;
    o[0] = __funnelshift_l(a, b, s);
    o[1] = __funnelshift_rc(a, b, s);
    o[2] = __brev(a) ^ __byte_perm(a, b, 0x5140);
    o[3] = __popc(a) + 100 * __clz(a >> s % 32) + 10000 * __ffs(b << s % 32);
    o[4] = __umulhi(a, b) ^ (unsigned)__mulhi((int)a, (int)b);
    o[5] = __dp4a(a, b, s);
    o[6] = __vaddus4(a, b) ^ __vabsdiffu4(a, b);
    o[7] = __vmaxs2(a, b);
    o[8] = __sad((int)a, (int)b, s) + __usad(a, b, s);
    o[9] = __uhadd(a, b) + __urhadd(a, b);
}

static void check_bits(Verdict &v, Random &random) {
    std::vector<unsigned> in(192);
    for (auto &x : in) x = (unsigned)random.bits();
    Array<unsigned> data(in), out(640);
    bits<<<1, 64>>>(data, out);
    auto got = out.host();
    std::vector<unsigned> want(640);
    for (int i = 0; i < 64; i++) {
        unsigned a = in[i], b = in[i + 64], s = in[i + 128] % 40, *o = &want[i * 10];
        uint64_t both = (uint64_t)b << 32 | a;
        o[0] = (unsigned)(both << s % 32 >> 32);
        o[1] = (unsigned)(both >> std::min(s, 32u));
        unsigned reversed = 0, picked = (a & 255) | (b & 255) << 8 | (a >> 8 & 255) << 16 | (b >> 8 & 255) << 24;
        for (int k = 0; k < 32; k++) reversed |= (a >> k & 1) << (31 - k);
        o[2] = reversed ^ picked;
        unsigned shifted = a >> s % 32, up = b << s % 32;
        o[3] = __builtin_popcount(a) + 100 * (shifted ? __builtin_clz(shifted) : 32) + 10000 * __builtin_ffs((int)up);
        o[4] = (unsigned)((uint64_t)a * b >> 32) ^ (unsigned)((int64_t)(int)a * (int)b >> 32);
        o[5] = s;
        for (int k = 0; k < 32; k += 8) {
            int x = a >> k & 255, y = b >> k & 255;
            o[5] += x * y;
            o[6] |= (unsigned)(std::min(255, x + y) ^ std::abs(x - y)) << k;
        }
        for (int k = 0; k < 32; k += 16) o[7] |= (unsigned)(uint16_t)std::max((int16_t)(a >> k), (int16_t)(b >> k)) << k;
        int64_t difference = (int64_t)(int)a - (int)b;
        o[8] = (unsigned)std::llabs(difference) + s + (a > b ? a - b : b - a) + s;
        o[9] = (unsigned)(((uint64_t)a + b) / 2) + (unsigned)(((uint64_t)a + b + 1) / 2);
    }
    v.same("bits", got, want);
}

template <int width> static void check_shuffles(Verdict &v, Random &random) {
    const int n = 96;
    auto in = random.reals<double>(n, -90, 100);
    auto by = random.ints(n, 0, 31);
    Array<double> data(in), out(n * 8);
    Array<int> lanes(by);
    shuffles<width><<<1, n>>>(data, out, lanes);
    std::vector<double> want(n * 8);
    for (int i = 0; i < n; i++) {
        int lane = i % 32, base = i - lane, first = lane / width * width, same = by[base];
        auto up = [&](int d) { return in[base + (lane - d >= first ? lane - d : lane)]; };
        auto down = [&](int d) { return in[base + (lane + d < first + width ? lane + d : lane)]; };
        auto flip = [&](int d) { return in[base + ((lane ^ d) < first + width ? lane ^ d : lane)]; };
        auto at = [&](int s) { return in[base + first + s % width]; };
        double results[8] = {at(by[i]), up(3), down(5), flip(6), (double)(short)(up(same) * 100), (double)(float)down(same), (double)(long long)(flip(same) * 1000),
                             (double)(unsigned char)(at(i * 7 + 1) + 100)};
        std::copy(results, results + 8, &want[i * 8]);
    }
    v.same("shuffles", out.host(), want);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("warp_primitives");
    const int n = 192;
    auto in = random.ints(n, 0, 15);
    for (int i = 0; i < 32; i++) in[i] = 8 + i % 5; // a warp in which all are positive
    Array<int> data(in);
    Array<unsigned> out(n * 12);
    votes<<<2, n / 2>>>(data, out);
    std::vector<unsigned> want(n * 12);
    for (int i = 0; i < n; i++) {
        const int *w = &in[i / 32 * 32], x = in[i], lane = i % 32;
        unsigned *o = &want[i * 12], odd = 0, two = 0, four = 0, same = 0, left = 0, large = 0, bits_or = 0, bits_xor = 0, bits_and = ~0u;
        int any = 0, all = 1, all0 = 1, sum = 0, least = 99, most = -99, thirds = 0, first = -1;
        for (int k = 0; k < 32; k++) {
            odd |= (unsigned)(w[k] & 1) << k, two |= (unsigned)(w[k] >> 1 & 1) << k, four |= (unsigned)(w[k] >> 2 & 1) << k;
            same |= (unsigned)(w[k] == x) << k;
            any |= w[k] > 14, all &= w[k] > 0, all0 &= w[k] >= 0;
            sum += w[k], least = std::min(least, w[k]), most = std::max(most, w[k] - 5);
            thirds += w[k] % 3 == x % 3;
            bits_or |= 1u << w[k], bits_xor ^= w[k] * 77u, bits_and &= w[k] | 3u;
            if (w[k] != 7) {
                left |= 1u << k, large |= (unsigned)(w[k] > 7) << k;
                if (first < 0) first = w[k];
            }
        }
        o[0] = odd, o[1] = any + 2 * all + 4 * all0, o[2] = same, o[3] = ~0u, o[4] = 1 + 2 * thirds;
        o[5] = sum, o[6] = (unsigned)(least * 100 + most), o[7] = bits_or ^ bits_xor ^ bits_and;
        o[8] = lane < 13 ? (two & 0x1FFF) + 1 : four & ~0x1FFFu;
        if (x == 7) o[9] = o[10] = o[11] = 7;
        else o[9] = large, o[10] = (unsigned)__builtin_popcount(left), o[11] = (unsigned)first;
    }
    v.same("votes", out.host(), want);
    check_shuffles<32>(v, random);
    check_shuffles<16>(v, random);
    check_shuffles<8>(v, random);
    check_bits(v, random);
    return v.end();
}
