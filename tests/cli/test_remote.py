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
    for other in (gpuvirt.remote(gpus=1, pool={server.url!r}, link="tcp"), gpuvirt.remote(gpus=2, pool={server.url!r}, link="shm")):
        try:
            other.__enter__()
        except gpuvirt.GpuvirtError as error:
            print(error)
try:
    gpuvirt.remote(gpus=2, pool={server.url!r}, link="shm").__enter__()
except gpuvirt.GpuvirtError as error:
    print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == f"{server.url} 2 tcp 1 {'LD_PRELOAD' in os.environ}"
    assert len(others) == 3 and all("already, with other settings" in other for other in others)
    assert "a block inside of another" in others[0] and "loaded for that server and link" in others[2]
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


def test_blocks_before_cuda_begins(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    """Each has GPUs of its own choice, and leaving it gives them back; `attach` is one without an end."""
    code = f"""
import asyncio, os, gpuvirt
from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve

def leases():
    return [(lease["state"], lease["devices"], lease["named"]) for lease in ask_pool(resolve({{"pool": {server.url!r}}}), "ps")["leases"]]

ids = set()
for gpus in (1, 2, 1):
    with gpuvirt.remote(gpus, {server.url!r}) as lease:
        assert leases() == [("idle", list(range(gpus)), True)], leases()
        assert [device.ordinal for device in lease.devices] == list(range(gpus)) and not lease.begun and not lease.released
        assert os.environ["GPUVIRT_GPUS"] == str(gpus)
        ids.add(os.environ["GPUVIRT_LEASE"])
        stats = lease.stats()
        assert (stats.calls, stats.launches, stats.memory_used) == (0, 0, None)
    assert leases() == [] and lease.released
    try:
        lease.devices
    except gpuvirt.GpuvirtError as error:
        assert "given back" in str(error)
assert len(ids) == 1  # the client library has read it once
lease = gpuvirt.attach(gpus=2, pool={server.url!r}, memory="64m")
assert os.environ["GPUVIRT_MEMORY"] == str(64 << 20)
assert leases() == [("idle", [0, 1], True)] and "GPUs 0, 1" in repr(lease)
lease.release()
lease.release()
assert leases() == []

async def main():
    async with gpuvirt.remote(gpus=1, pool={server.url!r}) as lease:
        assert leases() == [("idle", [0], True)]

asyncio.run(main())
assert leases() == []
try:
    gpuvirt.attach(gpus=3, pool={server.url!r})
except gpuvirt.GpuvirtError as error:
    print(error)
gpuvirt.attach(pool={server.url!r})  # what is still had at the end is given back
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.returncode == 0 and "this pool has 2 GPUs" in done.stdout, done.stderr
    assert server.ask("ps")["leases"] == []


def test_a_block_under_an_inherited_lease(server: FakeServer, lib_dir: Path, tmp_path: Path) -> None:
    """It uses those GPUs and leaves them alone."""
    id = bytes(range(1, 17))
    server.ask("lease_open", lease=id, gpus=2, holder={})
    code = f"""
import os, gpuvirt
os.environ.update(GPUVIRT_POOL={server.url!r}, GPUVIRT_LEASE={id.hex()!r})
with gpuvirt.remote() as lease:
    print([device.ordinal for device in lease.devices])
    try:
        lease.release()
    except gpuvirt.GpuvirtError as error:
        print(error)
"""
    done = python(code, server, lib_dir, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0, 1]\n") and "gpuvirt detach" in done.stdout
    assert len(server.ask("ps")["leases"]) == 1
    server.ask("lease_release", lease=id)
