"""Misaligned accesses: of every form, in every space, wherever the address comes from; only those of lanes that take part; aligned ones pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.kernels import Kernels, LaunchError

from gpuvirt.soft.codegen import alignment_checks
from gpuvirt.soft.pipeline import translate

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n.const .align 16 .b8 fixed[4096];\n"
# Parameters: memory, a distance in bytes (what is misaligned), whether lane 5 alone does it, memory that holds the memory's address.
# %q1: memory + distance. %q2: a lane's own part of it, 32 bytes each. %q3: the same, and one byte more for lane 5. %r5 the distance, %r6 a lane's part.
START = """.visible .entry k(.param .u64 m, .param .u64 d, .param .u32 one, .param .u64 mm) {
.reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %q<40>; .reg .f32 %f<9>; .reg .f64 %g<9>; .reg .pred %p<9>;
.shared .align 16 .b8 sm[4096]; .local .align 16 .b8 own[256];
ld.param.u64 %q0, [m]; ld.param.u64 %q9, [d]; add.u64 %q1, %q0, %q9; cvt.u32.u64 %r5, %q9; ld.param.u32 %r7, [one]; mov.u32 %r0, %tid.x;
mul.wide.u32 %q4, %r0, 32; add.u64 %q2, %q1, %q4; cvt.u32.u64 %r6, %q4; add.u32 %r6, %r6, %r5; mov.u32 %r8, sm; add.u32 %r6, %r6, %r8;
setp.eq.u32 %p1, %r0, 5; selp.b32 %r9, %r7, 0, %p1; cvt.u64.u32 %q5, %r9; add.u64 %q3, %q2, %q5; add.u32 %r10, %r6, %r9; setp.ne.u32 %p3, %r0, 5;
ld.param.u64 %q6, [mm]; ld.global.u64 %q7, [%q6]; add.u64 %q8, %q7, %q9; add.u32 %r11, %r8, %r5; cvt.u64.u32 %q10, %r11;
mov.u32 %r12, own; add.u32 %r13, %r12, %r5; cvta.shared.u64 %q11, %q10; mov.u64 %q12, fixed; add.u64 %q13, %q12, %q9;
xor.b64 %q14, %q1, 1; xor.b64 %q14, %q14, 1; mul.hi.u32 %r14, %r0, 7; cvt.u64.u32 %q15, %r14; add.u64 %q16, %q3, %q15;
"""
# name: (text, size); each is right at distance 0 and wrong at 1, or at half the size.
FORMS = {
    "ld.u16": ("ld.global.u16 %h1, [%q1];", 2),
    "ld.u32": ("ld.global.u32 %r1, [%q1];", 4),
    "ld.u64": ("ld.global.u64 %q20, [%q1];", 8),
    "ld of lanes": ("ld.global.u32 %r1, [%q2];", 4),
    "ld of lanes side by side": ("mul.wide.u32 %q21, %r0, 4; add.u64 %q22, %q1, %q21; ld.global.u32 %r1, [%q22];", 4),
    "ld.v2": ("ld.global.v2.u32 {%r1, %r2}, [%q2];", 8),
    "ld.v4": ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%q2];", 16),
    "ld.v4 of 8": ("ld.global.v4.b64 {%q20, %q21, %q22, %q23}, [%q2];", 32),
    "ld.nc": ("ld.global.nc.u32 %r1, [%q2+4];", 4),
    "ld with an odd offset": ("ld.global.u32 %r1, [%q2+1]; // one more", 4),
    "ld generic": ("ld.u64 %q20, [%q2];", 8),
    "ld through memory": ("ld.global.u32 %r1, [%q8];", 4),
    "ld.volatile.v2.u64": ("ld.volatile.global.v2.u64 {%q20, %q21}, [%q2];", 16),
    "ld.acquire": ("ld.acquire.gpu.global.u32 %r1, [%q2];", 4),
    "ld by an address not followed": ("ld.global.u32 %r1, [%q14];", 4),
    "st.u16": ("st.global.u16 [%q1], 1;", 2),
    "st.u32": ("st.global.u32 [%q2], 1;", 4),
    "st.v2.u64": ("st.global.v2.u64 [%q2], {%q0, %q0};", 16),
    "st.f64": ("st.global.f64 [%q2], 0d0000000000000000;", 8),
    "st.release": ("st.release.gpu.global.u64 [%q2], 1;", 8),
    "st through memory": ("add.u64 %q20, %q8, %q4; st.global.u32 [%q20], 1;", 4),
    "ld.shared": ("ld.shared.u32 %r1, [%r6];", 4),
    "ld.shared of all": ("ld.shared.u64 %q20, [%r11];", 8),
    "st.shared.v4": ("st.shared.v4.u32 [%r6], {%r0, %r0, %r0, %r0};", 16),
    "generic shared": ("st.u32 [%q11], 1;", 4),
    "ld.local": ("st.local.u32 [own], 1; ld.local.u32 %r1, [%r13];", 4),
    "st.local.v2": ("st.local.v2.u64 [%r13], {%q0, %q0}; ", 16),
    "ld.const": ("ld.const.u32 %r1, [%q13];", 4),
    "atom.add": ("atom.global.add.u32 %r1, [%q2], 1;", 4),
    "atom.cas.b64": ("atom.global.cas.b64 %q20, [%q1], 0, 1;", 8),
    "atom.f64": ("atom.global.add.f64 %g1, [%q2], 0d0000000000000000;", 8),
    "atom.f16x2": ("atom.global.add.noftz.f16x2 %r1, [%q2], %r0;", 4),
    "red": ("red.global.add.u32 [%q1], 1;", 4),
    "atom.shared": ("atom.shared.add.u32 %r1, [%r6], 1;", 4),
    "red.v4": ("red.global.v4.f32.add [%q2], {%f0, %f0, %f0, %f0};", 16),
    "cp.async to": ("cp.async.ca.shared.global [%r6], [%q0], 8;", 8),
    "cp.async from": ("cp.async.cg.shared.global [sm], [%q2], 16;", 16),
    "cp.async.bulk": ("setp.ne.u32 %p2, %r0, 0; @%p2 bra E; cp.async.bulk.global.shared::cta.bulk_group [%q1], [sm], 32; E:", 16),
    "mbarrier": ("mbarrier.init.shared.b64 [%r11], 1;", 8),
    "ldmatrix": ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r6];", 16),
    "ldmatrix of a generic address": ("ldmatrix.sync.aligned.m8n8.x2.b16 {%r1, %r2}, [%q2];", 16),
    "stmatrix": ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r1};", 16),
}  # fmt: skip
ONE = {  # lane 5 alone is one byte off
    "ld": ("ld.global.u32 %r1, [%q3];", "@%p3 ld.global.u32 %r1, [%q3];"),
    "st.v2": ("st.global.v2.u32 [%q3], {%r0, %r0};", "@%p3 st.global.v2.u32 [%q3], {%r0, %r0};"),
    "ld.shared": ("ld.shared.u16 %h1, [%r10];", "@!%p1 ld.shared.u16 %h1, [%r10];"),
    "atom": ("atom.global.add.u32 %r1, [%q3], 1;", "@%p3 atom.global.add.u32 %r1, [%q3], 1;"),
    "branch": ("ld.global.u32 %r1, [%q3];", "@%p1 bra END; ld.global.u32 %r1, [%q3];"),
    "ldmatrix": ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r10];", "setp.lt.u32 %p4, %r0, 8; add.u32 %r20, %r6, 1; selp.b32 %r20, %r6, %r20, %p4; "
                 "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r20];"),
}  # fmt: skip


def launch(text: str, distance: int = 0, one: int = 0, threads: int = 32) -> None:
    k = Kernels(HEAD + START + text + "\nEND: ret; }")
    room = np.zeros(1 << 15, np.uint8)
    memory = (room.ctypes.data + 255) // 256 * 256
    pointer = np.array([memory], np.uint64)
    k.launch("k", 1, threads, np.uint64(memory), np.uint64(distance), np.uint32(one), pointer)


def refused(text: str, distance: int = 0, one: int = 0, threads: int = 32) -> str:
    with pytest.raises(LaunchError) as info:
        launch(text, distance, one, threads)
    assert info.value.code == 716, info.value
    return str(info.value)


@pytest.mark.parametrize("name", FORMS)
def test_every_form(name: str) -> None:
    text, size = FORMS[name]
    if "// one more" in text:
        assert "misaligned" in refused(text)
        launch(text, size - 1)
        return
    launch(text)
    launch(text, 2 * size if size < 32 else 32)
    line = refused(text, size // 2)
    assert "misaligned" in line and "in kernel" in line and "block (0,0,0), warp 0" in line
    refused(text, 1, threads=37)


@pytest.mark.parametrize("name", ONE)
def test_only_lanes_that_take_part_count(name: str) -> None:
    wrong, right = ONE[name]
    launch(wrong, 0, 0)
    line = refused(wrong, 0, 1)
    assert "lanes 0x00000020" in line, line
    launch(right, 0, 1)


def test_what_is_not_reached_is_no_fault() -> None:
    """A parameter that is no aligned pointer, of an access that does not happen."""
    launch("setp.eq.u32 %p2, %r7, 0; @%p2 bra END; ld.global.u32 %r1, [%q1];", 1)
    launch("setp.ne.u32 %p2, %r7, 0; @%p2 ld.global.u32 %r1, [%q1];", 1)
    refused("setp.ne.u32 %p2, %r7, 0; @%p2 ld.global.u32 %r1, [%q1];", 1, 1)
    launch("setp.eq.u32 %p2, %r7, 0; @%p2 bra END; ld.global.u32 %r1, [%q8];", 1)
    launch("setp.ne.u32 %p2, %r7, 0; @%p2 ld.global.u32 %r1, [%q8];", 1)
    launch("ld.global.u8 %r1, [%q1]; ld.global.u8 %r2, [%q3];", 3, 1)
    launch("mov.u32 %r1, 0; cp.async.ca.shared.global [sm], [%q1], 4, %r1;", 1)


def test_loops_and_sums_of_parameters() -> None:
    loop = "mov.u32 %r1, 0; mov.u64 %q20, %q0; L: st.global.u32 [%q20], %r1; add.u64 %q20, %q20, %q9; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra L;"
    launch(loop, 8)
    refused(loop, 6)
    extended = "shl.b64 %q20, %q9, 32; shr.s64 %q20, %q20, 32; add.u64 %q20, %q0, %q20; ld.global.u64 %q21, [%q20];"
    launch(extended, 16)
    refused(extended, 4)


def test_usual_addresses_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and multiples of the size are looked at once a launch: no test is in the code."""
    k = Kernels(HEAD + START + "ld.global.u32 %r1, [%q2]; st.global.v4.u32 [%q2+16], {%r1, %r1, %r1, %r1}; ld.shared.u32 %r2, [%r8]; END: ret; }")
    text, description, _ = translate(k.index, "k", (32, 1, 1))
    assert text.count("soft_misaligned") == 0 or "call void @soft_misaligned" not in text
    assert description.needs == [(0, 16), (8, 16), (24, 8)]
    careful, description, _ = translate(k.index, "k", (32, 1, 1), careful=True)
    assert "call void @soft_misaligned" in careful and not description.needs


def test_without_the_tests_it_is_not_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The deliberate fault: addresses are not looked at."""
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    monkeypatch.setattr(alignment_checks, "require", lambda *_a, **_k: None)
    launch(FORMS["ld of lanes"][0], 2)
