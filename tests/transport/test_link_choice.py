"""Which link leads to a server, with how many rails, and the reason."""

from __future__ import annotations

from typing import Any

import pytest
from transport.fabrics import device, fabric, ib_port, roce_port

from gpuvirt.client import links
from gpuvirt.client.link_choice import Choice, Rail, choose_link, common_rails
from gpuvirt.client.links import Link
from gpuvirt.transport.fabric import Fabric, Gid, Obstacle, Port
from gpuvirt.transport.table import NoTransport

FAR, WHY = ["verbs", "tcp"], "the server is on another host"
NONE = Fabric()
ONE = fabric(device("mlx5_0", ib_port(lid=5)))
LIBRARY = Obstacle("the library libibverbs.so.1 is not installed", "install it", general=True)


def choose(asked: Link | None = None, here: Fabric = ONE, there: Fabric | None = ONE, possible: list[str] = FAR, why: str = WHY) -> Choice:
    return choose_link(asked or Link(), possible, why, here, there)


def names(rails: tuple[Rail, ...] | list[Rail]) -> list[str]:
    return [f"{rail.here}-{rail.there}" for rail in rails]


# ---- which link -----------------------------------------------------------------------------------------------------------------


def test_on_one_host_it_is_shared_memory() -> None:
    assert choose(possible=["shm", "verbs", "tcp"], why="client and server are on the same host") == Choice(
        "shm", "client and server are on the same host"
    )


def test_a_common_fabric_makes_it_verbs() -> None:
    chosen = choose()
    assert chosen.kind == "verbs" and chosen.rails == (Rail("mlx5_0/1", "mlx5_0/1", 0, 0, "InfiniBand subnet fe80::/64", 400.0),)
    assert chosen.reason == "the server is on another host; they share InfiniBand subnet fe80::/64: 1 rail of 400 Gb/s, mlx5_0/1 to mlx5_0/1"


@pytest.mark.parametrize(
    ("here", "there", "because"),
    [
        (NONE, ONE, "this host has no RDMA device"),
        (ONE, NONE, "the server has no RDMA device"),
        (ONE, None, "the server does not tell its RDMA devices"),
        (fabric(*ONE.devices, obstacles=(LIBRARY,)), ONE, "this host cannot use RDMA: the library libibverbs.so.1 is not installed"),
        (ONE, fabric(*ONE.devices, obstacles=(LIBRARY,)), "the server cannot use RDMA: the library libibverbs.so.1 is not installed"),
        (fabric(device("mlx5_0", ib_port(state="DOWN"))), ONE, "this host has no RDMA port that can be used"),
        (ONE, fabric(device("mlx5_0", ib_port(), opens=False)), "the server has no RDMA port that can be used"),
        (ONE, fabric(device("mlx5_0", ib_port(subnet="fec0::"))), "the RDMA ports of the two hosts have no network in common"),
        (ONE, fabric(device("mlx5_0", roce_port("10.0.0.1"))), "the RDMA ports of the two hosts have no network in common"),
    ],
)
def test_else_it_is_tcp(here: Fabric, there: Fabric | None, because: str) -> None:
    assert choose(here=here, there=there) == Choice("tcp", f"{WHY}; {because}")
    with pytest.raises(NoTransport, match=f"^the link verbs does not lead to this server: {because}$"):
        choose(Link("verbs"), here, there)


def test_without_the_transport_the_fabric_counts_for_nothing() -> None:
    assert choose(possible=["tcp"]) == Choice("tcp", WHY)


def test_a_delayed_auto_is_not_verbs() -> None:
    chosen = choose(Link(delayed=True, rtt_ns=1))
    assert chosen.kind == "tcp" and chosen.reason == f"{WHY}; a delayed link is not one over verbs" and not chosen.rails


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_who_asks_for_a_link_gets_it(kind: str) -> None:
    assert choose(Link(kind), possible=["shm", "verbs", "tcp"]) == Choice(kind, "--link asks for it")


def test_verbs_by_name_also_on_one_host() -> None:
    chosen = choose(Link("verbs"), possible=["shm", "verbs", "tcp"])
    assert (chosen.kind, names(chosen.rails)) == ("verbs", ["mlx5_0/1-mlx5_0/1"]) and chosen.reason.startswith("--link asks for it; they share")


def test_what_does_not_lead_there() -> None:
    with pytest.raises(NoTransport, match=r"^the link shm does not lead to this server, only verbs, tcp: the server is on another host$"):
        choose(Link("shm"))
    with pytest.raises(NoTransport, match=r"^the link verbs does not lead to this server: this host has no RDMA device$"):
        choose(Link("verbs"), here=NONE, possible=["tcp"])  # of what is possible here verbs is none: the reason is better than that


