"""The parts of the check that need no framework: programs, differences between drivers, copies and launches, a connection that is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from machine import ROOT, Machine, clean_environment
from proxy import Proxy
from report import MISSING, NOT_RUN, OK, STOPPED, TOLD, WRONG, Report, Row
from runs import Ran, Runs

HERE = Path(__file__).parent
SOURCES = ROOT / "tests" / "e2e" / "programs"
LINKS = ("shm", "tcp")


@dataclass
class Check:
    """What every part is given.

    Attributes:
        small: the shortest run that still shows everything.
        jobs: programs at the same time, where nothing is measured.
        links: those alone that are to be used; empty: all.
        only: programs, conformance programs and frameworks with one of these words in their names; empty: all.
        checkout: of others' programs.
    """

    machine: Machine
    runs: Runs
    report: Report
    small: bool
    jobs: int = 1
    links: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    checkout: Path | None = None

    def of(self, links: Iterable[str]) -> list[str]:
        """Those of the links that are to be used."""
        return [link for link in links if not self.links or link in self.links]

    def wants(self, name: str) -> bool:
        return not self.only or any(word in name for word in self.only)

    def run(self, command: list[str], link: str, limit: float, until: float, **env: str) -> Ran:
        return self.runs.run(command, link, min(limit, until), **env)


def at_once(check: Check, jobs: Iterable[Callable[[], Iterable[Row]]]) -> Iterator[Row]:
    """The rows of jobs, several of which run at the same time; each job's rows come together when it has ended."""
    with ThreadPoolExecutor(check.jobs) as threads:
        for done in as_completed([threads.submit(lambda job=job: list(job())) for job in jobs]):
            yield from done.result()


def failure(ran: Ran) -> tuple[str, str]:
    """What a run that failed counts as, and why."""
    refused = ran.refused()
    return (STOPPED, f"needs {', '.join(refused[:4])}") if refused else (WRONG, ran.why())


def waits(ran: Ran) -> dict[str, int]:
    return {"waits": ran.stats["waits"]} if "waits" in ran.stats else {}


# ---- the first program -------------------------------------------------------------------------------------------------


def start(check: Check) -> Iterator[Row]:
    """Whether workers work in their box; where they only do without, that is wrong, and all that follows runs without."""
    command = [sys.executable, str(HERE / "programs" / "steady.py"), "0.2"]
    native = check.run(command, "native", 60, check.report.left())
    if native.code != 0:
        yield Row("start", "launches and copies", "native", WRONG, native.why())
        return
    ran = check.run(command, "shm", 60, check.report.left())
    boxed = check.runs.box != "off" and "without a box" not in check.runs.server_said()
    yield first_row(ran, boxed)
    if ran.code == 0 and not boxed and not check.machine.chained and check.runs.box != "off":
        said = [line for line in check.runs.server_said().splitlines() if "without a box" in line]
        yield Row("start", "a worker in its box", "shm", WRONG, said[0][:300])
    if ran.code != 0 and boxed and not check.machine.chained:
        check.runs.without_a_box()
        yield first_row(check.run(command, "shm", 60, check.report.left()), False)


def first_row(ran: Ran, boxed: bool) -> Row:
    right = ran.code == 0
    name = "a worker in its box" if boxed else "a worker without a box"
    return Row("start", name, "shm", OK if right else WRONG, "" if right else failure(ran)[1], {"s": round(ran.seconds, 2)} | waits(ran))


# ---- programs ----------------------------------------------------------------------------------------------------------

