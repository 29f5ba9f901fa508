"""State spaces and address conversion, vector accesses, hints that must not disturb anything, and traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soft.ptx_op import Case, check, run

from gpuvirt.soft.harness import LaunchError

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


def test_a_missing_instruction_is_named_at_launch() -> None:
    with pytest.raises(Exception, match="multimem") as info:
        run("multimem.ld_reduce.global.add.u32 $d, [%aa];", np.uint32, A)
    assert getattr(info.value, "code", None) == 801
