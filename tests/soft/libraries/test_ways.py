"""Whichever way a kernel is compiled and run, its results are the same bits: quick and good code, each instruction set, lanes together and apart,
for a class of block shapes and for each shape, seeded schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
from soft.libraries import case, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
WAYS = {
    "quick code": {"FAULT": "quick"},
    "avx2": {"GPUVIRT_SOFT_ISA": "avx2"},
    "baseline": {"GPUVIRT_SOFT_ISA": "baseline"},
    "lanes apart": {"GPUVIRT_SOFT_LANES": "always"},
    "exact shapes": {"GPUVIRT_SOFT_SHAPES": "exact"},
    "a seeded schedule": {"GPUVIRT_SOFT_SCHEDULE": "1"},
}


def bits(library: str, ids: list[str], folder: Path, way: dict[str, str]) -> dict[str, str]:
    """Each case's digest of its results."""
    folder.mkdir()
    more = dict(way)
    fault = more.pop("FAULT", "")
    records = running.run(library, ids, folder, fault=fault, cache=folder / "cache" if fault else None, limit=900, more=more)
    assert [r.id for r in records] == ids and all(r.right for r in records), "\n".join(map(str, records))
    return {r.id: r.bits for r in records}


def ways_that_differ(library: str, ids: list[str], folder: Path) -> dict[str, list[str]]:
    """The cases whose results have other bits, for each way; without those that differ from one run to the next (atomic additions of floats)."""
    first, again = (bits(library, ids, folder / f"run{i}", {}) for i in range(2))
    steady = [id for id in ids if first[id] == again[id]]
    assert steady, "no case has the same bits twice"
    found = {}
    for number, (name, way) in enumerate(WAYS.items()):
        got = bits(library, steady, folder / f"way{number}", way)
        found[name] = [id for id in steady if got[id] != first[id]]
    return found


def fast(library: str) -> list[str]:
    return [c.id for c in case.cases_of(library) if c.fast]


@pytest.mark.parametrize("library", [pytest.param("cufft", marks=pytest.mark.long), pytest.param("curand", marks=pytest.mark.wide)])
def test_some(library: str, tmp_path: Path) -> None:
    assert not any(found := ways_that_differ(library, fast(library)[::5], tmp_path).values()), found


@pytest.mark.long
@pytest.mark.parametrize("library", sorted(case.LIBRARIES))
def test_all(library: str, tmp_path: Path) -> None:
    assert not any(found := ways_that_differ(library, fast(library), tmp_path).values()), found


def test_a_fault_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused multiply-adds that are a little off in one of the ways, within what the references allow."""
    monkeypatch.setitem(WAYS, "quick code", {"FAULT": "fma"})
    for name in list(WAYS)[1:]:
        monkeypatch.delitem(WAYS, name)
    monkeypatch.setattr(case, "LIMIT", float("inf"))
    assert ways_that_differ("cufft", fast("cufft")[:1], tmp_path)["quick code"]
