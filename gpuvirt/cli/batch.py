"""`gpuvirt batch`: jobs of several ranks, in the background."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpuvirt.cli.options import JSON, ProgramCommand, compute, link, pool_url, seconds, size
from gpuvirt.errors import GpuvirtError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuvirt.batch.job import Job, JobFolder

FIRST_WORD = 30.0  # seconds that a runner has for its first word
LOOK = 0.2  # seconds between two looks
RANKS_MOST = 128
STILL = 3  # the exit code of `wait` when the time is over


@click.group(
    epilog="\b\nExamples:\n  gpuvirt batch submit --ranks 8 --priority 5 -- python train.py\n  gpuvirt batch list\n"
    "  gpuvirt batch logs 1f2e3d4c --follow\n  gpuvirt batch wait 1f2e3d4c && echo right"
)
def batch() -> None:
    """Run programs of several ranks in the background, when their GPUs are free.

    A job waits in the queue of the pool until all of its ranks have their GPUs, and runs on this machine, also when you log out. Jobs are named by
    their ids or the beginnings of those, or by their names: then the last one that has it.
    """


@batch.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  gpuvirt batch submit --ranks 4 -- python train.py\n"
    "  gpuvirt batch submit --ranks 8 --nodes 4 -- python train.py\n"
    "  gpuvirt batch submit --ranks 2 --gpus 2 --retries 3 --deadline 8h --name night -- python train.py\n"
    "  JOB=$(gpuvirt batch submit -q -- ./simulate 1000); gpuvirt batch wait $JOB",
)
@click.option("--pool", type=pool_url, metavar="URL", help="The server: tcp://HOST:PORT, or find: it announces itself.")
@click.option("--ranks", type=click.IntRange(1, RANKS_MOST), default=1, show_default=True, metavar="N", help="Processes, which begin together.")
@click.option("--gpus", type=click.IntRange(1, 16), default=1, show_default=True, metavar="N", help="GPUs of each rank.")
@click.option(
    "--nodes", type=click.IntRange(1, RANKS_MOST), metavar="N", help="Share the ranks out among so many hosts.  [default: as few as can be]"
)
@click.option("--name", metavar="NAME", help="What to call it.  [default: its program's name]")
@click.option("--retries", type=click.IntRange(0, 1000), default=0, show_default=True, metavar="N", help="How often to begin anew after a failure.")
@click.option("--deadline", type=seconds, metavar="TIME", help="End it so long after it was submitted: 90m, 8h.  [default: never]")
@click.option("--preemptible", is_flag=True, help="Give way to a lease of a higher priority, and go on later.")
@click.option("--priority", type=click.IntRange(-100, 100), metavar="P", help="Higher ones are served first, as far as the token allows.")
@click.option("--memory", type=size, metavar="SIZE", help="Memory per GPU, such as 512m or 4g.  [default: all of it]")
@click.option("--compute", type=compute, metavar="PART", help="Part of each GPU's compute that is reserved, such as 0.25.  [default: none]")
@click.option("--link", type=link, metavar="LINK", help="How to reach the server: auto, shm, tcp, ...")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@click.argument("command", nargs=-1, required=True, metavar="CMD...", type=click.UNPROCESSED)
def submit(
    command: tuple[str, ...],
    ranks: int,
    gpus: int,
    nodes: int | None,
    name: str | None,
    retries: int,
    deadline: float | None,
    preemptible: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Queue a job, and print its id.

    Each rank is a process of CMD with GPUs of its own, which it numbers from 0, and with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
    environment (also under the names of Open MPI, PMI and Horovod); LOCAL_RANK is 0, as if each rank were on a node of its own. The GPUs of a job are
    on one host of the pool if one has so many; else the ranks are shared out evenly among hosts, as few as possible, and begin when all of them have
    room. When a rank fails the others are ended, and the job begins anew if --retries allows it; when a host of its GPUs is lost, it does so in any
    case. A --preemptible job is suspended when a lease of a higher priority waits for its GPUs: their memory goes to files, its ranks wait at their
    next call, and go on when the GPUs are free again. Where that cannot be (a server with --strict, memory shared between processes) it is ended
    (SIGTERM, after 5 s SIGKILL) and begins anew. The working folder and the environment are those of this command.
    """
    from gpuvirt.batch.job import Job, make, new_id
    from gpuvirt.client.launcher import NotStarted, check_there
    from gpuvirt.client.settings import MAX_GPUS, resolve

    if nodes and ranks % nodes:
        raise click.UsageError(f"{ranks} ranks cannot be shared out evenly among {nodes} nodes")
    if nodes and ranks // nodes * gpus > MAX_GPUS:
        raise click.UsageError(
            f"{ranks // nodes} ranks with {gpus} GPUs are {ranks // nodes * gpus} on one host, which may be {MAX_GPUS}; take more --nodes"
        )
    given = {key: value for key, value in options.items() if value is not None} | {"gpus": gpus}
    if resolve(given).pool is None:
        raise GpuvirtError("no pool is set; name one with --pool tcp://HOST:PORT or GPUVIRT_POOL, or start one with `gpuvirt serve`")
    try:
        check_there(command[0])
    except NotStarted as error:
        raise GpuvirtError(str(error)) from None
    until = time.time() + deadline if deadline else 0.0
    made = make(
        Job(new_id(), name or _called(command), command, os.getcwd(), ranks, gpus, given, retries, until, nodes=nodes or 0, preemptible=preemptible)
    )
    with (made.path / "runner.log").open("wb") as log:
        line = [sys.executable, "-P", "-m", "gpuvirt.batch.runner", str(made.path)]
        runner = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    job = _first_word(made, runner)
    if job.state == "failed" and not job.attempt:  # it can never run
        shutil.rmtree(made.path, ignore_errors=True)
        raise GpuvirtError(job.why)
    if not quiet:
        click.echo(f"gpuvirt: job {job.id} ({job.name}): {job.state}{f', {job.why}' if job.why else ''}", err=True)
    click.echo(job.id)


