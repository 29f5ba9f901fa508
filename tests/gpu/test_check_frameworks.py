"""How gpu-check reads framework programs that fail, with simulated runs, because real failures depend on the machine."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHECK = Path(__file__).parent / "check"
MODULES = ("frameworks", "machine", "parts", "proxy", "report", "runs")


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, under its own short name only as long as the test runs."""
    monkeypatch.syspath_prepend(str(CHECK))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import frameworks as module  # type: ignore[import-not-found]

    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def told(test: str, **what: Any) -> str:
    return json.dumps({"test": test, "begin": True}) + "\n" + json.dumps({"test": test, **what}) + "\n"


def right(test: str, values: tuple[float, ...] = (2.0, 1.5)) -> str:
    return told(test, ok=True, values=list(values), step_ms=2.0, images_s=100.0)


class Scripted:
    """Runs that are looked up by (link, tests) instead of run."""

    def __init__(self, module: Any, runs: dict[tuple[str, str], tuple[int | None, str, str]]) -> None:
        self.module, self.runs, self.asked = module, runs, []

    def run(self, command: list[str], link: str, limit: float, *_: Any) -> Any:
        tests = "" if "--list" in command else command[command.index("--tests") + 1]
        self.asked.append((link, tests))
        code, out, err = (0, "a b c", "") if not tests else self.runs[link, tests]
        return sys.modules["runs"].Ran(code, out, err, 1.0)


def rows_of(module: Any, runs: dict[tuple[str, str], tuple[int | None, str, str]], link: str) -> list[tuple[str, str, str]]:
    scripted = Scripted(module, {("native", "a,b,c"): (0, right("a") + right("b") + right("c"), ""), **runs})
    machine = types.SimpleNamespace(frameworks={"torch": "python"})
    report = types.SimpleNamespace(left=lambda: 100.0)
    check = types.SimpleNamespace(machine=machine, runs=scripted, report=report, small=False, run=scripted.run)
    native: dict[tuple[str, str], dict[str, Any]] = {}
    assert [row.result for row in module.one(check, "torch", "native", native)] == ["ok"] * 3
    return [(row.name, row.result, row.detail) for row in module.one(check, "torch", link, native)]


def test_after_a_refused_call_the_rest_is_tried_anew(frameworks: Any) -> None:
    said = "gpuvirt: cuStreamBeginCapture_v2 is not supported (stream capture: not yet): it returned CUDA_ERROR_NOT_SUPPORTED\n"
    runs = {
        ("shm", "a,b,c"): (9, right("a") + told("b", ok=False, error="RuntimeError: CUDA error"), said),
        ("shm", "c"): (0, right("c"), ""),
    }
    a, b, c = rows_of(frameworks, runs, "shm")
    assert a == ("PyTorch a", "ok", "same numbers") and c == ("PyTorch c", "ok", "same numbers")
    assert b == ("PyTorch b", "stopped", "needs cuStreamBeginCapture_v2: RuntimeError: CUDA error")


def test_wrong_numbers_a_crash_and_a_hang_are_wrong(frameworks: Any) -> None:
    lost = "gpuvirt: launch (command 7) failed on tcp://h:1 with CUDA error 700\n"
    runs = {
        ("tcp", "a,b,c"): (-11, right("a", (2.0, 1.6)) + json.dumps({"test": "b", "begin": True}) + "\n", lost),
        ("tcp", "c"): (None, json.dumps({"test": "c", "begin": True}) + "\n", ""),
    }
    a, b, c = rows_of(frameworks, runs, "tcp")
    assert a[:2] == ("PyTorch a", "WRONG") and "[2.0, 1.6] is not [2.0, 1.5]" in a[2]
    assert b == ("PyTorch b", "WRONG", "exit -11: gpuvirt: launch (command 7) failed on tcp://h:1 with CUDA error 700")
    assert c[:2] == ("PyTorch c", "WRONG") and c[2].startswith("no end in time")


def test_numbers_may_differ_by_rounding(frameworks: Any) -> None:
    runs = {("tcp", "a,b,c"): (0, right("a", (2.0, 1.5001)) + right("b") + right("c", (2.0,)), "")}
    a, _, c = rows_of(frameworks, runs, "tcp")
    assert a == ("PyTorch a", "ok", "numbers within 0.002")
    assert c[1] == "WRONG", "a step that is missing is no rounding"


def test_what_fails_natively_is_not_ours(frameworks: Any) -> None:
    runs = {
        ("native", "a,b,c"): (9, right("a") + told("b", ok=False, error="no NCCL"), ""),
        ("native", "c"): (1, "", "ImportError"),
        ("shm", "a"): (0, right("a"), ""),
    }
    scripted = Scripted(frameworks, runs)
    machine = types.SimpleNamespace(frameworks={"torch": "python"})
    check = types.SimpleNamespace(machine=machine, runs=scripted, report=types.SimpleNamespace(left=lambda: 100.0), small=False, run=scripted.run)
    native: dict[tuple[str, str], dict[str, Any]] = {}
    assert [row.result for row in frameworks.one(check, "torch", "native", native)] == ["ok", "not run", "not run"]
    assert [row.result for row in frameworks.one(check, "torch", "shm", native)] == ["ok"]
