"""Faults of device code: a CUDA error in their session only, one line with kernel, block, warp and address, and the same error from every later
call.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, clean_environment, run_program, running, start_server, wait_until
from faults import fault

pytestmark = pytest.mark.slow

ILLEGAL, MISALIGNED = ("cudaErrorIllegalAddress", 700), ("cudaErrorMisalignedAddress", 716)
AT = r" in kernel \S*\w+\S*, block \(\d+,0,0\), warp \d+;"
# case and distance: what the program is told, and what is said. 10 calls see the error; then cudaPeekAtLastError finds nothing that a launch left.
FAULTS = {
    "read 4096": (ILLEGAL, r"illegal address 0x1000" + AT),
    "read 1": (MISALIGNED, r"misaligned address 0x1 for 4 bytes \(lanes 0x\w+\)" + AT),
    "write 0": (ILLEGAL, r"illegal address 0x\w+" + AT),
    "write 70368744177664": (ILLEGAL, r"illegal address 0x4000000000\w\w" + AT),
    "pinned 4096": (ILLEGAL, r"illegal address 0x\w+" + AT[:-1] + ", which is pinned host memory: kernels reach it where .*; its context is lost"),
    "read-own 2": (MISALIGNED, r"misaligned address 0x\w+2 for 4 bytes \(lanes 0x\w+\)" + AT),
    "write-wide 4": (MISALIGNED, r"misaligned address 0x\w+4 for 8 bytes \(lanes 0x\w+\)" + AT),
    "atomic 2": (MISALIGNED, r"misaligned address 0x\w+2 for 4 bytes \(lanes 0x\w+\)" + AT),
    "shared 268435456": (ILLEGAL, r"illegal address 0x\w+" + AT),
    "shared 2": (MISALIGNED, r"misaligned shared address 0x2 for 4 bytes \(lanes 0x\w+\)" + AT),
    "local 268435456": (ILLEGAL, r"illegal address 0x\w+" + AT),
    "local 2": (MISALIGNED, r"misaligned local address 0x2 for 4 bytes \(lanes 0x\w+\)" + AT),
    "trap": (("cudaErrorLaunchFailure", 719), "trap" + r" \(lanes 0xffffffff\)" + AT),
    "assert 2": (
        ("cudaErrorAssert", 710),
        r"device_faults\.cu:\d+: void chosen\(int, int \*\): block: \[5,0,0\], thread: \[13,1,0\] "
        r"Assertion `v == 1 && \"a message\"` failed in kernel ",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build("device_faults")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all cases: none may disturb the next."""
    found = start_server(tmp_path_factory.mktemp("faults"), "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g")
    yield found
    found.stop()


LONG = ("read 1", "write 70368744177664", "write-wide 4", "atomic 2", "shared 268435456", "local 2")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] if case in LONG else []) for case in FAULTS])
def test_what_a_fault_says_and_leaves(server: Server, program: Path, case: str) -> None:
    (name, code), said = FAULTS[case]
    done = run_program(server, [program, *case.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [name] * 10 + ["cudaSuccess"] + [name] * 2
    lines = [line for line in done.stderr.splitlines() if "failed on" in line]
    assert len(lines) == 1 and f"CUDA error {code}: " in lines[0] and re.search(said, lines[0]), done.stderr


def test_a_core_dump_that_is_enabled_is_said_not_to_be_written(server: Server, program: Path, tmp_path: Path) -> None:
    where = {"CUDA_COREDUMP_FILE": str(tmp_path / "core")}
    for switch, lines in (("1", 1), ("0", 0)):
        done = run_program(server, [program, "read", "4096"], **where, CUDA_ENABLE_COREDUMP_ON_EXCEPTION=switch)
        assert done.returncode == 0 and done.stderr.count("a core dump is enabled for the context that has failed") == lines, done.stderr
    assert not list(tmp_path.iterdir())


def test_aligned_neighbours_are_no_fault(server: Server, program: Path) -> None:
    for case in ("read-own 4", "shared 4", "assert 1"):
        done = run_program(server, [program, *case.split()])
        assert set(done.stdout.split()) <= {"cudaSuccess", "cudaErrorNotReady"} and "failed on" not in done.stderr, (case, done.stdout, done.stderr)


def test_a_fault_while_copies_are_under_way(server: Server, program: Path) -> None:
    done = run_program(server, [program, "copies"])
    copies, kernel = done.stdout.split()
    assert done.returncode == 0 and kernel == "cudaErrorIllegalAddress" and copies in ("cudaSuccess", kernel), done.stdout + done.stderr


def test_a_heap_that_is_full_is_no_fault(server: Server, program: Path) -> None:
    done = run_program(server, [program, "heap"])
    error, count = done.stdout.split()
    assert error == "cudaSuccess" and 1000 < int(count) < 2100, done.stdout


def test_others_are_not_disturbed(server: Server, program: Path) -> None:
    """A second session computes while others fault; a later one works."""
    with running(server, [program, "numbers", "3"]) as other:
        for case in ("read-own 2", "trap"):
            done = run_program(server, [program, *case.split()])
            assert "cudaError" in done.stdout, case
        out, err = other.communicate(timeout=60)
        assert (other.returncode, out.split()) == (0, ["right"]), out + err
    assert run_program(server, [program, "numbers", "0"]).stdout.split() == ["running", "right"]
    assert wait_until(lambda: server.sessions() == [])


@pytest.mark.parametrize("how", ["interrupt", "worker", pytest.param("program", marks=pytest.mark.long)])
def test_an_endless_kernel_ends(server: Server, program: Path, how: str) -> None:
    """With Ctrl-C, with the session's worker, with the program; and the server goes on."""
    with running(server, [program, "endless"]) as launcher:
        (session,) = server.sessions()
        if how == "interrupt":
            os.kill(int(session["pid"]), signal.SIGINT)
        else:
            os.kill(int(session["worker_pid" if how == "worker" else "pid"]), signal.SIGKILL)
        launcher.communicate(timeout=60)
        assert wait_until(lambda: server.sessions() == [] and not server.worker_pids())
    assert run_program(server, [program, "numbers", "0"]).stdout.split() == ["running", "right"]


def test_a_server_that_runs_nothing_is_noticed(own_pool: Callable[..., Server], program: Path) -> None:
    """The deliberate fault: launches are dropped, so that nothing faults."""
    broken = own_pool("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(**fault("launches")))
    for case in ("read-own 2", "trap"):
        done = run_program(broken, [program, *case.split()])
        assert "cudaError" not in done.stdout.replace("cudaErrorNotReady", ""), done.stdout
    assert run_program(broken, [program, "numbers", "0"]).returncode == 4
