"""What a program's end says: its exit code, its own words, and gpuvirt's.

An exit code counts first. Words count where the code does not tell: some samples of NVIDIA's print that a comparison failed and exit with 0.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from . import results

WAIVED_EXIT = 2  # EXIT_WAIVED of NVIDIA's samples
OURS = (125, 126, 127)  # of `gpuvirt run` itself
GPUVIRT = re.compile(r"^gpuvirt: (.*)$", re.M)
LOST = re.compile(r"^gpuvirt: (\S+ \(command \d+\) failed .*not supported.*)$", re.M)  # nothing ran after it, whatever the program says
UNSUPPORTED = re.compile(r"not supported|unsupported|cannot be mapped into a remote GPU", re.I)
FAILED = re.compile(r"\bFAILED\b(?! *[:=]? *0\b)|(?i:\bResult *= *FAIL|\bTest +failed|\bverification failed|\bERROR: .*mismatch)")
WAIVED = re.compile(r"\bwaiv(?:ed|ing)\b", re.I)
COMPLAINT = re.compile(r"assert|error|fail|mismatch|expected|wrong|abort|terminate", re.I)
LONGEST_CAUSE = 240


@dataclass(frozen=True)
class End:
    """How a process ended. `code` is None when it was killed because its time was over."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"{self.out}\n{self.err}"


def judge(end: End, waived_exit: int | None = None) -> tuple[str, str]:
    """The verdict and its cause; no cause for what passed. `waived_exit`: the code that says "does not apply here"."""
    refused = refusal(end.err)
    if end.code is None:
        return results.LATE, refused or last_line(end)
    if lost := LOST.search(end.err):
        return results.UNSUPPORTED, _short(lost[1])
    if end.code == 0:
        if failed := FAILED.search(end.text):
            return results.WRONG, refused or _line_at(end.text, failed.start())
        if WAIVED.search(end.text) and "PASS" not in end.text.upper():
            return results.WAIVED, _line_at(end.text, next(WAIVED.finditer(end.text)).start())
        return results.PASSED, ""
    if refused:
        return results.UNSUPPORTED, refused
    if end.code == waived_exit:
        return results.WAIVED, last_line(end)
    if end.code in OURS:
        return results.CRASHED, f"gpuvirt run: exit {end.code}: {last_line(end)}"
    number = end.code - 128 if end.code > 128 else -end.code
    if end.code < 0 or 128 < end.code <= 128 + signal.SIGRTMAX:  # 255 is exit(-1)
        if number == signal.SIGABRT and (complaint := _complaint(end)):  # assert() and abort() are how programs say that something is wrong
            return results.WRONG, complaint
        return results.CRASHED, f"{_signal_name(number)}: {last_line(end)}"
    return results.WRONG, _complaint(end) or f"exit {end.code}: {last_line(end)}"


def refusal(err: str) -> str:
    """The first line in which gpuvirt names what it does not support."""
    return next((_short(line) for line in GPUVIRT.findall(err) if UNSUPPORTED.search(line)), "")


def last_line(end: End) -> str:
    lines = [line for line in (end.out + "\n" + end.err).splitlines() if line.strip()]
    return _short(lines[-1]) if lines else "no output"


def _complaint(end: End) -> str:
    """gpuvirt's last line or the program's, in which something is complained about."""
    ours = GPUVIRT.findall(end.err)
    theirs = [line for line in end.text.splitlines() if COMPLAINT.search(line) and not line.startswith("gpuvirt:")]
    return _short(" | ".join([*theirs[-1:], *ours[-1:]]))


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return _short(text[start : len(text) if end < 0 else end])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_CAUSE else line[: LONGEST_CAUSE - 1] + "…"
