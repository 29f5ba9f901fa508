/* A small training loop: one step of a network with one hidden layer, 18 kernels, data on the device, the loss read now and then. */
#include "bench.h"

#include <math.h>

enum { BATCH = 16, IN = 16, HIDDEN = 32, OUT = 8 };
#define RATE 0.05f

/* Everything the network has; on the device each array is memory of its own. */
struct network {
    float x[BATCH * IN], t[BATCH * OUT], w1[IN * HIDDEN], b1[HIDDEN], w2[HIDDEN * OUT], b2[OUT];
    float z[BATCH * HIDDEN], h[BATCH * HIDDEN], d[BATCH * OUT], y[BATCH * OUT];
    float gw1[IN * HIDDEN], gb1[HIDDEN], gw2[HIDDEN * OUT], gb2[OUT], dh[BATCH * HIDDEN], loss[1];
};

static struct {
    uint64_t x, t, w1, b1, w2, b2, z, h, d, y, gw1, gb1, gw2, gb2, dh, loss;
} on_device;
static function_t gemm, add_rows, relu, relu_back, subtract, scale, axpy, column_sums, sum_squares;
static int launched;

static void go(function_t f, uint32_t n, void **params) {
    must(cu.launch(f, (n + 127) / 128, 1, 1, n < 128 ? n : 128, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel");
    launched++;
}

#define GO(f, n, ...) go(f, n, (void *[]){__VA_ARGS__})

/* out[rows, columns] = a b; the strides say which of the two is transposed. */
static void product(uint64_t out, uint64_t a, uint64_t b, uint32_t rows, uint32_t columns, uint32_t depth, uint32_t a_row, uint32_t a_step,
                    uint32_t b_step, uint32_t b_column) {
    uint32_t n = rows * columns;
    GO(gemm, n, &out, &a, &b, &n, &columns, &depth, &a_row, &a_step, &b_step, &b_column);
}

static void update(uint64_t weights, uint64_t gradient, uint32_t n) {
    float by = -RATE;
    GO(axpy, n, &weights, &gradient, &by, &n);
}

static void step(void) {
    uint32_t z = BATCH * HIDDEN, y = BATCH * OUT, hidden = HIDDEN, out = OUT, batch = BATCH, one = 1;
    float mean = 1.0f / (BATCH * OUT), twice = 2.0f / (BATCH * OUT);
    product(on_device.z, on_device.x, on_device.w1, BATCH, HIDDEN, IN, IN, 1, HIDDEN, 1);
    GO(add_rows, z, &on_device.z, &on_device.b1, &z, &hidden);
    GO(relu, z, &on_device.h, &on_device.z, &z);
    product(on_device.y, on_device.h, on_device.w2, BATCH, OUT, HIDDEN, HIDDEN, 1, OUT, 1);
    GO(add_rows, y, &on_device.y, &on_device.b2, &y, &out);
    GO(subtract, y, &on_device.d, &on_device.y, &on_device.t, &y);
    GO(sum_squares, 1, &on_device.loss, &on_device.d, &mean, &one, &y);
    GO(scale, y, &on_device.d, &twice, &y);
    product(on_device.gw2, on_device.h, on_device.d, HIDDEN, OUT, BATCH, 1, HIDDEN, OUT, 1);
    GO(column_sums, OUT, &on_device.gb2, &on_device.d, &out, &batch);
    product(on_device.dh, on_device.d, on_device.w2, BATCH, HIDDEN, OUT, OUT, 1, 1, OUT);
    GO(relu_back, z, &on_device.dh, &on_device.z, &z);
    product(on_device.gw1, on_device.x, on_device.dh, IN, HIDDEN, BATCH, 1, IN, HIDDEN, 1);
    GO(column_sums, HIDDEN, &on_device.gb1, &on_device.dh, &hidden, &batch);
    update(on_device.w1, on_device.gw1, IN * HIDDEN);
    update(on_device.b1, on_device.gb1, HIDDEN);
    update(on_device.w2, on_device.gw2, HIDDEN * OUT);
    update(on_device.b2, on_device.gb2, OUT);
}

/* ---- the same on this processor, in the same order */

static void host_product(float *out, const float *a, const float *b, int rows, int columns, int depth, int a_row, int a_step, int b_step,
                         int b_column) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int k = 0; k < depth; k++) sum = fmaf(a[i * a_row + k * a_step], b[k * b_step + j * b_column], sum);
            out[i * columns + j] = sum;
        }
}

static void host_column_sums(float *out, const float *x, int rows, int columns) {
    for (int j = 0; j < columns; j++) {
        out[j] = 0;
        for (int i = 0; i < rows; i++) out[j] += x[i * columns + j];
    }
}

static void host_update(float *weights, const float *gradient, int n) {
    for (int i = 0; i < n; i++) weights[i] = fmaf(-RATE, gradient[i], weights[i]);
}

