/* Times of single driver calls, in the caller. */
#include "bench.h"

#include <unistd.h>

#define BURST 256    /* launches, fewer than the command ring holds */
#define WAITS 25     /* calls one after the other */
#define SKIPPED 5    /* first calls that are not counted, while the worker wakes up */
#define ALONE_US 200 /* the program's own work between calls */
#define ASLEEP_US 10000

static function_t nothing;

static void launches(int n) {
    static uint64_t a = 1, b = 2, c = 3;
    static uint32_t d = 4, e = 5, h = 8;
    static float f = 6, g = 7;
    void *params[8] = {&a, &b, &c, &d, &e, &f, &g, &h};
    for (int i = 0; i < n; i++) must(cu.launch(nothing, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void records(int n) {
    for (int i = 0; i < n; i++) must(cu.record(first, stream), "cuEventRecord");
}

static void synchronise(void) { must(cu.sync_stream(stream), "cuStreamSynchronize"); }

static void bursts(const char *name, void (*calls)(int), int rounds) {
    double *times = room((size_t)rounds * sizeof *times);
    for (int round = -2; round < rounds; round++) {
        double t = now_us();
        calls(BURST);
        t = now_us() - t;
        synchronise();
        if (round >= 0) times[round] = t / BURST;
    }
    put(name, median(times, rounds));
    free(times);
}

/* launch_burst, record_burst: bursts of 256, the device drained between them. launch_sustained, launch_sustained_in: `sustained` launches in a row,
 * the final synchronise included; and what the same launches took until they were handed over. */
void calls_one_way(int rounds, int sustained) {
    nothing = kernel("nothing");
    bursts("launch_burst", launches, rounds);
    bursts("record_burst", records, rounds);
    double executed[5], handed[5];
    for (int i = 0; i < 5; i++) {
        double t = now_us();
        launches(sustained);
        handed[i] = (now_us() - t) / sustained;
        synchronise();
        executed[i] = (now_us() - t) / sustained;
    }
    put("launch_sustained", median(executed, 5));
    put("launch_sustained_in", median(handed, 5));
}

/* isolated, isolated_p90: cuEventRecord alone, the program's own work between; isolated_idle: after 10 ms of sleep. */
void calls_isolated(int rounds) {
    int n = rounds * 20;
    double *times = room((size_t)n * sizeof *times);
    for (int i = 0; i < n; i++) {
        for (double until = now_us() + ALONE_US; now_us() < until;) {
        }
        double t = now_us();
        records(1);
        times[i] = now_us() - t;
    }
    put("isolated", quantile(times, n, 0.5));
    put("isolated_p90", quantile(times, n, 0.9));
    for (int i = 0; i < rounds; i++) {
        usleep(ASLEEP_US);
        double t = now_us();
        records(1);
        times[i] = now_us() - t;
    }
    put("isolated_idle", median(times, rounds));
    synchronise();
    free(times);
}

static double one_wait(void) {
    float ms;
    double t = now_us();
    must(cu.elapsed(&ms, first, second), "cuEventElapsedTime");
    return now_us() - t;
}

/* wait_awake: cuEventElapsedTime of two events that have happened, calls one after the other, an answer each; bare_round_trip: as many round trips
 * of the bare transport, in turns with them. wait_idle: after 10 ms of sleep. sync: a record and cuStreamSynchronize. */
void calls_waiting(int rounds) {
    int most = rounds * WAITS, n = 0, m = 0;
    double *times = room((size_t)most * sizeof *times), *bare = room((size_t)most * sizeof *bare);
    must(cu.record(first, stream), "cuEventRecord");
    must(cu.record(second, stream), "cuEventRecord");
    synchronise();
    for (int round = 0; round < rounds; round++) {
        if (bare_present()) {
            bare_round_trips(bare + m, WAITS);
            memmove(bare + m, bare + m + SKIPPED, (WAITS - SKIPPED) * sizeof *bare);
            m += WAITS - SKIPPED;
        }
        usleep(1000);
        for (int i = 0; i < WAITS; i++) {
            double t = one_wait();
            if (i >= SKIPPED) times[n++] = t;
        }
    }
    put("wait_awake", quantile(times, n, 0.5));
    put("wait_awake_p90", quantile(times, n, 0.9));
    if (m) put("bare_round_trip", median(bare, m));
    for (n = 0; n < rounds; n++) {
        usleep(ASLEEP_US);
        times[n] = one_wait();
    }
    put("wait_idle", median(times, n));
    for (n = 0; n < most; n++) {
        double t = now_us();
        records(1);
        synchronise();
        times[n] = now_us() - t;
    }
    put("sync", median(times, n));
    free(times);
    free(bare);
}
