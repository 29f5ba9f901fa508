"""Kernels of queued launches are compiled before their turn comes, and nothing of it is seen but the time that it saves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.harness import wait_until
from soft.kernels import Kernels

from gpuvirt.errors import GpuvirtError
from gpuvirt.soft.errors import SoftError
from gpuvirt.soft.host import jit, module_registry, precompile
from gpuvirt.soft.host.ctypes_bridge import Bridge

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
BLOCK = (64, 1, 1)


def store(name: str, number: int) -> str:
    """A kernel whose threads store the number."""
    return (
        f".visible .entry {name}(.param .u64 p) {{ .reg .b64 %a<3>; .reg .b32 %r<3>; ld.param.u64 %a0, [p]; mov.u32 %r0, %tid.x; "
        f"mul.wide.u32 %a1, %r0, 4; add.u64 %a0, %a0, %a1; mov.u32 %r1, {number}; st.global.u32 [%a0], %r1; ret; }}\n"
    )


KERNELS = HEAD + "".join(store(f"k{i}", i) for i in range(8))
WRONG = HEAD + ".visible .entry wrong() { no.such.thing; ret; }\n"


@pytest.fixture
def precompiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[precompile.Precompiler]:
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    monkeypatch.setattr(precompile, "threads", lambda: 2)
    own = precompile.Precompiler()
    monkeypatch.setattr(module_registry, "PRECOMPILER", own)
    yield own
    own.helper.close()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process itself compiles."""
    texts: list[str] = []
    real = jit.compile_object
    monkeypatch.setattr(jit, "compile_object", lambda text, level: texts.append(text) or real(text, level))
    return texts


def done(k: Kernels, number: int) -> bool:
    slots = k.compiler.modules[k.number].slots.values()
    return sum(slot.code is not None or slot.error is not None for slot in slots) == number


def test_the_helper_compiles_them(precompiler: precompile.Precompiler, here: list[str]) -> None:
    """Each once, whatever is asked twice, and a launch finds it there."""
    k = Kernels(KERNELS)
    for i in (*range(8), *range(8)):
        k.compiler.kernel_precompile(k.number, i, BLOCK)
    assert wait_until(lambda: done(k, 8))
    out = np.zeros(64, np.uint32)
    for i in range(8):
        k.launch(f"k{i}", 1, 64, out)
        assert (out == i).all()
    assert not here
    k.launch("k0", 1, 33, out)  # of another class
    assert len(here) == 1


def test_an_error_is_told_to_the_launch(precompiler: precompile.Precompiler) -> None:
    k = Kernels(WRONG)
    with pytest.raises(SoftError) as direct:
        Kernels(WRONG).get("wrong", BLOCK)
    k.compiler.kernel_precompile(k.number, 0, BLOCK)
    assert wait_until(lambda: done(k, 1))
    with pytest.raises(SoftError) as later:
        k.get("wrong", BLOCK)
    assert str(later.value) == str(direct.value) and later.value.code == direct.value.code


def test_what_the_helper_does_not_compile_the_launch_does(precompiler: precompile.Precompiler, here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper refuses it, or it is too large for it: that is no error of the kernel's."""
    tried: list[str] = []
    monkeypatch.setattr(precompiler.helper, "compile", lambda ir, level: tried.append("") or None)
    out = np.zeros(64, np.uint32)
    k = Kernels(KERNELS)
    k.compiler.kernel_precompile(k.number, 3, BLOCK)
    assert wait_until(lambda: tried)
    k.launch("k3", 1, 64, out)
    assert (out == 3).all() and len(here) == 1
    monkeypatch.setattr(jit, "LARGE", 10)
    with pytest.raises(precompile.NotCompiled):
        precompiler.compile("a text that is too long", jit.GOOD)
    assert len(tried) == 1


def test_a_launch_does_not_wait_for_those_before_it(precompiler: precompile.Precompiler, here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads are held up in others; a launch whose kernel none of them has begun compiles it itself, and one whose kernel is begun waits for it."""
    held, begun = threading.Event(), []
    real = precompiler.helper.compile

    def compile(ir: bytes, level: int) -> bytes | None:
        begun.append(ir)
        assert held.wait(100)
        return real(ir, level)

    monkeypatch.setattr(precompiler.helper, "compile", compile)
    k = Kernels(KERNELS)
    out = np.zeros(64, np.uint32)
    for i in range(8):
        k.compiler.kernel_precompile(k.number, i, BLOCK)
    assert wait_until(lambda: len(begun) == 2)
    k.launch("k7", 1, 64, out)
    assert (out == 7).all() and len(here) == 1
    waiting = threading.Thread(target=k.get, args=("k0", BLOCK), daemon=True)
    waiting.start()
    held.set()
    waiting.join(100)
    assert not waiting.is_alive() and wait_until(lambda: done(k, 8)) and len(here) == 1


def test_a_module_that_goes(precompiler: precompile.Precompiler, here: list[str]) -> None:
    """Before its turn comes, or meanwhile: the next one's kernels are compiled."""
    gone = Kernels(KERNELS)
    for i in range(8):
        gone.compiler.kernel_precompile(gone.number, i, BLOCK)
    gone.compiler.module_unload(gone.number)
    gone.compiler.kernel_precompile(gone.number, 0, BLOCK)
    k = Kernels(KERNELS)
    k.compiler.kernel_precompile(k.number, 5, BLOCK)
    k.compiler.kernel_precompile(k.number, 100, BLOCK)  # there is none
    assert wait_until(lambda: done(k, 1))
    assert not here


@pytest.mark.parametrize(("text", "cores", "count"), [("", 2, 2), ("", 1, 0), ("", 64, precompile.MOST), ("off", 64, 0)])
def test_how_many_at_a_time(monkeypatch: pytest.MonkeyPatch, text: str, cores: int, count: int) -> None:
    monkeypatch.setenv(precompile.SETTING, text)
    monkeypatch.setattr(precompile.os, "sched_getaffinity", lambda _: range(cores))
    assert precompile.threads() == count and bool(Bridge().table.kernel_precompile) == (count > 0)


def test_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(precompile.SETTING, "yes")
    with pytest.raises(GpuvirtError, match="GPUVIRT_SOFT_PRECOMPILE=yes: it is 'off' or unset"):
        precompile.threads()
