"""Tokens: their text, and the store in the state folder."""

from __future__ import annotations

import base64
import json
import stat
import time
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.policy.rights import Rights
from gpuvirt.server.tokens import TokenStore, parse_tokens
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
    found = again.find(token.id)
    assert found is not None and found.key == token.secret
    assert again.find(bytes(16)) is None


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    TokenStore(tmp_path / "state").create("x")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for file in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_changes_are_seen_by_a_running_server(tmp_path: Path) -> None:
    server, cli = TokenStore(tmp_path), TokenStore(tmp_path)
    token = cli.create("alice")
    found = server.find(token.id)
    assert found is not None and found.key == token.secret and server.over(token.id) is None
    key = zmq.curve_public(z85.encode(control_secret(token.secret)))
    assert server.control_keys()[key].name == "alice"
    cli.revoke("alice")
    assert server.find(token.id) is None and key not in server.control_keys() and "revoked" in (server.over(token.id) or "")


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
    assert store.find(old.id) is None
    assert store.default().id != old.id


def test_an_expired_default_token_is_replaced(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.revoke("default")
    old = store.create("default", lifetime=1e-3)
    time.sleep(0.01)
    assert store.default().id != old.id and [entry.name for entry in store.entries()] == ["default"]


def test_rights_are_kept(tmp_path: Path) -> None:
    begin = time.time()
    token = TokenStore(tmp_path).create("a", user="ada", memory=5 << 20, weight=0.5, gpus=2, priority=-3, placement="pack", lifetime=3600)
    entry = TokenStore(tmp_path).find(token.id)
    assert entry is not None and entry.rights == Rights("ada", 4 << 20, 0.5, 2, -3, "pack") and not entry.expired
    assert begin + 3599 < entry.expires < time.time() + 3601
    assert entry.public() == {name: getattr(entry, name) for name in ("id", "name", "admin", "created", "user", "memory", "weight", "gpus")} | {
        "priority": -3,
        "placement": "pack",
        "expires": entry.expires,
    }


def test_tokens_of_one_user_have_the_same_rights(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.create("one", user="ada", gpus=2, weight=3)
    for more in ({}, {"gpus": 2}, {"weight": 3.0}):
        entry = store.find(store.create(f"with {more}", user="ada", **more).id)
        assert entry is not None and entry.rights == Rights("ada", 0, 3, 2)
    for name, wrong in (("gpus", 1), ("weight", 1.0), ("priority", 1), ("memory", 7)):
        with pytest.raises(GpuvirtError, match=rf"'ada' has the token .* with {name} \d; leave --{name} out"):
            store.create("other", user="ada", **{name: wrong})
    with pytest.raises(GpuvirtError, match=r"'ada' has the token .* with no placement; leave --placement out"):
        store.create("other", user="ada", placement="pack")
    with pytest.raises(GpuvirtError, match="placement is pack or spread"):
        store.create("other", placement="anywhere")
    entry = store.find(store.create("nobody's").id)
    assert entry is not None and entry.rights == Rights()


def test_a_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    file = tmp_path / "tokens.json"
    now = json.loads(file.read_text())["tokens"]
    oldest = [{k: v for k, v in entry.items() if k in ("id", "secret", "name", "admin", "created")} for entry in now]
    file.write_text(json.dumps(oldest))
    (entry,) = store.entries()
    assert entry.rights == Rights() and entry.expires == 0 and not entry.expired and parse_tokens(store.text())[0] == 0
    store.create("another")
    assert parse_tokens(store.text()) == (1, store.entries()) == parse_tokens(file.read_text())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("{", "cannot be read"),
        ("{}", "it is no list"),
        ('{"revision": -1, "tokens": []}', "its revision is no number"),
        ("[5]", "it lists what is no token"),
        ({"quota": 5}, "'quota' of a token is not known to this version"),
        ({"name": None}, "of another kind"),
        ({"expires": "soon"}, "of another kind"),
        ({"expires": -1}, "of another kind"),
        ({"admin": 1}, "of another kind"),
        ({"secret": "00"}, "of another size"),
        ({"id": "zz"}, "non-hexadecimal"),
        ({"weight": -1}, "weight is a number"),
        ({"gpus": "2"}, "GPUs are a number"),
        ({"priority": 1000}, "priority is a number"),
        ({"memory": -1}, "memory is a number"),
        ({"user": 5}, "user is a name"),
        ("name", "a token has no name"),
    ],
)
def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, change: str | dict[str, object], text: str) -> None:
    store = TokenStore(tmp_path)
    file = tmp_path / "tokens.json"
    (entry,) = json.loads(file.read_text())["tokens"]
    if change == "name":
        del entry["name"]
    file.write_text(change if isinstance(change, str) and change != "name" else json.dumps([entry | (change if isinstance(change, dict) else {})]))
    with pytest.raises(GpuvirtError, match=rf"tokens\.json cannot be read .*{text}|tokens\.json {text}") as raised:
        store.entries()
    assert "repair the file or remove it" in str(raised.value) and entry["secret"] not in str(raised.value)
