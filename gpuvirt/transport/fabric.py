"""A host's RDMA devices, their ports and addresses, and which address of a port a link over verbs uses.

Nothing here looks at the machine: fabric_inventory.py does. gpuvirt/client/link_choice.py compares the fabrics of two hosts.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"  # link layers, as the kernel writes them
IB, ROCE_V1, ROCE_V2 = "IB", "RoCE v1", "RoCE v2"  # types of GIDs
IPV4, IPV6, LINK_LOCAL = "IPv4", "IPv6", "link-local"  # families of GIDs, in the order of preference
FAMILIES = (IPV4, IPV6, LINK_LOCAL)
ACTIVE = "ACTIVE"
CHANNEL_ADAPTER = "CA"  # the node type of devices for InfiniBand and RoCE; iWARP's is RNIC
DEVICES_MOST, PORTS_MOST, GIDS_MOST = 64, 16, 64  # that are told of a host, of a device, of a port


@dataclass(frozen=True)
class Gid:
    """One address of a port. index: its place in the port's table; address: as IPv6 is written; type: `IB`, `ROCE_V1` or `ROCE_V2`."""

    index: int
    address: str
    type: str
    netdev: str = ""

    @property
    def family(self) -> str:
        """`IPV4` (mapped into IPv6), `IPV6`, or `LINK_LOCAL`, which reaches one Ethernet segment."""
        address = ipaddress.IPv6Address(self.address)
        mapped = address.ipv4_mapped
        if (mapped or address).is_link_local:
            return LINK_LOCAL
        return IPV4 if mapped else IPV6

    @property
    def subnet(self) -> str:
        """The subnet prefix, as InfiniBand counts it: 64 bits."""
        return str(ipaddress.IPv6Network((int(ipaddress.IPv6Address(self.address)) >> 64 << 64, 64)))

    def __str__(self) -> str:
        mapped = ipaddress.IPv6Address(self.address).ipv4_mapped
        return f"{self.index}: {mapped or self.address} ({self.type})"


@dataclass(frozen=True)
class Port:
    """One port of a device.

    Attributes:
        number: from 1.
        state: the logical state: `ACTIVE`, INIT (InfiniBand without a subnet manager), DOWN, ...
        physical: LinkUp, Polling, Disabled, ...
        rate: gigabits a second.
        layer: `INFINIBAND` or `ETHERNET` (RoCE).
        lid: InfiniBand's local address.
    """

    number: int
    state: str
    physical: str
    rate: float
    layer: str
    lid: int = 0
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        return self.state == ACTIVE


