"""What generated code knows of its warp: the fields of struct soft_warp, and values computed once at the start of a function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from gpuvirt.soft import abi
from gpuvirt.soft.codegen.ir_builder import Builder, ModuleText, Val
from gpuvirt.soft.ptx.block_shape import Shape, full_warps, is_class, many_warps, warps_of
from gpuvirt.soft.ptx.layout import Layout
from gpuvirt.soft.ptx.module import Func
from gpuvirt.soft.ptx.types import INT_BITS, LANES

CHANGING = ("ctaid", "warp", "first_thread", "lanes", "local")  # fields that differ from warp to warp


class WarpState(Builder):
    """A function under translation, as far as its warp and its block shape go."""

    def __init__(self, module: ModuleText, func: Func, layout: Layout, shape: Shape, loops: bool) -> None:
        super().__init__(module)
        self.func = func
        self.layout = layout
        self.shape = shape
        self.loops = loops  # the entry runs all warps of several blocks (warp_loop.py)
        self.allocas: list[str] = []
        self.before: list[str] = []  # with loops: what comes before the first warp
        self.prologue: list[str] = []
        self.asks_local = False  # with loops: the code reads where the warp's local memory is
        self.fields: dict[str, Val] = {}
        self.lead = False  # what is computed is one lane's value, from which others follow

    def field(self, name: str, t: str, index: int = 0) -> Val:
        """A field of struct soft_warp; loaded once, at the function's start."""
        key = f"{name}{index}"
        found = self.fields.get(key)
        if found is None and self.loops:
            found = self._changing(name, index)
        if found is None:
            offset = abi.OFFSETS[name] + index * INT_BITS[t] // 8
            lines = self.before if self.loops else self.prologue
            # A device function may be put into the kernel's loop over warps.
            same = "" if name in CHANGING and not self.func.is_kernel else ", !invariant.load !0"
            lines.append(f"  %w.{key}.p = getelementptr i8, ptr %w, i64 {offset}")
            lines.append(f"  %w.{key} = load {t}, ptr %w.{key}.p{same}")
            found = self.fields[key] = Val(f"%w.{key}", t)
        return found

    def _changing(self, name: str, index: int) -> Val | None:
        """A field that differs from warp to warp; None for others."""
        if name not in CHANGING:
            return None
        if name == "local":
            self.asks_local = True
        if not many_warps(self.shape) and name in ("warp", "first_thread"):
            return self.const(0, "i32")
        if name == "lanes" and full_warps(self.shape):
            return self.const(-1, "i32")
        if name == "lanes" and not many_warps(self.shape):
            return self.const((1 << math.prod(self.shape)) - 1, "i32")
        return Val(f"%run.{name}{index if name == 'ctaid' else ''}", "i64" if name == "local" else "i32")

    def threads(self, axis: int) -> Val:
        """How many threads the block has along x, y or z."""
        return self.field("ntid", "i32", axis) if self.shape[axis] < 0 else self.const(self.shape[axis], "i32")

    def warps(self) -> Val:
        """How many warps the block has."""
        return self.field("warps", "i32") if is_class(self.shape) else self.const(warps_of(self.shape), "i32")

    def once(self, key: str, text: str, t: str, v: bool = False) -> Val:
        """A value computed once in the function's prologue (from fields and constants)."""
        found = self.fields.get(key)
        if found is None:
            (self.allocas if text.startswith("alloca") else self.prologue).append(f"  %{key} = {text}")
            found = self.fields[key] = Val(f"%{key}", t, v)
        return found

    def alloca(self, text: str) -> Val:
        """Stack memory for the whole call."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {text}")
        return Val(name, "ptr")

    @contextmanager
    def aside(self) -> Iterator[list[str]]:
        """Within it, code is emitted into the list that it gives, the body of a helper function; nothing in it may be computed in the prologue."""
        before = self.lines, self._splats, self._casts, len(self.prologue), len(self.allocas)
        self.lines, self._splats, self._casts = [], {}, {}
        yield self.lines
        self.lines, self._splats, self._casts = before[:3]
        assert before[3:] == (len(self.prologue), len(self.allocas))

    def shared_base(self) -> Val:
        """What shared addresses are counted from, a generic address."""
        return self.field("window" if self.layout.names_blocks else "shared", "i64")

    def in_own_block(self, offset: Val) -> Val:
        """The shared address of what lies so far behind the beginning of the block's own shared memory, 32 or 64 bits."""
        if not self.layout.names_blocks:
            return offset
        rank = self.resize(self.field("rank", "i32"), offset.t)
        return self.add(self.shl(rank, self.const(abi.RANK_SHIFT, offset.t)), offset)

    def local_base(self) -> Val:
        """The generic address of each lane's local memory."""
        base, stride = self.field("local", "i64"), self.field("local_stride", "i64")
        found = self.fields.get("lbase")
        if found is None:
            lanes = self.lanes(range(LANES), "i64").s
            v = f"<{LANES} x i64>"
            self.prologue += [
                f"  %lb0 = insertelement {v} poison, i64 {stride.s}, i32 0",
                f"  %lb1 = shufflevector {v} %lb0, {v} poison, <{LANES} x i32> zeroinitializer",
                f"  %lb2 = mul {v} %lb1, {lanes}",
                f"  %lb3 = insertelement {v} poison, i64 {base.s}, i32 0",
                f"  %lb4 = shufflevector {v} %lb3, {v} poison, <{LANES} x i32> zeroinitializer",
                f"  %lbase = add {v} %lb2, %lb4",
            ]
            found = self.fields["lbase"] = Val("%lbase", "i64", True)
        return found

    def lane_ids(self) -> Val:
        return self.lanes(range(LANES), "i32")
