"""Which link leads to a server, and why: a pure function of what was asked for, of what the connection allows, and of both hosts' RDMA devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuvirt.client.links import MAX_RAILS, VERBS, Link
from gpuvirt.transport.fabric import ETHERNET, FAMILIES, INFINIBAND, Fabric, Gid, PlacedPort
from gpuvirt.transport.table import NoTransport

SLOW = 0.5  # of the fastest port's rate: a slower port carries nothing unless more rails are asked for than there are fast ones


@dataclass(frozen=True)
class Rail:
    """A port of this host and one of the server's that reach each other, with the places of their GIDs. rate: Gb/s, of the slower one."""

    here: str
    there: str
    here_gid: int
    there_gid: int
    network: str
    rate: float
    slow: bool = False


@dataclass(frozen=True)
class Choice:
    """A link. kind: the transport's name; rails: of verbs, the best first; reason: one line."""

    kind: str
    reason: str
    rails: tuple[Rail, ...] = ()


def choose_link(asked: Link, possible: Sequence[str], why: str, here: Fabric, there: Fabric | None) -> Choice:
    """The link that a program gets.

    Args:
        possible: the transports that the connection allows, the preferred first, and `why`: `PoolStatus.links`.
        there: the server's, None: it does not tell.

    Raises:
        NoTransport: the link that was asked for does not lead there; the text says why.
    """
    if asked.kind not in ("auto", VERBS, *possible):
        raise NoTransport(f"the link {asked.kind} does not lead to this server, only {', '.join(possible)}: {why}")
    if asked.kind == VERBS:
        rails, says = _over_verbs(asked, here, there)
        if not rails:
            raise NoTransport(f"the link verbs does not lead to this server: {says}")
        return Choice(VERBS, f"--link asks for it; {says}", rails)
    if asked.kind != "auto":
        return Choice(asked.kind, "--link asks for it")
    reasons = [why]
    for kind in possible:
        if kind != VERBS:
            return Choice(kind, "; ".join(reasons))
        if asked.delayed:
            reasons.append("a delayed link is not one over verbs")
            continue
        rails, says = _over_verbs(asked, here, there)
        reasons.append(says)
        if rails:
            return Choice(kind, "; ".join(reasons), rails)
    raise NoTransport("; ".join(reasons))


def _over_verbs(asked: Link, here: Fabric, there: Fabric | None) -> tuple[tuple[Rail, ...], str]:
    """The rails, and what they are; without any, why."""
    for host, fabric in (("this host", here), ("the server", there)):
        if fabric is None:
            return (), "the server does not tell its RDMA devices"
        if fabric.blocked:
            return (), f"{host} cannot use RDMA: {fabric.blocked.text}"
        if not fabric.devices:
            return (), f"{host} has no RDMA device"
        if not fabric.usable():
            return (), f"{host} has no RDMA port that can be used"
    assert there is not None
    found = common_rails(here, there)
    if not found:
        return (), "the RDMA ports of the two hosts have no network in common"
    most = asked.rails or sum(not rail.slow for rail in found)
    rails = tuple(found[: min(most, MAX_RAILS)])
    count = f"{len(rails)} rail{'s' * (len(rails) > 1)}"
    if asked.rails > len(rails):
        count += f" ({asked.rails} were asked for)"
    pairs = ", ".join(f"{rail.here} to {rail.there}" for rail in rails[:2]) + ", ..." * (len(rails) > 2)
    return rails, f"they share {rails[0].network}: {count} of {rails[0].rate:g} Gb/s, {pairs}"


def common_rails(here: Fabric, there: Fabric) -> list[Rail]:
    """Pairs of ports that reach each other, each port in one pair, all in one kind of network; the best first.

    Ports are taken in this order: fast ones, those on the NUMA node of the first fastest one, by rate, by name. InfiniBand needs the same subnet
    prefix; RoCE a family of addresses in which both have GIDs of version 2. That two subnets, or two networks of private or of link-local addresses,
    have the same numbers and are not connected, nobody can tell by that: it shows when the link connects, and with `auto` another one is taken then.
    """
    found = []
    for layer in (INFINIBAND, ETHERNET):
        mine, theirs = (_ordered([one for one in fabric.usable() if one.port.layer == layer]) for fabric in (here, there))
        rails = []
        for port in mine:
            for other in theirs:
                if (reached := _reach(port, other)) is not None:
                    network, *gids = reached
                    rails.append(Rail(port.name, other.name, gids[0].index, gids[1].index, network, min(port.port.rate, other.port.rate)))
                    theirs.remove(other)
                    break
        fastest = max((rail.rate for rail in rails), default=0.0)
        found.append(sorted((replace(rail, slow=rail.rate < SLOW * fastest) for rail in rails), key=lambda rail: rail.slow))
    return max(found, key=lambda rails: sum(rail.rate for rail in rails))


def _ordered(ports: list[PlacedPort]) -> list[PlacedPort]:
    fastest = max((one.port.rate for one in ports), default=0.0)
    near = next((one.device.numa for one in ports if one.port.rate == fastest), None)
    return sorted(ports, key=lambda one: (one.port.rate < SLOW * fastest, one.device.numa != near, -one.port.rate))


def _reach(a: PlacedPort, b: PlacedPort) -> tuple[str, Gid, Gid] | None:
    """The network that two ports of one link layer have in common, and their addresses in it."""
    if a.port.layer == INFINIBAND:
        mine, other = a.gid(), b.gid()
        return (f"InfiniBand subnet {mine.subnet}", mine, other) if mine.subnet == other.subnet else None
    for family in FAMILIES:
        if family in a.families & b.families:
            return f"RoCE v2 over {family}", a.gid(family), b.gid(family)
    return None
