"""Gangs of leases at a real daemon with stand-in workers, as a client opens them and by single requests."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server.harness import EACH_POOL, FakeServer, start_fake, wait_until
from server.test_lease_sessions import ask_as
from server.test_ledger import again

from gpuvirt.client import named_lease
from gpuvirt.client.named_lease import GangBroken, NamedLease, open_gang
from gpuvirt.client.settings import resolve
from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import ControlError, RequestRefused
from gpuvirt.transport.pool import check_pool, parse_pool
from gpuvirt.transport.token import parse_token

GIB = 1 << 30


@pytest.fixture(scope="module", params=EACH_POOL)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = start_fake(tmp_path_factory.mktemp("gangs"), gpus=4, gpu_memory=GIB, head=request.param)
    yield server
    server.stop()


def ask_for(server: FakeServer, number: int, size: int, **asked: Any) -> tuple[bytes, dict[str, Any]]:
    id, who = secrets.token_bytes(hs.LEASE_SIZE), {"program": "sh", "pid": 5, "user": "me", "host": "here"}
    said = {"gpus": 1, "memory": GIB, "queue": True, "holder": who, "gang": number, "gang_size": size, "last": True} | asked
    return id, server.ask("lease_open", lease=id, **said)


def opens(
    server: FakeServer, size: int, gpus: int, told: list[str], pause: Any = time.sleep, preemptible: bool = False, **settings: Any
) -> list[NamedLease]:
    found = check_pool(parse_pool(server.url), server.token.text())
    return open_gang(found, replace(resolve({}), gpus=gpus, memory=GIB, **settings), size, preemptible, "job", told.append, pause)


def states(server: FakeServer) -> list[str]:
    return sorted(lease["state"] for lease in server.ask("ps")["leases"])


def test_all_have_their_gpus_when_the_last_is_asked_for(server: FakeServer) -> None:
    first, told = ask_for(server, 5, 2)
    assert told["devices"] == [] and told["why"] == "1 of the 2 leases of its gang has been asked for"
    last, told = ask_for(server, 5, 2)
    assert len(told["devices"]) == 1 and server.ask("lease_renew", lease=first)["devices"] not in ([], told["devices"])
    with pytest.raises(RequestRefused, match="ask for another gang"):
        server.ask("lease_release", lease=first)
        ask_for(server, 5, 2)
    server.ask("lease_release", lease=last)
    assert states(server) == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"queue": False}, "ask for it without --no-wait"),
        ({"gpus": 2}, "ask for the same"),
        ({"gang_size": 2}, "ask for the same"),
        ({"gang_size": 0}, "ask for the same"),
        ({"gang_size": 5000}, "from 0 to 4096"),
        ({"gang": -1}, "from 0 to"),
        ({"gpus": 2, "gang": 8}, "6 GPUs were asked for and this pool has 4"),
    ],
)
def test_what_is_none_is_refused(server: FakeServer, asked: dict[str, Any], why: str) -> None:
    """And the others go on."""
    first, _ = ask_for(server, 7, 3)
    with pytest.raises(RequestRefused, match=why):
        ask_for(server, 7, 3, **asked)
    assert states(server) == ["queued"]
    server.ask("lease_release", lease=first)
    assert states(server) == []


def test_a_client_that_waits_is_told_of_all_of_it(server: FakeServer) -> None:
    """Three of four GPUs are free, and two leases want two each: nothing is had, one line is said, and then all is had."""
    busy, _ = ask_for(server, 0, 1)
    told: list[str] = []

    def pause(seconds: float) -> None:
        if any("3 of the 4 GPUs" in line for line in told) and "idle" in states(server):
            server.ask("lease_release", lease=busy)
        time.sleep(0.1)

    leases = opens(server, 2, 2, told, pause)
    assert [len(lease.devices) for lease in leases] == [2, 2] and len({lease.number for lease in leases}) == 2
    assert len(told) <= 2 and told[-1].startswith("waiting for 4 GPUs of ")  # in a pool it may not have been decided at first
    assert "place 1 of 1 (3 of the 4 GPUs that it needs are free)" in told[-1]
    for lease in leases:
        lease.release()


def test_who_gives_up_leaves_nothing(server: FakeServer) -> None:
    busy, _ = ask_for(server, 0, 1)

    def pause(seconds: float) -> None:
        assert states(server).count("queued") == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opens(server, 2, 2, [], pause)
    assert states(server) == ["idle"]
    with pytest.raises(ControlError, match="5 GPUs were asked for and this pool has 4"):
        opens(server, 5, 1, [])
    assert states(server) == ["idle"]
    server.ask("lease_release", lease=busy)


def test_a_gang_of_which_one_ends_is_broken(server: FakeServer) -> None:
    """While it waits; but not if it has waited for as long as it wanted to."""
    busy, _ = ask_for(server, 0, 1)

    def pause(seconds: float) -> None:
        waiting = [lease for lease in server.ask("ps")["leases"] if lease["state"] == "queued"]
        if len(waiting) == 2:  # as if the host of one had been lost after they were granted
            for opening in opened:
                opening.release()
        time.sleep(0.1)

    opened: list[named_lease._Opening] = []
    begin = named_lease._Opening.__init__

    def remembers(self: named_lease._Opening, *said: Any) -> None:
        begin(self, *said)
        opened[:] = [self]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_lease._Opening, "__init__", remembers)
        with pytest.raises(GangBroken, match="given back"):
            opens(server, 2, 2, [], pause)
    with pytest.raises(RequestRefused, match="as long as it wanted to"):
        opens(server, 2, 2, [], wait=0.5)
    assert states(server) == ["idle"]
    server.ask("lease_release", lease=busy)


def test_a_keeper_is_told_that_its_lease_gives_way(server: FakeServer) -> None:
    """When a lease of a higher priority has waited for five seconds; that has the GPUs until it gives them back. The gang gives way as a whole."""
    low = opens(server, 2, 2, [], preemptible=True)
    important = parse_token(server.ask("token_create", name="important", priority=5)["token"])
    id, said = secrets.token_bytes(hs.LEASE_SIZE), {"gpus": 2, "memory": GIB, "queue": True, "holder": {}, "priority": 1}
    assert ask_as(server, important, "lease_open", lease=id, **said)["devices"] == []

    def told() -> bool:
        for lease in low:
            lease.renew()
        return any(lease.suspended for lease in low)

    assert not told()
    wait_until(lambda: "number" in ask_as(server, important, "lease_renew", lease=id) and told())
    wait_until(lambda: told() and all(lease.suspended for lease in low))
    texts = ["a lease of priority 1 waits for GPUs of its gang", "a lease of priority 1 waits for its GPUs"]
    assert sorted(lease.suspended for lease in low) == texts and not any(lease.preempted for lease in low)
    wait_until(lambda: len(ask_as(server, important, "lease_renew", lease=id)["devices"]) == 2)
    ask_as(server, important, "lease_release", lease=id)
    wait_until(lambda: not told())
    assert [lease.suspensions for lease in low] == [1, 1]
    for lease in low:
        lease.release()


@pytest.mark.slow
def test_a_gang_waits_on_at_the_next_daemon(tmp_path: Path) -> None:
    """It knows no lease that waited; all of the gang ask it anew."""
    server = start_fake(tmp_path, gpus=2, gpu_memory=GIB)
    try:
        busy, _ = ask_for(server, 0, 1)
        found: list[NamedLease] = []
        before = server
        opener = threading.Thread(target=lambda: found.extend(opens(before, 2, 1, [])))
        opener.start()
        wait_until(lambda: states(before).count("queued") == 2)
        server = again(tmp_path, server, gpus=2, gpu_memory=GIB)
        wait_until(lambda: states(server) == ["idle", "queued", "queued"])
        server.ask("lease_release", lease=busy)
        opener.join(100)
        assert sorted(lease.devices for lease in found) == [(0,), (1,)]
    finally:
        server.stop()
