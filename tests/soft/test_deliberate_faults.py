"""Deliberate faults in the compiler that the tables of cases must catch: rounding, flushing, saturation, NaN, a carry, an atomic's minimum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soft.ops import test_ops_atomic, test_ops_convert, test_ops_floating, test_ops_forms, test_ops_integer
from soft.ptx_op import Case, check

from gpuvirt.soft.codegen import helpers
from gpuvirt.soft.ops import (
    async_copy,
    atomic,
    compare,
    convert,
    float_formats,
    floating,
    fp8,
    integer,
)

TABLES = (test_ops_floating, test_ops_forms, test_ops_integer, test_ops_convert, test_ops_atomic)


def same(_e: Any, value: Any, *_: Any) -> Any:
    return value


def nearest(original: Callable[..., Any]) -> Callable[..., Any]:
    """Rounds to nearest where something else was asked for."""
    return lambda e, op, args, mode: floating._nearest(e, op, args)


def no_carry(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda e, op, a, b, carry, ins, write=True: original(e, op, a, b, None, ins, write)


def larger(original: Callable[..., Any]) -> Callable[..., Any]:
    """min and max of atomics exchanged."""
    return lambda op, *rest: original({"min": "max", "max": "min"}.get(op, op), *rest)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any], tuple[str, ...]]] = {
    "add.rz.f32": (floating, "directed", nearest, ("add.rz.f32", "mul.rz.f32")),
    "fma.rm.f64": (floating, "directed", nearest, ("fma.rm.f64", "div.rm.f64")),
    "ftz of operands and results": (float_formats, "flush", lambda _: same, ("mul.rn.ftz.f32x2", "fma.rn.ftz.f32x2")),
    "sat": (float_formats, "saturate", lambda _: same, ("add.rn.sat.f32", "fma.rn.sat.f32")),
    "canonical NaN": (float_formats, "canonical", lambda _: same, ("max.ftz.f32 $d, $a, $b;",)),
    "carry": (integer, "set_carry", no_carry, ("addc.u32", "subc.cc.u64")),
    "bf16 cut off": (float_formats, "to_bfloat", lambda f: lambda e, a, mode: f(e, a, "rz"), ("add.rn.bf16 ", "cvt.rn.bf16.f32")),
    "eight bits": (fp8, "encode", lambda f: lambda e, a, name: e.bxor(f(e, a, name), e.const(1, "i32")), ("e4m3x2.f32",)),
    "atomic minimum": (helpers, "combine", larger, ("atom.shared.min.u32", "atom.global.min.noftz.f16")),
}  # fmt: skip


def cases(texts: tuple[str, ...]) -> list[Case]:
    """The first case of the tables for each text."""
    every = [case for table in TABLES for case in table.CASES]
    return [next(case for case in every if text in case.text) for text in texts]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, attribute, fault, texts = FAULTS[name]
    original = getattr(module, attribute)
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))  # what was compiled by the sound compiler must not answer
    for other in (float_formats, floating, convert, compare, integer, fp8, atomic, async_copy, helpers):
        if getattr(other, attribute, None) is original:
            monkeypatch.setattr(other, attribute, fault(original))
    if name == "bf16 cut off":
        monkeypatch.setattr(floating, "narrow", lambda e, a, t, mode="rn": float_formats.to_bfloat(e, a, mode))
        monkeypatch.setattr(convert, "narrow", floating.narrow)
    for case in cases(texts):
        kept = tuple(i.copy() for i in case.inputs)
        with pytest.raises(AssertionError, match="wrong"):
            check(Case(case.text, case.out, tuple(i.copy() for i in kept), lambda *_, c=case, k=kept: c.want(*k)))


def test_the_sound_compiler_passes_them() -> None:
    for case in cases(tuple(text for _, _, _, texts in FAULTS.values() for text in texts)):
        kept = tuple(i.copy() for i in case.inputs)
        check(Case(case.text, case.out, tuple(i.copy() for i in kept), lambda *_, c=case, k=kept: c.want(*k), case.tolerance))
