"""Requests of the control channel that show something. An admin's token sees all, another its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gpuvirt.server.observe.answers import devices_answer, ps_answer, top_answer
from gpuvirt.server.observe.observer import Observer
from gpuvirt.server.tokens import TokenEntry

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def seeing_requests(observer: Observer) -> dict[str, Handler]:
    """The handlers of ``devices``, ``ps`` and ``top``; answers.py has what they answer."""

    def viewer(message: dict[str, Any]) -> bytes | None:
        sender: TokenEntry = message["from"]
        return None if sender.admin else bytes.fromhex(sender.id)

    async def devices(message: dict[str, Any]) -> dict[str, Any]:
        return devices_answer(await observer.facts(ask=False))

    async def ps(message: dict[str, Any]) -> dict[str, Any]:
        return ps_answer(await observer.facts(), viewer(message))

    async def top(message: dict[str, Any]) -> dict[str, Any]:
        return top_answer(await observer.facts(), viewer(message))

    return {"devices": devices, "ps": ps, "top": top}
