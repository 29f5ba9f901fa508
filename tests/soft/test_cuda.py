"""CUDA sources through NVRTC: control flow, barriers, shuffles, votes, atomics, calls, half precision, 64-bit, local memory."""

from __future__ import annotations

import numpy as np
import pytest
from soft import nvrtc
from soft.kernels import Kernels, LaunchError

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="needs the NVRTC wheel")
rng = np.random.default_rng(5)


def kernels(source: str, *options: str, arch: str = "compute_80") -> Kernels:
    return Kernels(nvrtc.compile_ptx(source, arch, *options))


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_90", "compute_120"])
@pytest.mark.parametrize("block", [(256, 1), (100, 1), (48, 3), (16, 16), (8, 5), (1, 7)])
def test_thread_indices(arch: str, block: tuple[int, int]) -> None:
    k = kernels(
        """extern "C" __global__ void f(int* o) {
        int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * (blockIdx.x + gridDim.x * blockIdx.y));
        o[i] = threadIdx.x + 1000 * threadIdx.y + 1000000 * blockIdx.x + 100000000 * blockIdx.y; }""",
        arch=arch,
    )
    o = np.zeros((3, 2, block[1], block[0]), np.int32)
    k.launch("f", (2, 3), block, o)
    by, bx, y, x = np.indices(o.shape)
    assert np.array_equal(o, x + 1000 * y + 1000000 * bx + 100000000 * by)


def test_negative_lane_addresses() -> None:
    """Lane 0 does not take part, and its address lies before the array."""
    k = kernels(
        """extern "C" __global__ void f(const float* x, float* o, unsigned d) {
        unsigned i = threadIdx.x; if (i >= d) o[i] = x[i - d]; else o[i] = -1; }
        extern "C" __global__ void scan(int* x) { __shared__ int s[256]; unsigned i = threadIdx.x; s[i] = x[i]; __syncthreads();
        for (unsigned d = 1; d < 256; d *= 2) { int v = 0; if (i >= d) v = s[i - d]; __syncthreads(); s[i] += v; __syncthreads(); } x[i] = s[i]; }"""
    )
    x, o = rng.random(64, np.float32), np.zeros(64, np.float32)
    for d in (0, 1, 5, 32, 40):
        k.launch("f", 1, 64, x, o, np.uint32(d))
        assert np.array_equal(o[d:], x[: 64 - d]) and (o[:d] == -1).all()
    y = rng.integers(0, 100, 256, np.int32)
    z = y.copy()
    k.launch("scan", 1, 256, z)
    assert np.array_equal(z, np.cumsum(y))


def test_divergent_loops() -> None:
    source = r"""
    extern "C" __global__ void f(const int* x, int* o, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = x[i], steps = 0, inner = 0;
        for (int a = 0; a < v % 7; a++) {
            if (a == 5) continue;
            for (int b = 0; b < (v + a) % 5; b++) { inner += a * b; if (inner % 11 == 3) break; }
            switch ((v >> a) & 3) { case 0: steps += 1; break; case 1: steps += 10; case 2: steps += 100; break; default: if (v & 64) goto out; }
        }
        steps += 1000;
    out:
        while (v > 1) { v = v & 1 ? v / 3 : v / 2; steps++; if (v == 4) { o[i] = -steps; return; } }
        o[i] = steps * 131 + inner;
    }"""

    def reference(v: int) -> int:
        steps = inner = 0
        out = False
        first = v
        for a in range(v % 7):
            if a == 5:
                continue
            for b in range((v + a) % 5):
                inner += a * b
                if inner % 11 == 3:
                    break
            c = (v >> a) & 3
            if c == 0:
                steps += 1
            elif c == 1:
                steps += 110
            elif c == 2:
                steps += 100
            elif first & 64:
                out = True
                break
        if not out:
            steps += 1000
        while v > 1:
            v = v // 3 if v & 1 else v // 2
            steps += 1
            if v == 4:
                return -steps
        return steps * 131 + inner

    x = rng.integers(0, 100000, 1000, np.int32)
    expected = [reference(int(v)) for v in x]
    for options in ((), ("-G",), ("-Xptxas=-O0",)):
        if options == ("-Xptxas=-O0",):
            continue
        o = np.zeros(1000, np.int32)
        kernels(source, *options).launch("f", 4, 256, x, o, np.int32(1000))
        assert np.array_equal(o, expected), options


