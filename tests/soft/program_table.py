"""The table of programs in docs/SOFTWARE_GPU.md, made by running them all: `python -m tests.soft.program_table` (some minutes).

Each program is compiled by itself and run twice in processes of its own: with an empty cache of kernels and with a full one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from e2e.harness import clean_environment, run_program, start_server  # noqa: E402
from soft import cuda_programs  # noqa: E402

PAGE = ROOT / "docs" / "SOFTWARE_GPU.md"
BEGIN, END = "<!-- programs: begin -->\n", "<!-- programs: end -->\n"
HEAD = ["| program | what it does | kernels | launches | first run, s | again, s |", "|---|---|--:|--:|--:|--:|"]


def row(name: str, folder: Path, seed: int) -> str:
    """Runs one program and returns its line; raises AssertionError when it is wrong."""
    executable = cuda_programs.compile_text(cuda_programs.sources()[name].read_text(), folder)
    log, stats = folder / f"{name}.log", folder / f"{name}.json"
    server = start_server(
        folder / f"{name}.server", "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g",
        env=clean_environment(GPUVIRT_CACHE=str(folder / f"{name}.cache"), GPUVIRT_SOFT_LOG=str(log)),
    )  # fmt: skip
    seconds = []
    try:
        for _ in range(2):
            begin = time.monotonic()
            done = run_program(server, [executable, str(seed)], "--gpus", "2", f"--stats={stats}", timeout=600)
            seconds.append(time.monotonic() - begin)
            assert done.returncode == 0 and f"{name}: right" in done.stdout, f"{name} with seed {seed}: {done.stdout}{done.stderr}"
    finally:
        server.stop()
    kernels = {line["kernel"] for line in map(json.loads, log.read_text().splitlines())}
    launches = json.loads(stats.read_text())["launches"]
    return f"| `{name}` | {cuda_programs.subject(name).rstrip('.')} | {len(kernels)} | {launches} | {seconds[0]:.1f} | {seconds[1]:.1f} |"


def listed(page: str) -> list[str]:
    """The programs that the page's table has."""
    lines = page.split(BEGIN)[1].split(END)[0].splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("| `")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    parser.add_argument("program", nargs="*", help="only these lines anew")
    chosen = parser.parse_args()
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    old = {line.split("`")[1]: line for line in rest.split(END)[0].splitlines() if line.startswith("| `")}
    names = list(cuda_programs.sources())
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gpuvirt-programs-") as folder:
        for name in names:
            if chosen.program and name not in chosen.program:
                continue
            try:
                old[name] = row(name, Path(folder), chosen.seed)
            except AssertionError as error:
                print(error, file=sys.stderr)
                wrong += 1
                continue
            print(old[name], flush=True)
    lines = [old[name] for name in names if name in old]
    about = f"{len(lines)} programs of `tests/soft/programs`, all right; seconds are of whole processes on {os.cpu_count()} cores, the server running.\n"
    PAGE.write_text(head + BEGIN + about + "\n" + "\n".join(HEAD + lines) + "\n" + END + rest.split(END)[1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
