"""The frameworks that are here, as far as they run: the same numbers as native, time and waits of a step over links of several lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from machine import FRAMEWORKS
from parts import HERE, Check
from report import MISSING, NOT_RUN, OK, STOPPED, WRONG, Row
from runs import Ran

PROGRAMS = {"cupy": "cupy_tests.py", "torch": "torch_tests.py", "jax": "jax_tests.py", "tensorflow": "tf_tests.py"}
NEAR = ("native", "shm", "tcp")
FAR = tuple(f"delay(rtt={rtt},tcp)" for rtt in ("50us", "1ms", "30ms"))
RUN_LIMIT = 90.0  # seconds for one process of one framework
TOLERANCE = {"gpt_amp": 3e-2}  # half precision; all others:
SINGLE = 2e-3
FIGURES = ("images_s", "to_accuracy_s", "epochs", "calls_per_step", "waits_per_step", "s")


def frameworks(check: Check) -> Iterator[Row]:
    """First every framework near by, then the long links, so that what a spent budget leaves out is the least."""
    native: dict[tuple[str, str], dict[str, Any]] = {}
    wanted = [name for name in PROGRAMS if check.wants(name)]
    here = [name for name in wanted if name in check.machine.frameworks]
    for name in wanted:
        if name not in here:
            yield Row("frameworks", FRAMEWORKS[name], "", MISSING, "not installed")
    links = ("native", "shm", FAR[1]) if check.small else (*NEAR, *FAR)
    for group in (["native", *check.of(links[1:3])], check.of(links[3:])):
        for name in here:
            for link in group:
                yield from one(check, name, link, native)


def one(check: Check, name: str, link: str, native: dict[tuple[str, str], dict[str, Any]]) -> Iterator[Row]:
    """All tests of one framework over one link: in one process as long as it lives, and in a new one after a test that broke it."""
    python, label = check.machine.frameworks[name], FRAMEWORKS[name]
    command = [python, str(HERE / "programs" / PROGRAMS[name])]
    listed = check.runs.run([*command, "--list"], "native", 60) if (name, "") not in native else None
    if listed is not None:
        native[name, ""] = {"tests": listed.out.split() if listed.code == 0 else [], "why": listed.why()}
    tests = list(native[name, ""]["tests"])
    if not tests:
        yield Row("frameworks", label, link, NOT_RUN, f"cannot be imported: {native[name, '']['why']}")
        return
    if link != "native":  # what does not run on the machine's own driver says nothing about ours
        tests = [test for test in tests if (name, test) in native]
    if check.small:
        tests = tests[:2]
    while tests:
        if check.report.left() < 5:
            yield from (Row("frameworks", f"{label} {test}", link, NOT_RUN, "the time was spent") for test in tests)
            return
        steps = ["--steps", "5"] if check.small else []
        ran = check.run([*command, "--tests", ",".join(tests), *steps], link, RUN_LIMIT, check.report.left())
        lines = [json.loads(line) for line in ran.out.splitlines() if line.startswith("{")]
        results = {line["test"]: line for line in lines if "ok" in line}
        begun = [line["test"] for line in lines if "begin" in line]
        for test, found in results.items():
            if link == "native" and found["ok"]:
                native[name, test] = found
            yield row(f"{label} {test}", link, test, found, native.get((name, test)), ran)
        broken = [test for test in begun if test not in results]
        if broken or not begun:
            refused = ran.refused()
            result = NOT_RUN if link == "native" else STOPPED if refused else WRONG
            detail = f"needs {', '.join(refused[:4])}: {ran.why()}" if refused else ran.why()
            yield Row("frameworks", f"{label} {broken[0] if broken else '(start)'}", link, result, detail[:300])
        if not begun:
            return
        tests = tests[max(tests.index(test) for test in begun) + 1 :]


def row(label: str, link: str, test: str, found: dict[str, Any], beside: dict[str, Any] | None, ran: Ran) -> Row:
    """One test's line: wrong numbers are wrong, a call that is refused by name stops it."""
    figures = {name: found[name] for name in ("step_ms", *FIGURES) if name in found}
    if not found["ok"]:
        refused = ran.refused()
        if link == "native":
            return Row("frameworks", label, link, NOT_RUN, f"not even natively: {found['error']}")
        detail = f"needs {', '.join(refused[:4])}: {found['error']}" if refused else f"{found['error']} ({ran.why()})"
        return Row("frameworks", label, link, STOPPED if refused else WRONG, detail[:300])
    if link == "native" or beside is None:
        return Row("frameworks", label, link, OK, found.get("data", ""), figures | {"values": found["values"]})
    if "step_ms" in found:
        figures["remote/native"] = found["step_ms"] / beside["step_ms"]
    if "images_s" in found:
        figures["native images_s"] = beside["images_s"]
    allowed = TOLERANCE.get(test, SINGLE)
    pairs = list(zip(found["values"], beside["values"], strict=False))
    close = len(found["values"]) == len(beside["values"]) and all(math.isclose(a, b, rel_tol=allowed, abs_tol=1e-5) for a, b in pairs)
    same = found["values"] == beside["values"]
    detail = "same numbers" if same else f"numbers within {allowed:g}" if close else f"{found['values']} is not {beside['values']}"[:300]
    return Row("frameworks", label, link, OK if close else WRONG, detail, figures | {"values": found["values"]})
