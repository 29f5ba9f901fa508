"""Compute shares: programs that reserve parts of one GPU's compute have them, whatever the others' kernels are like."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment, run_program, running, wait_until
from faults import fault

ONE = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", "--idle", "0")
TWO = ("--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", "--idle", "0")
# computes BLOCKS ROUNDS DEEP: kernels of some milliseconds, of many blocks; and of a second and more in one, which does not stop by itself.
SHORT, LONG, LONGEST = ("64", "1000000", "96"), ("1", "4000000000", "2"), ("1", "40000000000", "1")
NEAR = 0.05  # what the parts may be away from what was reserved


@contextlib.contextmanager
def tenants(server: Server, program: Path, end: Path, *each: tuple[str, tuple[str, ...]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that compute, by what they reserve and what their kernels are like."""
    with contextlib.ExitStack() as stack:
        started = []
        for part, kernels in each:
            options = ("--compute", part) if part else ()
            started.append(stack.enter_context(running(server, [program, *kernels, end], *options)))
        yield started


def by_part(server: Server) -> dict[float, dict[str, Any]]:
    return {lease["compute"]: session for lease in server.leases() for session in lease["sessions"]}


def launches(server: Server) -> dict[float, int]:
    """A busy worker may not have said its figures when it was asked: then it is asked again."""
    found: dict[float, int] = {}

    def all_said() -> bool:
        found.update((part, session["launches"]) for part, session in by_part(server).items() if "launches" in session)
        return found.keys() == by_part(server).keys()

    assert wait_until(all_said), "a worker says no figures"
    return found


def parts_within(server: Server, seconds: float) -> dict[float, float]:
    """What each has of the time of all turns from now on, by what it has reserved."""
    launched = launches(server)
    asks = time.monotonic()
    begin = by_part(server)
    asked = time.monotonic()
    time.sleep(seconds)
    asks_again = time.monotonic()
    end = by_part(server)
    at_most, at_least = time.monotonic() - asks, asks_again - asked  # between the two answers; on a busy machine each takes a while
    assert begin.keys() == end.keys()
    had = {part: end[part]["turns_s"] - begin[part]["turns_s"] for part in end}
    assert 0.7 * at_least < sum(had.values()) < 1.02 * at_most, "the device stood still, or two had it at once"
    # A kernel of more than a second that has a quarter of a busy machine takes longer than this.
    assert wait_until(lambda: all(now > launched[part] for part, now in launches(server).items())), "one did not get on"
    return {part: each / sum(had.values()) for part, each in had.items()}


def has_its_part(server: Server, first: float, part: float, seconds: float = 6, near: float = NEAR) -> None:
    """In one of up to four windows: on a machine that is busy with other things a holder's threads may not run while it is its turn.

    Args:
        first: what it has reserved, by which it is told from others.
        part: of all turns, that it is to have.
    """
    seen: list[float] = []
    while len(seen) < 4 and (not seen or seen[-1] != pytest.approx(part, abs=near)):
        seen.append(parts_within(server, seconds)[first])
    print(f"{first} reserved, {part:.2f} of the turns in windows of {seconds} s: {seen}")
    assert seen[-1] == pytest.approx(part, abs=near), seen


def finishes(programs: list[subprocess.Popen[str]], end: Path) -> None:
    """All of them: with the right result."""
    end.touch()
    for program in programs:
        out, err = program.communicate(timeout=200)
        assert program.returncode == 0 and out.startswith("right "), out + err


KINDS = {"short": (SHORT, SHORT), "long and short": (LONG, SHORT), "short and long": (SHORT, LONG), "long": (LONG, LONG)}


def have_their_parts(server: Server, program: Path, end: Path, first: float, kinds: str, seconds: float, near: float = NEAR) -> None:
    second = round(0.999 - first, 3)  # not equal to the first: sessions are told apart by it
    with tenants(server, program, end, (str(first), KINDS[kinds][0]), (str(second), KINDS[kinds][1])) as programs:
        time.sleep(1)
        has_its_part(server, first, first, seconds, near)
        finishes(programs, end)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "kinds"), [pytest.param(0.25, "short", marks=pytest.mark.wide), (0.5, "long and short")])
def test_parts(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, first: float, kinds: str) -> None:
    have_their_parts(own_pool(*ONE), build("computes"), tmp_path / "end", first, kinds, 6)


@pytest.mark.long
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("first", [0.25, 0.5, 0.75])
def test_parts_over_half_a_minute(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path, first: float, kinds: str) -> None:
    have_their_parts(own_pool(*ONE), build("computes"), tmp_path / "end", first, kinds, 30)


def shown(server: Server, *line: str) -> str:
    return subprocess.run([*GPUVIRT, *line, "--pool", server.url], capture_output=True, text=True, timeout=200, check=True).stdout


