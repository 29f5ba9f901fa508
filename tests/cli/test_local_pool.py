"""The private local pool: a real daemon and real worker processes, with a worker library that only echoes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from server.harness import environment, has_ended, wait_until

from .conftest import Gpuvirt


def left_behind(folder: Path) -> list[str]:
    """Temporary folders of private pools, and what they left where servers and clients meet."""
    return [p.name for p in [*folder.glob("gpuvirt-local-*"), *(folder / "run" / "gpuvirt").glob("*")]]


def test_announced_used_and_ended(gpuvirt: Gpuvirt, tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps([os.environ['GPUVIRT_POOL'], os.environ['GPUVIRT_TOKEN'], os.environ['GPUVIRT_GPUS']]))"
    done = gpuvirt("run", "--gpus", "2", "--", sys.executable, "-c", code, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    pool, token, gpus = json.loads(done.stdout)
    ours = [line for line in done.stderr.replace("[shim]", "").splitlines() if line]
    assert ours[0] == f"gpuvirt: no pool is set; using a private local pool of 2 software GPUs at {pool}"
    assert len(ours) == 2 and "software GPUs: setting " in ours[1]
    assert token.startswith("gpuvirt1.") and gpus == "2"
    assert gpuvirt("devices", "--pool", pool, GPUVIRT_TOKEN=token).returncode == 125  # it is gone
    assert left_behind(tmp_path) == []


def test_asked_for_it_is_not_announced(gpuvirt: Gpuvirt, tmp_path: Path) -> None:
    """And GPUVIRT_TOKEN, which is for another server, does no harm."""
    done = gpuvirt("run", "--local", "--", "sh", "-c", "exit 7", TMPDIR=str(tmp_path), GPUVIRT_TOKEN="gpuvirt1." + "A" * 107)
    assert done.returncode == 7 and "no pool" not in done.stderr, done.stderr


def test_the_program_can_use_it(gpuvirt: Gpuvirt, tmp_path: Path) -> None:
    done = gpuvirt("run", "--gpus", "2", "--memory", "64m", "--", sys.executable, "-P", "-m", "gpuvirt", "devices", "--json", TMPDIR=str(tmp_path))
    found = json.loads(done.stdout)
    assert [(d["memory"], d["sessions"], d["server"]) for d in found] == [(64 << 20, 0, "private local pool")] * 2, done.stderr


def test_a_pool_that_does_not_start(gpuvirt: Gpuvirt, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    done = gpuvirt("run", "--", "echo", "ran", GPUVIRT_LIB_DIR=str(lib), TMPDIR=str(tmp_path))
    assert done.returncode == 125 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert "the private local pool did not start: libgpuvirt_worker.so is not in" in done.stderr
    assert left_behind(tmp_path) == []


def test_it_ends_with_a_launcher_that_is_killed(lib_dir: Path, tmp_path: Path) -> None:
    env = environment(tmp_path) | {"GPUVIRT_LIB_DIR": str(lib_dir), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "--", "sh", "-c", "echo $GPUVIRT_POOL $PPID; exec sleep 60"]
    launcher = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    assert launcher.stdout is not None
    port = launcher.stdout.readline().split()[0].rsplit(":", 1)[1]
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (daemon,) = [pid for pid in children if "serve" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    assert (tmp_path / "run" / "gpuvirt" / f"{port}.token").exists()
    launcher.kill()
    launcher.wait()
    wait_until(lambda: has_ended(int(daemon)))
    wait_until(lambda: left_behind(tmp_path) == [])
    for pid in children:
        if pid != daemon:
            os.kill(int(pid), signal.SIGKILL)  # the program itself carries on, as after any launcher's death
    launcher.stdout.close()


def test_remote_keeps_it_to_the_very_end(lib_dir: Path, tmp_path: Path) -> None:
    """CUDA libraries talk to the server while the process exits, so the pool must outlive all of Python's own clean-up, and then go."""
    env = environment(tmp_path) | {"GPUVIRT_LIB_DIR": str(lib_dir), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    code = """
import atexit, gpuvirt, socket
def last():
    socket.create_connection(("127.0.0.1", int(remote.pool.rsplit(":", 1)[1])), 5).close()
    print("still there", remote.pool)
atexit.register(last)
with gpuvirt.remote() as remote:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=env, check=False)
    assert done.stdout.startswith("still there"), done.stderr
    wait_until(lambda: left_behind(tmp_path) == [])
