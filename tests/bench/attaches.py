"""`python -m tests.bench.attaches`: what a program waits until it knows its GPU, how many sessions a second begin, and what memory a session takes.

Processes (programs/attaches.py) attach over shm to a server with a software GPU, and ask for a device's properties: one a second, twenty a second,
and each when the one before has attached. Memory: the proportional set size of the server's processes with 20 sessions that have done nothing
more, less that with none, by session; pages that workers share with the template that they are forked from count in parts. Targets: 20 ms, also at
twenty a second, and with thousands of images in the server's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import click

from gpuvirt.client.connect import ask_pool
from gpuvirt.client.settings import resolve
from tests.bench.pools import clean_environment, pool

PROGRAM = Path(__file__).parent / "programs" / "attaches.py"
TARGET_MS = 20.0
META_DIGEST = 8  # bytes


def start(url: str, count: int, every: float, hold: float = 0.0, gpus: int = 1, leases: bool = False) -> subprocess.Popen[str]:
    """leases: each process has a lease of its own, as if each had been launched by itself."""
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "-q", "--pool", url, "--gpus", str(gpus), "--"]
    line += [*(["env", "-u", "GPUVIRT_LAUNCH"] if leases else []), sys.executable, str(PROGRAM), str(count), str(every), str(hold)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=clean_environment())


def waits(url: str, count: int, every: float, gpus: int = 1, leases: bool = False) -> tuple[list[float], float]:
    """Milliseconds that each waited, and sessions a second."""
    process = start(url, count, every, 0.0, gpus, leases)
    out, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"a program ended with {process.returncode}: {out}")
    found = json.loads(out)
    return [1e3 * wait for wait in found["waits"]], count / found["took"]


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in below for each in processes(int(child)))]


def memory(pids: list[int]) -> float:
    """MiB, shared pages in parts."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def fill(cache: Path, images: int) -> None:
    """Puts images of 16 KiB into the cache of the only tenant."""
    (folder,) = cache.glob("tenants/*/images")
    for number in range(images):
        image = number.to_bytes(4, "little") * 4096
        (folder / f"{hashlib.sha256(image).hexdigest()}.{'0' * 2 * META_DIGEST}.{'0' * 16}").write_bytes(image)


@click.command(help=__doc__)
@click.option("--count", default=60, show_default=True, help="of processes that attach, each way")
@click.option("--held", default=20, show_default=True, help="sessions at once, for their memory")
@click.option("--images", default=0, show_default=True, help="in the server's cache of modules; it holds 3,584")
def main(count: int, held: int, images: int) -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, pool(Path(name), "--sessions-per-token", str(held + 1), GPUVIRT_CACHE=f"{name}/cache") as url:
        (server,) = (int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
        waits(url, 3, 1.0)
        fill(Path(name) / "cache", images)
        for said, every in (("one a second", 1.0), ("twenty a second", 0.05), ("one after the other", 0.0)):
            found, rate = waits(url, max(5, count // 4) if every == 1.0 else count, every)
            p95 = quantiles(found, n=20)[-1]
            click.echo(f"{said}: median {median(found):.1f} ms, p95 {p95:.1f} ms, longest {max(found):.1f} ms; {rate:.1f} sessions a second")
        time.sleep(1)
        none = memory(processes(server))
        process = start(url, held, 0.0, 4.0)
        while len(ask_pool(resolve({"pool": url}), "ps")["sessions"]) < held:
            if process.poll() is not None:
                raise RuntimeError("not all processes have attached")
            time.sleep(0.1)
        time.sleep(1)
        some = memory(processes(server))
        process.communicate(timeout=100)
        click.echo(f"memory: the server {none:.0f} MiB, each of {held} sessions {(some - none) / held:.1f} MiB")
    click.echo(f"target {TARGET_MS:.0f} ms; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
