"""Detection of misaligned accesses at run time, at low cost.

Where the alignment of an address depends on the kernel's parameters alone (analysis/alignment.py), these are looked at once a launch, outside of the
code: what it takes for granted is listed (`ModuleText.needs`), and a launch whose parameters break it gets other code for the kernel, *careful* code,
that tests the addresses where the accesses are (which may not happen after all). Addresses that are made in ways not followed are always tested: one
that is the same in all lanes, or has a pattern, at the end of its basic block, those of lanes that differ where the access is. What runs when such a
test fails looks exactly, at the lanes that take part; it is out of the way.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuvirt.soft.analysis.alignment import LOCAL_BITS, NOTHING, zeros_of
from gpuvirt.soft.codegen.context import AddressCheck, Context
from gpuvirt.soft.codegen.ir_builder import Val
from gpuvirt.soft.ptx.parser import Operand, Reg
from gpuvirt.soft.ptx.types import LANES

_SPACES = {"shared": 1, "local": 2}


def require(e: Context, base: Operand, value: Val | None, offset: int, size: int, space: str, only: int = -1, now: bool = False) -> None:
    """The lanes that execute, and are in `only`, access `size` bytes at value + offset, in the space's own terms.

    Args:
        value: of `base`; for a register with a pattern it may be lane 0's. None: a register that is kept by groups of lanes.
        now: the test must come before the access.
    """
    if space == "local":
        size = min(size, 1 << LOCAL_BITS)
    bits = size.bit_length() - 1
    known = e.alignment.of(base) or NOTHING
    if min(known.zeros, zeros_of(offset)) >= bits:
        for root in known.roots:
            if root.shift < bits:
                place = next(p.offset for p in e.func.params if p.name == root.name) + root.offset
                e.m.needs[place] = max(e.m.needs.get(place, 1), size >> root.shift)
        return
    if value is None:
        assert isinstance(base, Reg)
        value = e.put_together(base.name)
    steps = e.an.affine.get(base.name) if isinstance(base, Reg) and not value.v else None
    if steps is not None and any(s % size for s in steps):
        value = e.add(e.splat(value), e.lanes(steps, value.t))
    if offset % size:
        value = e.add(value, e.const(offset % size, value.t))
    number = _SPACES.get(space, 0)
    if value.v:
        _at_once(e, value, size, number, only)
        return
    mask = e.mask if only == -1 else e.band(e.mask, e.mask_of(e.const(only, "i32")))
    e.checks.setdefault((value.s, size, mask.s, _key(e.pred)), AddressCheck(value, size, number, mask, e.pred))
    if now:
        settle(e)


def _key(value: Val | None) -> str:
    return "" if value is None else value.s


def settle(e: Context) -> None:
    """Emits the tests that are due."""
    if not e.checks:
        return
    checks = list(e.checks.values())
    e.checks.clear()
    by_size: dict[int, Val] = {}
    for check in checks:
        low = e.resize(check.value, "i8")
        old = by_size.get(check.size)
        by_size[check.size] = low if old is None else e.bor(old, low)
    bad: Val | None = None
    for size, low in by_size.items():
        part = e.band(low, e.const(size - 1, "i8"))
        bad = part if bad is None else e.bor(bad, part)
    assert bad is not None

    def look() -> None:
        for check in checks:
            address = e.resize(check.value, "i64")
            lanes = check.mask if check.pred is None else e.band(check.mask, e.splat(check.pred))
            odd = e.icmp("ne", e.band(address, e.const(check.size - 1, "i64")), e.const(0, "i64"))
            _end_if(e, e.select(odd, e.bits_of(lanes), e.const(0, "i32")), address, check.size, check.space)

    _seldom(e, e.icmp("ne", bad, e.const(0, "i8")), look)


def _at_once(e: Context, value: Val, size: int, space: int, only: int) -> None:
    key = (value.s, size, e.mask.s, _key(e.pred))
    if key in e.checked:
        return
    e.checked.add(key)
    value = e.let(f"freeze {value.ty} {value.s}", value.t, True)  # what lanes that are off hold may be anything
    n = 8 if value.t == "i64" else 16
    parts = []
    for start in range(0, LANES, n):
        picks = ", ".join(f"i32 {start + i}" for i in range(n))
        parts.append(e.let(f"shufflevector {value.ty} {value.s}, {value.ty} poison, <{n} x i32> <{picks}>", value.t).s)
    vector = f"<{n} x {value.t}>"
    while len(parts) > 1:
        parts = [e.let(f"or {vector} {a}, {b}", value.t).s for a, b in zip(parts[::2], parts[1::2], strict=True)]
    low = e.let(f"and {vector} {parts[0]}, splat ({value.t} {size - 1})", value.t).s
    some = e.let(f"icmp ne {vector} {low}, zeroinitializer", "i1").s
    bits = e.let(f"bitcast <{n} x i1> {some} to i{n}", f"i{n}").s

    def look() -> None:
        taking = e.exec_bits() if only == -1 else e.band(e.exec_bits(), e.const(only, "i32"))
        odd = e.icmp("ne", e.band(value, e.const(size - 1, value.t)), e.const(0, value.t))
        lost = e.band(taking, e.bits_of(odd))
        lane = e.band(e.intrinsic("cttz", lost, tail="i1 false"), e.const(LANES - 1, "i32"))
        _end_if(e, lost, e.resize(e.extract(value, lane), "i64"), size, space)

    _seldom(e, e.let(f"icmp ne i{n} {bits}, 0", "i1"), look)


def _seldom(e: Context, condition: Val, look: Callable[[], None]) -> None:
    n = e.n = e.n + 1
    e.emit(f"br i1 {condition.s}, label %odd{n}, label %even{n}, !prof !1")
    e.lines.append(f"odd{n}:")
    before = dict(e._splats), dict(e._casts)
    look()
    e._splats, e._casts = before
    e.emit(f"br label %even{n}")
    e.lines.append(f"even{n}:")


def _end_if(e: Context, lost: Val, address: Val, size: int, space: int) -> None:
    """Ends the grid if there are such lanes. What does not return costs the rest of the function no register."""
    e.m.declare("soft_misaligned", "declare void @soft_misaligned(ptr, i32, i64, i32, i32) noreturn cold")
    n = e.n = e.n + 1
    e.emit(f"br i1 {e.icmp('ne', lost, e.const(0, 'i32')).s}, label %end{n}, label %on{n}, !prof !1")
    e.lines.append(f"end{n}:")
    e.call("soft_misaligned", "void", [Val("%w", "ptr"), lost, address, e.const(size, "i32"), e.const(space, "i32")])
    e.emit("unreachable")
    e.lines.append(f"on{n}:")
