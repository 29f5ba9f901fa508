"""Failures of servers, links and programs: one clear line, the right code, in time, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, kill_client, kill_worker, run_program, running, wait_until

pytestmark = pytest.mark.slow

LINKS = ("tcp", "shm")
MODES = ("wait", "flood", "copy", "sleep")


def one_line(text: str) -> str:
    """The single line of ours on stderr."""
    lines = [line for line in text.splitlines() if line.startswith("gpuvirt")]
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("mode", ["wait", "flood", "copy"])
def test_worker_killed(own_pool: Callable[..., Server], build: Callable[..., Path], mode: str, link: str) -> None:
    server = own_pool()
    err = kill_worker(server, build("busy"), mode, link)
    assert server.url in err, err


@pytest.mark.parametrize("link", LINKS)
def test_server_and_worker_killed(own_pool: Callable[..., Server], build: Callable[..., Path], link: str) -> None:
    server = own_pool()
    with running(server, [build("busy"), "wait"], "--link", link) as program:
        workers = server.worker_pids()
        server.process.kill()
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        out, err = program.communicate(timeout=60)
    assert program.returncode == 3 and "cuda error" in out, out + err
    assert server.url in err, err


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("mode", MODES)
def test_client_killed(own_pool: Callable[..., Server], build: Callable[..., Path], mode: str, link: str) -> None:
    kill_client(own_pool(), build("busy"), mode, link)


def test_an_endless_kernel_goes_with_its_client(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    server = own_pool()
    with running(server, [build("endless")]) as launcher:
        (session,) = server.sessions()
        os.kill(int(session["pid"]), signal.SIGKILL)
        assert wait_until(lambda: server.sessions() == [])
        launcher.communicate(timeout=60)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("null", ["cudaErrorIllegalAddress"]),
        ("wild", ["cudaErrorIllegalAddress"]),
        ("after", ["cudaErrorIllegalAddress"] * 3),
        ("trap", ["cudaErrorLaunchFailure"]),
        ("assert", ["cudaErrorAssert"]),
        ("shared", ["cudaErrorIllegalAddress"]),
        ("stack", ["cudaErrorHardwareStackError"]),
        ("code", ["cudaErrorInvalidPc"]),
        ("heap", ["cudaSuccess", "32"]),
    ],
)
def test_device_faults_are_cuda_errors(pool: Server, build: Callable[..., Path], case: str, expected: list[str]) -> None:
    done = run_program(pool, [build("faults"), case])
    assert done.returncode == 0 and done.stdout.split() == expected, done.stdout + done.stderr
    if case == "assert":
        assert "Assertion `v == 1` failed" in done.stderr


def test_a_fault_stays_in_its_session(pool: Server, build: Callable[..., Path]) -> None:
    with running(pool, [build("busy"), "wait", "3"]) as other:
        done = run_program(pool, [build("faults"), "wild"])
        assert done.stdout.split() == ["cudaErrorIllegalAddress"]
        out, err = other.communicate(timeout=100)
        assert (other.returncode, out) == (0, "over\n"), err


def test_port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = [*GPUVIRT, "serve", "--backend", "soft", "--listen", f"127.0.0.1:{port}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, env=clean_environment(), check=False)
    assert done.returncode == 125
    assert str(port) in one_line(done.stderr) and "taken" in done.stderr and done.stdout == ""


def test_no_server(build: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
    done = run_program(url, [build("vector_add")])
    assert done.returncode == 125 and url in one_line(done.stderr) and "gpuvirt serve" in done.stderr and done.stdout == ""


def test_no_server_without_the_launcher(build: Callable[..., Path]) -> None:
    from gpuvirt import paths

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
    env = clean_environment(GPUVIRT_POOL=url, LD_PRELOAD=str(paths.library("libcuda.so.1")))
    done = subprocess.run([build("vector_add")], capture_output=True, text=True, env=env, timeout=30, check=False)
    assert done.returncode == 3 and done.stdout.startswith("cuda error 100"), done.stdout
    assert url in one_line(done.stderr)


def test_wrong_token(pool: Server, build: Callable[..., Path], own_pool: Callable[..., Server]) -> None:
    import base64

    token = subprocess.run([*GPUVIRT, "token", "show"], capture_output=True, text=True, check=True, env=clean_environment()).stdout.strip()
    head, _, body = token.partition(".")
    raw = bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    raw[20] ^= 1  # one bit of the secret
    wrong = f"{head}.{base64.urlsafe_b64encode(bytes(raw)).decode().rstrip('=')}"
    done = run_program(pool, [build("vector_add")], GPUVIRT_TOKEN=wrong)
    assert done.returncode == 125 and "token" in one_line(done.stderr) and done.stdout == ""
    # The right one is accepted, and a malformed one is told apart.
    assert run_program(pool, [build("vector_add")], GPUVIRT_TOKEN=token).returncode == 0
    done = run_program(pool, [build("vector_add")], GPUVIRT_TOKEN="nonsense")
    assert done.returncode in (2, 125) and "token" in one_line(done.stderr)


def test_server_of_another_wire_version(build: Callable[..., Path]) -> None:
    """A greeting that speaks version 9 only: one clear line that names both."""
    greeting = struct.pack("<8sHHHH32s40s108s64s60x", b"GPUVIRT\0", 9, 9, 0, 0, bytes(32), b"", b"", b"future")
    assert len(greeting) == 320
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            listener.settimeout(20)
            try:
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(greeting)
                    connection.close()
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = run_program(f"tcp://127.0.0.1:{port}", [build("vector_add")])
    assert done.returncode == 125
    line = one_line(done.stderr)
    assert "version" in line and "9" in line and "1" in line


def test_too_many_gpus(pool: Server) -> None:
    done = run_program(pool, [sys.executable, "-c", "import cupy; cupy.zeros(1)"], "--gpus", "3")
    assert done.returncode != 0 and "3" in done.stderr and "gpuvirt" in done.stderr


def test_usage_errors() -> None:
    for line in (["run", "--gpus", "minus", "--", "true"], ["run"], ["run", "--nonsense", "--", "true"], ["serve", "--backend", "vulkan"]):
        done = subprocess.run([*GPUVIRT, *line], capture_output=True, text=True, timeout=100, env=clean_environment(), check=False)
        assert done.returncode == 2, (line, done.returncode, done.stderr)


def test_a_program_that_does_not_exist(pool: Server) -> None:
    done = run_program(pool, ["/no/such/program"])
    assert done.returncode == 127 and "/no/such/program" in one_line(done.stderr)
