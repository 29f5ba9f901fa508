"""Pools to run on, and the compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import HERE, Server, clean_environment, start_server


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
    """The `cuda` backend with our own shim in the place of the driver, on strict software GPUs. Proves plumbing, never meaning."""
    from gpuvirt import paths

    far = start_server(tmp_path_factory.mktemp("far"), "--backend", "soft", "--strict", "--gpus", "2", "--gpu-memory", "1g")
    env = clean_environment(GPUVIRT_POOL=far.url, GPUVIRT_GPUS="2")
    driver = paths.library("libcuda.so.1")
    near = start_server(tmp_path_factory.mktemp("near"), "--backend", "cuda", "--driver", str(driver), env=env)
    yield near
    near.stop()
    far.stop()


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a program of tests/e2e/programs by the wheel's nvcc; once a session."""
    from gpuvirt.demo.programs import find_nvcc

    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, *options: str) -> Path:
        target = folder / "-".join([name, *(o.strip("-").replace("=", "_").replace("/", "_") for o in options)])
        if not target.exists():
            source = HERE / "programs" / f"{name}.cu"
            runtime = [] if "-cudart" in options else ["-cudart", "static"]
            line = [str(find_nvcc()), "-O2", *runtime, *options, str(source), "-o", str(target)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        return target

    return compile_program
