"""Fuzzes the worker whose driver is gpuvirt's client library, on the software GPUs of a real server: gpuvirt inside gpuvirt."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from e2e.harness import clean_environment, start_server
from fuzz.worker.build_fuzzer import HERE, SANITIZERS, build

from gpuvirt import paths


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_chained_sessions(tmp_path: Path) -> None:
    """Each session attaches to the server, two at a time: it starts few workers at once. FUZZ_RUNS and FUZZ_SEED make it another run.
    Before them each file of found_chained/, a session that was wrong once."""
    runs, seed = os.environ.get("FUZZ_RUNS", "24"), os.environ.get("FUZZ_SEED", "7")
    fuzzer = build(tmp_path)
    far = start_server(tmp_path / "far", "--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "1g")
    try:
        line = [str(fuzzer.program), "--driver", str(paths.library("libcuda.so.1")), "--ptx", str(HERE / "images.ptx"), "--folder", str(tmp_path)]
        line += ["--patience", "90", "--jobs", "2", "--seed", seed]
        env = clean_environment(GPUVIRT_POOL=far.url, GPUVIRT_GPUS="2", **SANITIZERS)
        pipes = {"capture_output": True, "text": True, "errors": "replace"}
        kept = sorted((HERE / "found_chained").glob("*.txt"))
        for session in kept:
            again = subprocess.run([*line, "replay", str(session)], **pipes, timeout=300, env=env, check=False)
            assert again.returncode == 0, f"{session}: {again.stdout[-4000:]}"
        ran = subprocess.run([*line, "--runs", runs, "run"], **pipes, timeout=1100, env=env, check=False)
        served = far.process.poll() is None and len(far.devices()) == 2
    finally:
        far.stop()
    assert ran.returncode == 0, ran.stdout[-12000:] + ran.stderr[-2000:]
    print(ran.stdout)
    assert re.search(rf"^{runs} sessions", ran.stdout, re.MULTILINE) and served and kept
