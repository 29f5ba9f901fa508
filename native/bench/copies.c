/* Bulk copies, user buffer to user buffer, and the same bytes through the bare transport in turns with them. */
#include "bench.h"

static double gb_s(size_t size, double us) { return (double)size / us / 1e3; }

/* Copies a pattern to the device and back; ends the program when it has changed. */
static void verify(void *memory, uint64_t device, size_t size) {
    uint64_t *words = memory;
    for (size_t i = 0; i < size / 8; i++) words[i] = i * 0x9e3779b97f4a7c15u;
    must(cu.copy_in(device, memory, size), "cuMemcpyHtoD");
    must(cu.sync_context(), "cuCtxSynchronize");
    memset(memory, 0, size);
    must(cu.copy_out(memory, device, size), "cuMemcpyDtoH");
    for (size_t i = 0; i < size / 8; i++)
        if (words[i] != i * 0x9e3779b97f4a7c15u) fail("cuMemcpyDtoH", "what came back is not what was sent");
}

/* Each pair: the bare transport out, the copy to the device with a synchronise behind it, the bare transport in, the copy from the device. */
static void one_kind(const char *kind, void *memory, uint64_t device, size_t size, int pairs) {
    enum { BARE_OUT, H2D, BARE_IN, D2H, COLUMNS };
    static const char *const names[COLUMNS] = {"bare_h2d", "h2d", "bare_d2h", "d2h"};
    double *rates = room((size_t)(COLUMNS * pairs) * sizeof *rates);
    for (int i = -1; i < pairs; i++) {
        double us[COLUMNS] = {1, 1, 1, 1}, t;
        if (bare_present()) us[BARE_OUT] = bare_pump(memory, size, false);
        t = now_us();
        must(cu.copy_in(device, memory, size), "cuMemcpyHtoD");
        must(cu.sync_context(), "cuCtxSynchronize");
        us[H2D] = now_us() - t;
        if (bare_present()) us[BARE_IN] = bare_pump(memory, size, true);
        t = now_us();
        must(cu.copy_out(memory, device, size), "cuMemcpyDtoH");
        us[D2H] = now_us() - t;
        for (int c = 0; i >= 0 && c < COLUMNS; c++) rates[c * pairs + i] = gb_s(size, us[c]);
    }
    for (int c = 0; c < COLUMNS; c++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", names[c], kind);
        if (c == H2D || c == D2H || bare_present()) put(name, median(rates + c * pairs, pairs));
    }
    free(rates);
    verify(memory, device, size);
}

/* h2d, d2h: malloc'ed memory; h2d_pinned, d2h_pinned: cuMemAllocHost's; bare_...: beside each; memcpy: within this process. */
void copies(size_t size, int pairs) {
    uint64_t device;
    void *pageable = room(size), *other = room(size), *pinned;
    memset(pageable, 1, size);
    memset(other, 2, size);
    must(cu.allocate(&device, size), "cuMemAlloc");
    must(cu.allocate_host(&pinned, size), "cuMemAllocHost");
    memset(pinned, 3, size);
    one_kind("", pageable, device, size, pairs);
    one_kind("_pinned", pinned, device, size, pairs);
    double *rates = room((size_t)pairs * sizeof *rates);
    for (int i = 0; i < pairs; i++) {
        double t = now_us();
        memcpy(other, pageable, size);
        __asm__ volatile("" ::"r"(other) : "memory");
        rates[i] = gb_s(size, now_us() - t);
    }
    put("memcpy", median(rates, pairs));
    free(rates);
    must(cu.release_host(pinned), "cuMemFreeHost");
    must(cu.release(device), "cuMemFree");
    free(pageable);
    free(other);
}
