// A few kernels, as PTX that any driver compiles, and how they are launched.
#pragma once
#include "conformance.h"

inline const char *const KERNELS = R"(
.version 6.4
.target sm_50
.address_size 64
.visible .global .align 4 .u32 word = 7;
.visible .const .align 4 .u32 table[4] = {10, 20, 30, 40};

// out[i] = value + i for each thread of the grid
.visible .entry store(.param .u64 out, .param .u32 value) {
    .reg .u64 %p<3>;
    .reg .u32 %r<6>;
    ld.param.u64 %p0, [out];
    ld.param.u32 %r0, [value];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    add.u32 %r5, %r4, %r0;
    mul.wide.u32 %p1, %r4, 4;
    cvta.to.global.u64 %p0, %p0;
    add.u64 %p2, %p0, %p1;
    st.global.u32 [%p2], %r5;
    ret;
}

// out[i] += word for each thread of a block
.visible .entry add_word(.param .u64 out) {
    .reg .u64 %p<3>;
    .reg .u32 %r<4>;
    ld.param.u64 %p0, [out];
    cvta.to.global.u64 %p0, %p0;
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %p1, %r0, 4;
    add.u64 %p2, %p0, %p1;
    ld.global.u32 %r1, [%p2];
    ld.global.u32 %r2, [word];
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%p2], %r1;
    ret;
}

// out[0] = %nctaid.x, out[1] = %ntid.x, out[2] = %ntid.y, out[3] = bytes of dynamic shared memory
.visible .entry shape(.param .u64 out) {
    .reg .u64 %p<2>;
    .reg .u32 %r<4>;
    ld.param.u64 %p0, [out];
    cvta.to.global.u64 %p0, %p0;
    mov.u32 %r0, %nctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %ntid.y;
    mov.u32 %r3, %dynamic_smem_size;
    st.global.u32 [%p0], %r0;
    st.global.u32 [%p0+4], %r1;
    st.global.u32 [%p0+8], %r2;
    st.global.u32 [%p0+12], %r3;
    ret;
}
)";

inline CUmodule load(const char *ptx = KERNELS) {
    CUmodule module = garbage<CUmodule>();
    CHECK(cuModuleLoadData(&module, ptx));
    return module;
}

inline CUfunction kernel(CUmodule module, const char *name) {
    CUfunction function = garbage<CUfunction>();
    CHECK(cuModuleGetFunction(&function, module, name));
    return function;
}

// Launches store: out[i] = value + i, one block of `threads`.
inline void launch_store(CUfunction store, CUdeviceptr out, unsigned value, unsigned threads, CUstream stream) {
    void *arguments[] = {&out, &value};
    CHECK(cuLaunchKernel(store, 1, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
}
