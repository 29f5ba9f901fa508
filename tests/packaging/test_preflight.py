"""tools/preflight.py: a missing prerequisite is reported in one line before anything is downloaded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def preflight() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preflight", ROOT / "tools" / "preflight.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_this_machine_will_do() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "preflight.py", "build"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "download" in done.stdout, done.stderr


def test_no_compiler(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "preflight.py", "build"], capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "apt-get install g++" in done.stderr


def test_too_little_disk(preflight: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=50_000_000))
    assert "50 MB are free" in preflight.problem("demo")


def test_an_old_python(preflight: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.sys, "version_info", (3, 9, 2))
    assert "3.11" in preflight.problem("build")


def test_another_platform(preflight: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.platform, "machine", lambda: "aarch64")
    assert "x86-64 Linux" in preflight.problem("build")


def test_no_venv(preflight: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "python3-venv" in preflight.problem("build")
