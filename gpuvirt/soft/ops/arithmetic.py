"""Arithmetic opcodes that integers and floating-point numbers share: the instruction's type says which of the two it is."""

from __future__ import annotations

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.codegen.opcode_handlers import emits
from gpuvirt.soft.ops import floating, integer
from gpuvirt.soft.ptx.parser import Ins
from gpuvirt.soft.ptx.types import Type

_PACKED = ("f16x2", "bf16x2", "f32x2")


def _is_float(t: Type) -> bool:
    return t.kind in "fh" or t.name in _PACKED


@emits
def add_sub(e: Context, ins: Ins) -> None:
    (floating.arithmetic if _is_float(ins.type) else integer.add_sub)(e, ins)


@emits
def mul_mad(e: Context, ins: Ins) -> None:
    (floating.arithmetic if _is_float(ins.type) else integer.mul_mad)(e, ins)


@emits
def div_rem(e: Context, ins: Ins) -> None:
    (floating.arithmetic if _is_float(ins.type) else integer.div_rem)(e, ins)


@emits
def min_max(e: Context, ins: Ins) -> None:
    (floating.min_max if _is_float(ins.type) else integer.min_max)(e, ins)


@emits
def neg_abs(e: Context, ins: Ins) -> None:
    (floating.neg_abs if _is_float(ins.type) else integer.neg_abs)(e, ins)
