"""State spaces and address conversion, vector accesses, hints that must not disturb anything, and traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError
from soft.ptx_op import Case, check, run

A = np.random.default_rng(3).integers(0, 1 << 32, 200, np.uint32)
SPACES = ".shared .align 16 .b32 s[128]; .local .align 16 .b32 l[8]; "


def _same(a: Any) -> Any:
    return a


def _cases() -> list[Case]:
    texts = {
        "generic shared": SPACES + "mov.u64 %q0, s; cvta.shared.u64 %q0, %q0; mad.wide.u32 %q0, %r2, 4, %q0; st.u32 [%q0], $a; ld.u32 $d, [%q0];",
        "shared and back": SPACES + "mov.u64 %q0, s; cvta.shared.u64 %q0, %q0; cvta.to.shared.u64 %q0, %q0; mad.wide.u32 %q0, %r2, 4, %q0; "
        "st.shared.u32 [%q0], $a; ld.shared.u32 $d, [%q0];",
        "generic local": SPACES + "mov.u64 %q0, l; cvta.local.u64 %q0, %q0; st.u32 [%q0+8], $a; ld.local.u32 $d, [l+8];",
        "vectors": SPACES + "st.local.v4.b32 [l], {$a, 1, 2, $a}; ld.local.v2.b64 {%q0, %q1}, [l]; shr.u64 %q1, %q1, 32; cvt.u32.u64 $d, %q1;",
        "bytes": SPACES + "st.local.u32 [l], $a; ld.local.u8 %r3, [l+3]; shl.b32 %r3, %r3, 24; ld.local.u8 %r4, [l+2]; shl.b32 %r4, %r4, 16; "
        "ld.local.u16 %r5, [l]; or.b32 %r3, %r3, %r4; or.b32 $d, %r3, %r5;",
        "elements": SPACES + ".local .v2 .u64 w[4]; mov.u64 %q0, l[3]; st.local.u32 [%q0], $a; mov.u64 %q1, w[0x2]; ld.local.u32 %r3, [l+12]; "
        "st.local.u32 [%q1+4], %r3; ld.local.u32 $d, [w+36];",
        "ldu": "ldu.global.u32 $d, [%aa];",
        "hints": "prefetch.global.L2 [%aa]; prefetchu.L1 [%aa]; applypriority.global.L2::evict_normal [%aa], 128; nanosleep.u32 1; pmevent 1; "
        "createpolicy.fractional.L2::evict_last.b64 %q0, 1.0; griddepcontrol.wait; mov.u32 $d, $a;",
    }
    return [Case(text, np.dtype(np.uint32), (A,), _same) for text in texts.values()]


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_round_trip(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("space", ["shared", "local", "global"])
def test_isspacep(space: str) -> None:
    setup = {"shared": "mov.u64 %q0, s; cvta.shared.u64 %q0, %q0;", "local": "mov.u64 %q0, l; cvta.local.u64 %q0, %q0;", "global": "mov.u64 %q0, %aa;"}
    use = " st.shared.u32 [s], 1; st.local.u32 [l], 1; "
    tests = "".join(f"isspacep.{s} %p1, %q0; selp.b32 %r{3 + i}, {1 << i}, 0, %p1; " for i, s in enumerate(("shared", "local", "global")))
    got = run(SPACES + use + setup[space] + tests + "or.b32 %r3, %r3, %r4; or.b32 $d, %r3, %r5;", np.uint32, A)
    assert set(got) == {1 << ("shared", "local", "global").index(space)}


def test_signed_loads_extend() -> None:
    """A register may be wider than what is loaded."""
    got = run(SPACES + "st.local.u32 [l], $a; ld.local.s8 $d, [l];", np.int32, A.view(np.int32))
    assert np.array_equal(got, A.view(np.int8)[::4].astype(np.int32))


def test_trap_ends_the_grid() -> None:
    with pytest.raises(LaunchError):
        run("setp.eq.u32 %p1, %r0, 77; @%p1 trap; mov.u32 $d, $a;", np.uint32, A)


def test_constant_memory_is_not_written() -> None:
    with pytest.raises(Exception, match="constant memory cannot be written") as info:
        Kernels(
            ".version 8.0\n.target sm_80\n.address_size 64\n.const .align 4 .u32 fixed = 1;\n.visible .entry k() { st.const.u32 [fixed], 2; ret; }"
        ).get("k", (32,))
    assert getattr(info.value, "code", None) == 218


def test_a_missing_instruction_is_named_at_launch() -> None:
    with pytest.raises(Exception, match="multimem") as info:
        run("multimem.ld_reduce.global.add.u32 $d, [%aa];", np.uint32, A)
    assert getattr(info.value, "code", None) == 801


def test_alloca_and_the_stack() -> None:
    """Pieces of a size that differs by lane, in a loop that gives them back, and in a function that returns with them taken."""
    text = """.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 r) fill(.param .b32 n) { .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .pred %p<3>;
ld.param.u32 %r1, [n]; cvt.u64.u32 %q1, %r1; shl.b64 %q1, %q1, 2; alloca.u64 %q2, %q1, 16; mov.u32 %r2, 0; mov.u64 %q3, %q2;
FILL: mul.lo.u32 %r3, %r2, %r2; st.local.u32 [%q3], %r3; add.u64 %q3, %q3, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra FILL;
mov.u32 %r4, 0; mov.u32 %r2, 0; mov.u64 %q3, %q2;
SUM: ld.local.u32 %r3, [%q3]; add.u32 %r4, %r4, %r3; add.u64 %q3, %q3, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra SUM;
cvt.u32.u64 %r5, %q2; and.b32 %r5, %r5, 15; add.u32 %r4, %r4, %r5; st.param.b32 [r], %r4; ret; }
.visible .entry k(.param .u64 o, .param .u32 rounds) { .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .pred %p<3>; .local .align 8 .b8 own[8];
mov.u32 %r0, %tid.x; ld.param.u64 %q0, [o]; mul.wide.u32 %q1, %r0, 4; add.u64 %q0, %q0, %q1; st.local.u32 [own], %r0; mov.u32 %r1, 0; mov.u32 %r5, 0;
and.b32 %r6, %r0, 15; add.u32 %r6, %r6, 1; ld.param.u32 %r7, [rounds];
LOOP: stacksave.u64 %q3; alloca.u64 %q4, 1000, 8; st.local.u32 [%q4], %r1;
{ .param .b32 n; .param .b32 r; st.param.b32 [n], %r6; call (r), fill, (n); ld.param.b32 %r2, [r]; }
ld.local.u32 %r3, [%q4]; add.u32 %r5, %r5, %r2; add.u32 %r5, %r5, %r3; stackrestore.u64 %q3;
add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r7; @%p1 bra LOOP; ld.local.u32 %r3, [own]; add.u32 %r5, %r5, %r3; st.global.u32 [%q0], %r5; ret; }"""
    o = np.zeros(64, np.uint32)
    kernels = Kernels(text)
    kernels.launch("k", 1, 64, o, np.uint32(100))
    lanes = np.arange(64)
    squares = np.array([sum(i * i for i in range(n % 16 + 1)) for n in lanes])
    assert np.array_equal(o, 100 * squares + 4950 + lanes)
    with pytest.raises(LaunchError) as info:
        Kernels(text.replace("stackrestore.u64 %q3;", "")).launch("k", 1, 64, o, np.uint32(100))
    assert info.value.code == 714  # CUDA_ERROR_HARDWARE_STACK_ERROR


def test_exit_inside_functions() -> None:
    """Threads that end two calls deep do nothing afterwards; the others go on, with the barrier that the dead do not reach."""
    text = """.version 8.0
