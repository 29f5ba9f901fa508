"""RDMA devices as they are told, and the choice of a GID."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transport.fabrics import device, fabric, ib_port, roce_port

from gpuvirt.transport.fabric import ETHERNET, IB, IPV4, IPV6, LINK_LOCAL, ROCE_V1, ROCE_V2, Fabric, Gid, Obstacle, Port, candidates, choose_gid
from gpuvirt.transport.packing import pack, unpack

# The table of a ConnectX port whose network device has an IPv4 and a global IPv6 address.
USUAL = roce_port("fe80::5054:ff:fe12:3456", "10.1.2.3", "2001:db8::5054:ff:fe12:3456")


@pytest.mark.parametrize(
    ("address", "family"),
    [
        ("::ffff:10.0.0.1", IPV4),
        ("::ffff:192.168.7.1", IPV4),
        ("::ffff:169.254.3.4", LINK_LOCAL),
        ("fe80::1", LINK_LOCAL),
        ("febf::1", LINK_LOCAL),
        ("fec0::1", IPV6),
        ("fd00::1", IPV6),
        ("2001:db8::1", IPV6),
        ("::10.0.0.1", IPV6),
    ],
)
def test_families(address: str, family: str) -> None:
    assert Gid(0, address, ROCE_V2).family == family


def test_subnet_of_infiniband() -> None:
    assert Gid(0, "fe80::ba59:9f03:d4:1", IB).subnet == "fe80::/64"
    assert Gid(0, "fec0:0:0:7:ba59:9f03:d4:1", IB).subnet == "fec0:0:0:7::/64"


@pytest.mark.parametrize(
    ("gids", "family", "chosen"),
    [
        ([(ROCE_V1, "::ffff:10.0.0.1"), (ROCE_V2, "fe80::1")], IPV4, 1),  # the version first: no router forwards version 1
        ([(ROCE_V2, "fe80::1"), (ROCE_V2, "2001:db8::1")], IPV4, 1),  # then what can be routed
        ([(ROCE_V2, "::ffff:169.254.0.1"), (ROCE_V2, "2001:db8::1")], IPV4, 1),
        ([(ROCE_V2, "2001:db8::1"), (ROCE_V2, "::ffff:10.0.0.1")], IPV4, 1),  # then the family
        ([(ROCE_V2, "::ffff:10.0.0.1"), (ROCE_V2, "2001:db8::1")], IPV6, 1),
        ([(ROCE_V2, "::ffff:10.0.0.1"), (ROCE_V2, "fe80::1")], IPV6, 0),
        ([(ROCE_V2, "::ffff:10.0.0.1"), (ROCE_V2, "fe80::1")], LINK_LOCAL, 1),
        ([(ROCE_V2, "::ffff:10.0.0.1"), (ROCE_V2, "::ffff:10.0.0.2")], IPV4, 0),  # of equals the first
        ([(ROCE_V1, "fe80::1"), (ROCE_V1, "::ffff:10.0.0.1")], IPV4, 1),
    ],
)
def test_which_gid(gids: list[tuple[str, str]], family: str, chosen: int) -> None:
    port = Port(1, "ACTIVE", "LinkUp", 100.0, ETHERNET, 0, tuple(Gid(i, address, type) for i, (type, address) in enumerate(gids)))
    found = choose_gid(port, family=family)
    assert found is not None and found.index == chosen


def test_the_usual_table() -> None:
    assert [(gid.type, gid.family) for gid in USUAL.gids] == [(v, f) for f in (LINK_LOCAL, IPV4, IPV6) for v in (ROCE_V1, ROCE_V2)]
    assert choose_gid(USUAL) == USUAL.gids[3] and choose_gid(USUAL, family=IPV6) == USUAL.gids[5]
    assert choose_gid(USUAL, index=0) == USUAL.gids[0] and choose_gid(USUAL, index=9) is None  # who names one gets it, or none
    assert [gid.index for gid in candidates(USUAL)] == [1, 3, 5] and [gid.index for gid in candidates(USUAL, 2)] == [2]
    assert choose_gid(Port(1, "ACTIVE", "LinkUp", 100.0, ETHERNET)) is None


def test_infinibands_gid_is_the_first() -> None:
    port = Port(1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", 7, (Gid(0, "fe80::1", IB), Gid(1, "fec0::1", IB)))
    assert choose_gid(port) == port.gids[0] and candidates(port) == port.gids[:1]
    assert choose_gid(port, index=1) == port.gids[1] and candidates(port, 1) == port.gids[1:]


def test_what_links_can_use() -> None:
    all_kinds = fabric(
        device("mlx5_0", ib_port(1), ib_port(2, state="DOWN", physical="Polling")),
        device("mlx5_1", roce_port("10.0.0.1"), roce_port("10.0.0.2", number=2, v2=False)),
        device("mlx5_2", roce_port("10.0.0.3"), opens=False),
        device("siw0", roce_port("10.0.0.4"), type="RNIC"),
    )
    assert [one.name for one in all_kinds.usable()] == ["mlx5_0/1", "mlx5_1/1"]
    named = fabric(*all_kinds.devices, gid_index=1)
    assert [(one.name, one.gid().index) for one in named.usable()] == [("mlx5_1/1", 1)]
    assert fabric(*all_kinds.devices, obstacles=(Obstacle("one device", "mend it"),)).usable()
    assert not fabric(*all_kinds.devices, obstacles=(Obstacle("no library", "install it", general=True),)).usable()


FULL = fabric(
    device("mlx5_0", ib_port(1), ib_port(2, state="DOWN", physical="Polling"), numa=None),
    device("mlx5_1", USUAL, numa=1, opens=False),
    obstacles=(Obstacle("a", "b", general=True), Obstacle("c", "")),
    gid_index=3,
)


def test_told_and_read() -> None:
    for told in (FULL, Fabric()):
        assert Fabric.from_dict(json.loads(json.dumps(told.to_dict()))) == told
        assert Fabric.from_dict(unpack(pack(told.to_dict()))) == told


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), None),
        ((), []),
        (("devices",), None),
        (("devices",), "mlx5_0"),
        (("devices",), [{}] * 65),
        (("devices", 0), 5),
        (("devices", 0, "name"), 5),
        (("devices", 0, "name"), "x" * 501),
        (("devices", 0, "numa"), -1),
        (("devices", 0, "ports"), [FULL.to_dict()["devices"][0]["ports"][0]] * 17),
        (("devices", 0, "ports", 0, "rate"), "400"),
        (("devices", 0, "ports", 0, "rate"), float("nan")),
        (("devices", 0, "ports", 0, "rate"), True),
        (("devices", 0, "ports", 0, "number"), 1.5),
        (("devices", 0, "ports", 0, "gids"), [FULL.to_dict()["devices"][0]["ports"][0]["gids"][0]] * 65),
        (("devices", 0, "ports", 0, "gids", 0, "address"), "10.0.0.1"),
        (("devices", 0, "ports", 0, "gids", 0, "index"), 1 << 32),
        (("obstacles", 0, "text"), None),
        (("gid_index",), "3"),
    ],
)
def test_a_server_that_tells_nonsense(path: tuple[Any, ...], value: Any) -> None:
    told: Any = json.loads(json.dumps(FULL.to_dict()))
    holder: Any = {"": told}
    for step in ("", *path)[:-1]:
        holder = holder[step]
    holder[("", *path)[-1]] = value
    with pytest.raises(ValueError):
        Fabric.from_dict(value if not path else told)


def test_a_field_that_is_missing() -> None:
    told = FULL.to_dict()
    for name in told:
        with pytest.raises(ValueError, match=name):
            Fabric.from_dict({key: value for key, value in told.items() if key != name})
