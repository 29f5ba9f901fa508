"""`python -m tests.bench.scheduler [HOSTS [LEASES]]`: leases a second that the scheduler of a pool of many hosts grants, by processor time.

All that it does for one, messages from and to bytes included: a lease is asked for at a host, placed at another, taken there, told to the first, and
over. No network, no host that does anything.
"""

from __future__ import annotations

import random
import sys
import time

from gpuvirt.cluster import messages as m
from gpuvirt.cluster.scheduler import Scheduler
from gpuvirt.server.policy.events import COMPUTE
from gpuvirt.server.policy.rights import Rights

GIB = 1 << 30


def measure(hosts: int, leases: int, gpus: int = 8) -> tuple[float, float]:
    """Leases a second while as many are there as GPUs, and milliseconds of a host that joins."""
    chance = random.Random(3)
    scheduler, names = Scheduler(1, 0.0), [f"h{number}" for number in range(hosts)]

    def say(sender: str, message: m.Message) -> list[tuple[str, m.Message]]:
        out = scheduler.receive(sender, m.parse(message.packed()), 100.0)
        return [(name, m.parse(each.packed())) for name, each in out if not isinstance(each, m.Hosts)]

    begun = time.process_time()
    for name in names:
        say(name, m.Join(m.VERSION, m.HostEntry(name, f"tcp://{name}:1", (80 * GIB,) * gpus)))
    joined = time.process_time() - begun
    has: list[tuple[str, int]] = []

    def one(number: int) -> None:
        asker = chance.choice(names)
        user = f"u{chance.randrange(100)}"
        wanted = m.Wanted(number, user, Rights(), b"o" * 16, b"", number.to_bytes(16, "big"), b"", 1, compute=COMPUTE)
        ((host, place),) = [(name, each) for name, each in say(asker, m.Want(wanted)) if isinstance(each, m.Place)]
        told = say(host, m.Placed(place.wanted.lease))
        assert host == asker or any(isinstance(each, m.Elsewhere) for _, each in told)
        has.append((host, number))

    room = hosts * gpus - 1
    for number in range(1, room):
        one(number)
    begun = time.process_time()
    for number in range(room, room + leases):
        host, over = has.pop(chance.randrange(len(has)))
        say(host, m.Over(over))
        one(number)
    return leases / (time.process_time() - begun), joined / hosts * 1000


if __name__ == "__main__":
    for hosts in [int(sys.argv[1])] if len(sys.argv) > 1 else [5, 100, 1000]:
        rate, joining = measure(hosts, int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
        print(f"{hosts:5} hosts with 8 GPUs each, all taken but one: {rate:6.0f} leases a second; {joining:.2f} ms for a host to join")
