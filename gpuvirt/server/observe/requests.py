"""Requests of the control channel that show something. An admin's token sees all, another its own."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.observe.answers import devices_answer, ps_answer, top_answer
from gpuvirt.server.observe.host_fabric import HostFabric
from gpuvirt.server.observe.keeper import Keeper
from gpuvirt.server.observe.observer import Observer
from gpuvirt.server.observe.record import month_of
from gpuvirt.server.tokens import TokenEntry

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def seeing_requests(observer: Observer, keeper: Keeper | None, fabric: HostFabric) -> dict[str, Handler]:
    """The handlers of ``devices`` (also: the server's RDMA devices), ``ps`` and ``top``, of which answers.py has the answers, of ``report``, and of
    ``metrics``, which are an admin's.

    ``report`` (month: YYYY-MM, without one the present one; user: of this account only) answers with the record's sums of a month by account.

    Args:
        keeper: None: there is no record.
    """

    def viewer(message: dict[str, Any]) -> bytes | None:
        sender: TokenEntry = message["from"]
        return None if sender.admin else bytes.fromhex(sender.id)

    async def devices(message: dict[str, Any]) -> dict[str, Any]:
        return {**devices_answer(await observer.facts(ask=False)), "fabric": await fabric.told()}

    async def ps(message: dict[str, Any]) -> dict[str, Any]:
        return ps_answer(await observer.facts(), viewer(message))

    async def top(message: dict[str, Any]) -> dict[str, Any]:
        return top_answer(await observer.facts(), viewer(message))

    async def report(message: dict[str, Any]) -> dict[str, Any]:
        sender: TokenEntry = message["from"]
        month, account = message.get("month") or month_of(time.time()), message.get("user")
        if not isinstance(month, str) or not MONTH.fullmatch(month):
            raise GpuvirtError("a report is of a month such as 2026-01")
        if not isinstance(account, str | None):
            raise GpuvirtError("a report is of a user's name")
        if not sender.admin:
            if account not in (None, sender.account):
                raise GpuvirtError(f"the token {sender.name!r} may see what {sender.account!r} has had; ask the server's owner for more")
            account = sender.account
        if keeper is None:
            raise GpuvirtError("this server keeps no record of use")
        await observer.facts()
        await keeper.keep()
        found = await asyncio.to_thread(keeper.record.month, month, account)
        return {"month": month, "users": [{"user": name, **asdict(sums), "reserved": sums.reserved} for name, sums in found.items()]}

    async def metrics(message: dict[str, Any]) -> dict[str, Any]:
        sender: TokenEntry = message["from"]
        if not sender.admin:
            raise GpuvirtError("only an admin's token may see the metrics of all users")
        from gpuvirt.server.observe.metrics import metrics_answer

        return metrics_answer(await observer.facts(), observer.accounts)

    return {"report": report, "devices": devices, "ps": ps, "top": top, "metrics": metrics}
