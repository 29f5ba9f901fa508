"""Tokens: their text, and the store in the state folder."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.tokens import TokenStore
from gpuvirt.transport.token import Token, control_secret, parse_token


def test_text() -> None:
    token = Token(b"i" * 16, b"s" * 32, b"k" * 32)
    text = token.text()
    head, body = text.split(".", 1)
    assert head == "gpuvirt1" and len(text) == 116 and "=" not in text
    assert base64.urlsafe_b64decode(body + "=") == b"i" * 16 + b"s" * 32 + b"k" * 32
    assert parse_token(f" {text}\n") == token
    assert "ssss" not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "gpuvirt1.", "gpuvirt1.abc", "gpuvirt2." + "A" * 107, "gpuvirt1." + "A" * 106, "gpuvirt1." + "*" * 107]
)
def test_not_a_token(text: str) -> None:
    with pytest.raises(GpuvirtError, match="not a token") as raised:
        parse_token(text)
    assert len(text) < 20 or text[9:] not in str(raised.value)  # it may be a real one with a typing error


def test_first_start_makes_a_token_and_keeps_it(tmp_path: Path) -> None:
    first = TokenStore(tmp_path / "state")
    token = first.default()
    assert token.server_key == z85.decode(first.server_public)
    again = TokenStore(tmp_path / "state")
    assert again.default() == token
    assert again.server_public == first.server_public == zmq.curve_public(first.server_secret)
    assert again.secret(token.id) == token.secret
    assert again.secret(bytes(16)) is None


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    TokenStore(tmp_path / "state").create("x")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for file in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_changes_are_seen_by_a_running_server(tmp_path: Path) -> None:
    server, cli = TokenStore(tmp_path), TokenStore(tmp_path)
    token = cli.create("alice")
    assert server.secret(token.id) == token.secret
    key = zmq.curve_public(z85.encode(control_secret(token.secret)))
    assert server.control_keys()[key].name == "alice"
    cli.revoke("alice")
    assert server.secret(token.id) is None and key not in server.control_keys()


def test_revoke_by_id(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    token = store.create("alice")
    assert store.revoke(token.id.hex()[:8]).name == "alice"
    with pytest.raises(GpuvirtError, match="no token is called"):
        store.revoke("alice")


def test_names_are_unique(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.create("alice")
    with pytest.raises(GpuvirtError, match="already"):
        store.create("alice")
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(GpuvirtError):
            store.create(name)


def test_a_revoked_default_token_is_replaced(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    old = store.default()
    store.revoke("default")
    assert store.secret(old.id) is None
    assert store.default().id != old.id


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(GpuvirtError, match=r"tokens\.json cannot be read"):
        store.entries()
