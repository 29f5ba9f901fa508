"""The demo: every example right on both transports, and every row wrong when the worker drops the launches."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from e2e.harness import GPUVIRT, clean_environment
from faults import fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def demo(*options: str, **env: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run([*GPUVIRT, "demo", "--json", *options], capture_output=True, text=True, env=clean_environment(**env), check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.wide
def test_every_row_is_right_with_a_new_seed() -> None:
    code, rows, err = demo("--seed", str(int.from_bytes(os.urandom(3), "little")))
    assert [row for row in rows if not row["ok"]] == [], err
    assert code == 0 and len(rows) == 18
    assert {row["transport"] for row in rows} == {"tcp", "shm"}
    for row in rows:
        assert row["launches"] > 0 and 0 < row["waits"] < row["calls"]


@pytest.mark.parametrize(
    ("only", "rows"),
    [
        pytest.param(("cuda/tour.cu", "cupy/elementwise.py", "cupy/streams.py"), 6, id="some"),
        pytest.param((), 18, id="all", marks=pytest.mark.long),
    ],
)
def test_dropped_launches_fail_every_row(only: tuple[str, ...], rows: int) -> None:
    """The deliberate fault: without the kernels, nothing may pass."""
    code, found, err = demo(*(word for name in only for word in ("--only", name)), **fault("launches"))
    assert code == 1 and len(found) == rows
    assert [row for row in found if row["ok"]] == [], err
