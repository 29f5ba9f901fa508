"""The facts and accounts in the text format of Prometheus.

Labels have bounds: devices and states are few, users are those that the server's administrator made tokens for, and at most `ACCOUNTS_MOST`. Programs
and sessions are no labels: there is no bound to how many a user starts, and what they are called is not for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gpuvirt import __version__
from gpuvirt.server.observe.accounts import Accounts
from gpuvirt.server.observe.facts import LEASE_STATES, QUEUED, SESSION_STATES, Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HELD = tuple(state for state in LEASE_STATES if state != QUEUED)


def metrics_text(facts: Facts, accounts: Accounts) -> bytes:
    """What a scrape is answered with."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([*_server(facts), *_devices(facts), *_now(facts), *_totals(accounts)]))
    return bytes(generate_latest(registry))


class _Collector(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families

    def describe(self) -> list[Metric]:
        return []


def _server(facts: Facts) -> Iterator[Metric]:
    info = GaugeMetricFamily("gpuvirt_info", "The server; backend soft: its GPUs are software.", labels=["server", "version", "backend"])
    info.add_metric([facts.server, __version__, facts.backend], 1)
    yield info


def _devices(facts: Facts) -> Iterator[Metric]:
    total = GaugeMetricFamily("gpuvirt_device_memory_bytes", "Memory of the GPU.", labels=["device", "name"])
    used = GaugeMetricFamily("gpuvirt_device_memory_used_bytes", "Memory that sessions use, on software GPUs.", labels=["device"])
    given_back = GaugeMetricFamily("gpuvirt_device_memory_given_back_bytes", "Memory that parked sessions had, which is in files.", labels=["device"])
    sessions = GaugeMetricFamily("gpuvirt_device_sessions", "Sessions that have the GPU.", labels=["device"])
    for device in facts.devices:
        label = [str(device.ordinal)]
        total.add_metric([*label, device.name], device.memory)
        if device.memory_used is not None:
            used.add_metric(label, device.memory_used)
        given_back.add_metric(label, device.given_back)
        sessions.add_metric(label, device.sessions)
    yield from (total, used, given_back, sessions)


def _now(facts: Facts) -> Iterator[Metric]:
    sessions = GaugeMetricFamily("gpuvirt_sessions", "Sessions by what they do.", labels=["state"])
    for state in SESSION_STATES:
        sessions.add_metric([state.replace(" ", "_")], sum(one.state == state for one in facts.sessions))
    leases = GaugeMetricFamily("gpuvirt_leases", "Leases with GPUs, by what they are.", labels=["state"])
    for state in HELD:
        leases.add_metric([state], sum(one.state == state for one in facts.leases))
    queued = [lease for lease in facts.leases if lease.state == QUEUED]
    yield from (sessions, leases)
    yield GaugeMetricFamily("gpuvirt_queue_leases", "Leases that wait for GPUs.", len(queued))
    yield GaugeMetricFamily("gpuvirt_queue_gpus", "GPUs that they wait for.", sum(lease.gpus for lease in queued))
    waiting = [session for session in facts.sessions if session.place]
    yield GaugeMetricFamily("gpuvirt_memory_queue_sessions", "Sessions that wait for memory that others have.", len(waiting))
    yield GaugeMetricFamily("gpuvirt_memory_queue_bytes", "Memory that they wait for.", sum(session.waits_for for session in waiting))


def _totals(accounts: Accounts) -> Iterator[Metric]:
    starts = CounterMetricFamily("gpuvirt_session_starts", "Sessions that have begun.", labels=["user"])
    commands = CounterMetricFamily("gpuvirt_session_commands", "Commands that workers carried out.", labels=["user"])
    launches = CounterMetricFamily("gpuvirt_session_launches", "Kernels that workers launched.", labels=["user"])
    answers = CounterMetricFamily("gpuvirt_session_answers", "Commands whose program waited for the answer.", labels=["user"])
    network = CounterMetricFamily(
        "gpuvirt_session_network_seconds",
        "Seconds lost to the network: a round trip, as measured when connecting, for each answer, and while connections were cut.",
        labels=["user"],
    )
    passed = CounterMetricFamily(
        "gpuvirt_session_bytes", "Bytes of commands and payloads; in: towards the GPU, out: to the program.", labels=["user", "direction"]
    )
    time = CounterMetricFamily(
        "gpuvirt_lease_gpu_seconds",
        "GPUs times the seconds for which leases had them; parked: all under the lease had given its memory back; idle: nothing ran under it.",
        labels=["user", "state"],
    )
    waited = CounterMetricFamily("gpuvirt_lease_wait_seconds", "Seconds that leases waited for GPUs.", labels=["user"])
    for user, sums in sorted(accounts.totals.items()):
        starts.add_metric([user], sums.sessions)
        commands.add_metric([user], sums.commands)
        launches.add_metric([user], sums.launches)
        answers.add_metric([user], sums.answers)
        network.add_metric([user], sums.network)
        passed.add_metric([user, "in"], sums.bytes_in)
        passed.add_metric([user, "out"], sums.bytes_out)
        waited.add_metric([user], sums.queued)
        for state in HELD:
            time.add_metric([user, state], getattr(sums, state))
    yield from (starts, commands, launches, answers, network, passed, time, waited)
    links = CounterMetricFamily("gpuvirt_link_bytes", "Bytes over links, by transport.", labels=["transport", "direction"])
    cuts = CounterMetricFamily("gpuvirt_link_reconnections", "Sessions' connections that were cut and made again.", labels=["transport"])
    for transport, bytes in sorted(accounts.links.items()):
        links.add_metric([transport, "in"], bytes["in"])
        links.add_metric([transport, "out"], bytes["out"])
        cuts.add_metric([transport], accounts.reconnections.get(transport, 0))
    yield from (links, cuts)
