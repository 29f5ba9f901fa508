"""The benchmark of the software GPU runs, and its results are right. Speeds are not asserted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.pools import pool
from faults import fault

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.soft.__main__ import run, table

TINY = ("--small=64", "--rounds=1", "--seconds=0.001")
ROWS = ["saxpy", "exp_kernel", "transpose", "sum_kernel", "histogram", "softmax", "sgemm_16", "sgemm_64"]


@pytest.mark.slow
def test_small_sizes() -> None:
    found = run(*TINY, f"--rows={','.join(ROWS)}")
    assert [r["name"] for r in found["rows"]] == ROWS
    for row in found["rows"]:
        assert "error" not in row and row["right"] and row["gpu"] > 0 and row["ratio"] > 0, row
    assert table(found).row_count == len(ROWS)


@pytest.mark.slow
def test_a_gpu_that_computes_nothing(tmp_path: Path) -> None:
    """A worker that drops every launch is as quick as can be: every row says that its result is wrong."""
    with pool(tmp_path, **fault("launches")) as url:
        found = run(*TINY, f"--rows={','.join(ROWS)}", url=url)
    assert not [r["name"] for r in found["rows"] if "error" in r or r["right"]]
