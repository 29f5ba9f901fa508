"""Programs whose sessions move from GPU to GPU while they run, however often and whenever."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cutter import Cutter
from e2e.harness import Server, clean_environment, run_line, wait_until

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.errors import GpuvirtError

# Why a session may stay where it is.
REASONS = {
    "over": re.compile("there is no session|has ended|its worker ended: goodbye"),
    "early": re.compile("the program has not begun to use its GPU"),
    "waits": re.compile("does not come to rest"),
    "another": re.compile("its lease has 1 more session"),  # whose connection was cut while it was made, so that the program made this one
}
VARIES = re.compile(r"\b[0-9.]+ m?s\b|^gpuvirt: the connection to .*\n", re.M)  # what differs from run to run
ATTEMPTS = 60  # runs of one program, each of which may be over before its session has moved
REST = 5.0  # seconds
PATIENCE = 1500.0  # seconds for a program that stays where it is


@dataclass
class Moves:
    """Runs programs whose sessions move.

    Attributes:
        env: of the programs, beside what they have anyway.
        errors: what they print on standard error is compared, too.
        pause: seconds at most between two moves.
        outcomes: how often one moved, or why it did not.
    """

    server: Server
    cutter: Cutter
    chance: random.Random
    env: Mapping[str, str] = field(default_factory=dict)
    errors: bool = True
    pause: float = 0.05
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._pool = resolve({"pool": self.server.url})
        self._token = self.server.token()

    def run(self, line: list[str | Path], link: str = "shm", cut: bool = False, stays: bool = False) -> tuple[int, str, int]:
        """Runs a program.

        Args:
            cut: its connection is cut before each move.
            stays: its session does not move.

        Returns:
            Its exit code, what it printed, and how often its session moved.
        """
        url = self.cutter.url if link == "tcp" else self.server.url
        whole = [*run_line(url, "-q", "--gpus", "2", "--link", link), *map(str, line)]
        env = clean_environment(GPUVIRT_TOKEN=self._token, **self.env)
        errors = subprocess.STDOUT if self.errors else subprocess.DEVNULL
        with subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=errors, text=True, env=env) as process:
            try:
                moved = 0 if stays else self._move_until_over(process, cut)
                out, _ = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert wait_until(lambda: not self._sessions())
        return process.returncode, VARIES.sub("", out), moved

    def _sessions(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = ask_pool(self._pool, "ps")["sessions"]
        return sessions

    def _move_until_over(self, process: subprocess.Popen[str], cut: bool) -> int:
        moved = 0
        while process.poll() is None:
            for session in self._sessions():
                moved += self._move(session, cut)
            time.sleep(self.chance.random() * self.pause)
        return moved

    def _move(self, session: dict[str, Any], cut: bool) -> bool:
        """Moves a session whose program stands still. Returns whether it did."""
        devices = [(device + 2) % 4 for device in session["devices"]]
        with suppress(ProcessLookupError):
            os.kill(session["pid"], signal.SIGSTOP)
        try:
            if cut:
                self.cutter.cut_all()
            answer = ask_pool(self._pool, "move", session=session["session"], devices=devices, rest=REST, limit=60)
        except GpuvirtError as error:
            reasons = [reason for reason, text in REASONS.items() if text.search(str(error))]
            assert reasons, error
            self.outcomes[reasons[0]] += 1
            return False
        finally:
            with suppress(ProcessLookupError):
                os.kill(session["pid"], signal.SIGCONT)
        assert answer["devices"] == devices and not set(devices) & set(answer["from"]) and answer["worker_pid"] != answer["from_pid"]
        assert not Path(f"/proc/{answer['from_pid']}").exists()  # it was dead before the other began
        self.outcomes["moved"] += 1
        return True

    def check(self, line: list[str | Path], least: int) -> None:
        """The program ends as it does when its session stays; runs it until its session has moved `least` times."""
        code, reference, _ = self.run(line, stays=True)
        assert code == 0, reference
        count = 0
        for attempt in range(ATTEMPTS):
            link, cut = (("shm", False), ("tcp", False), ("tcp", True))[attempt % 3]
            ended, out, moved = self.run(line, link, cut)
            assert (ended, out) == (0, reference), f"moved {moved} times over {link}, cut: {cut}"
            count += moved
            if count >= least:
                return
        raise AssertionError(f"it moved {count} times in {ATTEMPTS} runs: {self.outcomes}")
