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


@pytest.mark.parametrize(
    ("framework", "fault", "fails", "stands"),
    [
        ("jax", "coarse", {"matmul", "convolution", "softmax"}, {"integers", "sorting", "gather_and_scatter"}),
        ("tensorflow", "mma", {"matmul_half"}, {"elementwise", "sorting", "random_numbers", "gather_and_scatter"}),
    ],
)
def test_a_fault_is_noticed(tmp_path: Path, framework: str, fault: str, fails: set[str], stands: set[str]) -> None:
    """Where fused multiply-adds are off by 2^-12, or results of matrix instructions change places (XLA uses none for JAX's products here), what needs them
    fails, and nothing else."""
    wrong = {name for name, text in run(framework, tmp_path, fault=fault).items() if text}
    assert fails <= wrong and not wrong & stands, wrong
