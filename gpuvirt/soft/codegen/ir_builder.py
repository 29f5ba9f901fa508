"""LLVM IR as text: values that are either one scalar for the warp or a vector of 32 lanes, and the operations on them.

An operation on a scalar and a vector gives a vector; the scalar is spread. Values are typed by their LLVM element type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from gpuvirt.soft.ptx.types import INT_BITS, LANES

SUFFIX = {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}


class Val:
    """An IR value: text `s`, element type `t`, vector or not, constant or not."""

    __slots__ = ("c", "s", "t", "v")

    def __init__(self, s: str, t: str, v: bool = False, c: bool = False) -> None:
        self.s, self.t, self.v, self.c = s, t, v, c

    @property
    def ty(self) -> str:
        return f"<{LANES} x {self.t}>" if self.v else self.t

    def __repr__(self) -> str:
        return f"{self.ty} {self.s}"


def vec_type(t: str, lanes: int = LANES) -> str:
    return f"<{lanes} x {t}>"


class ModuleText:
    """The IR of one LLVM module under construction: declarations, helper functions, constants, function bodies."""

    def __init__(self, features: frozenset[str] = frozenset()) -> None:
        self.features = features
        self.flush = False  # the processor flushes subnormal numbers (denormal_mode.py)
        self.careful = (
            False  # each access tests whether parameters are pointers to aligned memory; nothing is taken for granted (alignment_checks.py)
        )
        self.preemptible = False  # warps may be preempted before accesses to memory (preemption.py)
        self.needs: dict[int, int] = {}  # what is taken for granted: the parameter at an offset is a multiple of so many bytes
        self.declares: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.functions: list[str] = []
        self.constants: dict[bytes, str] = {}
        self.globals: dict[str, int] = {}

    def snapshot(self) -> dict[str, Any]:
        """The module as it is, to go back to it."""
        return {name: value.copy() if isinstance(value, (dict, list)) else value for name, value in vars(self).items()}

    def restore(self, before: dict[str, Any]) -> None:
        for name, value in before.items():
            own = getattr(self, name)
            if isinstance(own, dict):
                own.clear()
                own.update(value)
            elif isinstance(own, list):
                own[:] = value
            else:
                setattr(self, name, value)

    def declare(self, name: str, text: str) -> None:
        self.declares[name] = text

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """Makes sure that an internal function exists; its text is made on first use."""
        if name not in self.helpers:
            self.helpers[name] = ""
            self.helpers[name] = make()
        return name

    def string(self, text: bytes) -> str:
        """The name of a constant NUL-terminated string."""
        name = self.constants.setdefault(text, f"@.str{len(self.constants)}")
        return name

    def global_slot(self, name: str) -> int:
        """The index in the address table of a module global."""
        return self.globals.setdefault(name, len(self.globals))

    def text(self) -> str:
        parts = list(self.declares.values())
        for data, name in self.constants.items():
            escaped = "".join(f"\\{b:02X}" for b in data + b"\0")
            parts.append(f'{name} = private constant [{len(data) + 1} x i8] c"{escaped}"')
        parts.append(f"@gv_globals = dso_local global [{max(len(self.globals), 1)} x i64] zeroinitializer, align 16")
        parts.extend(self.helpers.values())
        parts.extend(self.functions)
        # A large frame touches each of its pages when it is made, so that it cannot jump over the guard below a stack.
        common = '"prefer-vector-width"="512" "min-legal-vector-width"="512" "probe-stack"="inline-asm"'
        if self.flush:
            common += ' "denormal-fp-math"="preserve-sign,preserve-sign"'
        # Without this LLVM takes the 16 bytes that the calling convention gives and spills vectors across the ends of cache lines.
        if not self.features.isdisjoint(("avx", "avx512f")):
            common = f"alignstack={64 if 'avx512f' in self.features else 32} {common}"
        parts.append(f"attributes #0 = {{ nounwind {common} }}")
        parts.append(f"attributes #1 = {{ nounwind noinline {common} }}")
        parts.append(f"attributes #2 = {{ nounwind alwaysinline {common} }}")
        parts.append("!0 = !{}")
        parts.append('!1 = !{!"branch_weights", i32 1, i32 1000}')  # a branch rarely taken
        parts.append('!2 = !{!"branch_weights", i32 1000, i32 1}')  # a branch mostly taken
        return "\n".join(parts) + "\n"


class Builder:
    """Appends instructions to `lines`; every method returns the result's Val."""

    def __init__(self, module: ModuleText) -> None:
        self.m = module
        self.lines: list[str] = []
        self.n = 0
        self.clean: set[str] = set()  # floats that are not subnormal
        self._splats: dict[tuple[str, str], Val] = {}
        self._casts: dict[tuple[str, str], Val] = {}
        self.in_slots: dict[str, tuple[str, ...]] = {}  # what stack memory that is used again and again holds at this point, the latest use last

    def forget(self) -> None:
        """Called where values computed so far need not dominate the following code."""
        self._splats.clear()
        self._casts.clear()
        self.in_slots.clear()

    def name(self) -> str:
        self.n += 1
        return f"%v{self.n}"

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str, t: str, v: bool = False) -> Val:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Val(name, t, v)

    # Constants -------------------------------------------------------------------------------------------------------------------------------

    def const(self, value: int, t: str, v: bool = False) -> Val:
        """An integer constant, wrapped to the type."""
        bits = INT_BITS[t]
        if bits == 1:
            text = "true" if value & 1 else "false"
        else:
            value &= (1 << bits) - 1
            text = str(value - (1 << bits) if value >> (bits - 1) else value)
        return Val(f"splat ({t} {text})" if v else text, t, v, True)

    def fconst(self, value: float, t: str, v: bool = False) -> Val:
        """A constant, rounded to the type."""
        if t == "half":
            return self.half(value, v)
        if t == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return self.fbits(struct.unpack("<Q", struct.pack("<d", value))[0], t, v)

    def half(self, value: float, v: bool = False) -> Val:
        text = f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
        return Val(f"splat (half {text})" if v else text, "half", v, True)

    def fbits(self, pattern: int, t: str, v: bool = False) -> Val:
        """A float or double constant from a double's bits (which must be exact in the type)."""
        text = f"0x{pattern:016X}"
        return Val(f"splat ({t} {text})" if v else text, t, v, True)

    def f32bits(self, pattern: int) -> Val:
        """A float from its 32 bits, NaN payloads kept."""
        return self.bitcast(self.const(pattern, "i32"), "float")

    def lanes(self, values: Sequence[int], t: str) -> Val:
        """A vector constant."""
        bits = INT_BITS[t]
        texts = [f"{t} {self.const(x, t).s}" for x in values]
        del bits
        return Val(f"<{', '.join(texts)}>", t, True, True)

    # Shape -----------------------------------------------------------------------------------------------------------------------------------

    def splat(self, a: Val) -> Val:
        if a.v:
            return a
        if a.c:
            return Val(f"splat ({a.t} {a.s})", a.t, True, True)
        found = self._splats.get((a.s, a.t))
        if found is None:
            x = self.let(f"insertelement <{LANES} x {a.t}> poison, {a.t} {a.s}, i32 0", a.t, True)
            found = self.let(f"shufflevector {x.ty} {x.s}, {x.ty} poison, <{LANES} x i32> zeroinitializer", a.t, True)
            self._splats[(a.s, a.t)] = found
        return found

    def unify(self, *values: Val) -> tuple[Val, ...]:
        if any(v.v for v in values):
            return tuple(self.splat(v) for v in values)
        return values

    def extract(self, a: Val, lane: int | Val) -> Val:
        """One lane of a vector; a variable lane must be below 32."""
        if not a.v:
            return a
        index = f"i32 {lane.s}" if isinstance(lane, Val) else f"i32 {lane}"
        return self.let(f"extractelement {a.ty} {a.s}, {index}", a.t)

    # Arithmetic ------------------------------------------------------------------------------------------------------------------------------

    def op(self, opcode: str, a: Val, b: Val) -> Val:
        a, b = self.unify(a, b)
        return self.let(f"{opcode} {a.ty} {a.s}, {b.s}", a.t, a.v)

    def add(self, a: Val, b: Val) -> Val:
        return self.op("add", a, b)

    def sub(self, a: Val, b: Val) -> Val:
        return self.op("sub", a, b)

    def mul(self, a: Val, b: Val) -> Val:
        return self.op("mul", a, b)

    def band(self, a: Val, b: Val) -> Val:
        return self.op("and", a, b)

    def bor(self, a: Val, b: Val) -> Val:
        return self.op("or", a, b)

    def bxor(self, a: Val, b: Val) -> Val:
        return self.op("xor", a, b)

    def shl(self, a: Val, b: Val) -> Val:
        return self.op("shl", a, b)

    def lshr(self, a: Val, b: Val) -> Val:
        return self.op("lshr", a, b)

    def ashr(self, a: Val, b: Val) -> Val:
        return self.op("ashr", a, b)

    def fadd(self, a: Val, b: Val) -> Val:
        return self.op("fadd", a, b)

    def fsub(self, a: Val, b: Val) -> Val:
        return self.op("fsub", a, b)

    def fmul(self, a: Val, b: Val) -> Val:
        return self.op("fmul", a, b)

    def fdiv(self, a: Val, b: Val) -> Val:
        return self.op("fdiv", a, b)

    def can_round(self) -> bool:
        """Whether the processor has arithmetic with a rounding mode in the instruction."""
        return "avx512f" in self.m.features

    def round_op(self, op: str, args: Sequence[Val], mode: str) -> Val:
        """add, sub, mul, div, fma (mad) or sqrt of floats or doubles, rounded as rn, rz, rm or rp say; only where can_round."""
        suffix = "ps" if args[0].t == "float" else "pd"
        control = 8 | {"rn": 0, "rm": 1, "rp": 2, "rz": 3}[mode]
        return self.wide_op(f"llvm.x86.avx512.{'vfmadd' if op in ('fma', 'mad') else op}.{suffix}.512", args, f"i32 {control}")

    def wide_op(self, name: str, args: Sequence[Val], tail: str, masked: bool = False) -> Val:
        """One of the processor's own instructions on registers of 512 bits. `tail`: constant arguments behind the operands; masked: then come a
        value for lanes that are off, a mask (all on) and the rounding in force."""
        vector = any(a.v for a in args)
        t = args[0].t
        n = 512 // INT_BITS[t]
        v = f"<{n} x {t}>"
        constants = ([tail] if tail else []) + ([f"{v} poison", f"i{n} -1", "i32 4"] if masked else [])
        kinds = [c.rsplit(" ", 1)[0] for c in constants]
        self.m.declare(name, f"declare {v} @{name}({', '.join([f'<{n} x {a.t}>' for a in args] + kinds)})")
        wide = [self.splat(a) for a in args]
        parts = []
        for start in range(0, LANES if vector else n, n):
            picks = ", ".join(f"i32 {start + i}" for i in range(n))
            pieces = [(w.t, self.let(f"shufflevector {w.ty} {w.s}, {w.ty} poison, <{n} x i32> <{picks}>", w.t).s) for w in wide]
            parts.append(self.let(f"call {v} @{name}({', '.join([f'<{n} x {pt}> {p}' for pt, p in pieces] + constants)})", t).s)
        if not vector:
            return self.let(f"extractelement {v} {parts[0]}, i32 0", t)
        while len(parts) > 1:
            picks = ", ".join(f"i32 {i}" for i in range(2 * n))
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.let(f"shufflevector <{n} x {t}> {a}, <{n} x {t}> {b}, <{2 * n} x i32> <{picks}>", t).s for a, b in pairs]
            n *= 2
        return Val(parts[0], t, True)

    def fneg(self, a: Val) -> Val:
        return self.let(f"fneg {a.ty} {a.s}", a.t, a.v)

    def invert(self, a: Val) -> Val:
        return self.bxor(a, self.const(-1, a.t))

    def imm(self, value: int, like: Val) -> Val:
        return self.const(value, like.t)

    def icmp(self, cond: str, a: Val, b: Val) -> Val:
        a, b = self.unify(a, b)
        return self.let(f"icmp {cond} {a.ty} {a.s}, {b.s}", "i1", a.v)

    def fcmp(self, cond: str, a: Val, b: Val) -> Val:
        a, b = self.unify(a, b)
        return self.let(f"fcmp {cond} {a.ty} {a.s}, {b.s}", "i1", a.v)

    def select(self, c: Val, a: Val, b: Val) -> Val:
        if c.v or a.v or b.v:
            a, b = self.splat(a), self.splat(b)
        return self.let(f"select {c.ty} {c.s}, {a.ty} {a.s}, {b.ty} {b.s}", a.t, a.v)

    def _half_to_float(self, a: Val) -> Val:
        """fpext for machines without F16C, where LLVM would call a library function that is not there."""
        bits = self.cast("zext", self.bitcast(a, "i16"), "i32")
        size = self.band(bits, self.const(0x7FFF, "i32"))
        moved = self.shl(size, self.const(13, "i32"))
        scaled = self.as_int(self.fmul(self.bitcast(moved, "float"), self.fconst(2.0**112, "float")))
        special = self.icmp("uge", size, self.const(0x7C00, "i32"))
        value = self.select(special, self.bor(moved, self.const(0x7F800000, "i32")), scaled)
        sign = self.shl(self.band(bits, self.const(0x8000, "i32")), self.const(16, "i32"))
        return self.bitcast(self.bor(value, sign), "float")

    def _float_to_half(self, a: Val) -> Val:
        """fptrunc to nearest even, likewise."""
        bits = self.as_int(a)
        size = self.band(bits, self.const(0x7FFFFFFF, "i32"))
        # Adding 0.5 puts the last bit of a subnormal half at the end of the float.
        tiny = self.sub(self.as_int(self.fadd(self.bitcast(size, "float"), self.fconst(0.5, "float"))), self.const(0x3F000000, "i32"))
        odd = self.band(self.lshr(size, self.const(13, "i32")), self.const(1, "i32"))
        normal = self.lshr(self.sub(self.add(size, self.add(odd, self.const(0xFFF, "i32"))), self.const(112 << 23, "i32")), self.const(13, "i32"))
        value = self.select(self.icmp("ult", size, self.const(0x38800000, "i32")), tiny, normal)
        value = self.select(self.icmp("uge", size, self.const(0x477FF000, "i32")), self.const(0x7C00, "i32"), value)
        value = self.select(self.icmp("ugt", size, self.const(0x7F800000, "i32")), self.const(0x7FFF, "i32"), value)
        sign = self.band(self.lshr(bits, self.const(16, "i32")), self.const(0x8000, "i32"))
        return self.bitcast(self.cast("trunc", self.bor(value, sign), "i16"), "half")

    def cast(self, kind: str, a: Val, t: str) -> Val:
        if "half" in (a.t, t) and kind in ("fpext", "fptrunc") and "f16c" not in self.m.features:
            if kind == "fpext":
                single = self._half_to_float(a)
                return single if t == "float" else self.cast("fpext", single, t)
            return self._float_to_half(a)
        to = f"<{LANES} x {t}>" if a.v else t
        return self.let(f"{kind} {a.ty} {a.s} to {to}", t, a.v)

    def bitcast(self, a: Val, t: str) -> Val:
        """Reinterprets elements of the same width."""
        if a.t == t:
            return a
        key = (a.s, t)
        found = self._casts.get(key)
        if found is None or found.v != a.v:
            found = self.cast("bitcast", a, t)
            self._casts[key] = found
        if not found.c:
            self._casts.setdefault((found.s, a.t), a)
        return found

    def resize(self, a: Val, t: str, signed: bool = False) -> Val:
        """An integer in another width."""
        have, want = INT_BITS[a.t], INT_BITS[t]
        if have == want:
            return a
        if a.c and not a.v and a.s not in ("true", "false"):
            value = int(a.s)
            return self.const(value if signed else value & ((1 << have) - 1), t)
        return self.cast("trunc" if want < have else "sext" if signed else "zext", a, t)

    def as_int(self, a: Val) -> Val:
        return self.bitcast(a, f"i{INT_BITS[a.t]}")

    def intrinsic(self, name: str, *args: Val, suffix: Sequence[str] | None = None, ret: str | None = None, tail: str = "") -> Val:
        """Calls llvm.<name>.<suffixes>; by default one suffix, the first argument's type. `tail` is literal extra arguments."""
        values = self.unify(*args)
        v = values[0].v
        ret = ret or values[0].t
        full = f"llvm.{name}" + "".join("." + self.suffix(t, v) for t in (suffix if suffix is not None else [values[0].t]))
        rt = f"<{LANES} x {ret}>" if v else ret
        extra = [p.strip().split(" ")[0] for p in tail.split(",") if p.strip()]
        self.m.declare(full, f"declare {rt} @{full}({', '.join([a.ty for a in values] + extra)})")
        arguments = ", ".join([f"{a.ty} {a.s}" for a in values] + ([tail.strip(", ")] if tail else []))
        return self.let(f"call {rt} @{full}({arguments})", ret, v)

    def suffix(self, t: str, v: bool) -> str:
        base = SUFFIX.get(t, t)
        return f"v{LANES}{base}" if v else base

    def call(self, name: str, ret: str, args: Sequence[Val], ret_vector: bool = False, declare: bool = False) -> Val:
        """Calls a function by name; `ret` "void" gives a Val without a name."""
        rt = f"<{LANES} x {ret}>" if ret_vector else ret
        if declare:
            self.m.declare(name, f"declare {rt} @{name}({', '.join(a.ty for a in args)})")
        text = f"call {rt} @{name}({', '.join(f'{a.ty} {a.s}' for a in args)})"
        if ret == "void":
            self.emit(text)
            return Val("", "void")
        return self.let(text, ret, ret_vector)

    def either(self, condition: Val, yes: Callable[[], list[Val]], no: Callable[[], list[Val]]) -> list[Val]:
        """Branches on a scalar condition; the values of the branch that was taken."""
        n = self.n = self.n + 1
        self.emit(f"br i1 {condition.s}, label %either{n}, label %or{n}")
        before = dict(self._splats), dict(self._casts)
        found = []
        for label, way in (("either", yes), ("or", no)):
            self.lines.append(f"{label}{n}:")
            found.append(way())
            self.emit(f"br label %{label}{n}e")
            self.lines.append(f"{label}{n}e:")  # the way may have blocks of its own
            self.emit(f"br label %both{n}")
            self._splats, self._casts = dict(before[0]), dict(before[1])  # what was computed on the way is not known behind it
        self.lines.append(f"both{n}:")
        return [self.let(f"phi {a.ty} [ {a.s}, %either{n}e ], [ {b.s}, %or{n}e ]", a.t, a.v) for a, b in zip(*found, strict=True)]

    # Memory ----------------------------------------------------------------------------------------------------------------------------------

    def pointer(self, address: Val) -> Val:
        return self.cast("inttoptr", address, "ptr")

    def offset(self, base: Val, bytes_: int) -> Val:
        if bytes_ == 0:
            return base
        return self.let(f"getelementptr i8, ptr {base.s}, i64 {bytes_}", "ptr")

    def bits_of(self, mask: Val) -> Val:
        """A vector of i1 as 32 bits."""
        if mask.c and mask.s == "splat (i1 true)":
            return self.const(-1, "i32")
        found = self._casts.get((mask.s, "bits"))
        if found is None:
            found = self.let(f"bitcast <{LANES} x i1> {mask.s} to i32", "i32")
            self._casts[(mask.s, "bits")] = found
            self._casts[(found.s, "mask")] = mask
        return found

    def mask_of(self, bits: Val) -> Val:
        """32 bits as a vector of i1."""
        if bits.c and bits.s == "-1":
            return Val("splat (i1 true)", "i1", True, True)
        found = self._casts.get((bits.s, "mask"))
        if found is None:
            found = self.let(f"bitcast i32 {bits.s} to <{LANES} x i1>", "i1", True)
            self._casts[(bits.s, "mask")] = found
            self._casts[(found.s, "bits")] = bits
        return found
