"""gpuvirt top: in a terminal, in a pipe, as JSON; who sees what; how it ends. And gpuvirt ps in a terminal and in a pipe."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, start_fake, wait_until
from terminal import Terminal

from gpuvirt.client.frames import Frames
from gpuvirt.sizes import format_short
from gpuvirt.transport.token import parse_token

from .conftest import Gpuvirt

GPUVIRT = [sys.executable, "-P", "-m", "gpuvirt"]
LINE = [*GPUVIRT, "top"]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[FakeServer]:
    """Two sessions with names of different lengths."""
    server = start_fake(tmp_path / "server", gpus=2, gpu_memory=1 << 30, name="testserver")
    socks = [server.attach(program=name, user="someone", host="desk")[0] for name in ("short", "a program with a long name")]
    wait_until(lambda: [device["memory_used"] for device in server.ask("devices")["devices"]] == [1000, 1000])
    wait_until(lambda: [session.get("launches") for session in server.ask("ps")["sessions"]] == [3, 3])
    yield server
    for sock in socks:
        sock.close()
    server.stop()


def environment(server: FakeServer) -> dict[str, str]:
    env = {name: value for name, value in server.env.items() if name not in ("COLUMNS", "LINES")}  # which say more than the terminal
    return env | {"GPUVIRT_POOL": server.url, "GPUVIRT_TOKEN": server.token.text(), "TERM": "xterm"}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(server: FakeServer, *options: str, size: tuple[int, int]) -> Terminal:
        started.append(Terminal([*LINE, *options], environment(server), tmp_path, size=size))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(("size", "end"), [((24, 80), "q"), ((24, 80), "\x03"), ((8, 30), "q"), ((3, 6), "q")])
def test_in_a_terminal(busy: FakeServer, terminal: Callable[..., Terminal], size: tuple[int, int], end: str) -> None:
    """Frames follow one another, none larger than the terminal; it ends at once when it is told to, and leaves the terminal as it was."""
    shown = terminal(busy, "--interval", "100ms", size=size)
    shown.expect("testse" if size[1] > 10 else "tes")
    shown.wait_for_screens(3)
    shown.press(end)
    assert shown.end() == 0, shown.shown
    assert "Traceback" not in shown.shown and shown.left_as_it_was
    screen = shown.screens[1]
    assert len(screen) <= size[0] and max(map(len, screen)) <= size[1], screen
    if size == (24, 80):
        text = "\n".join(screen)
        assert all(word in text for word in ("short", "someone", "attached", "1.0k", "1G", "lnch/s", "out/s", "net", "a progra")), text


def test_a_server_that_goes_away(busy: FakeServer, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(busy, "--interval", "100ms", size=(24, 80))
    shown.expect("testserver")
    busy.process.send_signal(signal.SIGKILL)
    assert shown.end() == 125 and "Traceback" not in shown.shown
    last = shown.shown.strip().splitlines()[-1]
    assert last.count("gpuvirt: ") == 1 and "127.0.0.1" in shown.shown[shown.shown.rindex("gpuvirt: ") :]


def test_in_a_pipe(busy: FakeServer, gpuvirt: Gpuvirt) -> None:
    """One frame of plain lines."""
    done = gpuvirt("top", server=busy)
    assert (done.returncode, done.stderr) == (0, "") and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("testserver (soft)") and "2 attached, 0 parked, 0 idle, 0 queued" in lines[0] and max(map(len, lines)) <= 80
    assert sum("attached" in line for line in lines[1:]) == 2
    assert gpuvirt("top", "--interval", "1ms", server=busy).returncode == 2


def test_json(busy: FakeServer) -> None:
    """A line each, until nobody reads any more."""
    line = [*LINE, "--json", "--interval", "100ms"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(busy)) as process:
        assert process.stdout is not None and process.stderr is not None
        frames = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.stdout.close()
        assert process.wait(timeout=100) == 0 and process.stderr.read() == ""
    assert [len(frame["sessions"]) for frame in frames] == [2] * 3
    first, last = (frame["sessions"][0] for frame in (frames[0], frames[-1]))
    assert first["rates"]["launches"] > 0 and first["launches"] == last["launches"] == 3
    assert {*last["rates"].values()} == {0}, "nothing has grown between two frames"


def test_a_users_token_sees_its_own(busy: FakeServer, gpuvirt: Gpuvirt) -> None:
    """Of others no more than how many sessions there are and what memory they have."""
    token = busy.ask("token_create", name="mine")["token"]
    sock, _, _ = busy.attach(parse_token(token), program="mine own", user="me")
    wait_until(lambda: sum(device["memory_used"] for device in busy.ask("devices")["devices"]) == 3000)
    shown = gpuvirt("top", "--once", server=busy, GPUVIRT_TOKEN=token).stdout
    assert "mine own" in shown and "2 sessions of others have 2.0kB" in shown
    assert not any(word in shown for word in ("short", "a program", "someone"))
    told = gpuvirt("top", "--once", "--json", server=busy, GPUVIRT_TOKEN=token).stdout
    assert told.count("\n") == 1 and "someone" not in told and len(json.loads(told)["sessions"]) == 1
    sock.close()


def test_rates() -> None:
    """Since the frame before; in a session's first frame since it began. What a worker did not tell has none."""

    def answer(at: float, **figures: Any) -> dict[str, Any]:
        return {"at": at, "sessions": [{"session": "a", "started": 90.0, **figures}]}

    frames = Frames()
    assert frames.next(answer(100.0, launches=50))["sessions"][0]["rates"] == {"launches": 5}
    assert frames.next(answer(102.0, launches=60, bytes_in=7))["sessions"][0]["rates"] == {"launches": 5}
    assert frames.next(answer(103.0, launches=60, bytes_in=17))["sessions"][0]["rates"] == {"launches": 0, "bytes_in": 10}
    assert frames.next(answer(103.0, launches=90))["sessions"][0]["rates"] == {}
    frames.next(answer(104.0, answers=0, cut_ns=0, rtt_ns=10**7))
    assert frames.next(answer(106.0, answers=50, cut_ns=10**9, rtt_ns=10**7))["sessions"][0]["rates"]["network"] == pytest.approx((0.5 + 1) / 2)
    frames.next(answer(110.0, turns_s=1.5))
    assert frames.next(answer(112.0, turns_s=2.0))["sessions"][0]["rates"] == {"turns_s": 0.25}
    assert Frames().next({"at": 1.0, "sessions": []}) == {"at": 1.0, "sessions": []}


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (3, "3"), (0.26, "0.3"), (999, "999"), (999.7, "1.0k"), (1 << 20, "1M"), (3 << 39, "1.5T")])
def test_short_numbers(value: float, text: str) -> None:
    assert format_short(value) == text


def test_short_numbers_are_short() -> None:
    assert max(len(format_short(17**power / 3)) for power in range(14)) <= 5


@pytest.mark.parametrize("columns", [80, 130, None])
def test_ps_can_be_read(busy: FakeServer, tmp_path: Path, columns: int | None) -> None:
    """What `gpuvirt move` and `park` are told is whole in an ordinary terminal, and nothing is left out where there is room, or no terminal."""
    if columns is None:
        shown = subprocess.run([*GPUVIRT, "ps"], env=environment(busy), capture_output=True, text=True, timeout=200, check=True).stdout
    else:
        terminal = Terminal([*GPUVIRT, "ps"], environment(busy), tmp_path, size=(24, columns))
        assert terminal.end() == 0, terminal.shown
        shown = terminal.shown
    ids = [session["session"] for session in busy.ask("ps")["sessions"]]
    assert len(ids) == 2 and all(re.search(rf"\b{id}\b", shown) for id in ids), shown
    assert ("launches" in shown) == (columns != 80) and "someone" in shown and "1000 B" in shown and "attached" in shown, shown
    assert max(map(len, shown.splitlines())) <= (columns or 200), shown
