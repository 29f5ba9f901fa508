"""PyTorch's expandable segments under `gpuvirt run`; `make test-long` puts PyTorch into .venv/torch (4 GB with NVIDIA's libraries)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soft.frameworks import running

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TORCH = Path(os.environ.get("TORCH_PACKAGES") or Path(__file__).resolve().parents[3] / ".venv" / "torch")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    assert (TORCH / "torch").is_dir(), f"no PyTorch in {TORCH}; make test-long installs it"
    return running.run("torch", tmp_path_factory.mktemp("torch"), TORCH, limit=600)[0]


@pytest.mark.parametrize("name", running.names("torch"))
def test_expandable_segments(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]
