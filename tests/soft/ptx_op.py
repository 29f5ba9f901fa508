"""Runs single PTX instructions over arrays of operands: one thread an element."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from soft.kernels import Kernels

Array = np.ndarray[Any, Any]
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
THREADS = 128


class Case(NamedTuple):
    """`text` with $d for the result and $a, $b, $c, $e for operands; `want` gets the operand arrays and gives the exact result."""

    text: str
    out: Any
    inputs: tuple[Array, ...]
    want: Callable[..., Any]
    tolerance: float = 0.0


def _register(dtype: Any) -> tuple[str, str]:
    """(register type, memory type) of an element."""
    dtype = np.dtype(dtype)
    if dtype.itemsize == 1:
        return "b16", "s8" if dtype.kind == "i" else "u8"
    bits = 8 * dtype.itemsize
    return f"b{bits}", {"i": "s", "u": "u", "f": "b"}[dtype.kind] + str(bits)


def kernel_text(text: str, out: Any, inputs: tuple[Array, ...], uniform: bool = False) -> str:
    """A kernel `k` that loads the operands, executes `text` and stores $d; `uniform`: all threads of a block take the same element."""
    names = "abce"[: len(inputs)]
    params = ", ".join(f".param .u64 p{n}" for n in ["d", *names])
    lines = [f".visible .entry k({params}, .param .u32 n)", "{", ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %q<9>; .reg .b16 %h<9>;"]
    lines.append("mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;" + ("" if uniform else " mad.lo.s32 %r0, %r0, %r1, %r2;"))
    lines.append("ld.param.u32 %r1, [n]; setp.ge.u32 %p0, %r0, %r1; @%p0 bra DONE;")
    for name, dtype in zip(["d", *names], [out, *(i.dtype for i in inputs)], strict=True):
        register, memory = _register(dtype)
        lines.append(f".reg .{register} %x{name}; .reg .b64 %a{name}; ld.param.u64 %a{name}, [p{name}];")
        lines.append(f"mad.wide.u32 %a{name}, %r0, {np.dtype(dtype).itemsize}, %a{name};")
        if name != "d":
            lines.append(f"ld.global.{memory} %x{name}, [%a{name}];")
    lines.append(re.sub(r"\$([abcde])", r"%x\1", text))
    lines.append(f"st.global.{_register(out)[1].replace('s', 'b').replace('u', 'b')} [%ad], %xd;")
    lines.append("DONE: ret;\n}")
    return HEAD + "\n".join(lines)


def run(text: str, out: Any, *inputs: Array, uniform: bool = False) -> Array:
    """The results of an instruction for each row of operands."""
    inputs = tuple(np.ascontiguousarray(i) for i in inputs)
    count = len(inputs[0])
    result = np.zeros(count, out)
    kernels = Kernels(kernel_text(text, out, inputs, uniform))
    kernels.launch("k", count if uniform else -(-count // THREADS), 32 if uniform else THREADS, result, *inputs, np.uint32(count))
    return result


def product(*lists: Array) -> tuple[Array, ...]:
    """All combinations of the lists' elements, as columns."""
    rows = list(itertools.product(*(range(len(v)) for v in lists)))
    return tuple(v[[r[i] for r in rows]] for i, v in enumerate(lists))


def bits(a: Array) -> Array:
    return a.view(f"u{a.dtype.itemsize}")


_INSTRUCTION = re.compile(r"(?<![\w.%])([a-z][a-z0-9]*)((?:\.[A-Za-z0-9_:]+)*)(?=[\s;])")


def tiers(cases: list[Any], text: Callable[[Any], str] = lambda c: c.text) -> list[Any]:
    """Parameters for pytest: a case that has an opcode with a modifier for the first time is always run, the others by `make test-long`."""
    import pytest

    seen: set[tuple[str, str]] = set()
    out = []
    for case in cases:
        own = {(op, mod) for op, rest in _INSTRUCTION.findall(text(case)) for mod in rest.split(".")}
        out.append(pytest.param(case, id=text(case)[-150:], marks=[] if own - seen else [pytest.mark.long]))
        seen |= own
    return out


def check(case: Case, uniform: bool = False) -> None:
    """Runs a case; floating results must have equal bits (any NaN is a NaN) or lie within the case's relative tolerance."""
    got = run(case.text, case.out, *case.inputs, uniform=uniform)
    with np.errstate(all="ignore"):
        want = np.asarray(case.want(*case.inputs)).astype(case.out)
    if got.dtype.kind == "f":
        both_nan = np.isnan(got) & np.isnan(want)
        if case.tolerance:
            with np.errstate(all="ignore"):
                wide, exact = got.astype(np.float64), want.astype(np.float64)
                good = both_nan | (wide == exact) | (np.abs(wide - exact) <= case.tolerance * np.maximum(np.abs(exact), 1e-37))
        else:
            good = both_nan | (bits(got) == bits(want))
            if ".ftz" in case.text:  # what rounds up to the least normal number was below it before: the processor flushes that
                good |= (got == 0) & (np.abs(want) == np.float32(2.0**-126)) & ((np.signbit(got) == np.signbit(want)) | (".sat" in case.text))
    else:
        good = got == want
    wrong = np.flatnonzero(~good)
    shown = [(*(v[i] for v in case.inputs), "->", got[i], "not", want[i]) for i in wrong[:4]]
    assert not len(wrong), f"{case.text}: {len(wrong)} of {len(got)} wrong: {shown}"
