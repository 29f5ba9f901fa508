"""The GPUs of a pool: `gpuvirt.devices()` and what it returns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from gpuvirt.transport.fabric import Fabric


@dataclass(frozen=True)
class Device:
    """One GPU of a pool, as it was when the server was asked.

    Attributes:
        ordinal: its number on its server, from 0. A program numbers the GPUs that it was granted from 0, whatever their ordinals.
        name: as the driver reports it.
        memory: total memory in bytes.
        memory_used: bytes in use by all sessions together; None on real GPUs, where only the driver knows.
        sessions: how many sessions share it.
        server: the name of its server.
        backend: "cuda" for a real GPU, "soft" for a software GPU.
        given_back: bytes that parked sessions had on it, which are in files now.
        drained: nobody gets it, because its host is drained (`gpuvirt drain`).
        rack: of its host (`gpuvirt serve --rack`), "": none.
    """

    ordinal: int
    name: str
    memory: int
    memory_used: int | None
    sessions: int
    server: str
    backend: str
    given_back: int = 0
    drained: bool = False
    rack: str = ""


def devices(pool: str | None = None) -> list[Device]:
    """Lists the GPUs of a pool. Does not load CUDA, and may be called from any thread.

    Args:
        pool: ``tcp://HOST:PORT``; None takes GPUVIRT_POOL or the configuration file.

    Returns:
        The devices, those of each server in the order of their ordinals.

    Raises:
        GpuvirtError: no pool is set, it does not answer, or it refuses the token.
    """
    return devices_and_fabric(pool)[0]


def devices_and_fabric(pool: str | None = None) -> tuple[list[Device], Fabric | None]:
    """`devices`, and the server's RDMA devices; None: it does not tell.

    Raises:
        GpuvirtError: as `devices`.
    """
    answer = ask_pool(resolve({"pool": pool}), "devices")
    if silent := answer.get("silent"):
        warnings.warn(f"{', '.join(silent)} of the pool do not answer; their GPUs are not listed", stacklevel=3)
    return devices_of(answer), fabric_of(answer)


def fabric_of(answer: dict[str, Any]) -> Fabric | None:
    """The RDMA devices in a server's answer; None: it is older, or tells nonsense."""
    try:
        return Fabric.from_dict(answer.get("fabric"))
    except ValueError:
        return None


def devices_of(answer: dict[str, Any]) -> list[Device]:
    """The devices of a server's answer."""
    return [
        Device(
            ordinal=found["ordinal"],
            name=found["name"],
            memory=found["memory"],
            memory_used=found["memory_used"],
            sessions=found["sessions"],
            server=found.get("server", answer["server"]),
            backend=found.get("backend", answer["backend"]),
            drained=found.get("drained") is True,
            given_back=found["given_back"],
            rack=str(found.get("rack", "")),
        )
        for found in answer["devices"]
    ]
