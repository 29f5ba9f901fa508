"""Requests of the control channel whose answer is of the whole pool: the host that is asked asks the others, in the name of whoever asked it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from gpuvirt.cluster.messages import HostEntry
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.tokens import TokenEntry, TokenStore
from gpuvirt.transport.control import ControlError, RequestRefused, request
from gpuvirt.transport.pool import parse_pool
from gpuvirt.transport.token import Token

log = logging.getLogger("gpuvirt.server")

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Answer = dict[str, Any]

LIMIT = 2.0  # seconds that a host has for its answer
SLOWEST = 1300.0  # seconds; of a session that moves, which has its own limits
NO_SESSION = "there is no session"
NOT_MEANT = "another host was meant"


def _of_server(answer: Answer, *lists: str) -> None:
    """Each entry says which server it is of."""
    for name in lists:
        for entry in answer[name]:
            entry.setdefault("server", answer["server"])
            if name == "devices":
                entry.setdefault("backend", answer["backend"])


def merge_devices(answers: list[Answer]) -> Answer:
    """Of ``devices``: all of them, in the order of the hosts; the rest is the first host's."""
    for answer in answers:
        _of_server(answer, "devices")
    return {**answers[0], "devices": [device for answer in answers for device in answer["devices"]]}


def merge_ps(answers: list[Answer]) -> Answer:
    """Of ``ps``: oldest first."""
    for answer in answers:
        _of_server(answer, "leases", "sessions")
    every = {name: sorted((e for answer in answers for e in answer[name]), key=lambda e: e["started"]) for name in ("leases", "sessions")}
    return {**answers[0], **every}


def merge_top(answers: list[Answer]) -> Answer:
    """Of ``top``: numbers are added up."""
    sums = {part: {key: sum(answer[part][key] for answer in answers) for key in answers[0][part]} for part in ("totals", "others")}
    return {**merge_devices(answers), **merge_ps(answers), **sums, "devices": merge_devices(answers)["devices"], "server": answers[0]["server"]}


def merge_report(answers: list[Answer]) -> Answer:
    """Of ``report``: what each user has had of all hosts. The peak is that of the host where it was highest."""
    users: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for row in answer["users"]:
            known = users.get(row["user"])
            if known is None:
                users[row["user"]] = dict(row)
                continue
            for name, value in row.items():
                if name == "peak_memory":
                    known[name] = max(known[name] or 0, value or 0)
                elif name != "user":
                    known[name] += value
    return {**answers[0], "users": [users[name] for name in sorted(users)]}


def merge_metrics(answers: list[Answer]) -> Answer:
    """Of ``metrics``: of each family all values, which say whose they are."""
    families: dict[str, dict[str, Any]] = {}
    for family in (family for answer in answers for family in answer["families"]):
        known = families.setdefault(family["name"], {**family, "values": []})
        known["values"] += family["values"]
    return {**answers[0], "families": [*families.values()]}


MERGES: dict[str, Callable[[list[Answer]], Answer]] = {
    "devices": merge_devices,
    "ps": merge_ps,
    "top": merge_top,
    "report": merge_report,
    "metrics": merge_metrics,
}
OF_A_SESSION = ("move", "park")


class WholePool:
    """Args:
    name: of this host.
    hosts: those of the pool.
    """

    def __init__(self, name: str, tokens: TokenStore, hosts: Callable[[], Iterable[HostEntry]]) -> None:
        self._name, self._tokens, self._hosts = name, tokens, hosts
        self._why: dict[str, str] = {}  # hosts that did not answer when they were asked last

    def over(self, handlers: dict[str, Handler]) -> dict[str, Handler]:
        """This host's own handlers, those of `MERGES` for the whole pool, those of `OF_A_SESSION` for sessions of any host."""
        wrapped = {op: self._merged(op, handlers[op]) for op in MERGES if op in handlers}
        return handlers | wrapped | {op: self._wherever(op, handlers[op]) for op in OF_A_SESSION if op in handlers}

    def _others(self) -> list[HostEntry]:
        return [host for host in self._hosts() if host.name != self._name and host.control_port]

    async def ask(self, name: str, op: str, message: dict[str, Any], limit: float) -> Answer:
        """Has another host answer a request.

        Raises:
            GpuvirtError: it refuses, does not answer within `limit` seconds, or is none of the pool.
        """
        host = next((host for host in self._others() if host.name == name), None)
        if host is None:
            names = ", ".join(sorted({host.name for host in self._hosts()} | {self._name}))
            raise GpuvirtError(f"the pool has no host called {name!r}; it has {names}")
        try:
            return await self._ask(host, op, message, limit)
        except RequestRefused as error:
            raise GpuvirtError(str(error)) from None
        except ControlError as error:
            raise GpuvirtError(f"{name} does not answer: {error}") from None

    async def _ask(self, host: HostEntry, op: str, message: dict[str, Any], limit: float) -> Answer:
        sender: TokenEntry = message["from"]
        token = Token(bytes.fromhex(sender.id), sender.key, self._tokens.public_key)
        said = {name: value for name, value in message.items() if name not in ("v", "op", "from")} | {"alone": True, "meant": host.name}
        address = parse_pool(host.url).host
        try:
            return await asyncio.to_thread(lambda: request(address, host.control_port, token, op, limit, **said))
        except RequestRefused as error:
            if str(error).startswith(NOT_MEANT):
                raise ControlError(f"at {host.url} is another host than {host.name}, whose address that is to be: {error}") from None
            raise

    def meant(self, handler: Handler) -> Handler:
        """A request of another host that means a third one, whose address leads here, is refused: nobody is to be asked twice, or in a circle."""

        async def answered(message: dict[str, Any]) -> Answer:
            meant = message.get("meant", self._name)
            if meant != self._name:
                raise GpuvirtError(f"{NOT_MEANT}: this is {self._name}; start {meant} with --listen and an address that leads there")
            return await handler(message)

        return answered

    def _merged(self, op: str, own: Handler) -> Handler:
        async def answered(message: dict[str, Any]) -> Answer:
            if message.get("alone") is True:
                return await own(message)
            others = self._others()
            mine, *theirs = await asyncio.gather(own(message), *(self._ask(host, op, message, LIMIT) for host in others), return_exceptions=True)
            if isinstance(mine, BaseException):
                raise mine
            answers, silent = [mine], []
            for host, answer in zip(others, theirs, strict=True):
                if isinstance(answer, ControlError):
                    silent.append(host.name)
                    self._is_silent(host.name, str(answer))
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    answers.append(answer)
                    self._why.pop(host.name, None)
            return {**MERGES[op](answers), "silent": silent, "hosts": 1 + len(others)}

        return answered

    def _is_silent(self, name: str, why: str) -> None:
        if self._why.get(name) != why:
            log.warning("host %s of the pool does not answer for it: %s", name, why)
        self._why[name] = why

    def _wherever(self, op: str, own: Handler) -> Handler:
        async def answered(message: dict[str, Any]) -> Answer:
            try:
                return await own(message)
            except GpuvirtError as error:
                if message.get("alone") is True or not str(error).startswith(NO_SESSION):
                    raise
                refused = error
            for host in self._others():
                try:
                    return await self._ask(host, op, message, SLOWEST)
                except RequestRefused as error:
                    if not str(error).startswith(NO_SESSION):
                        raise GpuvirtError(str(error)) from None
                except ControlError:
                    continue
            raise refused

        return answered
