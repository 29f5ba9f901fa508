"""Reads this host's RDMA devices: from the kernel's files, which needs nothing, or by pyverbs, which loads libibverbs and opens them."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import Any

from gpuvirt.transport.fabric import (
    ACTIVE,
    CHANNEL_ADAPTER,
    DEVICES_MOST,
    ETHERNET,
    GIDS_MOST,
    IB,
    INFINIBAND,
    PORTS_MOST,
    ROCE_V1,
    ROCE_V2,
    Device,
    Gid,
    Port,
)

NODE_TYPES = {1: CHANNEL_ADAPTER, 2: "switch", 3: "router", 4: "RNIC", 5: "usNIC", 6: "usNIC UDP"}  # ibv_node_type
PORT_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: ACTIVE, 5: "ACTIVE_DEFER"}  # ibv_port_state
PHYSICAL_STATES = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp", 6: "LinkErrorRecovery", 7: "Phy Test"}
LAYERS = {1: INFINIBAND, 2: ETHERNET}  # IBV_LINK_LAYER_*
WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}  # lanes, by active_width
SPEEDS = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}  # Gb/s of a lane, by active_speed


def devices_of_kernel(sysfs: Path) -> list[Device]:
    """The devices as /sys/class/infiniband has them; no library and no permission is needed for that."""
    try:
        folders = sorted((sysfs / "class/infiniband").iterdir(), key=lambda folder: _by_number(folder.name))
    except OSError:
        return []
    return [_kernel_device(folder) for folder in folders[:DEVICES_MOST]]


def _kernel_device(folder: Path) -> Device:
    numa = text_of(folder / "device/numa_node")
    return Device(
        name=folder.name,
        type=_value(text_of(folder / "node_type")),
        guid=text_of(folder / "node_guid"),
        firmware=text_of(folder / "fw_ver"),
        numa=int(numa) if numa.isdecimal() else None,  # -1: the kernel knows none
        ports=tuple(_kernel_port(folder / "ports" / str(number)) for number in _numbers(folder / "ports")[:PORTS_MOST]),
    )


def _kernel_port(folder: Path) -> Port:
    rate = re.match(r"\d+(\.\d+)?", text_of(folder / "rate"))  # "100 Gb/sec (4X EDR)"
    layer = text_of(folder / "link_layer")
    gids = (_kernel_gid(folder, index, layer) for index in _numbers(folder / "gids"))
    return Port(
        number=int(folder.name),
        state=_value(text_of(folder / "state")),  # "4: ACTIVE"
        physical=_value(text_of(folder / "phys_state")),
        rate=float(rate[0]) if rate else 0.0,
        layer=layer,
        lid=int(text_of(folder / "lid") or "0", 16),
        gids=tuple(gid for gid in gids if gid is not None)[:GIDS_MOST],
    )


def _kernel_gid(port: Path, index: int, layer: str) -> Gid | None:
    # Of an empty place in the table the address is zeros, and the kernel refuses to read the type.
    type = IB if layer == INFINIBAND else ROCE_V2 if text_of(port / f"gid_attrs/types/{index}") == ROCE_V2 else ROCE_V1
    return _gid(index, text_of(port / f"gids/{index}"), type, text_of(port / f"gid_attrs/ndevs/{index}"))


def _gid(index: int, address: str, type: str, netdev: str) -> Gid | None:
    """None: the place is empty."""
    number = int(address.replace(":", "") or "0", 16)
    return Gid(index, socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, "big")), type, netdev) if number else None


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _value(text: str) -> str:
    """The name in "4: ACTIVE"."""
    return text.rpartition(":")[2].strip()


def _numbers(folder: Path) -> list[int]:
    """The numbers that a folder's entries are named by."""
    with contextlib.suppress(OSError):
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    return []


def _by_number(name: str) -> list[tuple[str, int]]:
    """mlx5_2 before mlx5_10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def devices_of_pyverbs(of_kernel: list[Device]) -> list[Device]:
    """The devices as pyverbs has them; `of_kernel` where it cannot be imported or lists none.

    The NUMA node, and what of a device pyverbs cannot open, is taken from `of_kernel`."""
    try:
        from pyverbs.device import Context, get_device_list
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError:
        return of_kernel
    known = {device.name: device for device in of_kernel}
    devices = []
    try:
        for listed in get_device_list():
            name = listed.name.decode(errors="replace")
            try:
                with Context(name=name) as context:
                    devices.append(_pyverbs_device(name, NODE_TYPES.get(listed.node_type, "unknown"), context, known.get(name)))
            except PyverbsError:
                continue  # it cannot be opened
    except PyverbsError:
        return of_kernel
    devices += [device for device in of_kernel if device.name not in {one.name for one in devices}]
    return sorted(devices, key=lambda device: _by_number(device.name))[:DEVICES_MOST]


def _pyverbs_device(name: str, type: str, context: Any, known: Device | None) -> Device:
    attributes = context.query_device()
    numbers = range(1, min(attributes.phys_port_cnt, PORTS_MOST) + 1)
    ports = {number: context.query_port(number) for number in numbers}
    table = context.query_gid_table(sum(port.gid_tbl_len for port in ports.values()) or 1)
    guid = f"{attributes.node_guid:016x}"  # as it lies in memory: the highest byte comes last
    return Device(
        name=name,
        type=type,
        guid=":".join(bytes.fromhex(guid)[::-1].hex()[i : i + 4] for i in range(0, 16, 4)),
        firmware=attributes.fw_version,
        numa=known.numa if known else None,
        ports=tuple(_pyverbs_port(number, port, [e for e in table if e.port_num == number]) for number, port in ports.items()),
    )


def _pyverbs_port(number: int, port: Any, table: list[Any]) -> Port:
    layer = LAYERS.get(port.link_layer, INFINIBAND)  # 0 is from drivers older than RoCE
    gids = []
    for entry in sorted(table, key=lambda entry: entry.gid_index):
        netdev = ""
        with contextlib.suppress(OSError):
            netdev = socket.if_indextoname(entry.ndev_ifindex) if entry.ndev_ifindex else ""
        type = IB if layer == INFINIBAND else {1: ROCE_V1, 2: ROCE_V2}.get(entry.gid_type, ROCE_V1)
        gids.append(_gid(entry.gid_index, entry.gid_str(), type, netdev))
    return Port(
        number=number,
        state=PORT_STATES.get(port.state, "unknown"),
        physical=PHYSICAL_STATES.get(port.phys_state, "unknown"),
        rate=WIDTHS.get(port.active_width, 0) * SPEEDS.get(port.active_speed, 0.0),
        layer=layer,
        lid=port.lid,
        gids=tuple(gid for gid in gids if gid is not None)[:GIDS_MOST],
    )
