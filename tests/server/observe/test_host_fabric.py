"""The server looks at its RDMA devices when somebody asks, one at a time, and not at every request."""

from __future__ import annotations

import asyncio
import threading

from gpuvirt.server.observe.host_fabric import HostFabric
from gpuvirt.transport.fabric import Fabric


def test_it_is_looked_at_once_in_a_while() -> None:
    looks: list[threading.Thread] = []
    clock = 100.0

    def inspect() -> Fabric:
        looks.append(threading.current_thread())
        return Fabric(gid_index=len(looks))

    async def ask() -> None:
        nonlocal clock
        fabric = HostFabric(inspect, lambda: clock)
        assert [told["gid_index"] for told in await asyncio.gather(*(fabric.told() for _ in range(5)))] == [1] * 5
        clock += 4.9
        assert (await fabric.told())["gid_index"] == 1
        clock += 0.2
        assert (await fabric.told())["gid_index"] == 2

    asyncio.run(ask())
    assert len(looks) == 2 and threading.main_thread() not in looks