MANAGED = (
    "in_turn", "neighbours", "nested", "copies", "system_calls", "host_functions", "signals", "threads", "provisional", "hints", "graphs",
    "variables", "refusals",
)  # fmt: skip
MAPPED = ("asked_for", "by_a_parameter", "released", "served", "by_a_host_function", "the_rest", "elsewhere")
CUDA_PROGRAMS: dict[str, list[str]] = {
    "vector_add": [], "copies": [], "threads": [], "host_functions": [], "limits": [], "prints": [], "memory_operations": ["meaning"], "arrays": [],
    "graphs": [], "graph_memory": [], "references": [], "virtual_memory": [], "pinned": [], "once": [],
    **{f"managed {case}": [case] for case in MANAGED}, **{f"mapped {case}": [case] for case in MAPPED},
    **{f"faults {case}": [case] for case in ("null", "wild", "trap", "assert", "shared", "stack", "heap")},
    "forks before": ["before"], "forks after": ["after"],
}  # fmt: skip
ALONE = {"arrays", "graph_memory", "limits", "virtual_memory"}  # look at the device's free memory, which programs beside them change, or take it all
# Need kernels to reach pinned memory at the host's own address, which no strict software GPU offers.
NOT_CHAINED = {"mapped by_a_parameter", "mapped released", "mapped the_rest"}
EXPECTED = {"faults null": "cudaErrorIllegalAddress", "faults trap": "cudaErrorLaunchFailure", "faults assert": "cudaErrorAssert"}
CUPY_EXAMPLES = ("elementwise", "reductions", "sorting", "raw_kernel", "matmul", "random_numbers", "streams", "two_devices")


def compiled(check: Check, sources: list[Path]) -> dict[str, str]:
    """Builds the CUDA programs, several at a time: name -> "" or what the compiler said."""

    def one(source: Path) -> tuple[str, str]:
        target = check.runs.folder / source.stem
        line = [str(check.machine.nvcc), "-O2", "-cudart", "static", str(source), "-o", str(target)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return source.stem, "" if done.returncode == 0 else (done.stdout + done.stderr)[-300:]

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as threads:
        return dict(threads.map(one, sources))


def programs(check: Check) -> Iterator[Row]:
    """The CUDA and CuPy programs of the examples and the tests: native, then over each link; the same output."""
    jobs: list[Callable[[], Iterable[Row]]] = []
    alone: list[Callable[[], Iterable[Row]]] = []
    names = {name: CUDA_PROGRAMS[name] for name in list(CUDA_PROGRAMS)[: 1 if check.small else None] if check.wants(name)}
    if not check.machine.nvcc:
        yield Row("programs", "CUDA C++", "", MISSING, "no nvcc on this machine")
    else:
        stems = dict.fromkeys(name.split()[0] for name in names)
        built = compiled(
            check, [SOURCES / f"{stem}.cu" for stem in stems] + ([] if check.small or not check.wants("tour") else [ROOT / "examples/cuda/tour.cu"])
        )
        for name, arguments in names.items():
            stem = name.split()[0]
            if check.machine.chained and name in NOT_CHAINED:
                yield Row("programs", f"{name}.cu", "", MISSING, "a strict software GPU chooses its addresses")
                continue
            if built[stem]:
                yield Row("programs", f"{name}.cu", "", WRONG, f"nvcc: {built[stem]}")
                continue
            command = [str(check.runs.folder / stem), *arguments]
            (alone if stem in ALONE else jobs).append(partial(compare_output, check, f"{name}.cu", command, EXPECTED.get(name, "")))
        if "tour" in built:

            def tour(out: Path) -> list[str]:
                return [str(check.runs.folder / "tour"), "7", str(out)]

            jobs.append(partial(compare_files, check, "examples tour.cu", tour, ".bin", "cuda/tour.cu"))
    python = check.machine.frameworks.get("cupy")
    if not python:
        yield Row("programs", "CuPy examples", "", MISSING, "no CuPy on this machine")
    for example in () if not python else filter(check.wants, CUPY_EXAMPLES[: 1 if check.small else None]):
        if example == "two_devices" and check.runs.gpus() < 2:
            yield Row("programs", f"examples {example}.py", "", MISSING, "needs two GPUs")
            continue
        script = str(ROOT / "examples" / "cupy" / f"{example}.py")

        def line(out: Path, script: str = script) -> list[str]:
            return [str(python), script, "--seed", "7", "--out", str(out)]

        jobs.append(partial(compare_files, check, f"examples {example}.py", line, ".npz", f"cupy/{example}.py"))
    yield from at_once(check, jobs)
    for job in alone:
        yield from job()


def compare_output(check: Check, name: str, command: list[str], expected: str) -> Iterator[Row]:
    """The same standard output and exit code over every link; `expected`: what must be in the native one."""
    native = check.run(command, "native", 60, check.report.left(), CHECK_GO_ON="1")
    told = {"s": round(native.seconds, 2)}
    if ": not so: " in native.out:
        yield Row("programs", name, "native", WRONG, "; ".join(line for line in native.out.splitlines() if ": not so: " in line)[:2000], told)
        return
    if native.code is None or native.code < 0 or expected not in native.out or (native.code and not expected):
        yield Row("programs", name, "native", WRONG, native.why(), told)
        return
    yield Row("programs", name, "native", OK, native.out.strip().splitlines()[0][:60] if native.out.strip() else "", told)
    for link in check.of(LINKS):
        ran = check.run(command, link, 60, check.report.left())
        same = (ran.code, ran.out) == (native.code, native.out)
        result, detail = (OK, "same output") if same else failure(ran)
        yield Row("programs", name, link, result, detail, {"s": round(ran.seconds, 2)} | waits(ran))


def compare_files(check: Check, name: str, line: Callable[[Path], list[str]], suffix: str, example: str) -> Iterator[Row]:
    """Results in files: right by the demo's own reference where numpy is here, and the same over every link."""
    results: dict[str, Path] = {}
    for link in ("native", *check.of(LINKS)):
        out = check.runs.folder / f"{link}-{Path(example).stem}{suffix}"
        ran = check.run(line(out), link, 90, check.report.left())
        told = {"s": round(ran.seconds, 2)} | ({} if link == "native" else waits(ran))
        if ran.code != 0 or not out.is_file():
            yield Row("programs", name, link, *(failure(ran) if link != "native" else (WRONG, ran.why())), told)
            continue
        results[link] = out
        wrong = checked(check, example, out)
        same = link == "native" or "native" not in results or same_contents(check, results["native"], out)
        detail = wrong or ("" if link == "native" else "same results" if same else "right, but not bit for bit the native results")
        yield Row("programs", name, link, WRONG if wrong else OK, detail, told)


def checked(check: Check, example: str, out: Path) -> str:
    """What the demo's reference says against the results; "" when they are right."""
    code = (
        "import sys; from pathlib import Path; from gpuvirt.demo import programs as p; from gpuvirt.demo.programs import Program\n"
        f"print(*p.check(Program({example!r}, 1), 7, Path({str(out)!r})), sep='; ')"
    )
    python = check.machine.frameworks.get("cupy") or check.machine.python
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean_environment(), check=False)
    return done.stdout.strip()[:200] if done.returncode == 0 else f"could not be checked: {(done.stderr.strip().splitlines() or ['?'])[-1]}"[:200]