.target sm_80
.address_size 64
.func leaf(.param .b32 n) { .reg .b32 %r<9>; .reg .pred %p<3>; ld.param.u32 %r1, [n]; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 1; @%p1 exit;
setp.ge.u32 %p2, %r1, 96; @!%p2 ret; exit; }
.func (.param .b32 r) middle(.param .b32 n) { .reg .b32 %r<9>; ld.param.u32 %r1, [n]; { .param .b32 m; st.param.b32 [m], %r1; call leaf, (m); }
add.u32 %r1, %r1, 1000; st.param.b32 [r], %r1; ret; }
.visible .entry k(.param .u64 o) { .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .pred %p<3>; mov.u32 %r0, %tid.x; ld.param.u64 %q0, [o]; mul.wide.u32 %q1, %r0, 4;
add.u64 %q0, %q0, %q1; st.global.u32 [%q0], 7; setp.ne.u32 %p1, %r0, 5; mov.u32 %r2, 1;
@%p1 bra CALL; bra AFTER; CALL: { .param .b32 n; .param .b32 r; st.param.b32 [n], %r0; call (r), middle, (n); ld.param.b32 %r2, [r]; }
AFTER: bar.sync 0; st.global.u32 [%q0], %r2; exit; }"""
    o = np.zeros(128, np.uint32)
    Kernels(text).launch("k", 1, 128, o)
    lanes = np.arange(128)
    want = np.where((lanes % 4 == 1) | (lanes >= 96), 7, lanes + 1000)
    want[5] = 1
    assert np.array_equal(o, want)


def test_vectors_of_32_bytes() -> None:
    """Eight words and four doublewords, there and back, in global and in shared memory."""
    k = Kernels(""".version 8.8
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) { .reg .b32 %r<20>; .reg .b64 %q<9>; .reg .f32 %f<9>; .shared .align 32 .b8 sm[2048]; mov.u32 %r0, %tid.x;
ld.param.u64 %q0, [x]; ld.param.u64 %q1, [y]; mul.wide.u32 %q2, %r0, 32; add.u64 %q0, %q0, %q2; add.u64 %q1, %q1, %q2; shl.b32 %r1, %r0, 5; mov.u32 %r2, sm;
add.u32 %r1, %r1, %r2; ld.global.v8.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, [%q0]; st.shared.v4.f32 [%r1], {%f7, %f6, %f5, %f4};
st.shared.v4.f32 [%r1+16], {%f3, %f2, %f1, %f0}; ld.shared.v2.b64 {%q3, %q4}, [%r1]; ld.shared.v2.b64 {%q5, %q6}, [%r1+16];
st.global.v4.b64 [%q1], {%q3, %q4, %q5, %q6}; bar.warp.sync -1; ld.global.v4.b64 {%q3, %q4, %q5, %q6}, [%q1]; mov.b64 {%r3, %r4}, %q3; mov.b64 {%r5, %r6}, %q4;
mov.b64 {%r7, %r8}, %q5; mov.b64 {%r9, %r10}, %q6; st.global.v8.b32 [%q1], {%r4, %r3, %r6, %r5, %r8, %r7, %r10, %r9}; ret; }""")
    room = np.zeros((2, 64 * 8 + 8), np.float32)
    x, y = (r[-r.ctypes.data % 32 // 4 :][: 64 * 8].reshape(64, 8) for r in room)  # 32-byte accesses are aligned
    x[:] = np.arange(64 * 8).reshape(64, 8)
    k.launch("k", 1, 64, x, y)
    assert np.array_equal(y, x[:, ::-1].reshape(64, 4, 2)[:, :, ::-1].reshape(64, 8))


def spaces() -> str:
    text = """.version 8.0
