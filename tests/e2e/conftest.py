"""Fixtures: pools of software GPUs, and the compiler of CUDA programs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import c_build
import pytest
from e2e.harness import GPUVIRT, HERE, SERVERS, Server, clean_environment, start_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers said, which nobody can look up afterwards."""
    report = yield
    if report.failed:
        for server in SERVERS:
            report.sections.append((f"log of {server.url}", "\n".join(server.log.read_text(errors="replace").splitlines()[-40:])))
    return report


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two software GPUs of 1 GiB, for all tests that do not harm them."""
    server = start_server(tmp_path_factory.mktemp("pool"), "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g")
    yield server
    server.stop()


@pytest.fixture
def own_pool(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers that a test may kill."""
    servers: list[Server] = []

    def start(*options: str, **how: Any) -> Server:
        options = options or ("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g")
        servers.append(start_server(tmp_path / f"server{len(servers)}", *options, **how))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The `cuda` backend with our own shim in the place of the driver, on strict software GPUs: tests the parts together, not a real driver."""
    from gpuvirt import paths

    far = start_server(tmp_path_factory.mktemp("far"), "--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "1g")
    env = clean_environment(GPUVIRT_POOL=far.url, GPUVIRT_GPUS="2")
    driver = paths.library("libcuda.so.1")
    near = start_server(tmp_path_factory.mktemp("near"), "--backend", "cuda", "--driver", str(driver), env=env)
    yield near
    near.stop()
    far.stop()


@pytest.fixture(scope="session")
def chained_sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `chained`, with one lease for all of its workers, so that the far server lets them share memory, as processes of one machine do."""
    from gpuvirt import paths

    far = start_server(tmp_path_factory.mktemp("far"), "--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "1g")
    line = [*GPUVIRT, "attach", "--pool", far.url, "--gpus", "2", "--print", "--pid", str(os.getpid())]
    said = subprocess.run(line, capture_output=True, text=True, timeout=60, env=clean_environment(), check=True).stdout
    lease = next(text.partition("=")[2] for text in said.splitlines() if text.startswith("export GPUVIRT_LEASE="))
    env = clean_environment(GPUVIRT_POOL=far.url, GPUVIRT_LEASE=lease)
    driver = paths.library("libcuda.so.1")
    near = start_server(tmp_path_factory.mktemp("near"), "--backend", "cuda", "--driver", str(driver), "--grace", "3s", env=env)
    yield near
    near.stop()
    far.stop()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Callable[..., tuple[Server, Server]]]:
    """A server with the `cuda` backend, and the one whose software GPUs are its driver's: GPUs of 256 MiB."""
    from gpuvirt import paths

    servers: list[Server] = []
    driver = paths.library("libcuda.so.1")

    def start(*options: str, gpus: int = 1) -> tuple[Server, Server]:
        far = start_server(tmp_path / "far", "--backend", "soft", "--strict", "--gpus", str(gpus), "--gpu-memory", "256m")
        env = clean_environment(GPUVIRT_POOL=far.url, GPUVIRT_GPUS=str(gpus))
        servers.append(far)
        near = start_server(tmp_path / "near", "--backend", "cuda", "--driver", str(driver), *options, env=env)
        servers.append(near)
        return near, far

    yield start
    for server in reversed(servers):
        server.stop()


MANY = 40  # tests from which on all programs are compiled beside them: a test mostly waits, and nvcc takes some seconds


@pytest.fixture(scope="session")
def build(request: pytest.FixtureRequest) -> Iterator[Callable[..., Path]]:
    """Compiles a program of tests/e2e/programs by the wheel's nvcc, once for what it is made of: they stay in build-tests."""
    from gpuvirt.demo.programs import find_nvcc

    nvcc = find_nvcc()
    stamp = f"{nvcc} {nvcc.stat().st_size} {nvcc.stat().st_mtime_ns}"
    programs = HERE / "programs"
    made: dict[tuple[str, ...], Future[Path]] = {}
    lock = threading.Lock()

    def compile_program(name: str, *options: str) -> Path:
        runtime = [] if "-cudart" in options else ["-cudart", "static"]
        parts = [(programs / f"{name}.cu").read_text(), (programs / "check.h").read_text(), stamp, *runtime, *options]
        target = c_build.STORE / "cuda" / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            own = target.with_suffix(f".{os.getpid()}")
            line = [str(nvcc), "-O2", *runtime, *options, str(programs / f"{name}.cu"), "-o", str(own)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            os.replace(own, target)
        os.utime(target)
        return target

    def start(pool: Executor, *program: str) -> Future[Path]:
        with lock:
            if program not in made:
                made[program] = pool.submit(compile_program, *program)
            return made[program]

    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(1) as asked:
        if sum(item.path.parent == HERE for item in request.session.items) > MANY:
            for source in sorted(set(programs.glob("*.cu")) - {programs / "images.cu", programs / "nvrtc_cubin.cu"}):
                beside.submit(lambda name: start(asked, name).result(), source.stem)
        yield lambda *program: start(asked, *program).result()
        beside.shutdown(cancel_futures=True)
