// Integers of 128 bits: products, quotients, remainders, shifts, comparisons, as the compiler makes them of carries
#include "program.h"

typedef unsigned long long Word;
typedef unsigned __int128 Wide;

__host__ __device__ inline void calculate(Wide x, Wide y, Wide *out) {
    Wide d = y ? y : 1;
    __int128 sx = static_cast<__int128>(x), sd = static_cast<__int128>(d);
    int by = static_cast<int>(static_cast<Word>(y) & 127);
    out[0] = x * y;
    out[1] = x / d;
    out[2] = x % d;
    out[3] = static_cast<Wide>(sd == -1 ? -x : static_cast<Wide>(sx / sd));
    out[4] = static_cast<Wide>(sd == -1 ? 0 : static_cast<Wide>(sx % sd));
    out[5] = x << by;
    out[6] = x >> by;
    out[7] = static_cast<Wide>(sx >> by) + (x < y) + 2 * (sx < sd);
}

__global__ void calculate_all(const Word *words, Word *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Word *w = words + 4 * i;
    Wide results[8];
    calculate(static_cast<Wide>(w[0]) << 64 | w[1], static_cast<Wide>(w[2]) << 64 | w[3], results);
    for (int k = 0; k < 8; k++) {
        out[16 * i + 2 * k] = static_cast<Word>(results[k] >> 64);
        out[16 * i + 2 * k + 1] = static_cast<Word>(results[k]);
    }
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict verdict("int128");
    const int n = 2000;
    std::vector<Word> words(4 * n), want(16 * n);
    for (auto &w : words) {
        int kind = random.below(8);
        w = kind == 0 ? 0 : kind == 1 ? ~0ull : random.bits() >> random.below(64);
    }
    for (int i = 0; i < n; i++) {
        const Word *w = words.data() + 4 * i;
        Wide results[8];
        calculate(static_cast<Wide>(w[0]) << 64 | w[1], static_cast<Wide>(w[2]) << 64 | w[3], results);
        for (int k = 0; k < 8; k++) {
            want[16 * i + 2 * k] = static_cast<Word>(results[k] >> 64);
            want[16 * i + 2 * k + 1] = static_cast<Word>(results[k]);
        }
    }
    Array<Word> device(words), out(16 * n);
    calculate_all<<<blocks_for(n, 96), 96>>>(device, out, n);
    verdict.same("products, quotients, remainders, shifts, comparisons", out.host(), want);
    return verdict.end();
}
