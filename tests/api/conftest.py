"""Builds the generated sources, and with them a libcuda.so.1 whose implementations only record their calls, to test the generated code alone."""

from __future__ import annotations

import sys
from pathlib import Path

import c_build
import pytest
from api.building import ROOT, recorders

sys.path.insert(0, str(ROOT / "native" / "api"))

import generate

SHIM = ROOT / "native" / "shim"


@pytest.fixture(scope="session")
def headers_at() -> list[Path]:
    return generate.installed_headers()


@pytest.fixture(scope="session")
def generated() -> Path:
    return c_build.generated()


@pytest.fixture(scope="session")
def includes(generated: Path, headers_at: list[Path]) -> list[Path]:
    return [generated, *(ROOT / "native" / part for part in ("shim", "wire", "transport")), ROOT / "native", headers_at[0]]


@pytest.fixture(scope="session")
def fake_driver(generated: Path, includes: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libcuda.so.1 over recorders: everything of the API but no session."""
    out = tmp_path_factory.mktemp("driver")
    (out / "recorders.c").write_text(recorders((generated / "gv_impl.h").read_text()))
    sources = [*sorted((SHIM / "abi").glob("*.c")), SHIM / "session" / "quiet_write.c", SHIM / "session" / "log" / "log_lines.c"]
    sources += [generated / name for name in ("gv_stubs.c", "gv_proc_table.c", "gv_errors.c")]
    sources += [out / "recorders.c", Path(__file__).with_name("fakes.c")]
    flags = ["-fvisibility=hidden", *(f"-I{folder}" for folder in (*includes, Path(__file__).parent))]
    return c_build.library(out / "libcuda.so.1", sources, flags=flags, libraries=["-Wl,--no-undefined,-z,nodelete,-Bsymbolic"])


@pytest.fixture(scope="session")
def fake_nvml(fake_driver: Path, generated: Path, includes: list[Path]) -> Path:
    """libnvidia-ml.so.1 beside the fake driver, as they are installed."""
    sources = [*sorted((SHIM / "nvml").glob("*.c")), generated / "gv_nvml_stubs.c"]
    flags = ["-fvisibility=hidden", *(f"-I{folder}" for folder in includes)]
    return c_build.library(fake_driver.parent / "libnvidia-ml.so.1", sources, flags=flags, libraries=["-Wl,--no-undefined"])
