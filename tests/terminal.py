"""A program at a terminal of its own (a pty): what a user would type, and what the terminal shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07]*\x07|[()][AB0]|[=>])")


class Terminal:
    """Starts a program on a new terminal.

    Args:
        limit: seconds that anything that is waited for may take; it is for what never happens.
        size: lines and columns.

    Attributes:
        shown: all that the terminal has shown, without escape sequences.
        status: how its shell writes the exit code of the last command.
    """

    def __init__(self, line: list[str], env: dict[str, str], cwd: Path, limit: float = 180, size: tuple[int, int] = (40, 250)) -> None:
        self._limit, self._raw, self._seen, self._commands = limit, b"", 0, 0
        self.status, self.cwd = "$?", cwd
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            os.chdir(cwd)
            os.execvpe(line[0], line, env)
        self.code: int | None = None

    @property
    def shown(self) -> str:
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    @property
    def screens(self) -> list[list[str]]:
        """Of a program that writes its screen anew each time: the lines of each, without escape sequences."""
        return [_ESCAPES.sub("", screen).split("\r\n") for screen in self._raw.decode(errors="replace").split("\x1b[H")[1:]]

    def wait_for_screens(self, count: int) -> list[list[str]]:
        """Waits until so many have begun."""
        deadline = time.monotonic() + self._limit
        while len(self.screens) < count:
            assert time.monotonic() < deadline and self._read(), f"no {count} screens:\n{self.shown}"
        return self.screens

    @property
    def left_as_it_was(self) -> bool:
        """Whether a program that had the whole screen has given it back."""
        return self._raw.count(b"\x1b[?1049h") == self._raw.count(b"\x1b[?1049l") == 1

    def press(self, keys: str) -> None:
        """Keys without an Enter behind them."""
        os.write(self._fd, keys.encode())

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")

    def _read(self) -> bool:
        """Takes what comes within a moment; False: the terminal has ended."""
        if not select.select([self._fd], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self._fd, 65536)
        except OSError:
            return False
        self._raw += part
        return bool(part)

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until the terminal shows what `pattern` matches, behind what was expected before."""
        deadline = time.monotonic() + self._limit
        while True:
            found = re.compile(pattern).search(self.shown, self._seen)
            if found:
                self._seen = found.end()
                return found
            assert time.monotonic() < deadline, f"{pattern!r} was not shown:\n{self.shown}"
            assert self._read() or re.search(pattern, self.shown[self._seen :]), f"the terminal ended without {pattern!r}:\n{self.shown}"

    def run(self, command: str) -> str:
        """Types a command; what it has shown until it ended, and ``EXIT n``."""
        self._commands += 1
        # The mark is put together by the shell, so that the echo of what was typed is not taken for it.
        self.type(f"{command}; printf 'en%s%d EXIT %d\\n' d {self._commands} {self.status}")
        begin = self._seen
        end = self.expect(rf"end{self._commands} EXIT \d+")
        return self.shown[begin : end.end()]

    def end(self) -> int:
        """Waits for the program's end; its exit code, or the negated number of the signal that ended it."""
        deadline = time.monotonic() + self._limit
        while self.code is None:
            with contextlib.suppress(OSError):
                self._read()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"it does not end:\n{self.shown}"
        return self.code

    def close(self) -> None:
        """Closes the terminal, which hangs up on what still runs in it."""
        os.close(self._fd)
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
