"""The software GPU's compiler under test: an object cache of its own for each run, so that everything is compiled by the code that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from soft import cuda_programs


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """GPUVIRT_CACHE in a temporary folder, which the processes of a run share."""
    before = os.environ.get("GPUVIRT_CACHE")
    base = tmp_path_factory.getbasetemp()
    os.environ["GPUVIRT_CACHE"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernel-cache")
    yield
    if before is None:
        del os.environ["GPUVIRT_CACHE"]
    else:
        os.environ["GPUVIRT_CACHE"] = before


@pytest.fixture(scope="module")
def seed() -> int:
    """A new one for each run; pytest shows it when a program is wrong."""
    return int.from_bytes(os.urandom(4), "little")


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Path:
    """Where executables of CUDA programs stay from one run of the tests to the next."""
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("cuda-programs")
    cuda_programs.forget_old(folder)
    return folder
