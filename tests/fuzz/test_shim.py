"""A hostile server against the real client library, under the sanitizers: sessions of fixed seeds, mistakes that they find, what they reach."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns
from fuzz.shim import build_fuzzer, seeded_bugs

HERE = Path(__file__).parent / "shim"
NATIVE = build_fuzzer.NATIVE
# Sealed, but for the second: with the right keys, so that the lies lie in sound frames.
LINKS = ["shm", "tcp(plain)", "tcp(channels=3)"]
# A line each: link, seed, what. Links have no blanks.
SEEDS = [line.split(maxsplit=2) for line in (HERE / "seeds.txt").read_text().splitlines() if line and not line.startswith("#")]
SEEDED = {bug.name: bug for bug in seeded_bugs.BUGS}
# Share of the lines that the sessions below must reach: what reads what a server sends.
FLOORS = {
    "wire/handshake.c": 0.8,
    "wire/module_meta.c": 0.95,
    "wire/ring.c": 0.8,  # a worker that takes over sets positions; a client does not
    "transport/attempt.c": 0.8,
    "transport/bulk.c": 0.9,
    "transport/link.c": 0.55,
    "transport/redial.c": 0.8,
    "transport/resume.c": 0.65,
    "transport/shm/shm_layout.c": 0.8,
    "transport/shm/shm_link.c": 0.65,
    "transport/shm/shm_resume.c": 0.55,
    "transport/tcp/tcp_bulk_receive.c": 0.9,
    "transport/tcp/tcp_channels.c": 0.85,
    "transport/tcp/tcp_receive.c": 0.7,
    "shim/session/attach.c": 0.7,
    "shim/session/bulk_in.c": 0.95,
    "shim/session/completions.c": 0.9,
    "shim/session/expected.c": 0.75,
    "shim/session/host_functions.c": 0.85,
    "shim/session/incoming.c": 0.95,
    "shim/session/posting.c": 0.85,
    "shim/session/progress.c": 0.95,
    "shim/session/progress_role.c": 0.95,
    "shim/session/reply_payloads.c": 0.85,
    "shim/session/stream_order.c": 0.85,
    "shim/session/streams.c": 0.95,
}

pytestmark = pytest.mark.timeout(1200)


Done = subprocess.CompletedProcess[str]


def sessions(program: Path, link: str, count: int, seconds: int, first: int | Sequence[int], *how: str, **more: str) -> Done:
    """Runs up to `count` sessions in `seconds`, the seeds from `first` on, or those listed; in a folder of their own."""
    folder = program.with_name(f"{program.name}-{link}-{first if isinstance(first, int) else 'listed'}")
    folder.mkdir()
    listed = "" if isinstance(first, int) else "".join(f"{seed}\n" for seed in first)
    line = [program, str(count), str(seconds), str(first) if isinstance(first, int) else "-", link, *how]
    pipes = {"input": listed, "capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(line, **pipes, timeout=seconds + 600, cwd=folder, env={**ENVIRONMENT, **more})


def held(done: Done) -> dict[str, int]:
    """What was done in sessions that all held."""
    assert done.returncode == 0, done.stderr[-8000:] + done.stdout[-500:]
    names = ["sessions", "failed", "calls", "refused", "copies", "functions", "lost", "unattached"]
    return dict(zip(names, map(int, re.findall(r"\d+", done.stdout.splitlines()[0])), strict=True))


def mistaken(bug: seeded_bugs.Bug) -> str:
    text = (NATIVE / bug.source).read_text()
    assert text.count(bug.text) == 1, f"{bug.source} has changed: seeded_bugs.py no longer fits"
    return text.replace(bug.text, bug.instead)


def test_the_seeded_bugs_fit_the_library() -> None:
    """Those of the wide tests too: who changes the library hears of it at once."""
    assert all(mistaken(bug) for bug in seeded_bugs.BUGS)


def with_bug(folder: Path, bug: seeded_bugs.Bug) -> Path:
    """The fuzzer, of a library with this mistake."""
    source = NATIVE / bug.source
    copy = folder / source.name
    copy.write_text(mistaken(bug))
    return build_fuzzer.build(folder / "shim_fuzz", {source: copy})


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConcurrentRuns]:
    shared = tmp_path_factory.mktemp("shim") / "shim_fuzz"

    def build() -> Path:
        return build_fuzzer.build(shared)

    def bug(p: Mapping[str, str]) -> Done:
        made = with_bug(tmp_path_factory.mktemp(p["bug"]), SEEDED[p["bug"]])
        return sessions(made, "shm", 3000, 300, 0, f"lies={SEEDED[p['bug']].lies}", FUZZ_PATIENCE_S="15")

    jobs = {
        "test_an_honest_server": lambda p: sessions(build(), p["link"], 4, 60, 100, "honest"),
        "test_hostile_servers": lambda p: sessions(build(), p["link"], 80 if p["link"] == "shm" else 40, 6, 1000),
        "test_many_hostile_servers": lambda p: sessions(build(), p["link"], 2000, 60, 10000, "least=20"),
        "test_seeds_that_are_kept": lambda p: sessions(build(), p["link"], 1000, 60, [int(seed) for link, seed, _ in SEEDS if link == p["link"]]),
        "test_a_seeded_bug_is_found": bug,
        "test_every_seeded_bug_is_found": bug,
    }
    with ConcurrentRuns(request, jobs) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_an_honest_server(runs: ConcurrentRuns, request: pytest.FixtureRequest, link: str) -> None:
    """Without lies everything works, and copies bring what they are to bring: the sessions are such as programs have."""
    done = held(runs.result(request))
    assert done["sessions"] == 4 and not done["lost"] and done["copies"] > 50 and done["functions"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_hostile_servers(runs: ConcurrentRuns, request: pytest.FixtureRequest, link: str) -> None:
    assert held(runs.result(request))["sessions"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("link", sorted({link for link, _, _ in SEEDS}))
def test_seeds_that_are_kept(runs: ConcurrentRuns, request: pytest.FixtureRequest, link: str) -> None:
    assert held(runs.result(request))["sessions"] == sum(1 for other, _, _ in SEEDS if other == link)


@pytest.mark.wide
@pytest.mark.parametrize("link", LINKS)
def test_many_hostile_servers(runs: ConcurrentRuns, request: pytest.FixtureRequest, link: str) -> None:
    done = runs.result(request)
    assert held(done)["sessions"] >= 20
    told = re.findall(r"lie (\w+): (\d+) told", done.stdout)
    assert len(told) > 35 and sum(count != "0" for _, count in told) > 20, done.stdout


def finds(done: Done, bug: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr[-4000:]
    assert re.search(SEEDED[bug].found, done.stderr), done.stderr[-6000:]
    print(done.stderr.splitlines()[0], done.stdout.splitlines()[0], sep="\n")


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["a_completion_does_not_end_its_copies"])
def test_a_seeded_bug_is_found(runs: ConcurrentRuns, request: pytest.FixtureRequest, bug: str) -> None:
    """The deliberate fault of this fuzzer: what it is for."""
    finds(runs.result(request), bug)


@pytest.mark.wide
@pytest.mark.parametrize("bug", [name for name in SEEDED if name != "a_completion_does_not_end_its_copies"])
def test_every_seeded_bug_is_found(runs: ConcurrentRuns, request: pytest.FixtureRequest, bug: str) -> None:
    finds(runs.result(request), bug)


# ---- coverage ---------------------------------------------------------------------------------------------------------------


def measured(folder: Path) -> Path:
    """The fuzzer with counters in what reads the link, and without sanitizers."""
    product = build_fuzzer.product()
    counted = [p for p in product if p.parent.name == "session" or p.is_relative_to(NATIVE / "transport") or p.is_relative_to(NATIVE / "wire")]
    flags = ["-std=gnu11", "-g1", "-pthread", "-O1", *build_fuzzer.LIMITS, *build_fuzzer.includes()]
    others = c_build.objects([*(p for p in product if p not in counted), *build_fuzzer.FUZZER], flags)
    made = []
    for source in counted:
        made.append(folder / f"{source.stem}.o")
        line = [c_build.compiler(), *flags, "--coverage", "-fprofile-update=atomic", "-c", str(source), "-o", str(made[-1])]
        subprocess.run(line, check=True, timeout=120)
    program = folder / "shim_fuzz"
    line = [c_build.compiler(), "-pthread", "--coverage", *map(str, [*made, *others]), "-o", str(program), "-ldl", "-lm"]
    subprocess.run(line, check=True, timeout=120)
    return program


def coverage(folder: Path) -> dict[str, tuple[int, int]]:
    """Lines reached, and all lines, of each source below native."""
    lines: dict[str, dict[int, int]] = {}
    for data in sorted(folder.glob("*.gcda")):
        told = subprocess.run(["gcov", "--json-format", "--stdout", data.name], cwd=folder, capture_output=True, check=True, timeout=60).stdout
        for document in told.splitlines():
            for file in json.loads(document)["files"]:
                path = Path(file["file"])
                if path.suffix != ".c" or not path.is_relative_to(NATIVE):
                    continue
                counts = lines.setdefault(str(path.relative_to(NATIVE)), {})
                for line in file["lines"]:
                    counts[line["line_number"]] = counts.get(line["line_number"], 0) + line["count"]
    return {name: (sum(count > 0 for count in counts.values()), len(counts)) for name, counts in sorted(lines.items())}


@pytest.mark.long
def test_coverage(tmp_path: Path) -> None:
    """What the client executes of the code that reads the link, in 120 sessions over each link; the server's process is not counted."""
    program = measured(tmp_path)
    for link in LINKS:
        held(sessions(program, link, 120, 240, 20000))
    reached = coverage(tmp_path)
    for name, (hit, all_lines) in reached.items():
        print(f"{name:40} {hit:4} of {all_lines:4} lines  {hit / all_lines:6.1%}  {'floor ' + format(FLOORS[name], '.0%') if name in FLOORS else ''}")
    low = {name: reached.get(name) for name, floor in FLOORS.items() if name not in reached or reached[name][0] < floor * reached[name][1]}
    assert not low, low
