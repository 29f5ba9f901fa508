// Breadth-first search over a graph in compressed rows: a frontier of vertices is expanded by warps until it is empty; a queue grows by atomics.
#include "program.h"

__global__ void by_levels(const int *rows, const int *edges, int *level, int now, int n, int *changed) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
    for (int u = warp; u < n; u += warps) {
        if (level[u] != now) continue;
        for (int e = rows[u] + lane; e < rows[u + 1]; e += 32)
            if (level[edges[e]] < 0) {
                level[edges[e]] = now + 1;
                *changed = 1;
            }
    }
}

__global__ void by_queue(const int *rows, const int *edges, int *level, const int *queue, int count, int *next, int *next_count, int now) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int u = queue[i];
    for (int e = rows[u]; e < rows[u + 1]; e++)
        if (atomicCAS(&level[edges[e]], -1, now + 1) == -1) next[atomicAdd(next_count, 1)] = edges[e];
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("bfs");
    const int n = 3000;
    std::vector<std::vector<int>> lists(n);
    for (int i = 0; i < 5000; i++) {
        int a = random.below(n), b = std::min(n - 1, std::max(0, a + random.between(-40, 40)));
        if (a % 10 == 3) continue; // some stay alone
        lists[a].push_back(b), lists[b].push_back(a);
    }
    for (int i = 0; i < 200; i++) lists[7].push_back(random.below(n)); // one with many
    std::vector<int> rows(n + 1), edges;
    for (int i = 0; i < n; i++) {
        edges.insert(edges.end(), lists[i].begin(), lists[i].end());
        rows[i + 1] = (int)edges.size();
    }
    const int source = 7; // which has the most
    std::vector<int> want(n, -1), queue = {source};
    want[source] = 0;
    for (size_t i = 0; i < queue.size(); i++)
        for (int w : lists[queue[i]])
            if (want[w] < 0) want[w] = want[queue[i]] + 1, queue.push_back(w);

    std::vector<int> first(n, -1);
    first[source] = 0;
    Array<int> r(rows), e(edges), level(first), changed(1), q(n), next(n), count(1);
    for (int now = 0; now < n; now++) {
        changed.clear();
        by_levels<<<8, 128>>>(r, e, level, now, n, changed);
        if (!changed.first()) break;
    }
    v.same("by levels", level.host(), want);

    level.set(first);
    q.set(std::vector<int>{source});
    int *from = q, *to = next, size = 1;
    for (int now = 0; size && now < n; now++) {
        count.clear();
        by_queue<<<blocks_for(size, 64), 64>>>(r, e, level, from, size, to, count, now);
        size = count.first();
        std::swap(from, to);
    }
    v.same("by a queue", level.host(), want);
    v.that("somewhere to go", queue.size() > 1);
    return v.end();
}
