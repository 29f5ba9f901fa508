"""RDMA devices for tests: as objects, and as the kernel's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuvirt.transport.fabric import ETHERNET, IB, INFINIBAND, ROCE_V1, ROCE_V2, Device, Fabric, Gid, Port


def ib_port(number: int = 1, subnet: str = "fe80::", rate: float = 400.0, state: str = "ACTIVE", physical: str = "LinkUp", lid: int = 1) -> Port:
    prefix = subnet.removesuffix("::")
    return Port(number, state, physical, rate, INFINIBAND, lid, (Gid(0, f"{prefix}::ba59:9f03:d4:{lid:x}", IB),))


def roce_port(*addresses: str, number: int = 1, rate: float = 100.0, state: str = "ACTIVE", physical: str = "LinkUp", v2: bool = True) -> Port:
    """With two GIDs of each address, as drivers make them: of version 1, and then of version 2."""
    types = (ROCE_V1, ROCE_V2) if v2 else (ROCE_V1,)
    pairs = [(address if ":" in address else f"::ffff:{address}", type) for address in addresses for type in types]
    gids = tuple(Gid(index, address, type, "eth0") for index, (address, type) in enumerate(pairs))
    return Port(number, state, physical, rate, ETHERNET, 0, gids)


def device(name: str, *ports: Port, numa: int | None = 0, type: str = "CA", opens: bool = True) -> Device:
    return Device(name, type, "9803:9b03:0000:e4c6", "28.36.1010", numa, ports, opens)


def fabric(*devices: Device, **more: Any) -> Fabric:
    return Fabric(devices, **more)


def write_sysfs(root: Path, *devices: Device) -> Path:
    """What Linux's files say of these devices, with empty places in the tables of GIDs; the devices' files are uverbs0, uverbs1, ..."""
    numbers = {"DOWN": 1, "INIT": 2, "ACTIVE": 4, "Polling": 2, "Disabled": 3, "LinkUp": 5}
    for place, one in enumerate(devices):
        folder = root / "class/infiniband" / one.name
        _write(folder / "node_type", f"{ {'CA': 1, 'RNIC': 4}[one.type] }: {one.type}")
        _write(folder / "node_guid", one.guid)
        _write(folder / "fw_ver", one.firmware)
        _write(folder / "device/numa_node", "-1" if one.numa is None else str(one.numa))
        _write(root / "class/infiniband_verbs" / f"uverbs{place}" / "ibdev", one.name)
        _write(root / "class/infiniband_verbs/abi_version", "6")
        for port in one.ports:
            at = folder / "ports" / str(port.number)
            _write(at / "state", f"{numbers[port.state]}: {port.state}")
            _write(at / "phys_state", f"{numbers[port.physical]}: {port.physical}")
            _write(at / "rate", f"{port.rate:g} Gb/sec (4X XYZ)")
            _write(at / "link_layer", port.layer)
            _write(at / "lid", f"0x{port.lid:x}")
            known = {gid.index: gid for gid in port.gids}
            for index in range(max(known, default=0) + 3):
                gid = known.get(index)
                number = f"{int.from_bytes(_packed(gid.address)):032x}" if gid else "0" * 32
                _write(at / f"gids/{index}", ":".join(number[i : i + 4] for i in range(0, 32, 4)))
                if gid:  # of an empty place the kernel refuses to say the type
                    _write(at / f"gid_attrs/types/{index}", gid.type if gid.type == ROCE_V2 else "IB/RoCE v1")
                    _write(at / f"gid_attrs/ndevs/{index}", gid.netdev)
    return root


def _packed(address: str) -> bytes:
    import ipaddress

    return ipaddress.IPv6Address(address).packed


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
