"""The list of supported PTX opcodes in docs/SOFTWARE_GPU.md: `python -m gpuvirt.soft.coverage` rewrites it, with --check it only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuvirt.soft import pipeline  # noqa: F401  registers the opcodes
from gpuvirt.soft.codegen.opcode_handlers import OPCODES
from gpuvirt.soft.ptx.opcodes import FORMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SOFTWARE_GPU.md"
BEGIN, END = "<!-- opcodes: begin -->\n", "<!-- opcodes: end -->\n"
FLOW = ("bra", "brx", "ret")  # the control flow graph's, without emitter functions
SUBJECTS = {
    "integer": "Integer, logic, comparison, moves (add, mul and their like also for floating types)", "floating": "Floating point",
    "transcendental": "Special functions", "convert": "Conversion", "memory": "Memory, ordering, hints", "atomic": "Atomics",
    "video": "Video", "warp": "Warp and barrier", "call": "Calls", "mma": "Matrix", "texture": "Textures",
    "stack": "Stack and exit",
    "async_copy": "Asynchronous copy, mbarrier, clusters (of one block)",
}  # fmt: skip


def _shown(words: frozenset[str]) -> str:
    return " ".join(f".{word}" for word in sorted(words))


def table() -> str:
    """The generated part of the page."""
    subjects: dict[str, list[str]] = {"flow": list(FLOW), **{name: [] for name in SUBJECTS}}
    for name, handler in OPCODES.items():
        if name in FORMS:
            subjects.setdefault(handler.__module__.rsplit(".", 1)[-1], []).append(name)
    lines = [f"{len(FORMS)} opcodes.", ""]
    for subject, names in subjects.items():
        if not names:
            continue
        lines += [f"### {SUBJECTS.get(subject, 'Control flow')}", "", "| opcode | types | modifiers |", "|---|---|---|"]
        lines += [f"| {name} | {_shown(FORMS[name].types)} | {_shown(FORMS[name].mods)} |" for name in sorted(names)]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Writes or compares the page; 1 when it differs."""
    before = PAGE.read_text()
    head, rest = before.split(BEGIN)
    after = head + BEGIN + table() + END + rest.split(END)[1]
    if "--check" in arguments:
        if after != before:
            print(f"{PAGE.name} does not list the opcodes that the compiler has; run python -m gpuvirt.soft.coverage", file=sys.stderr)
        return int(after != before)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
