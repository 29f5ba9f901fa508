// Waiting for one another: spin locks taken by lanes of one warp, ticket locks, blocks that wait for the block before, a barrier of the grid by hand; sleep, clocks.
#include "program.h"

struct Account {
    int lock, balance, moves;
};

__global__ void transfer(Account *accounts, const int *from, const int *to, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || from[i] == to[i]) return;
    int first = min(from[i], to[i]), second = max(from[i], to[i]);
    for (bool done = false; !done;) {
        if (atomicCAS(&accounts[first].lock, 0, 1) == 0) {
            if (atomicCAS(&accounts[second].lock, 0, 1) == 0) {
                __threadfence();
                volatile Account *a = &accounts[from[i]], *b = &accounts[to[i]];
                a->balance -= i, b->balance += i, a->moves++, b->moves++;
                __threadfence();
                atomicExch(&accounts[second].lock, 0);
                done = true;
            }
            atomicExch(&accounts[first].lock, 0);
        }
    }
}

// Without a way around: the lane that holds the lock must go on while its neighbours spin.
__global__ void counter(volatile int *value, int *lock) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    *value = *value + 1;
    __threadfence();
    atomicExch(lock, 0);
}

__global__ void tickets(unsigned *next, volatile unsigned *serving, int *order, volatile int *place) {
    unsigned mine = atomicAdd(next, 1);
    while (*serving != mine) __nanosleep(20);
    __threadfence();
    int p = *place;
    order[p] = (int)mine;
    *place = p + 1;
    __threadfence();
    *serving = mine + 1;
}

// A chain over blocks: each waits for the one before it.
__global__ void chain(volatile unsigned long long *flags, unsigned long long *out) {
    if (threadIdx.x == 0) {
        unsigned long long before = 1;
        if (blockIdx.x)
            while ((before = flags[blockIdx.x - 1]) == 0) {}
        out[blockIdx.x] = before * 3 % 1000003;
        __threadfence();
        flags[blockIdx.x] = before * 3 % 1000003;
    }
}

__global__ void grid_barrier(unsigned *arrived, volatile unsigned *phase, volatile int *cells, int *out, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, x = i;
    for (int r = 0; r < rounds; r++) {
        cells[r % 2 * n + i] = x;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            if (atomicAdd(arrived, 1) == gridDim.x - 1) {
                *arrived = 0;
                __threadfence();
                *phase = r + 1;
            } else
                while (*phase <= r) {}
        }
        __syncthreads();
        x += cells[r % 2 * n + (i * 7 + 13) % n];
    }
    out[i] = x;
}

__global__ void clocks(long long *out) {
    long long a = clock64();
    unsigned long long t, u;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    __nanosleep(100000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(u));
    out[0] = clock64() - a, out[1] = (long long)(u - t);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("spin_locks");
    const int n = 600, count = 12;
    auto from = random.ints(n, 0, count - 1), to = random.ints(n, 0, count - 1);
    Array<int> df(from), dt(to);
    Array<Account> accounts(count);
    transfer<<<blocks_for(n, 64), 64>>>(accounts, df, dt, n);
    std::vector<int> balances(count), moves(count), got_balances, got_moves;
    for (int i = 0; i < n; i++)
        if (from[i] != to[i]) balances[from[i]] -= i, balances[to[i]] += i, moves[from[i]]++, moves[to[i]]++;
    for (auto &a : accounts.host()) got_balances.push_back(a.balance), got_moves.push_back(a.moves);
    v.same("balances", got_balances, balances);
    v.same("moves", got_moves, moves);

    Array<int> value(1), lock(1), order(256), place(1);
    counter<<<6, 70>>>(value, lock);
    v.same("counter", value.first(), 420);
    Array<unsigned> next(1), serving(1), arrived(1), phase(1);
    tickets<<<256, 1>>>(next, serving, order, place); // a block each: lanes of one warp that wait by plain loads are a known difference
    std::vector<int> in_turn(256);
    for (int i = 0; i < 256; i++) in_turn[i] = i;
    v.same("tickets", order.host(), in_turn);

    Array<unsigned long long> flags(500), out(500);
    chain<<<500, 32>>>(flags, out);
    std::vector<unsigned long long> powers(500);
    for (unsigned long long i = 0, x = 1; i < 500; i++) powers[i] = x = x * 3 % 1000003;
    v.same("chain", out.host(), powers);

    int blocks = 2, rounds = 10; // as many blocks as are sure to be there at once
    Array<int> cells(2 * blocks * 64), last(blocks * 64);
    grid_barrier<<<blocks, 64>>>(arrived, phase, cells, last, rounds);
    std::vector<int> x(blocks * 64), y(x.size());
    for (size_t i = 0; i < x.size(); i++) x[i] = (int)i;
    for (int r = 0; r < rounds; r++, x = y)
        for (size_t i = 0; i < x.size(); i++) y[i] = x[i] + x[(i * 7 + 13) % x.size()];
    v.same("barrier of the grid", last.host(), x);

    Array<long long> times(2);
    clocks<<<1, 1>>>(times);
    auto t = times.host();
    v.that("clocks", t[0] > 0 && t[1] > 0);
    return v.end();
}
