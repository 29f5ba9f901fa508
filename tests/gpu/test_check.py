"""The logic of gpu-check, chained on software GPUs: it compares, reports, and fails when it must. Shows nothing about a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CHECK = [sys.executable, str(HERE / "check")]
RESULTS = {"ok", "WRONG", "stopped", "not here", "not run", ""}


def run_check(out: Path, *options: str, timeout: float = 560, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_") or k == "GPUVIRT_LIB_DIR"}
    line = [*CHECK, "--json", str(out), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=kept | env, check=False)
    return done, json.loads(out.read_text()) if out.exists() else {}


def named(report: dict[str, Any], part: str, link: str | None = None) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["part"] == part and link in (None, row["link"])]


@pytest.mark.wide
def test_chained(tmp_path: Path) -> None:
    done, report = run_check(tmp_path / "check.json", "--small", BACKEND="chained")
    assert done.returncode == 0 == report["exit"], done.stdout + done.stderr
    assert report["label"].startswith("chained") and "gpu-check (chained" in done.stdout
    rows = report["rows"]
    assert all(set(row) == {"part", "name", "link", "result", "detail", "figures"} and row["result"] in RESULTS for row in rows)
    assert report["counts"]["ok"] == sum(row["result"] == "ok" for row in rows) > 20
    # The same programs natively and over every link, native first.
    for name in ("vector_add.cu", "examples elementwise.py"):
        assert [row["link"] for row in rows if row["name"] == name] == ["native", "shm", "tcp"]
    # Chained on itself a driver can differ from the shim in nothing that was asked.
    (wrong_calls,) = [row for row in named(report, "differences") if row["name"] == "wrong calls"]
    assert wrong_calls["figures"]["asked"] > 80 and wrong_calls["figures"]["only native"] == 0
    assert {row["link"] for row in named(report, "rates")} == {"native", "shm", "tcp"}
    assert all(row["figures"].get("of native", 0) > 0 for row in named(report, "rates", "tcp"))
    parked, suspended, parts = named(report, "sharing")
    assert parked["result"] == suspended["result"] == parts["result"] == "ok" and parked["figures"]["MiB"] >= 64 and parts["figures"]["busy"] > 0.3
    (cut,) = named(report, "resume")
    assert (cut["result"], cut["name"]) == ("ok", "cut 3 times")
    steps = [row for row in named(report, "frameworks") if row["name"] == "CuPy kernel"]
    assert [row["link"] for row in steps] == ["native", "shm", "delay(rtt=1ms,tcp)"]
    assert all(row["figures"]["waits_per_step"] == 0 and len(row["figures"]["values"]) == 5 for row in steps)
    assert all(row["figures"]["remote/native"] > 0 for row in steps[1:])
    # What is said as it comes, and the table, hold every row.
    assert done.stdout.count("vector_add.cu") >= 6 and "passed" in done.stdout.splitlines()[-2]


@pytest.mark.wide
def test_lost_launches_fail_it(tmp_path: Path) -> None:
    done, report = run_check(tmp_path / "check.json", "--small", "--test-fault=launches", "programs", "frameworks", "resume", BACKEND="chained")
    assert done.returncode == 1 == report["exit"] and "failed" in done.stdout.splitlines()[-2]
    for part, name in (("programs", "vector_add.cu"), ("programs", "examples elementwise.py"), ("frameworks", "CuPy kernel")):
        results = {row["link"]: row["result"] for row in named(report, part) if row["name"] == name}
        assert results.pop("native") == "ok" and len(results) == 2 and set(results.values()) == {"WRONG"}, f"{name}: {results}"
    assert [row["result"] for row in named(report, "resume")] == ["WRONG"]


@pytest.mark.slow
def test_a_spent_budget_is_said(tmp_path: Path) -> None:
    done, report = run_check(tmp_path / "check.json", "--small", "--budget", "1", "programs", "rates", BACKEND="chained")
    assert [(row["part"], row["result"]) for row in report["rows"] if row["part"] != "start"] == [("programs", "not run"), ("rates", "not run")]
    assert done.returncode == 1, "nothing was compared, so nothing has passed"


def test_without_a_driver(tmp_path: Path) -> None:
    blind = tmp_path / "libcuda.so.1"
    blind.write_text("no library")
    done, report = run_check(tmp_path / "check.json", LD_LIBRARY_PATH=str(tmp_path), BACKEND="")
    if report:
        pytest.skip("this machine has a driver that an unreadable one on LD_LIBRARY_PATH does not hide")
    assert done.returncode == 77 and done.stdout == "no NVIDIA driver found\n"


def test_what_is_missing_is_named() -> None:
    """A machine whose Python lacks what gpuvirt needs is told so, not shown a traceback."""
    code = f"""
import sys
sys.path.insert(0, {str(HERE / "check")!r})
import machine
machine.NEEDED = {{"nonsense_module": "nonsense-package", "json": "json"}}
try:
    machine.gpuvirt_python(False)
except machine.Missing as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "lacks nonsense-package" in done.stdout and "gpu-wheels" in done.stdout, done.stderr
    assert "json" not in done.stdout


ADDS = """#include <cstdio>
__global__ void add(int *v) { v[threadIdx.x] += threadIdx.x; }
int main() {
    int *v, wrong = 0, got[32] = {};
    if (cudaMalloc(&v, sizeof got) || cudaMemcpy(v, got, sizeof got, cudaMemcpyHostToDevice)) return 1;
    add<<<1, 32>>>(v);
    if (cudaMemcpy(got, v, sizeof got, cudaMemcpyDeviceToHost)) return 1;
    for (int i = 0; i < 32; i++) wrong += got[i] != i;
    std::printf("%s\\n", wrong ? "FAILED" : "PASSED");
    return wrong != 0;
}
"""


@pytest.mark.wide
@pytest.mark.parametrize("fault", ["", "launches"])
def test_programs_of_others(tmp_path: Path, fault: str) -> None:
    """Those of a checkout, natively and with ours; what does not pass natively is not asked of ours."""
    folder = tmp_path / "checkout" / "test"
    folder.mkdir(parents=True)
    for name, text in {"adds": ADDS, "is_wrong": "int main() { return 1; }", "no_program": "int main() { return no; }"}.items():
        (folder / f"{name}.cu").write_text(text)
    options = ["--checkout", str(folder.parent), *([f"--test-fault={fault}"] if fault else []), "outside"]
    done, report = run_check(tmp_path / "check.json", *options, BACKEND="chained")
    rows = {(row["name"], row["link"]): row for row in named(report, "outside")}
    assert done.returncode == bool(fault), done.stdout + done.stderr
    assert rows["checkout", "native"]["figures"] == {"compiled": 2, "run": 2, "passed": 1, "wrong": 1} and ("is_wrong", "native") in rows
    assert ("is_wrong", "shm") not in rows
    if fault:
        assert rows["adds", "shm"]["result"] == "WRONG" and "FAILED" in rows["adds", "shm"]["detail"]
    else:
        assert rows["checkout", "shm"]["figures"] == {"run": 1, "passed": 1}
