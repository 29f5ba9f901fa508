/* The rate of launches of several threads, and the processor time of one launch on both sides. */
#define _GNU_SOURCE
#include "bench.h"

#include <dirent.h>
#include <pthread.h>

struct job {
    pthread_t thread;
    pthread_barrier_t *barrier;
    function_t function;
    stream_t stream;
    int launches;
};

static void *work(void *arg) {
    struct job *job = arg;
    uint64_t a = 1, b = 2, c = 3;
    uint32_t d = 4, e = 5, h = 8;
    float f = 6, g = 7;
    void *params[8] = {&a, &b, &c, &d, &e, &f, &g, &h};
    must(cu.set_context(context), "cuCtxSetCurrent");
    must(cu.launch(job->function, 1, 1, 1, 32, 1, 1, 0, job->stream, params, NULL), "cuLaunchKernel");
    for (int i = 0; i < 3; i++) pthread_barrier_wait(job->barrier);
    for (int i = 0; i < job->launches; i++) must(cu.launch(job->function, 1, 1, 1, 32, 1, 1, 0, job->stream, params, NULL), "cuLaunchKernel");
    pthread_barrier_wait(job->barrier);
    return NULL;
}

static double clock_us(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) return -1;
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Processor time of the process's threads that run kernels: the software GPU names its own threads. -1 when it cannot be known. */
static double kernel_us(int process) {
    char path[300];
    double ns = 0;
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *tasks = opendir(path);
    if (!tasks) return -1;
    bool known = true;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char name[32] = "";
        double spent = 0;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", process, entry->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        bool read = fgets(name, sizeof name, f) != NULL;
        fclose(f);
        if (!read || strncmp(name, "soft-", 5) != 0) continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", process, entry->d_name);
        f = fopen(path, "r");
        char text[64] = "", *end = text;
        if (f && fgets(text, sizeof text, f)) spent = strtod(text, &end);
        known = known && end > text;
        if (f) fclose(f);
        if (known) ns += spent;
    }
    closedir(tasks);
    return known ? ns / 1e3 : -1;
}

/* rate: launches a second, the final synchronise included; handed: until the last was handed over. client_us, worker_us, kernel_us: processor time a
 * launch, the last the part of worker_us in which the software GPU's threads ran kernels. own_streams: a stream a thread, else one for all. */
void rate(int threads, int launches, int worker, bool own_streams) {
    struct job *jobs = room((size_t)threads * sizeof *jobs);
    pthread_barrier_t barrier;
    int each = launches / threads;
    clockid_t theirs = (clockid_t)(~(unsigned)worker << 3 | 2); /* what clock_getcpuclockid gives */
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct job){.barrier = &barrier, .function = kernel("nothing"), .stream = stream, .launches = each};
        if (own_streams) must(cu.stream_create(&jobs[i].stream, 1u), "cuStreamCreate");
        if (pthread_create(&jobs[i].thread, NULL, work, &jobs[i])) fail("launch rate", "no more threads");
    }
    /* Every thread has launched once and waits: drain the device, read the clocks, then start the threads. */
    pthread_barrier_wait(&barrier);
    must(cu.sync_context(), "cuCtxSynchronize");
    pthread_barrier_wait(&barrier);
    double kernels = worker ? kernel_us(worker) : -1, far = worker ? clock_us(theirs) : -1;
    double near = clock_us(CLOCK_PROCESS_CPUTIME_ID), start = now_us();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    double handed = now_us() - start;
    must(cu.sync_context(), "cuCtxSynchronize");
    double executed = now_us() - start, n = (double)each * threads;
    double near_end = clock_us(CLOCK_PROCESS_CPUTIME_ID);
    double far_end = worker ? clock_us(theirs) : -1, kernels_end = worker ? kernel_us(worker) : -1;
    put("threads", threads);
    put("rate", n / executed * 1e6);
    put("handed", n / handed * 1e6);
    put("client_us", (near_end - near) / n);
    if (far >= 0 && far_end >= 0 && kernels >= 0 && kernels_end >= 0) {
        put("worker_us", (far_end - far) / n);
        put("kernel_us", (kernels_end - kernels) / n);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(jobs[i].thread, NULL);
        if (own_streams) must(cu.stream_destroy(jobs[i].stream), "cuStreamDestroy");
    }
    pthread_barrier_destroy(&barrier);
    free(jobs);
}
