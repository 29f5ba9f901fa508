"""Which code of an image runs on a software GPU, by its compute capability."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import HERE, Server, clean_environment, run_program

pytestmark = pytest.mark.slow

PROGRAM = HERE / "programs" / "images.py"
# PTX beside machine code, of several architectures, a family's among them.
CODE = ("75,code=compute_75", "90,code=[sm_90,compute_90]", "120f,code=[sm_120f,compute_120f]")


@pytest.fixture(scope="session")
def fatbin(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    from gpuvirt.demo.programs import find_nvcc

    folder = tmp_path_factory.mktemp("images")

    def make(mode: str, *code: str) -> Path:
        target = folder / f"{mode}-{len(code)}.fatbin"
        if not target.exists():
            choices = [f"-gencode=arch=compute_{c}" for c in code]
            line = [find_nvcc(), "-fatbin", f"--compress-mode={mode}", *choices, "-o", target, HERE / "programs" / "images.cu"]
            subprocess.run(line, check=True, capture_output=True, timeout=120)
        return target

    return make


def found(server: Server, image: Path, *options: str) -> tuple[list[object], str]:
    done = run_program(server, [sys.executable, PROGRAM, image], *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("mode", ["none", "speed", "size"])  # as it is, LZ4, ZSTD
def test_newest_ptx_that_the_capability_allows(pool: Server, fatbin: Callable[..., Path], mode: str) -> None:
    image = fatbin(mode, *CODE)
    for options, arch in (((), 1200), (("--capability", "9.0"), 900), (("--capability", "8.6"), 750)):
        assert found(pool, image, *options)[0] == [[arch, 7, 41]] * 2, (mode, options)


def test_without_ptx(pool: Server, fatbin: Callable[..., Path]) -> None:
    """Refused by a line that says where the image is from and what is in it, and says it once."""
    image = fatbin("none", "90,code=sm_90")
    codes, said = found(pool, image)
    assert codes == [209, 209]
    lines = [line for line in said.splitlines() if "carries no program for this device of compute capability 13.0" in line]
    assert len(lines) == 2 and lines[0].startswith(f"gpuvirt: {image} ") and "an image in memory that " in lines[1]
    assert all("runs PTX only" in line and "SASS for 90" in line for line in lines)


def test_only_newer_ptx(pool: Server, fatbin: Callable[..., Path]) -> None:
    codes, said = found(pool, fatbin("none", *CODE), "--capability", "7.0")
    assert codes == [209, 209] and "compute capability 7.0" in said and "PTX for 75" in said


def test_capability_of_the_server(own_pool: Callable[..., Server], fatbin: Callable[..., Path]) -> None:
    server = own_pool("--backend", "soft", "--capability", "9.0", "--gpu-memory", "256m")
    assert found(server, fatbin("none", *CODE))[0] == [[900, 7, 41]] * 2


def test_a_wrong_capability(pool: Server) -> None:
    for environment, options in (({}, ["--capability", "nine"]), ({"GPUVIRT_CAPABILITY": "9"}, [])):
        line = [sys.executable, "-P", "-m", "gpuvirt", "run", "--pool", pool.url, *options, "--", "true"]
        done = subprocess.run(line, capture_output=True, text=True, env=clean_environment(**environment))
        assert done.returncode in (2, 125) and "is not a compute capability such as 8.0" in done.stderr
