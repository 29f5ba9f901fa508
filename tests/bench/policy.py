"""How long the policy machine takes for a decision, by processor time: python -m tests.bench.policy [GPUS [LEASES [USERS [HOSTS [GANG]]]]]

GANG: of so many leases of 8 GPUs each, which waits meanwhile, with devices held for it. Then who gives way, in a pool of as many GPUs and hosts that
is full of preemptible leases, to a lease of 1 and of 8 GPUs and to a gang that no host can have.
"""

from __future__ import annotations

import random
import sys
import time

from gpuvirt.server.policy.events import COMPUTE, Asked, HostJoined, Released
from gpuvirt.server.policy.instructions import Grant
from gpuvirt.server.policy.machine import PolicyMachine
from gpuvirt.server.policy.room import Shape

GIB = 1 << 30


def measure(gpus: int, leases: int, users: int, hosts: int = 1, gang: int = 0, events: int = 4000, seed: int = 2) -> dict[str, float]:
    """A full pool, half as many leases waiting as running: gangs of 1 to 16 (of one host), parts of GPUs, memory by chance. Milliseconds of one
    event each."""
    chance = random.Random(seed)
    machine = PolicyMachine()
    each = gpus // hosts
    for host in range(hosts):
        machine.handle(HostJoined(0.0, host, (80 * GIB,) * each))
    running, number, at = list[int](), 0, 0.0
    mean = 1.5 * gpus / leases  # GPUs a lease

    def ask() -> list[object]:
        nonlocal number
        number += 1
        size = min(16, each, max(1, round(chance.expovariate(1 / mean))))
        memory = chance.randrange(80) * GIB if chance.random() < 0.5 else 0
        return machine.handle(Asked(at, number, f"u{chance.randrange(users)}", size, memory, chance.choice([COMPUTE, 500, 250])))  # type: ignore[return-value]

    while len(machine.waiting) < leases // 3 and number < 4 * leases:
        at += 0.01
        running += [one.lease for one in ask() if isinstance(one, Grant)]
    found = len(running), len(machine.waiting)
    for part in range(gang):
        machine.handle(Asked(at, number + 1 + part, "gang", 8, compute=COMPUTE, priority=0, gang=1, gang_size=gang))
    number += gang
    took: dict[str, list[float]] = {"ask": [], "release": []}
    most_granted = 0
    for i in range(events):
        at += 1.0
        kind = ("ask", "release")[i % 2]
        begun = time.process_time()
        out = ask() if kind == "ask" else machine.handle(Released(at, running.pop(chance.randrange(len(running)))))
        took[kind].append((time.process_time() - begun) * 1000)
        grants = [one.lease for one in out if isinstance(one, Grant)]
        most_granted = max(most_granted, len(grants))
        running += grants
    held = max((len(holding.devices) for holding in machine.holdings), default=0)
    result: dict[str, float] = {"running": found[0], "waiting": found[1], "most granted at once": most_granted, "held for one": held}
    for kind, times in took.items():
        times.sort()
        result |= {f"{kind} median": times[len(times) // 2], f"{kind} 99 %": times[len(times) * 99 // 100], f"{kind} longest": times[-1]}
    return result


def choices(gpus: int, hosts: int, rounds: int = 200, seed: int = 2) -> dict[str, float]:
    """Milliseconds of one choice of who gives way; between two of them a lease ends and another one comes."""
    chance, machine, number = random.Random(seed), PolicyMachine(), 0
    for host in range(hosts):
        machine.handle(HostJoined(0.0, host, (80 * GIB,) * (gpus // hosts)))

    def ask() -> None:
        nonlocal number
        number += 1
        size = min(chance.choice([1, 1, 1, 2, 2, 4, 8]), gpus // hosts)
        part, priority = chance.choice([COMPUTE, 500, 250]), chance.choice([-1, -2])
        machine.handle(Asked(number * 0.001, number, f"u{chance.randrange(100)}", size, 0, part, priority, preemptible=chance.random() < 0.9))

    while len(machine.waiting) < 10:
        ask()
    wanted = {"1 GPU": Shape(1, 0, COMPUTE), "8 GPUs": Shape(8, 0, COMPUTE), "a gang of 64": Shape(64, 0, COMPUTE, 8)}
    took: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(rounds):
        machine.handle(Released(number * 0.001, chance.choice([lease.id for lease in machine.leases.values() if lease.devices])))
        ask()
        for name, shape in wanted.items():
            begun = time.process_time()
            machine.preemption.choose(shape, 0)
            took[name].append((time.process_time() - begun) * 1000)
    result: dict[str, float] = {}
    for name, times in took.items():
        times.sort()
        result |= {f"{name} median": times[len(times) // 2], f"{name} 99 %": times[len(times) * 99 // 100], f"{name} longest": times[-1]}
    return result


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:] or ["10000", "6000", "100"]]
    for name, value in measure(*given).items():
        print(f"{name:24} {value:10.3f}")
    print("who gives way to")
    for name, value in choices(given[0], given[3] if len(given) > 3 else 1).items():
        print(f"{name:24} {value:10.3f}")
