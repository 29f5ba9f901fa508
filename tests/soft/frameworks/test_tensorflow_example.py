"""examples/tensorflow/cifar10_cnn.py from the stock wheel, with nothing set: it sees the GPU, learns, and its losses are those of a run in float64."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, clean_environment
from soft.frameworks.test_xla import PACKAGES

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "cifar10_cnn.py"
STEPS = 20
SHORT = ("--epochs", "1", "--images", str(64 * STEPS), "--losses", str(STEPS))


def run(*options: str, gpuvirt: tuple[str, ...] | None = (), **more: str) -> str:
    """What it printed. gpuvirt: options of `gpuvirt run`; None: without it, which is without a GPU."""
    assert (PACKAGES / "tensorflow").is_dir(), f"no TensorFlow in {PACKAGES}; make test-long installs it"
    line = [*([] if gpuvirt is None else [*GPUVIRT, "run", "--local", *gpuvirt, "--"]), sys.executable, str(EXAMPLE), *options]
    env = clean_environment(PYTHONPATH=str(PACKAGES), **more)
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert ("GPUs: none" in done.stdout) == (gpuvirt is None), done.stdout
    return done.stdout


def losses(printed: str) -> list[float]:
    found = [float(value) for value in re.findall(r"^loss (\S+)$", printed, re.M)]
    assert len(found) == STEPS, printed
    return found


def apart(found: list[float], exact: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / b for a, b in zip(found, exact, strict=True))


@pytest.fixture(scope="module")
def exact() -> list[float]:
    return losses(run(*SHORT, "--dtype", "float64", gpuvirt=None))


def test_its_losses_are_those_in_float64(exact: list[float]) -> None:
    """TensorFlow multiplies in TF32 where a GPU has it, ten bits of a number; without that they are nearer."""
    assert apart(losses(run(*SHORT)), exact) < 2e-2
    assert apart(losses(run(*SHORT, "--no-tf32")), exact) < 2e-3
    assert apart(losses(run(*SHORT, "--seed", "2")), exact) > 2e-2, "any losses would do"


def test_it_learns_on_the_gpu(tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    printed = run("--epochs", "2", gpuvirt=(f"--stats={stats}",))
    assert float(printed.rsplit("accuracy ", 1)[1]) > 0.95, printed
    assert json.loads(stats.read_text())["launches"] > 2 * 62 * 20, "most of a step is not on the GPU"