@pytest.mark.slow
def test_what_is_shown(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    server, end = own_pool(*ONE), tmp_path / "end"
    with tenants(server, build("computes"), end, ("", SHORT)) as first:
        assert "×" not in shown(server, "ps") and "turns" not in shown(server, "top", "--once")
        with tenants(server, build("computes"), end, ("0.75", SHORT)) as second:
            assert "0 × 0.75" in shown(server, "ps") and "turns" in shown(server, "top", "--once")
            finishes([*first, *second], end)


@pytest.mark.wide
def test_equal_parts_for_all_are_seen(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Deliberate fault: a server that has everybody weigh the same."""
    server, end = own_pool(*ONE, env=clean_environment(**fault("weights"))), tmp_path / "end"
    with tenants(server, build("computes"), end, ("0.25", SHORT), ("0.749", SHORT)) as programs:
        time.sleep(1)
        assert parts_within(server, 3)[0.25] > 0.25 + NEAR
        finishes(programs, end)


def kernels_beside_a_long_one(server: Server, program: Path, end: Path) -> int:
    """How many small kernels, one after the other, come to their end in three seconds of one kernel of another program."""
    with tenants(server, program, end, ("0.5", LONGEST), ("0.4", ("1", "1000", "1"))):
        before = launches(server)
        time.sleep(3)
        after = launches(server)
        assert after[0.5] == before[0.5], "the long kernel was over too soon"
        return after[0.4] - before[0.4]


@pytest.mark.wide
def test_nobody_waits_for_the_end_of_a_kernel(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    assert kernels_beside_a_long_one(own_pool(*ONE), build("computes"), tmp_path / "end") > 20


@pytest.mark.slow
def test_waiting_for_the_end_of_a_kernel_is_seen(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Deliberate fault: a server that stops nobody from outside."""
    server = own_pool(*ONE, env=clean_environment(**fault("overrun")))
    assert kernels_beside_a_long_one(server, build("computes"), tmp_path / "end") < 2


@pytest.mark.wide
def test_who_has_reserved_nothing_has_the_rest(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Turns begin with the first lease that reserves a part, and end with the last; alone, a program has everything."""
    server, end, other = own_pool(*ONE), tmp_path / "end", tmp_path / "other"
    program = build("computes")
    with tenants(server, program, end, ("", SHORT)) as programs:
        assert "turns_s" not in by_part(server)[0]
        with tenants(server, program, other, ("0.75", LONG)) as more:
            time.sleep(1)
            has_its_part(server, 0, 0.25)
            finishes(more, other)
        assert wait_until(lambda: len(server.leases()) == 1)
        before = launches(server)[0]
        assert wait_until(lambda: launches(server)[0] > before)
        finishes(programs, end)


@pytest.mark.slow
def test_a_daemon_is_killed_and_another_goes_on(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Between the two nobody grants turns, and all compute; one that the first had stopped in the middle of its kernel, too."""
    server, end = own_pool(*ONE), tmp_path / "end"
    with tenants(server, build("computes"), end, ("0.25", LONG), ("0.749", LONG)) as programs:
        pids = [session["worker_pid"] for session in by_part(server).values()]
        assert wait_until(lambda: "T" in map(state, pids))
        server.stop(signal.SIGKILL)
        assert wait_until(lambda: "T" not in map(state, pids))
        worked = [ticks(pid) for pid in pids]
        assert wait_until(lambda: all(ticks(pid) > before for pid, before in zip(pids, worked, strict=True)))
        again = own_pool(*ONE, listen=server.info["address"])
        time.sleep(1)
        has_its_part(again, 0.25, 0.25)
        finishes(programs, end)


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state(pid: int) -> str:
    return stat(pid)[0]


def ticks(pid: int) -> int:
    """Processor time that it has had."""
    return int(stat(pid)[11])


@pytest.mark.wide
def test_a_session_moves_away_and_back(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    """Its turns are those of the device on which it is, and are counted together."""
    server, end = own_pool(*TWO), tmp_path / "end"
    few = (*SHORT[:2], "8")  # that wait for the device: a session moves when none does
    with tenants(server, build("computes"), end, ("0.25", few), ("0.5", few)) as programs:
        sessions = by_part(server)
        assert sessions[0.25]["devices"] == sessions[0.5]["devices"]
        (home,) = sessions[0.25]["devices"]
        for gpu in (1 - home, home):
            before = by_part(server)[0.25]["turns_s"]
            line = [*GPUVIRT, "move", sessions[0.25]["session"], "--gpu", str(gpu), "--pool", server.url]
            done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False, env=clean_environment())
            assert done.returncode == 0, done.stderr
            assert by_part(server)[0.25]["turns_s"] >= before
        time.sleep(1)
        has_its_part(server, 0.25, 1 / 3)
        finishes(programs, end)


@pytest.mark.slow
def test_what_is_reserved_is_not_given_twice(own_pool: Callable[..., Server], build: Callable[..., Path], tmp_path: Path) -> None:
    server, end, program = own_pool(*ONE), tmp_path / "end", build("computes")
    with tenants(server, program, end, ("0.6", SHORT)):
        done = run_program(server, [program, *SHORT, end], "--compute", "0.5", "--no-wait")
        assert done.returncode != 0 and "cannot be had without waiting" in done.stderr, done.stdout + done.stderr
        end.touch()
        assert run_program(server, [program, *SHORT, end], "--compute", "0.4", "--no-wait").returncode == 0


@pytest.mark.slow
def test_a_server_that_has_no_turns(own_pool: Callable[..., Server], build: Callable[..., Path]) -> None:
    """Software GPUs that are to behave like a driver's have none, as a driver has none."""
    server = own_pool(*ONE, "--strict")
    done = run_program(server, [build("vector_add")], "--compute", "0.5")
    assert done.returncode != 0 and "leave --compute away" in done.stderr, done.stderr