.target sm_90
.address_size 64
.global .align 4 .b32 word; .const .align 4 .b32 fixed = 5;
.visible .entry k(.param .u64 o) { .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .pred %p<9>; .shared .align 4 .b8 sm[64]; .local .align 4 .b8 own[16];
mov.u32 %r0, %tid.x; ld.param.u64 %q0, [o]; mul.wide.u32 %q1, %r0, 12; add.u64 %q0, %q0, %q1;
mov.u64 %q2, word; cvta.global.u64 %q2, %q2; mov.u64 %q3, sm; cvta.shared.u64 %q3, %q3; mov.u64 %q4, own; cvta.local.u64 %q4, %q4; """
    for i, q in enumerate((2, 3, 4)):
        text += "mov.u32 %r1, 0; "
        for j, space in enumerate(("global", "shared", "local", "shared::cta", "shared::cluster")):
            text += f"isspacep.{space} %p1, %q{q}; selp.u32 %r2, {1 << j}, 0, %p1; or.b32 %r1, %r1, %r2; "
        text += f"st.global.u32 [%q0+{4 * i}], %r1; "
    return text + "ret; }"


def test_addresses_know_their_space() -> None:
    """isspacep of generic addresses in every state space."""
    o = np.zeros((64, 3), np.uint32)
    Kernels(spaces()).launch("k", 1, 64, o)
    assert (o == [1, 2 + 8 + 16, 4]).all()


def fetch(t: str) -> str:
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 t, .param .u64 o) {{ .reg .b32 %r<9>; .reg .b64 %q<9>; mov.u32 %r0, %tid.x; ld.param.u64 %q0, [t]; ld.param.u64 %q1, [o];
mul.wide.u32 %q2, %r0, 16; add.u64 %q1, %q1, %q2; sub.s32 %r1, %r0, 4; tex.1d.v4.{t}.s32 {{%r2, %r3, %r4, %r5}}, [%q0, {{%r1}}];
st.global.v4.u32 [%q1], {{%r2, %r3, %r4, %r5}}; ret; }}"""


TEXTS = [spaces(), *(fetch(t) for t in ("f32", "u32", "s32"))]


@pytest.mark.parametrize("t", ["f32", "u32", "s32"])
def test_fetches_from_textures(t: str) -> None:
    """One, two and four channels, elements outside, and what is no texture."""
    k = Kernels(fetch(t))
    for channels in (1, 2, 4):
        data = np.arange(1, 20 * channels + 1, dtype=np.float32 if t == "f32" else np.int32).reshape(20, channels)
        texture = np.zeros(6, np.uint64)  # as struct soft_texture has it
        texture[:4] = [0x58745664 | (0x20 if t == "f32" else 0x0A) << 32, channels, data.ctypes.data, 20]
        o = np.ones((32, 4), data.dtype)
        k.launch("k", 1, 32, texture, o)
        want = np.zeros((32, 4), data.dtype)
        want[4:24, :channels] = data
        if channels < 4:
            want[4:24, 3] = 1
        assert np.array_equal(o, want)
    with pytest.raises(LaunchError, match="no texture"):
        k.launch("k", 1, 32, np.zeros(8, np.uint64), np.zeros((32, 4), np.uint32))


@pytest.mark.parametrize("text", ["fma.rn.oob.f16 %h1, %h1, %h1, %h1;", "cvt.rs.f16.f32 %h1, %r3, %r4;", "sust.p.1d.b32.trap [%q1, {%r3}], {%r4};",
                                  "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r3}, {%r3}, {%r3}, {%r3}, %r3, 0;", "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%r3}, %q1, %q1, %r3, 0, %p1, 1, 1, 0, 0;",
                                  "multimem.red.relaxed.sys.global.add.f32 [%aa], %r3;", "tcgen05.shift.cta_group::1.down [%r3];", "add.rq.f32 %r3, %r3, %r3;"])  # fmt: skip
def test_what_is_missing_is_refused_by_name(text: str) -> None:
    with pytest.raises(Exception, match="unsupported PTX instruction '" + text.split(" ")[0].rstrip(";").replace(".", r"\.")) as info:
        run(text + " mov.u32 $d, $a;", np.uint32, A)
    assert getattr(info.value, "code", None) == 801


def test_attributes_of_textures() -> None:
    """txq of handles that differ between lanes, and of one for all; lanes with a false guard ask nothing, whatever their handle."""
    magic, normalized, integers = 0x58745664, 2, 1
    table = np.zeros((40, 5), np.uint64)  # struct soft_texture (texture.h): magic and format, channels and flags, address, elements, next
    lanes = np.arange(40, dtype=np.uint64)
    flags = np.where(lanes % 3 == 0, normalized, 0) | np.where(lanes % 2 == 0, integers, 0)
    table[:, 0], table[:, 1], table[:, 3] = magic | 0x20 << 32, 1 | flags.astype(np.uint64) << np.uint64(32), 1000 * lanes + 7
    text = """mad.lo.u32 %r3, %r2, 40, 0; cvt.u64.u32 %q0, %r3; ld.param.u64 %q1, [pb]; add.u64 %q0, %q0, %q1; setp.ne.u32 %p1, %r2, 5; selp.b64 %q0, %q0, 0, %p1;
    mov.u32 %r4, 0; mov.u32 %r5, 0; @%p1 txq.width.b32 %r4, [%q0]; @%p1 txq.normalized_coords.b32 %r5, [%q0]; txq.width.b32 %r6, [%q1];
    shl.b32 %r5, %r5, 30; add.u32 $d, %r4, %r5; add.u32 $d, $d, %r6;"""
    got = run(text, np.uint32, np.zeros(40, np.uint32), table)
    want = table[:, 3] + ((flags.astype(np.uint64) >> np.uint64(1) & np.uint64(1)) << np.uint64(30))
    want[5] = 0
    assert np.array_equal(got, (want + np.uint64(7)).astype(np.uint32))
