"""Leases at a real daemon with stand-in workers: over the control channel and by hellos."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import EACH_POOL, PATIENCE, FakeServer, start_fake, wait_until
from server.test_sessions import config_of, further

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import table
from gpuvirt.transport.control import ControlError, request
from gpuvirt.transport.token import Token, parse_token

WHO = {"program": "sh", "pid": 5, "user": "me", "host": "here"}


@pytest.fixture(scope="module", params=EACH_POOL)
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = start_fake(tmp_path_factory.mktemp("four"), gpus=4, gpu_memory=1 << 30, head=request.param)
    yield server
    server.stop()


def ask_as(server: FakeServer, token: Token, op: str, limit: float = PATIENCE, **arguments: Any) -> dict[str, Any]:
    return request("127.0.0.1", int(server.ready["control_port"]), token, op, limit=limit, **arguments)


def open_lease(server: FakeServer, gpus: int, **more: Any) -> tuple[bytes, dict[str, Any]]:
    id = secrets.token_bytes(hs.LEASE_SIZE)
    return id, server.ask("lease_open", lease=id, gpus=gpus, holder=WHO, **more)


def leases(server: FakeServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ask("ps")["leases"]
    return found


def test_programs_of_one_lease_see_the_same_devices(four: FakeServer) -> None:
    """Two leases of four GPUs are apart; their programs, also those that say no number, see theirs; released, nothing is left."""
    (first, one), (second, two) = open_lease(four, 2), open_lease(four, 2, memory=2 << 20)
    assert (one["devices"], two["devices"]) == ([0, 1], [2, 3])
    idle = leases(four)
    assert [(lease["lease"], lease["state"], lease["named"], lease["sessions"]) for lease in idle] == [
        (one["number"], "idle", True, []),
        (two["number"], "idle", True, []),
    ]
    assert (idle[0]["program"], idle[0]["pid"], idle[0]["user"]) == ("sh", 5, "me") and first.hex() not in str(idle)
    socks = []
    for lease, gpus, devices, memory in ((first, 2, [0, 1], 0), (first, 0, [0, 1], 0), (second, 2, [2, 3], 2 << 20), (second, 0, [2, 3], 2 << 20)):
        sock, welcome, _ = four.attach(lease=lease, gpus=gpus)
        socks.append(sock)
        assert welcome.status == hs.WELCOME_OK
        config = config_of(sock)
        assert (config["devices"], config["memory"]) == (devices, memory)
    assert [(len(lease["sessions"]), lease["state"]) for lease in leases(four)] == [(2, "attached")] * 2
    assert {s["lease"] for s in four.ask("ps")["sessions"]} == {one["number"], two["number"]}
    assert [d["sessions"] for d in four.ask("devices")["devices"]] == [2, 2, 2, 2]
    for sock in socks:
        sock.close()
    wait_until(lambda: [lease["state"] for lease in leases(four)] == ["idle", "idle"])
    for lease in (first, second):
        assert four.ask("lease_release", lease=lease) == {"sessions": 0}
    assert leases(four) == []


def test_a_program_that_asks_for_other_gpus(four: FakeServer) -> None:
    lease, _ = open_lease(four, 2)
    sock, welcome, _ = four.attach(lease=lease, gpus=1)
    sock.close()
    assert welcome.status == hs.WELCOME_BUSY and "--gpus 1" in welcome.text and "has 2 GPUs" in welcome.text
    with four.connect() as connection:  # what `gpuvirt run` asks before it starts a program
        assert connection.shake(four.token, purpose=hs.HELLO_CHECK, lease=lease, gpus=3)[0].status == hs.WELCOME_BUSY
    with four.connect() as connection:
        assert connection.shake(four.token, purpose=hs.HELLO_CHECK, lease=lease, gpus=2)[0].status == hs.WELCOME_OK
    four.ask("lease_release", lease=lease)


def test_a_strangers_token_cannot_use_a_lease(four: FakeServer) -> None:
    stranger = parse_token(four.ask("token_create", name="stranger")["token"])
    lease, opened = open_lease(four, 1)
    for purpose in (hs.HELLO_SESSION, hs.HELLO_CHECK):
        with four.connect() as connection:
            welcome, _ = connection.shake(stranger, purpose=purpose, lease=lease)
            assert welcome.status == hs.WELCOME_UNKNOWN and "has ended" in welcome.text
    for op in ("lease_renew", "lease_show", "lease_release"):
        with pytest.raises(ControlError, match="has ended"):
            ask_as(four, stranger, op, lease=lease)
    with pytest.raises(ControlError, match="under another"):
        ask_as(four, stranger, "lease_open", lease=lease, gpus=1, holder=WHO)
    (seen,) = ask_as(four, stranger, "ps")["leases"]
    assert (seen["lease"], seen["program"], seen["user"], seen["pid"]) == (opened["number"], None, None, None)
    assert four.ask("lease_show", lease=lease)["sessions"] == []
    four.ask("lease_release", lease=lease)


def test_a_lease_that_is_given_back_while_a_session_waits_for_its_worker(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    """The session does not begin: nothing could end it any more with its lease."""
    hold = tmp_path / "hold"
    server = own_server(gpus=2, worker_options=["--hold", str(hold)])
    hold.touch()
    lease, _ = open_lease(server, 2)
    first, _, _ = server.attach()  # has the worker that was ready
    with server.connect() as waiting:
        offer = table.TRANSPORTS[-1].offer
        waiting.say(server.token.secret, hs.Hello(b"n" * 32, token_id=server.token.id, gpus=2, lease=lease, transports=(offer,)))
        wait_until(lambda: any(one["named"] and one["state"] == "attached" for one in leases(server)))
        assert server.ask("lease_release", lease=lease) == {"sessions": 1}
        hold.unlink()
        told = waiting.welcome(server.token.secret)
    assert told.status == hs.WELCOME_UNKNOWN and "the GPUs were given back" in told.text, told
    assert len(server.ask("ps")["sessions"]) == len(leases(server)) == 1
    first.close()


def test_who_works_under_a_released_lease_is_told(own_server: Callable[..., FakeServer]) -> None:
    server = own_server(gpus=2)
    lease, _ = open_lease(server, 2)
    sock, welcome, key = server.attach(lease=lease, gpus=2)
    other, _, _ = server.attach()
    assert [s["session"] for s in server.ask("lease_show", lease=lease)["sessions"]] == [f"{welcome.session:016x}"]
    assert server.ask("lease_release", lease=lease) == {"sessions": 1}
    sock.settimeout(100)
    assert sock.recv(1) == b""
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 1)
    with server.connect() as again:  # as the client's library does
        again.say(key, hs.Hello(b"f" * 32, purpose=hs.HELLO_RESUME, session=welcome.session, epoch=1))
        told = again.welcome(key)
    assert told.status == hs.WELCOME_UNKNOWN and "gpuvirt detach" in told.text
    assert further(server, bytes(32), purpose=hs.HELLO_RESUME, session=welcome.session, epoch=1)[0] == hs.WELCOME_UNKNOWN
    for gone in (server.attach(lease=lease, gpus=2), server.attach(lease=secrets.token_bytes(16))):
        gone[0].close()
        assert gone[1].status == hs.WELCOME_UNKNOWN and "GPUVIRT_LEASE" in gone[1].text
    assert [lease["named"] for lease in leases(server)] == [False]
    other.close()
    sock.close()


@pytest.mark.slow
@pytest.mark.parametrize("head", EACH_POOL)
def test_a_lease_without_its_agent_ends(own_server: Callable[..., FakeServer], head: bool) -> None:
    """Not while it is renewed, and not while something runs under it."""
    server = own_server(gpus=4, grace=0, head=head)
    begin = time.monotonic()
    renewed, opened = open_lease(server, 1)
    busy, idle = open_lease(server, 1)[0], open_lease(server, 1)[0]
    sock, _, _ = server.attach(lease=busy)
    assert opened["expiry"] == 5

    def left() -> int:
        server.ask("lease_renew", lease=renewed)
        time.sleep(0.2)
        return len(leases(server))

    wait_until(lambda: left() == 2)
    assert time.monotonic() - begin >= 4.9
    with pytest.raises(ControlError, match="has ended"):
        server.ask("lease_renew", lease=idle)
    sock.close()
    wait_until(lambda: left() == 1)
    server.ask("lease_release", lease=renewed)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("lease_open", {"lease": b"short", "gpus": 1}),
        ("lease_open", {"lease": "text", "gpus": 1}),
        ("lease_open", {"lease": bytes(16), "gpus": 1}),
        ("lease_open", {"lease": b"l" * 16, "gpus": -1}),
        ("lease_open", {"lease": b"l" * 16, "gpus": True}),
        ("lease_open", {"lease": b"l" * 16, "gpus": 1, "memory": 1.5}),
        ("lease_open", {"lease": b"l" * 16, "gpus": 1, "holder": {"pid": "x"}}),
        ("lease_open", {"lease": b"l" * 16, "gpus": 1}),
        ("lease_open", {"lease": b"l" * 16, "gpus": 9, "holder": WHO}),
        ("lease_open", {"lease": b"l" * 16, "holder": WHO}),
        ("lease_renew", {}),
        ("lease_release", {"lease": None}),
    ],
)
def test_requests_that_make_no_sense(four: FakeServer, op: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ControlError) as error:
        four.ask(op, **arguments)
    assert "failed at this request" not in str(error.value) and leases(four) == []


def test_a_lease_that_was_refused_is_not_opened_again(own_server: Callable[..., FakeServer]) -> None:
    """Whoever waited in an earlier server's queue asks again; this server knows what became of those that wait in its own."""
    server = own_server(gpus=1, gpu_memory=1 << 30)
    open_lease(server, 1, memory=1 << 30)
    id, opened = open_lease(server, 1, memory=1 << 30, queue=True, again=True)
    assert opened["place"] == 1 and not opened["devices"]
    server.ask("lease_release", lease=id)
    again = {"lease": id, "gpus": 1, "memory": 1 << 30, "holder": WHO, "queue": True}
    with pytest.raises(ControlError, match="given back before it had its GPUs"):
        server.ask("lease_open", **again, again=True)
    assert len(server.ask("ps")["leases"]) == 1
    assert server.ask("lease_open", **again)["place"] == 1, "a new one of the same name"


def test_a_launch_shares_devices(four: FakeServer) -> None:
    launch = secrets.token_bytes(16)
    socks = [four.attach(launch=launch, gpus=2)[0], four.attach(gpus=2)[0], four.attach(launch=launch, gpus=2)[0]]
    assert [config_of(sock)["devices"] for sock in socks] == [[0, 1], [2, 3], [0, 1]]
    for sock in socks:
        sock.close()
    wait_until(lambda: not four.ask("ps")["sessions"])
    assert [lease["state"] for lease in leases(four)] == ["idle"]
    with four.connect() as connection:
        connection.shake(four.token, purpose=hs.HELLO_ENDED, launch=launch)
    wait_until(lambda: leases(four) == [])
