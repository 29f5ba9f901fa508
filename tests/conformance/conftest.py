"""Fixtures: the servers of the end-to-end tests, the built programs, and the client library in which a function can be broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import building
from e2e.conftest import chained, chained_sharing, pool, pytest_runtest_makereport  # noqa: F401  (fixtures, and what failing tests show)
from e2e.harness import Server, start_server


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    return building.programs()


@pytest.fixture(scope="session")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a libcuda.so.1 in which GV_BREAK_FUNCTION names what does nothing."""
    yield building.breakable_driver(tmp_path_factory.mktemp("breakable")).parent


@pytest.fixture(scope="session")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for programs that end without goodbye, hundreds of them a minute: it keeps none of their sessions for long."""
    options = ("--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", "--grace", "1s", "--sessions-per-token", "1024")
    server = start_server(tmp_path_factory.mktemp("lenient"), *options)
    yield server
    server.stop()
