"""Requests of the control channel about named leases: open, renew, show, park, release. Each is answered for leases of the asking token only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.printable import printable
from gpuvirt.server.lease import Asked, ElsewhereError, Lease, NotGranted
from gpuvirt.server.observe.answers import sessions_answer
from gpuvirt.server.observe.facts import Facts
from gpuvirt.server.sessions import Sessions
from gpuvirt.server.tokens import TokenEntry
from gpuvirt.sizes import whole_units
from gpuvirt.transport.handshake import LEASE_SIZE

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
DECISION = 1.0  # seconds that a pool's scheduler has before the opener is told that its lease waits
GANG_MOST = 1 << 12  # leases of one gang
TEXT_MOST = 64  # characters of a holder's texts


def _number(message: dict[str, Any], name: str, most: int) -> int:
    value = message.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise GpuvirtError(f"a lease's {name} is a number from 0 to {most}")
    return value


def _id(message: dict[str, Any]) -> bytes:
    value = message.get("lease")
    if not isinstance(value, bytes) or len(value) != LEASE_SIZE or not any(value):
        raise GpuvirtError(f"a lease's id is {LEASE_SIZE} bytes")
    return value


def _holder(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise GpuvirtError("a lease's holder is a map")
    texts = {name: printable(str(said.get(name, ""))[:TEXT_MOST]) for name in ("program", "user", "host")}
    return {**texts, "pid": _number(said, "pid", (1 << 32) - 1), "peer": None}


def lease_requests(sessions: Sessions, facts: Callable[[], Awaitable[Facts]]) -> dict[str, Handler]:
    """The handlers, by operation.

    ``lease_open`` (lease: the id, 16 random bytes; gpus; memory: bytes on each device, 0: all; compute: thousandths of each that are reserved;
    holder: the opener's program, pid, user, host; queue: whether it may wait, wait_ms: for how long at most, 0: no limit; priority;
    gang, gang_size: it is granted with so many others of this number, or not at all; last: of those it is asked for last; again: it has waited in an
    earlier server's queue; refused where this one has refused it; preemptible: it gives way when a lease of a higher priority needs its GPUs: answers
    say in ``suspended`` why it does, and in ``suspensions`` how often it has; in ``preempted`` why it is to be given back, because it cannot be
    suspended) and ``lease_renew`` (lease) answer with the lease's
    number, its devices and, in ``expiry``, the seconds after which it ends unless it is renewed or has sessions; of one that waits, which has no
    devices, also with its ``place``, how many are ``queued``, and ``why``. ``lease_show`` (lease) answers also with its sessions and their figures;
    ``lease_park`` (lease; holder: the pid and host of a process that needs nothing for a while; renews the lease) with how many ``sessions`` will be
    parked; ``lease_release`` (lease) with how many ``sessions`` it has ended (when_idle: it ends none, and the lease with the last). Of a lease that
    another host of the pool has each answers with nothing but ``elsewhere``, that host's URL: ask there.
    """

    named = sessions.named

    def owner(message: dict[str, Any]) -> bytes:
        sender: TokenEntry = message["from"]
        return bytes.fromhex(sender.id)

    def described(lease: Lease) -> dict[str, Any]:
        return {"number": f"{lease.number:016x}", "devices": [*lease.devices], "expiry": named.expiry, **named.waiting(lease)}

    async def lease_open(message: dict[str, Any]) -> dict[str, Any]:
        sender: TokenEntry = message["from"]
        gpus, memory = _number(message, "gpus", 1 << 16), whole_units(_number(message, "memory", (1 << 63) - 1))
        compute = _number(message, "compute", 1 << 16)
        priority, wait_ms = message.get("priority", 0), _number(message, "wait_ms", (1 << 32) - 1)
        if type(priority) is not int:
            raise GpuvirtError("a lease's priority is a number")
        no_wait = message.get("queue") is not True
        gang = _number(message, "gang", (1 << 63) - 1)
        asked = Asked(
            owner(message), gpus, memory, sender.rights, compute=compute, priority=priority, no_wait=no_wait, wait=wait_ms / 1000,
            gang=gang, gang_size=_number(message, "gang_size", GANG_MOST) if gang else 1, preemptible=message.get("preemptible") is True,
        )  # fmt: skip
        if message.get("again") is True:
            named.check_not_refused(_id(message), asked.owner)
        lease = named.open(_id(message), asked, _holder(message.get("holder")))
        if not gang or message.get("last") is True:
            await sessions.waiting.answered_within(lease, DECISION)
        if lease.refused:
            raise NotGranted(lease.refused)
        return {"elsewhere": lease.elsewhere} if lease.elsewhere else described(lease)

    async def lease_renew(message: dict[str, Any]) -> dict[str, Any]:
        return described(named.renew(_id(message), owner(message)))

    async def lease_show(message: dict[str, Any]) -> dict[str, Any]:
        lease = named.find(_id(message), owner(message))
        seen = sessions_answer(await facts(), lease.owner)
        return {**described(lease), "sessions": [s for s in seen if s["lease"] == f"{lease.number:016x}"]}

    async def lease_park(message: dict[str, Any]) -> dict[str, Any]:
        lease = named.renew(_id(message), owner(message))
        holder = _holder(message.get("holder"))
        return {"sessions": sessions.park_when_quiet(lease, holder["pid"], holder["host"])}

    async def lease_release(message: dict[str, Any]) -> dict[str, Any]:
        if message.get("when_idle") is True:
            named.let_go(_id(message), owner(message))
            return {"sessions": 0}
        return {"sessions": named.release(_id(message), owner(message))}

    def answering(handler: Handler) -> Handler:
        async def answered(message: dict[str, Any]) -> dict[str, Any]:
            try:
                return await handler(message)
            except ElsewhereError as error:
                return {"elsewhere": error.url}
            except NotGranted as error:
                raise GpuvirtError(str(error)) from None

        return answered

    return {handler.__name__: answering(handler) for handler in (lease_open, lease_renew, lease_show, lease_park, lease_release)}
