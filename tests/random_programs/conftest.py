"""Fixtures: the servers of the end-to-end tests, and the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.conftest import chained, pool, pytest_runtest_makereport  # noqa: F401  (fixtures, and what failing tests show)
from e2e.harness import Server
from random_programs import runner
from random_programs.runner import Target

# A driver that is our own places no memory where it is told, and so pinned memory where kernels cannot use it by asking.
LACKING_BY_THE_DRIVER = frozenset(("asked",))


@pytest.fixture(scope="session")
def interpreter() -> Path:
    return runner.interpreter()


@pytest.fixture(scope="session")
def target(interpreter: Path) -> Callable[..., Target]:
    """Of a server and a link."""

    def make(server: Server, link: str, libraries: Path = runner.LIBRARIES) -> Target:
        real = "cuda" in server.options
        return Target(interpreter, server.url, link, libraries, LACKING_BY_THE_DRIVER if real else frozenset())

    return make
