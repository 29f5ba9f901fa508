// Hashes and ciphers: SHA-256, CRC-32, ChaCha20 and Keccak of many messages, one a thread; rotations, byte loads, tables in constant memory, published values
#include "program.h"

#define HOST_DEVICE __host__ __device__ inline

static const uint32_t primes_host[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
__constant__ uint32_t primes_device[64];

HOST_DEVICE uint32_t prime(int i) {
#ifdef __CUDA_ARCH__
    return primes_device[i];
#else
    return primes_host[i];
#endif
}

HOST_DEVICE uint32_t right(uint32_t x, int n) { return x >> n | x << (32 - n); }
HOST_DEVICE uint32_t left(uint32_t x, int n) { return x << n | x >> (32 - n); }

HOST_DEVICE void sha256(const uint8_t *message, int size, uint32_t *state) {
    const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (int i = 0; i < 8; i++) state[i] = first[i];
    int blocks = (size + 9 + 63) / 64, end = 64 * blocks;
    for (int block = 0; block < blocks; block++) {
        uint32_t w[64], h[8];
        for (int i = 0; i < 16; i++) {
            w[i] = 0;
            for (int at = 64 * block + 4 * i, k = 0; k < 4; k++, at++) {
                uint32_t byte = at < size ? message[at] : at == size ? 0x80 : 0;
                if (at >= end - 8) byte = static_cast<uint32_t>(8ull * static_cast<unsigned>(size) >> 8 * (end - 1 - at)) & 255;
                w[i] = w[i] << 8 | byte;
            }
        }
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (right(a, 7) ^ right(a, 18) ^ a >> 3) + w[i - 7] + (right(b, 17) ^ right(b, 19) ^ b >> 10);
        }
        for (int i = 0; i < 8; i++) h[i] = state[i];
        for (int i = 0; i < 64; i++) {
            uint32_t one = h[7] + (right(h[4], 6) ^ right(h[4], 11) ^ right(h[4], 25)) + ((h[4] & h[5]) ^ (~h[4] & h[6])) + prime(i) + w[i];
            uint32_t two = (right(h[0], 2) ^ right(h[0], 13) ^ right(h[0], 22)) + ((h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]));
            for (int k = 7; k > 0; k--) h[k] = h[k - 1];
            h[4] += one;
            h[0] = one + two;
        }
        for (int i = 0; i < 8; i++) state[i] += h[i];
    }
}

HOST_DEVICE uint32_t crc32(const uint8_t *message, int size) {
    uint32_t crc = ~0u;
    for (int i = 0; i < size; i++) {
        crc ^= message[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

HOST_DEVICE void quarter(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d) {
    a += b, d = left(d ^ a, 16), c += d, b = left(b ^ c, 12);
    a += b, d = left(d ^ a, 8), c += d, b = left(b ^ c, 7);
}

HOST_DEVICE void chacha(const uint32_t *key, uint32_t counter, uint32_t *out) {
    uint32_t start[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, x[16];
    for (int i = 0; i < 8; i++) start[4 + i] = key[i];
    start[12] = counter;
    for (int i = 0; i < 16; i++) x[i] = start[i];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++) quarter(x[i], x[4 + i], x[8 + i], x[12 + i]);
        for (int i = 0; i < 4; i++) quarter(x[i], x[4 + (i + 1) % 4], x[8 + (i + 2) % 4], x[12 + (i + 3) % 4]);
    }
    for (int i = 0; i < 16; i++) out[i] = x[i] + start[i];
}

HOST_DEVICE void keccak(uint64_t *s) {
    unsigned feedback = 1;
    for (int round = 0; round < 24; round++) {
        uint64_t columns[5], moved = s[1];
        for (int x = 0; x < 5; x++) columns[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
        for (int x = 0; x < 5; x++) {
            uint64_t next = columns[(x + 1) % 5], mixed = columns[(x + 4) % 5] ^ (next << 1 | next >> 63);
            for (int y = 0; y < 25; y += 5) s[x + y] ^= mixed;
        }
        moved = s[1];
        for (int i = 0, x = 1, y = 0; i < 24; i++) {
            int by = (i + 1) * (i + 2) / 2 % 64, below = (2 * x + 3 * y) % 5;
            x = y;
            y = below;
            uint64_t old = s[x + 5 * y];
            s[x + 5 * y] = by ? moved << by | moved >> (64 - by) : moved;
            moved = old;
        }
        for (int y = 0; y < 25; y += 5) {
            uint64_t row[5];
            for (int x = 0; x < 5; x++) row[x] = s[x + y];
            for (int x = 0; x < 5; x++) s[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        for (int j = 0; j < 7; j++) {
            if (feedback & 1) s[0] ^= 1ull << ((1 << j) - 1);
            feedback = feedback << 1 ^ (feedback >> 7 ? 0x171 : 0);
        }
    }
}

__global__ void digest(const uint8_t *messages, const int *start, uint32_t *sha, uint32_t *crc, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    sha256(messages + start[i], start[i + 1] - start[i], sha + 8 * i);
    crc[i] = crc32(messages + start[i], start[i + 1] - start[i]);
}

__global__ void streams_of(const uint32_t *key, uint32_t *out, uint64_t *states) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    chacha(key, i, out + 16 * i);
    keccak(states + 25 * i);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict verdict("hashes");
    CHECK(cudaMemcpyToSymbol(primes_device, primes_host, sizeof primes_host));
    const int n = 300, lanes = 128;
    std::vector<int> start{0, 3};
    while (start.size() <= n) start.push_back(start.back() + random.below(150));
    std::vector<uint8_t> messages(start.back() + 1);
    for (auto &byte : messages) byte = static_cast<uint8_t>(random.bits());
    std::memcpy(messages.data(), "abc", 3);
    std::vector<uint32_t> sha(8 * n), crc(n), key(8), stream(16 * lanes);
    std::vector<uint64_t> states(25 * lanes);
    for (auto &word : key) word = static_cast<uint32_t>(random.bits());
    for (auto &word : states) word = random.bits();
    Array<uint8_t> device_messages(messages);
    Array<int> device_start(start);
    Array<uint32_t> device_sha(8 * n), device_crc(n), device_key(key), device_stream(16 * lanes);
    Array<uint64_t> device_states(states);
    digest<<<blocks_for(n, 64), 64>>>(device_messages, device_start, device_sha, device_crc, n);
    streams_of<<<lanes / 32, 32>>>(device_key, device_stream, device_states);
    for (int i = 0; i < n; i++) {
        sha256(messages.data() + start[i], start[i + 1] - start[i], &sha[8 * i]);
        crc[i] = crc32(messages.data() + start[i], start[i + 1] - start[i]);
    }
    for (int i = 0; i < lanes; i++) {
        chacha(key.data(), i, &stream[16 * i]);
        keccak(&states[25 * i]);
    }
    auto got = device_sha.host();
    verdict.that("SHA-256 of abc", got[0] == 0xba7816bf && got[7] == 0xf20015ad);
    verdict.same("CRC-32 of abc", device_crc.first(), 0x352441c2u);
    verdict.same("SHA-256", got, sha);
    verdict.same("CRC-32", device_crc.host(), crc);
    verdict.same("ChaCha20", device_stream.host(), stream);
    verdict.same("Keccak", device_states.host(), states);
    return verdict.end();
}
