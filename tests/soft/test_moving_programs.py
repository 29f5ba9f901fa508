"""Move anything: every CUDA program of tests/soft/programs says what it says when its session stays, however often that moves, and whenever."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cutter import Cutter
from e2e.harness import clean_environment, start_server
from soft import cuda_programs
from soft.moving import Moves

PROGRAMS = list(cuda_programs.sources())
SOME = [name for name in PROGRAMS if name in ("function_pointers", "textures", "device_malloc", "streams", "two_devices")]


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Moves]:
    options = ("--backend", "soft", "--gpus", "4", "--gpu-memory", "512m")
    server = start_server(tmp_path_factory.mktemp("moving"), *options, env=clean_environment(GPUVIRT_CACHE=os.environ["GPUVIRT_CACHE"]))
    cutter = Cutter(server.info["port"])
    yield Moves(server, cutter, random.Random(seed))
    cutter.close()
    server.stop()


@pytest.mark.wide
@pytest.mark.parametrize("name", SOME)
def test_some_move(moves: Moves, kept: Path, seed: int, name: str) -> None:
    """Those with function pointers, textures, streams, two GPUs."""
    (executable,) = cuda_programs.compile_all([cuda_programs.together(SOME)], kept)
    moves.check([executable, str(seed), name], 2)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_move(moves: Moves, kept: Path, seed: int, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty times each: more than a thousand moves."""
    executable = cuda_programs.compile_text(cuda_programs.sources()[name].read_text(), kept)
    before = Counter(moves.outcomes)
    moves.check([executable, str(seed)], 20)
    with capsys.disabled():
        print(f"\n{name}: {dict(moves.outcomes - before)}")