# ---- RoCE: a family of addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "there", "network", "gids"),
    [
        (["fe80::1", "10.0.0.1"], ["fe80::2", "10.0.0.2"], "RoCE v2 over IPv4", (3, 3)),
        (["fe80::1", "10.0.0.1", "fd00::1"], ["fd00::2", "10.0.0.2"], "RoCE v2 over IPv4", (3, 3)),
        (["fe80::1", "10.0.0.1", "fd00::1"], ["fd00::2"], "RoCE v2 over IPv6", (5, 1)),
        (["10.0.0.1", "fe80::1"], ["fe80::2", "fd00::2"], "RoCE v2 over link-local", (3, 1)),
    ],
)
def test_family(here: list[str], there: list[str], network: str, gids: tuple[int, int]) -> None:
    (rail,) = common_rails(fabric(device("a", roce_port(*here))), fabric(device("b", roce_port(*there))))
    assert (rail.network, (rail.here_gid, rail.there_gid), rail.rate) == (network, gids, 100.0)


def test_a_gid_that_its_user_names() -> None:
    ports = device("a", roce_port("10.0.0.1", "fd00::1"))
    both = fabric(ports, gid_index=3)
    (rail,) = common_rails(both, fabric(ports))
    assert (rail.network, rail.here_gid, rail.there_gid) == ("RoCE v2 over IPv6", 3, 3)
    assert common_rails(both, fabric(ports, gid_index=1)) == []


def test_infiniband_by_the_first_gid() -> None:
    port = Port(1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", 7, (Gid(0, "fec0::7", "IB"), Gid(1, "fe80::7", "IB")))
    assert common_rails(fabric(device("a", port)), ONE) == []


# ---- rails ----------------------------------------------------------------------------------------------------------------------


def host(*rates_and_nodes: tuple[float, int | None]) -> Fabric:
    return fabric(*(device(f"m{i}", ib_port(rate=rate, lid=i + 1), numa=node) for i, (rate, node) in enumerate(rates_and_nodes)))


@pytest.mark.parametrize(
    ("here", "there", "pairs"),
    [
        ([(400, 0), (400, 1)], [(400, 0), (400, 1)], ["m0/1-m0/1", "m1/1-m1/1"]),
        ([(400, 0), (400, 1), (400, 0)], [(400, 0)] * 3, ["m0/1-m0/1", "m2/1-m1/1", "m1/1-m2/1"]),  # the same NUMA node first
        ([(100, 0), (400, 1), (200, 1)], [(400, 0)] * 3, ["m1/1-m0/1", "m2/1-m1/1"]),  # then by rate; one a quarter as fast carries nothing
        ([(400, 0), (300, 1), (300, 0)], [(400, 0)] * 3, ["m0/1-m0/1", "m2/1-m1/1", "m1/1-m2/1"]),
        ([(400, 0)] * 2, [(400, 0)], ["m0/1-m0/1"]),
        ([(400, None)] * 9, [(400, None)] * 9, [f"m{i}/1-m{i}/1" for i in range(8)]),
    ],
)
def test_rails(here: Any, there: Any, pairs: list[str]) -> None:
    assert names(choose(here=host(*here), there=host(*there)).rails) == pairs


def test_at_most_what_the_link_says() -> None:
    two = host((400, 0), (400, 0), (10, 0))
    assert names(choose(Link("verbs", rails=1), two, two).rails) == ["m0/1-m0/1"]
    assert names(choose(Link("verbs"), two, two).rails) == ["m0/1-m0/1", "m1/1-m1/1"]
    asked = choose(links.Link("verbs", rails=8), two, two)
    assert names(asked.rails) == ["m0/1-m0/1", "m1/1-m1/1", "m2/1-m2/1"]  # who asks for more gets slow ones, too
    assert "3 rails (8 were asked for) of 400 Gb/s, m0/1 to m0/1, m1/1 to m1/1, ..." in asked.reason
    assert [rail.slow for rail in asked.rails] == [False, False, True] and asked.rails[2].rate == 10


def test_slow_is_what_is_slow_among_pairs() -> None:
    """A fast port that reaches nobody does not make the others slow."""
    alone = device("alone", ib_port(subnet="fec0::", rate=800.0))
    assert names(choose(here=fabric(alone, *host((100, 0)).devices), there=host((100, 0))).rails) == ["m0/1-m0/1"]


def test_each_port_is_in_one_pair_of_one_network() -> None:
    both = fabric(device("ib", ib_port()), device("eth", roce_port("10.0.0.1")), device("eth2", roce_port("10.0.0.2")))
    assert names(common_rails(both, both)) == ["ib/1-ib/1"]  # 400 Gb/s in all, against 200
    assert names(common_rails(both, fabric(*both.devices[1:]))) == ["eth/1-eth/1", "eth2/1-eth2/1"]
    several = fabric(device("ib", ib_port()), *(device(f"eth{i}", roce_port(f"10.0.{i}.1", rate=200.0)) for i in range(3)))
    assert names(common_rails(several, several)) == ["eth0/1-eth0/1", "eth1/1-eth1/1", "eth2/1-eth2/1"]


def test_a_partner_that_others_do_not_need() -> None:
    """Of two ports one has both families; the pairs are found in the ports' order."""
    here = fabric(device("a", roce_port("10.0.0.1")), device("b", roce_port("fd00::1")))
    there = fabric(device("x", roce_port("fd00::2")), device("y", roce_port("10.0.0.2")))
    assert names(common_rails(here, there)) == ["a/1-y/1", "b/1-x/1"]
