// Calls through pointers: tables of functions, pointers from the host's symbols, members, virtual functions of objects built on the device, lambdas.
#include "program.h"

using Operation = float (*)(float, float);

__device__ float sum(float a, float b) { return a + b; }
__device__ float difference(float a, float b) { return a - b; }
__device__ float product(float a, float b) { return a * b; }
__device__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ Operation operations[] = {sum, difference, product, larger};
__device__ Operation chosen = product;
__constant__ Operation constant_operations[2] = {difference, sum};

static float on_host(int which, float a, float b) { return which == 0 ? a + b : which == 1 ? a - b : which == 2 ? a * b : std::max(a, b); }

__global__ void by_table(const float *a, const float *b, const int *which, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = operations[which[i]](a[i], b[i]);
}

__global__ void by_argument(const float *a, const float *b, float *out, int n, Operation f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = f(a[i], constant_operations[i & 1](b[i], 1));
}

class Shape {
  public:
    __device__ virtual ~Shape() {}
    __device__ virtual float area() const = 0;
    __device__ virtual int corners() const { return 0; }
};
class Circle : public Shape {
  public:
    __device__ explicit Circle(float r) : r(r) {}
    __device__ float area() const override { return 3.14159265f * r * r; }
    float r;
};
class Rectangle : public Shape {
  public:
    __device__ Rectangle(float w, float h) : w(w), h(h) {}
    __device__ float area() const override { return w * h; }
    __device__ int corners() const override { return 4; }
    float w, h;
};
class Square : public Rectangle {
  public:
    __device__ explicit Square(float w) : Rectangle(w, w) {}
    __device__ float area() const override { return Rectangle::area() + 1; }
};

__global__ void make(Shape **shapes, const float *sizes, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (i % 3 == 0) shapes[i] = new Circle(sizes[i]);
    else if (i % 3 == 1) shapes[i] = new Rectangle(sizes[i], 2);
    else shapes[i] = new Square(sizes[i]);
}

__global__ void measure(Shape **shapes, float *areas, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    areas[i] = shapes[i]->area() + 1000 * shapes[i]->corners();
    delete shapes[i];
}

template <class F> __global__ void each(float *out, int n, F f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = f(i);
}

int main(int argc, char **argv) {
    Random random(argc, argv);
    Verdict v("function_pointers");
    const int n = 500;
    auto a = random.reals(n, -10, 10), b = random.reals(n, -10, 10);
    auto which = random.ints(n, 0, 3);
    Array<float> da(a), db(b), out(n);
    Array<int> dw(which);
    std::vector<float> want(n);
    by_table<<<blocks_for(n, 64), 64>>>(da, db, dw, out, n);
    for (int i = 0; i < n; i++) want[i] = on_host(which[i], a[i], b[i]);
    v.same("table", out.host(), want);

    Operation f;
    CHECK(cudaMemcpyFromSymbol(&f, chosen, sizeof f));
    by_argument<<<blocks_for(n, 64), 64>>>(da, db, out, n, f);
    for (int i = 0; i < n; i++) want[i] = a[i] * (i & 1 ? b[i] + 1 : b[i] - 1);
    v.same("argument", out.host(), want);

    auto sizes = random.reals(n, 0, 5);
    Array<float> ds(sizes);
    Array<Shape *> shapes(n);
    make<<<blocks_for(n, 96), 96>>>(shapes, ds, n);
    measure<<<blocks_for(n, 64), 64>>>(shapes, out, n);
    std::vector<double> areas(n);
    for (int i = 0; i < n; i++) areas[i] = i % 3 == 0 ? M_PI * sizes[i] * sizes[i] : i % 3 == 1 ? 2.0 * sizes[i] + 4000 : (double)sizes[i] * sizes[i] + 4001;
    v.close("virtual functions", out.host(), areas, 1e-6);

    const float *source = da;
    const float factor = b[0];
    each<<<blocks_for(n, 128), 128>>>(out.data, n, [=] __device__(int i) { return source[i] * factor; });
    for (int i = 0; i < n; i++) want[i] = a[i] * factor;
    v.same("lambda", out.host(), want);
    return v.end();
}
