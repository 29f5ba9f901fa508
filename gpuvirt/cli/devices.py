"""`gpuvirt devices`: the GPUs of a pool."""

from __future__ import annotations

import dataclasses
import json

import click

from gpuvirt.cli.options import JSON, POOL


@click.command(epilog="\b\nExample:\n  gpuvirt devices --pool tcp://gpu-host:7070")
@POOL
@JSON
def devices(pool: str | None, as_json: bool) -> None:
    """List a pool's GPUs, their memory, what parked sessions have given back of it, and how many sessions use each; and its RDMA devices."""
    from gpuvirt.client.devices import devices_and_fabric
    from gpuvirt.client.fabric_view import port_rows, port_table, summary

    found, fabric = devices_and_fabric(pool)
    ports = None if fabric is None else port_rows(fabric)
    if as_json:
        click.echo(json.dumps([{**dataclasses.asdict(device), "rdma": ports} for device in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    from gpuvirt.sizes import format_size

    table = Table("GPU", "name", "server", "memory", "used", "given back", "sessions")
    for device in found:
        used = "?" if device.memory_used is None else format_size(device.memory_used)
        notes = [device.backend, *([f"rack {device.rack}"] if device.rack else []), *(["drained"] if device.drained else [])]
        server = f"{device.server} ({', '.join(notes)})"
        table.add_row(
            str(device.ordinal), device.name, server, format_size(device.memory), used, format_size(device.given_back), str(device.sessions)
        )
    console = Console(markup=False, emoji=False, highlight=False)  # names are others' texts
    console.print(table)
    if fabric is not None:
        if ports and len(ports) > 1:
            console.print(port_table(ports))
        else:
            console.print(summary(fabric), soft_wrap=True)
        for obstacle in fabric.obstacles:
            console.print(f"{obstacle.text}; {obstacle.remedy}", soft_wrap=True)
