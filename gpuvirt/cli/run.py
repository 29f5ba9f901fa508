"""`gpuvirt run`: a program with remote GPUs."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpuvirt.cli.options import ProgramCommand, announce, program_options


@click.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  gpuvirt run -- python train.py\n  gpuvirt run --memory 4g --no-wait -- python train.py\n"
    "  gpuvirt run --pool tcp://gpu-host:7070 --gpus 2 --stats=stats.json -- ./simulate 1000\n"
    "  gpuvirt run --pool tcp://gpu-host:7070 --link 'delay(rtt=30ms,tcp)' -- python train.py",
)
@program_options
@click.option("-q", "--quiet", is_flag=True, default=None, help="Print only errors on stderr.")
@click.option("-v", "--verbose", count=True, help="Print the variables that are set for the program on stderr; -vv: the private pool's log, too.")
@click.argument("command", nargs=-1, required=True, metavar="CMD...", type=click.UNPROCESSED)
def run(command: tuple[str, ...], verbose: int, **options: Any) -> None:
    """Run a program with remote GPUs.

    Without a pool (--pool, GPUVIRT_POOL, configuration file) a private local one is started, and ended with the program.

    Where others have the GPUs, its first CUDA call waits, and its place is said on stderr; --wait bounds that, --no-wait refuses it.

    Exits with the program's exit code (128 plus the number of a signal that ended it), 125 when gpuvirt itself failed, 126 when the program could
    not be executed, 127 when it was not found. gpuvirt prints nothing on stdout.
    """
    from gpuvirt.client.connect import connected
    from gpuvirt.client.environment import apply, variables
    from gpuvirt.client.launch_record import IDLE, VARIABLE, launch_record
    from gpuvirt.client.launcher import NotStarted, check_there, launch, reported
    from gpuvirt.client.settings import resolve

    settings = resolve(options)
    try:
        check_there(command[0])
        with connected(settings, verbose > 1) as found:
            status = found.status
            if not settings.quiet:
                announce(found, settings)
            wanted = variables(found.settings, status, command)
            news = [v.name for v in wanted if v.is_announced(os.environ)]
            if news and not settings.quiet:
                click.echo(f"gpuvirt: software GPUs: setting {', '.join(news)} (-v shows all, -q is quiet)", err=True)
            if verbose:
                for variable in wanted:
                    value = "..." if variable.name == "GPUVIRT_TOKEN" else variable.value
                    click.echo(f"gpuvirt: {variable.name}={value}  ({variable.comment})", err=True)
            with reported(found) as extra, launch_record() as record:
                named = {VARIABLE: str(record.path)} if record else {}
                code = launch(command, {**apply(wanted), **extra, **named})
                idle = record is not None and record.idle()
            if idle and not settings.quiet:
                click.echo(f"gpuvirt: {IDLE}", err=True)
    except NotStarted as error:
        click.echo(f"gpuvirt: {error}", err=True)
        code = error.code
    sys.exit(code)
