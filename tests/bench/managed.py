"""`python -m tests.bench.managed`: what managed memory costs beside explicit copies of the same bytes, in the same process and in turns.

The host writes a buffer, a kernel changes it, the host reads it. With managed memory pages become writable as they are written, are sent before the
launch, and are fetched as they are read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from gpuvirt.client.userfault import may_watch_pages
from gpuvirt.demo.programs import find_nvcc
from tests.bench.pools import clean_environment, pool
from tests.bench.slope import cores

SOURCE = Path(__file__).resolve().parent / "programs" / "managed.cu"
LINKS = ("shm", "tcp", "delay(rtt=30ms,tcp)")


def one_run(url: str, program: Path, link: str, pager: str, mebibytes: int, rounds: int) -> dict[str, list[float]]:
    line = [*cores()[0], sys.executable, "-P", "-m", "gpuvirt", "run", "--pool", url, "--link", link, "--", str(program), str(mebibytes), str(rounds)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False, env=clean_environment(GPUVIRT_PAGER=pager))
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    figures: dict[str, list[float]] = json.loads(done.stdout)
    return figures


@click.command()
@click.option("--size", default=64, show_default=True, help="MiB of the buffer")
@click.option("--rounds", default=5, show_default=True, help="of each, in turns, after one that is not counted")
def main(size: int, rounds: int) -> None:
    title = f"{size} MiB written, changed and read; software GPU, medians of {rounds}"
    table = Table("link", "pager", "managed, ms", "copies, ms", "managed / copies", title=title)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "managed"
        subprocess.run([str(find_nvcc()), "-O2", "-cudart", "static", str(SOURCE), "-o", str(program)], check=True)
        with pool(Path(folder), "--gpu-memory", "2g", prefix=cores()[1]) as url:
            for link in LINKS:
                for pager in ("userfault", "signal") if may_watch_pages() else ("signal",):
                    found = one_run(url, program, link, pager, size, rounds)
                    managed, copies = (median(found[name]) * 1e3 for name in ("managed", "copies"))
                    ratio = median(a / b for a, b in zip(found["managed"], found["copies"], strict=True))
                    table.add_row(link, pager, f"{managed:.0f}", f"{copies:.0f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
