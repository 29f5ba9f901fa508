// A hash table with open addressing: threads insert by compare-and-swap and count repeats; look-ups, misses and deletions follow.
#include "program.h"

constexpr unsigned capacity = 1 << 14, empty = 0xFFFFFFFFu, dead = 0xFFFFFFFEu;

struct Entry {
    unsigned key, count;
};

__device__ unsigned slot(unsigned k) {
    k ^= k >> 16;
    k *= 0x85ebca6bu;
    k ^= k >> 13;
    k *= 0xc2b2ae35u;
    return (k ^ k >> 16) & (capacity - 1);
}

__global__ void clear(Entry *table) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < capacity) table[i] = {empty, 0};
}

__global__ void insert(Entry *table, const unsigned *keys, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (unsigned s = slot(keys[i]);; s = (s + 1) & (capacity - 1)) {
        unsigned before = atomicCAS(&table[s].key, empty, keys[i]);
        if (before == empty || before == keys[i]) {
            atomicAdd(&table[s].count, 1);
            return;
        }
    }
}

__device__ Entry *find(Entry *table, unsigned key) {
    for (unsigned s = slot(key);; s = (s + 1) & (capacity - 1)) {
        if (table[s].key == key) return &table[s];
        if (table[s].key == empty) return nullptr;
    }
}

__global__ void look_up(Entry *table, const unsigned *keys, unsigned *counts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Entry *e = find(table, keys[i]);
    counts[i] = e ? e->count : 0;
}

__global__ void remove(Entry *table, const unsigned *keys, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (Entry *e = find(table, keys[i])) e->key = dead;
}

__global__ void total(const Entry *table, unsigned *sums) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned there = i < capacity && table[i].key < dead;
    atomicAdd(&sums[0], there);
    if (there) atomicAdd(&sums[1], table[i].count);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("hash_table");
    const int n = 15000, asked = 8000;
    auto keys = random.ints<unsigned>(n, 0, 12000), questions = random.ints<unsigned>(asked, 0, 14000);
    for (auto *list : {&keys, &questions})
        for (auto &k : *list) k = k * 2654435761u >> 1;
    std::vector<unsigned> sorted(keys);
    std::sort(sorted.begin(), sorted.end());
    auto occurrences = [&](unsigned k) {
        auto range = std::equal_range(sorted.begin(), sorted.end(), k);
        return (unsigned)(range.second - range.first);
    };
    Array<Entry> table(capacity);
    Array<unsigned> data(keys), ask(questions), counts(asked), sums(2);
    clear<<<capacity / 256, 256>>>(table);
    insert<<<blocks_for(n, 128), 128>>>(table, data, n);
    look_up<<<blocks_for(asked, 64), 64>>>(table, ask, counts, asked);
    std::vector<unsigned> want(asked);
    for (int i = 0; i < asked; i++) want[i] = occurrences(questions[i]);
    v.same("counts", counts.host(), want);

    total<<<capacity / 512, 512>>>(table, sums);
    std::vector<unsigned> different(sorted);
    different.erase(std::unique(different.begin(), different.end()), different.end());
    v.same("entries", sums.host(), std::vector<unsigned>{(unsigned)different.size(), (unsigned)n});

    remove<<<blocks_for(asked / 2, 64), 64>>>(table, ask, asked / 2);
    look_up<<<blocks_for(asked, 64), 64>>>(table, ask, counts, asked);
    std::vector<unsigned> removed(questions.begin(), questions.begin() + asked / 2);
    std::sort(removed.begin(), removed.end());
    for (int i = 0; i < asked; i++)
        if (std::binary_search(removed.begin(), removed.end(), questions[i])) want[i] = 0;
    v.same("after removal", counts.host(), want);
    return v.end();
}
