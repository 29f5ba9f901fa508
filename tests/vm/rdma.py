"""Links over verbs on the kernel's own verbs stack: Soft-RoCE devices in the guest, the distribution's libibverbs, no hardware.

What is compiled is compiled on the host; the guest (rdma_guest.sh) runs it and counts the devices' packets.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import rdma_programs
from .machine import STORE, Machine
from .packages import Missing

ROOT = Path(__file__).resolve().parents[2]
FOLDER = STORE / "rdma"
PACKAGES = ("ibverbs-utils", "ibverbs-providers", "iproute2")
PARTS = ("pingpong", "links", "resume", "program", "cupy")
CASES = {"links": "test_links", "resume": "test_resume"}
IDLE = ("late_channel",)  # of the cases those that send nothing over verbs
SETTINGS = {"GPUVIRT_SOFT_ISA": "baseline", "GPUVIRT_CACHE": str(FOLDER / "cache")}
CASE_S, PROGRAM_S, SECONDS = 150, 600, 1800


def _built(name: str) -> tuple[Path, list[str]]:
    """One of the C tests, and its cases that are of verbs: of test_resume by their names, of test_links all. Each becomes a part with a deadline."""
    cases = re.findall(r'\{"([a-z_]+)", [a-z_]+\}', rdma_programs.source(name).read_text())
    chosen = [case for case in cases if name == "test_links" or case.startswith("verbs_") or case == "two_rails_cut"]
    chosen = [case for case in chosen if case != "verbs_many_cuts"]
    if not chosen:
        raise Missing(f"{name} has no case of verbs")
    return rdma_programs.build(FOLDER, name), chosen


def _vector_add() -> str:
    """tests/e2e/programs/vector_add.cu, compiled; kernels are compiled by running it here once, which fills the cache that the guest sees."""
    from gpuvirt.demo.programs import find_nvcc

    target = FOLDER / "vector_add"
    line = [str(find_nvcc()), "-O2", "-cudart", "static", str(ROOT / "tests/e2e/programs/vector_add.cu"), "-o", str(target)]
    subprocess.run(line, check=True, timeout=300)
    return str(target)


def _cupy() -> str:
    """One of CuPy's examples, and NumPy's opinion of what it has written."""
    from gpuvirt.demo import programs

    (example,) = (p for p in programs.PROGRAMS if p.name == "cupy/elementwise.py")
    out = Path("/tmp") / programs.output_name(example)
    runs = programs.command(example, programs.find_examples(None), Path("/tmp"), 11, out)
    checks = (
        "import pathlib, sys; from gpuvirt.demo import programs;"
        f"(p,) = (p for p in programs.PROGRAMS if p.name == {example.name!r});"
        f"wrong = programs.check(p, 11, pathlib.Path({str(out)!r})); print(wrong); sys.exit(bool(wrong))"
    )
    return f"{shlex.join(map(str, runs))} && {shlex.join([str(runs[0]), '-c', checks])}"


def _warm(program: str) -> None:
    line = [str(ROOT / ".venv/bin/gpuvirt"), "run", "--quiet", "--local", "--", "bash", "-c", program]
    done = subprocess.run(line, env={**os.environ, **SETTINGS}, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Missing(f"{program} fails on this host already: {done.stderr[-1000:]}")


def commands(parts: Sequence[str], program: str | None) -> list[str]:
    """What the guest is asked for: a line of its shell for each part."""
    lines = []
    for name in parts:
        if name == "pingpong":
            lines.append("part pingpong 90 bash -c pingpong")
        elif name in ("program", "cupy"):
            own = _cupy() if name == "cupy" else program or _vector_add()
            _warm(own)
            lines.append(f"program={shlex.quote(own)} part {name} {PROGRAM_S} bash -c run_program")
        else:
            tool, cases = _built(CASES[name])
            lines += [f"LEAST={int(case not in IDLE)} part {name}/{case} {CASE_S} {shlex.quote(str(tool))} {case}" for case in cases]
    return lines


def run(parts: Sequence[str] = PARTS, program: str | None = None) -> int:
    """0: all passed; 1: something failed; what cannot run here raises `Missing`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("rdma_guest.sh"), FOLDER)
    asked = "\n".join([f"cd {shlex.quote(str(FOLDER))}", ". ./rdma_guest.sh", *commands(parts, program), "finish"])
    settings = {**SETTINGS, "gpuvirt": str(ROOT / ".venv/bin/gpuvirt")}
    return Machine(PACKAGES).run(asked, seconds=SECONDS, environment=settings).status
