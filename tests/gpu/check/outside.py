"""Others' programs, from a checkout of theirs (--checkout): NVIDIA's CUDA samples, or lupine's regression programs.

They are compiled here, run natively, and with ours where they pass natively. A row for each that then does not pass, and one for each link.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine import ROOT, capability
from parts import Check
from report import MISSING, NOT_RUN, OK, STOPPED, TOLD, WRONG, Row

RUN_LIMIT = 60.0  # seconds for one program
BUILD_SHARE = 0.5  # of the time that is left
PACKAGES = ("nvidia/cu13", "nvidia/cudnn")  # where Python's packages have libraries that the toolkit has not

RESULTS = {"unsupported": STOPPED, "waived": STOPPED, "not run": NOT_RUN}  # of what passes natively

Commands = dict[str, list[list[str]]]  # of each program


def outside(check: Check) -> Iterator[Row]:
    if check.checkout is None:
        return
    if not check.machine.nvcc:
        yield Row("outside", check.checkout.name, "", MISSING, "no nvcc on this machine")
        return
    os.environ.setdefault("GPUVIRT_LIB_DIR", str(check.machine.lib))
    sys.path.append(str(ROOT))
    try:
        compiled, commands = build(check, check.checkout.resolve(), check.runs.folder / "outside")
    except Exception as error:  # CMake's, of the checkout
        yield Row("outside", check.checkout.name, "", NOT_RUN, f"it cannot be built: {error}"[-600:])
        return
    if not commands:
        yield Row("outside", check.checkout.name, "", NOT_RUN, "none of its programs was compiled within the time")
        return
    passed = list(commands)
    for link in ("native", *check.of(["shm"])):
        wanted = passed
        found = dict(verdicts(check, commands, wanted, link))
        passed = [name for name in wanted if found[name][0] == "passed"]
        counts = Counter(verdict for verdict, _ in found.values())
        wrong = sum(counts[verdict] for verdict in ("wrong", "crashed", "timed out"))
        figures: dict[str, object] = {"compiled": compiled} if link == "native" else {}
        yield Row("outside", check.checkout.name, link, WRONG if wrong and link != "native" else OK, "", figures | {"run": len(found), **counts})
        for name in wanted:
            verdict, cause = found[name]
            if verdict != "passed":
                result = TOLD if link == "native" else RESULTS.get(verdict, WRONG)
                yield Row("outside", name, link, result, f"{verdict}: {cause}"[:300])


def build(check: Check, checkout: Path, work: Path) -> tuple[int, Commands]:
    """How many programs there are compiled, and what runs each."""
    from tests.outside import rival, samples
    from tests.outside.toolkit import merge

    work.mkdir(parents=True, exist_ok=True)
    assert check.machine.nvcc
    places = [Path(check.machine.nvcc).resolve().parents[1], *(Path(folder) / name for folder in sys.path for name in PACKAGES)]
    architecture = "90" if check.machine.chained else capability()
    code = f"{'compute' if check.machine.chained else 'sm'}_{architecture}"
    toolkit = merge(work, [place for place in places if place.is_dir()], architecture, code)
    limit = check.report.left() * BUILD_SHARE
    if (checkout / "Samples").is_dir():
        known = samples.prepare(checkout, work, None, toolkit)
        chosen = [sample for sample in samples.find(checkout) if sample.name in known.built_by and check.wants(sample.name)]
        known.build_all(chosen, check.jobs, limit)
        commands = {sample.name: known.commands(sample) for sample in chosen}
    else:
        sources = {name: source for name, source in rival.find(checkout).items() if check.wants(name)}
        (work / "rival").mkdir(exist_ok=True)
        with ThreadPoolExecutor(check.jobs) as threads:
            errors = threads.map(lambda name: rival.compile_program(sources[name], work / "rival" / name, toolkit), sources)
            made = dict(zip(sources, errors, strict=True))
        libraries = f"LD_LIBRARY_PATH={toolkit.libraries}"
        commands = {name: [] if error else [["env", libraries, str(work / "rival" / name)]] for name, error in made.items()}
    commands = {name: lines for name, lines in commands.items() if lines}
    return len(commands), commands


def verdicts(check: Check, commands: Commands, names: list[str], link: str) -> Iterator[tuple[str, tuple[str, str]]]:
    with ThreadPoolExecutor(check.jobs) as threads:
        yield from zip(names, threads.map(lambda name: judged(check, commands[name], link), names), strict=True)


def judged(check: Check, lines: list[list[str]], link: str) -> tuple[str, str]:
    """The first verdict that is none of a pass."""
    from tests.outside.judging import WAIVED_EXIT, End, judge
    from tests.outside.running import TOLD as SAID

    for line in lines:
        if check.report.left() < 5:
            return "not run", "the time was spent"
        ran = check.run(line, link, RUN_LIMIT, check.report.left())
        verdict, cause = judge(End(ran.code, ran.out, SAID.sub("", ran.err), ran.seconds), WAIVED_EXIT)
        if verdict != "passed":
            return verdict, cause
    return "passed", ""
