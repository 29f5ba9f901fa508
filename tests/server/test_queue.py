"""Clients that wait for a GPU at a real daemon with stand-in workers: told their place, served in order, gone, refused, at the daemon's end."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import EACH_POOL, PATIENCE, Connection, FakeServer, offer, start_fake, wait_until

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import RequestRefused, request
from gpuvirt.transport.token import Token, parse_token

GIB = 1 << 30


@pytest.fixture(scope="module", params=EACH_POOL)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = start_fake(tmp_path_factory.mktemp("queue"), gpus=1, gpu_memory=GIB, head=request.param)
    yield server
    server.stop()


def waits(server: FakeServer, token: Token | None = None, **hello: Any) -> tuple[Connection, hs.State]:
    """A client that has been told that it waits, and what."""
    connection, token = server.connect(), token or server.token
    connection.say(token.secret, hs.Hello(secrets.token_bytes(32), token_id=token.id, transports=(offer("tcp"),), gpus=1, **hello))
    raw = connection.message()
    connection.transcript.add(raw)
    return connection, hs.State.unpack(raw)


def queued(server: FakeServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [lease for lease in server.ask("ps")["leases"] if lease["state"] == "queued"]
    return sorted(found, key=lambda lease: lease["place"])


def open_lease(server: FakeServer, token: Token | None = None, **asked: Any) -> tuple[bytes, dict[str, Any]]:
    id, who = secrets.token_bytes(hs.LEASE_SIZE), {"program": "sh", "pid": 5, "user": "me", "host": "here"}
    said = {"lease": id, "gpus": 1, "memory": GIB, "holder": who, **asked}
    return id, request("127.0.0.1", int(server.ready["control_port"]), token or server.token, "lease_open", limit=PATIENCE, **said)


def all_over(server: FakeServer) -> None:
    wait_until(lambda: server.ask("ps")["leases"] == [])


def test_in_order(server: FakeServer) -> None:
    """Memory is reserved: who wants all of it waits for who has it, is told so again and again, and the proof covers what was told."""
    first, welcome, _ = server.attach(gpus=1, memory=GIB)
    assert welcome.status == hs.WELCOME_OK
    one, state = waits(server, memory=GIB, program="one")
    assert (state.state, state.place, state.queued) == (hs.STATE_WAITING, 1, 1) and "0 of the 1 GPU" in state.text
    two, state = waits(server, memory=GIB, program="two")
    assert (state.place, state.queued) == (2, 2)
    found = queued(server)
    assert [(lease["program"], lease["place"], lease["queued"], lease["gpus"], lease["devices"]) for lease in found] == [
        ("one", 1, 2, 1, []),
        ("two", 2, 2, 1, []),
    ]
    assert all(lease["why"] for lease in found)
    again = two.message()  # after STATE_EVERY seconds
    two.transcript.add(again)
    assert hs.State.unpack(again).place == 2
    first.close()
    assert one.welcome(server.token.secret).status == hs.WELCOME_OK
    one.close()
    assert two.welcome(server.token.secret).status == hs.WELCOME_OK
    two.close()
    all_over(server)


def test_a_client_that_goes_away_leaves_the_queue(server: FakeServer) -> None:
    first, _, _ = server.attach(gpus=1, memory=GIB)
    one, _ = waits(server, memory=GIB, program="one")
    two, state = waits(server, memory=GIB, program="two")
    one.close()
    wait_until(lambda: [lease["program"] for lease in queued(server)] == ["two"])
    assert state.place == 2 and queued(server)[0]["place"] == 1
    two.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # it was killed: its kernel resets the connection
    two.close()
    wait_until(lambda: queued(server) == [])
    first.close()
    all_over(server)


def test_processes_of_one_launch_wait_together(server: FakeServer) -> None:
    first, _, _ = server.attach(gpus=1, memory=GIB)
    launch = secrets.token_bytes(hs.LAUNCH_SIZE)
    both = [waits(server, memory=GIB, launch=launch) for _ in range(2)]
    assert [state.place for _, state in both] == [1, 1] and len(queued(server)[0]["sessions"]) == 2
    first.close()
    for connection, _ in both:
        assert connection.welcome(server.token.secret).status == hs.WELCOME_OK
    assert len(server.ask("ps")["leases"]) == 1
    for connection, _ in both:
        connection.close()
    server.attach(purpose=hs.HELLO_ENDED, launch=launch)[0].close()
    all_over(server)


def test_who_reserves_nothing_does_not_wait(server: FakeServer) -> None:
    socks = [server.attach(gpus=1)[0] for _ in range(3)]
    assert len(server.ask("ps")["sessions"]) == 3 and queued(server) == []
    for sock in socks:
        sock.close()
    all_over(server)


def test_waiting_counts_as_a_session_of_the_token(tmp_path: Path) -> None:
    server = start_fake(tmp_path, gpus=1, gpu_memory=GIB, sessions_per_token=2)
    first, _, _ = server.attach(gpus=1, memory=GIB)
    one, _ = waits(server, memory=GIB)
    refused = server.attach(gpus=1, memory=GIB)[1]
    assert refused.status == hs.WELCOME_BUSY and "has 2 sessions" in refused.text
    first.close()
    one.close()
    server.stop()


def test_the_daemon_ends_while_clients_wait(tmp_path: Path) -> None:
    server = start_fake(tmp_path, gpus=1, gpu_memory=GIB)
    first, _, _ = server.attach(gpus=1, memory=GIB)
    one, _ = waits(server, memory=GIB)
    ended: list[hs.Welcome] = []
    thread = threading.Thread(target=lambda: ended.append(one.welcome(server.token.secret)))
    thread.start()
    log = server.stop()
    thread.join(100)
    assert ended and ended[0].status == hs.WELCOME_FAILED and "stopping" in ended[0].text
    assert "Traceback" not in log and server.process.returncode == 0
    first.close()
    one.close()


def test_others_are_not_told_who_waits(server: FakeServer) -> None:
    first, _, _ = server.attach(gpus=1, memory=GIB)
    other = parse_token(server.ask("token_create", name="other")["token"])
    one, _ = waits(server, memory=GIB, program="secret")
    seen = request("127.0.0.1", int(server.ready["control_port"]), other, "ps", limit=PATIENCE)["leases"]
    assert [lease["program"] for lease in seen if lease["state"] == "queued"] == [None]
    first.close()
    one.close()
    all_over(server)


def test_without_waiting(server: FakeServer) -> None:
    """Refused at once, with the place that it would have; what is free is had."""
    first, welcome, _ = server.attach(gpus=1, memory=GIB, flags=hs.HELLO_NO_WAIT)
    assert welcome.status == hs.WELCOME_OK
    one, _ = waits(server, memory=GIB)
    refused = server.attach(gpus=1, memory=GIB, flags=hs.HELLO_NO_WAIT)[1]
    assert refused.status == hs.WELCOME_BUSY and "it would be at place 2 of 2" in refused.text
    with pytest.raises(RequestRefused, match="it would be at place 2 of 2"):
        open_lease(server)
    assert len(queued(server)) == 1
    first.close()
    one.close()
    all_over(server)


def test_no_longer_than_it_wants_to(server: FakeServer) -> None:
    first, _, _ = server.attach(gpus=1, memory=GIB)
    one, _ = waits(server, memory=GIB, wait_ms=300)
    refused = one.welcome(server.token.secret)
    assert refused.status == hs.WELCOME_BUSY and "it has waited 0 s, as long as it wanted to" in refused.text and "--wait" in refused.text
    id, told = open_lease(server, queue=True, wait_ms=300)
    assert told["devices"] == [] and (told["place"], told["queued"]) == (1, 1)
    wait_until(lambda: queued(server) == [])
    with pytest.raises(RequestRefused, match="as long as it wanted to"):
        server.ask("lease_renew", lease=id)
    first.close()
    all_over(server)


def test_priorities(server: FakeServer) -> None:
    """The higher goes first, as far as its token allows, and a number that there is not is refused."""
    important = parse_token(server.ask("token_create", name="important", priority=5)["token"])
    first, _, _ = server.attach(gpus=1, memory=GIB)
    low, _ = waits(server, memory=GIB, priority=-1)
    plain, state = waits(server, memory=GIB)
    assert (state.place, state.queued) == (1, 2)
    high, state = waits(server, important, memory=GIB, priority=5)
    assert (state.place, state.queued) == (1, 3)
    refused = [server.attach(gpus=1, memory=GIB, priority=n, purpose=p)[1] for n in (1, 101, -101) for p in (hs.HELLO_SESSION, hs.HELLO_CHECK)]
    assert all(one.status == hs.WELCOME_BUSY for one in refused)
    assert ["may ask for 0 at most" in one.text for one in refused] == [True] * 2 + [False] * 4
    assert ["there are -100 to 100" in one.text for one in refused] == [False] * 2 + [True] * 4
    with pytest.raises(RequestRefused, match="may ask for 5 at most"):
        open_lease(server, important, queue=True, priority=6)
    for connection in (low, plain, high, first):
        connection.close()
    all_over(server)


def test_a_named_lease_waits(server: FakeServer) -> None:
    """Its opener asks until it has its GPUs; given back, or not asked for any more, it leaves the queue."""
    first, _, _ = server.attach(gpus=1, memory=GIB)
    id, told = open_lease(server, queue=True)
    other, _ = open_lease(server, queue=True)
    assert told["devices"] == [] and (told["place"], told["queued"]) == (1, 1) and told["why"]
    assert [(lease["program"], lease["named"], lease["place"]) for lease in queued(server)] == [("sh", True, 1), ("sh", True, 2)]
    under, _ = waits(server, lease=other)  # who works under a lease waits with it
    assert server.ask("lease_release", lease=other) == {"sessions": 0}
    refused = under.welcome(server.token.secret)
    assert refused.status == hs.WELCOME_BUSY and "given back before it had" in refused.text
    first.close()
    wait_until(lambda: server.ask("lease_renew", lease=id)["devices"] == [0])
    sock, welcome, _ = server.attach(lease=id)
    assert welcome.status == hs.WELCOME_OK
    server.ask("lease_release", lease=id)
    sock.close()
    under.close()
    all_over(server)
