"""`python -m tests.frameworks`: a first program of each framework, from its wheels as they are, each in an environment of its own.

It runs on a software GPU, with nothing set by hand. A program compares what it computed with the CPU's and ends with the line "right"; it passes if
it said so and the worker counted launches. Environments are made below --work and kept there.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tests.bench.pools import clean_environment
from tests.outside import results, table
from tests.outside.judging import End, judge, last_line
from tests.outside.results import Results, Row
from tests.outside.running import ENDING, run_limited

from . import debian
from .frameworks import FRAMEWORKS, Framework

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RIGHT = "right"
INSTALLING = 3600.0  # seconds


def installed(framework: Framework, folder: Path) -> Path:
    """The Python of its environment, which is made if it is not there, or not of these packages.

    Raises:
        click.ClickException: pip could not install it; the text says why.
    """
    python, made_of = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(framework.packages)
    if made_of.exists() and made_of.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    line = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off", *framework.packages]
    done = subprocess.run(line, capture_output=True, text=True, timeout=INSTALLING, check=False) if framework.packages else None
    if done and done.returncode:
        raise click.ClickException(f"{framework.name} cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    made_of.write_text(wanted)
    return python


def command(framework: Framework, folder: Path) -> list[str]:
    """How its program is run, with all that it needs there.

    Raises:
        click.ClickException: it cannot be had; the text says why.
    """
    python, program = installed(framework, folder), str(HERE / "programs" / framework.program)
    if not framework.debian:
        return [str(python), program]
    suite, names, runs = framework.debian.suite, framework.debian.packages, framework.debian.runs
    try:
        root = debian.unpack(folder / "debian", suite, names)
    except debian.Refused as error:
        raise click.ClickException(f"{framework.name} cannot be had from Debian: {error}") from None
    line = debian.command(root, runs, *(root / name for name in framework.debian.libraries), *folder.glob("lib/python3*/site-packages/nvidia/*/lib"))
    if not Path(runs).name.startswith("python"):
        return [str(python), program, str(root / debian.LIBRARIES), *line]
    home = [f"PYTHONHOME={root}/usr", f"PYTHONPATH={root}/usr/lib/python3/dist-packages", "PYTHONNOUSERSITE=1"]
    return ["env", *home, *line, program]


def verdict(end: End, launches: int) -> tuple[str, str]:
    """Of a framework's program, and the cause where it did not pass. launches: as the worker counted them."""
    found, cause = judge(end)
    if found != results.PASSED:
        return found, cause
    if end.out.rstrip().rpartition("\n")[2] != RIGHT:
        return results.WRONG, last_line(end)
    return (results.PASSED, "") if launches > 0 else (results.WRONG, "it computed without the GPU")


def run(framework: Framework, work: Path, timeout: float) -> Row:
    """Installs it and runs its program on a private pool; says what became of it."""
    packages = [*framework.packages, *(framework.debian.packages if framework.debian else ())]
    click.echo(f"{framework.name}: installing {', '.join(packages)}", err=True)
    program, stats = command(framework, work / framework.name), work / f"{framework.name}.json"
    stats.unlink(missing_ok=True)
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "--local", "-q", f"--stats={stats}", "--", *program]
    end = run_limited(line, work, clean_environment(), timeout)
    figures = json.loads(stats.read_text()) if stats.exists() else {"launches": 0}
    found, cause = verdict(end, figures["launches"] or 0)
    (work / f"{framework.name}.log").write_text(end.text)
    row = Row(framework.name, found, cause, end.seconds)
    click.echo(f"{row.verdict:>16}  {row.program}  {row.seconds:.1f} s  {figures['launches']} launches  {row.cause}")
    return row


def conclude(rows: Sequence[Row]) -> int:
    table.show("frameworks", rows)
    return 1 if any(row.verdict not in (results.PASSED, results.UNSUPPORTED) for row in rows) else 0


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(sorted(FRAMEWORKS)))
@click.option("--timeout", default=1800.0, show_default=True, metavar="SECONDS", help="Of one program's run.")
@click.option("--work", default=ROOT / "build-tests" / "frameworks", type=click.Path(path_type=Path), help="Folder for the environments.")
@click.option("--remove", is_flag=True, help="Remove each environment behind its program's run.")
@click.option("--resume", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Keep rows in FILE, and go on from them.")
def main(names: tuple[str, ...], timeout: float, work: Path, remove: bool, resume: Path | None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: ENDING.set())
    work.mkdir(parents=True, exist_ok=True)
    kept = Results("frameworks", resume)
    for name in names or FRAMEWORKS:
        if name not in kept:
            kept.add(run(FRAMEWORKS[name], work, timeout))
            if remove:
                shutil.rmtree(work / name)
    sys.exit(conclude([*kept.rows.values()]))


if __name__ == "__main__":
    main()