@dataclass(frozen=True)
class Device:
    """One RDMA device. type: its node type; numa: the NUMA node that it is attached to, None: none is told; opens: this user may open it."""

    name: str
    type: str
    guid: str
    firmware: str
    numa: int | None
    ports: tuple[Port, ...]
    opens: bool = True


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way of links over verbs. general: of all of them, not of one device or port; remedy: what to do about it."""

    text: str
    remedy: str
    general: bool = False


@dataclass(frozen=True)
class PlacedPort:
    """A port that a link can use, with its device, and the GIDs among which the link may choose."""

    device: Device
    port: Port
    gids: tuple[Gid, ...]

    @property
    def name(self) -> str:
        return f"{self.device.name}/{self.port.number}"

    def gid(self, family: str = IPV4) -> Gid:
        """The GID that a link uses; family: the one to prefer."""
        return min(self.gids, key=lambda gid: _rank(gid, family))

    @property
    def families(self) -> set[str]:
        return {gid.family for gid in self.gids}


@dataclass(frozen=True)
class Fabric:
    """The RDMA devices of one host.

    Attributes:
        gid_index: which GID of every port its user has named (GPUVIRT_GID_INDEX), None: none.
    """

    devices: tuple[Device, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    gid_index: int | None = None

    def ports(self) -> Iterator[tuple[Device, Port]]:
        return ((device, port) for device in self.devices for port in device.ports)

    @property
    def blocked(self) -> Obstacle | None:
        """What prevents all links over verbs."""
        return next((obstacle for obstacle in self.obstacles if obstacle.general), None)

    def usable(self) -> list[PlacedPort]:
        """The ports that links can use."""
        if self.blocked:
            return []
        found = [PlacedPort(device, port, candidates(port, self.gid_index)) for device, port in self.ports() if device.opens]
        return [one for one in found if one.port.active and one.device.type == CHANNEL_ADAPTER and one.gids]

    def to_dict(self) -> dict[str, Any]:
        """As maps, lists, texts and numbers, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Any) -> Fabric:
        """Reads what another host tells of itself, which need not be true to the format.

        Raises:
            ValueError: it is not.
        """
        try:
            devices = tuple(_device(device) for device in _list(told["devices"], DEVICES_MOST))
            obstacles = tuple(Obstacle(_text(o["text"]), _text(o["remedy"]), o["general"] is True) for o in _list(told["obstacles"], 1024))
            return cls(devices, obstacles, _number_or_none(told["gid_index"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no fabric: {error!r}") from None


def candidates(port: Port, index: int | None = None) -> tuple[Gid, ...]:
    """The GIDs that a link may use: of RoCE those of version 2, of InfiniBand the first; with `index` that one only."""
    if index is not None:
        return tuple(gid for gid in port.gids if gid.index == index)
    if port.layer == INFINIBAND:
        return port.gids[:1]
    return tuple(gid for gid in port.gids if gid.type == ROCE_V2)


def choose_gid(port: Port, index: int | None = None, family: str = IPV4) -> Gid | None:
    """The GID by which a port is addressed, None: it has none.

    InfiniBand's is the first. Of RoCE's, version 2 comes before version 1 (which no router forwards), an address that can be routed before one that
    is link-local, and `family` before the other one; of equals the first in the table.

    Args:
        index: the one at this index and no other.
    """
    gids = [gid for gid in port.gids if index in (None, gid.index)]
    if port.layer == INFINIBAND:
        return next(iter(gids), None)
    return min(gids, key=lambda gid: _rank(gid, family), default=None)


def _rank(gid: Gid, family: str) -> tuple[bool, int, int]:
    """Less is better. The family that is asked for comes first, also link-local."""
    return gid.type == ROCE_V1, -1 if gid.family == family else FAMILIES.index(gid.family), gid.index


def _device(told: Any) -> Device:
    name, type, guid, firmware = (_text(told[key]) for key in ("name", "type", "guid", "firmware"))
    ports = tuple(_port(port) for port in _list(told["ports"], PORTS_MOST))
    return Device(name, type, guid, firmware, _number_or_none(told["numa"]), ports, told["opens"] is True)


def _port(told: Any) -> Port:
    rate = told["rate"]
    if type(rate) not in (int, float) or not 0 <= rate < 1e6:
        raise ValueError(f"{rate!r} is no rate")
    gids = tuple(_gid(gid) for gid in _list(told["gids"], GIDS_MOST))
    return Port(_number(told["number"]), _text(told["state"]), _text(told["physical"]), rate, _text(told["layer"]), _number(told["lid"]), gids)


def _gid(told: Any) -> Gid:
    address = ipaddress.IPv6Address(_text(told["address"])).packed
    return Gid(_number(told["index"]), socket.inet_ntop(socket.AF_INET6, address), _text(told["type"]), _text(told["netdev"]))


def _list(told: Any, most: int) -> list[Any]:
    if not isinstance(told, list | tuple) or len(told) > most:
        raise ValueError("this is no list, or too long a one")
    return list(told)


def _text(told: Any) -> str:
    if not isinstance(told, str) or len(told) > 500:
        raise ValueError("this is no text, or too long a one")
    return told


def _number(told: Any) -> int:
    if type(told) is not int or not 0 <= told < 1 << 32:
        raise ValueError(f"{told!r} is no number")
    return told


def _number_or_none(told: Any) -> int | None:
    return None if told is None else _number(told)
