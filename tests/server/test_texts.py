"""What a server says reaches the terminal of `gpuvirt` without a meaning for the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from server.harness import FakeServer

from gpuvirt.printable import all_printable, printable
from gpuvirt.transport.control import ControlError

HOSTILE = "\x1b]0;owned\x07[red]box[/red]"


def verb(server: FakeServer, *arguments: str) -> str:
    line = [sys.executable, "-m", "gpuvirt", *arguments, "--pool", server.url]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, env=server.env | {"COLUMNS": "300"})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("devices",), ("devices", "--json")])
def test_names_of_a_server(own_server: Callable[..., FakeServer], arguments: tuple[str, ...]) -> None:
    shown = verb(own_server(name=HOSTILE), *arguments)
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"\x1b]0;owned\x07[red]box[/red]" in (shown if "--json" not in arguments else json.loads(shown)[0]["server"])


def test_names_of_a_program(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach(program=HOSTILE, user="[blink]u", host="\u202eevil")
    with sock:
        shown = verb(server, "ps")
    assert "\x1b" not in shown and "\u202e" not in shown and "[red]box[/red]" in shown and "[blink]u" in shown


def test_an_error_of_a_server(own_server: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuvirt.transport import control

    monkeypatch.setattr(control, "unpack", lambda raw: {"ok": False, "error": HOSTILE})
    with pytest.raises(ControlError) as error:
        own_server().ask("info")
    assert str(error.value).startswith(r"\x1b]0;owned\x07")


def test_printable() -> None:
    assert printable("a\nb\u2028ü漢 \x9b") == "a\\nb\\u2028ü漢 \\x9b"
    assert all_printable({"\n": ["\r", 1, {"x": "\0"}], "n": None}) == {"\\n": ["\\r", 1, {"x": "\\x00"}], "n": None}
