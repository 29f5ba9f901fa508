"""The software GPU on older processors: AVX2, and what every x86-64 has. The other tests run again with GPUVIRT_SOFT_ISA, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
QUICK = ["ops/test_ops_atomic.py", "ops/test_mma.py", "codegen/test_regressions_lane_affine.py"]
NOT_AGAIN = {"test_isa.py", "test_object_cache.py", "test_tiering.py", "test_programs.py", "test_deliberate_faults.py"}


def run(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GPUVIRT_SOFT_ISA": isa}
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long and not wide and not slow", *arguments]
    return subprocess.run(line, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=1500, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", pytest.param("baseline", marks=pytest.mark.wide)])
def test_some(isa: str) -> None:
    done = run(isa, *[str(HERE / name) for name in QUICK], "-k", "f16 or shared or m16n8k16")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
def test_all(isa: str) -> None:
    done = run(isa, *[str(p) for p in sorted([*HERE.glob("test_*.py"), *HERE.glob("ops/test_*.py"), *HERE.glob("codegen/test_*.py")]) if p.name not in NOT_AGAIN])
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_name_that_is_none() -> None:
    env = {**os.environ, "GPUVIRT_SOFT_ISA": "sse9"}
    done = subprocess.run([sys.executable, "-c", "from gpuvirt.soft.codegen import target; target.host()"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "GPUVIRT_SOFT_ISA=sse9 is none of avx512, avx2, baseline" in done.stderr
