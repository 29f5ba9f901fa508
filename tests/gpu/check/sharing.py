"""Sessions that share the GPU: one is parked, one that works is suspended for another, two have their parts of the compute; all are right then."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from machine import clean_environment
from parts import SOURCES, Check, compiled
from report import MISSING, OK, WRONG, Row

HOLDS = 512  # MiB
# computes BLOCKS ROUNDS DEEP: kernels of well below a second each, whatever the GPU is.
KERNELS = ("64", "1000000", "16")
CHAINED_LOOKS = 6


def _gpuvirt(check: Check, *line: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment(**check.runs.environment, GPUVIRT_POOL=check.runs.pool)
    return subprocess.run([check.machine.python, "-m", "gpuvirt", *line], capture_output=True, text=True, timeout=120, check=False, env=env)


def _sessions(check: Check) -> list[dict[str, Any]]:
    leases = json.loads(_gpuvirt(check, "ps", "--json").stdout)
    return [{**session, "compute": lease["compute"]} for lease in leases for session in lease["sessions"]]


def _turns(check: Check) -> dict[float, float]:
    """Seconds of turns so far, by the part of the compute that is reserved."""
    return {session["compute"]: session.get("turns_s", 0.0) for session in _sessions(check)}


def _begin(check: Check, command: list[str], *options: str) -> subprocess.Popen[str]:
    """A program that has said "running"."""
    line = [check.machine.python, "-m", "gpuvirt", "run", "--pool", check.runs.pool, "--link", "shm", *options, "--", *command]
    env = clean_environment(**check.runs.environment)
    program = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert program.stdout is not None
    program.stdout.readline()
    return program


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _parked(check: Check, holds: int) -> Row:
    end = check.runs.folder / "moved.end"
    end.unlink(missing_ok=True)
    program = _begin(check, [str(check.runs.folder / "moved"), str(end), "holds", str(holds)])
    try:
        (session,) = _sessions(check)
        used, said = session.get("memory_used", 0), ""
        begin = time.monotonic()

        def parks() -> bool:
            nonlocal said, begin
            begin = time.monotonic()
            done = _gpuvirt(check, "park", session["session"])
            said = (done.stderr.strip().splitlines() or [""])[-1]
            return done.returncode == 0

        if not _until(parks, 20):
            return Row("sharing", "parked", "shm", WRONG, said)
        took = time.monotonic() - begin
        (now,) = _sessions(check)
        gave = int(now["parked"] or 0)
        end.touch()
        begin = time.monotonic()
        out, err = program.communicate(timeout=100)
        figures = {"MiB": gave >> 20, "stays MiB": (used - gave) >> 20, "park s": round(took, 2), "rest s": round(time.monotonic() - begin, 2)}
        right = program.returncode == 0 and out.endswith("right\n") and gave >= holds << 20
        return Row("sharing", "parked", "shm", OK if right else WRONG, "right afterwards" if right else (out + err)[-200:], figures)
    finally:
        program.kill()


def _suspended(check: Check) -> Row:
    """A job that works all the time gives way to a program, in the middle of whatever it does, and goes on."""
    moved, ends = str(check.runs.folder / "moved"), [check.runs.folder / f"{which}.end" for which in ("low", "high")]
    for end in ends:
        end.unlink(missing_ok=True)
    gpus = str(len(json.loads(_gpuvirt(check, "devices", "--json").stdout)))  # all: else each has some
    low = "--gpus", gpus, "--compute", "1", "--priority", "-1", "--preemptible"
    submitted = _gpuvirt(check, "batch", "submit", "-q", *low, "--", moved, str(ends[0]))
    id, high = submitted.stdout.strip(), None
    try:
        if submitted.returncode or not _until(lambda: any(session.get("launches", 0) > 20 for session in _sessions(check)), 60):
            return Row("sharing", "suspended", "shm", WRONG, submitted.stderr[-200:] or "the job does not begin")
        begin = time.monotonic()
        high = _begin(check, [moved, str(ends[1])], "--gpus", gpus, "--compute", "1")
        waited = time.monotonic() - begin
        states = sorted(lease["state"] for lease in json.loads(_gpuvirt(check, "ps", "--json").stdout))
        ends[1].touch()
        out, err = high.communicate(timeout=100)
        ends[0].touch()
        done = _gpuvirt(check, "batch", "wait", "--json", id)
        job = json.loads(done.stdout)
        right = high.returncode == 0 and out.endswith("right\n") and done.returncode == 0 and states == ["attached", "suspended"]
        right = right and (job["attempt"], job["suspended"]) == (1, 1)
        said = "both are right" if right else f"{states} {job['attempt']} {job['suspended']} {out}{err}{done.stderr}"[-200:]
        return Row("sharing", "suspended", "shm", OK if right else WRONG, said, {"waited s": round(waited, 2)})
    finally:
        if high is not None:
            high.kill()
        _gpuvirt(check, "batch", "cancel", id)


def _parts(check: Check, seconds: float) -> Row:
    end = check.runs.folder / "computes.end"
    end.unlink(missing_ok=True)
    line = [str(check.runs.folder / "computes"), *KERNELS, str(end)]
    programs = [_begin(check, line, "--compute", part) for part in ("0.25", "0.749")]
    try:
        time.sleep(1)
        # On a busy machine a program has pauses of its own, in which the other one computes: it is looked at again then.
        for _ in range(CHAINED_LOOKS if check.machine.chained else 1):
            begin = _turns(check)
            time.sleep(seconds)
            had = {part: turns - begin[part] for part, turns in _turns(check).items()}
            part = had[0.25] / (sum(had.values()) or 1)
            near = abs(part - 0.25) < (0.12 if check.machine.chained else 0.05)
            if near:
                break
        end.touch()
        said = [program.communicate(timeout=100) for program in programs]
        right = near and all(program.returncode == 0 for program in programs)
        kernels = [int(out.split()[-1]) if out.rstrip()[-1:].isdigit() else 0 for out, _ in said]
        figures = {"of 0.25": round(part, 3), "busy": round(sum(had.values()) / seconds, 2), "kernels": " and ".join(map(str, kernels))}
        return Row("sharing", "parts", "shm", OK if right else WRONG, "" if right else "".join(err for _, err in said)[-200:], figures)
    finally:
        for program in programs:
            program.kill()


def sharing(check: Check) -> Iterator[Row]:
    """One is parked; one that works gives way to another; two have a quarter and the rest of the compute by the server's clock."""
    if not check.machine.nvcc:
        yield Row("sharing", "CUDA C++", "", MISSING, "no nvcc on this machine")
        return
    built = compiled(check, [SOURCES / "moved.cu", SOURCES / "computes.cu"])
    rows: tuple[tuple[str, Callable[[], Row]], ...] = (
        ("moved", lambda: _parked(check, 64 if check.small else HOLDS)),
        ("moved", lambda: _suspended(check)),
        ("computes", lambda: _parts(check, 4 if check.small else 20)),
    )
    for name, row in rows:
        yield Row("sharing", name, "", WRONG, f"nvcc: {built[name]}") if built[name] else row()
