"""The launcher passes exit codes and signals on unchanged."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuvirt.client.launcher import NotStarted, launch
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.handshake import Greeting
from gpuvirt.transport.pool import PoolAddress, PoolStatus, report_ended
from gpuvirt.transport.token import Token

LAUNCH = "import sys, os; from gpuvirt.client.launcher import launch; sys.exit(launch(sys.argv[1:], os.environ))"
PROGRAM = """
import os, signal, sys, time
def on(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())  # print is not to be interrupted by itself
    if number == signal.SIGTERM: sys.exit(9)
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP): signal.signal(s, on)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("code", [0, 1, 2, 41, 125, 255])
def test_exit_code(code: int) -> None:
    assert launch(["sh", "-c", f"exit {code}"], os.environ) == code


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGPIPE, signal.SIGINT])
def test_ended_by_a_signal(sig: signal.Signals) -> None:
    assert launch(["sh", "-c", f"ulimit -c 0; kill -{sig.value} $$"], os.environ) == 128 + sig


def test_not_found() -> None:
    with pytest.raises(NotStarted, match="no such program") as raised:
        launch(["/no/such/program"], os.environ)
    assert raised.value.code == 127


def test_not_executable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(NotStarted, match="cannot be executed") as raised:
        launch([str(file)], os.environ)
    assert raised.value.code == 126


def test_environment_and_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    launch(["sh", "-c", 'echo "$X" "$1" "$2"', "sh", "a b", ""], {"X": "y", "PATH": os.environ["PATH"]})
    assert capfd.readouterr().out == "y a b \n"


def start(**how: object) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", LAUNCH, sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


def test_signals_are_passed_on() -> None:
    process = start()
    assert process.stdout is not None
    for sig in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(sig)
        assert process.stdout.readline() == f"got {sig.name}\n"
    assert process.wait(100) == 9
    process.stdout.close()


def test_the_terminals_interrupt_comes_once() -> None:
    """Ctrl-C goes to the whole process group; the program must not get a second one from us."""
    master, slave = os.openpty()

    def own_terminal() -> None:
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = start(stdin=slave, preexec_fn=own_terminal)
    os.close(slave)
    os.write(master, b"\x03")
    assert process.stdout is not None and process.stdout.readline() == "got SIGINT\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert rest == "got SIGTERM\n"
    assert process.wait(100) == 9
    process.stdout.close()
    os.close(master)


def test_the_programs_signal_mask_is_the_launchers_own() -> None:
    """What we block for ourselves is not blocked in the program, and SIGPIPE is not ignored there."""
    status = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    own = 0b11 << 31  # signals 32 and 33 are glibc's own business

    def masks(line: list[str]) -> list[int]:
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return [int(word, 16) & ~own for word in done.stdout.split()[1::2]]

    assert masks([sys.executable, "-c", LAUNCH, *status]) == masks(status)


def test_a_silent_server_does_not_hold_up_the_end() -> None:
    """It takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PoolAddress("127.0.0.1", silent.getsockname()[1])
        status = PoolStatus(address, "127.0.0.1", Greeting(bytes(32)), Token(bytes(16), bytes(32), bytes(32)))
        began = time.monotonic()
        with pytest.raises(GpuvirtError):
            report_ended(status, b"l" * 16)
        assert time.monotonic() - began < 30
