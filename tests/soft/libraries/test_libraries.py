"""Real libraries on the software GPU against references in higher precision. `make test` runs a few cases of each, `make test-long` all."""

from __future__ import annotations

from pathlib import Path

import pytest
from soft.libraries import case, running

LIBRARIES = sorted(case.LIBRARIES)


def failures(records: list[running.Record]) -> str:
    return "\n".join(str(r) for r in records if not r.right)


@pytest.mark.parametrize("library", LIBRARIES)
def test_some_cases(library: str, tmp_path: Path) -> None:
    ids = [c.id for c in case.cases_of(library) if c.fast]
    records = running.run(library, ids, tmp_path)
    assert [r.id for r in records] == ids and not failures(records), failures(records)
    assert any(r.kernels for r in records), "no kernel ran"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_cases(library: str, tmp_path: Path) -> None:
    ids = [c.id for c in case.cases_of(library)]
    records = running.run(library, ids, tmp_path)
    assert len(records) == len(ids) and not failures(records), failures(records)


def test_a_fault_is_noticed(tmp_path: Path) -> None:
    """A GPU whose arithmetic is a little off fails: the limits are no wider than they must be."""
    ids = ["cublas/gemm/float/127x65x33 NN", "cublas/gemm/double/127x65x33 NN"]
    records = running.run("cublas", ids, tmp_path, fault="fma", cache=tmp_path / "cache")
    assert [r.id for r in records] == ids
    assert all(not r.failed and r.error > case.LIMIT for r in records), "\n".join(map(str, records))
