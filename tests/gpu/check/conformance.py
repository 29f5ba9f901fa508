"""The conformance programs: what the driver itself says to them, then what ours says to each case that the driver does as expected."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from machine import ROOT, driver_headers, unpack_wheels
from parts import Check, at_once
from report import MISSING, NOT_RUN, OK, STOPPED, TOLD, WRONG, Row

PROGRAMS = ROOT / "tests" / "conformance" / "programs"
RUNTIME = ROOT / "tests" / "conformance" / "runtime"
FLAGS = ("-std=c++17", "-O1", "-pthread")
# Seconds for the cases of one program; that much more for every four programs beside it: contexts are made one after the other.
CASES_LIMIT = 30.0
ALONE = {
    "contexts",
    "graph_memory",
    "memory",
    "pools",
    "virtual_memory",
}  # look at the device's free memory; contexts: makes many, one process at a time
# The runtime's cases that need kernels to reach pinned memory whatever structure its address lies in: not where the driver chooses addresses.
NOT_BY_THE_DRIVER = {"nested_pointers", "nested_pointers_on_the_device"}


def conformance(check: Check) -> Iterator[Row]:
    """A row for each program and link, one for each case that is not as the program expects."""
    compiler, headers = shutil.which("c++") or shutil.which("g++"), driver_headers()
    if headers is None:
        unpack_wheels()
        headers = driver_headers()
    subjects = [source for source in sorted(PROGRAMS.glob("*.cpp"))[: 2 if check.small else None] if check.wants(source.stem)]
    lines: dict[Path, list[str]] = {}
    if compiler and headers:
        flags = [*FLAGS, "-w", "-isystem", str(headers)]
        lines |= {source: [compiler, *flags, str(source), "-Wl,-z,lazy", f"-L{check.machine.lib}", "-l:libcuda.so.1"] for source in subjects}
    else:
        lacks = "no C++ compiler on this machine" if headers else "no cuda.h of this version: make gpu-wheels brings it"
        yield Row("conformance", "driver API", "", MISSING, lacks)
    if check.machine.nvcc:
        flags = ["-O1", "-std=c++17", "-cudart", "static"]
        lines |= {
            source: [check.machine.nvcc, *flags, str(source)]
            for source in sorted(RUNTIME.glob("*.cu"))[: 1 if check.small else None]
            if check.wants(source.stem)
        }
    yield from at_once(check, [partial(program, check, source, line) for source, line in lines.items() if source.stem not in ALONE])
    for source, line in lines.items():
        if source.stem in ALONE:
            yield from program(check, source, line)


def program(check: Check, source: Path, compile_line: list[str]) -> Iterator[Row]:
    kind = "runtime " if source.suffix == ".cu" else ""
    name, target = kind + source.stem, check.runs.folder / f"conformance-{kind.strip()}{source.stem}"
    built = subprocess.run([*compile_line, "-o", str(target)], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        yield Row("conformance", name, "", NOT_RUN, f"it cannot be compiled: {(built.stdout + built.stderr).strip()[:200]}")
        return
    names = re.findall(r"^(?:COLD_)?(?:HINT_)?CASE\((\w+)", source.read_text(), re.MULTILINE)
    names = [case for case in names if not (kind and case in NOT_BY_THE_DRIVER)]
    native, _ = run_cases(check, target, names, "native")
    if not native:
        yield Row("conformance", name, "", NOT_RUN, "the time was spent")
        return
    yield from rows(name, "native", native, {})
    for link in check.of(["shm"]):
        ours, said = run_cases(check, target, names, link)
        yield from rows(name, link, ours, native, said)


def run_cases(check: Check, program: Path, names: list[str], link: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What each case said: "ok", "not here: ...", or what was not so.

    On the driver itself a case goes on and tells all that is not so; with ours a program ends at the first case that fails, and is run again for
    those behind it.
    """
    found: dict[str, str] = {}
    refused: dict[str, list[str]] = {}
    left, flags = list(names), ["--go-on"] if link == "native" else []
    while left and check.report.left() > 5:
        ran = check.run([str(program), *flags, *left], link, CASES_LIMIT * (1 + check.jobs // 4), check.report.left())
        for line in ran.out.splitlines():
            told = re.match(r"(\w+)(?:: | )(.*)", line)
            if told and told[1] in left:
                found[told[1]] = f"{found[told[1]]}; {told[2]}" if told[1] in found else told[2]
        rest = [case for case in left if case not in found]
        failed = [case for case in left if case in found and not as_expected(found[case])] if not flags else []
        if rest and not failed:  # it ended, or was ended, without a word on this one
            found[rest[0]] = ran.why()
            failed = rest[:1]
        if failed:
            refused[failed[0]] = ran.refused()
        left = left[left.index(failed[0]) + 1 :] if failed else []
    return found, refused


def as_expected(said: str) -> bool:
    return said == "ok" or said.startswith("not here")


def rows(name: str, link: str, found: dict[str, str], native: dict[str, str], refused: dict[str, list[str]] | None = None) -> Iterator[Row]:
    said_ok = sum(said == "ok" for said in found.values())
    figures = {"cases": len(found), "ok": said_ok, "not here": sum(said.startswith("not here") for said in found.values())}
    wrong = {case: said for case, said in found.items() if not as_expected(said) and (link == "native" or as_expected(native.get(case, "")))}
    stopped = {case: calls for case, calls in (refused or {}).items() if calls and case in wrong}
    right = link == "native" or not set(wrong) - set(stopped)
    yield Row("conformance", name, link, OK if right else WRONG, "", figures)
    for case, said in wrong.items():
        if link == "native":
            yield Row("conformance", f"{name}/{case}", link, TOLD, f"the driver: {said}"[:2000])
        elif case in stopped:
            yield Row("conformance", f"{name}/{case}", link, STOPPED, f"needs {', '.join(stopped[case][:4])}: {said}"[:400])
        else:
            yield Row("conformance", f"{name}/{case}", link, WRONG, said[:400])
    for case, said in found.items():
        if link != "native" and case in native and not as_expected(native[case]):
            both = "the same" if said == native[case] else f"ours: {said}; the driver: {native[case]}"
            yield Row("conformance", f"{name}/{case}", link, TOLD, both[:400])
        elif link != "native" and said != native.get(case) and as_expected(said) and as_expected(native.get(case, "")):
            yield Row("conformance", f"{name}/{case}", link, TOLD, f"ours: {said}; the driver: {native.get(case)}"[:400])
