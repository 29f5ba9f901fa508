"""Triton under `gpuvirt run`, with the PyTorch that `make test-long` puts into .venv/torch (4 GB with NVIDIA's libraries)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soft.frameworks import running

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
TORCH = Path(os.environ.get("TORCH_PACKAGES") or Path(__file__).resolve().parents[3] / ".venv" / "torch")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    assert (TORCH / "triton").is_dir(), f"no Triton in {TORCH}; make test-long installs it"
    return running.run("triton", tmp_path_factory.mktemp("triton"), TORCH, limit=900)[0]


@pytest.mark.parametrize("name", running.names("triton"))
def test_triton(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


def test_a_fault_is_noticed(tmp_path: Path) -> None:
    """Where results of matrix instructions change places, products on tensor cores fail, and nothing else does."""
    wrong = {name for name, text in running.run("triton", tmp_path, TORCH, fault="mma", limit=900)[0].items() if text}
    assert {"matmul_half", "matmul_tf32"} == wrong
