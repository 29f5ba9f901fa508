"""The messages of a pool's hosts: each comes as it went; what is none is refused and nothing else happens."""

from __future__ import annotations

import random
from dataclasses import fields

import msgpack
import pytest

from gpuvirt.cluster import messages as m
from gpuvirt.cluster.migration import messages as b
from gpuvirt.server.migration.departure import SessionRecord
from gpuvirt.server.policy.rights import Rights

NAMED = b"o" * 16, b"i" * 16, b"l" * 16, b"p" * 32
WANTED = m.Wanted(7, "user a", Rights("a", 1 << 20, 2.5, 4, 3, "spread"), *NAMED, 2, 5, 250, -3, True, 1.5, {"pid": 3}, 9.25)
HOST = m.HostEntry("oak", "tcp://oak:7070", (1 << 30, 2 << 30), 7071, 5 << 20, 7073, True, "r1")
SESSION = SessionRecord(9, b"hello", "tcp", "10.0.0.9", 3.5, b"k" * 32, b"s" * 33, [[-1, 2], [0, 1]], 1 << 30)
EACH = [
    m.Join(m.VERSION, HOST, 3, (m.Held(WANTED, (0, 1), True),), (WANTED, WANTED), (m.Held(WANTED, (1,)),)),
    m.Want(WANTED),
    m.Placed(7, "no room"),
    m.Over(7),
    m.Suspended(7),
    m.Resume(4, 7),
    m.Shifted(7, (1, 0)),
    m.Ended(b"o" * 16, b"l" * 16),
    m.Alive(),
    m.Leave(),
    m.Welcome(4),
    m.NotWelcome("it is another"),
    m.Hosts((HOST, HOST), False),
    m.Tokens("[]"),
    m.Place(4, WANTED, (1,)),
    m.Elsewhere(7, "tcp://elm:7070"),
    m.Denied(7, "too much", True),
    m.Waits(7, 1, 2, "others have it"),
    m.Finish(7, "revoked"),
    m.Withdraw(7, "it stays where it was"),
    m.Preempt(7, "priority 1 waits"),
    m.Cordon(True),
    m.Migrate(7, "elm", True),
    m.Migrated(7, False),
    m.Arrived(m.Held(WANTED, (1,))),
    m.Relocate(7, "elm"),
    m.Stays(7),
    m.Destination(7, HOST),
    m.NoDestination(7, "full"),
    b.Bring(7, (SESSION, SESSION)),
    b.ImagePart(1, b"bytes"),
    b.Begin(),
    b.Abandon("it has ended"),
    b.Credit(5),
    b.Made(),
    b.Begun(),
    b.Failed("no worker"),
]


def test_there_is_one_of_each() -> None:
    assert sorted(type(message).__name__ for message in EACH) == sorted(m.Message.NAMES)


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_it_comes_as_it_went(message: m.Message) -> None:
    assert m.parse(message.packed()) == message


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_each_field_has_its_type(message: m.Message) -> None:
    """A value of another type in its place, a field too many, one too few."""
    said = msgpack.unpackb(message.packed())
    for field in fields(message):
        with pytest.raises(m.NotAMessage):
            m.parse(msgpack.packb({**said, field.name: {"neither": None}}))
    with pytest.raises(m.NotAMessage):
        m.parse(msgpack.packb({**said, "more": 1}))
    with pytest.raises(m.NotAMessage):
        m.parse(msgpack.packb({name: value for name, value in said.items() if name != "t"}))


def test_what_is_no_message_is_refused() -> None:
    """Bytes by chance, and messages in which some have changed."""
    chance = random.Random(5)
    refused = 0
    for number in range(4000):
        raw = bytearray(chance.choice(EACH).packed()) if number % 4 else bytearray(chance.randbytes(chance.randrange(80)))
        for _ in range(chance.randrange(4)):
            if raw:
                raw[chance.randrange(len(raw))] = chance.randrange(256)
        if chance.random() < 0.2:
            del raw[chance.randrange(len(raw) + 1) :]
        try:
            assert isinstance(m.parse(bytes(raw)), m.Message)
        except m.NotAMessage:
            refused += 1
    assert 1000 < refused < 4000
