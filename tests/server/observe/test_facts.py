"""The facts of one moment, and who is told what of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuvirt.server.devices import Device
from gpuvirt.server.lease import Lease
from gpuvirt.server.observe.answers import devices_answer, ps_answer, top_answer
from gpuvirt.server.observe.facts import ATTACHED, IDLE, MOVES, PARKED, QUEUED, WAITS, Facts, Source, collect

A, B = b"a" * 16, b"b" * 16
MIB = 1 << 20


def lease(number: int, owner: bytes, devices: tuple[int, ...], *sessions: int) -> Lease:
    holder = {"program": f"program {number}", "pid": number, "user": "someone", "host": "desk", "peer": "10.0.0.1"}
    return Lease(number, owner, len(devices) or 2, 0, float(number), holder, devices, sessions={*sessions})


def session(number: int, of: Lease, parked: int | None = None, asked: int = 0, moves: bool = False) -> Any:
    rows = [None if size is None else [size if d in of.devices else 0 for d in range(16)] for size in (parked, asked)]
    state = SimpleNamespace(parked=rows[0], need=lambda device: sum(row[device] for row in rows if row is not None))
    hello = SimpleNamespace(token_id=of.owner, program=f"secret {number}", pid=number, user="someone", host="desk")
    membership = SimpleNamespace(lease=of, devices=of.devices)
    link, worker = SimpleNamespace(name="shm"), SimpleNamespace(pid=number)
    known = {"id": number, "started": float(number), "hello": hello, "peer": "10.0.0.1", "transport": link, "cipher": None, "slot": number}
    return SimpleNamespace(**known, membership=membership, worker=worker, parking=state, moves=moves)


def facts() -> Facts:
    """Alice's: one attached, one parked that wants its memory back, one with nothing, one queued. Bob's: one parked."""
    alice = [lease(1, A, (0, 1), 11, 12), lease(2, A, (1,), 13), lease(3, A, (0,)), lease(4, A, ())]
    bob = lease(5, B, (0,), 14)
    sessions = [session(11, alice[0]), session(12, alice[0], moves=True), session(13, alice[1], 7 * MIB), session(14, bob, 3 * MIB)]
    memory: Any = SimpleNamespace(used=lambda device: (100 + device) * MIB, row=lambda slot: [MIB, MIB] if slot == 11 else [0, 0])
    source = Source(
        "host",
        "soft",
        [Device("gpu", 256 * MIB), Device("gpu", 256 * MIB)],
        memory,
        queue=lambda lease: {"place": 1, "queued": 1, "why": "no GPU is free"} if lease.waits else {},
        room=lambda session: (1, 1) if session.id == 13 else (0, 0),
        turns=lambda session: 2.5 if session.id == 11 else None,
        account=lambda token: {A: "alice", B: "bob"}[token],
    )
    figures = {11: {"commands": 5, "launches": 3, "bytes_in": 1, "bytes_out": 2, "memory_used": 9}}
    return collect(source, [*alice, bob], reversed(sessions), figures, 99.0)


def test_what_they_are() -> None:
    found = facts()
    assert [one.state for one in found.leases] == [ATTACHED, PARKED, IDLE, QUEUED, PARKED]
    assert [(one.id, one.state, one.given_back, one.waits_for) for one in found.sessions] == [
        (11, ATTACHED, None, 0),
        (12, MOVES, None, 0),
        (13, WAITS, 7 * MIB, 7 * MIB),
        (14, PARKED, 3 * MIB, 0),
    ]
    assert [(device.memory_used, device.given_back, device.sessions) for device in found.devices] == [
        (100 * MIB, 3 * MIB, 3),
        (101 * MIB, 7 * MIB, 3),
    ]
    assert found.sessions[0].memory_used == 2 * MIB, "the table's word, not the worker's"


def test_others_programs_are_nobodys_business() -> None:
    """Of what another token has, `ps` tells that it is there, and `top` how much that is in all."""
    found = facts()
    for told, secrets in ((ps_answer(found, A), ["secret 14", "program 5", "bob"]), (ps_answer(found, B), ["secret 11", "program 1", "alice"])):
        assert not any(secret in repr(told) for secret in secrets)
    assert all(secret in repr(ps_answer(found, None)) for secret in ("secret 14", "program 5", "bob", "secret 11", "alice"))
    told = top_answer(found, B)
    assert [one["session"] for one in told["sessions"]] == [f"{14:016x}"] and [one["lease"] for one in told["leases"]] == [f"{5:016x}"]
    assert told["others"] == {"sessions": 3, "memory_used": 2 * MIB, "given_back": 7 * MIB}
    assert told["totals"] == {"attached": 1, "parked": 2, "idle": 1, "queued": 1, "suspended": 0, "waits": 1}
    assert not any(secret in repr(told) for secret in ("secret 11", "program 1", "alice", f"{11:016x}", f"{1:016x}"))
    assert top_answer(found, None)["others"]["sessions"] == 0 and len(top_answer(found, None)["sessions"]) == 4


def test_what_is_said() -> None:
    told = ps_answer(facts(), A)
    (queued,) = (one for one in told["leases"] if one["state"] == "queued")
    assert (queued["place"], queued["queued"], queued["why"], queued["gpus"], queued["devices"]) == (1, 1, "no GPU is free", 2, [])
    waits = told["sessions"][2]
    assert (waits["parked"], waits["waits_for"], waits["place"], waits["waiting"]) == (7 * MIB, 7 * MIB, 1, 1)
    first = told["sessions"][0]
    assert (first["launches"], first["bytes_in"], first["memory_used"], "place" in first) == (3, 1, 2 * MIB, False)
    assert [device["given_back"] for device in devices_answer(facts())["devices"]] == [3 * MIB, 7 * MIB]
