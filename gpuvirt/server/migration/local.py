"""A session goes on on other devices of this host."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.lease import NotGranted
from gpuvirt.server.migration.carry import WORKER_LIMIT, carry
from gpuvirt.server.session import Session
from gpuvirt.server.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from gpuvirt.server.sessions import Sessions

log = logging.getLogger("gpuvirt.server")


async def move(sessions: Sessions, session: Session, devices: tuple[int, ...], limit: float) -> dict[str, Any]:
    """Has a session and its lease go on on other devices, in another worker: its program waits meanwhile, and notices nothing.

    Args:
        limit: seconds that it has to come to rest.

    Raises:
        GpuvirtError: it stays where it is.
    """
    if not sessions.handovers.grace_of(session):
        raise GpuvirtError("the session cannot move: its client could not connect again (the server was started with --grace 0)")
    if sessions.inventory.backend != "soft" or sessions.inventory.strict:
        raise GpuvirtError("the session cannot move: only sessions on software GPUs can")
    try:
        membership = sessions.table.begin_move(session.id, devices)
    except NotGranted as error:
        raise GpuvirtError(f"the session cannot move: {error}") from None
    began, former, before, spare = time.monotonic(), session.worker, session.membership, membership.slot
    since = before.devices
    moving = asyncio.get_running_loop().create_future()

    def at_rest() -> None:
        session.moving = moving  # until then connections that were lost come back to the former worker: it may wait for what they bring

    session.moves = True
    worker: WorkerProcess | None = None
    try:
        sessions.engine.expect(session.tenant)
        worker = await sessions.engine.take(WORKER_LIMIT)
        if sessions.get(session.id) is None:
            raise GpuvirtError("it has ended")
        if sessions.kept is not None:
            sessions.kept.keep_heir(session, worker)
        await carry(former, worker, sessions.handovers.of(session, membership), limit, at_rest)
        if sessions.get(session.id) is None:
            raise GpuvirtError("it has ended")
        # From here on the session is the new worker's, and the former one's end is not its end.
        session.membership = sessions.table.end_move(session.id)
        spare, session.worker = before.slot, worker
        sessions.goes_on(session, worker)
        sessions.keep(session, former)
        former.kill()
        await asyncio.shield(former.gone)
        worker.begin()
        sessions.keep(session)
        if sessions.table.launch_has_ended(session.hello.launch, session.hello.token_id):
            worker.client_gone()
    except BaseException as error:
        former.go_on()
        if worker is not None:
            worker.kill()
            await asyncio.shield(worker.gone)
        if isinstance(error, GpuvirtError | NotGranted):
            raise GpuvirtError(f"the session stays where it is: {error}") from None
        if isinstance(error, OSError):
            raise GpuvirtError(f"the session has ended: the worker that took it over is gone ({error})") from None
        raise
    finally:
        sessions.table.stop_move(session.id)
        if sessions.memory_usage:
            sessions.memory_usage.free_slot(spare)
        moving.set_result(None)
        session.moving, session.moves = None, False
        if sessions.kept is not None:
            sessions.kept.drop_heir(session)
    was, now = (",".join(map(str, numbers)) for numbers in (since, devices))
    took = time.monotonic() - began
    log.info("%s moved from GPU %s (worker %d) to GPU %s (worker %d) in %.3f s", session.label, was, former.pid, now, worker.pid, took)
    return {"devices": [*devices], "worker_pid": worker.pid, "from": [*since], "from_pid": former.pid, "seconds": took}
