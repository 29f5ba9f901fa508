"""`python -m tests.outside VERB CHECKOUT`: runs others' programs from a checkout of theirs, on a software GPU, and says how each ended."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from . import results, rival, samples, suites, table, toolkit
from .results import Results, ResultsError, Row
from .running import ENDING, place

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
OPTIONS = (
    click.option("--only", multiple=True, metavar="GLOB", help="Only programs of such names; may be given several times."),
    click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="How many programs run beside each other."),
    click.option("--timeout", default=120.0, show_default=True, metavar="SECONDS", help="Of one program's run, or one test."),
    click.option("--link", default="auto", show_default=True, help="As of `gpuvirt run`."),
    click.option("--gpus", default=2, show_default=True, type=click.IntRange(1, 16), help="Software GPUs that a program has."),
    click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write all rows to FILE at the end."),
    click.option("--resume", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Keep rows in FILE, and go on from them."),
    click.option("--again", multiple=True, type=click.Choice(results.VERDICTS), help="With --resume: run those of this verdict again."),
    click.option("--work", default=ROOT / "build-tests" / "outside", type=click.Path(path_type=Path), help="Folder for what is built and written."),
)


@click.group(help=__doc__)
def main() -> None:
    pass


def verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    def add(function: Callable[..., Any]) -> click.Command:
        for option in reversed((CHECKOUT, *OPTIONS)):
            function = option(function)
        return main.command(name)(function)

    return add


def each(names: Sequence[str], run: Callable[[str], object], jobs: int) -> None:
    """Runs all of them, `jobs` at a time; Ctrl-C and SIGTERM end those that are under way."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, name) for name in names]
        try:
            for one in waiting:
                one.result()
        except BaseException:
            ENDING.set()
            pool.shutdown(cancel_futures=True)
            raise


def tell(kept: Results, make: Callable[[str], Row]) -> Callable[[str], None]:
    def run(name: str) -> None:
        row = make(name)
        kept.add(row)
        click.echo(f"{row.verdict:>16}  {row.program}  {row.seconds:.1f} s  {row.cause}")

    return run


def conclude(kept: Results, json_file: Path | None, extra: Sequence[Row] = ()) -> None:
    """The table, the file, and the exit code: 0 only where nothing is wrong."""
    rows = [*kept.rows.values(), *extra]
    table.show(kept.suite, rows)
    if json_file:
        found = {"suite": kept.suite, "counts": results.counts(rows), "ratio": results.ratio(rows), "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    bad = [row for row in rows if row.verdict not in (results.PASSED, *results.NOT_COUNTED)]
    sys.exit(1 if bad else 0)


@verb("samples")
def run_samples(checkout: Path, **options: Any) -> None:
    """NVIDIA's CUDA samples (github NVIDIA/cuda-samples)."""
    kept, here = Results("samples", options["resume"], options["again"]), checkout.absolute()
    with place(options["work"].absolute(), options["link"], options["gpus"], options["timeout"]) as where:
        known = samples.prepare(here, where.work, where, toolkit.lay_out(where.work))
        found = {sample.name: sample for sample in samples.find(here)}
        names = [name for name in samples.select(found, options["only"]) if name not in kept]
        each(names, tell(kept, lambda name: known.row(found[name])), options["jobs"])
    conclude(kept, options["json_file"])


@verb("rival")
def run_rival(checkout: Path, **options: Any) -> None:
    """The rival's regression programs (github lupinemachines/lupine, test/)."""
    kept = Results("rival", options["resume"], options["again"])
    with place(options["work"].absolute(), options["link"], options["gpus"], options["timeout"]) as where:
        tools, found = toolkit.lay_out(where.work), rival.find(checkout.absolute())
        names = [name for name in samples.select(found, options["only"]) if name not in kept]
        each(names, tell(kept, lambda name: rival.row(name, found[name], where, tools)), options["jobs"])
    conclude(kept, options["json_file"])


def run_suite(suite: suites.Suite, size: int | None, seed: int, options: dict[str, Any]) -> None:
    kept = Results(suite.name, options["resume"], options["again"])
    with place(options["work"].absolute(), options["link"], options["gpus"], options["timeout"]) as where:
        tests, unread = suites.names(suite, where)
        chosen = suites.select(suites.sample(tests, size or len(tests), seed), options["only"])
        click.echo(f"{len(chosen)} of {len(tests)} tests, seed {seed}")
        (where.work / f"{suite.name}-sample.txt").write_text("".join(f"{test}\n" for test in chosen))
        files = suites.by_file([test for test in chosen if test not in kept])

        def run(file: str) -> None:
            suites.run_file(suite, where, file, files[file], kept)
            rows = [kept.rows[test] for test in files[file]]
            click.echo(f"{file}: {', '.join(f'{count} {verdict}' for verdict, count in results.counts(rows).items())}")

        each(sorted(files), run, options["jobs"])
    conclude(kept, options["json_file"], unread)


@verb("cupy")
@click.option("--sample", "size", default=5000, show_default=True, help="How many tests.")
@click.option("--seed", default=7, show_default=True, help="Which ones.")
def run_cupy(checkout: Path, size: int, seed: int, **options: Any) -> None:
    """CuPy's own tests (github cupy/cupy at the installed version's tag) against the installed CuPy."""
    run_suite(suites.cupy(checkout.absolute()), size, seed, options)


@verb("numba")
@click.option("--sample", "size", default=None, type=int, help="How many tests.  [default: all]")
@click.option("--seed", default=7, show_default=True, help="Which ones.")
def run_numba(checkout: Path, size: int | None, seed: int, **options: Any) -> None:
    """Numba's own tests for CUDA (github NVIDIA/numba-cuda at the installed version's tag)."""
    run_suite(suites.numba(checkout.absolute()), size, seed, options)


def end_in_order(signum: int, frame: object) -> None:
    """The server and the programs under way are ended, too. Once: `timeout` sends it a second time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ENDING.set()
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_in_order)
    try:
        main()
    except (ResultsError, samples.SamplesError, suites.SuiteError, toolkit.ToolkitError) as known:
        sys.exit(f"tests.outside: {known}")
