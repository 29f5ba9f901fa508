"""gpuvirt.remote() and gpuvirt.devices(), up to the first CUDA call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server.harness import FakeServer, environment

import gpuvirt


def python(code: str, server: FakeServer, lib_dir: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    env = environment(tmp_path) | {"GPUVIRT_LIB_DIR": str(lib_dir), "GPUVIRT_TOKEN": server.token.text()}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env, check=False)


def test_the_libraries_are_there_for_whoever_asks(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    code = f"""
import ctypes, os, gpuvirt
with gpuvirt.remote(gpus=2, pool={server.url!r}, link="tcp") as remote:
    ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")  # by name, as a CUDA program does
    print(remote.pool, os.environ["GPUVIRT_GPUS"], os.environ["GPUVIRT_LINK"], os.environ["CUPY_COMPILE_WITH_PTX"], "LD_PRELOAD" in os.environ)
    with gpuvirt.remote(gpus=2, pool={server.url!r}, link="tcp"):
        pass
try:
    gpuvirt.remote(gpus=1, pool={server.url!r}).__enter__()
except gpuvirt.GpuvirtError as error:
    print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{server.url} 2 tcp 1 {'LD_PRELOAD' in os.environ}"
    assert "already attached to" in second and "other settings" in second
    assert done.stderr == "[shim]"


def test_too_late(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    code = f"""
import ctypes, gpuvirt
ctypes.CDLL({str(lib_dir / "libcuda.so.1")!r})
try:
    gpuvirt.remote(pool={server.url!r}).__enter__()
except gpuvirt.GpuvirtError as error:
    print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.stdout.startswith("CUDA is already loaded (") and "libcuda.so.1" in done.stdout, done.stderr


def test_no_server(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    code = """
import gpuvirt
url = "tcp://127.0.0.1:1"
for what in (lambda: gpuvirt.remote(pool=url).__enter__(), lambda: gpuvirt.devices(url), lambda: gpuvirt.remote(gpus=99)):
    try:
        what()
    except gpuvirt.GpuvirtError as error:
        print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and "no GPU server at tcp://127.0.0.1:1" in lines[0] and lines[0] == lines[1] and "99" in lines[2], done.stderr


def test_devices(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    code = f"""
import dataclasses, gpuvirt
found = gpuvirt.devices({server.url!r})
print([(type(d) is gpuvirt.Device, d.ordinal, d.memory, d.server, d.backend) for d in found])
try:
    found[0].memory = 0
except dataclasses.FrozenInstanceError:
    print("frozen")
"""
    done = python(code, server, lib_dir, tmp_path)
    expected = [(True, ordinal, 1 << 30, "testserver", "soft") for ordinal in (0, 1)]
    assert done.stdout == f"{expected}\nfrozen\n", done.stderr


def test_not_entered(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    code = """
import gpuvirt
try:
    gpuvirt.remote(local=True).pool
except gpuvirt.GpuvirtError as error:
    print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.stdout == "gpuvirt.remote() has not been entered\n", done.stderr


def test_type_checkers_read_the_annotations() -> None:
    """PEP 561: without this file the annotations of an installed package are not used."""
    assert (Path(gpuvirt.__file__).parent / "py.typed").is_file()


def test_a_private_pool_is_entered_again(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    """What the first time put into the environment is not taken for the user's own settings the second time."""
    code = """
import gpuvirt
with gpuvirt.remote(local=True) as first, gpuvirt.remote(local=True) as second:
    print(first.pool == second.pool)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.stdout == "True\n", done.stderr
