"""Texture and surface references of a module, by a program with PTX of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, run_program, running
from e2e.test_move import TWO, moved

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("references")


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_everything(pool: Server, program: Path, link: str) -> None:
    assert_right(run_program(pool, [program], "--link", link))


def test_by_the_driver(chained: Server, program: Path) -> None:
    """The cuda backend, with our own shim in the place of the driver, whose references it uses."""
    assert_right(run_program(chained, [program]))


def test_a_session_moves_with_what_is_bound(own_pool: Callable[..., Server], program: Path, tmp_path: Path) -> None:
    server, over = own_pool(*TWO), tmp_path / "over"
    with running(server, [program, over]) as process:
        (session,) = server.sessions()
        (gpu,) = session["devices"]
        for _ in range(3):
            gpu = 1 - gpu
            moved(server, session["session"], gpu)
        over.touch()
        out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "right\n"), out + err