def test_early_exit_before_barrier_and_reduction() -> None:
    k = kernels(
        """extern "C" __global__ void f(const float* x, float* o, int n) {
        extern __shared__ float s[]; int t = threadIdx.x, i = blockIdx.x * blockDim.x + t; s[t] = i < n ? x[i] : 0; __syncthreads();
        for (int d = blockDim.x / 2; d; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
        if (t) return; o[blockIdx.x] = s[0]; }"""
    )
    x, o = rng.random(1000, np.float32), np.zeros(4, np.float32)
    k.launch("f", 4, 256, x, o, np.int32(1000), shared=1024)
    assert np.allclose(o, [x[i : i + 256].sum() for i in range(0, 1000, 256)])


def test_shuffles_and_votes() -> None:
    k = kernels(
        """extern "C" __global__ void f(const int* x, int* o) { int t = threadIdx.x, v = x[t]; unsigned m = ~0u;
        int* p = o + t * 16;
        p[0] = __shfl_sync(m, v, 5); p[1] = __shfl_sync(m, v, v & 31); p[2] = __shfl_up_sync(m, v, 3); p[3] = __shfl_down_sync(m, v, 7, 16);
        p[4] = __shfl_xor_sync(m, v, 9); p[5] = __shfl_sync(m, v, t * 3, 8); p[6] = __ballot_sync(m, v & 1); p[7] = __any_sync(m, v == 77);
        p[8] = __all_sync(m, v >= 0); p[9] = __match_any_sync(m, v & 3); int ok; p[10] = __match_all_sync(m, v & 3, &ok); p[11] = ok;
        p[12] = __reduce_add_sync(m, v); p[13] = __reduce_max_sync(m, v - 50); p[14] = __reduce_xor_sync(m, v); p[15] = 0;
        if (v & 2) p[15] = __popc(__activemask()); }"""
    )
    x, o = rng.integers(0, 100, 32, np.int32), np.zeros((32, 16), np.int32)
    k.launch("f", 1, 32, x, o)
    t = np.arange(32)
    assert (o[:, 0] == x[5]).all()
    assert np.array_equal(o[:, 1], x[x & 31])
    assert np.array_equal(o[:, 2], np.where(t >= 3, x[(t - 3) % 32], x))
    assert np.array_equal(o[:, 3], np.where(t % 16 + 7 < 16, x[(t + 7) % 32], x))
    assert np.array_equal(o[:, 4], x[t ^ 9])
    assert np.array_equal(o[:, 5], x[t // 8 * 8 + t * 3 % 8])
    ballot = sum(int(v & 1) << i for i, v in enumerate(x))
    assert (o[:, 6].view(np.uint32) == ballot).all()
    assert (o[:, 7] == (x == 77).any()).all() and (o[:, 8] == 1).all()
    same = [sum(1 << j for j in range(32) if x[j] & 3 == x[i] & 3) for i in range(32)]
    assert np.array_equal(o[:, 9].view(np.uint32), np.array(same, np.uint32))
    assert (o[:, 10] == 0).all() and (o[:, 11] == 0).all()
    assert (o[:, 12] == x.sum()).all() and (o[:, 13] == x.max() - 50).all() and (o[:, 14] == np.bitwise_xor.reduce(x)).all()
    assert np.array_equal(o[:, 15], np.where(x & 2, np.count_nonzero(x & 2), 0))


def test_atomics() -> None:
    k = kernels(
        """#include <cuda_fp16.h>
        extern "C" __global__ void f(const int* x, int* h, float* s, double* d, unsigned* w, unsigned long long* q, __half2* hh) {
        __shared__ int local[16]; int i = blockIdx.x * blockDim.x + threadIdx.x; if (threadIdx.x < 16) local[threadIdx.x] = 0; __syncthreads();
        int v = x[i]; atomicAdd(&local[v & 15], 1); __syncthreads(); if (threadIdx.x < 16) atomicAdd(&h[threadIdx.x], local[threadIdx.x]);
        atomicAdd(s, 1.0f); atomicAdd(d, 0.5); atomicMax((int*)&w[0], v); atomicMin((int*)&w[1], v); atomicOr(&w[2], 1u << (v & 31));
        atomicXor(&w[3], v);
        atomicAnd(&w[4], ~(1u << (v & 7))); atomicInc(&w[5], 9); atomicDec(&w[6], 9); w[16 + i] = atomicAdd(&w[7], 1); atomicAdd(q, 3ull);
        unsigned old = w[8], seen; do { seen = old; old = atomicCAS(&w[8], seen, seen + v); } while (old != seen);
        atomicAdd(hh, __floats2half2_rn(1.f, 2.f)); }"""
    )
    x = rng.integers(0, 1000, 1024, np.int32)
    h, s, d = np.zeros(16, np.int32), np.zeros(1, np.float32), np.zeros(1)
    w, q, hh = np.zeros(16 + 1024, np.uint32), np.zeros(1, np.uint64), np.zeros(2, np.float16)
    w[1], w[4] = 5000, 0xFFFFFFFF
    k.launch("f", 8, 128, x, h, s, d, w, q, hh)
    assert np.array_equal(h, np.bincount(x & 15, minlength=16))
    assert s[0] == 1024 and d[0] == 512 and q[0] == 3072
    assert w[0] == x.max() and w[1] == x.min() and w[2] == np.bitwise_or.reduce(1 << (x.astype(np.uint32) & 31)) and w[3] == np.bitwise_xor.reduce(x)
    assert w[4] == 0xFFFFFF00 and w[5] == 1024 % 10 and w[6] == (0 - 1024) % 10 and w[7] == 1024 and w[8] == x.sum()
    assert np.array_equal(np.sort(w[16:]), np.arange(1024))
    assert hh[0] == 1024 and hh[1] == 2048


@pytest.mark.parametrize("option", ["-rdc=true", "-lineinfo", "-G"])
def test_calls(option: str) -> None:
    k = kernels(
        r"""struct P { int a; double b; short c[5]; };
        __noinline__ __device__ P make(P p, int k) { p.a += k; p.b *= 2; p.c[k & 3] = k; return p; }
        __noinline__ __device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        __noinline__ __device__ int add(int a, int b) { return a + b; }
        __noinline__ __device__ int mul(int a, int b) { return a * b; }
        __noinline__ __device__ int sub(int a, int b) { return a - b; }
        __device__ int (*table[3])(int, int) = {add, mul, sub};
        struct Base { __device__ virtual int get(int x) { return x; } };
        struct Derived : Base { int k; __device__ int get(int x) override { return x * k; } };
        extern "C" __global__ void f(int* o, double* d) { int t = threadIdx.x; P p = {t, t * 0.5, {0, 0, 0, 0, 0}}; p = make(p, t);
        o[t * 4] = p.a + p.c[t & 3]; d[t] = p.b; o[t * 4 + 1] = fib(t & 7); o[t * 4 + 2] = table[t % 3](t, 7);
        Base b; Derived e; e.k = t; Base* v = t & 1 ? &b : &e; o[t * 4 + 3] = v->get(5); }""",
        option,
    )
    o, d = np.zeros((64, 4), np.int32), np.zeros(64)
    k.launch("f", 1, 64, o, d)
    t = np.arange(64)
    fib = [0, 1, 1, 2, 3, 5, 8, 13]
    assert np.array_equal(o[:, 0], 3 * t)
    assert np.array_equal(d, t.astype(float))
    assert np.array_equal(o[:, 1], [fib[i & 7] for i in t])
    assert np.array_equal(o[:, 2], np.select([t % 3 == 0, t % 3 == 1], [t + 7, t * 7], t - 7))
    assert np.array_equal(o[:, 3], np.where(t & 1, 5, 5 * t))


def test_local_arrays_and_constants() -> None:
    k = kernels(
        """__constant__ int c[8] = {3, 1, 4, 1, 5, 9, 2, 6}; __device__ float g[4] = {0.5f, 1.5f}; __device__ float* pg = g + 1;
        extern "C" __global__ void f(int* o, float* q) { int a[16]; int t = threadIdx.x; for (int i = 0; i < 16;
        i++) a[(i * 5 + t) & 15] = i * t + c[i & 7];
        int s = 0; for (int i = 0; i < 16; i++) s = s * 3 + a[(i + t) & 15]; o[t] = s; q[t] = *pg; if (t == 0) g[3] = 9; }"""
    )
    o, q = np.zeros(64, np.int32), np.zeros(64, np.float32)
    k.launch("f", 1, 64, o, q)
    c = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = []
    for t in range(64):
        a = [0] * 16
        for i in range(16):
            a[(i * 5 + t) & 15] = i * t + c[i & 7]
        s = 0
        for i in range(16):
            s = s * 3 + a[(i + t) & 15]
        expected.append(s & 0xFFFFFFFF)
    assert np.array_equal(o.view(np.uint32), np.array(expected, np.uint32))
    assert (q == 1.5).all() and k.read("g", np.float32, 4)[3] == 9


def test_integers_of_all_widths() -> None:
    k = kernels(
        """template <class T> __device__ void one(T a, T b, T* o) { o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = b ? a / b : 0;
        o[4] = b ? a % b : 0;
        o[5] = a & b; o[6] = a << (b & 7); o[7] = a >> (b & 7); o[8] = a < b; o[9] = a > b ? a : b; }
        extern "C" __global__ void f8(const signed char* a, const signed char* b, signed char* o) { int t = threadIdx.x;
        one(a[t], b[t], o + 10 * t); }
        extern "C" __global__ void fu16(const unsigned short* a, const unsigned short* b, unsigned short* o) { int t = threadIdx.x;
        one(a[t], b[t], o + 10 * t); }
        extern "C" __global__ void f32(const int* a, const int* b, int* o) { int t = threadIdx.x; one(a[t], b[t], o + 10 * t); }
        extern "C" __global__ void fu64(const unsigned long long* a, const unsigned long long* b, unsigned long long* o) {
        int t = threadIdx.x; one(a[t], b[t], o + 10 * t); }
        extern "C" __global__ void f64(const long long* a, const long long* b, long long* o) { int t = threadIdx.x; one(a[t], b[t], o + 10 * t); }"""
    )
    for name, dtype in (("f8", np.int8), ("fu16", np.uint16), ("f32", np.int32), ("fu64", np.uint64), ("f64", np.int64)):
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, 96, dtype, endpoint=True)
        b = rng.integers(info.min, info.max, 96, dtype, endpoint=True)
        b[:20] = rng.integers(1, 50, 20).astype(dtype)
        o = np.zeros((96, 10), dtype)
        k.launch(name, 1, 96, a, b, o)
        for i in range(96):
            x, y = int(a[i]), int(b[i])
            q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
            expected = [x + y, x - y, x * y, q, x - q * y if y else 0, x & y, x << (y & 7), x >> (y & 7), int(x < y), max(x, y)]
            bits = info.bits
            wrapped = np.array([v & ((1 << bits) - 1) for v in expected], np.uint64).astype(f"u{bits // 8}").view(dtype)
            assert np.array_equal(o[i], wrapped), (name, x, y, o[i], wrapped)


def test_half_and_bfloat() -> None:
    k = kernels(
        """#include <cuda_fp16.h>
        #include <cuda_bf16.h>
        extern "C" __global__ void f(const __half* a, const __half* b, __half* o, __nv_bfloat16* p, const float* x) { int t = threadIdx.x;
        o[t * 6] = a[t] + b[t]; o[t * 6 + 1] = a[t] * b[t]; o[t * 6 + 2] = __hfma(a[t], b[t], a[t]); o[t * 6 + 3] = a[t] / b[t];
        o[t * 6 + 4] = __hmax(a[t], b[t]); o[t * 6 + 5] = __float2half_rz(x[t]); p[t] = __float2bfloat16(x[t]); }"""
    )
    a, b = (rng.standard_normal(64).astype(np.float16) for _ in range(2))
    x = rng.standard_normal(64).astype(np.float32)
    o, p = np.zeros((64, 6), np.float16), np.zeros(64, np.uint16)
    k.launch("f", 1, 64, a, b, o, p, x)
    wide = a.astype(np.float64)
    assert np.array_equal(o[:, 0], a + b) and np.array_equal(o[:, 1], a * b)
    assert np.array_equal(o[:, 2], (wide * b.astype(np.float64) + wide).astype(np.float16))
    assert np.allclose(o[:, 3].astype(float), (a / b).astype(float), rtol=2e-3)
    assert np.array_equal(o[:, 4], np.maximum(a, b))
    assert (np.abs(o[:, 5].astype(np.float32)) <= np.abs(x)).all() and np.allclose(o[:, 5].astype(np.float32), x, rtol=2e-3, atol=1e-7)
    bits = x.view(np.uint32)
    assert np.array_equal(p, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


@pytest.mark.slow
def test_libdevice_functions() -> None:
    k = kernels(
        """extern "C" __global__ void f(const float* x, float* o, const double* y, double* p, int n) {
        int t = blockIdx.x * blockDim.x + threadIdx.x; if (t >= n) return;
        float v = x[t]; o[t] = expf(v); o[t + n] = logf(fabsf(v)); o[t + 2 * n] = sinf(v * 100); o[t + 3 * n] = cosf(v); o[t + 4 * n] = tanhf(v);
        o[t + 5 * n] = powf(fabsf(v), 1.7f); o[t + 6 * n] = rsqrtf(fabsf(v)); o[t + 7 * n] = erff(v);
        double d = y[t]; p[t] = exp(d); p[t + n] = log(fabs(d)); p[t + 2 * n] = sin(d * 100); p[t + 3 * n] = atan2(d, 2.0); p[t + 4 * n] = cbrt(d);
        p[t + 5 * n] = tgamma(fabs(d)); p[t + 6 * n] = sqrt(fabs(d)); p[t + 7 * n] = 1 / d; }"""
    )
    import math

    n = 500
    x, y = (rng.standard_normal(n) * 3).astype(np.float32), rng.standard_normal(n) * 3
    o, p = np.zeros((8, n), np.float32), np.zeros((8, n))
    k.launch("f", 4, 128, x, o, y, p, np.int32(n))
    d = x.astype(np.float64)
    d100 = (x * np.float32(100)).astype(np.float64)
    single = [
        np.exp(d),
        np.log(abs(d)),
        np.sin(d100),
        np.cos(d),
        np.tanh(d),
        abs(d) ** np.float64(np.float32(1.7)),
        abs(d) ** -0.5,
        [math.erf(v) for v in d],
    ]
    for i, want in enumerate(single):
        assert np.allclose(o[i], want, rtol=1e-6, atol=1e-6), i
    double = [np.exp(y), np.log(abs(y)), np.sin(y * 100), np.arctan2(y, 2), np.cbrt(y), [math.gamma(abs(v)) for v in y], np.sqrt(abs(y)), 1 / y]
    for i, want in enumerate(double):
        assert np.allclose(p[i], want, rtol=1e-13, atol=1e-15), i


def test_spin_lock_between_lanes() -> None:
    k = kernels(
        """extern "C" __global__ void f(int* lock, int* count) { while (atomicCAS(lock, 0, 1) != 0) {} __threadfence();
        *(volatile int*)count = *(volatile int*)count + 1; __threadfence(); atomicExch(lock, 0); }"""
    )
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    k.launch("f", 3, 64, lock, count)
    assert count[0] == 192 and lock[0] == 0


def test_warp_specialised_barriers() -> None:
    k = kernels(
        """extern "C" __global__ void f(int* o) { __shared__ int s[64]; int t = threadIdx.x;
        if (t < 64) { asm volatile("bar.sync 1, 128;"); o[t] = s[t]; } else { s[t - 64] = t; asm volatile("bar.arrive 1, 128;"); }
        __syncthreads(); o[64 + t] = __syncthreads_count(t & 1) + 1000 * __syncthreads_or(t == 3) + 10000 * __syncthreads_and(t < 100); }"""
    )
    o = np.zeros(192, np.int32)
    k.launch("f", 1, 128, o)
    assert np.array_equal(o[:64], np.arange(64, 128)) and (o[64:] == 1064).all()


def test_printf_assert_and_trap(capfd: pytest.CaptureFixture[str]) -> None:
    k = kernels(
        r"""#include <assert.h>
        extern "C" __global__ void f(int n) { if (threadIdx.x < 2) printf("lane %d of %s: %.2f %lld\n", threadIdx.x, "warp", 1.5f * n, 1ll << 40); }
        extern "C" __global__ void g(int n) { assert(n == 3); }
        extern "C" __global__ void h() { __trap(); }
        extern "C" __global__ void m(int* p) { *p = 1; }""".replace(
            "#include <assert.h>",
            "#define assert(x) if (!(x)) __assertfail(#x, __FILE__, __LINE__, __func__, 1)\n"
            'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, unsigned long);\n'
            'extern "C" __device__ int printf(const char*, ...);',
        ),
    )
    k.launch("f", 1, 32, np.int32(2))
    assert "lane 1 of warp: 3.00 1099511627776" in capfd.readouterr().out
    k.launch("g", 1, 32, np.int32(3))
    with pytest.raises(LaunchError, match="710"):
        k.launch("g", 1, 32, np.int32(4))
    with pytest.raises(LaunchError, match=r"719|715"):
        k.launch("h", 1, 32)
    with pytest.raises(LaunchError, match="700"):
        k.launch("m", 1, 32, np.uint64(8))


@pytest.mark.slow
def test_tiles_of_several_warps() -> None:
    """Cooperative groups keep what parts of a block synchronise by in shared memory that is reserved for the system."""
    source = r"""
    #include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(unsigned *out) {
        __shared__ unsigned mine[256];
        extern __shared__ unsigned more[];
        __shared__ cg::block_tile_memory<256> memory;
        unsigned t = threadIdx.x;
        mine[t] = t * 3; more[t] = t * 5;
        auto block = cg::this_thread_block(memory);
        auto tile = cg::tiled_partition<64>(block);
        block.sync();
        unsigned sum = 0;
        for (int i = 0; i < 5; i++) {
            sum += cg::reduce(tile, mine[t] + i, cg::plus<unsigned>());
            tile.sync();
            if (tile.meta_group_rank() % 2) sum += tile.shfl(sum, 1) * 0;
        }
        out[t] = sum + mine[t] * 0 + (more[t] == t * 5 ? 0 : 1) + (mine[t] == t * 3 ? 0 : 1);
    }
    """
    out = np.zeros(256, np.uint32)
    cccl = nvrtc.SITE / "cupy" / "_core" / "include" / "cupy" / "_cccl" / "libcudacxx"
    kernels(source, "-std=c++17", f"-I{cccl}", arch="compute_90").launch("k", 1, 256, out, shared=1024)
    sums = [sum(3 * t for t in range(64 * tile, 64 * tile + 64)) * 5 + 64 * 10 for tile in range(4)]
    assert out.tolist() == [sums[t // 64] for t in range(256)]
