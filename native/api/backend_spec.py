"""Loads backend.toml: the functions of a backend."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path


class BackendSpecError(Exception):
    """The table says something that cannot be."""


@dataclass(frozen=True)
class BackendFunction:
    """A member of struct gv_backend_ops; `arguments` as C declares them."""

    name: str
    result: str
    arguments: tuple[str, ...]
    optional: bool
    doc: str


def split(arguments: str) -> tuple[str, ...]:
    """Arguments of a C prototype; those of a function pointer among them stay together."""
    parts = [""]
    depth = 0
    for c in arguments:
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return tuple(part.strip() for part in parts)


def load(path: Path) -> dict[str, BackendFunction]:
    """Reads and checks the table."""
    found = {}
    for name, entry in tomllib.loads(path.read_text()).items():
        if unknown := entry.keys() - {"is", "optional", "doc"}:
            raise BackendSpecError(f"{path.name}: {name}: unknown key: {sorted(unknown)}")
        match = re.fullmatch(r"(.*?)\s*\((.*)\)", entry.get("is", ""))
        if not match:
            raise BackendSpecError(f"{path.name}: {name}: no function's type: {entry.get('is')}")
        found[name] = BackendFunction(name, match[1], split(match[2]), bool(entry.get("optional")), entry.get("doc", ""))
    return found
