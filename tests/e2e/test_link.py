"""cuLink* called by a program, over local and delayed links."""

from __future__ import annotations

import sys

import pytest
from e2e.harness import HERE, Server, assert_right, run_program

pytestmark = pytest.mark.slow

PROGRAM = HERE / "programs" / "links.py"


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_link(pool: Server, link: str) -> None:
    assert_right(run_program(pool, [sys.executable, PROGRAM], "--link", link))


def test_chained(chained: Server) -> None:
    """The `cuda` backend calls a driver's linker: here our own."""
    assert_right(run_program(chained, [sys.executable, PROGRAM, "driver"]))
