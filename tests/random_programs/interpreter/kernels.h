// The kernels of the random programs, as PTX that any driver compiles. All take the same parameters and compute with unsigned words modulo 2^32;
// ../effects.py says the same in NumPy.
#pragma once
#include <string>

namespace kernels {

const char *const NAMES[] = {"mix", "axpy", "gather", "count", "iterate"};

// %r0: the thread's number, %r1: n, %r2: k, %r3: c, %r4: m, %p0: out + 4 * number, %p1: in, %p2: out
inline std::string entry(const char *name, const char *body) {
    return std::string(".visible .entry ") + name + R"((.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 k, .param .u32 c, .param .u32 m) {
    .reg .u64 %p<6>;
    .reg .u32 %r<12>;
    .reg .pred %q<2>;
    mov.u32 %r5, %ctaid.x;
    mov.u32 %r6, %ntid.x;
    mov.u32 %r7, %tid.x;
    mad.lo.u32 %r0, %r5, %r6, %r7;
    ld.param.u32 %r1, [n];
    setp.ge.u32 %q0, %r0, %r1;
    @%q0 bra END;
    ld.param.u64 %p2, [out];
    ld.param.u64 %p1, [in];
    cvta.to.global.u64 %p2, %p2;
    cvta.to.global.u64 %p1, %p1;
    ld.param.u32 %r2, [k];
    ld.param.u32 %r3, [c];
    ld.param.u32 %r4, [m];
    mul.wide.u32 %p3, %r0, 4;
    add.u64 %p0, %p2, %p3;
)" + body + "END:\n    ret;\n}\n";
}

inline std::string image() {
    std::string text = ".version 6.4\n.target sm_50\n.address_size 64\n";
    // out[i] = out[i] * k + c + i
    text += entry("mix", R"(
    ld.global.u32 %r5, [%p0];
    mad.lo.u32 %r5, %r5, %r2, %r3;
    add.u32 %r5, %r5, %r0;
    st.global.u32 [%p0], %r5;
)");
    // out[i] += in[i] * k
    text += entry("axpy", R"(
    add.u64 %p4, %p1, %p3;
    ld.global.u32 %r5, [%p4];
    ld.global.u32 %r6, [%p0];
    mad.lo.u32 %r6, %r5, %r2, %r6;
    st.global.u32 [%p0], %r6;
)");
    // out[i] = in[i * k % n] + c
    text += entry("gather", R"(
    mul.lo.u32 %r5, %r0, %r2;
    rem.u32 %r5, %r5, %r1;
    mul.wide.u32 %p4, %r5, 4;
    add.u64 %p4, %p1, %p4;
    ld.global.u32 %r6, [%p4];
    add.u32 %r6, %r6, %r3;
    st.global.u32 [%p0], %r6;
)");
    // out[in[i] % m] += k, by atomic additions
    text += entry("count", R"(
    add.u64 %p4, %p1, %p3;
    ld.global.u32 %r5, [%p4];
    rem.u32 %r5, %r5, %r4;
    mul.wide.u32 %p4, %r5, 4;
    add.u64 %p4, %p2, %p4;
    atom.global.add.u32 %r6, [%p4], %r2;
)");
    // out[i] = out[i] * k + c, m times: a kernel that takes a while
    text += entry("iterate", R"(
    ld.global.u32 %r5, [%p0];
LOOP:
    mad.lo.u32 %r5, %r5, %r2, %r3;
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %q1, %r4, 0;
    @%q1 bra LOOP;
    st.global.u32 [%p0], %r5;
)");
    return text;
}

// A module that has nothing but a variable of this size.
inline std::string variable(size_t bytes) {
    return ".version 6.4\n.target sm_50\n.address_size 64\n.visible .global .align 16 .b8 block[" + std::to_string(bytes) + "];\n";
}

} // namespace kernels
