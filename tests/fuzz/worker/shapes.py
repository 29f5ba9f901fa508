"""The fuzzer's table of commands, from the specification of the wire: what stands where in each body, and what it is to the worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def spec() -> Any:
    """native/api/commands.toml, as the generator of the encoders reads it."""
    sys.path.insert(0, str(ROOT / "native/api"))
    try:
        import command_spec
    finally:
        sys.path.remove(str(ROOT / "native/api"))
    return command_spec.load(ROOT / "native/api/commands.toml")


def role(work: Any, field: Any) -> tuple[str, str]:
    """What a field is to the worker, and the kind of object that it names."""
    for name, pairs in (("FIND", work.find), ("MAKE", [work.make]), ("DESTROY", [work.destroy])):
        for pair in filter(None, pairs):
            if pair[0] == field.name:
                return f"ROLE_{name}", f"KIND_{pair[1].upper()}"
    if field.name == "stream":
        return ("ROLE_STREAM" if work.stream else "ROLE_DESTROY"), "KIND_STREAM"
    by_name = {"device": "ROLE_DEVICE", "kernel": "ROLE_KERNEL", "bulk": "ROLE_BULK"}
    # What a command without generated look-ups names, by the names that the table uses everywhere.
    named = {"event": "KIND_EVENT", "module": "KIND_MODULE", "handle": "KIND_PHYSICAL"}
    if field.name in named:
        return ("ROLE_MAKE" if work.by_hand and not work.find and field.name == "module" else "ROLE_FIND"), named[field.name]
    return by_name.get(field.name, {"bytes": "ROLE_BYTES", "str": "ROLE_TEXT"}.get(field.type, "ROLE_NUMBER")), "N_KINDS"


def rows() -> Iterator[str]:
    """A row of shapes[] (step.c) for each command."""
    widths = {"u32": 4, "i32": 4, "f32": 4, "u64": 8, "bytes": 4, "str": 4}
    for c in spec().commands:
        fields = []
        for f in c.body.fields:
            for i in range(f.count):
                name = f.name if f.count == 1 else f"{f.name}.{i}"
                fields.append(f'{{"{name}", {f.offset + i * widths[f.type]}, {widths[f.type]}, {", ".join(role(c.work, f))}}}')
        context = c.work.context or bool(c.work.stream)
        head = f'"{c.name}", GV_OP_{c.name.upper()}, {int(c.sync)}, {int(context)}, {c.body.fixed}, {len(fields)}'
        yield f"{{{head}, {{{', '.join(fields) or '{0}'}}}}},\n"


def write(folder: Path) -> None:
    """shapes.inc and kinds.inc."""
    (folder / "shapes.inc").write_text("".join(rows()))
    (folder / "kinds.inc").write_text("".join(f"KIND({kind}, {kind.upper()})\n" for kind in spec().objects))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
