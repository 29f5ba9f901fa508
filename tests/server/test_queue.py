"""Clients that wait for a GPU at a real daemon with stand-in workers: told their place, served in order, gone, refused, at the daemon's end."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import Connection, FakeServer, offer, start_fake, wait_until

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import request
from gpuvirt.transport.token import Token, parse_token

GIB = 1 << 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = start_fake(tmp_path_factory.mktemp("queue"), gpus=1, gpu_memory=GIB, grace=0)
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
    seen = request("127.0.0.1", int(server.ready["control_port"]), other, "ps")["leases"]
    assert [lease["program"] for lease in seen if lease["state"] == "queued"] == [None]
    first.close()
    one.close()
    all_over(server)
