"""Requests of the control channel about migration: ``move`` to another host, ``drain``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gpuvirt.cluster.migration.drain import Drain
from gpuvirt.cluster.migration.source import Source
from gpuvirt.cluster.whole_pool import WholePool
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.migration.carry import REST_LIMIT, REST_MOST
from gpuvirt.server.sessions import Sessions
from gpuvirt.server.tokens import TokenEntry

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
DRAIN_LIMIT = 5.0  # seconds that the host which is meant has for its answer


class MigrationRequests:
    """Args: name, rack: of this host."""

    def __init__(self, name: str, rack: str, whole: WholePool) -> None:
        self._name, self._rack, self._whole = name, rack, whole
        self._sessions: Sessions | None = None
        self._source: Source | None = None
        self._drain: Drain | None = None

    def open(self, sessions: Sessions, source: Source, drain: Drain) -> None:
        """From now on they can be answered."""
        self._sessions, self._source, self._drain = sessions, source, drain

    def over(self, own: dict[str, Handler]) -> dict[str, Handler]:
        """This host's own handlers, but that ``move`` can name another ``host``, to which all that works under the session's lease goes, and that
        ``devices`` says of each whether it is ``drained``, and in which ``rack`` it is."""

        async def move(message: dict[str, Any]) -> dict[str, Any]:
            return await (self._move(message) if "host" in message else own["move"](message))

        async def devices(message: dict[str, Any]) -> dict[str, Any]:
            answer = await own["devices"](message)
            drained = self._drain is not None and self._drain.under_way
            return {**answer, "devices": [{**device, "drained": drained, "rack": self._rack} for device in answer["devices"]]}

        return {**own, "move": move, "devices": devices}

    async def _move(self, message: dict[str, Any]) -> dict[str, Any]:
        sender: TokenEntry = message["from"]
        limit = message.get("rest", REST_LIMIT)
        if self._sessions is None or self._source is None:
            raise GpuvirtError("the host has not joined its pool yet; try again")
        if type(limit) not in (int, float) or not 0 < limit <= REST_MOST:
            raise GpuvirtError(f"a session has at most {REST_MOST:.0f} s to come to rest")
        session = self._sessions.named_session(str(message.get("session")), None if sender.admin else bytes.fromhex(sender.id))
        try:
            done = await self._source.migrate(session.membership.lease, str(message["host"]), limit)
        except GpuvirtError as error:
            raise GpuvirtError(f"the session cannot move: {error}") from None
        return {"from_host": self._name, **done}

    async def drain(self, message: dict[str, Any]) -> dict[str, Any]:
        """``drain`` (host; do: "begin", "undo" or "look") answers with what is left there (`Drain.status`)."""
        sender: TokenEntry = message["from"]
        if not sender.admin:
            raise GpuvirtError(f"the token {sender.name!r} may use GPUs but not drain hosts; ask the pool's owner")
        name = str(message.get("host"))
        if name != self._name:
            return await self._whole.ask(name, "drain", message, DRAIN_LIMIT)
        if self._drain is None:
            raise GpuvirtError("the host has not joined its pool yet; try again")
        if message.get("do") == "begin":
            self._drain.begin()
        elif message.get("do") == "undo":
            await self._drain.undo()
        return {"host": name, **self._drain.status()}
