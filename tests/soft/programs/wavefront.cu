// Dynamic programming along anti-diagonals: Levenshtein's distance by a launch a diagonal, in one block with barriers, and by a warp that hands values from lane to lane.
#include "program.h"

__global__ void diagonal(const char *a, const char *b, int *table, int n, int m, int d) {
    int i = max(1, d - m) + blockIdx.x * blockDim.x + threadIdx.x, j = d - i;
    if (i > min(n, d - 1)) return;
    int *cell = table + i * (m + 1) + j, up = cell[-(m + 1)], left = cell[-1], corner = cell[-(m + 1) - 1];
    *cell = min(min(up, left) + 1, corner + (a[i - 1] != b[j - 1]));
}

// The local alignment of Smith and Waterman: three diagonals in shared memory.
__global__ void align(const char *a, const char *b, int *best, int n, int m) {
    __shared__ int lines[3][257];
    const int gap = 2, i = threadIdx.x + 1;
    int most = 0;
    for (int k = 0; k < 3; k++) {
        lines[k][i] = 0;
        if (i == 1) lines[k][0] = 0;
    }
    __syncthreads();
    for (int d = 2; d <= n + m; d++) {
        int j = d - i;
        int *now = lines[d % 3], *last = lines[(d + 2) % 3], *before = lines[(d + 1) % 3];
        if (i <= n && j >= 1 && j <= m) {
            int same = before[i - 1] + (a[i - 1] == b[j - 1] ? 3 : -3);
            now[i] = max(max(0, same), max(last[i - 1], last[i]) - gap);
            most = max(most, now[i]);
        } else now[i] = 0;
        __syncthreads();
    }
    atomicMax(best, most);
}

// The longest common subsequence of 32 characters and any text: lane i holds row i, one step behind lane i - 1.
__global__ void common(const char *a, const char *b, int *length, int m) {
    int lane = threadIdx.x, left = 0, corner = 0, own = a[lane];
    for (int step = 0; step < m + 31; step++) {
        int up = __shfl_up_sync(~0u, left, 1);
        if (lane == 0) up = 0;
        int j = step - lane;
        if (j >= 0 && j < m) {
            int value = b[j] == own ? corner + 1 : max(up, left);
            corner = up;
            left = value;
        }
    }
    if (lane == 31) *length = left;
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("wavefront");
    const int n = 150 + random.below(100), m = 200 + random.below(100);
    std::vector<char> a(n), b(m);
    for (auto *text : {&a, &b})
        for (auto &c : *text) c = (char)('a' + random.below(4));
    std::copy(a.begin() + 20, a.begin() + 60, b.begin() + 90);
    std::vector<int> table((n + 1) * (m + 1)), start, local(table.size()), sub(33 * (m + 1));
    for (int i = 0; i <= n; i++) table[i * (m + 1)] = i;
    for (int j = 0; j <= m; j++) table[j] = j;
    start = table;
    int best = 0;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int at = i * (m + 1) + j, up = at - m - 1;
            table[at] = std::min({table[up] + 1, table[at - 1] + 1, table[up - 1] + (a[i - 1] != b[j - 1])});
            local[at] = std::max({0, local[up] - 2, local[at - 1] - 2, local[up - 1] + (a[i - 1] == b[j - 1] ? 3 : -3)});
            best = std::max(best, local[at]);
            if (i <= 32) sub[at] = a[i - 1] == b[j - 1] ? sub[up - 1] + 1 : std::max(sub[up], sub[at - 1]);
        }
    Array<char> da(a), db(b);
    Array<int> cells(start), most(1), length(1);
    for (int d = 2; d <= n + m; d++) diagonal<<<blocks_for(std::min(n, m), 64), 64>>>(da, db, cells, n, m, d);
    v.same("Levenshtein", cells.host(), table);
    align<<<1, 256>>>(da, db, most, n, m);
    v.same("Smith and Waterman", most.first(), best);
    common<<<1, 32>>>(da, db, length, m);
    v.same("longest common subsequence", length.first(), sub[33 * (m + 1) - 1]);
    return v.end();
}