static void host_step(struct network *n) {
    float sum = 0;
    host_product(n->z, n->x, n->w1, BATCH, HIDDEN, IN, IN, 1, HIDDEN, 1);
    for (int i = 0; i < BATCH * HIDDEN; i++) {
        n->z[i] += n->b1[i % HIDDEN];
        n->h[i] = n->z[i] > 0 ? n->z[i] : 0;
    }
    host_product(n->y, n->h, n->w2, BATCH, OUT, HIDDEN, HIDDEN, 1, OUT, 1);
    for (int i = 0; i < BATCH * OUT; i++) {
        n->y[i] += n->b2[i % OUT];
        n->d[i] = n->y[i] - n->t[i];
        sum = fmaf(n->d[i], n->d[i], sum);
    }
    n->loss[0] = sum * (1.0f / (BATCH * OUT));
    for (int i = 0; i < BATCH * OUT; i++) n->d[i] *= 2.0f / (BATCH * OUT);
    host_product(n->gw2, n->h, n->d, HIDDEN, OUT, BATCH, 1, HIDDEN, OUT, 1);
    host_column_sums(n->gb2, n->d, BATCH, OUT);
    host_product(n->dh, n->d, n->w2, BATCH, HIDDEN, OUT, OUT, 1, 1, OUT);
    for (int i = 0; i < BATCH * HIDDEN; i++)
        if (!(n->z[i] > 0)) n->dh[i] = 0;
    host_product(n->gw1, n->x, n->dh, IN, HIDDEN, BATCH, 1, IN, HIDDEN, 1);
    host_column_sums(n->gb1, n->dh, BATCH, HIDDEN);
    host_update(n->w1, n->gw1, IN * HIDDEN);
    host_update(n->b1, n->gb1, HIDDEN);
    host_update(n->w2, n->gw2, HIDDEN * OUT);
    host_update(n->b2, n->gb2, OUT);
}

/* ---- both */

static void fill(float *values, int n, float scale_by, uint32_t state) {
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = ((float)(state >> 8) / (float)(1u << 24) - 0.5f) * scale_by;
    }
}

static void upload(uint64_t *to, const float *from, size_t size) {
    if (!*to) must(cu.allocate(to, size), "cuMemAlloc");
    must(cu.copy_in(*to, from, size), "cuMemcpyHtoD");
}

#define UPLOAD(name) upload(&on_device.name, n->name, sizeof n->name)

static void start(struct network *n) {
    gemm = kernel("gemm"), add_rows = kernel("add_rows"), relu = kernel("relu"), relu_back = kernel("relu_back");
    subtract = kernel("subtract"), scale = kernel("scale"), axpy = kernel("axpy");
    column_sums = kernel("column_sums"), sum_squares = kernel("sum_squares");
    UPLOAD(x), UPLOAD(t), UPLOAD(w1), UPLOAD(b1), UPLOAD(w2), UPLOAD(b2), UPLOAD(z), UPLOAD(h), UPLOAD(d), UPLOAD(y);
    UPLOAD(gw1), UPLOAD(gb1), UPLOAD(gw2), UPLOAD(gb2), UPLOAD(dh), UPLOAD(loss);
    must(cu.sync_context(), "cuCtxSynchronize");
}

static float read_loss(void) {
    float loss;
    must(cu.copy_out(&loss, on_device.loss, sizeof loss), "cuMemcpyDtoH");
    return loss;
}

/* step_us, loop_us, reads, waits (as the driver counts them), kernels (a step's), right: whether every loss that was read is the one the processor computes, to 1e-5 of it; first_loss
 * and last_loss. */
void training(int steps, int read_every) {
    struct network *made = room(sizeof *made), *host = room(sizeof *host);
    float *losses = room(((size_t)(steps / read_every) + 1) * sizeof *losses);
    memset(made, 0, sizeof *made);
    fill(made->x, BATCH * IN, 2, 1);
    fill(made->t, BATCH * OUT, 2, 2);
    fill(made->w1, IN * HIDDEN, 1, 3);
    fill(made->w2, HIDDEN * OUT, 1, 4);
    memcpy(host, made, sizeof *host);
    /* One step that is not measured: compiles the kernels and touches the memory. */
    start(made);
    step();
    read_loss();
    start(made);
    int reads = 0, wrong = 0;
    launched = 0;
    double waits = waits_so_far(), t = now_us();
    for (int i = 1; i <= steps; i++) {
        step();
        if (i % read_every == 0) losses[reads++] = read_loss();
    }
    if (steps % read_every) must(cu.sync_context(), "cuCtxSynchronize");
    t = now_us() - t;
    if (waits >= 0) put("waits", waits_so_far() - waits);
    for (int i = 1, k = 0; i <= steps; i++) {
        host_step(host);
        if (i % read_every) continue;
        wrong += !(fabsf(losses[k] - host->loss[0]) <= 1e-5f * fabsf(host->loss[0]));
        k++;
    }
    put("step_us", t / steps);
    put("loop_us", t);
    put("reads", reads);
    put("kernels", (double)launched / steps);
    put("right", !wrong);
    if (reads) {
        put("first_loss", losses[0]);
        put("last_loss", losses[reads - 1]);
    }
    free(made);
    free(host);
    free(losses);
}