def _called(command: tuple[str, ...]) -> str:
    """The name of its program; of an interpreter's script rather than the interpreter's."""
    program = os.path.basename(command[0])
    script = command[1] if len(command) > 1 and program.startswith("python") and not command[1].startswith("-") else ""
    return os.path.basename(script) or program


def _first_word(made: JobFolder, runner: subprocess.Popen[bytes]) -> Job:
    """The job as soon as it runs, waits or has failed.

    Raises:
        GpuvirtError: its runner does not start.
    """
    until = time.monotonic() + FIRST_WORD
    while True:
        ended = runner.poll() is not None
        job = made.read()
        if job.state not in ("starting", "lost") and job.why != "it asks for its GPUs":
            return job
        if ended or time.monotonic() > until:
            if job.state == "queued":
                return job
            raise GpuvirtError(f"the job's runner did not start: {job.why or 'it says nothing'} ({made.path / 'runner.log'})")
        time.sleep(LOOK / 4)


@batch.command("list", epilog="\b\nExample:\n  gpuvirt batch list --json")
@JSON
def list_jobs(as_json: bool) -> None:
    """Show your jobs on this machine, the last ones at the end."""
    from gpuvirt.batch.job import jobs
    from gpuvirt.durations import format_duration

    found = sorted((folder.read() for folder in jobs()), key=lambda job: job.submitted)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(job) for job in found], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("job", "name", "state", "ranks × GPUs", "since", "what")
    for job in found:
        since = format_duration(time.time() - (job.ended or job.started or job.submitted))
        where = job.why or "; ".join(f"GPU {','.join(map(str, devices))} of {url}" for url, devices in job.places)
        again = f"attempt {job.attempt}: " if job.attempt > 1 and not where.startswith("attempt") else ""
        table.add_row(job.id, job.name, job.state, f"{job.ranks} × {job.gpus}", since, again + where)
    Console(markup=False, emoji=False, highlight=False).print(table)


@batch.command(epilog="\b\nExamples:\n  gpuvirt batch logs 1f2e3d4c\n  gpuvirt batch logs night --rank 0 --follow")
@click.argument("job")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Only this one's.  [default: all, each line after its rank]")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of an earlier attempt.  [default: the last one]")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
def logs(job: str, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Print what a job's ranks have said, on stdout and stderr."""
    from gpuvirt.batch.job import find

    folder = find(job)
    said: dict[tuple[int, int], int] = {}
    while True:
        now = folder.read()
        if rank is not None and rank >= now.ranks:
            raise GpuvirtError(f"the job has ranks 0 to {now.ranks - 1}")
        if attempt is not None and attempt > now.attempt:
            raise GpuvirtError(f"the job has had {now.attempt} attempts")
        which = attempt or now.attempt
        for each in range(now.ranks) if rank is None else [rank]:
            place = which, each
            said[place] = _print_from(folder.log(which, each), said.get(place, 0), f"[{each}] " if rank is None and now.ranks > 1 else "", not follow)
        if not follow or now.state.over:
            return
        time.sleep(LOOK)


def _print_from(file: Path, start: int, prefix: str, rest: bool) -> int:
    """Prints whole lines of a file from a place on, and the rest of it if wanted. Returns the next place."""
    try:
        with file.open("rb") as log:
            log.seek(start)
            new = log.read()
    except OSError:
        return start
    whole = new if rest else new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        click.echo(prefix + line)
    return start + len(whole)


@batch.command(epilog="\b\nExample:\n  gpuvirt batch wait 1f2e3d4c --timeout 1h")
@click.argument("job")
@click.option("--timeout", type=seconds, metavar="TIME", help="How long at most.  [default: no limit]")
@JSON
def wait(job: str, timeout: float | None, as_json: bool) -> None:
    """Wait until a job is over.

    Exits with 0 when all ranks have ended well; else with the exit code of the one that failed first, 124 when the job's deadline has passed, 125
    when gpuvirt has failed, 130 when it was cancelled; with 3 when the job is not over after --timeout.
    """
    from gpuvirt.batch.job import find

    folder, began = find(job), time.monotonic()
    while True:
        now = folder.read()
        late = timeout is not None and time.monotonic() - began > timeout
        if now.state.over or late:
            break
        time.sleep(LOOK)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(now), indent=2))
    elif not late or now.state.over:
        click.echo(f"gpuvirt: job {now.id} ({now.name}): {now.state}{f', {now.why}' if now.why else ''}", err=True)
    if not now.state.over:
        sys.exit(STILL)
    sys.exit(125 if now.exit_code is None else now.exit_code)


@batch.command(epilog="\b\nExample:\n  gpuvirt batch cancel 1f2e3d4c")
@click.argument("job")
def cancel(job: str) -> None:
    """End a job, or take it out of the queue. Returns when it is over."""
    from gpuvirt.batch.job import find

    folder = find(job)
    if folder.read().state.over:
        raise GpuvirtError(f"the job {folder.id} is over: {folder.read().state}")
    folder.cancel()
    while not folder.read().state.over:
        time.sleep(LOOK)
    now = folder.read()
    click.echo(f"gpuvirt: job {now.id} ({shlex.join(now.command)[:60]}): {now.state}", err=True)