def same_contents(check: Check, a: Path, b: Path) -> bool:
    if a.suffix != ".npz":
        return a.read_bytes() == b.read_bytes()
    code = "import sys, numpy as n\na, b = (dict(n.load(f)) for f in sys.argv[1:])\n"
    code += "sys.exit(not (a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)))"
    return subprocess.run([check.machine.frameworks["cupy"], "-c", code, a, b], capture_output=True, check=False).returncode == 0


# ---- differences -------------------------------------------------------------------------------------------------------


def differences(check: Check) -> Iterator[Row]:
    """What the driver answers and what our shim answers: told, and no failure; some differences are meant."""
    facts: dict[str, dict[str, str]] = {}
    for link in ("native", "shm"):
        facts[link] = {}
        out = check.runs.folder / f"facts-{link}.json"
        line = [sys.executable, str(ROOT / "tests/gpu/probe/probe.py"), "--json", str(out), "attributes", "procs"]
        ran = check.run(line, link, 60, check.report.left())
        sections = json.loads(out.read_text())["sections"] if out.is_file() else {}
        for f in [f for section in sections.values() for f in section["facts"]]:
            if f["fact"] == "attribute":
                facts[link][f"device {f['device']} attribute {f['n']}"] = str(f["value"])
            elif f["fact"] == "proc":
                facts[link][f"cuGetProcAddress {f['name']} flags {f['flags']}"] = ", ".join(f["answers"])
        wrong = check.run([sys.executable, str(HERE / "programs" / "wrong_calls.py")], link, 60, check.report.left())
        answers = [json.loads(text) for text in wrong.out.splitlines() if text.startswith("[")]
        facts[link] |= {what if what.startswith("limit ") else f"call: {what}": answer for what, answer in answers}
        whole = wrong.code == 0 and ran.code == 0
        detail = "" if whole else wrong.why() if wrong.code else ran.why()
        yield Row("differences", "all questions asked", link, OK if whole else WRONG, detail, {"answers": len(facts[link])})
    native, ours = facts["native"], facts["shm"]
    kinds = {"attributes": "device", "limits": "limit", "cuGetProcAddress": "cuGetProcAddress", "wrong calls": "call:"}
    for kind, start in kinds.items():
        questions = [q for q in native if q.startswith(start)]
        different = [q for q in questions if q in ours and ours[q] != native[q]]
        unknown = [q for q in questions if q not in ours]
        yield Row("differences", kind, "shm", TOLD, "", {"asked": len(questions), "different": len(different), "only native": len(unknown)})
        for q in different:
            yield Row("differences", q.removeprefix("call: ")[:60], "shm", TOLD, f"driver: {native[q]}   ours: {ours[q]}"[:400])
        if unknown:
            yield Row("differences", f"{kind}: only the driver's", "shm", TOLD, ", ".join(q.split()[1] for q in unknown)[:600])


