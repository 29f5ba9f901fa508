"""What the control channel answers about the facts, to whom: of what other tokens have, only an admin's token is told whose it is and what runs."""

from __future__ import annotations

from typing import Any

from gpuvirt.server.observe.facts import LEASE_STATES, WAITS, Facts, LeaseFacts, SessionFacts

HOLDER = ("program", "pid", "user", "host", "peer")  # what is said of whose a session or a lease is, to those who may know


def devices_answer(facts: Facts) -> dict[str, Any]:
    """Of `devices`: ordinal, name, memory, memory_used (None where only the driver knows), given_back, sessions."""
    devices = [
        {
            "ordinal": device.ordinal,
            "name": device.name,
            "memory": device.memory,
            "memory_used": device.memory_used,
            "given_back": device.given_back,
            "sessions": device.sessions,
        }
        for device in facts.devices
    ]
    return {"server": facts.server, "backend": facts.backend, "devices": devices}


def ps_answer(facts: Facts, viewer: bytes | None) -> dict[str, Any]:
    """Of `ps`: leases and sessions, oldest first.

    Args:
        viewer: the token that asks; of other tokens' it is not told whose they are and what runs in them. None: of all.
    """
    leases = [_lease(lease, viewer in (None, lease.owner)) for lease in facts.leases]
    return {"server": facts.server, "leases": leases, "sessions": sessions_answer(facts, viewer)}


def sessions_answer(facts: Facts, viewer: bytes | None) -> list[dict[str, Any]]:
    """The sessions of `ps`. viewer: as there."""
    return [_session(session, viewer in (None, session.owner)) for session in facts.sessions]


def top_answer(facts: Facts, viewer: bytes | None) -> dict[str, Any]:
    """Of `top`: devices; the leases and sessions of the viewer's token, of the others only how many they are and what memory they have.

    Args:
        viewer: None: all are the viewer's to see.
    """

    def own(one: LeaseFacts | SessionFacts) -> bool:
        return viewer in (None, one.owner)

    others = [session for session in facts.sessions if not own(session)]
    states = [lease.state for lease in facts.leases]
    return {
        **devices_answer(facts),
        "at": facts.at,
        "leases": [_lease(lease, True) for lease in facts.leases if own(lease)],
        "sessions": [_session(session, True) for session in facts.sessions if own(session)],
        "totals": {
            **{state: states.count(state) for state in LEASE_STATES},
            "waits": sum(session.state == WAITS for session in facts.sessions),
        },
        "others": {
            "sessions": len(others),
            "memory_used": sum(session.memory_used or 0 for session in others),
            "given_back": sum(session.given_back or 0 for session in others),
        },
    }


def _lease(lease: LeaseFacts, told: bool) -> dict[str, Any]:
    return {
        "lease": f"{lease.number:016x}",
        **(lease.holder if told else dict.fromkeys(HOLDER)),
        "account": lease.account if told else None,
        "state": lease.state,
        **lease.queue,
        "gpus": lease.gpus,
        "compute": lease.compute,
        "named": lease.named,
        "devices": [*lease.devices],
        "sessions": [f"{session:016x}" for session in lease.sessions],
        "started": lease.started,
    }


def _session(session: SessionFacts, told: bool) -> dict[str, Any]:
    waits = {"waits_for": session.waits_for, "place": session.place, "waiting": session.waiting} if session.place else {}
    return {
        "session": f"{session.id:016x}",
        "lease": f"{session.lease:016x}",
        **(session.holder if told else dict.fromkeys(HOLDER)),
        "account": session.account if told else None,
        "state": session.state,
        **waits,
        "link": session.link,
        "cipher": session.cipher,
        "devices": [*session.devices],
        "parked": session.given_back,
        "worker_pid": session.worker_pid,
        "started": session.started,
        **session.figures,
        **({} if session.turns is None else {"turns_s": session.turns}),
        **({} if session.memory_used is None else {"memory_used": session.memory_used}),
    }
