"""Compute shares on real GPUs, whose kernels nobody can stop. Chained: the driver is our own client library, on strict software GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import Server, running, wait_until
from e2e.test_turns import LONGEST, NEAR, SHORT, finishes, have_their_parts, tenants

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(("first", "kinds"), [(0.25, "short"), (0.25, "long and short"), (0.5, "long")])
def test_they_have_their_parts(
    chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path, first: float, kinds: str
) -> None:
    """A kernel that has begun runs to its end: what it takes beyond its session's turn is the session's debt.

    Over half a minute one kernel of a second more or less counts. On a busy machine programs have pauses of their own, in which others compute.
    """
    near, _ = chain("--idle", "0")
    seconds, within = (30, 2 * NEAR) if "long" in kinds else (12, NEAR)
    have_their_parts(near, build("computes"), tmp_path / "end", first, kinds, seconds, within)


@pytest.mark.wide
def test_turns_begin_and_end(chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path) -> None:
    """With the first lease that reserves a part, while another one's kernels are queued; and with the last."""
    near, _ = chain("--idle", "0")
    with tenants(near, build("computes"), tmp_path / "first", ("", SHORT)) as before:
        assert "turns_s" not in near.sessions()[0]
        with tenants(near, build("computes"), tmp_path / "second", ("0.5", SHORT)) as programs:
            assert wait_until(lambda: all(session.get("turns_s") for session in near.sessions()))
            finishes(programs, tmp_path / "second")
        assert wait_until(lambda: len(near.sessions()) == 1)
        had = near.sessions()[0].get("launches", 0)
        assert wait_until(lambda: near.sessions()[0].get("launches", 0) > had)
        finishes(before, tmp_path / "first")


@pytest.mark.wide
def test_a_session_that_lets_others_wait_is_ended(
    chain: Callable[..., tuple[Server, Server]], build: Callable[..., Path], tmp_path: Path
) -> None:
    """And is told why. One that nobody waits for may take as long as it likes."""
    near, _ = chain("--idle", "0", "--overrun", "2s")
    program = build("computes")
    with running(near, [program, *LONGEST, tmp_path / "never"], "--compute", "0.5") as long:
        time.sleep(5)
        assert long.poll() is None and len(near.sessions()) == 1
        with tenants(near, program, tmp_path / "end", ("0.4", SHORT)) as programs:
            err = long.communicate(timeout=100)[1]
            assert long.returncode and "its kernels ran on for 2 s after its turn on GPU 0, and others wait (serve --overrun)" in err, err
            finishes(programs, tmp_path / "end")
