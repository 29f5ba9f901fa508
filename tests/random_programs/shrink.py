"""Makes a failing program smaller: leaves out operations, then makes what they work on smaller; prints what is left as steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import c_build
from random_programs.lowering import Op
from random_programs.runner import Failure, Program, Target, run

FOLDER = c_build.STORE / "random_programs"
SIZES = ("size", "count", "n", "rows", "m", "at", "from_at")


class Shrinker:
    def __init__(self, fails: Callable[[Program], bool], seconds: float) -> None:
        self.fails, self.until = fails, time.monotonic() + seconds
        self.tries = 0

    def holds(self, program: Program) -> bool:
        if time.monotonic() > self.until:
            return False
        self.tries += 1
        return self.fails(program)

    def fewer_operations(self, program: Program) -> Program:
        part = max(1, len(program.ops) // 2)
        while True:
            start = 0
            removed = False
            while start < len(program.ops):
                smaller = replace(program, ops=program.ops[:start] + program.ops[start + part :])
                if self.holds(smaller):
                    program, removed = smaller, True
                else:
                    start += part
            if (part == 1 and not removed) or time.monotonic() > self.until:
                return program
            part = max(1, part // 2)

    def replaced(self, program: Program, i: int, op: Op) -> Program:
        smaller = replace(program, ops=[*program.ops[:i], op, *program.ops[i + 1 :]])
        return smaller if self.holds(smaller) else program

    def simpler_operations(self, program: Program) -> Program:
        if program.own_context and self.holds(smaller := replace(program, own_context=False)):
            program = smaller
        for threads in range(1, program.threads):
            if self.holds(smaller := replace(program, threads=threads)):
                program = smaller
                break
        for i in range(len(program.ops)):
            op = program.ops[i]
            if op.kind == "graph":
                for inner in list(op.args["ops"]):
                    kept = [other for other in program.ops[i].args["ops"] if other is not inner]
                    program = self.replaced(program, i, replace(program.ops[i], args=op.args | {"ops": kept}))
            for name in SIZES:
                value = program.ops[i].args.get(name)
                for smaller_value in dict.fromkeys((0 if "at" in name else 1, (value or 0) // 2 // 4 * 4)):
                    if isinstance(value, int) and 0 <= smaller_value < value and op.kind != "write_value":
                        op = program.ops[i]
                        program = self.replaced(program, i, replace(op, args=op.args | {name: smaller_value}))
        return program


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 120) -> Program:
    shrinker = Shrinker(fails, seconds)
    program = shrinker.fewer_operations(program)
    program = shrinker.simpler_operations(program)
    return shrinker.fewer_operations(program)


def fails_at(target: Target, repeat: int, silent: int = 20) -> Callable[[Program], bool]:
    return lambda program: run(target, [program.lowered().text], repeat, silent)[1] is not None


def differences(expected: bytes, actual: bytes) -> str:
    wrong = [i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b]
    if not wrong:
        return "the bytes are right now"
    first, last = wrong[0], wrong[-1]
    shown = slice(first, first + 16)
    return f"{len(wrong)} bytes of {first} to {last}: {actual[shown].hex(' ')} instead of {expected[shown].hex(' ')}"


def explained(program: Program, failure: Failure) -> str:
    """The program's steps, and at its line what is wrong."""
    lowered = program.lowered(keep=True)
    lines = [f"seed {program.seed}, {program.threads} threads{', a context of its own' if program.own_context else ''}: {failure.text}"]
    for i, text in enumerate(lowered.text.splitlines()[1:-1]):
        here = f"   <-- {differences(lowered.expected.get(i, b''), failure.actual)}" if i == failure.line else ""
        lines.append(f"{i:5} {text}{here}")
    return "\n".join(lines)


def to_json(program: Program) -> str:
    return json.dumps(asdict(program))


def from_json(text: str) -> Program:
    given: dict[str, Any] = json.loads(text)
    return Program(given["seed"], given["threads"], given["own_context"], [Op(**op) for op in given["ops"]], tuple(given["without"]))


def keep(program: Program, failure: Failure) -> Path:
    """Keeps a program in build-tests, for `--replay`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"seed-{program.seed}.json"
    path.write_text(to_json(program))
    path.with_suffix(".txt").write_text(explained(program, failure) + "\n")
    return path
