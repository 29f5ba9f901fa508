"""A server without real workers and libraries without contents, sufficient up to a program's first CUDA call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server.harness import FakeServer, build_echo_worker, environment, start_fake

Gpuvirt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def lib_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty libraries of the right names; libcuda.so.1 says when it is loaded. The worker library echoes."""
    folder = tmp_path_factory.mktemp("lib")
    source = folder / "lib.c"
    source.write_text(
        '#include <stdio.h>\n__attribute__((constructor)) static void on_load(void) { if (LOUD) fputs("[shim]", stderr); }\n'
        "int gpuvirt_block(int inside) { (void)inside; return 0; }\nvoid gpuvirt_figures(unsigned long long f[3]) { f[0] = f[1] = f[2] = 0; }\n"
    )
    for name, loud in (("libcuda.so.1", 1), ("libnvidia-ml.so.1", 0)):
        line = ["gcc", "-shared", "-fPIC", f"-DLOUD={loud}", f"-Wl,-soname,{name}", str(source), "-o", str(folder / name)]
        subprocess.run(line, check=True)
    build_echo_worker(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    started = start_fake(tmp_path_factory.mktemp("fake"), gpus=2, gpu_memory=1 << 30, name="testserver")
    yield started
    started.stop()


@pytest.fixture
def gpuvirt(tmp_path: Path, lib_dir: Path) -> Gpuvirt:
    """Runs `gpuvirt ...` with everything of its own; keywords are further variables, None takes one away."""

    def run(*arguments: str | Path, server: FakeServer | None = None, **more: str | None) -> subprocess.CompletedProcess[str]:
        env = environment(tmp_path) | {"GPUVIRT_LIB_DIR": str(lib_dir), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        if server is not None:
            env |= {"GPUVIRT_POOL": server.url, "GPUVIRT_TOKEN": server.token.text()}
        env |= {name: value for name, value in more.items() if value is not None}
        for name, value in more.items():
            if value is None:
                env.pop(name, None)
        line = [sys.executable, "-P", "-m", "gpuvirt", *map(str, arguments)]
        return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, env=env, check=False)

    return run
