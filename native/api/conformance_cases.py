"""Which functions the conformance programs observe, read from their CASE lines: no build is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from function_spec import Function, SpecError

# CASE(name, "cuFunction", ...); COLD_ and HINT_: see tests/conformance/programs/conformance.h.
CASE = re.compile(r'^(?:COLD_)?(HINT_)?CASE\((\w+),((?:\s*"\w+",?)+)\)', re.MULTILINE)
BEGINNING = re.compile(r"^(?:COLD_)?(?:HINT_)?CASE\(.*", re.MULTILINE)

Observers = dict[str, list[str]]  # a function's "program/case", those that see only what it refuses marked


@dataclass(frozen=True)
class Case:
    program: str
    name: str
    functions: tuple[str, ...]
    hint: bool  # nothing of its functions can be seen but what they refuse


def read(folder: Path) -> list[Case]:
    """The cases of all programs in `folder`."""
    found: list[Case] = []
    for path in sorted(folder.glob("*.cpp")):
        text = path.read_text()
        matches = list(CASE.finditer(text))
        unread = {m.start() for m in BEGINNING.finditer(text)} - {m.start() for m in matches}
        if unread:
            line = text.count("\n", 0, min(unread)) + 1
            raise SpecError(f'{path.name}:{line}: not of the form CASE(name, "cuFunction", ...)')
        found += [Case(path.stem, m[2], tuple(re.findall(r'"(\w+)"', m[3])), bool(m[1])) for m in matches]
    return found


def observers(folder: Path, functions: list[Function]) -> Observers:
    """The cases that observe each function.

    Raises:
        SpecError: a case names what is no function, or one that is not supported; two cases of a program have one name.
    """
    known = {f.base: f for f in functions}
    found: Observers = {}
    problems: list[str] = []
    names: set[str] = set()
    for case in read(folder):
        name = f"{case.program}/{case.name}"
        if name in names:
            problems.append(f"{name}: there are two of it")
        names.add(name)
        for function in case.functions:
            if function not in known:
                problems.append(f"{name}: {function} is no function of the driver API")
            elif not known[function].supported:
                problems.append(f"{name}: {function} is not supported")
            else:
                found.setdefault(function, []).append(name + (" †" if case.hint else ""))
    if problems:
        raise SpecError("\n".join(problems))
    return found
