"""`python -m tests.bench.verbs_rates`: payloads over verbs on rails of a pretended rate and delay.

By the number of rails: what share of their rate payloads reach that lie in registered memory at both ends, and what a round trip of a small
message takes, idle and beside them. On the software libibverbs, which copies nothing of payloads: it shows that the link keeps rails busy, and
small messages out of the way; it is no speed of any device.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from tests import c_build
from tests.bench.verbs_costs import HERE, ROOT, SOFTVERBS

BESIDE = {
    "same": "payloads of the same link",
    "other": "payloads of another link over the same rails",
    "computing": "threads that only compute where those of payloads run",
}


def measure(folder: Path, gbps: int, delay_us: float, milliseconds: int, rails: tuple[int, ...]) -> dict[str, Any]:
    sources = [*sorted((ROOT / "native/wire").glob("*.c")), *sorted((ROOT / "native/transport").rglob("*.c"))]
    helpers = [HERE / "pair.c", HERE / "sealed_peer.c", Path(__file__).with_suffix(".c")]
    program = c_build.program(folder / "verbs_rates", [*sources, *helpers], variant="plain", libraries=("-ldl",))
    parts = [path for path in sorted(SOFTVERBS.glob("*.c")) if not path.name.startswith(("test_", "ends"))]
    library = c_build.library(folder / "libibverbs.so.1", parts, variant="plain", flags=())
    env = {**os.environ, "GPUVIRT_IBVERBS": str(library), "SOFTVERBS_FABRIC": str(folder / "fabric"), "SOFTVERBS_DEVICES": str(max(rails))}
    line = [str(program), str(gbps * 1000), str(round(delay_us * 1000)), str(milliseconds), *map(str, rails)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, check=True, env=env)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@click.command(help=__doc__)
@click.option("--gbps", default=100, show_default=True, help="rate of a rail, Gbit/s")
@click.option("--delay", default=5.0, show_default=True, help="one way, microseconds")
@click.option("--milliseconds", default=2000, show_default=True, help="of each measurement")
@click.option("--rails", default=(1, 2, 4), multiple=True, show_default=True)
def main(gbps: int, delay: float, milliseconds: int, rails: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), gbps, delay, milliseconds, rails)
    for number, f in found.items():
        print(f"{number} rails: {f['share']:.3f} of {gbps} Gbit/s each; a slice takes {f['slice']:.1f} us. A round trip, us (99 of 100):")
        for name, what in BESIDE.items():
            m = f[name]
            share = f", {m['share']:.3f} of the rate" if m["share"] else ""
            print(f"   {m['p50']:6.1f} ({m['p99']:6.1f}) beside {what}{share}; idle {m['idle_p50']:.1f} ({m['idle_p99']:.1f})")
        m = f["same"]
        wanted = 2 * m["idle_p99"] + f["slice"]
        print(f"   wanted: {wanted:.1f}, twice idle's and a slice; 99 of 100 requests wait at most {m['waits_p99']:.0f} for the pretended rail")


if __name__ == "__main__":
    main()
