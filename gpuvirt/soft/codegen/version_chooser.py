"""The entry of a kernel that has two versions (analysis/stride_versions.py): it compares parameters and calls one."""

from __future__ import annotations

from collections.abc import Sequence

from gpuvirt.soft import abi
from gpuvirt.soft.analysis.stride_versions import Guess


def entry(symbol: str, guessed: str, general: str, taken: Sequence[Guess]) -> str:
    """The kernel's entry, which calls one of its two bodies."""
    lines = [f"define void @{symbol}(ptr %w) #0 {{"]
    lines.append(f"  %a = getelementptr i8, ptr %w, i64 {abi.OFFSETS['params']}")
    lines.append("  %p = load ptr, ptr %a, !invariant.load !0")
    before = "true"
    for i, (offset, size, value) in enumerate(sorted({(g.offset, g.bytes, g.value) for g in taken})):
        t = f"i{8 * size}"
        lines.append(f"  %a{i} = getelementptr i8, ptr %p, i64 {offset}")
        lines.append(f"  %x{i} = load {t}, ptr %a{i}, align {size}, !invariant.load !0")
        lines.append(f"  %c{i} = icmp eq {t} %x{i}, {value}")
        lines.append(f"  %y{i} = and i1 {before}, %c{i}")
        before = f"%y{i}"
    lines.append(f"  br i1 {before}, label %guessed, label %general, !prof !2")
    lines += ["guessed:", f"  call void @{guessed}(ptr %w)", "  ret void"]
    lines += ["general:", f"  tail call void @{general}(ptr %w)", "  ret void", "}"]
    return "\n".join(lines)