# ---- copies and launches -----------------------------------------------------------------------------------------------


def rates(check: Check) -> Iterator[Row]:
    """Bulk copies, pinned and pageable, and the rate of launches, beside the native driver's in the same minute."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        yield Row("rates", "copies and launches", "", MISSING, "no C compiler on this machine")
        return
    program = check.runs.folder / "bench"
    line = [compiler, "-O2", "-pthread", *map(str, sorted((ROOT / "native/bench").glob("*.c"))), "-ldl", "-lm", "-o", str(program)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield Row("rates", "copies and launches", "", WRONG, done.stderr[-200:])
        return
    native: dict[str, float] = {}
    for link in ("native", *check.of(LINKS)):
        measured = ("oneway 3 500", "waiting 3", "copies 1048576 2") if check.small else ("oneway 41 20000", "waiting 41", "copies 67108864 5")
        ran = check.run([str(program), "none", *measured], link, 60, check.report.left())
        found: dict[str, float] = json.loads(ran.out) if ran.code == 0 else {}
        if not found:
            yield Row("rates", "copies and launches", link, *(failure(ran) if link != "native" else (WRONG, ran.why())))
            continue
        native = native or found
        for name in ("launch_burst", "launch_sustained", "record_burst", "sync", "wait_awake", "h2d", "d2h", "h2d_pinned", "d2h_pinned"):
            copies = "2" in name
            figures = {"GB/s" if copies else "us": found[name]}
            if link != "native" and native.get(name):
                figures["of native"] = found[name] / native[name]
            yield Row("rates", name, link, OK, "", figures)


# ---- a connection that is cut ------------------------------------------------------------------------------------------


def resume(check: Check) -> Iterator[Row]:
    """A program whose connection is reset three times ends with the right result."""
    port = int(check.runs.pool.rpartition(":")[2])
    seconds = 3 if check.small else 6
    enough = check.runs.folder / "cut-enough"
    enough.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "programs" / "steady.py"), str(seconds), str(enough), "90"]
    cuts: list[int] = []
    over = threading.Event()
    with Proxy(port) as proxy:

        def cutting() -> None:
            while sum(n > 0 for n in cuts) < 3 and not over.wait(0.7 + seconds / 6):  # none where the last one has not come back yet
                cuts.append(proxy.cut())
            enough.touch()

        thread = threading.Thread(target=cutting, daemon=True)
        thread.start()
        ran = check.runs.run(command, "tcp", min(120, check.report.left()), f"tcp://127.0.0.1:{proxy.port}", GPUVIRT_TOKEN=check.runs.token())
        over.set()
        thread.join(10)
    right = ran.code == 0 and ran.out.splitlines()[-1:] != [] and ran.out.splitlines()[-1].startswith("right")
    lost = sum(n > 0 for n in cuts)
    if right and not lost:
        yield Row("resume", "cut three times", "tcp", NOT_RUN, "the program had ended before the first cut")
        return
    said = [line for line in ran.err.splitlines() if "lost" in line or "back" in line]
    detail = f"right all the same; {said[0] if said else 'nothing was said'}"[:200] if right else failure(ran)[1]
    yield Row("resume", f"cut {lost} times", "tcp", OK if right else WRONG, detail, {"s": round(ran.seconds, 1)})


PARTS: dict[str, Callable[[Check], Iterator[Row]]] = {"programs": programs, "differences": differences, "rates": rates, "resume": resume}
