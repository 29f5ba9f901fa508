"""Numba's CUDA target under `gpuvirt run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from soft.frameworks import running

pytestmark = pytest.mark.slow
NAMES = running.names("numba")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    return running.run("numba", tmp_path_factory.mktemp("numba"))


@pytest.mark.parametrize("name", NAMES)
def test_numba(found: tuple[dict[str, str], str], name: str) -> None:
    assert not found[0][name], found[0][name]


def test_what_kernels_print(found: tuple[dict[str, str], str]) -> None:
    assert found[1] == "thread 3 of 7 2.500000"


@pytest.mark.wide
def test_a_fault_is_noticed(tmp_path: Path) -> None:
    """Where fused multiply-adds are off in the last places, checks of arithmetic fail, and others do not."""
    wrong = {name for name, text in running.run("numba", tmp_path, fault="fma")[0].items() if text}
    assert "fused_multiply_add_is_exact" in wrong and not wrong & {"vector_add", "reduction", "atomics", "grid_wide_barrier"}
