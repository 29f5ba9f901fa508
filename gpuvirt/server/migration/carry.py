"""The image of a session passes from the worker that has it to another one, and the daemon sees that never more than one of them has it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.handover import Handover
from gpuvirt.server.workers.worker_process import WorkerProcess

REST_LIMIT = 10.0  # seconds that a session has to come to rest, unless who moves it says otherwise
REST_MOST = 600.0
NOBODY_READS = "the image could not be written"  # the new worker has given up, and says why
REASON_LIMIT = 5.0  # seconds that it has for that
WORKER_LIMIT = 60.0  # seconds until there must be a worker
CARRY_LIMIT = 600.0  # for the image to pass


def give_image(new: WorkerProcess, to: Handover) -> socket.socket:
    """Gives a session to a worker, which makes it from the image that is written to the socket that this returns.

    Raises:
        GpuvirtError: the worker has ended.
    """
    out, into = socket.socketpair()
    with into:
        config = replace(to.config, restored=True, passed=[*to.passed, "image"])
        try:
            new.give(config, (*to.descriptors, *to.passed.values(), into.fileno()))
        except OSError as error:
            out.close()
            raise GpuvirtError(f"a worker has ended: {error}") from None
    return out


async def carry(old: WorkerProcess, new: WorkerProcess, to: Handover, limit: float, at_rest: Callable[[], None]) -> None:
    """Has the old worker write the session's image to the new one.

    Returns when the new one has made everything again and waits for `begin`, and the old one stands still.

    Args:
        limit: seconds that the session has to come to rest.
        at_rest: called then; from there on the old worker takes no connections.

    Raises:
        GpuvirtError: the session stays with the old worker, which goes on; the new one is of no use any more.
    """
    with give_image(new, to) as out:
        try:
            saving = asyncio.ensure_future(old.save(out.fileno(), limit, at_rest))
            await asyncio.sleep(0)  # it is sent
            out.close()
        except OSError as error:
            raise GpuvirtError(f"a worker has ended: {error}") from None
        try:
            async with asyncio.timeout(limit + CARRY_LIMIT):
                why = await saving
                if why.startswith(NOBODY_READS):
                    await asyncio.wait([new.opened], timeout=REASON_LIMIT)
                if why and not (why.startswith(NOBODY_READS) and new.opened.done()):
                    raise GpuvirtError(why)
                await asyncio.shield(new.opened)
        except TimeoutError:
            raise GpuvirtError(f"the session's image did not pass within {limit + CARRY_LIMIT:.0f} s") from None
        except OSError as error:
            raise GpuvirtError(f"its worker has ended: {error}") from None
        finally:
            saving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, GpuvirtError):
                await saving
