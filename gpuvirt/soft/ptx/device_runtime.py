"""What the device runtime library (libcudadevrt) finds in a driver, in PTX: grids that wait for all their blocks, kernels that launch kernels. The
linker adds it where it is used.

A grid's handle is the address of the launch's workspace, which is zero at first, and 0 in a launch that is not cooperative. At 64: blocks that have
arrived; at 68: how often all have.

A kernel that is launched by another runs when the launching grid has ended, in the order of the launches (native/backend/soft/launch/children.c).
So streams and events of the device have nothing to do: any order that they ask for is the one there is. What is to be launched is described before
the buffer of its parameters (struct soft_child).
"""

from __future__ import annotations

CHILD_BUFFER = "__gpuvirt_child_buffer"  # (kernel's address): address of a parameter buffer, or 0
CHILD_LAUNCH = "__gpuvirt_child_launch"  # (parameter buffer, stream): an error of the device runtime
SET_CONDITION = "cudaGraphSetConditional"  # (handle, value): no library has it; a driver finds it by this name
LAST_ERROR = "__gpuvirt_last_error"  # (error, whether to set it): what the thread's last error was

GRID_PREFIX = "__cuda_syscall_CGS_"
LAUNCH_PREFIX = "__cuda_syscall_cnpv2"

GRID_CALLS = """\
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

# Launches. What is written at negative offsets of a parameter buffer is struct soft_child.
_CALLS = """\
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 r) __gpuvirt_child_buffer(.param .b64 kernel);
.extern .func (.param .b32 r) __gpuvirt_child_launch(.param .b64 buffer, .param .b64 stream);
.extern .func (.param .b32 r) __gpuvirt_last_error(.param .b32 error, .param .b32 set);
.visible .func (.param .b64 r) __cuda_syscall_cnpv2GetParameterBufferV2(.param .b64 kernel, .param .align 4 .b8 grid[12],
    .param .align 4 .b8 block[12], .param .b32 shared)
{
    .reg .b32 %a<7>; .reg .b64 %w<2>; .reg .pred %p;
    ld.param.b64 %w0, [kernel];
    ld.param.b32 %a0, [grid];
    ld.param.b32 %a1, [grid+4];
    ld.param.b32 %a2, [grid+8];
    ld.param.b32 %a3, [block];
    ld.param.b32 %a4, [block+4];
    ld.param.b32 %a5, [block+8];
    ld.param.b32 %a6, [shared];
    {
        .param .b64 p0; .param .b64 q;
        st.param.b64 [p0], %w0;
        call.uni (q), __gpuvirt_child_buffer, (p0);
        ld.param.b64 %w1, [q];
    }
    st.param.b64 [r], %w1;
    setp.eq.u64 %p, %w1, 0;
    @%p bra done;
    st.u32 [%w1+-40], %a0;
    st.u32 [%w1+-36], %a1;
    st.u32 [%w1+-32], %a2;
    st.u32 [%w1+-28], %a3;
    st.u32 [%w1+-24], %a4;
    st.u32 [%w1+-20], %a5;
    st.u32 [%w1+-16], %a6;
done:
    ret;
}
.visible .func (.param .b32 r) __cuda_syscall_cnpv2LaunchDeviceV2(.param .b64 buffer, .param .b64 stream)
{
    .reg .b32 %a; .reg .b64 %w<2>;
    ld.param.b64 %w0, [buffer];
    ld.param.b64 %w1, [stream];
    {
        .param .b64 p0; .param .b64 p1; .param .b32 q;
        st.param.b64 [p0], %w0;
        st.param.b64 [p1], %w1;
        call.uni (q), __gpuvirt_child_launch, (p0, p1);
        ld.param.b32 %a, [q];
    }
    st.param.b32 [r], %a;
    ret;
}
.visible .func (.param .b32 r) __cuda_syscall_cnpv2GetLastError()
{
    .reg .b32 %a;
    {
        .param .b32 p0; .param .b32 p1; .param .b32 q;
        st.param.b32 [p0], 0;
        st.param.b32 [p1], 0;
        call.uni (q), __gpuvirt_last_error, (p0, p1);
        ld.param.b32 %a, [q];
    }
    st.param.b32 [r], %a;
    ret;
}
.visible .func (.param .b32 r) __cuda_syscall_cnpv2SetLastError(.param .b32 error)
{
    .reg .b32 %a<2>;
    ld.param.b32 %a0, [error];
    {
        .param .b32 p0; .param .b32 p1; .param .b32 q;
        st.param.b32 [p0], %a0;
        st.param.b32 [p1], 1;
        call.uni (q), __gpuvirt_last_error, (p0, p1);
        ld.param.b32 %a1, [q];
    }
    st.param.b32 [r], %a0;
    ret;
}
"""

# A call that writes a value where its first parameter points to, or has nothing to do.
_SIMPLE = """\
.visible .func (.param .b32 r) __cuda_syscall_cnpv2{name}({parameters})
{{
    .reg .b64 %w;
{writes}    st.param.b32 [r], 0;
    ret;
}}
"""


def _simple(name: str, parameters: str, writes: str = "") -> str:
    """writes: the type and the value that goes to `out`."""
    kind, _, value = writes.partition(" ")
    store = f"    ld.param.b64 %w, [out];\n    st.{kind} [%w], {value};\n" if writes else ""
    return _SIMPLE.format(name=name, parameters=parameters, writes=store)


LAUNCH_CALLS = _CALLS + "".join(
    [
        _simple("GetDevice", ".param .b64 out", "u32 0"),
        _simple("GetDeviceCount", ".param .b64 out", "u32 1"),
        _simple("StreamCreate", ".param .b64 out, .param .b32 flags", "u64 16"),  # any handle but those that have a meaning
        _simple("StreamDestroy", ".param .b64 stream"),
        _simple("StreamWaitEvent", ".param .b64 stream, .param .b64 event, .param .b32 flags"),
        _simple("EventCreate", ".param .b64 out, .param .b32 flags", "u64 16"),
        _simple("EventRecord", ".param .b64 event, .param .b64 stream"),
        _simple("EventDestroy", ".param .b64 event"),
    ]
)
