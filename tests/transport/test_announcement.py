"""What servers say of themselves in their network: what of it is believed, and what can be done without the library."""

from __future__ import annotations

import sys

import pytest

from gpuvirt.errors import GpuvirtError
from gpuvirt.transport import announcer, discovery
from gpuvirt.transport.announcement import SERVICE, Announcement, parse, pool_digest
from gpuvirt.transport.pool import FIND, PoolAddress, parse_choice, parse_pool

AT = (PoolAddress("10.0.0.7", 7070),)
OAK = Announcement("oak", AT, pool_digest(bytes(32)), 2, "soft")


def said(**other: str | None) -> dict[bytes, bytes | None]:
    """The TXT record of OAK, with others in the place of some of its properties; None: without that one."""
    found = {**OAK.properties(), **other}
    return {name.encode(): value.encode() for name, value in found.items() if value is not None}


def test_what_is_said_is_understood() -> None:
    assert parse(f"oak.{SERVICE}", AT, said()) == OAK
    assert parse(f"oak.{SERVICE}", AT, said(more="of a later version")) == OAK


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": "2"},
        {"v": None},
        {"gpus": None},
        {"gpus": "-1"},
        {"gpus": "10000"},
        {"backend": "?"},
        {"pool": ""},
        {"pool": "\x1b[31m"},
    ],
)
def test_what_makes_no_sense_is_left_out(wrong: dict[str, str | None]) -> None:
    assert parse(f"oak.{SERVICE}", AT, said(**wrong)) is None


def test_a_name_that_would_move_the_cursor_is_left_out() -> None:
    assert parse(f"\x1b[2J.{SERVICE}", AT, said()) is None
    assert parse(f"oak.{SERVICE}", (), said()) is None


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    for needs_it in (lambda: next(discovery.announced()), announcer.check_installed):
        with pytest.raises(GpuvirtError, match=r"gpuvirt\[discovery\]"):
            needs_it()


def test_only_a_user_may_say_find() -> None:
    """A server that sends a client on names an address."""
    assert parse_choice(" find ") == FIND and parse_choice("tcp://oak:7070") == PoolAddress("oak", 7070)
    with pytest.raises(GpuvirtError, match="is not a pool"):
        parse_pool("find")
