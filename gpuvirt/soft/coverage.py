"""The list of supported PTX opcodes in docs/SOFTWARE_GPU.md: `python -m gpuvirt.soft.coverage` rewrites it, with --check it only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuvirt.soft.ptx.opcodes import OPCODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SOFTWARE_GPU.md"
BEGIN, END = "<!-- opcodes: begin -->\n", "<!-- opcodes: end -->\n"


def _shown(words: frozenset[str]) -> str:
    return " ".join(f".{word}" for word in sorted(words))


def table() -> str:
    """The generated part of the page."""
    rows = [row for row in OPCODES.values() if not row.name.startswith("$")]
    lines = [f"{len(rows)} opcodes.", ""]
    for subject in dict.fromkeys(row.subject for row in rows):
        lines += [f"### {subject}", "", "| opcode | what it does | types | modifiers |", "|---|---|---|---|"]
        for row in sorted((row for row in rows if row.subject == subject), key=lambda row: row.name):
            doc = row.doc.replace("|", "\\|")
            lines.append(f"| {row.name} | {doc} | {_shown(row.types)} | {_shown(row.modifiers)} |")
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
