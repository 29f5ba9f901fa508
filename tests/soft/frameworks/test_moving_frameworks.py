"""Move anything: CuPy, Numba and TensorFlow say what they say when their session stays, however often that moves, and whenever."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cutter import Cutter
from e2e.harness import Server, clean_environment, start_server
from soft.frameworks import running
from soft.frameworks.test_xla import PACKAGES
from soft.moving import Moves

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples" / "cupy").glob("*.py"))
LEAST = 5  # moves of each
# Runs an example of CuPy's and prints digests of its results, but for times.
DIGESTS = """
import hashlib, pathlib, runpy, sys
import numpy as np
out = pathlib.Path(sys.argv[3]) / "results.npz"
sys.argv = [sys.argv[1], "--seed", sys.argv[2], "--out", str(out)]
runpy.run_path(sys.argv[0], run_name="__main__")
for name, array in sorted(np.load(out).items()):
    if name != "milliseconds":
        print(name, array.shape, array.dtype, hashlib.sha256(array.tobytes()).hexdigest(), flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--backend", "soft", "--gpus", "4", "--gpu-memory", "2g")  # TensorFlow takes most of it, and cuSOLVER the rest
    started = start_server(tmp_path_factory.mktemp("moving"), *options, env=clean_environment(GPUVIRT_CACHE=os.environ["GPUVIRT_CACHE"]))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def cutter(server: Server) -> Iterator[Cutter]:
    made = Cutter(server.info["port"])
    yield made
    made.close()


def moves(server: Server, cutter: Cutter, seed: int, pause: float, **env: str) -> Moves:
    return Moves(server, cutter, random.Random(seed), env, errors=False, pause=pause)


@pytest.mark.parametrize("example", [pytest.param(path, marks=pytest.mark.wide if path.stem == "streams" else pytest.mark.long) for path in EXAMPLES], ids=lambda p: p.stem)
def test_the_tour_of_cupy(server: Server, cutter: Cutter, seed: int, tmp_path: Path, example: Path) -> None:
    moves(server, cutter, seed, 0.3).check([sys.executable, "-c", DIGESTS, example, str(seed), tmp_path], LEAST)


@pytest.mark.long
def test_numba(server: Server, cutter: Cutter, seed: int, tmp_path: Path) -> None:
    env = running.environment("numba", tmp_path)
    moves(server, cutter, seed, 1.0, **env).check([sys.executable, "-W", "ignore", running.HERE / "numba_program.py"], LEAST)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_tensorflow(server: Server, cutter: Cutter, seed: int, tmp_path: Path) -> None:
    env = running.environment("tensorflow", tmp_path, PACKAGES)
    moves(server, cutter, seed, 5.0, **env).check([sys.executable, "-W", "ignore", running.HERE / "tensorflow_program.py"], LEAST)
