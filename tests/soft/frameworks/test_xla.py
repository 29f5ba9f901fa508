"""TensorFlow and JAX under `gpuvirt run`, with no flag; `make test-long` puts them into .venv/xla (7 GB with NVIDIA's libraries)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soft.frameworks import running

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
PACKAGES = Path(os.environ.get("XLA_PACKAGES") or Path(__file__).resolve().parents[3] / ".venv" / "xla")


def run(framework: str, folder: Path, **more: str) -> dict[str, str]:
    assert (PACKAGES / framework).is_dir(), f"no {framework} in {PACKAGES}; make test-long installs it"
    return running.run(framework, folder, PACKAGES, limit=3000, gpus=2, **more)[0]


@pytest.fixture(scope="module")
def jax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run("jax", tmp_path_factory.mktemp("jax"))


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run("tensorflow", tmp_path_factory.mktemp("tensorflow"))


@pytest.mark.parametrize("name", running.names("jax"))
def test_jax(jax: dict[str, str], name: str) -> None:
    assert not jax[name], jax[name]


@pytest.mark.parametrize("name", running.names("tensorflow"))
def test_tensorflow(tensorflow: dict[str, str], name: str) -> None:
    assert not tensorflow[name], tensorflow[name]


def test_a_fault_is_noticed(tmp_path: Path) -> None:
    """Where results of matrix instructions change places, products on tensor cores fail, and what needs none does not."""
    wrong = {name for name, text in run("jax", tmp_path, fault="mma").items() if text}
    assert "matmul_tensor_cores" in wrong and not wrong & {"elementwise", "integers", "sorting", "random_numbers", "gather_and_scatter"}
