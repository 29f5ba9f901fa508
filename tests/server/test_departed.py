"""Where sessions have gone, for clients that ask here and for a server that is started anew."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuvirt.server.migration import departed as module
from gpuvirt.server.migration.departed import ASKED_WITHIN, Departed, DepartedSessions, departed_file


def one(number: int, left: float | None = None) -> Departed:
    return Departed(number, bytes([number]) * 32, f"tcp://h{number}:7070", f"session {number}", time.time() if left is None else left)


def test_a_server_that_is_started_anew_knows_who_has_not_asked(tmp_path: Path) -> None:
    file = departed_file(tmp_path, "0.0.0.0", 7070)
    sessions = DepartedSessions(file)
    for each in (one(1), one(2), one(3, time.time() - ASKED_WITHIN - 1)):
        sessions.add(each)
    assert sessions.following(60.0) == 2
    sessions.tell(sessions.get(1))  # type: ignore[arg-type]
    again = DepartedSessions(file)
    assert again.get(1) is None and again.get(3) is None
    found = again.get(2)
    assert found is not None and (found.key, found.url, found.sent_on) == (b"\2" * 32, "tcp://h2:7070", False)
    assert file.stat().st_mode & 0o77 == 0 and again.following(60.0) == 1


def test_a_damaged_file_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    for text in ("", "{}", "[1]", '[{"id": 1}]'):
        file = tmp_path / "departed.json"
        file.write_text(text)
        sessions = DepartedSessions(file)
        sessions.add(one(5))
        assert sessions.get(5) is not None and DepartedSessions(file).get(5) is not None


def test_the_eldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    sessions = DepartedSessions()
    for number in range(1, 6):
        sessions.add(one(number))
    assert [sessions.get(number) is not None for number in range(1, 6)] == [False, False, True, True, True]
