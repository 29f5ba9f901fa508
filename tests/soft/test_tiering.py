"""Tiering: kernels get quick code first and good code after some run time, during a launch and without a pause."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.harness import wait_until
from soft.kernels import Kernels

from gpuvirt.soft.host import jit, kernel_compiler, module_registry, tiering

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
# Each thread makes n rounds of x = x * 5 + 1 from its number on and stores x.
ROUNDS = (
    HEAD + ".visible .global .align 4 .u32 step = 1; .visible .entry rounds(.param .u64 p, .param .u32 n) { .reg .b64 %a<3>; .reg .b32 %r<6>; .reg .pred %p; "
    "ld.param.u64 %a0, [p]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1; "
    "mul.wide.u32 %a1, %r1, 4; add.u64 %a0, %a0, %a1; ld.global.u32 %r4, [step]; "
    "L: mad.lo.u32 %r1, %r1, 5, %r4; sub.u32 %r0, %r0, 1; setp.ne.u32 %p, %r0, 0; @%p bra L; st.global.u32 [%a0], %r1; ret; }"
)


def expected(threads: int, n: int) -> np.ndarray[Any, Any]:
    x = np.arange(threads, dtype=np.uint32)
    for _ in range(n):
        x = x * np.uint32(5) + np.uint32(1)
    return x


@pytest.fixture
def improver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tiering.Improver]:
    """Every kernel is large, and hot after a millisecond."""
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_compiler, "LARGE", 0)
    monkeypatch.setattr(tiering, "BUDGET_NS", 1_000_000)
    own = tiering.Improver()
    monkeypatch.setattr(module_registry, "IMPROVER", own)
    yield own
    own.helper.close()


def test_a_hot_kernel_gets_good_code_and_the_cache_keeps_it(improver: tiering.Improver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    levels: list[int] = []
    real = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda text, level: levels.append(level) or real(text, level))
    monkeypatch.setattr(tiering, "BUDGET_NS", 10**15)  # a busy machine holds up the first launch, too
    k = Kernels(ROUNDS)
    out = np.zeros(256, np.uint32)
    k.launch("rounds", 2, 128, out, np.uint32(1))
    code = k.get("rounds", (128,))
    assert code.tier is not None and code.tier.entry == code.entry and not code.tier.asked and levels == [jit.QUICK]

    def kept() -> list[bytes]:
        return [path.read_bytes() for path in tmp_path.rglob("kernels/*/*")]

    (quick,) = kept()
    code.tier.budget_ns = 1_000_000
    want = expected(256, 1000)

    def swapped() -> bool:
        out[:] = 0
        k.launch("rounds", 2, 128, out, np.uint32(1000))
        assert (out == want).all()
        return code.tier is not None and code.tier.entry != code.entry

    assert wait_until(swapped) and swapped()  # and once more on the good code
    assert wait_until(lambda: len(kept()) == 1 and kept() != [quick]), "the good code takes the quick code's place"
    again = Kernels(ROUNDS)
    again.launch("rounds", 2, 128, out, np.uint32(1000))
    assert (out == want).all() and again.get("rounds", (128,)).tier is None and levels == [jit.QUICK]


# As ROUNDS, but threads of the blocks from the eighth on wait for the word at `gate` first.
GATED = (
    ROUNDS.replace("rounds(", "gated(").replace(".param .u32 n)", ".param .u32 n, .param .u64 gate)")
    .replace("L: ", "ld.param.u64 %a2, [gate]; setp.lt.u32 %p, %r2, 8; @%p bra L; W: ld.volatile.global.u32 %r5, [%a2]; setp.eq.u32 %p, %r5, 0; @%p bra W; L: ")
)  # fmt: skip


def test_code_changes_between_the_blocks_of_one_grid(improver: tiering.Improver) -> None:
    """Blocks that begin after the good code is there run on it, in a grid that began on the quick code."""
    k = Kernels(GATED)
    tier = k.get("gated", (128,)).tier
    assert tier is not None
    tier.budget_ns = 0  # asked for when the first block is claimed
    quick, blocks, n = tier.entry, 64, 50
    out, gate = np.zeros(blocks * 128, np.uint32), np.zeros(1, np.uint32)
    launch = threading.Thread(target=k.launch, args=("gated", blocks, 128, out, np.uint32(n), gate), daemon=True)
    launch.start()
    assert wait_until(lambda: tier.entry != quick), "no good code came"
    assert launch.is_alive() and not out[8 * 128 :].any(), "the grid did not wait for the gate"
    gate[0] = 1
    launch.join(100)
    assert not launch.is_alive() and (out == expected(blocks * 128, n)).all()


def test_a_module_that_goes_takes_its_wishes_along(improver: tiering.Improver) -> None:
    k = Kernels(ROUNDS)
    k.launch("rounds", 1, 32, np.zeros(32, np.uint32), np.uint32(1))
    (wish,) = improver._wishes
    assert wish.owner() is not None
    k.compiler.module_unload(k.number)
    del k
    assert wish.owner() is None
    wish.use(b"nothing is done with it")


def test_a_launch_does_not_wait_for_the_helper(improver: tiering.Improver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper is stopped in the middle: other kernels compile and hot ones go on."""
    assert improver.helper.compile(b"no lz4", jit.GOOD) is None
    assert improver.helper._running is not None
    helper = improver.helper._running.process
    assert isinstance(helper, subprocess.Popen)
    helper.send_signal(signal.SIGSTOP)
    try:
        out = np.zeros(128, np.uint32)
        k = Kernels(ROUNDS)
        done = threading.Event()

        def work() -> None:
            for shape in (32, 64, 96, 128):
                for _ in range(20):
                    k.launch("rounds", 1, shape, out, np.uint32(1000))
            done.set()

        threading.Thread(target=work, daemon=True).start()
        assert done.wait(100)
        assert (out == expected(128, 1000)).all()
    finally:
        helper.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_quick_code_that_takes_too_much_stack_is_not_used(improver: tiering.Improver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick code keeps every value that lives across blocks on the stack; a frame of cuDNN's was larger than the stack and its guard together."""
    n = 400
    spread = "".join(f"mad.lo.u32 %v{i}, %r1, {2 * i + 3}, {i}; " for i in range(n))
    gather = "".join(f"mad.lo.u32 %r2, %r2, 5, %v{i}; " for i in range(n))
    text = (
        HEAD + f".visible .entry wide(.param .u64 p) {{ .reg .b64 %a<3>; .reg .b32 %r<4>; .reg .b32 %v<{n}>; .reg .pred %q; ld.param.u64 %a0, [p]; "
        f"mov.u32 %r1, %tid.x; mul.wide.u32 %a1, %r1, 4; add.u64 %a0, %a0, %a1; ld.global.u32 %r1, [%a0]; mov.u32 %r2, 0; {spread} setp.lt.u32 %q, %r1, 7; @%q bra L; "
        f"bar.warp.sync -1; L: {gather} st.global.u32 [%a0], %r2; ret; }}"
    )
    levels: list[int] = []
    frames: list[int] = []
    compile_object = jit.compile_object

    def noting(ir: str, level: int) -> bytes:
        code = compile_object(ir, level)
        levels.append(level)
        frames.append(jit.large_frames(code))
        return code

    monkeypatch.setattr(jit, "compile_object", noting)
    want = np.zeros(32, np.uint32)
    for i in range(n):
        want = want * np.uint32(5) + np.arange(32, dtype=np.uint32) * np.uint32(2 * i + 3) + np.uint32(i)
    for room, made in ((kernel_compiler.QUICK_STACK, [jit.QUICK]), (n * 128 // 2, [jit.QUICK, jit.GOOD])):
        monkeypatch.setattr(kernel_compiler, "QUICK_STACK", room)
        levels.clear()
        frames.clear()
        out = np.arange(32, dtype=np.uint32)
        Kernels(text + f"// {room}\n").launch("wide", 1, 32, out)
        assert np.array_equal(out, want)
        assert levels[: len(made)] == made and frames[0] > n * 128 // 2
