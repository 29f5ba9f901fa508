"""The facts and accounts in the text format of Prometheus.

Labels have bounds: devices and states are few, users are those that the server's administrator made tokens for, and at most `ACCOUNTS_MOST`. Programs
and sessions are no labels: there is no bound to how many a user starts, and what they are called is not for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gpuvirt import __version__
from gpuvirt.server.observe.accounts import Accounts
from gpuvirt.server.observe.facts import LEASE_STATES, QUEUED, SESSION_STATES, SUSPENDED, WITHOUT_GPUS, Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELD = tuple(state for state in LEASE_STATES if state not in WITHOUT_GPUS)


@dataclass(frozen=True)
class Family:
    """A measure, with one value for each set of labels.

    Attributes:
        counter: it only grows.
        labels: their names; of the values each has as many.
    """

    counter: bool
    name: str
    text: str
    labels: tuple[str, ...] = ()
    values: list[tuple[tuple[str, ...], float]] = field(default_factory=list)

    def add(self, *labels: str, value: float) -> None:
        self.values.append((labels, value))

    def of_server(self, server: str) -> Family:
        """The same, with a label that says whose it is."""
        if "server" in self.labels:
            return self
        return replace(self, labels=("server", *self.labels), values=[((server, *labels), value) for labels, value in self.values])


def families(facts: Facts, accounts: Accounts) -> list[Family]:
    """All that a server measures."""
    return [*_server(facts), *_devices(facts), *_now(facts), *_totals(accounts)]


def metrics_text(measured: Iterable[Family]) -> bytes:
    """What a scrape is answered with."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(measured))
    return bytes(generate_latest(registry))


def metrics_answer(facts: Facts, accounts: Accounts) -> dict[str, Any]:
    """What a server says of itself to others: all families, each of whose values says whose it is."""
    return {"server": facts.server, "families": [asdict(family.of_server(facts.server)) for family in families(facts, accounts)]}


def pool_text(answer: dict[str, Any]) -> bytes:
    """What a scrape of the whole pool is answered with.

    Args:
        answer: `metrics_answer`, or `gpuvirt.cluster.whole_pool.merge_metrics` of several, with the names of the hosts that are ``silent``.
    """
    measured = [Family(**one) for one in answer["families"]]
    up = Family(False, "gpuvirt_host_up", "Whether a host of the pool has answered.", ("server",))
    for (server, *_), _ in next(family.values for family in measured if family.name == "gpuvirt_info"):
        up.add(server, value=1)
    for name in answer.get("silent", ()):
        up.add(name, value=0)
    return metrics_text([up, *measured])


class _Collector(Collector):
    def __init__(self, measured: Iterable[Family]) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        for one in self._measured:
            family = (CounterMetricFamily if one.counter else GaugeMetricFamily)(one.name, one.text, labels=one.labels)
            for labels, value in one.values:
                family.add_metric(labels, value)
            yield family

    def describe(self) -> list[Metric]:
        return []


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(False, name, text, labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(True, name, text, labels)


def _one(name: str, text: str, value: float) -> Family:
    """A measure without labels."""
    return Family(False, name, text, (), [((), value)])


def _server(facts: Facts) -> Iterator[Family]:
    info = _gauge("gpuvirt_info", "The server; backend soft: its GPUs are software.", "server", "version", "backend")
    info.add(facts.server, __version__, facts.backend, value=1)
    yield info


def _devices(facts: Facts) -> Iterator[Family]:
    total = _gauge("gpuvirt_device_memory_bytes", "Memory of the GPU.", "device", "name")
    used = _gauge("gpuvirt_device_memory_used_bytes", "Memory that sessions use, on software GPUs.", "device")
    given_back = _gauge("gpuvirt_device_memory_given_back_bytes", "Memory that parked sessions had, which is in files.", "device")
    sessions = _gauge("gpuvirt_device_sessions", "Sessions that have the GPU.", "device")
    for device in facts.devices:
        label = [str(device.ordinal)]
        total.add(*label, device.name, value=device.memory)
        if device.memory_used is not None:
            used.add(*label, value=device.memory_used)
        given_back.add(*label, value=device.given_back)
        sessions.add(*label, value=device.sessions)
    yield from (total, used, given_back, sessions)


def _now(facts: Facts) -> Iterator[Family]:
    sessions = _gauge("gpuvirt_sessions", "Sessions by what they do.", "state")
    for state in SESSION_STATES:
        sessions.add(state.replace(" ", "_"), value=sum(one.state == state for one in facts.sessions))
    leases = _gauge("gpuvirt_leases", "Leases with GPUs, by what they are.", "state")
    for state in HELD:
        leases.add(state, value=sum(one.state == state for one in facts.leases))
    queued = [lease for lease in facts.leases if lease.state == QUEUED]
    yield from (sessions, leases)
    yield _one("gpuvirt_queue_leases", "Leases that wait for GPUs.", len(queued))
    yield _one("gpuvirt_queue_gpus", "GPUs that they wait for.", sum(lease.gpus for lease in queued))
    yield _one("gpuvirt_suspended_leases", "Leases that have given way and wait for their GPUs.", sum(one.state == SUSPENDED for one in facts.leases))
    waiting = [session for session in facts.sessions if session.place]
    yield _one("gpuvirt_memory_queue_sessions", "Sessions that wait for memory that others have.", len(waiting))
    yield _one("gpuvirt_memory_queue_bytes", "Memory that they wait for.", sum(session.waits_for for session in waiting))


def _totals(accounts: Accounts) -> Iterator[Family]:
    starts = _counter("gpuvirt_session_starts", "Sessions that have begun.", "user")
    commands = _counter("gpuvirt_session_commands", "Commands that workers carried out.", "user")
    launches = _counter("gpuvirt_session_launches", "Kernels that workers launched.", "user")
    answers = _counter("gpuvirt_session_answers", "Commands whose program waited for the answer.", "user")
    network = _counter(
        "gpuvirt_session_network_seconds",
        "Seconds lost to the network: a round trip, as measured when connecting, for each answer, and while connections were cut.",
        "user",
    )
    passed = _counter("gpuvirt_session_bytes", "Bytes of commands and payloads; in: towards the GPU, out: to the program.", "user", "direction")
    time = _counter(
        "gpuvirt_lease_gpu_seconds",
        "GPUs times the seconds for which leases had them; parked: all under the lease had given its memory back; idle: nothing ran under it.",
        "user",
        "state",
    )
    waited = _counter("gpuvirt_lease_wait_seconds", "Seconds that leases waited for GPUs.", "user")
    for user, sums in sorted(accounts.totals.items()):
        starts.add(user, value=sums.sessions)
        commands.add(user, value=sums.commands)
        launches.add(user, value=sums.launches)
        answers.add(user, value=sums.answers)
        network.add(user, value=sums.network)
        passed.add(user, "in", value=sums.bytes_in)
        passed.add(user, "out", value=sums.bytes_out)
        waited.add(user, value=sums.queued)
        for state in HELD:
            time.add(user, state, value=getattr(sums, state))
    yield from (starts, commands, launches, answers, network, passed, time, waited)
    links = _counter("gpuvirt_link_bytes", "Bytes over links, by transport.", "transport", "direction")
    cuts = _counter("gpuvirt_link_reconnections", "Sessions' connections that were cut and made again.", "transport")
    for transport, bytes in sorted(accounts.links.items()):
        links.add(transport, "in", value=bytes["in"])
        links.add(transport, "out", value=bytes["out"])
        cuts.add(transport, value=accounts.reconnections.get(transport, 0))
    yield from (links, cuts)
