"""How a host's RDMA devices are shown: a line, and rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuvirt.transport.fabric import INFINIBAND, Device, Fabric, Port, choose_gid

if TYPE_CHECKING:
    from rich.table import Table

NONE = "no RDMA device: links go over shm or tcp"


def port_rows(fabric: Fabric) -> list[dict[str, Any]]:
    """A row for each port: port, network, state, rate (Gb/s), numa, gid (that links use, None: none), usable."""
    usable = {one.name for one in fabric.usable()}
    return [_row(device, port, fabric.gid_index, usable) for device, port in fabric.ports()]


def _row(device: Device, port: Port, index: int | None, usable: set[str]) -> dict[str, Any]:
    gid = choose_gid(port, index)
    name = f"{device.name}/{port.number}"
    return {
        "port": name,
        "network": INFINIBAND if port.layer == INFINIBAND else "RoCE",
        "state": port.state if port.active or not port.physical else f"{port.state}, {port.physical}",
        "rate": port.rate,
        "numa": device.numa,
        "gid": None if gid is None else str(gid),
        "usable": name in usable,
    }


def summary(fabric: Fabric) -> str:
    """One line."""
    rows = port_rows(fabric)
    if not rows:
        return "its devices have no port" if fabric.devices else NONE
    if len(rows) > 1:
        return f"{len(rows)} ports, of which links can use {sum(row['usable'] for row in rows)}"
    (row,) = rows
    node = "" if row["numa"] is None else f", NUMA node {row['numa']}"
    return f"{row['port']}: {row['network']}, {row['state']}, {row['rate']:g} Gb/s{node}, {'no GID' if row['gid'] is None else 'GID ' + row['gid']}"


def port_table(rows: list[dict[str, Any]]) -> Table:
    """For a terminal."""
    from rich.table import Column, Table

    table = Table("RDMA port", "network", "state", "Gb/s", "NUMA", Column("GID", overflow="fold"), "usable")
    for row in rows:
        numa = "" if row["numa"] is None else str(row["numa"])
        usable = "yes" if row["usable"] else "no"
        table.add_row(row["port"], row["network"], row["state"], f"{row['rate']:g}", numa, row["gid"] or "none", usable)
    return table
