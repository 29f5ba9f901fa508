"""Runs a program of checks under `gpuvirt run`, with no option or variable that a user would not give."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAULT = HERE.parents[1] / "fault"


def names(program: str) -> list[str]:
    """The checks of a program, as its text has them."""
    lines = (HERE / f"{program}_program.py").read_text().splitlines()
    return [after.split()[1].split("(")[0] for line, after in itertools.pairwise(lines) if line == "@check"]


def environment(program: str, folder: Path, packages: Path | None = None) -> dict[str, str]:
    """What a user would not have to set, but for caches that are to be the test's own."""
    env = {"NUMBA_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    env["PYTHONPATH"] = os.pathsep.join([*([str(packages)] if packages else []), str(HERE)])
    return env


def run(program: str, folder: Path, packages: Path | None = None, fault: str = "", limit: float = 300, gpus: int = 1) -> tuple[dict[str, str], str]:
    """What was wrong in each check ("" for nothing), and what else the program printed."""
    ours = ("GPUVIRT_", "NUMBA_", "TRITON_", "CUPY_", "XLA_", "JAX_", "TF_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "GPUVIRT_CACHE"} | environment(program, folder, packages)
    if fault:
        env |= {"FAULT": fault, "GPUVIRT_CACHE": str(folder / "cache"), "PYTHONPATH": os.pathsep.join([str(FAULT), env["PYTHONPATH"]])}
    gpuvirt = [sys.executable, "-P", "-m", "gpuvirt", "run", "--local", "--gpus", str(gpus), "--"]
    line = [*gpuvirt, sys.executable, "-W", "ignore", str(HERE / f"{program}_program.py")]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, env=env, check=False)
    found: dict[str, str] = {}
    printed = []
    for text in done.stdout.splitlines():
        if text.startswith("["):
            name, wrong = json.loads(text)
            found[name] = wrong
        else:
            printed.append(text)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return found, "\n".join(printed)
