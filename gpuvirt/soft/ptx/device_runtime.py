"""What the device runtime library (libcudadevrt) finds in a driver, in PTX: grids that wait for all their blocks. The linker adds it where it is
used.

A handle is the address of the launch's workspace, which is zero at first, and 0 in a launch that is not cooperative. At 64: blocks that have arrived;
at 68: how often all have.
"""

from __future__ import annotations

CALLS = """\
.version 7.0
.target sm_70
.address_size 64
.visible .func (.param .b64 r) __cuda_syscall_CGS_get_intrinsic_handle(.param .b32 scope)
{
    .reg .b32 %a<3>; .reg .b64 %w<3>; .reg .pred %p;
    ld.param.b32 %a0, [scope];
    mov.u32 %a1, %envreg1;
    mov.u32 %a2, %envreg2;
    mov.b64 %w0, {%a2, %a1};
    setp.eq.u32 %p, %a0, 1; // the grid; there are no larger groups here
    selp.b64 %w0, %w0, 0, %p;
    st.param.b64 [r], %w0;
    ret;
}
// flags: 1: one thread of the block calls, and answers for the others.
.visible .func (.param .b32 r) __cuda_syscall_CGS_sync(.param .b64 handle, .param .b32 flags)
{
    .reg .b32 %a<12>; .reg .b64 %w<2>; .reg .pred %p<4>;
    ld.param.b64 %w0, [handle];
    ld.param.b32 %a0, [flags];
    and.b32 %a0, %a0, 1;
    setp.ne.u32 %p0, %a0, 0;
    @%p0 bra alone;
    bar.sync 0;
    mov.u32 %a1, %tid.x;
    mov.u32 %a2, %tid.y;
    mov.u32 %a3, %tid.z;
    or.b32 %a1, %a1, %a2;
    or.b32 %a1, %a1, %a3;
    setp.ne.u32 %p1, %a1, 0;
    @%p1 bra passed;
alone:
    mov.u32 %a4, %nctaid.x;
    mov.u32 %a5, %nctaid.y;
    mov.u32 %a6, %nctaid.z;
    mul.lo.u32 %a4, %a4, %a5;
    mul.lo.u32 %a4, %a4, %a6;
    sub.u32 %a4, %a4, 1;
    membar.gl;
    ld.volatile.global.u32 %a7, [%w0+68];
    membar.gl;
    atom.global.add.u32 %a8, [%w0+64], 1;
    setp.ne.u32 %p2, %a8, %a4;
    @%p2 bra waiting;
    st.volatile.global.u32 [%w0+64], 0;
    membar.gl;
    atom.global.add.u32 %a9, [%w0+68], 1;
    bra.uni arrived;
waiting:
    ld.volatile.global.u32 %a9, [%w0+68];
    setp.eq.u32 %p2, %a9, %a7;
    @%p2 bra waiting;
arrived:
    membar.gl;
passed:
    @%p0 bra done;
    bar.sync 0;
done:
    st.param.b32 [r], 0;
    ret;
}
// Threads of the group, groups of the group above; either address may be 0.
.visible .func (.param .b32 r) __cuda_syscall_CGS_get_size(.param .b64 threads, .param .b64 grids, .param .b64 handle)
{
    .reg .b32 %a<8>; .reg .b64 %w<2>; .reg .pred %p<2>;
    ld.param.b64 %w0, [threads];
    ld.param.b64 %w1, [grids];
    mov.u32 %a0, %ntid.x;
    mov.u32 %a1, %ntid.y;
    mov.u32 %a2, %ntid.z;
    mul.lo.u32 %a0, %a0, %a1;
    mul.lo.u32 %a0, %a0, %a2;
    mov.u32 %a3, %nctaid.x;
    mov.u32 %a4, %nctaid.y;
    mov.u32 %a5, %nctaid.z;
    mul.lo.u32 %a0, %a0, %a3;
    mul.lo.u32 %a0, %a0, %a4;
    mul.lo.u32 %a0, %a0, %a5;
    setp.ne.u64 %p0, %w0, 0;
    @%p0 st.u32 [%w0], %a0;
    setp.ne.u64 %p1, %w1, 0;
    @%p1 st.u32 [%w1], 1;
    st.param.b32 [r], 0;
    ret;
}
.visible .func (.param .b32 r) __cuda_syscall_CGS_get_rank(.param .b64 thread, .param .b64 grid, .param .b64 handle)
{
    .reg .b32 %a<16>; .reg .b64 %w<2>; .reg .pred %p<2>;
    ld.param.b64 %w0, [thread];
    ld.param.b64 %w1, [grid];
    mov.u32 %a0, %ctaid.z;
    mov.u32 %a1, %nctaid.y;
    mov.u32 %a2, %ctaid.y;
    mad.lo.u32 %a0, %a0, %a1, %a2;
    mov.u32 %a3, %nctaid.x;
    mov.u32 %a4, %ctaid.x;
    mad.lo.u32 %a0, %a0, %a3, %a4;
    mov.u32 %a5, %ntid.z;
    mov.u32 %a6, %tid.z;
    mad.lo.u32 %a0, %a0, %a5, %a6;
    mov.u32 %a7, %ntid.y;
    mov.u32 %a8, %tid.y;
    mad.lo.u32 %a0, %a0, %a7, %a8;
    mov.u32 %a9, %ntid.x;
    mov.u32 %a10, %tid.x;
    mad.lo.u32 %a0, %a0, %a9, %a10;
    setp.ne.u64 %p0, %w0, 0;
    @%p0 st.u32 [%w0], %a0;
    setp.ne.u64 %p1, %w1, 0;
    @%p1 st.u32 [%w1], 0;
    st.param.b32 [r], 0;
    ret;
}
"""
