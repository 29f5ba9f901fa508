"""The plug-in for JAX that `gpuvirt run` puts on PYTHONPATH, with a jaxlib of any version."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from types import SimpleNamespace

import pytest

from gpuvirt import paths

ADDED = "--xla_gpu_enable_libnvptxcompiler=false --xla_gpu_enable_libnvjitlink=false"


def flags_with(monkeypatch: pytest.MonkeyPatch, version: str, flags: str | None) -> str | None:
    """XLA_FLAGS after JAX has begun with the plug-in that its entry points name."""
    monkeypatch.syspath_prepend(str(paths.PYTHON_COMPAT))
    monkeypatch.setitem(sys.modules, "jaxlib", SimpleNamespace(__version__=version))
    monkeypatch.setenv("XLA_FLAGS", flags) if flags is not None else monkeypatch.delenv("XLA_FLAGS", raising=False)
    found: list[Distribution] = list(MetadataPathFinder.find_distributions(DistributionFinder.Context(path=[str(paths.PYTHON_COMPAT)])))
    (plugin,) = [entry for one in found for entry in one.entry_points if entry.group == "jax_plugins"]
    importlib.import_module(plugin.value).initialize()
    return os.environ.get("XLA_FLAGS")


@pytest.mark.parametrize(
    ("version", "flags", "after"),
    [
        ("0.12.0.1", None, ADDED),
        ("0.10.2", "--xla_gpu_autotune_level=0", f"{ADDED} --xla_gpu_autotune_level=0"),
        ("1.0.0", "--xla_gpu_enable_libnvjitlink=true", f"{ADDED.split()[0]} --xla_gpu_enable_libnvjitlink=true"),
        ("0.9.1", "--xla_gpu_autotune_level=0", "--xla_gpu_autotune_level=0"),
        ("0.12.1.dev3", "", ADDED),
        ("0.12.0", "flags.txt", "flags.txt"),
        ("0.4.38", None, None),
    ],
)
def test_flags_that_its_xla_knows(monkeypatch: pytest.MonkeyPatch, version: str, flags: str | None, after: str | None) -> None:
    assert flags_with(monkeypatch, version, flags) == after
